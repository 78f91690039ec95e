package wayback

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// realDir is a new directory by its resolved path.
func realDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// host is git as a person has it: a name, local submodules, nothing of this
// machine's own settings.
func host(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_COUNT=5",
		"GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=Person",
		"GIT_CONFIG_KEY_1=user.email", "GIT_CONFIG_VALUE_1=person@example.org",
		"GIT_CONFIG_KEY_2=protocol.file.allow", "GIT_CONFIG_VALUE_2=always",
		"GIT_CONFIG_KEY_3=safe.directory", "GIT_CONFIG_VALUE_3=*",
		"GIT_CONFIG_KEY_4=init.defaultBranch", "GIT_CONFIG_VALUE_4=main",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := host(t, dir, args...)
	if err != nil {
		t.Fatalf("git %v in %s: %v\n%s", args, dir, err, out)
	}
	return out
}

// repository is a new one with a commit.
func repository(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "-q")
	write(t, dir, "file", "text\n")
	git(t, dir, "add", "file")
	git(t, dir, "commit", "-qm", "first")
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	p := dir + "/" + name
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mkfifo(t testing.TB, p string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(p), 0o755))
	must(t, unix.Mkfifo(p, 0o644))
}

func link(t testing.TB, to, p string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(p), 0o755))
	must(t, os.Symlink(to, p))
}

func snapshot(t testing.TB, roots ...string) Snapshot {
	t.Helper()
	s, err := Take(t.Context(), Scope{Roots: roots})
	must(t, err)
	b, err := json.Marshal(s)
	must(t, err)
	again, err := DecodeSnapshot(b)
	if err != nil {
		t.Fatalf("a snapshot does not come back: %v\n%s", err, b)
	}
	return again
}

// told is findings without their reasons, one a line, by paths below root.
func told(root string, findings []Finding) string {
	var b strings.Builder
	for _, f := range findings {
		mark := cmp.Or(map[bool]string{true: "! "}[f.First], "  ")
		line := strings.TrimSuffix(f.String(), ": "+f.Reason)
		fmt.Fprintf(&b, "%s%s\n", mark, strings.ReplaceAll(strings.ReplaceAll(line, root+"/", ""), root, "."))
	}
	return b.String()
}

func lines(s ...string) string {
	if len(s) == 0 {
		return ""
	}
	return strings.Join(s, "\n") + "\n"
}

// ended is a context whose time is over.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
