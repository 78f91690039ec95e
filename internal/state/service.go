package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
	sweep(filepath.Dir(dir))
	next, err := os.MkdirTemp(filepath.Dir(dir), unfinished)
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
	switch err := os.Rename(next, dir); {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, fs.ErrExist): // somebody was quicker
		return false, makeDirs(dir, dirs, uid, gid)
	default:
		return err == nil, err
	}
}

const (
	// unfinished begins the name of a state that is being made.
	unfinished = ".new-"
	// abandoned is the age at which nobody works on one any more: it takes
	// milliseconds.
	abandoned = 10 * time.Minute
)

// sweep removes what was being made when somebody was killed: it may hold keys.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir) // a new one is made in any case
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && e.IsDir() && strings.HasPrefix(e.Name(), unfinished) && time.Since(fi.ModTime()) > abandoned {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
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
