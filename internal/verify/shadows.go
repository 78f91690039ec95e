package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/spec"
)

// envShadowed: each of Files is a mount of its own, read-only, holds what it is to hold
// and nothing else, and can be neither written, renamed nor removed.
func envShadowed(_ context.Context, c spec.Check, e *env) finding {
	if len(c.Files) == 0 {
		return untold("no shadows were given")
	}
	all, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	var complaints, unknown []string
	for _, f := range c.Files {
		target := path.Clean(f.Path)
		m, there := mountinfo.At(all, target)
		if !there {
			complaints = append(complaints, target+" is not shadowed")
			continue
		}
		if !m.Has("ro") {
			complaints = append(complaints, target+" is mounted writable")
		}
		switch held, err := fixed(e.path(target), f.Dir); {
		case err == nil:
		case held:
			unknown = append(unknown, fmt.Sprintf("%s: %v", target, err))
		default:
			complaints = append(complaints, fmt.Sprintf("%s: %v", target, err))
		}
		switch err := writable(e.path(target)); {
		case err == nil:
			complaints = append(complaints, target+" can be written")
		case !errors.Is(err, unix.EROFS) && !refused(err):
			unknown = append(unknown, fmt.Sprintf("%s: %v", target, err))
		}
		switch same, err := contains(e.path(target), f); {
		case err != nil:
			unknown = append(unknown, fmt.Sprintf("%s: %v", target, err))
		case !same:
			complaints = append(complaints, target+" holds something else")
		}
	}
	switch {
	case len(complaints) > 0:
		return failed("%s", list(complaints))
	case len(unknown) > 0:
		return untold("%s", list(unknown))
	}
	return ok()
}

// fixed is nil if the kernel refuses to rename p and to remove it. To remove it is tried
// only where renaming was refused: a file that goes does not come back.
func fixed(p string, dir bool) (held bool, err error) {
	if held, err := renamable(p); err != nil {
		return held, err
	}
	flags := 0
	if dir {
		flags = unix.AT_REMOVEDIR
	}
	switch err := unix.Unlinkat(unix.AT_FDCWD, p, flags); {
	case err == nil:
		return false, errors.New("can be removed")
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EROFS), refused(err):
		return false, nil
	default:
		return true, fmt.Errorf("cannot tell whether it can be removed: %w", err)
	}
}

// contains reports whether what is at p is what f says, and all of it.
func contains(p string, f spec.File) (bool, error) {
	kind := unix.O_NONBLOCK
	if f.Dir {
		kind = unix.O_DIRECTORY
	}
	h, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|kind, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer h.Close()
	if f.Dir {
		_, err := h.Readdirnames(1)
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		return false, err
	}
	if fi, err := h.Stat(); err != nil || !fi.Mode().IsRegular() {
		return false, err
	}
	b, err := io.ReadAll(io.LimitReader(h, int64(len(f.Content))+1))
	return err == nil && string(b) == f.Content, err
}
