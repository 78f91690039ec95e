package wayback

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// interval is how often a Watcher looks. The kernel's notices wait for it: they
// hold what came and went in between.
const interval = 500 * time.Millisecond

// Watcher remembers what cannot be shielded and was there, if only for a
// moment: a .git that was not, or was another, a commondir in a git directory;
// and every shield that was lost. The kernel tells it what happens to those
// names, and it looks at them besides. It knows the repositories at the top of
// the roots, their submodules and their worktrees, as they were when it began;
// one that comes and goes deeper down is not seen.
type Watcher struct {
	roots   []string
	notices *notices

	mu    sync.Mutex
	spots []spot
	at    map[string][]int // spots by their path
	in    map[string][]int // and by the directory that holds them
	seen  map[string]Finding
}

// spot is one path below a root, and what was there at first.
type spot struct {
	root, name, pattern string
	first               inode
	shield              *Bind // of what is bound
}

func (s spot) path() string { return join(s.root, s.name) }

// inode tells one file and one state of it from others. The zero value is no
// file.
type inode struct {
	kind     string
	dev, ino uint64
	// sum or, if it cannot be read, the time of the last change, of what is no
	// directory: those change with every name in them. Git writes some of these
	// files again as they were.
	sum     string
	changed int64
}

// Watch begins to look at the top of roots and at shields, and ends with ctx.
// What happened before that is still told after it.
func Watch(ctx context.Context, roots []string, shields []Bind) *Watcher {
	w := &Watcher{roots: slices.Clone(roots), at: map[string][]int{}, in: map[string][]int{}, seen: map[string]Finding{}}
	var err error
	if w.notices, err = openNotices(); err != nil {
		w.polled(err)
	}
	for _, root := range w.roots {
		w.begin(root, shields)
	}
	for _, b := range shields {
		if !slices.ContainsFunc(w.roots, func(r string) bool { return within(Raw(b.Path), Raw(r)) }) {
			w.note(Finding{Path: b.Path, What: "is bound, but in no directory that is looked at", Reason: shieldLost, First: true, rank: rankFirst, row: rowShield, apart: true})
		}
	}
	go func() {
		defer w.end()
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.look()
			}
		}
	}()
	return w
}

// end takes what the kernel has told so far.
func (w *Watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
	w.notices.close()
	w.notices = nil
}

// Seen looks once more and returns what was seen so far, in the order to print.
func (w *Watcher) Seen() []Finding {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	return ordered(placed(slices.Collect(maps.Values(w.seen)), w.roots))
}

// begin notes what is where at first.
func (w *Watcher) begin(root string, shields []Bind) {
	d, err := openRoot(root)
	if err == errFile { // it holds no name
		return
	}
	if err != nil {
		w.note(unseen(root, err))
		return
	}
	defer d.close()
	s := shielder{top: d, bound: map[string]bool{}}
	// A refusal ends the list early; Shield told it, and nothing started.
	s.repository()
	if s.dirs == nil {
		s.dirs = []string{""} // the root could become a git directory
	}
	// The notices come first, so that nothing is missed between.
	w.add(d, ".git", rowDotGit)
	for _, dir := range s.dirs {
		w.add(d, path.Join(dir, rowCommondir), rowCommondir)
		if path.Base(path.Dir(dir)) == "worktrees" {
			w.add(d, path.Join(dir, rowGitdir), rowGitdir)
		}
		if name, ok := dotGitOf(d, dir); ok {
			w.add(d, name, rowDotGit)
		}
	}
	for i := range shields {
		b := shields[i]
		if name, ok := rel(root, b.Path); ok && name != "" {
			w.attend(d, path.Dir(name))
			w.keep(spot{root: root, name: name, pattern: rowShield, shield: &b})
		}
	}
}

// dotGitOf is the .git file that leads to the git directory of a submodule or
// worktree, if it is below the root.
func dotGitOf(d *directory, dir string) (name string, ok bool) {
	if b, _, err := d.read(path.Join(dir, rowGitdir)); err == nil && path.Base(path.Dir(dir)) == "worktrees" {
		return rel(d.path, absolute(d.join(dir), strings.TrimRight(string(b), "\n")))
	}
	b, _, err := d.read(path.Join(dir, rowConfig))
	if err != nil {
		return "", false
	}
	settings, _ := parseConfig(b) // what is before a mistake, git obeys too
	if top := worktree(settings, d.join(dir), ""); top != "" {
		return rel(d.path, join(top, ".git"))
	}
	return "", false
}

func (w *Watcher) add(d *directory, name, pattern string) {
	if slices.ContainsFunc(w.spots, func(s spot) bool { return s.root == d.path && s.name == name }) {
		return
	}
	w.attend(d, path.Dir(name))
	at, err := inodeAt(d, name)
	if err != nil {
		w.note(unseen(d.join(name), err))
		return
	}
	s := spot{root: d.path, name: name, pattern: pattern, first: at}
	w.keep(s)
	// git itself writes the gitdir of a worktree once a day.
	if at.kind == regular && pattern != rowGitdir && w.notices != nil {
		if err := w.notices.file(d, name, s.path()); err != nil && !missing(err) {
			w.polled(err)
		}
	}
}

func (w *Watcher) keep(s spot) {
	where, i := s.path(), len(w.spots)
	w.spots = append(w.spots, s)
	w.at[where] = append(w.at[where], i)
	w.in[path.Dir(where)] = append(w.in[path.Dir(where)], i)
}

// attend asks the kernel for what happens to names in a directory.
func (w *Watcher) attend(d *directory, dir string) {
	if w.notices == nil {
		return
	}
	if err := w.notices.dir(d, dir); err != nil && !missing(err) && err != unix.ENOTDIR {
		w.polled(err)
	}
}

func inodeAt(d *directory, name string) (inode, error) {
	st, err := d.stat(name)
	if missing(err) || err == unix.ENOTDIR {
		return inode{}, nil
	}
	if err != nil {
		return inode{}, err
	}
	i := inode{kind: kindOf(st)}
	switch i.kind {
	case regular:
		b, st, err := d.read(name)
		if missing(err) {
			return inode{}, nil
		}
		if err == nil {
			i.sum = digest(b)
			return i, nil
		}
		i.changed = st.Ctim.Nano()
	case folder:
	default:
		i.changed = st.Ctim.Nano()
	}
	i.dev, i.ino = st.Dev, st.Ino
	return i, nil
}

// look takes the notices, and then looks at every spot.
func (w *Watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
	for _, root := range w.roots {
		d, err := openRoot(root)
		if err == errFile && !slices.ContainsFunc(w.spots, func(s spot) bool { return s.root == root }) {
			continue
		}
		if err != nil {
			w.note(unseen(root, err))
			continue
		}
		for _, s := range w.spots {
			if s.root == root {
				w.lookAt(d, s)
			}
		}
		d.close()
	}
}

func (w *Watcher) lookAt(d *directory, s spot) {
	if s.shield != nil {
		if f, lost := s.shield.lost(d, s.name); lost && !w.told(path.Dir(s.path()), s.root) {
			w.note(f)
		}
		return
	}
	now, err := inodeAt(d, s.name)
	if err != nil {
		w.note(unseen(s.path(), err))
		return
	}
	if now == s.first {
		return
	}
	f := s.finding(now != inode{})
	if now.kind != "" && now.kind != regular {
		f.What += ", " + now.kind
	}
	if now.kind == symlink {
		f.Target, _ = d.link(s.name)
	}
	w.note(f)
}

// told says whether something was told of a directory or of one that holds it,
// up to the root.
func (w *Watcher) told(dir, root string) bool {
	for ; dir != root && dir != "/"; dir = path.Dir(dir) {
		if _, ok := w.seen[dir]; ok {
			return true
		}
	}
	return false
}

const (
	wasGone    = "was gone while the sandbox ran"
	wasThere   = "was there while the sandbox ran"
	wasOther   = "was another while the sandbox ran"
	wasWritten = "was written while the sandbox ran"
	wasPut     = "was replaced while the sandbox ran"
	wasAside   = "was in a directory that was put aside while the sandbox ran"
	onlyPolled = "was watched only twice a second while the sandbox ran"
)

func (s spot) finding(there bool) Finding {
	f := Finding{Path: s.path(), What: wasOther, Reason: rowOf(s.pattern).Reason, First: true, rank: rankFirst, row: s.pattern}
	switch {
	case !there:
		f.What = wasGone
	case s.first == inode{}:
		f.What = wasThere
	}
	return f
}

// note keeps the first thing seen at a path, unless a later one says more.
func (w *Watcher) note(f Finding) {
	old, ok := w.seen[f.Path]
	if !ok || f.says() > old.says() || f.says() == old.says() && strings.HasPrefix(f.What, old.What+",") {
		w.seen[f.Path] = f
	}
}

// says is how much a finding of a Watcher tells.
func (f Finding) says() int {
	switch {
	case f.apart:
		return 3
	case f.What == wasGone || f.What == wasAside:
		return 0
	case f.What == wasPut || f.What == wasWritten:
		return 1
	}
	return 2
}

// polled is what to say where the kernel's notices are not whole.
func (w *Watcher) polled(err error) {
	if len(w.roots) == 0 {
		return
	}
	w.seen["\x00"] = Finding{Path: w.roots[0], What: onlyPolled, Reason: "what comes and goes in between was not seen: " + err.Error(),
		First: true, rank: rankFirst, row: rowUnseen, apart: true}
}

// drain notes what the kernel has told.
func (w *Watcher) drain() {
	if w.notices == nil {
		return
	}
	err := w.notices.each(func(n notice) {
		which := w.at[n.path]
		if n.lost {
			which = w.in[n.path]
		}
		for _, i := range which {
			w.noticed(w.spots[i], n)
		}
	})
	if err != nil {
		w.polled(err)
	}
}

// noticed is about one spot.
func (w *Watcher) noticed(s spot, n notice) {
	switch {
	case n.lost && (n.path == s.root || w.told(n.path, s.root)):
		// it was told why, or will be
	case s.shield != nil && n.gone:
		w.note(s.shield.finding("was taken away on this machine while the sandbox ran"))
	case s.shield != nil:
		w.note(s.shield.finding("was replaced on this machine while the sandbox ran"))
	case n.lost:
		f := s.finding(true)
		f.What = wasAside
		w.note(f)
	case n.written:
		f := s.finding(true)
		f.What = wasWritten
		w.note(f)
	case n.gone && s.first == inode{}:
	default:
		f := s.finding(!n.gone)
		if f.What == wasOther { // or it was put back
			f.What = wasPut
		}
		w.note(f)
	}
}

var (
	errOverflow = errors.New("more happened than the kernel keeps")
	errWatches  = errors.New("there are too many directories to watch")
)
