package wayback

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
)

// Limits of a shield.
const (
	bindsMost      = 500    // each is a mount of the container, which the engine makes one after another
	modulesDeep    = 32     // modules in modules, and slashes in their names
	modulesEntries = 20_000 // names below modules and worktrees, and in hooks
)

// Options are how a repository is shielded. The zero value leaves the agent
// nothing that git executes.
type Options struct {
	ConfigWritable bool // config and config.worktree are left to the agent
	DirReadOnly    bool // .git whole is read-only
	// UID and GID own what is made, if root makes it.
	UID, GID uint32
}

// Bind is a path to bind onto itself, so that it cannot be renamed away.
type Bind struct {
	Path     string // absolute
	ReadOnly bool
	Dev, Ino uint64 // what was there
	// Born is when that was made, in nanoseconds: a number of an inode is given
	// away again. 0 is a file system that does not say.
	Born int64
}

// Unshieldable is a place where a bind would hold nothing, so that no sandbox
// may start.
type Unshieldable struct{ Path, Reason string }

func (e *Unshieldable) Error() string {
	return fmt.Sprintf("%s cannot be shielded: %s", printable.Escape(e.Path), e.Reason)
}

// Shield returns what to bind so that the repository at the top of root, an
// absolute resolved path of a writable mount, cannot be made to execute on the
// host: parents before what they hold, none if there is no repository. A
// directory that is itself a git directory is shielded alike. Missing files and
// directories are made first, empty; nothing is made if anything is refused.
//
// A refusal is an *Unshieldable in an *exit.Error.
func Shield(root string, o Options) ([]Bind, error) { return shield(root, o, false, true) }

// Shieldable says whether Shield would refuse, as far as that can be told
// without making anything.
func Shieldable(root string, o Options) error {
	_, err := shield(root, o, false)
	return err
}

// shield goes over a repository once for each round, which says whether to make
// what is missing.
func shield(root string, o Options, rounds ...bool) ([]Bind, error) {
	if !clean(Raw(root)) {
		return nil, fmt.Errorf("%q is not an absolute path", root)
	}
	top, err := openRoot(root)
	if err == errFile {
		return nil, nil // a mount of one file holds no repository
	}
	if err != nil {
		return nil, err
	}
	defer top.close()
	s := shielder{Options: o, top: top}
	for _, s.make = range rounds {
		s.binds, s.bound, s.closed, s.dirs, s.entries = nil, map[string]bool{}, "", nil, 0
		if err := s.repository(); err != nil {
			return nil, err
		}
		if len(s.binds) > bindsMost {
			return nil, exit.Invalidf("write `git: {dir: ro}` in the policy: that is one bind", "the repository in %s would take %d binds, more than %d", printable.Escape(root), len(s.binds), bindsMost)
		}
	}
	slices.SortFunc(s.binds, func(a, b Bind) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/")), cmp.Compare(a.Path, b.Path))
	})
	return s.binds, nil
}

// shielder goes over a repository twice: to check, and to make and bind.
type shielder struct {
	Options
	top     *directory
	make    bool
	binds   []Bind
	bound   map[string]bool // paths of binds
	closed  string          // a git directory that is read-only whole
	dirs    []string        // git directories, those of worktrees too
	entries int
}

// Hints of refusals.
const (
	hintReplace = "put a file or directory of its own there, or leave this repository out of mounts.rw"
	hintCopy    = "replace it by a copy of itself (cp -p it aside and mv the copy over it), so that it has one name"
	hintRemove  = "remove it if you do not know it, and look at what it names: somebody may have put it there"
	hintMend    = "mend it with git on the host, or leave this repository out of mounts.rw"
)

func (s *shielder) refuse(name, hint, reason string, args ...any) error {
	return &exit.Error{
		Status: exit.Invalid,
		Err:    &Unshieldable{s.top.join(name), fmt.Sprintf(reason, args...)},
		Hint:   hint,
	}
}

// failed is an error of the system about name.
func (s *shielder) failed(name string, err error) error {
	return fmt.Errorf("shield %s: %w", printable.Escape(s.top.join(name)), err)
}

func (s *shielder) repository() error {
	st, err := s.top.stat(".git")
	switch {
	case missing(err):
		bare, err := s.bare("")
		switch {
		case !bare || err != nil:
			return err
		case s.DirReadOnly:
			return s.refuse("", "make the mount read-only", "it is a git directory itself, which `git: {dir: ro}` would close whole")
		}
		return s.gitDir("")
	case err != nil:
		return s.failed(".git", err)
	}
	switch kindOf(st) {
	case folder:
		return s.gitDir(".git")
	case regular:
		return s.gitFile(".git")
	}
	return s.refuse(".git", hintReplace, "it is %s", kindOf(st))
}

// bare says whether a directory has the shape of a git directory.
func (s *shielder) bare(name string) (bool, error) {
	var form shape
	d := s.top
	if name != "" {
		var err error
		if d, err = s.top.open(name); err != nil {
			return false, s.failed(name, err)
		}
		defer d.close()
	}
	for _, n := range []string{"HEAD", "objects", "refs", "commondir"} {
		_, err := d.stat(n)
		if err == nil {
			form.see(n)
		} else if !missing(err) {
			return false, s.failed(path.Join(name, n), err)
		}
	}
	return form.is(), nil
}

// gitFile is a .git that names the git directory. One below root is the
// agent's to write, so it is shielded too.
func (s *shielder) gitFile(name string) error {
	if err := s.file(name); err != nil {
		return err
	}
	b, _, err := s.top.read(name)
	if err != nil {
		return s.failed(name, err)
	}
	to, ok := strings.CutPrefix(string(b), "gitdir: ")
	if to = strings.TrimRight(to, "\r\n"); !ok || to == "" {
		return nil // git stops at it
	}
	if strings.ContainsAny(to, "\x00\n") {
		return s.refuse(name, hintMend, "it does not name a directory")
	}
	if dotdot(to) {
		return s.refuse(name, hintMend, "it names a git directory by way of other directories")
	}
	dir := absolute(s.top.path, to)
	inside, below := rel(s.top.path, dir)
	real, err := filepath.EvalSymlinks(dir)
	realInside, realBelow := "", false
	if err == nil {
		realInside, realBelow = rel(s.top.path, real)
	}
	switch {
	case !below && err != nil && !missing(err):
		return s.failed(name, err)
	case !below && !realBelow:
		return nil // out of the agent's reach
	case err != nil:
		return s.refuse(name, hintMend, "it names a git directory that is not there: %s", printable.Escape(dir))
	case realInside == "" && realBelow:
		return s.refuse(name, hintMend, "it names the directory that it is in")
	case below && inside != realInside:
		return s.refuse(name, hintMend, "it names a git directory by way of a symbolic link: %s", printable.Escape(dir))
	}
	if err := s.way(path.Dir(realInside)); err != nil {
		return err
	}
	return s.gitDir(realInside)
}

// way binds every directory on the way to name, and name itself.
func (s *shielder) way(name string) error {
	if name == "." || name == "" {
		return nil
	}
	if err := s.way(path.Dir(name)); err != nil {
		return err
	}
	return s.dir(name, false)
}

// gitDir shields a git directory that has its own settings and hooks.
func (s *shielder) gitDir(name string) error {
	if name != "" {
		if err := s.dir(name, s.DirReadOnly); err != nil {
			return err
		}
	}
	s.dirs = append(s.dirs, name)
	if st, err := s.top.stat(path.Join(name, rowCommondir)); err == nil {
		return s.refuse(path.Join(name, rowCommondir), hintRemove, "it is %s that sends git to settings and hooks elsewhere", kindOf(st))
	} else if !missing(err) {
		return s.failed(path.Join(name, rowCommondir), err)
	}
	if err := s.hooks(path.Join(name, "hooks"), true); err != nil {
		return err
	}
	for _, file := range []string{rowConfig, rowWorktree} {
		if s.ConfigWritable && !s.DirReadOnly {
			continue
		}
		if err := s.missingFile(path.Join(name, file)); err != nil {
			return err
		}
	}
	if err := s.missingDir(path.Join(name, "info"), false); err != nil {
		return err
	}
	if err := s.missingFile(path.Join(name, rowAttributes)); err != nil {
		return err
	}
	if err := s.modules(path.Join(name, "modules")); err != nil {
		return err
	}
	return s.worktrees(path.Join(name, "worktrees"))
}

// file binds a file that is there, read-only.
func (s *shielder) file(name string) error {
	st, err := s.top.stat(name)
	if err != nil {
		return s.failed(name, err)
	}
	if kindOf(st) != regular {
		return s.refuse(name, hintReplace, "it is %s", kindOf(st))
	}
	if st.Nlink > 1 {
		return s.refuse(name, hintCopy, "it has %d names, and could be written by another one", st.Nlink)
	}
	s.bind(name, true, st)
	return nil
}

// dir binds a directory that is there.
func (s *shielder) dir(name string, readOnly bool) error {
	st, err := s.top.stat(name)
	if err != nil {
		return s.failed(name, err)
	}
	if kindOf(st) != folder {
		return s.refuse(name, hintReplace, "it is %s", kindOf(st))
	}
	s.bind(name, readOnly, st)
	return nil
}

// bind leaves out what a read-only .git holds: its own bind is enough.
func (s *shielder) bind(name string, readOnly bool, st unix.Stat_t) {
	p := s.top.join(name)
	if s.bound[p] || s.closed != "" && within(Raw(p), Raw(s.closed)) {
		return
	}
	s.bound[p] = true
	if s.DirReadOnly && readOnly && kindOf(st) == folder {
		s.closed = p
	}
	s.binds = append(s.binds, Bind{p, readOnly, st.Dev, st.Ino, s.top.born(name)})
}

// missingFile binds a file, read-only, and makes it first.
func (s *shielder) missingFile(name string) error {
	ready, err := s.ready(name, true, func(parent int, base string) (int, error) {
		return at(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|careful, 0o644)
	})
	if !ready || err != nil {
		return err
	}
	return s.file(name)
}

// missingDir binds a directory, and makes it first.
func (s *shielder) missingDir(name string, readOnly bool) error {
	ready, err := s.ready(name, readOnly, func(parent int, base string) (int, error) {
		if err := unix.Mkdirat(parent, base, 0o755); err != nil {
			return -1, err
		}
		return at(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|careful, 0)
	})
	if !ready || err != nil {
		return err
	}
	return s.dir(name, readOnly)
}

// ready says whether there is something at name to bind. What is missing is
// made in the second round, and counted in the first; a git directory that is
// read-only whole needs nothing.
func (s *shielder) ready(name string, readOnly bool, create func(parent int, base string) (int, error)) (bool, error) {
	_, err := s.top.stat(name)
	if err == nil {
		return true, nil
	}
	if !missing(err) {
		return false, s.failed(name, err)
	}
	if s.DirReadOnly {
		return false, nil
	}
	if !s.make {
		s.bind(name, readOnly, unix.Stat_t{})
		return false, nil
	}
	parent, base := s.top, path.Base(name)
	if dir := path.Dir(name); dir != "." {
		if parent, err = s.top.open(dir); err != nil {
			return false, s.failed(name, err)
		}
		defer parent.close()
	}
	fd, err := create(parent.fd, base)
	if err != nil {
		return false, s.failed(name, err)
	}
	defer unix.Close(fd)
	if os.Geteuid() == 0 {
		if err := unix.Fchown(fd, int(s.UID), int(s.GID)); err != nil {
			return false, s.failed(name, err)
		}
	}
	return true, nil
}

// hooks binds the directory of hooks. A hook with a second name could be
// written by it.
func (s *shielder) hooks(name string, top bool) error {
	if top {
		if err := s.missingDir(name, true); err != nil {
			return err
		}
	}
	d, err := s.top.open(name)
	if missing(err) {
		return nil // the first round
	}
	if err != nil {
		return s.failed(name, err)
	}
	defer d.close()
	return s.names(d, name, func(base string, kind byte) error {
		hook := path.Join(name, base)
		switch {
		case top && strings.HasSuffix(base, ".sample"): // git runs none of those
		case kind == unix.DT_DIR:
			return s.hooks(hook, false)
		case kind == unix.DT_REG:
			if st, err := d.stat(base); err != nil {
				return s.failed(hook, err)
			} else if st.Nlink > 1 {
				return s.refuse(hook, hintCopy, "it has %d names, and could be written by another one", st.Nlink)
			}
		}
		return nil
	})
}

// names calls f with the names in d, in order.
func (s *shielder) names(d *directory, name string, f func(base string, kind byte) error) error {
	kinds := map[string]byte{}
	if err := d.each(func(base string, kind byte) error {
		if s.entries++; s.entries > modulesEntries {
			return s.refuse(name, "write `git: {dir: ro}` in the policy", "there are more than %d names in it and beside it", modulesEntries)
		}
		kinds[base] = kind
		return nil
	}); err != nil {
		var refused *exit.Error
		if errors.As(err, &refused) {
			return err
		}
		return s.failed(name, err)
	}
	for _, base := range slices.Sorted(maps.Keys(kinds)) {
		if err := f(base, kinds[base]); err != nil {
			return err
		}
	}
	return nil
}

// modules shields the git directories of submodules, whose names may have
// slashes.
func (s *shielder) modules(name string) error {
	st, err := s.top.stat(name)
	if missing(err) {
		return nil // the agent's own submodules are new, and reported
	}
	if err != nil {
		return s.failed(name, err)
	}
	if kindOf(st) != folder {
		return s.refuse(name, hintReplace, "it is %s", kindOf(st))
	}
	s.bind(name, false, st)
	_, err = s.search(name, false)
	return err
}

// search shields the git directories below name, and says whether there are
// any.
func (s *shielder) search(name string, inGitDir bool) (bool, error) {
	if strings.Count(name, "/") > modulesDeep {
		return false, s.refuse(name, "write `git: {dir: ro}` in the policy", "it is deeper than %d directories", modulesDeep)
	}
	d, err := s.top.open(name)
	if err != nil {
		return false, s.failed(name, err)
	}
	defer d.close()
	found := false
	err = s.names(d, name, func(base string, kind byte) error {
		sub := path.Join(name, base)
		switch {
		case kind == unix.DT_LNK && !(inGitDir && base == "HEAD"):
			return s.refuse(sub, hintReplace, "it is %s", symlink)
		case kind != unix.DT_DIR, inGitDir && slices.Contains(ownNames, base):
			return nil
		}
		git, err := s.bare(sub)
		if err != nil {
			return err
		}
		if git {
			if err := s.gitDir(sub); err != nil {
				return err
			}
		}
		more, err := s.search(sub, git)
		if err != nil || !git && !more {
			return err
		}
		found = true
		return s.dir(sub, false)
	})
	return found, err
}

// ownNames are directories of git's own in a git directory: no submodule is
// there, or it was looked for already.
var ownNames = []string{"objects", "refs", "logs", "hooks", "info", "branches", "remotes", "lfs", "modules", "worktrees", "rebase-merge", "rebase-apply", "sequencer"}

// worktrees shields the settings of linked worktrees, and of the submodules in
// them.
func (s *shielder) worktrees(name string) error {
	st, err := s.top.stat(name)
	if missing(err) {
		return nil
	}
	if err != nil {
		return s.failed(name, err)
	}
	if kindOf(st) != folder {
		return s.refuse(name, hintReplace, "it is %s", kindOf(st))
	}
	s.bind(name, false, st)
	d, err := s.top.open(name)
	if err != nil {
		return s.failed(name, err)
	}
	defer d.close()
	return s.names(d, name, func(base string, kind byte) error {
		tree := path.Join(name, base)
		switch kind {
		case unix.DT_LNK:
			return s.refuse(tree, hintReplace, "it is %s", symlink)
		case unix.DT_DIR:
		default:
			return nil // git passes it over
		}
		if err := s.dir(tree, false); err != nil {
			return err
		}
		s.dirs = append(s.dirs, tree)
		if err := s.commondir(path.Join(tree, rowCommondir)); err != nil {
			return err
		}
		if !s.ConfigWritable || s.DirReadOnly {
			if err := s.missingFile(path.Join(tree, rowWorktree)); err != nil {
				return err
			}
		}
		return s.modules(path.Join(tree, "modules"))
	})
}

// commondir binds the file that leads from a worktree to its repository. git
// writes it once.
func (s *shielder) commondir(name string) error {
	b, _, err := s.top.read(name)
	switch {
	case missing(err):
		return nil
	case errors.Is(err, errNotRegular):
		return s.refuse(name, hintReplace, "it is no regular file")
	case err != nil:
		return s.failed(name, err)
	case strings.TrimSuffix(string(b), "\n") != "../..":
		return s.refuse(name, hintRemove, "it sends git to settings and hooks elsewhere")
	}
	return s.file(name)
}
