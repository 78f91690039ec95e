package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Where a sandbox's directory leads elsewhere, or is not its owner's alone, nothing is
// read there and nothing is written, and it is not passed over.
func TestMisplaced(t *testing.T) {
	const id = "p-00000000"
	for what, make := range map[string]func(t *testing.T, dir string){
		"a link": func(t *testing.T, dir string) {
			elsewhere := t.TempDir()
			if err := errors.Join(os.WriteFile(filepath.Join(elsewhere, accepted), []byte("forged"), 0o600), os.WriteFile(filepath.Join(elsewhere, wanted), nil, 0o600), os.Symlink(elsewhere, dir)); err != nil {
				t.Fatal(err)
			}
		},
		"a link that leads nowhere": func(t *testing.T, dir string) {
			if err := os.Symlink(filepath.Join(t.TempDir(), "none"), dir); err != nil {
				t.Fatal(err)
			}
		},
		"a file": func(t *testing.T, dir string) {
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"writable by others": func(t *testing.T, dir string) {
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			home := t.TempDir()
			make(t, filepath.Join(home, id))
			for use, try := range map[string]func() error{
				"accepted":     func() error { _, err := Accepted(home, id); return err },
				"accept":       func() error { return Accept(home, id, []byte("{}")) },
				"baseline":     func() error { _, err := Baseline(home, id); return err },
				"set baseline": func() error { return SetBaseline(home, id, []byte("{}")) },
				"forget it":    func() error { return SetBaseline(home, id, nil) },
				"report":       func() error { _, err := KeepReport(home, id, nil); return err },
				"forget":       func() error { return Forget(home, id) },
				"healed":       func() error { _, err := Healed(home, id); return err },
				"set healed":   func() error { return SetHealed(home, id, &Heals{}) },
				"lock":         func() error { _, err := Lock(home, id); return err },
				"lock below":   func() error { _, err := Lock(home, id+"/verify"); return err },
				"attach":       func() error { _, err := Attach(home, id); return err },
				"attached":     func() error { _, err := Attached(home, id); return err },
				"wanted":       func() error { _, err := Wanted(home, id); return err },
				"set wanted":   func() error { return SetWanted(home, id, true) },
				"unwanted":     func() error { return SetWanted(home, id, false) },
			} {
				if err := try(); !errors.As(err, new(*Misplaced)) {
					t.Errorf("%s: %v", use, err)
				}
			}
			fi, err := os.Lstat(filepath.Join(home, id))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Sandboxes(home)
			if seen := fi.IsDir() || fi.Mode()&fs.ModeSymlink != 0; err != nil || slices.Contains(got, id) != seen {
				t.Errorf("listed: %q, %v", got, err)
			}
		})
	}
}
