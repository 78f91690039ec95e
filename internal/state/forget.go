package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// forgotten begins the name of what is being removed.
const forgotten = ".forgotten-"

// Forget removes all that is kept of a sandbox, and what an earlier one that was cut
// short has left. The caller holds its lock, and nothing of it runs. What an agent left
// may be closed to its owner, and as deep as it likes: it is removed too, and no link is
// followed. What cannot be removed is no sandbox any more, and the next Forget tries
// again.
func Forget(home, sandbox string) error {
	if _, err := place(home, sandbox); err != nil {
		return err
	}
	aside, err := os.MkdirTemp(home, forgotten)
	if err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(home, sandbox), filepath.Join(aside, sandbox)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, os.Remove(aside))
	}
	return SweepForgotten(home)
}

// SweepForgotten removes what a Forget that was cut short has left.
func SweepForgotten(home string) error {
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if isForgotten(e.Name()) {
			err = errors.Join(err, removeTree(filepath.Join(home, e.Name())))
		}
	}
	return err
}

// isForgotten reports whether a name in the home is that of something removed.
func isForgotten(name string) bool { return strings.HasPrefix(name, forgotten) }

// aPiece is how many entries of a directory are looked at at a time: an agent may have
// made millions.
const aPiece = 1000

// removeTree removes a directory with all below it, of whatever depth: what is deeper
// down is brought to the top first, so that no path is longer than two names.
func removeTree(root string) error {
	top, err := os.OpenFile(root, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody else did
	}
	if err != nil {
		return err
	}
	defer top.Close()
	free := 0
	for n := 0; ; {
		names, err := top.Readdirnames(aPiece)
		if len(names) == 0 {
			if err == io.EOF && n == 0 {
				return os.Remove(root)
			}
			if err != nil && err != io.EOF {
				return err
			}
			n = 0
			if _, err := top.Seek(0, io.SeekStart); err != nil {
				return err
			}
			continue
		}
		for _, name := range names {
			n++
			if err := raise(top, name, &free); err != nil {
				return fmt.Errorf("%s: %w", root, err)
			}
		}
	}
}

// raise removes one entry of the top: a directory after its own have become the top's.
func raise(top *os.File, name string, free *int) error {
	at := int(top.Fd())
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err := unix.Fchmodat(at, name, 0o700, 0); err != nil { // a directory: nothing else is there that cannot be unlinked
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), "a directory below")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(aPiece)
		if len(names) == 0 {
			if err != nil && err != io.EOF {
				return err
			}
			break
		}
		for _, below := range names {
			if err := unix.Unlinkat(fd, below, 0); err == nil || errors.Is(err, unix.ENOENT) {
				continue
			}
			if err := unix.Fchmodat(fd, below, 0o700, 0); err != nil { // whose parent changes is written to
				return err
			}
			if err := move(fd, below, at, free); err != nil {
				return err
			}
		}
	}
	err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOENT) {
		return nil // it is looked at again
	}
	return err
}

// move makes an entry of a directory one of the top's, by a name that is free there.
func move(from int, name string, top int, free *int) error {
	for {
		*free++
		err := unix.Renameat2(from, name, top, fmt.Sprintf("%s%d", forgotten, *free), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// mostSized is how many entries Size looks at.
const mostSized = 100_000

// Size is how many bytes the files of a sandbox take, as far as they can be seen; not
// whole says that there are more, or that ctx ended.
func Size(ctx context.Context, home, sandbox string) (n int64, whole bool) {
	dirs, seen := []string{filepath.Join(home, sandbox)}, 0
	for len(dirs) > 0 {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		for {
			entries, err := f.ReadDir(aPiece)
			for _, e := range entries {
				if e.IsDir() {
					dirs = append(dirs, filepath.Join(dir, e.Name()))
				} else if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() {
					n += fi.Size()
				}
			}
			if seen += len(entries); seen > mostSized || ctx.Err() != nil {
				f.Close()
				return n, false
			}
			if err != nil {
				break
			}
		}
		f.Close()
	}
	return n, true
}
