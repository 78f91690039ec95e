// Package script runs the real corral as a person does: commands, exact exit
// statuses, what is printed where. Nothing here needs an engine; what does is
// in test/engine.
package script

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestScripts(t *testing.T) {
	bin := t.TempDir()
	build(t, bin)
	quietAboutReaders(t, bin)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Setenv("BIN", bin)
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("CORRAL_RESOLVERS", "10.0.0.53")
			// The same everywhere: with the machine's engine the sandboxes of a
			// developer, without one other answers.
			env.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
			return os.MkdirAll(filepath.Join(env.WorkDir, "home"), 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "own": own},
	})
}

// quietAboutReaders sees to it that who reads what was asked for may stop, as head
// does, and corral has nothing to say of that.
func quietAboutReaders(t *testing.T, bin string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "corral.yaml"), []byte("profile: shell\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := errors.Join(os.Chown(dir, 12345, 12345), os.Chown(filepath.Join(dir, "corral.yaml"), 12345, 12345)); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"version"}, {"version", "--json"}, {"--help"}, {"policy", "show"}, {"policy", "show", "--json"}, {"policy", "schema"}, {"policy", "diff", "--json"},
		{"completion", "bash"}, {"install", "--check"}, {"install", "--check", "--json"},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		c := exec.Command(filepath.Join(bin, "corral"), args...)
		var errs strings.Builder
		c.Dir, c.Stdout, c.Stderr = dir, w, &errs
		c.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "DOCKER_HOST=unix:///nonexistent/docker.sock", "CORRAL_RESOLVERS=10.0.0.53"}
		err = c.Run()
		w.Close()
		if exited := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exited) || exited.ExitCode() != 1) || errs.Len() > 0 {
			t.Errorf("%q, nobody reads: %v, %q", args, err, errs.String())
		}
	}
}

// build makes the binaries, as go install would.
func build(t *testing.T, dir string, flags ...string) {
	t.Helper()
	build := exec.Command("go", append(append([]string{"build", "-o", dir + "/"}, flags...), "../../cmd/corral", "../../cmd/corral-gate", "../../cmd/corral-verify", "../../cmd/corral-fetch", "../../cmd/corral-bridge")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// exits runs a program that must end with that very status: exits 2 corral run.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM [ARGS…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exited, ok := err.(*exec.ExitError); ok {
		got = exited.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("%v ended with status %d, not %d", args[1:], got, want)
	}
}

// own gives files to an unprivileged person where the tests run as root, since
// corral runs nobody's agent as root.
func own(ts *testscript.TestScript, _ bool, args []string) {
	if os.Getuid() != 0 {
		return
	}
	for _, dir := range args {
		ts.Check(filepath.WalkDir(ts.MkAbs(dir), func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, 12345, 12345)
		}))
	}
}
