package wayback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of one look. An agent that exceeds them on purpose gains a line in
// the report that says so.
const (
	entriesMost = 1_000_000 // a few seconds, and several times the largest projects
	depthMost   = 256       // each level is an open file
	memoryMost  = 64 << 20  // the bytes that it can make corral remember, by names, settings and links
	readsMost   = 256 << 20 // the time that it can make corral read for
	gapsMost    = 1000      // lines of the report
	fileCosts   = 256       // of those, for each file besides its name
	keyCosts    = 64        // and for each setting
	hopsMost    = 10        // of settings that include settings, as git itself has it
	wordsMost   = 32        // of a command, in which files of the project are looked for
	wantedMost  = 10_000    // files that settings and links name
)

// Scope is where to look.
type Scope struct {
	// Roots are the directories and single files that the agent may write, by
	// their absolute resolved paths.
	Roots []string
	// Home is that of the person whose git is meant, or empty if there is none.
	// Its settings of git can lead below a root, and ~ stands for it in others.
	Home string
	// Also are further absolute paths to watch, where they lead below a root: what
	// the hooks of the policy run.
	Also []string
}

// Take looks at everything below the roots of a scope, and at what leads there
// from outside. What it could not look at, a root among them or what was left
// when ctx ended, is in Incomplete.
func Take(ctx context.Context, s Scope) (Snapshot, error) { return take(ctx, s, entriesMost) }

func take(ctx context.Context, scope Scope, most int) (Snapshot, error) {
	s := Snapshot{Version: version, Home: Raw(scope.Home)}
	if len(scope.Roots) == 0 {
		return s, errors.New("no directory to look at")
	}
	for _, p := range scope.Also {
		s.Also = append(s.Also, Raw(p))
	}
	for _, p := range slices.Concat(scope.Roots, scope.Also) {
		if !clean(Raw(p)) {
			return s, fmt.Errorf("%q is not an absolute path", p)
		}
	}
	if scope.Home != "" && !clean(s.Home) {
		return s, fmt.Errorf("%q is not an absolute path", scope.Home)
	}
	t := taker{budget: budget{ctx: ctx, left: most}, Scope: scope, files: map[string]File{}, handles: map[string]*directory{}}
	defer func() {
		for _, d := range t.handles {
			d.close()
		}
	}()
	for _, p := range scope.Also {
		t.want(want{row: rowAlso}, "", p)
	}
	for _, root := range scope.Roots {
		s.Roots = append(s.Roots, Raw(root))
		t.root = root
		t.takeRoot()
	}
	t.person()
	t.named()
	for _, p := range slices.Sorted(maps.Keys(t.files)) {
		s.Files = append(s.Files, t.files[p])
	}
	s.Incomplete = t.gaps
	return s, nil
}

// budget is what a walk may still take.
type budget struct {
	ctx  context.Context
	left int
}

// spend takes one entry.
func (b *budget) spend() error {
	b.left--
	if b.left < 0 {
		return errTooMany
	}
	if b.left%256 == 0 && b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	return nil
}

var (
	errTooMany   = errors.New("too many entries")
	errTooMuch   = errors.New("too much that is watched")
	errTooBroken = errors.New("too many places that cannot be looked at")
)

type taker struct {
	budget
	Scope
	root    string
	stopped error
	files   map[string]File
	gaps    []Gap
	read    int64 // bytes of files
	memory  int   // bytes of files, gaps and wanted, about
	handles map[string]*directory
	wanted  []want
}

// want is a file or directory that something else names.
type want struct {
	path string
	row  string
	top  string // of the worktree whose settings named it
	hops int
}

// place is what a directory is to git.
type place int

const (
	ordinary     place = iota
	gitDirectory       // by its name or by its place
	gitWorktrees       // holds git directories
	gitObjects         // holds objects, in directories of two digits and in pack
)

// takeRoot leaves what happened in t.
func (t *taker) takeRoot() {
	if t.stopped != nil {
		t.gaps = append(t.gaps, Gap{Path: Raw(t.root), Why: "not looked at: " + t.stopped.Error(), Below: Raw(t.root)})
		return
	}
	if err := t.ctx.Err(); err != nil {
		t.stop(t.root, err)
		return
	}
	d, err := openRoot(t.root)
	if err == errFile { // a mount of one file
		dir, name := path.Split(t.root)
		if d, err = openRoot(path.Clean(dir)); err == nil {
			defer d.close()
			for _, row := range rowsAt(name) {
				if !strings.Contains(row, "/") {
					t.file(d, name, row)
				}
			}
			t.file(d, name, rowMount)
			return
		}
	}
	if err != nil {
		t.gap(t.root, unlookable(cause(err)))
		return
	}
	t.handles[t.root] = d
	t.walk(d, "", ordinary, 0)
}

// cause is the system call's own error.
func cause(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// gap notes that nothing below a path was looked at.
func (t *taker) gap(where, why string) error {
	if g := (Gap{Path: Raw(where), Why: why, Below: Raw(where)}); slices.Contains(t.gaps, g) {
		return nil // a row and the walk came here both
	}
	t.gaps = append(t.gaps, Gap{Path: Raw(where), Why: why, Below: Raw(where)})
	t.memory += len(where)
	if len(t.gaps) >= gapsMost {
		return t.stop(where, errTooBroken)
	}
	return nil
}

// stop notes, once, that the look at this root ends at a path.
func (t *taker) stop(where string, err error) error {
	if t.stopped == nil {
		t.stopped = err
		t.gaps = append(t.gaps, Gap{Path: Raw(where), Why: "stopped here: " + err.Error(), Below: Raw(t.root)})
	}
	return err
}

// walk looks at d and everything below it. top is the worktree of a git
// directory. The error ends the whole look.
func (t *taker) walk(d *directory, top string, as place, depth int) error {
	var dirs, watched, set []string
	var form shape
	err := d.each(func(name string, kind byte) error {
		if err := t.spend(); err != nil {
			return t.stop(d.path, err)
		}
		switch kind {
		case unix.DT_DIR:
			dirs = append(dirs, name)
		case unix.DT_REG:
			if st, err := d.stat(name); err == nil && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
				set = append(set, name)
			}
		}
		if name == ".git" || rowsAt(name) != nil {
			watched = append(watched, name)
		}
		form.see(name)
		return nil
	})
	if t.stopped != nil {
		return t.stopped
	}
	if err != nil {
		if err := t.gap(d.path, unlookable(err)); err != nil {
			return err
		}
	}
	if (as == ordinary || as == gitObjects) && form.is() {
		as, top = gitDirectory, d.path
		if err := t.record(File{Path: Raw(d.path), Pattern: rowShape, Kind: folder}); err != nil {
			return err
		}
	}
	if as == gitDirectory {
		if err := t.gitDir(d, top); err != nil {
			return err
		}
	}
	// git's own first, lest what an agent piles up beside it ends the look.
	slices.SortFunc(watched, gitFirst)
	for _, name := range watched {
		if name == ".git" {
			if err := t.file(d, name, rowDotGit); err != nil {
				return err
			}
		}
		for _, row := range rowsAt(name) {
			if err := t.row(d, name, row); err != nil {
				return err
			}
		}
	}
	for _, name := range set {
		if err := t.file(d, name, rowMode); err != nil {
			return err
		}
	}
	slices.SortFunc(dirs, gitFirst)
	for _, name := range dirs {
		if as == gitObjects && stored(name) {
			continue
		}
		under, inside := ordinary, ""
		switch {
		case name == ".git":
			under, inside = gitDirectory, d.path
		case as == gitDirectory && name == "worktrees":
			under = gitWorktrees
		case as == gitDirectory && name == "objects":
			under = gitObjects
		case as == gitWorktrees:
			under = gitDirectory
		}
		if err := t.enter(d, name, depth, func(sub *directory) error {
			return t.walk(sub, inside, under, depth+1)
		}); err != nil {
			return err
		}
	}
	return nil
}

// stored says whether git keeps objects, and nothing else, in a directory of
// that name among its objects. There are too many to look at.
func stored(name string) bool {
	return name == "pack" || len(name) == 2 && strings.Trim(name, "0123456789abcdef") == ""
}

func gitFirst(a, b string) int {
	if (a == ".git") != (b == ".git") {
		if a == ".git" {
			return -1
		}
		return 1
	}
	return strings.Compare(a, b)
}

// enter opens a directory below d for f, or notes the gap.
func (t *taker) enter(d *directory, name string, depth int, f func(*directory) error) error {
	if depth >= depthMost {
		return t.gap(d.join(name), fmt.Sprintf("deeper than %d directories", depthMost))
	}
	sub, err := d.open(name)
	if missing(err) {
		return nil
	}
	if err != nil {
		return t.gap(d.join(name), unlookable(err))
	}
	defer sub.close()
	return f(sub)
}

// shape says from the names in a directory whether git would take it for a
// repository.
type shape struct{ head, objects, refs, commondir bool }

func (s *shape) see(name string) {
	switch name {
	case "HEAD":
		s.head = true
	case "objects":
		s.objects = true
	case "refs":
		s.refs = true
	case "commondir":
		s.commondir = true
	}
}

func (s *shape) is() bool { return s.head && (s.objects && s.refs || s.commondir) }

// gitDir looks at what a git directory executes and obeys.
func (t *taker) gitDir(d *directory, top string) error {
	for _, name := range []string{rowCommondir, rowGitdir} {
		if err := t.file(d, name, name); err != nil {
			return err
		}
	}
	for _, name := range []string{rowWorktree, rowConfig} {
		if err := t.config(d, name, name, top, 0); err != nil {
			return err
		}
	}
	for _, pattern := range below {
		if pattern == rowConfig {
			continue
		}
		if err := t.row(d, "", pattern); err != nil {
			return err
		}
	}
	return nil
}

// row looks at what a pattern names below d. Its first part is at first, or is
// to be found if first is empty.
func (t *taker) row(d *directory, first, pattern string) error {
	parts := strings.Split(strings.TrimSuffix(pattern, "/"), "/")
	if first != "" {
		parts[0] = first
	}
	for i := 1; i < len(parts); i++ {
		way := strings.Join(parts[:i], "/")
		st, err := d.stat(way)
		switch {
		case missing(err):
			return nil
		case err != nil, kindOf(st) == symlink:
			return t.file(d, way, pattern)
		case kindOf(st) != folder:
			return nil
		}
	}
	name := strings.Join(parts, "/")
	if strings.HasSuffix(pattern, "/") {
		return t.tree(d, name, pattern, len(parts))
	}
	return t.file(d, name, pattern)
}

// tree looks at name and, if it is a directory, at everything below it.
func (t *taker) tree(d *directory, name, pattern string, depth int) error {
	if err := t.file(d, name, pattern); err != nil {
		return err
	}
	if st, err := d.stat(name); err != nil || kindOf(st) != folder {
		return nil
	}
	return t.enter(d, name, depth, func(sub *directory) error {
		var names []string
		err := sub.each(func(name string, _ byte) error {
			if err := t.spend(); err != nil {
				return t.stop(sub.path, err)
			}
			switch {
			case pattern == rowHooks && strings.HasSuffix(name, ".sample"): // git runs none of those
			case pattern == rowDirenv && packaged(Raw(name)): // they are run knowingly, and are many
			default:
				names = append(names, name)
			}
			return nil
		})
		if t.stopped != nil {
			return t.stopped
		}
		if err != nil {
			return t.gap(sub.path, unlookable(err))
		}
		for _, name := range names {
			if err := t.tree(sub, name, pattern, depth+1); err != nil {
				return err
			}
		}
		return nil
	})
}

// file looks at one thing.
func (t *taker) file(d *directory, name, pattern string) error {
	return t.config(d, name, pattern, "", 0)
}

// config is file for what may be settings of the worktree top, or be named by
// such settings.
func (t *taker) config(d *directory, name, pattern, top string, hops int) error {
	where := d.join(name)
	if _, seen := t.files[where]; seen {
		return nil
	}
	if err := t.ctx.Err(); err != nil {
		return t.stop(where, err)
	}
	f, b, ok := File{}, []byte(nil), false
	if t.read > readsMost {
		f, ok = unread(d, name, pattern)
	} else {
		f, b, ok = look(d, name, pattern)
	}
	if !ok {
		return nil
	}
	t.read += int64(len(b))
	dir := path.Dir(where)
	switch {
	case f.Kind == symlink && pattern == rowDotGit: // the walk finds a repository under any name
	case f.Kind == symlink:
		t.want(want{row: rowLink, top: top, hops: hops + 1}, dir, string(f.Target))
	case f.Sum == "":
	case pattern == rowCommondir && path.Base(path.Dir(dir)) == "worktrees" && strings.TrimSuffix(string(b), "\n") == "../..":
		return nil // as git writes it for every worktree
	case slices.Contains([]string{rowWorktree, rowConfig, rowInclude, rowGitconfig, rowGitmodules}, pattern):
		settings, err := parseConfig(b)
		if err != nil {
			f.Why = err.Error()
		}
		under := worktree(settings, dir, top)
		for _, s := range settings {
			if pattern == rowGitmodules && !strings.HasPrefix(s.name, "submodule.") {
				continue
			}
			if _, spelled, ok := keyRow(s); ok {
				f.Keys = append(f.Keys, Key{Raw(spelled), Raw(s.value), s.bare})
				if pattern != rowGitmodules {
					t.namedBy(s, dir, under, hops)
				}
			}
		}
	case slices.Contains([]string{rowAttributes, rowGitattributes, rowAttributesFile}, pattern):
		f.Keys = drivers(b)
	}
	return t.record(f)
}

// unread is look without reading.
func unread(d *directory, name, pattern string) (File, bool) {
	f := File{Path: Raw(d.join(name)), Pattern: pattern, Kind: unknown}
	st, err := d.stat(name)
	if missing(err) {
		return f, false
	}
	if err != nil {
		f.Why = unlookable(err)
		return f, true
	}
	f.describe(st)
	if f.Kind == regular {
		f.Why = fmt.Sprintf("not read: more than %d MiB were read before it", readsMost>>20)
	}
	if f.Kind == symlink {
		to, _ := d.link(name)
		f.Target = Raw(to)
	}
	return f, true
}

func (t *taker) record(f File) error {
	if _, seen := t.files[string(f.Path)]; seen {
		return nil
	}
	t.memory += fileCosts + len(f.Path) + len(f.Target)
	for _, k := range f.Keys {
		t.memory += keyCosts + len(k.Name) + len(k.Value)
	}
	if t.memory > memoryMost {
		return t.stop(string(f.Path), errTooMuch)
	}
	t.files[string(f.Path)] = f
	return nil
}

// drivers are the drivers that attributes name, each once. Every word is
// looked at, the pattern and comments too, so that none is missed.
func drivers(b []byte) []Key {
	var keys []Key
	for word := range strings.FieldsFuncSeq(string(b), func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' || r == '\n' }) {
		name, value, ok := strings.Cut(word, "=")
		if ok && (name == "filter" || name == "diff" || name == "merge") {
			keys = append(keys, Key{Name: Raw(name), Value: Raw(value)})
		}
	}
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value)) })
	return slices.Compact(keys)
}

// worktree is where git runs commands for settings found in dir: where they say
// so themselves, or top.
func worktree(settings []setting, dir, top string) string {
	for _, s := range settings {
		if s.name == "core.worktree" && s.value != "" {
			top = absolute(dir, s.value)
		}
	}
	return top
}

func absolute(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}
