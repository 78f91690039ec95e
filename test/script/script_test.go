// Package script runs the real corral as a person does: commands, exact exit
// statuses, what is printed where. Nothing here needs an engine; what does is
// in test/engine.
package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestScripts(t *testing.T) {
	bin := t.TempDir()
	build(t, bin)
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

// build makes the binaries, as go install would.
func build(t *testing.T, dir string, flags ...string) {
	t.Helper()
	build := exec.Command("go", append(append([]string{"build", "-o", dir + "/"}, flags...), "../../cmd/corral", "../../cmd/corral-gate", "../../cmd/corral-verify")...)
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
