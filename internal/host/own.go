package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
)

// ErrTooLong is a file with more bytes than are read.
var ErrTooLong = errors.New("too long")

// ReadOwn reads a file that a person trusted with what it says: a regular one
// of uid's, or of root's that everybody can read, that nobody else can write, of
// at most most bytes. Symbolic
// links are followed; no FIFO is waited for.
func ReadOwn(path string, uid uint32, most int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	return readOwn(fd, err, path, uid, most)
}

// ReadResolved is ReadOwn for an absolute path without symbolic links: one that
// has come into it since is an error (unix.ELOOP).
func ReadResolved(path string, uid uint32, most int64) ([]byte, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	return readOwn(fd, err, path, uid, most)
}

func readOwn(fd int, err error, path string, uid uint32, most int64) ([]byte, error) {
	switch {
	case errors.Is(err, unix.ENXIO): // of a socket
		return nil, errIrregular
	case err != nil:
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, plainly(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return nil, errIrregular
	case st.Uid != uid && st.Uid != 0:
		return nil, exit.Invalidf("copy it, and name the copy", "it belongs to uid %d, not to uid %d or root", st.Uid, uid)
	case st.Uid == 0 && uid != 0 && st.Mode&0o004 == 0:
		return nil, exit.Invalidf("copy it, and name the copy", "it is root's, and others cannot read it")
	case writable(st):
		return nil, exit.Invalidf(fmt.Sprintf("chmod go-w %q", path), "it is writable by others (mode %04o)", st.Mode&0o777)
	}
	// One byte more than is accepted, so that too much is seen as such.
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, exit.Failedf("", "%w", plainly(err))
	case int64(len(b)) > most:
		return nil, ErrTooLong
	}
	return b, nil
}

var errIrregular = errors.New("not a regular file")
