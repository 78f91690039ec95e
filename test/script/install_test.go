package script

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// What make install puts where is all that corral needs, and make uninstall
// leaves nothing of it and all else.
func TestMakeInstall(t *testing.T) {
	t.Parallel()
	bin, dest := t.TempDir(), filepath.Join(t.TempDir(), "a package")
	build(t, bin, "-ldflags", "-X github.com/corral-sandbox/corral/internal/spec.release=v9.8.7")
	if err := os.WriteFile(filepath.Join(bin, "corral-prisoner"), nil, 0o755); err != nil { // nothing here runs it
		t.Fatal(err)
	}
	where := []string{"BIN=" + bin, "DESTDIR=" + dest, "PREFIX=/opt/tools"}
	made(t, "install", where...)
	made(t, "install", where...) // over itself
	want := []string{
		"bin/corral", "libexec/corral/corral-bridge", "libexec/corral/corral-fetch", "libexec/corral/corral-gate", "libexec/corral/corral-prisoner", "libexec/corral/corral-verify",
		"share/bash-completion/completions/corral", "share/fish/vendor_completions.d/corral.fish", "share/zsh/site-functions/_corral",
	}
	prefix := filepath.Join(dest, "opt/tools")
	if got := files(t, dest, prefix); !slices.Equal(got, want) {
		t.Errorf("installed: %q", got)
	}
	for file, begins := range map[string]string{
		"share/bash-completion/completions/corral": "# bash completion V2 for corral", "share/fish/vendor_completions.d/corral.fish": "# fish completion for corral", "share/zsh/site-functions/_corral": "#compdef corral",
	} {
		if b, err := os.ReadFile(filepath.Join(prefix, file)); err != nil || !strings.HasPrefix(string(b), begins) {
			t.Errorf("%s: %v %.40q", file, err, b)
		}
	}
	// Each finds the others, whoever runs it from wherever.
	if out := asked(t, t.TempDir(), filepath.Join(prefix, "bin/corral"), "version"); out != "corral v9.8.7\n" {
		t.Errorf("corral version: %q", out)
	}
	c := exec.Command(filepath.Join(prefix, "bin/corral"), "install", "--check")
	c.Dir, c.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "DOCKER_HOST=unix:///nonexistent/docker.sock", "PATH=" + os.Getenv("PATH")}
	if out, _ := c.CombinedOutput(); !strings.Contains(string(out), "ok   guest-binaries\n") { // the engine is not there
		t.Errorf("corral install --check: %s", out)
	}
	other := filepath.Join(prefix, "bin/other")
	if err := os.WriteFile(other, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	made(t, "uninstall", where...)
	made(t, "uninstall", where...) // what is not there does not matter
	if got := files(t, dest, prefix); !slices.Equal(got, []string{"bin/other"}) {
		t.Errorf("left: %q", got)
	}
	if _, err := os.Stat(filepath.Join(prefix, "libexec/corral")); err == nil {
		t.Error("its directory was left")
	}
}

// Where the person's umask closes what they make, what is installed is everybody's.
func TestMakeInstallIsForEverybody(t *testing.T) {
	bin, dest := t.TempDir(), t.TempDir()
	for _, name := range []string{"corral", "corral-gate", "corral-verify", "corral-fetch", "corral-bridge", "corral-prisoner"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("sh", "-c", `umask 077 && exec make -s -C ../.. install "$@"`, "sh", "BIN="+bin, "PREFIX="+dest)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := filepath.WalkDir(dest, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dest {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.Mode().Perm()&0o44 != 0o44 {
			t.Errorf("%s: %v", path, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A shell that leaves a ~ in the middle of a word as it is makes no directory of that
// name, and who is to find corral is told where it is not looked for.
func TestMakeInstallSaysWhere(t *testing.T) {
	bin, dest := t.TempDir(), t.TempDir()
	for _, name := range []string{"corral", "corral-gate", "corral-verify", "corral-fetch", "corral-bridge", "corral-prisoner"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const lost, tilde = " is not on your PATH", "write PREFIX=$HOME/.local"
	for _, c := range []struct {
		target, prefix, path, destdir, says string
		ok                                  bool
	}{
		{"install", dest, "", "", dest + "/bin" + lost, true},
		{"install", dest, dest + "/bin:", "", "", true},
		{"install", "/opt", "", dest, "", true}, // a package: whose PATH that is, nobody knows
		{"install", "~/.local", "", dest + "/", tilde, false},
		{"install", "~", "", dest + "/", tilde, false},
		{"uninstall", "~/.local", "", dest + "/", tilde, false},
	} {
		cmd := exec.Command("make", "-s", "-C", "../..", c.target, "BIN="+bin, "PREFIX="+c.prefix, "DESTDIR="+c.destdir)
		cmd.Env = append(os.Environ(), "PATH="+c.path+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.ok || !strings.Contains(string(out), c.says) || c.says == "" && strings.Contains(string(out), lost) {
			t.Errorf("%+v: %v, %s", c, err, out)
		}
	}
	if left, err := filepath.Glob(dest + "/~*"); err != nil || left != nil {
		t.Errorf("made: %q, %v", left, err)
	}
}

// go install in a clone makes what works, and says from which commit.
func TestGoInstall(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	c := exec.Command("go", "install", "../../cmd/...")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+bin, "GOFLAGS=-buildvcs=true")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := files(t, bin, bin); !slices.Equal(got, []string{"corral", "corral-bridge", "corral-fetch", "corral-gate", "corral-verify"}) {
		t.Errorf("installed: %q", got)
	}
	said := asked(t, t.TempDir(), filepath.Join(bin, "corral"), "version")
	release := strings.TrimSpace(strings.TrimPrefix(said, "corral "))
	if release == "dev" || release == "(devel)" || release == "" {
		t.Errorf("corral version says %q in a clone of git", said)
	}
	for _, guest := range []string{"corral-gate", "corral-verify", "corral-fetch", "corral-bridge"} {
		if got := asked(t, t.TempDir(), filepath.Join(bin, guest), "version"); got != guest+" "+release+"\n" {
			t.Errorf("%s is of another version: %q", guest, got)
		}
	}
	var b map[string]any
	if err := json.Unmarshal([]byte(asked(t, t.TempDir(), filepath.Join(bin, "corral"), "version", "--json")), &b); err != nil {
		t.Fatal(err)
	}
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	delete(b, "changed") // as the clone is
	if want := map[string]any{"version": 1., "release": release, "commit": strings.TrimSpace(string(head)), "go": b["go"], "platform": b["platform"]}; !reflect.DeepEqual(b, want) || b["go"] == "" || b["platform"] == "" {
		t.Errorf("corral version --json: %v", b)
	}
}

// made runs a target of the Makefile.
func made(t *testing.T, target string, settings ...string) {
	t.Helper()
	if out, err := exec.Command("make", append([]string{"-C", "../..", target}, settings...)...).CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v: %s", target, err, out)
	}
}

// asked is what a program says to somebody with a home and nothing else.
func asked(t *testing.T, home string, args ...string) string {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Dir, c.Env = home, []string{"HOME=" + home}
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, errs.String())
	}
	return string(out)
}

// files lists what is below a directory, relative to another. Programs must be
// such, and nothing else.
func files(t *testing.T, dir, to string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if program := !strings.Contains(path, "/share/"); program != (fi.Mode()&0o111 == 0o111) || fi.Sys().(*syscall.Stat_t).Mode&syscall.S_IFREG == 0 {
			return fmt.Errorf("%s: %v", path, fi.Mode())
		}
		rel, err := filepath.Rel(to, path)
		list = append(list, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
