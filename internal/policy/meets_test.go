package policy

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

func mountOf(t *testing.T, path string) Mount {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return Mount{Path: path, Dev: idOf(fi).dev, Ino: idOf(fi).ino}
}

func TestMeets(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"a/b/c", "ab", "bound"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := func(dir string) Mount { return mountOf(t, filepath.Join(root, dir)) }
	check := func(x, y Mount, want bool) {
		t.Helper()
		for _, pair := range [][2]Mount{{x, y}, {y, x}} {
			if got, err := Meets(pair[0], pair[1]); err != nil || got != want {
				t.Errorf("%s and %s: %v, %v", pair[0].Path, pair[1].Path, got, err)
			}
		}
	}
	check(at("a"), at("a"), true)
	check(at("a"), at("a/b/c"), true)
	check(at("a"), at("ab"), false)
	check(at("a/b"), at("bound"), false)
	gone := at("ab")
	if err := os.Rename(gone.Path, gone.Path+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	if _, err := Meets(gone, at("a")); err == nil {
		t.Error("what is not there any more meets nothing")
	}

	testenv.Require(t, "netns") // root: a bind mount
	if err := unix.Mount(filepath.Join(root, "a/b"), filepath.Join(root, "bound"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(filepath.Join(root, "bound"), unix.MNT_DETACH) })
	check(at("bound"), at("a"), true)
	check(at("bound/c"), at("a"), true)
	check(at("bound"), at("a/b/c"), true)
}

func TestLinks(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "real/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dir": "real", "real/sub/link": "../file", "real/file": root + "/dir/last", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	got := Links(root + "/dir/sub/link")
	want := []string{root + "/dir", root + "/real/sub/link", root + "/real/file", root + "/dir"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Links(root + "/real/sub"); got != nil {
		t.Errorf("%q", got)
	}
	if got := Links(root + "/loop"); len(got) != 40 {
		t.Errorf("%d links of a loop", len(got))
	}
}
