package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// forgotten begins the name of what is being removed.
const forgotten = ".forgotten-"

// Forget removes all that is kept of a sandbox. The caller holds its lock, and nothing
// of it runs. What an agent left may be closed to its owner, and is removed too; no
// link is followed. What cannot be removed has another name, is no sandbox any more,
// and is in the error.
func Forget(home, sandbox string) error {
	dir := filepath.Join(home, sandbox)
	aside, err := os.MkdirTemp(home, forgotten)
	if err != nil {
		return err
	}
	moved := os.Rename(dir, filepath.Join(aside, sandbox))
	if moved != nil && !errors.Is(moved, fs.ErrNotExist) {
		return errors.Join(moved, os.Remove(aside))
	}
	_ = filepath.WalkDir(aside, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // nobody writes there who could put a link in its place
		}
		return nil
	})
	return os.RemoveAll(aside)
}

// isForgotten reports whether a name in the home is that of something removed.
func isForgotten(name string) bool { return strings.HasPrefix(name, forgotten) }

// Size is how many bytes the files of a sandbox take, as far as they can be seen.
func Size(home, sandbox string) int64 {
	var n int64
	_ = filepath.WalkDir(filepath.Join(home, sandbox), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if fi, err := d.Info(); err == nil {
			n += fi.Size()
		}
		return nil
	})
	return n
}
