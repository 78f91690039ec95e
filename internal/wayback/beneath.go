package wayback

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// readMost is how much of a file is read: no file of the table is larger in an
// honest project.
const readMost = 1 << 20

// What every open below a root has: it neither waits nor follows.
const careful = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// directory is an open directory. Names below it are bytes, with slashes
// between them and never "..".
type directory struct {
	fd   int
	path string // absolute, for reports only
}

// openRoot opens a directory that somebody trusted named. Its own last part is
// not a symbolic link either. errFile is a regular file in its place.
func openRoot(path string) (*directory, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|careful, 0)
	})
	if err == unix.ENOTDIR {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil && kindOf(st) == regular {
			return nil, errFile
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &directory{fd, path}, nil
}

func (d *directory) close() { unix.Close(d.fd) }

// join is the path of name for a report.
func (d *directory) join(name string) string { return join(d.path, name) }

func join(dir, name string) string {
	if name == "" {
		return dir
	}
	return strings.TrimSuffix(dir, "/") + "/" + name
}

// open opens a directory below d.
func (d *directory) open(name string) (*directory, error) {
	fd, err := at(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|careful, 0)
	if err != nil {
		return nil, err
	}
	return &directory{fd, d.join(name)}, nil
}

// stat says what is at name itself.
func (d *directory) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if single(name) {
		_, err := retry(func() (int, error) {
			return 0, unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		})
		return st, err
	}
	fd, err := at(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	return st, unix.Fstat(fd, &st)
}

// born is when what is at name was made, in nanoseconds, or 0 if that cannot be
// told.
func (d *directory) born(name string) int64 {
	fd, err := at(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// link returns where the symbolic link at name points.
func (d *directory) link(name string) (string, error) {
	fd, err := at(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

var (
	errFile       = errors.New("a regular file, not a directory")
	errNotRegular = errors.New("not a regular file")
	errSwapped    = errors.New("it was replaced while it was looked at")
)

// tooLarge is a file of which nothing was read.
type tooLarge int64

func (n tooLarge) Error() string { return fmt.Sprintf("larger than 1 MiB: %d bytes", int64(n)) }

// read reads the regular file at name. It is looked at before it is opened, so
// that no device is.
func (d *directory) read(name string) ([]byte, unix.Stat_t, error) {
	st, err := d.stat(name)
	if err != nil {
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, st, errNotRegular
	}
	if st.Size > readMost {
		return nil, st, tooLarge(st.Size)
	}
	fd, err := at(d.fd, name, unix.O_RDONLY|careful, 0)
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(fd)
	seen := st
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != seen.Dev || st.Ino != seen.Ino {
		return nil, st, errSwapped
	}
	if st.Size > readMost {
		return nil, st, tooLarge(st.Size)
	}
	b := make([]byte, 0, st.Size+1)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, b[len(b):cap(b)]) })
		if err != nil {
			return nil, st, err
		}
		if n == 0 {
			return b, st, nil
		}
		if b = b[:len(b)+n]; len(b) > readMost { // it grew
			return nil, st, tooLarge(len(b))
		}
	}
}

// each calls f with the names in d and their kinds, one of unix.DT_*, until it
// returns an error.
func (d *directory) each(f func(name string, kind byte) error) error {
	if _, err := unix.Seek(d.fd, 0, unix.SEEK_SET); err != nil {
		return err
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(d.fd, buf) })
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		// linux_dirent64: inode and offset of 8 bytes each, length of 2, kind
		// of 1, then the name and a NUL at least.
		for b := buf[:n]; len(b) > 19; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < 20 || size > len(b) {
				return unix.EBADMSG
			}
			name, _, _ := strings.Cut(string(b[19:size]), "\x00")
			kind := b[18]
			b = b[size:]
			if name == "." || name == ".." {
				continue
			}
			if kind == unix.DT_UNKNOWN {
				kind = d.kind(name)
			}
			if err := f(name, kind); err != nil {
				return err
			}
		}
	}
}

// kind asks the inode where the directory does not say.
func (d *directory) kind(name string) byte {
	st, err := d.stat(name)
	if err != nil {
		return unix.DT_UNKNOWN
	}
	return byte(st.Mode & unix.S_IFMT >> 12)
}

// at opens name beneath a directory.
func at(fd int, name string, flags int, mode uint32) (int, error) {
	got, err := scoped(fd, name, flags, mode)
	if err == unix.ENOSYS || err == unix.EPERM { // an old kernel, or a filter of system calls
		return stepwise(fd, name, flags, mode)
	}
	return got, err
}

// scoped lets the kernel hold the line.
func scoped(fd int, name string, flags int, mode uint32) (int, error) {
	if err := local(name); err != nil {
		return -1, err
	}
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	return retry(func() (int, error) { return unix.Openat2(fd, name, &how) })
}

// stepwise is scoped for a kernel that cannot: one part of the name at a time.
func stepwise(fd int, name string, flags int, mode uint32) (int, error) {
	if err := local(name); err != nil {
		return -1, err
	}
	parts := strings.Split(name, "/")
	for i, part := range parts {
		f, m := flags|unix.O_NOFOLLOW, mode
		if i < len(parts)-1 {
			f, m = unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0
		}
		next, err := retry(func() (int, error) { return unix.Openat(fd, part, f, m) })
		if err == unix.ENOTDIR && i < len(parts)-1 {
			var st unix.Stat_t
			if unix.Fstatat(fd, part, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && kindOf(st) == symlink {
				err = unix.ELOOP // as the kernel says it in one step
			}
		}
		if i > 0 {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// local refuses a name that is not one below, before the kernel sees it.
func local(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.Contains(part, "\x00") {
			return unix.EINVAL
		}
	}
	return nil
}

func single(name string) bool { return !strings.Contains(name, "/") && local(name) == nil }

func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func missing(err error) bool { return errors.Is(err, os.ErrNotExist) }

// dotdot says whether a path goes up after it went down: where it ends then
// depends on what the names before are.
func dotdot(path string) bool {
	down := strings.HasPrefix(path, "/")
	for part := range strings.SplitSeq(path, "/") {
		switch part {
		case "", ".":
		case "..":
			if down {
				return true
			}
		default:
			down = true
		}
	}
	return false
}

// rel is path as a name below root: empty for root itself, and false if it is
// elsewhere. Both are clean.
func rel(root, path string) (string, bool) {
	if path == root {
		return "", true
	}
	root = strings.TrimSuffix(root, "/")
	if len(path) <= len(root) || path[len(root)] != '/' || path[:len(root)] != root {
		return "", false
	}
	return path[len(root)+1:], true
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Kinds of what is at a path, as a report says them.
const (
	regular = "a file"
	folder  = "a directory"
	symlink = "a symbolic link"
	fifo    = "a FIFO"
	socket  = "a socket"
	device  = "a device"
	unknown = "of an unknown kind"
)

func kindOf(st unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return regular
	case unix.S_IFDIR:
		return folder
	case unix.S_IFLNK:
		return symlink
	case unix.S_IFIFO:
		return fifo
	case unix.S_IFSOCK:
		return socket
	case unix.S_IFCHR, unix.S_IFBLK:
		return device
	}
	return unknown
}
