package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteBuild(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x", "build")
	files := map[string][]byte{"a": []byte("1"), "b/c": []byte("2")}
	for range 2 { // again on its own work
		if err := WriteBuild(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteBuild(dir, map[string][]byte{"a": []byte("3")}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a file of the last build is still there")
	}
}

func TestTampered(t *testing.T) {
	for name, tamper := range map[string]func(dir string) error{
		"changed": func(d string) error { return os.WriteFile(filepath.Join(d, "a"), []byte("x"), 0o600) },
		"added":   func(d string) error { return os.WriteFile(filepath.Join(d, "new"), nil, 0o600) },
		"removed": func(d string) error { return os.Remove(filepath.Join(d, "a")) },
		"symlink": func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, "a")), os.Symlink("/etc/passwd", filepath.Join(d, "a")))
		},
		"manifest removed": func(d string) error { return os.Remove(filepath.Join(d, manifest)) },
		"manifest broken":  func(d string) error { return os.WriteFile(filepath.Join(d, manifest), []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "build")
			if err := WriteBuild(dir, map[string][]byte{"a": []byte("1")}); err != nil {
				t.Fatal(err)
			}
			if err := tamper(dir); err != nil {
				t.Fatal(err)
			}
			var got *Tampered
			if err := WriteBuild(dir, map[string][]byte{"a": []byte("2")}); !errors.As(err, &got) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestNamesStayBelow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "build")
	for _, name := range []string{"../x", "/x", "a/../../x", ""} {
		if err := WriteBuild(dir, map[string][]byte{name: nil}); err == nil {
			t.Errorf("%q was written", name)
		}
	}
}
