package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	wanted = "wanted"
	making = "making"
)

// Wanted reports whether a sandbox is to be up, however it is: somebody brought
// it up to stay, and nobody took it down since.
func Wanted(home, sandbox string) (bool, error) { return flagged(home, sandbox, wanted) }

// SetWanted records it.
func SetWanted(home, sandbox string, is bool) error { return flag(home, sandbox, wanted, is) }

// Making reports whether a corral that made containers of a sandbox has not said that it
// is done: if none is at it, that one was killed, and an engine may be busy with what it
// was asked for last.
func Making(home, sandbox string) (bool, error) { return flagged(home, sandbox, making) }

// SetMaking records it.
func SetMaking(home, sandbox string, is bool) error { return flag(home, sandbox, making, is) }

func flagged(home, sandbox, name string) (bool, error) {
	dir, err := place(home, sandbox)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func flag(home, sandbox, name string, is bool) error {
	dir, err := place(home, sandbox)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name)
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
