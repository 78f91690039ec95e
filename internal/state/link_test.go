package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Corral's own directory, and what is in a sandbox's, are looked at as the sandbox's is.
func TestCheckEveryStep(t *testing.T) {
	to := t.TempDir()
	for name, at := range map[string]string{"corral's own": "corral", "the sandbox's": "corral/a-1", "its state": "corral/a-1/state"} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			at := filepath.Join(data, at)
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				t.Fatal(err)
			}
			home := filepath.Join(data, "corral")
			if err := Check(home, "a-1/state"); err != nil {
				t.Errorf("what is not there: %v", err)
			}
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
			if err := Check(home, "a-1/state"); !errors.As(err, new(*Misplaced)) {
				t.Errorf("a link: %v", err)
			}
			if got := Linked(home); at == filepath.Join(home, "a-1") && (len(got) != 1 || got[0] != to) {
				t.Errorf("it leads to %q, not %q", got, to)
			}
		})
	}
}
