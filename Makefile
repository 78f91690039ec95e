# `make` alone lists the targets: the line above each rule is its help.

export CGO_ENABLED = 0

SHELL = bash

module  := github.com/corral-sandbox/corral
version := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
guests  := corral-gate corral-verify corral-fetch corral-bridge

# Where make install puts things; packagers set DESTDIR.
PREFIX  ?= /usr/local
DESTDIR ?=
BIN     ?= bin
root    := $(DESTDIR)$(PREFIX)

# A shell's name, and the file in which it looks for corral's completion.
completion.bash := share/bash-completion/completions/corral
completion.zsh  := share/zsh/site-functions/_corral
completion.fish := share/fish/vendor_completions.d/corral.fish
shells          := bash zsh fish
beside          := $(guests) corral-prisoner

FUZZTIME  ?= 10s
TESTFLAGS ?=

# Most tests wait for somebody: an engine, a gate, a name server that is silent.
PARALLEL ?= $(shell echo $$((2 * $$(nproc))))

# As root nothing may be skipped; anybody else runs what the machine allows.
ifeq ($(shell id -u),0)
export CORRAL_REQUIRE ?= netns,engine,harness,systemd
endif

.PHONY: help setup build install uninstall image check test mutants fuzz bench demo ci long

help:
	@awk '/^#: / { text = substr($$0, 4) } /^[a-z]+:/ && text { sub(":.*", "", $$1); printf "%-9s %s\n", $$1, text; text = "" }' $(MAKEFILE_LIST)

#: what the tests need: packages, engine, base image; as root or with sudo, once
setup:
	test/setup

#: static binaries into bin/
build:
	go build -trimpath -ldflags '-s -w -X $(module)/internal/spec.release=$(version)' -o bin/ ./cmd/corral $(guests:%=./cmd/%)
	go build -trimpath -ldflags '-s -w' -o bin/corral-prisoner ./test/hostile/prisoner

#: corral, what it needs beside it, and completion, into PREFIX (/usr/local) below DESTDIR; what make build made
install:
	@case '$(PREFIX)' in '~'*) echo "PREFIX begins with a ~ that the shell left as it is: write PREFIX=\$$HOME/.local" >&2; exit 1;; esac
	@[ -x '$(BIN)/corral' ] || $(MAKE) build
	umask 022 && install -D -m 755 '$(BIN)/corral' '$(root)/bin/corral' && \
		install -d '$(root)/libexec/corral' && install -m 755 $(beside:%='$(BIN)/%') '$(root)/libexec/corral'
	@set -e -o pipefail; umask 022; $(foreach s,$(shells),'$(BIN)/corral' completion $(s) | install -D -m 644 /dev/stdin '$(root)/$(completion.$(s))';)
	@case ":$$PATH:" in *':$(PREFIX)/bin:'*) ;; *) [ -n '$(DESTDIR)' ] || echo '$(PREFIX)/bin is not on your PATH: corral is found there only by its whole name';; esac

#: takes away what make install put there
uninstall:
	@case '$(PREFIX)' in '~'*) echo "PREFIX begins with a ~ that the shell left as it is: write PREFIX=\$$HOME/.local" >&2; exit 1;; esac
	rm -f '$(root)/bin/corral' $(beside:%='$(root)/libexec/corral/%') $(foreach s,$(shells),'$(root)/$(completion.$(s))')
	[ ! -d '$(root)/libexec/corral' ] || rmdir --ignore-fail-on-non-empty '$(root)/libexec/corral'

#: images for other people's stacks, corral-gate and corral-fetch, :latest and :VERSION; trusts CORRAL_CA_BUNDLE while they are built
image: build
	deploy/images/fetch/build bin latest '$(version)'
	deploy/images/gate/build bin latest '$(version)'

#: format, vet, staticcheck, tidy, and the tests that need neither root nor an engine
check:
	@echo 'gofmt'; bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofmt would change:"; echo "$$bad"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	go mod tidy -diff
	go test -count=1 .
	@# Where there are an engine and iptables, a test that forgot to say that it needs them would pass, and fail elsewhere: they are hidden.
	PATH="$${PATH//sbin/no}" CORRAL_REQUIRE= DOCKER_HOST=unix:///nonexistent/docker.sock go test -short $(TESTFLAGS) ./internal/... ./test/...

#: everything, on this machine; as root nothing is skipped
test: setup build
	go test -count=1 -parallel $(PARALLEL) $(TESTFLAGS) . ./cmd/... ./internal/... ./deploy/... ./profiles/...
	go test -count=1 -p 1 -parallel $(PARALLEL) -timeout 75m $(TESTFLAGS) ./test/...

#: what happens to the proof when a rule, a right or a mount is otherwise: each must be found; as root, with an engine, minutes
mutants: setup build
	@echo "mutants: some hundred faults are made in rules and in containers; the first line comes after a minute or two, the last after some more"
	@set -o pipefail; CORRAL_TEST_MUTANTS=. go test -count=1 -p 1 -parallel $(PARALLEL) -timeout 75m -v -run Mutants $(TESTFLAGS) ./internal/gate ./test/engine | \
		awk '/^mutant |mutants: |^ *--- (FAIL|SKIP)|^--- |^FAIL|^ok|nothing finds|_test\.go:[0-9]+: / { print; fflush() } \
			/^mutant / && $$NF == "rules-as-granted" { paper++ } \
			match($$0, /[0-9]+ mutants, [0-9]+ killed, [0-9]+ survived/) { split(substr($$0, RSTART), n, /[ ,]+/); killed += n[3]; survived += n[5] } \
			END { if (killed + survived) printf "together: %d killed (%d by a packet or by a container, %d on paper only), %d survived: kill rate %.4g %%\n", killed, killed - paper, paper, survived, 100 * killed / (killed + survived) }'

#: every fuzz target for FUZZTIME (10s)
fuzz:
	FUZZTIME=$(FUZZTIME) test/fuzz

#: the Go benchmarks of the tree
bench: setup build
	go test -p 1 -run '^$$' -bench . -benchmem ./...

#: a sandbox from nothing to its last proof, on this machine
demo: setup build
	bin/corral demo

#: what CI runs: check, fuzz, test, with nothing skipped
ci:
	.ci/run

#: ci with a minute for each fuzz target, every mutant of containers, every engine call failed, more tools under the filter, and a research call of 330 s
long:
	FUZZTIME=60s CORRAL_TEST_MUTANTS=. CORRAL_TEST_TOOLS=all CORRAL_TEST_CALL=330 CORRAL_TEST_SWEEPS=all .ci/run
