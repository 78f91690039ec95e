package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

// asMain makes this test binary corral-verify, asGate the names of a gate whose
// instance it holds, until it is killed.
const (
	asMain = "VERIFY_TEST_AS_MAIN"
	asGate = "VERIFY_TEST_AS_GATE"
	// asHolder makes it an ordinary user's, who looks for the socket of a child.
	asHolder = "VERIFY_TEST_AS_HOLDER"
	// asOwner has it make, as an ordinary user, the check that it names.
	asOwner = "VERIFY_TEST_AS_OWNER"
)

func TestMain(m *testing.M) {
	if instance := os.Getenv(asGate); instance != "" {
		conn, err := net.ListenPacket("udp", "127.0.0.1:53")
		if err != nil {
			panic(err)
		}
		fmt.Println("ready")
		gateDNS{instance: instance}.answer(conn)
	}
	if check := os.Getenv(asOwner); check != "" {
		e := newEnv()
		e.root = os.Getenv("ROOT")
		f := examine(context.Background(), spec.Check{Name: check}, e)
		fmt.Printf("%q %q", f.result, f.detail)
		return
	}
	switch os.Getenv(asHolder) {
	case "1":
		unseen()
		return
	case "child":
		unseenChild()
		return
	}
	if os.Getenv(asMain) != "" {
		os.Unsetenv(asMain)
		os.Exit(Main(context.Background(), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// tree makes a directory with the given files and an env that takes it for the
// root of the file system. A name that ends in / is a directory.
func tree(t *testing.T, files map[string]string) *env {
	t.Helper()
	e := newEnv()
	e.root = t.TempDir()
	e.home = "/home/agent"
	e.settle = 10 * time.Millisecond
	for name, content := range files {
		p := e.path(name)
		dir := filepath.Dir(p)
		if strings.HasSuffix(name, "/") {
			dir = p
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir == p {
			continue
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// want runs a check and compares its result and a part of its detail.
func want(t *testing.T, e *env, c spec.Check, result spec.Result, detail string) {
	t.Helper()
	got := examine(t.Context(), c, e)
	if got.result != result || !strings.Contains(got.detail, detail) {
		t.Errorf("%s: %q %q, want %q %q", c.Name, got.result, got.detail, result, detail)
	}
}

func TestEveryKindDeniesTheZeroCheck(t *testing.T) {
	// On an empty file system, with nothing said, no check may hold unless it
	// asks the kernel itself.
	asksKernel := map[string]bool{"iptables-refused": true, "raw-sockets-refused": true, "vsock-refused": true}
	// Absence is what these assert, and there is nothing at all.
	absence := map[string]bool{"no-sudo": true, "ipv6-disabled": true, "no-ipv6-address": true}
	for kind := range kinds {
		if asksKernel[kind] || absence[kind] {
			continue
		}
		e := tree(t, nil)
		if got := examine(t.Context(), spec.Check{Name: kind}, e); got.result != spec.Untold && got.result != spec.Failed {
			t.Errorf("%s: %q %q", kind, got.result, got.detail)
		}
	}
}

func TestExamine(t *testing.T) {
	defer func(saved map[string]check) { kinds = saved }(kinds)
	kinds = map[string]check{
		"fine":  func(context.Context, spec.Check, *env) finding { return ok() },
		"broke": func(context.Context, spec.Check, *env) finding { panic("oh") },
		"hangs": func(context.Context, spec.Check, *env) finding { select {} },
		"zero":  func(context.Context, spec.Check, *env) finding { return finding{} },
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		kinds["hangs"] = func(context.Context, spec.Check, *env) finding { <-ctx.Done(); return ok() }
		for _, tt := range []struct {
			check  spec.Check
			result spec.Result
			detail string
		}{
			{spec.Check{Name: "fine"}, spec.OK, ""},
			{spec.Check{Name: "fine:with:argument"}, spec.OK, ""},
			{spec.Check{Name: "fine", Skip: "not here"}, spec.Skip, "not here"},
			{spec.Check{Name: "from-the-future"}, spec.Untold, "does not know"},
			{spec.Check{Name: "broke"}, spec.Untold, "broke: oh"},
			{spec.Check{Name: "hangs"}, spec.Untold, "no result within 10s"},
			{spec.Check{Name: "zero"}, spec.Untold, ""},
		} {
			got := examine(ctx, tt.check, nil)
			if got.result != tt.result || !strings.Contains(got.detail, tt.detail) {
				t.Errorf("%s: %q %q, want %q %q", tt.check.Name, got.result, got.detail, tt.result, tt.detail)
			}
		}
	})
}

// Who lowers a limit of the checker's while it looks gets no answer from what it saw
// then.
func TestLoweredLimits(t *testing.T) {
	defer func(saved map[string]check) { kinds = saved }(kinds)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &was)
	kinds = map[string]check{
		"before": func(context.Context, spec.Check, *env) finding { return ok() },
		"lower": func(context.Context, spec.Check, *env) finding {
			unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 40, Max: was.Max})
			return ok()
		},
	}
	e := newEnv()
	var err error
	if e.resources, err = ownResources(); err != nil {
		t.Fatal(err)
	}
	if f := examine(t.Context(), spec.Check{Name: "before"}, e); f.result != spec.OK {
		t.Errorf("%+v", f)
	}
	for _, name := range []string{"lower", "before"} {
		if f := examine(t.Context(), spec.Check{Name: name}, e); f.result != spec.Untold || !strings.Contains(f.detail, "limit of file sizes was lowered to 1099511627776") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestEventsKeepTheOrder(t *testing.T) {
	defer func(saved map[string]check) { kinds = saved }(kinds)
	second := make(chan struct{})
	kinds = map[string]check{
		"first":  func(context.Context, spec.Check, *env) finding { <-second; return ok() },
		"second": func(context.Context, spec.Check, *env) finding { close(second); return failed("no") },
	}
	v := spec.Verify{Version: 1, Service: "main", Checks: []spec.Check{{Name: "first"}, {Name: "second"}}}
	var out, errs bytes.Buffer
	status := Main(t.Context(), bytes.NewReader(spec.Encode(v)), &out, &errs, nil)
	const wanted = `{"version":1,"service":"main","check":"first","result":"ok"}
{"version":1,"service":"main","check":"second","result":"failed","detail":"no"}
`
	if out.String() != wanted || errs.Len() != 0 || status != exit.Failed {
		t.Errorf("status %d, stderr %q, got\n%s", status, &errs, &out)
	}
}

func TestMainRefusesWhatProvesNothing(t *testing.T) {
	for _, tt := range []struct{ name, stdin, args, stderr string }{
		{"nothing", "", "", "no list of checks on standard input\n  hint: corral verify starts it"},
		{"no checks", `{"version":1,"service":"x","checks":[]}`, "", "no checks"},
		{"version", `{"version":2,"service":"x","checks":[]}`, "", "version 2"},
		{"unknown field", `{"version":1,"servce":"x"}`, "", "servce"},
		{"argument", "", "check", `unknown argument "check"`},
	} {
		var out, errs bytes.Buffer
		status := Main(t.Context(), strings.NewReader(tt.stdin), &out, &errs, strings.Fields(tt.args))
		if status != exit.Invalid || !strings.Contains(errs.String(), tt.stderr) || out.Len() > 0 {
			t.Errorf("%s: status %d, stderr %q, stdout %q", tt.name, status, &errs, &out)
		}
	}
}

func TestMainHelps(t *testing.T) {
	for _, args := range []string{"-h", "--help", "help", "alone --help", "alone -h"} {
		var out, errs bytes.Buffer
		if status := Main(t.Context(), strings.NewReader(""), &out, &errs, strings.Fields(args)); status != exit.OK || out.String() != usage || errs.Len() > 0 {
			t.Errorf("%s: status %d, stderr %q, stdout %q", args, status, &errs, &out)
		}
	}
}

// decode reads a stream of events.
func decode(t *testing.T, b []byte) map[string]spec.Event {
	t.Helper()
	all := map[string]spec.Event{}
	for dec := json.NewDecoder(bytes.NewReader(b)); dec.More(); {
		var ev spec.Event
		if err := dec.Decode(&ev); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		all[ev.Check] = ev
	}
	return all
}

func statusFile(uid, gid int, groups, caps string, noNewPrivs, seccomp int) string {
	return fmt.Sprintf("Name:\tagent\nThreads:\t1\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\nGid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\nGroups:\t%[3]s\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t%[4]s\nCapAmb:\t0000000000000000\nNoNewPrivs:\t%[5]d\nSeccomp:\t%[6]d\nSeccomp_filters:\t1\n",
		uid, gid, groups, caps, noNewPrivs, seccomp)
}

const noCaps = "0000000000000000"
