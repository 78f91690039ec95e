package policy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Seen is a policy file as it is now, whoever wrote it.
type Seen struct {
	Dev, Ino uint64
	Digest   string // as of Policy
}

// Observe looks at the file at path without judging what is in it. No link is
// followed and nothing is waited for: an agent may have put it there.
func Observe(path string) (Seen, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Seen{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Seen{}, err
	}
	if !fi.Mode().IsRegular() {
		return Seen{}, fmt.Errorf("%s is %s, not a regular file", path, describeMode(fi.Mode()))
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxBytes+1)); err != nil {
		return Seen{}, err
	}
	return Seen{Dev: stat(fi).Dev, Ino: stat(fi).Ino, Digest: fmt.Sprintf("sha256:%x", h.Sum(nil))}, nil
}
