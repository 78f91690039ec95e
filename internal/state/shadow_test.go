package state

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

var twoShadows = []Shadow{{Name: ".env"}, {Name: "config.yaml", Content: "a: 1\n"}, {Name: "hooks", Dir: true}}

func TestShade(t *testing.T) {
	dir := Shades(t.TempDir(), "a-1", twoShadows)
	for range 2 { // the second finds them
		if err := Shade(dir, twoShadows); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "config.yaml")); err != nil || string(b) != "a: 1\n" {
		t.Errorf("%q, %v", b, err)
	}
	other := slices.Clone(twoShadows)
	other[1].Content = "a: 2\n"
	if Shades("h", "a-1", other) == Shades("h", "a-1", twoShadows) {
		t.Error("another content is in the same place: a mounted one would be replaced")
	}
	if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestShadeTampered(t *testing.T) {
	for name, do := range map[string]func(dir string) error{
		"another content": func(dir string) error {
			p := filepath.Join(dir, ".env")
			return os.WriteFile(p, []byte("A=1\n"), 0o600)
		},
		"to be written":    func(dir string) error { return os.Chmod(filepath.Join(dir, "config.yaml"), 0o666) },
		"missing":          func(dir string) error { return os.Remove(filepath.Join(dir, ".env")) },
		"a full directory": func(dir string) error { return os.WriteFile(filepath.Join(dir, "hooks", "x"), nil, 0o600) },
		"a directory": func(dir string) error {
			return replaced(dir, ".env", func(p string) error { return os.Mkdir(p, 0o755) })
		},
		"a link to another": func(dir string) error {
			return replaced(dir, ".env", func(p string) error { return os.Symlink("config.yaml", p) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := Shades(t.TempDir(), "a-1", twoShadows)
			if err := Shade(dir, twoShadows); err != nil {
				t.Fatal(err)
			}
			if err := do(dir); err != nil {
				t.Fatal(err)
			}
			var tampered *Tampered
			if err := Shade(dir, twoShadows); !errors.As(err, &tampered) || len(tampered.Files) != 1 {
				t.Errorf("%v", err)
			}
		})
	}
}

func replaced(dir, name string, by func(path string) error) error {
	p := filepath.Join(dir, name)
	return errors.Join(os.Remove(p), by(p))
}

// What an agent left in a place of a shadow is put aside, and never followed.
func TestShadeable(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, c := range map[string]struct {
		put   func(dir string) error
		aside []string
	}{
		"nothing":        {func(string) error { return nil }, nil},
		"what belongs":   {func(dir string) error { return os.WriteFile(filepath.Join(dir, ".env"), []byte("A=1\n"), 0o600) }, nil},
		"a link":         {func(dir string) error { return os.Symlink(elsewhere, filepath.Join(dir, ".env")) }, []string{".env.aside-1"}},
		"a link to home": {func(dir string) error { return os.Symlink("..", filepath.Join(dir, "hooks")) }, []string{"hooks.aside-1"}},
		"a directory":    {func(dir string) error { return os.MkdirAll(filepath.Join(dir, ".env", "x"), 0o700) }, []string{".env.aside-1"}},
		"a file":         {func(dir string) error { return os.WriteFile(filepath.Join(dir, "hooks"), []byte("x"), 0o600) }, []string{"hooks.aside-1"}},
		"a FIFO":         {func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "config.yaml"), 0o600) }, []string{"config.yaml.aside-1"}},
		"one put already": {func(dir string) error {
			return errors.Join(os.Symlink("a", filepath.Join(dir, ".env")), os.Symlink("b", filepath.Join(dir, ".env.aside-1")))
		}, []string{".env.aside-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.put(dir); err != nil {
				t.Fatal(err)
			}
			aside, err := Shadeable(dir, twoShadows, uint32(os.Getuid()), uint32(os.Getgid()))
			if err != nil || !slices.Equal(aside, c.aside) {
				t.Fatalf("%v, %v", aside, err)
			}
			for _, s := range twoShadows {
				if fi, err := os.Lstat(filepath.Join(dir, s.Name)); err != nil || fi.IsDir() != s.Dir || !s.Dir && !fi.Mode().IsRegular() {
					t.Errorf("%s: %v, %v", s.Name, fi, err)
				}
			}
			if b, _ := os.ReadFile(filepath.Join(dir, ".env")); name == "what belongs" && string(b) != "A=1\n" {
				t.Errorf("what was there is %q", b)
			}
			for _, a := range aside {
				if _, err := os.Lstat(filepath.Join(dir, a)); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Lstat(elsewhere); err == nil {
				t.Error("something was made through a link")
			}
			if again, err := Shadeable(dir, twoShadows, 0, 0); err != nil || len(again) > 0 {
				t.Errorf("again: %v, %v", again, err)
			}
		})
	}
}
