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

// Misplaced is the directory of a sandbox that is not its owner's alone, or leads
// elsewhere: what is accepted is written there, and who can write it accepts.
type Misplaced struct{ Dir, Why string }

func (e *Misplaced) Error() string { return fmt.Sprintf("%s %s", e.Dir, e.Why) }

// place is the directory of a sandbox, which need not be there yet. One that is a link,
// or that somebody else could write in, is Misplaced: where it leads an agent may have a
// mount, and no guard looks there.
func place(home, sandbox string) (string, error) {
	dir := home
	for _, name := range append([]string{"."}, strings.Split(sandbox, "/")...) { // corral's own directory first
		dir = filepath.Join(dir, name)
		fi, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return filepath.Join(home, sandbox), nil
		case err != nil:
			return "", err
		case fi.Mode()&fs.ModeSymlink != 0:
			return "", &Misplaced{dir, "is a link: what is kept of a sandbox lies where corral looks for it"}
		case !fi.IsDir():
			return "", &Misplaced{dir, "is no directory"}
		}
		st, me := fi.Sys().(*syscall.Stat_t), os.Geteuid()
		if me != 0 && int(st.Uid) != me || fi.Mode().Perm()&0o022 != 0 {
			return "", &Misplaced{dir, "is not a directory that only you can write in"}
		}
	}
	return dir, nil
}

// Check is nil if what is named below home, like a sandbox's, is where corral looks for
// it, and its owner's alone, as far as it is there.
func Check(home, below string) error {
	_, err := place(home, below)
	return err
}

// Linked are where the links lead that stand in a home in place of directories: no
// sandbox may see what is there.
func Linked(home string) []string {
	entries, _ := os.ReadDir(home) // a home that cannot be read is refused where it is used
	var out []string
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink {
			if to, err := filepath.EvalSymlinks(filepath.Join(home, e.Name())); err == nil {
				out = append(out, to)
			}
		}
	}
	return out
}

// made is place, which is there.
func made(home, sandbox string) (string, error) {
	dir, err := place(home, sandbox)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	return dir, err
}
