package wayback

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// interval is how often a Watcher looks: a trap has to stay about as long as a
// person takes between two commands, and a look costs a few system calls.
const interval = 500 * time.Millisecond

// Watcher remembers what cannot be shielded and was there, if only for a
// moment: a .git that was not, or was another; a commondir in a git directory.
// It only asks for the inodes of a handful of paths, those of the repositories
// that were at the top of the roots when it began. Something that comes and
// goes between two looks is not seen.
type Watcher struct {
	roots []string

	mu    sync.Mutex
	spots []spot
	seen  map[string]Finding
}

// spot is one path below a root, and what was there at first.
type spot struct {
	root, name, pattern string
	first               inode
}

// inode tells one file and one state of it from others. The zero value is no
// file.
type inode struct {
	kind     string
	dev, ino uint64
	changed  int64 // of what is no directory: those change with every name in them
}

// Watch begins to look at the top of roots, and ends with ctx.
func Watch(ctx context.Context, roots []string) *Watcher {
	w := &Watcher{roots: slices.Clone(roots), seen: map[string]Finding{}}
	for _, root := range w.roots {
		w.begin(root)
	}
	go func() {
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

// Seen looks once more and returns what was seen so far, in the order to print.
func (w *Watcher) Seen() []Finding {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	return ordered(slices.Collect(maps.Values(w.seen)))
}

// begin notes what is where at first.
func (w *Watcher) begin(root string) {
	d, err := openRoot(root)
	if err != nil {
		w.blind(root, err)
		return
	}
	defer d.close()
	s := shielder{top: d, bound: map[string]bool{}}
	// A refusal ends the list early; Shield told it, and nothing started.
	s.repository()
	if s.dirs == nil {
		s.dirs = []string{""} // the root could become a git directory
	}
	w.add(d, ".git", rowDotGit)
	for _, dir := range s.dirs {
		w.add(d, path.Join(dir, rowCommondir), rowCommondir)
	}
}

func (w *Watcher) add(d *directory, name, pattern string) {
	at, err := inodeAt(d, name)
	if err != nil {
		w.blind(d.join(name), err)
		return
	}
	w.spots = append(w.spots, spot{d.path, name, pattern, at})
}

func inodeAt(d *directory, name string) (inode, error) {
	st, err := d.stat(name)
	if missing(err) || err == unix.ENOTDIR {
		return inode{}, nil
	}
	if err != nil {
		return inode{}, err
	}
	i := inode{kind: kindOf(st), dev: st.Dev, ino: st.Ino}
	if i.kind != folder {
		i.changed = st.Ctim.Nano()
	}
	return i, nil
}

func (w *Watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, root := range w.roots {
		d, err := openRoot(root)
		if err != nil {
			w.blind(root, err)
			continue
		}
		for _, s := range w.spots {
			if s.root != root {
				continue
			}
			now, err := inodeAt(d, s.name)
			switch {
			case err != nil:
				w.blind(d.join(s.name), err)
			case now != s.first:
				w.note(d, s, now)
			}
		}
		d.close()
	}
}

// note keeps the first thing seen at a path, unless a later one is there and it
// was not.
func (w *Watcher) note(d *directory, s spot, now inode) {
	f := Finding{Path: d.join(s.name), Reason: rowOf(s.pattern).Reason, First: true, rank: rankFirst}
	switch {
	case now == inode{}:
		f.What = "was gone while the sandbox ran"
	case s.first == inode{}:
		f.What = "was there while the sandbox ran"
	default:
		f.What = "was another while the sandbox ran"
	}
	if now.kind != "" && now.kind != regular {
		f.What += ", " + now.kind
	}
	if now.kind == symlink {
		f.Target, _ = d.link(s.name)
	}
	if old, ok := w.seen[f.Path]; !ok || old.What == "was gone while the sandbox ran" {
		w.seen[f.Path] = f
	}
}

// blind is what could not be looked at.
func (w *Watcher) blind(where string, err error) {
	if _, ok := w.seen[where]; !ok {
		w.seen[where] = Finding{Path: where, What: "could not be looked at while the sandbox ran", Reason: unlookable(cause(err)), First: true, rank: rankFirst}
	}
}
