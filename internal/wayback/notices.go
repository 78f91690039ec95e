package wayback

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// watchesMost is several times what a shield can bind; a user has some thousands
// for everything that runs.
const watchesMost = 2000

// drainMost is more than the kernel keeps unless somebody told it to: whatever
// was there is taken, and an agent that goes on making more cannot hold corral.
const drainMost = 32 << 20 // bytes

const (
	aboutNames = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	aboutSelf  = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	// A file is watched by its inode too, so that a second name is no way
	// around. Its end of writing is told once, however much was written.
	aboutFile = unix.IN_CLOSE_WRITE
)

// notices are what the kernel tells of directories and files. It keeps them, in
// order, until they are taken.
type notices struct {
	fd      int
	watched map[int32][]string // the paths of what is watched
	files   map[int32]bool
	dirs    map[string]bool
}

// notice is one thing that happened.
type notice struct {
	path    string
	gone    bool // no more at that path
	written bool
	lost    bool // path is a directory that was moved or removed, and is not watched any more
}

func openNotices() (*notices, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return &notices{fd, map[int32][]string{}, map[int32]bool{}, map[string]bool{}}, nil
}

func (n *notices) close() {
	if n != nil {
		unix.Close(n.fd)
	}
}

// dir watches a directory below d; "." is d itself.
func (n *notices) dir(d *directory, name string) error {
	where := d.path
	if name != "." {
		sub, err := d.open(name)
		if err != nil {
			return err
		}
		defer sub.close()
		d, where = sub, sub.path
	}
	if n.dirs[where] {
		return nil
	}
	if err := n.add(d.fd, where, aboutNames|aboutSelf|unix.IN_ONLYDIR|unix.IN_EXCL_UNLINK); err != nil {
		return err
	}
	n.dirs[where] = true
	return nil
}

// file watches the writing of a file below d.
func (n *notices) file(d *directory, name, where string) error {
	fd, err := at(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return n.add(fd, where, aboutFile)
}

// add watches an inode by its descriptor, since a path could lead elsewhere.
func (n *notices) add(fd int, where string, mask uint32) error {
	if len(n.watched) >= watchesMost {
		return errWatches
	}
	wd, err := unix.InotifyAddWatch(n.fd, fmt.Sprintf("/proc/self/fd/%d", fd), mask|unix.IN_MASK_ADD)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	n.watched[int32(wd)] = append(n.watched[int32(wd)], where)
	if mask&aboutFile != 0 {
		n.files[int32(wd)] = true
	}
	return nil
}

// each calls f with everything that was told and not yet taken. The error is
// that something was not told.
func (n *notices) each(f func(notice)) (dropped error) {
	buf := make([]byte, 64<<10)
	for taken := 0; ; {
		if taken > drainMost {
			return errOverflow
		}
		size, err := retry(func() (int, error) { return unix.Read(n.fd, buf) })
		if err == unix.EAGAIN || err == nil && size == 0 {
			return dropped
		}
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		taken += size
		// inotify_event: descriptor, mask, cookie and length of 4 bytes each,
		// then the name, filled with NULs.
		for b := buf[:size]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			if end > len(b) {
				return unix.EBADMSG
			}
			name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			b = b[end:]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				dropped = errOverflow
				continue
			}
			for _, where := range n.watched[wd] {
				n.one(where, name, mask, n.files[wd], f)
			}
			if mask&unix.IN_IGNORED != 0 {
				delete(n.watched, wd)
			}
		}
	}
}

func (n *notices) one(where, name string, mask uint32, file bool, f func(notice)) {
	switch {
	case mask&unix.IN_CLOSE_WRITE != 0:
		f(notice{path: where, written: true})
	case mask&aboutNames != 0:
		f(notice{path: path.Join(where, name), gone: mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0})
	case mask&aboutSelf != 0 && !file:
		f(notice{path: where, lost: true})
	}
}
