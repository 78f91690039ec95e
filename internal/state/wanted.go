package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

const wanted = "wanted"

// Wanted reports whether a sandbox is to be up, however it is: somebody brought
// it up to stay, and nobody took it down since.
func Wanted(home, sandbox string) (bool, error) {
	dir, err := place(home, sandbox)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(filepath.Join(dir, wanted))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// SetWanted records it.
func SetWanted(home, sandbox string, is bool) error {
	dir, err := place(home, sandbox)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, wanted)
	if !is {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return Replace(path, nil)
}
