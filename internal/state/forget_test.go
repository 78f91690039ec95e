package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is kept of a sandbox goes, whatever its agent left there, and nothing beside it:
// neither another sandbox nor what a link leads to.
func TestForget(t *testing.T) {
	home, elsewhere := t.TempDir(), t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	deep := filepath.Join(home, "a-1", "state", "main", "x", "y")
	for _, err := range []error{
		os.MkdirAll(deep, 0o700),
		os.MkdirAll(filepath.Join(home, "a-11"), 0o700),
		os.WriteFile(kept, []byte("kept"), 0o600),
		os.WriteFile(filepath.Join(deep, "f"), []byte("12345"), 0o000),
		os.Symlink(elsewhere, filepath.Join(deep, "link")),
		os.Chmod(deep, 0o500),
		os.Chmod(filepath.Dir(deep), 0o000),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := Lock(home, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := Forget(home, "a-1"); err != nil {
		t.Fatal(err)
	}
	if ids, err := Sandboxes(home); err != nil || len(ids) != 1 || ids[0] != "a-11" {
		t.Errorf("left: %v, %v", ids, err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(elsewhere); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("what a link leads to: %v, %v", fi.Mode(), err)
	}
	if err := Forget(home, "a-1"); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	if err := Forget(filepath.Join(home, "none"), "a-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no home: %v", err)
	}
}

// Who waited for the lock of a sandbox that was forgotten gets the one there is now,
// not that of a file which nobody finds any more.
func TestLockOfWhatWasForgotten(t *testing.T) {
	home := t.TempDir()
	unlock, err := Lock(home, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	old, err := openLock(home, "a-1", "lock")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := Forget(home, "a-1"); err != nil {
		t.Fatal(err)
	}
	if inPlace(old) {
		t.Error("a lock that was removed is in place")
	}
	again, err := Lock(home, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := Lock(home, "a-1"); !errors.Is(err, ErrLocked) {
		t.Errorf("locked twice: %v", err)
	}
	again()
}

// However deep an agent went, and however many it made, all of it goes, and what an
// earlier removal has left.
func TestForgetDeepAndMany(t *testing.T) {
	home := t.TempDir()
	left := filepath.Join(home, forgotten+"1", "a-2", "x")
	wide := filepath.Join(home, "a-1", "wide")
	for _, err := range []error{os.MkdirAll(left, 0o700), os.Chmod(filepath.Dir(left), 0), os.MkdirAll(wide, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 * aPiece {
		if err := os.Mkdir(filepath.Join(wide, fmt.Sprint(n)), 0o000); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.OpenRoot(wide)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 40)
	for range 500 { // many times PATH_MAX
		if err := dir.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := dir.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		dir = below
	}
	for _, err := range []error{dir.Mkdir("closed", 0o700), dir.Mkdir("closed/below", 0o700), dir.Symlink("/", "closed/link"), dir.Chmod("closed", 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir.Close()
	if err := Forget(home, "a-1"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestSize(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "a-1", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "a-1", "b", "f"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, whole := Size(t.Context(), home, "a-1"); n != 1000 || !whole {
		t.Errorf("%d bytes, %v", n, whole)
	}
	if n, whole := Size(t.Context(), home, "a-2"); n != 0 || !whole {
		t.Errorf("%d bytes of nothing, %v", n, whole)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, whole := Size(ctx, home, "a-1"); whole {
		t.Error("it looked on, though nobody waits")
	}
}
