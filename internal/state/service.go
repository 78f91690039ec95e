package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Furnish makes what a service keeps from one run to the next, below root, the
// state directory of a sandbox: dirs, named from dir, of uid and gid and closed
// to others. Files, by their names from dir, are written only into a state that
// was not there before; fresh says that it was not. A state is there as a whole
// or not at all. What it holds was written by an agent: nothing of it is read.
func Furnish(dir string, dirs []string, files map[string][]byte, uid, gid uint32) (fresh bool, err error) {
	fi, err := os.Lstat(dir)
	switch {
	case err == nil && !fi.IsDir():
		return false, fmt.Errorf("%s is no directory", dir)
	case err == nil:
		return false, makeDirs(dir, dirs, uid, gid)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return false, err
	}
	next, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(next)
	if err := makeDirs(next, dirs, uid, gid); err != nil {
		return false, err
	}
	for name, b := range files {
		path := filepath.Join(next, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return false, err
		}
		if err := own(path, uid, gid); err != nil {
			return false, err
		}
	}
	return true, os.Rename(next, dir)
}

// makeDirs makes what is missing of dirs. A link on the way is an error: nobody
// but corral has anything to do there.
func makeDirs(root string, dirs []string, uid, gid uint32) error {
	for _, d := range dirs {
		if !filepath.IsLocal(d) {
			return fmt.Errorf("%q is not a name below %s", d, root)
		}
		at := root
		for part := range strings.SplitSeq(filepath.Clean(d), "/") {
			at = filepath.Join(at, part)
			err := os.Mkdir(at, 0o700)
			if err == nil {
				err = own(at, uid, gid)
			} else if errors.Is(err, fs.ErrExist) {
				var fi fs.FileInfo
				if fi, err = os.Lstat(at); err == nil && !fi.IsDir() {
					err = fmt.Errorf("%s is no directory", at)
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// own gives what root made to the person that it was made for.
func own(path string, uid, gid uint32) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, int(uid), int(gid))
}

// Dir is where a service of a sandbox keeps its state.
func Dir(home, sandbox, service string) string { return filepath.Join(home, sandbox, "state", service) }
