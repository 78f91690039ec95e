package state

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAccepted(t *testing.T) {
	home := filepath.Join(t.TempDir(), "corral")
	if b, err := Accepted(home, "a-1"); b != nil || err != nil {
		t.Fatalf("before anything: %q %v", b, err)
	}
	for _, want := range []string{"one", "", "two"} {
		if err := Accept(home, "a-1", []byte(want)); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := Accepted(home, "a-1"); string(b) != "two" || err != nil {
		t.Fatalf("%q %v", b, err)
	}
	path := filepath.Join(home, "a-1", accepted)
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if all, err := Sandboxes(home); len(all) != 1 || all[0] != "a-1" || err != nil {
		t.Errorf("%v %v", all, err)
	}
}

// TestAcceptedByNobodyElse: what others could have put there is no acceptance,
// and nothing is waited for.
func TestAcceptedByNobodyElse(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"writable by others": func(p string) error { return errors.Join(os.WriteFile(p, []byte("x"), 0o644), os.Chmod(p, 0o666)) },
		"a FIFO":             func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"a link":             func(p string) error { return os.Symlink("/etc/hostname", p) },
		"a directory":        func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			if err := os.MkdirAll(filepath.Join(home, "a-1"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := put(filepath.Join(home, "a-1", accepted)); err != nil {
				t.Fatal(err)
			}
			if b, err := Accepted(home, "a-1"); err == nil {
				t.Errorf("accepted: %q", b)
			}
		})
	}
	if os.Getuid() == 0 {
		home := t.TempDir()
		if err := Accept(home, "a-1", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(home, "a-1", accepted), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if b, err := Accepted(home, "a-1"); err == nil {
			t.Errorf("somebody else's was accepted: %q", b)
		}
	}
}

func TestBaseline(t *testing.T) {
	home := t.TempDir()
	if b, err := Baseline(home, "a-1"); b != nil || err != nil {
		t.Fatalf("%q %v", b, err)
	}
	if err := SetBaseline(home, "a-1", nil); err != nil {
		t.Fatal(err)
	}
	if err := SetBaseline(home, "a-1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if b, err := Baseline(home, "a-1"); string(b) != "x" || err != nil {
		t.Fatalf("%q %v", b, err)
	}
	if err := SetBaseline(home, "a-1", nil); err != nil {
		t.Fatal(err)
	}
	if b, err := Baseline(home, "a-1"); b != nil || err != nil {
		t.Fatalf("%q %v", b, err)
	}
}
