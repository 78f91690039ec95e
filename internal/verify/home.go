package verify

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/spec"
)

// mostHomeEntries bounds what is looked at below the homes: they hold mounts
// and the directories on the way to them.
const mostHomeEntries = 2_000

// hostHomeOnlyMounts: below each of Paths, the person's homes on the host,
// there is nothing but what Mount declares, the directories that lead to it,
// and what this user made itself in the container's own layer. In a home that
// the image has files of its own in (the root, root's home, $HOME) only mounts
// are looked for.
func hostHomeOnlyMounts(ctx context.Context, c spec.Check, e *env) finding {
	if len(c.Paths) == 0 {
		return untold("no homes")
	}
	if !path.IsAbs(e.home) || path.Clean(e.home) == "/" {
		return untold("HOME is %q", e.home)
	}
	mounts, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	self, err := e.process("self")
	if err != nil {
		return untold("%v", err)
	}
	t := tour{ctx: ctx, e: e, mounts: mounts, uid: self.uids[1], left: mostHomeEntries}
	for _, m := range c.Mount {
		t.declared = append(t.declared, path.Clean(m.Target))
	}
	for _, home := range c.Paths {
		if !path.IsAbs(home) {
			return untold("a home is %q", home)
		}
		if err := t.home(path.Clean(home)); err != nil {
			return untold("%v", err)
		}
	}
	if len(t.found) > 0 {
		return failed("%s", list(t.found))
	}
	return ok()
}

// tour looks through homes.
type tour struct {
	ctx      context.Context
	e        *env
	mounts   []mountinfo.Mount
	uid      uint32
	declared []string
	left     int // entries that may still be looked at
	found    []string
}

func (t *tour) home(home string) error {
	if home == "/" {
		return nil // what is mounted anywhere is mountsOnlyDeclared's
	}
	for _, m := range t.mounts {
		if mountinfo.Within(m.Target, home) && !slices.Contains(t.declared, m.Target) {
			t.found = append(t.found, m.Target+" is mounted")
		}
	}
	if home == "/root" || mountinfo.Within(home, t.e.home) || t.granted(home) {
		return nil
	}
	switch fi, err := os.Lstat(t.e.path(home)); {
	case absent(err) && !(errors.Is(err, fs.ErrPermission) && t.e.hides(home)):
		return nil
	case err != nil:
		return err
	case !fi.IsDir():
		t.found = append(t.found, home+" is there")
		return nil
	}
	return t.directory(home)
}

// directory looks at the entries of a home, or of a directory in it that leads
// somewhere.
func (t *tour) directory(dir string) error {
	d, err := os.Open(t.e.path(dir))
	if errors.Is(err, fs.ErrPermission) && access(t.e.path(dir), unix.X_OK) != nil && !t.e.hides(path.Join(dir, "x")) {
		return nil // nothing in it can be seen
	}
	if err != nil {
		return err
	}
	defer d.Close()
	const some = 256
	for {
		entries, err := d.ReadDir(some)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if t.left -= len(entries); t.left < 0 || t.ctx.Err() != nil {
			return errors.New("there is too much below the homes to look through")
		}
		for _, entry := range entries {
			switch p := path.Join(dir, entry.Name()); {
			case t.granted(p), p == t.e.home:
			case t.leads(p) && entry.IsDir():
				if err := t.directory(p); err != nil {
					return err
				}
			case !t.selfMade(p):
				t.found = append(t.found, p+" is there")
			}
		}
	}
}

// granted says whether a path lies in what is declared.
func (t *tour) granted(p string) bool {
	return slices.ContainsFunc(t.declared, func(d string) bool { return mountinfo.Within(p, d) })
}

// leads says whether something declared, or $HOME, lies below a path.
func (t *tour) leads(p string) bool {
	return mountinfo.Within(t.e.home, p) || slices.ContainsFunc(t.declared, func(d string) bool { return mountinfo.Within(d, p) })
}

// selfMade says whether a file is this user's and lies in nothing of the host's.
func (t *tour) selfMade(p string) bool {
	fi, err := os.Lstat(t.e.path(p))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	if st, known := fi.Sys().(*syscall.Stat_t); !known || st.Uid != t.uid {
		return false
	}
	return !slices.ContainsFunc(holding(t.mounts, p), func(m mountinfo.Mount) bool { return m.Target != "/" && m.Target != "/tmp" })
}
