package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
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

// noDockerSocket: nothing at the path, no socket of that name mounted or bound
// anywhere, and none of any engine that answers in what is mounted. (A mounted socket
// lists as a regular file: only lstat tells.) A detail says if not all was looked at.
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
		if path.Base(m.Target) == name || path.Base(m.Root) == name {
			return failed("%s is mounted at %s", m.Root, m.Target)
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
	seen := e.live()
	switch {
	case len(seen.live) > 0:
		return failed("%s: an engine's socket, and it answers", list(shorts(seen.live)))
	case seen.shut != "":
		return untold("%s is this user's, and closed to it, who may open it again: what is there is not seen", short(seen.shut))
	case seen.err != nil:
		return untold("%v", seen.err)
	}
	f := ok()
	if !seen.all {
		f.detail = fmt.Sprintf("not everything in the mounts was looked at: after %d names, or %v, no more is", socketsAmong, socketsWithin)
	}
	return f
}

// What is mounted is looked through for sockets from the top, so far: a project may
// hold any number of files.
const (
	socketsAmong  = 20_000
	socketsWithin = time.Second
)

// engineNames are what the sockets of engines are called. Whoever speaks to one is root.
var engineNames = []string{"docker.sock", "containerd.sock", "podman.sock", "buildkitd.sock", "crio.sock"}

// mountedSockets is what a look through the mounts found.
type mountedSockets struct {
	live []string // engines' sockets that answer
	shut string   // a directory or a socket that is closed to its owner, this user
	err  error    // of a look that failed otherwise
	all  bool     // everything was looked at
}

// engineSockets are the sockets in the mounts that are not the engine's own, and that
// take a connection: those called as those of engines are, and whatever else an engine
// answers at, since who may write there can call one otherwise.
func (e *env) engineSockets() mountedSockets {
	mounts, err := e.mounts()
	if err != nil {
		return mountedSockets{err: err}
	}
	var dirs []string
	own := mountinfo.Engines(mounts)
	for _, m := range mounts {
		if m.Target != spec.GuestDir && !own(m) && !slices.Contains(dirs, m.Target) {
			dirs = append(dirs, m.Target)
		}
	}
	mountpoints := slices.Clone(dirs)
	until := time.Now().Add(socketsWithin)
	names := 0
	seen := mountedSockets{all: true}
	for ; len(dirs) > 0; dirs = dirs[1:] {
		d, err := os.OpenFile(e.path(dirs[0]), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			if !errors.Is(err, unix.ENOTDIR) || !slices.Contains(mountpoints, dirs[0]) { // a file is mounted too
				seen.unseen(dirs[0], e.path(dirs[0]), err)
			}
			continue
		}
		for {
			entries, err := d.ReadDir(256)
			for _, entry := range entries {
				p := path.Join(dirs[0], entry.Name())
				if names++; names > socketsAmong || time.Now().After(until) {
					d.Close()
					seen.all = false
					return seen
				}
				switch {
				case entry.IsDir() && !slices.Contains(mountpoints, p):
					dirs = append(dirs, p)
				case entry.Type()&fs.ModeSocket != 0:
					seen.socket(d, p, until)
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				seen.err = err
				break
			}
		}
		d.Close()
	}
	return seen
}

// unseen judges a directory that cannot be opened. One that has gone may have another
// name by now.
func (seen *mountedSockets) unseen(p, real string, err error) {
	switch {
	case errors.Is(err, fs.ErrPermission):
		switch fi, err := os.Lstat(real); {
		case err == nil && ownedBy(fi, os.Getuid()):
			seen.shut = p
		case err != nil, access(real, unix.X_OK) == nil: // names in there can be known
			seen.all = false
		}
	case errors.Is(err, unix.ENAMETOOLONG): // nobody's work is that deep
		seen.err = fmt.Errorf("%s: its path is too long to look there", short(p))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		seen.all = false
	default:
		seen.err = err
	}
}

// socket judges one of a directory.
func (seen *mountedSockets) socket(dir *os.File, p string, until time.Time) {
	name := path.Base(p)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		seen.all = seen.all && errors.Is(err, fs.ErrNotExist)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			seen.err = err
		}
		return
	}
	defer unix.Close(fd)
	named := slices.Contains(engineNames, name)
	conn, err := connectTo(fd)
	switch {
	case err == nil && (named || engineAnswers(conn, until)), named && errors.Is(err, unix.EAGAIN):
		seen.live = append(seen.live, p)
	case errors.Is(err, unix.EACCES):
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || int(st.Uid) == os.Getuid() {
			seen.shut = p
		}
	case errors.Is(err, unix.EAGAIN): // it takes no more just now
		seen.all = false
	case err == nil, errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EPROTOTYPE): // nobody, or nobody who speaks in streams
	default:
		seen.err = err
	}
	if conn != nil {
		conn.Close()
	}
}

// connectTo connects to a socket by its descriptor, whatever it is called.
func connectTo(fd int) (*os.File, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(s, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", fd)}); err != nil {
		unix.Close(s)
		return nil, err
	}
	return os.NewFile(uintptr(s), "socket"), nil
}

// pingWithin is how long an engine has to answer who is asked for nothing but that.
const pingWithin = 200 * time.Millisecond

// engineAnswers says whether who listens answers as an engine does.
func engineAnswers(conn *os.File, until time.Time) bool {
	late := time.Now().Add(pingWithin)
	if late.After(until) {
		late = until
	}
	if conn.SetDeadline(late) != nil {
		return true // nobody knows
	}
	if _, err := io.WriteString(conn, "GET /_ping HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	said, _ := io.ReadAll(io.LimitReader(conn, 4096))
	head, _, _ := bytes.Cut(said, []byte("\r\n\r\n"))
	return engineSays.Match(head)
}

// shortPath is as much of a path as a person reads; who makes directories can make
// them longer.
const shortPath = 160

func short(p string) string {
	if len(p) <= shortPath {
		return p
	}
	return p[:shortPath/2] + "…" + p[len(p)-shortPath/2:]
}

func shorts(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = short(p)
	}
	return out
}

// engineSays is in the head of what Docker, or Podman for it, answers to anybody.
var engineSays = regexp.MustCompile(`(?im)^(api-version|docker-experimental|libpod-api-version):|^server: (docker|libpod)`)

// ownedBy is whose a file is.
func ownedBy(fi fs.FileInfo, uid int) bool {
	st, known := fi.Sys().(*syscall.Stat_t)
	return known && int(st.Uid) == uid
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
	return slices.ContainsFunc(mounts, func(m spec.Mount) bool { return mountinfo.Within(path.Clean(m.Target), p) })
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
		if m.Target != "/" {
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
	err := writable(e.path(p))
	switch {
	case err == nil:
		return ok()
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return untold("%v", err)
	case errors.Is(err, unix.EACCES):
		if fi, statErr := os.Lstat(e.path(p)); statErr == nil && ownedBy(fi, os.Getuid()) {
			return failed("its owner, this user, may not write it: its mode is %04o, chmod u+rwx", fi.Mode().Perm())
		}
	}
	return failed("%v", cause(err))
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
		if !m.Has("ro") {
			return failed("%s is mounted writable", m.Target)
		}
		switch err := writable(e.path(below(m, p))); {
		case err == nil:
			return failed("%s can be written", below(m, p))
		case !errors.Is(err, unix.EROFS) && !refused(err):
			return untold("%s: %v", below(m, p), err)
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
	// Who can read this program can trace it from its first instruction, before it
	// forbids that: what it says would be the agent's word.
	if p == spec.GuestDir+"/bin/corral-verify" && access(real, unix.R_OK) == nil {
		return failed("%s can be read, so that whoever runs it may trace it", p)
	}
	found := ok()
	err = filepath.WalkDir(real, func(file string, _ fs.DirEntry, err error) error {
		if err != nil && (!errors.Is(err, fs.ErrPermission) || access(file, unix.X_OK) == nil) {
			return err // one that may be entered and not listed: names in it can be guessed
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
