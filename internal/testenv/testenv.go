// Package testenv tells a test whether this machine has what it needs. In goes
// the name of a need, out comes nothing, a skip with the plain reason, or a
// failure where the need is listed in CORRAL_REQUIRE. It is the only place in
// the project that skips a test, so that nothing goes quietly untested. It
// installs and starts nothing.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/command"
)

// BaseImage is the image that every image of the test suite starts from.
const BaseImage = "debian:bookworm-slim"

// Hermes is the environment of Python that make setup puts Hermes into.
const Hermes = "/var/cache/corral-setup/hermes"

// required is the environment variable that turns skips into failures: a comma
// list of needs.
const required = "CORRAL_REQUIRE"

// Needs, by name, with the function that says why one is not met.
var needs = map[string]func() error{
	"netns":   sync.OnceValue(netns),
	"engine":  sync.OnceValue(engine),
	"systemd": sync.OnceValue(systemd),
	"hermes":  sync.OnceValue(hermes),
	"harness": sync.OnceValue(engine), // packages come at build time; failing to get them is a failure, not a skip
}

// Require returns if the machine meets every one of the needs: "netns" (root,
// network namespaces, iptables), "engine" (a Docker Engine that answers, with
// BaseImage), "harness" (what building and running a real harness takes),
// "hermes" (that harness on this machine itself; listed with "harness") or
// "systemd" (what judges its units; none need run).
// Under -short nothing but unit tests runs.
func Require(tb testing.TB, names ...string) {
	tb.Helper()
	require(tb, strings.Split(os.Getenv(required), ","), testing.Short(), names)
}

func require(tb testing.TB, must []string, short bool, names []string) {
	tb.Helper()
	for _, name := range names {
		met, known := needs[name]
		if !known {
			tb.Fatalf("testenv: no need is called %q", name)
		}
		listed := slices.Contains(must, name) || name == "hermes" && slices.Contains(must, "harness")
		if short && !listed {
			tb.Skipf("needs %s: not under -short", name)
		}
		err := met()
		switch {
		case err == nil:
		case listed:
			tb.Fatalf("%s lists %s: %v", required, name, err)
		default:
			tb.Skipf("needs %s: %v", name, err)
		}
	}
}

// netns tries in a namespace of its own, on a thread that is thrown away.
func netns() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare a network namespace: %w", err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := command.Run(ctx, nil, "iptables", "-w", "-S")
		done <- err
	}()
	return <-done
}

func hermes() error {
	_, err := os.Stat(Hermes + "/requirements.txt") // there last
	return err
}

func systemd() error {
	_, err := exec.LookPath("systemd-analyze")
	return err
}

func engine() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := command.Run(ctx, nil, "docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return err
	}
	_, err := command.Run(ctx, nil, "docker", "image", "inspect", "--format", "{{.Id}}", BaseImage)
	return err
}
