package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Shadow is a file, or an empty directory, that stands in a state in place of what an
// agent could write there.
type Shadow struct {
	Name    string // in the state
	Dir     bool
	Content string
}

// Shades is where the shadows of a sandbox are: what is in them is in the name, so that
// none that is mounted is ever replaced.
func Shades(home, sandbox string, shadows []Shadow) string {
	var all strings.Builder
	for _, s := range shadows {
		fmt.Fprintf(&all, "%q %t %q\n", s.Name, s.Dir, s.Content)
	}
	return filepath.Join(home, sandbox, "shadows", digest([]byte(all.String()))[:16])
}

// Shade makes shadows in a directory of Shades, which nothing else mounts. Those that are
// there must be what they were made as: Tampered.
func Shade(dir string, shadows []Shadow) error {
	if _, err := os.Lstat(dir); err == nil {
		return checkShades(dir, shadows)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	sweep(filepath.Dir(dir))
	next, err := os.MkdirTemp(filepath.Dir(dir), unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(next)
	for _, s := range shadows {
		if filepath.Base(s.Name) != s.Name || !filepath.IsLocal(s.Name) {
			return fmt.Errorf("%q is no name of a shadow", s.Name)
		}
		path := filepath.Join(next, s.Name)
		if s.Dir {
			err = os.Mkdir(path, 0o700)
		} else {
			err = os.WriteFile(path, []byte(s.Content), 0o600)
		}
		if err != nil {
			return err
		}
		// Whose agent it is may be somebody else than who makes them.
		if err := os.Chmod(path, shadowMode(s)); err != nil {
			return err
		}
	}
	switch err := os.Rename(next, dir); {
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, fs.ErrExist): // somebody was quicker
		return checkShades(dir, shadows)
	default:
		return err
	}
}

// shadowMode lets the agent read. That it cannot write is the mount's to see to, and is
// only then proven by a check that tries.
func shadowMode(s Shadow) os.FileMode {
	if s.Dir {
		return 0o755
	}
	return 0o644
}

// checkShades compares shadows with what they were made as.
func checkShades(dir string, shadows []Shadow) error {
	var changed []string
	for _, s := range shadows {
		path := filepath.Join(dir, s.Name)
		fi, err := os.Lstat(path)
		switch {
		case err != nil || fi.IsDir() != s.Dir || !s.Dir && !fi.Mode().IsRegular() || fi.Mode().Perm() != shadowMode(s):
			changed = append(changed, s.Name)
		case s.Dir:
			if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
				changed = append(changed, s.Name)
			}
		default:
			if b, err := os.ReadFile(path); err != nil || string(b) != s.Content {
				changed = append(changed, s.Name)
			}
		}
	}
	if len(changed) > 0 {
		return &Tampered{dir, changed}
	}
	return nil
}

// Shadeable makes what shadows are mounted over in a directory of the state, where it is
// missing: an engine would make it root's. What an agent left there of another kind, a
// link or a directory for a file, is put aside, and its new name told. No link is
// followed, and nothing of the right kind is touched.
func Shadeable(dir string, shadows []Shadow, uid, gid uint32) (aside []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, s := range shadows {
		fi, err := root.Lstat(s.Name)
		switch {
		case err == nil && (s.Dir && fi.IsDir() || !s.Dir && fi.Mode().IsRegular()):
			continue
		case err == nil:
			to, err := putAside(root, s.Name)
			if err != nil {
				return aside, err
			}
			aside = append(aside, to)
		case !errors.Is(err, fs.ErrNotExist):
			return aside, err
		}
		if s.Dir {
			err = root.Mkdir(s.Name, 0o700)
		} else {
			var f *os.File
			if f, err = root.OpenFile(s.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				err = f.Close()
			}
		}
		if err == nil && os.Geteuid() == 0 {
			err = root.Lchown(s.Name, int(uid), int(gid))
		}
		if err != nil {
			return aside, err
		}
	}
	return aside, nil
}

// mostAside bounds the names that are tried: more are nobody's accident.
const mostAside = 1000

// putAside renames what is called name in a directory, over nothing.
func putAside(root *os.Root, name string) (string, error) {
	for n := range mostAside {
		to := fmt.Sprintf("%s.aside-%d", name, n+1)
		if _, err := root.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to, root.Rename(name, to)
		} else if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%s: too much was put aside", name)
}
