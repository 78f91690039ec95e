package verify

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// subject is the path that a check is about: Path, else what follows the colon
// of its name.
func subject(c spec.Check) string {
	if c.Path != "" {
		return c.Path
	}
	_, arg, _ := strings.Cut(c.Name, ":")
	return arg
}

// absent says how a path is known not to be there. A directory that may not be
// entered hides what is below it as well as absence does.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrPermission)
}

// noDockerSocket: nothing at the path, and no socket of that name mounted or
// bound anywhere. (A mounted socket lists as a regular file: only lstat tells.)
func noDockerSocket(_ context.Context, c spec.Check, e *env) finding {
	p := subject(c)
	if !path.IsAbs(p) {
		return untold("no path")
	}
	switch _, err := os.Lstat(e.path(p)); {
	case err == nil:
		return failed("%s exists", p)
	case !absent(err):
		return untold("%v", err)
	}
	mounts, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	name := path.Base(p)
	for _, m := range mounts {
		if path.Base(m.target) == name || path.Base(m.root) == name {
			return failed("%s is mounted at %s", m.root, m.target)
		}
	}
	sockets, err := e.unixSockets()
	if err != nil {
		return untold("%v", err)
	}
	for _, s := range sockets {
		if path.Base(strings.TrimPrefix(s.path, "@")) == name {
			return failed("a socket named %s", s.path)
		}
	}
	return ok()
}

// noCredentialDir: NAME (after the colon) is neither in $HOME nor in the
// host's home, which Paths name. What the agent itself made in the container's
// own layer holds nothing of anybody's, nor does what Mount declares in $HOME:
// that is a sandbox's own.
func noCredentialDir(_ context.Context, c spec.Check, e *env) finding {
	_, name, _ := strings.Cut(c.Name, ":")
	if name == "" {
		return untold("no name")
	}
	if !path.IsAbs(e.home) {
		return untold("HOME is %q", e.home)
	}
	for _, home := range append([]string{e.home}, c.Paths...) {
		p := path.Join(home, name)
		switch fi, err := os.Lstat(e.path(p)); {
		case err == nil && home == e.home && (declares(c.Mount, p) || e.selfMade(p, fi)):
		case err == nil:
			return failed("%s exists", p)
		case !absent(err), errors.Is(err, fs.ErrPermission) && e.hides(p):
			return untold("%v", err)
		}
	}
	return ok()
}

// declares says whether a mount is declared at p, or below it.
func declares(mounts []spec.Mount, p string) bool {
	return slices.ContainsFunc(mounts, func(m spec.Mount) bool { return within(path.Clean(m.Target), p) })
}

// hides says whether a directory on the way to p is this user's: who owns it
// can close it and open it again.
func (e *env) hides(p string) bool {
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		fi, err := os.Lstat(e.path(dir))
		if err != nil {
			continue
		}
		if st, known := fi.Sys().(*syscall.Stat_t); !known || int(st.Uid) == os.Getuid() {
			return true
		}
	}
	return false
}

// selfMade says whether a file is this user's and lies in no mount, so that
// nobody but the user itself can have brought it.
func (e *env) selfMade(p string, fi fs.FileInfo) bool {
	st, known := fi.Sys().(*syscall.Stat_t)
	if !known || int(st.Uid) != os.Getuid() {
		return false
	}
	mounts, err := e.mounts()
	if err != nil {
		return false
	}
	for _, m := range holding(mounts, p) {
		if m.target != "/" {
			return false
		}
	}
	return true
}

// rwWritable: the path can be written. It is tried with a file that never has
// a name, where the file system knows such files.
func rwWritable(_ context.Context, c spec.Check, e *env) finding {
	p := subject(c)
	if !path.IsAbs(p) {
		return untold("no path")
	}
	if err := writable(e.path(p)); err != nil {
		return failed("%s: %v", p, err)
	}
	return ok()
}

// roUnwritable: the mount that holds the path and every mount below it are
// read-only, and writing is refused.
func roUnwritable(_ context.Context, c spec.Check, e *env) finding {
	p := path.Clean(subject(c))
	if !path.IsAbs(p) {
		return untold("no path")
	}
	if _, err := os.Lstat(e.path(p)); err != nil {
		return untold("%v", err)
	}
	mounts, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	for _, m := range holding(mounts, p) {
		if !m.has("ro") {
			return failed("%s is mounted writable", m.target)
		}
		switch err := writable(e.path(m.below(p))); {
		case err == nil:
			return failed("%s can be written", m.below(p))
		case !errors.Is(err, unix.EROFS) && !refused(err):
			return untold("%s: %v", m.below(p), err)
		}
	}
	return ok()
}

// writable is nil if this user can write the file, or make one in the directory.
func writable(p string) error {
	if fd, err := unix.Open(p, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err == nil {
		return unix.Close(fd)
	} else if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return access(p, unix.W_OK)
}

// rootOwned: the path, whatever lies in it and every directory on the way
// belong to root and cannot be written by this user.
func rootOwned(ctx context.Context, c spec.Check, e *env) finding {
	p := path.Clean(subject(c))
	if !path.IsAbs(p) {
		return untold("no path")
	}
	real, err := filepath.EvalSymlinks(e.path(p))
	if err != nil {
		return untold("%v", err)
	}
	for _, start := range []string{e.path(p), real} {
		for dir := start; len(dir) >= len(e.path("/")); dir = filepath.Dir(dir) {
			if s := notRoots(dir); s != "" {
				return failed("%s %s", strings.TrimPrefix(dir, e.root), s)
			}
			if dir == "/" {
				break
			}
		}
	}
	found := ok()
	err = filepath.WalkDir(real, func(file string, _ fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		if s := notRoots(file); s != "" {
			found = failed("%s %s", strings.TrimPrefix(file, e.root), s)
			return fs.SkipAll
		}
		return ctx.Err()
	})
	if err != nil {
		return untold("%v", err)
	}
	return found
}

// notRoots complains if this user could change what is at p.
func notRoots(p string) string {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return err.Error()
	}
	if st.Uid != 0 {
		return "does not belong to root"
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK && access(p, unix.W_OK) == nil {
		return "can be written"
	}
	return ""
}

// policyInputsAbsent: none of Paths can be seen, or at least not read.
func policyInputsAbsent(_ context.Context, c spec.Check, e *env) finding {
	if len(c.Paths) == 0 {
		return untold("no paths")
	}
	for _, p := range c.Paths {
		switch _, err := os.Lstat(e.path(p)); {
		case absent(err):
		case err != nil:
			return untold("%v", err)
		case access(e.path(p), unix.R_OK) == nil, access(e.path(p), unix.W_OK) == nil:
			return failed("%s is visible", p)
		}
	}
	return ok()
}
