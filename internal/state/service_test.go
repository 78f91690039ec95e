package state

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFurnish(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "main")
	dirs := []string{".local/share/tool", ".local/state/tool"}
	seed := map[string][]byte{".local/share/tool/auth.json": []byte("key")}
	fresh, err := Furnish(dir, dirs, seed, 1234, 2345)
	if err != nil || !fresh {
		t.Fatalf("fresh %v, %v", fresh, err)
	}
	auth := filepath.Join(dir, ".local/share/tool/auth.json")
	if b, err := os.ReadFile(auth); err != nil || string(b) != "key" {
		t.Fatalf("%q, %v", b, err)
	}
	for path, mode := range map[string]os.FileMode{auth: 0o600, filepath.Dir(auth): 0o700, filepath.Join(dir, dirs[1]): 0o700} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", path, fi.Mode(), err)
		}
	}
	// Once only: what was removed since does not come back, and what is new does not go in.
	if err := os.Remove(auth); err != nil {
		t.Fatal(err)
	}
	fresh, err = Furnish(dir, append(dirs, ".cache/tool"), seed, 1234, 2345)
	if err != nil || fresh {
		t.Fatalf("again: fresh %v, %v", fresh, err)
	}
	if _, err := os.Lstat(auth); err == nil {
		t.Error("the file was copied a second time")
	}
	if _, err := os.Lstat(filepath.Join(dir, ".cache/tool")); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".new-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestFurnishRefuses(t *testing.T) {
	elsewhere := t.TempDir()
	for name, make := range map[string]func(dir string) []string{
		"a link in place of the state": func(dir string) []string {
			os.Symlink(elsewhere, dir)
			return []string{"a"}
		},
		"a file in place of the state": func(dir string) []string {
			os.WriteFile(dir, nil, 0o600)
			return []string{"a"}
		},
		"a link on the way": func(dir string) []string {
			os.Mkdir(dir, 0o700)
			os.Symlink(elsewhere, filepath.Join(dir, "a"))
			return []string{"a/b"}
		},
		"a way out": func(string) []string { return []string{"../x"} },
	} {
		dir := filepath.Join(t.TempDir(), "main")
		if _, err := Furnish(dir, make(dir), nil, 1, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
		if entries, _ := os.ReadDir(elsewhere); len(entries) > 0 {
			t.Errorf("%s: something was made elsewhere: %v", name, entries)
		}
	}
}

// Two at once: one makes it, the other finds it.
func TestFurnishTogether(t *testing.T) {
	for range 50 {
		dir := filepath.Join(t.TempDir(), "main")
		results := make(chan bool, 4)
		for range cap(results) {
			go func() {
				fresh, err := Furnish(dir, []string{"a/b"}, map[string][]byte{"a/key": []byte("k")}, 1, 1)
				if err != nil {
					t.Error(err)
				}
				results <- fresh
			}()
		}
		made := 0
		for range cap(results) {
			if <-results {
				made++
			}
		}
		if made != 1 {
			t.Fatalf("%d of them made it", made)
		}
	}
}

// What somebody who was killed left is removed, what is being made is not.
func TestFurnishSweeps(t *testing.T) {
	root := t.TempDir()
	old, young := filepath.Join(root, unfinished+"old"), filepath.Join(root, unfinished+"young")
	for _, dir := range []string{old, young} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := Furnish(filepath.Join(root, "main"), []string{"a"}, nil, 1, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(old); err == nil {
		t.Error("the abandoned one is still there")
	}
	if _, err := os.Lstat(young); err != nil {
		t.Error(err)
	}
}
