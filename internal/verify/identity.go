package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// nonRoot: no process here has uid 0 in any of its four uids, nor that of a gate's
// worker, whom rules let out; and none but the first is a carrier. Aside, this one and
// the first are looked at, and userNotTheGates tells the latter.
func nonRoot(ctx context.Context, _ spec.Check, e *env) finding {
	return e.everyProcess(ctx, func(p process) string {
		switch {
		case slices.Contains(p.uids[:], 0):
			return "runs as root"
		case !e.aside && (slices.Contains(p.uids[:], spec.WorkerUID) || p.pid != "1" && slices.Contains(p.uids[:], spec.CarrierUID)):
			return fmt.Sprintf("runs as a user of the gate's own: uids %v", p.uids)
		}
		return ""
	}).advising(e.stackHint(userHint))
}

// userHint is how a service gets a user.
const userHint = "in compose.yaml: `user: \"1000:1000\"`, say"

// stackHint is advice about the file of a stack, for whoever has one: what corral
// makes has none that a person writes.
func (e *env) stackHint(hint string) string {
	if e.aside {
		return hint
	}
	return ""
}

// userNotTheGates: neither this process nor PID 1 has the uid of a gate's worker,
// whom rules let out, or of a carrier.
func userNotTheGates(_ context.Context, _ spec.Check, e *env) finding {
	self, first, err := e.selfAndFirst()
	if err != nil {
		return untold("%v", err)
	}
	for _, p := range []process{self, first} {
		for _, uid := range []uint32{spec.WorkerUID, spec.CarrierUID} {
			if slices.Contains(p.uids[:], uid) {
				return failed("%v runs as uid %d, which is the gate's own", p, uid).advising("choose another; " + userHint)
			}
		}
	}
	return ok()
}

// uidMatchesHost: every process here has exactly UID and GID and no other group;
// the first may be a namespace holder.
func uidMatchesHost(ctx context.Context, c spec.Check, e *env) finding {
	if c.UID == 0 || c.GID == 0 {
		return untold("the plan names no user: %d:%d", c.UID, c.GID)
	}
	return e.everyProcess(ctx, func(p process) string {
		if p.pid == "1" && p.uids == [4]uint32{spec.CarrierUID, spec.CarrierUID, spec.CarrierUID, spec.CarrierUID} {
			return ""
		}
		if p.uids != [4]uint32{c.UID, c.UID, c.UID, c.UID} {
			return fmt.Sprintf("has uids %v, not %d", p.uids, c.UID)
		}
		if p.gids != [4]uint32{c.GID, c.GID, c.GID, c.GID} {
			return fmt.Sprintf("has gids %v, not %d", p.gids, c.GID)
		}
		for _, g := range p.groups {
			if g != c.GID {
				return fmt.Sprintf("is in group %d", g)
			}
		}
		return ""
	})
}

// noSudo: no sudo, doas or pkexec, and on the root file system (mounts aside)
// no set-user-ID file of somebody else that this user may run.
func noSudo(ctx context.Context, _ spec.Check, e *env) finding {
	dirs := []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}
	for _, name := range []string{"sudo", "doas", "pkexec"} {
		for _, dir := range append(dirs, filepath.SplitList(os.Getenv("PATH"))...) {
			p := filepath.Join(dir, name)
			if _, err := os.Lstat(e.path(p)); err == nil {
				return failed("%s exists", p)
			}
		}
	}
	var root unix.Stat_t
	if err := unix.Lstat(e.path("/"), &root); err != nil {
		return untold("/: %v", err)
	}
	found, err := setuidFiles(ctx, e.path("/"), root.Dev)
	if err != nil {
		if over := (*fs.PathError)(nil); errors.As(err, &over) { // however long the agent made it
			over.Path = short("/" + strings.TrimLeft(strings.TrimPrefix(over.Path, e.root), "/"))
		}
		return untold("%v", err)
	}
	if len(found) > 0 {
		for i := range found {
			found[i] = "/" + strings.TrimLeft(strings.TrimPrefix(found[i], e.root), "/")
		}
		return failed("set-user-ID: %s", list(found))
	}
	return ok()
}

// setuidFiles lists the set-user-ID files below dir that this user may run and
// that belong to another, without crossing into other file systems. A directory
// that may be entered but not listed is an error: names in it can be guessed. One of
// this user's own that it closed, or that lies deeper than a path can name, holds what
// it put there itself: nobody's program but its own, where links to others' are refused.
func setuidFiles(ctx context.Context, dir string, dev uint64) ([]string, error) {
	const parallel = 8 // an image may hold 100,000 files that nobody looked at yet
	links, _ := os.ReadFile("/proc/sys/fs/protected_hardlinks")
	w := walk{ctx: ctx, dev: dev, slots: make(chan struct{}, parallel), linksRefused: strings.TrimSpace(string(links)) == "1"}
	w.directory(dir)
	w.wg.Wait()
	slices.Sort(w.found)
	return w.found, w.err
}

type walk struct {
	ctx   context.Context
	dev   uint64
	slots chan struct{}
	wg    sync.WaitGroup
	// linksRefused is the kernel's setting that nobody links to what another owns.
	linksRefused bool

	mu    sync.Mutex
	found []string
	err   error
}

func (w *walk) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *walk) directory(dir string) {
	if w.ctx.Err() != nil {
		w.fail(errors.New("the file system is too large to look through in time"))
		return
	}
	below, err := w.files(dir)
	if err != nil {
		w.fail(err)
		return
	}
	for _, p := range below {
		select {
		case w.slots <- struct{}{}:
			w.wg.Go(func() {
				w.directory(p)
				<-w.slots
			})
		default:
			w.directory(p)
		}
	}
}

// files looks at the files of one directory and returns its directories.
func (w *walk) files(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) && access(dir, unix.X_OK) != nil || errors.Is(err, fs.ErrNotExist) || w.linksRefused && buried(dir, err) {
			return nil, nil
		}
		return nil, err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Dev != w.dev {
		return nil, nil
	}
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var below []string
	for _, entry := range entries {
		p := filepath.Join(dir, entry.Name())
		if entry.IsDir() {
			below = append(below, p)
			continue
		}
		// What cannot be looked at is gone, or in a directory that may not be entered.
		if !entry.Type().IsRegular() || unix.Fstatat(int(d.Fd()), entry.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if st.Mode&unix.S_ISUID != 0 && int(st.Uid) != os.Getuid() && access(p, unix.X_OK) == nil {
			w.mu.Lock()
			w.found = append(w.found, p)
			w.mu.Unlock()
		}
	}
	return below, nil
}

// buried says whether a directory that could not be opened is this user's own and
// closed, or so deep in its own directories that no path names it.
func buried(dir string, err error) bool {
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.ENAMETOOLONG) {
		return false
	}
	var st unix.Stat_t
	err = unix.Lstat(dir, &st)
	for errors.Is(err, unix.ENAMETOOLONG) && dir != "/" {
		dir = filepath.Dir(dir)
		err = unix.Lstat(dir, &st)
	}
	return err == nil && int(st.Uid) == os.Getuid()
}

// access asks whether this user may, with its effective rights, as a write or
// an execution would.
func access(path string, mode uint32) error {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS)
}

// list joins the first few of many.
func list(items []string) string {
	const most = 5
	if len(items) > most {
		return strings.Join(items[:most], ", ") + ", …"
	}
	return strings.Join(items, ", ")
}
