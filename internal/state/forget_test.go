package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

func TestSize(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "a-1", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "a-1", "b", "f"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := Size(home, "a-1"); n != 1000 {
		t.Errorf("%d bytes", n)
	}
	if n := Size(home, "a-2"); n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
}
