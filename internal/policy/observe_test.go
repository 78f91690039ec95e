package policy

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestObserve(t *testing.T) {
	file := filepath.Join(t.TempDir(), FileName)
	if err := os.WriteFile(file, []byte("profile: shell\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := Parse(file, []byte("profile: shell\n"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := Observe(file)
	if err != nil || first.Digest != p.Digest || first.Ino == 0 {
		t.Fatalf("%+v %v", first, err)
	}
	if err := os.Rename(file, file+"2"); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func() error{
		"nothing":     func() error { return nil },
		"a link":      func() error { return os.Symlink(file+"2", file) },
		"a FIFO":      func() error { return syscall.Mkfifo(file, 0o644) },
		"a directory": func() error { return os.Mkdir(file, 0o755) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if got, err := Observe(file); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("profile: shell\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Observe(file); err != nil || got.Digest != first.Digest || got.Ino == first.Ino {
		t.Errorf("another file with the same text: %+v %v", got, err)
	}
}
