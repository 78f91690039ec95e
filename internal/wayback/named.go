package wayback

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// linksMost is how many symbolic links may be on the way to what is named, as
// the kernel itself has it.
const linksMost = 40

// namedBy wants the files that an executing setting names, found in dir.
func (t *taker) namedBy(s setting, dir, top string, hops int) {
	section, _, key, _ := split(s.name)
	w := want{top: top, hops: hops + 1}
	switch {
	case key == "path" && (section == "include" || section == "includeif"):
		w.row = rowInclude
		t.want(w, dir, s.value)
	case s.name == "core.hookspath":
		w.row = rowHooksPath
		t.want(w, top, s.value)
	case s.name == "core.attributesfile":
		w.row = rowAttributesFile
		t.want(w, top, s.value)
	case s.name == "core.worktree":
	default:
		w.row = rowCommand
		value := s.value
		for _, home := range []string{"$HOME/", "${HOME}/"} {
			value = strings.ReplaceAll(value, home, "~/")
		}
		words := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`;|&()<>=!{}$", r) })
		for i, word := range words {
			if i == wordsMost {
				break
			}
			t.want(w, top, word)
		}
	}
}

// want notes a path for when the trees have been looked at. One in the home of
// somebody else, or of a worktree that is not known, cannot be told.
func (t *taker) want(w want, dir, name string) {
	if rest, ok := strings.CutPrefix(name, "~/"); ok && t.Home != "" {
		name = join(t.Home, rest)
	}
	if name == "" || w.hops > hopsMost || !path.IsAbs(name) && (dir == "" || strings.HasPrefix(name, "~")) {
		return
	}
	if !path.IsAbs(name) {
		if name = join(dir, name); t.below(dir) {
			name = path.Clean(name) // no link is followed there anyway
		}
	}
	if len(name) >= unix.PathMax { // the kernel takes no such name
		return
	}
	w.path = t.settled(name)
	if t.memory += len(w.path); t.memory <= memoryMost && len(t.wanted) < wantedMost {
		t.wanted = append(t.wanted, w)
	}
}

// settled is a clean path to what an absolute one leads to, as far as its way is
// outside of the roots: symbolic links are followed there, which no agent can
// write, and not below a root.
func (t *taker) settled(name string) string {
	at, rest, links := "/", name, 0
	for rest != "" {
		if t.below(at) {
			break
		}
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := join(at, part)
		if to, err := os.Readlink(next); err == nil && !slices.Contains(t.Roots, next) {
			if links++; links > linksMost {
				return path.Clean(name)
			}
			if rest = to + "/" + rest; path.IsAbs(to) {
				at = "/"
			}
			continue
		}
		at = next
	}
	return path.Join(at, rest)
}

// below says whether a clean path is a root or below one.
func (t *taker) below(p string) bool {
	return slices.ContainsFunc(t.Roots, func(root string) bool { return within(Raw(p), Raw(root)) })
}

// person wants what the person's own settings of git name below the roots, and
// those settings themselves where they are links to there.
func (t *taker) person() {
	if t.Home == "" || t.stopped != nil {
		return
	}
	t.want(want{row: rowAttributesFile}, "", join(t.Home, ".config/git/attributes"))
	for _, name := range []string{".config/git/config", ".gitconfig"} {
		where := t.settled(join(t.Home, name))
		if t.below(where) {
			// It is the agent's to write; what it names is read with it.
			t.want(want{row: rowInclude}, "", where)
			continue
		}
		t.settings(where, path.Dir(join(t.Home, name)))
	}
}

// settings reads a file of settings outside of the roots, and nothing that it
// includes. Its dir is where it is for git.
func (t *taker) settings(where, dir string) {
	d, err := openRoot(path.Dir(where))
	if err != nil {
		return // git cannot read it either, or there is none
	}
	defer d.close()
	b, _, err := d.read(path.Base(where))
	switch {
	case missing(err):
		return
	case err != nil:
		t.gap(where, "your own settings of git, which may name files of the agent's: "+unlookable(err))
		return
	}
	settings, _ := parseConfig(b) // what is before a mistake, git obeys too
	for _, s := range settings {
		if _, _, ok := keyRow(s); !ok {
			continue
		}
		for _, root := range t.Roots { // a worktree that a name may be relative to
			t.namedBy(s, dir, root, 0)
		}
	}
}

// named looks at the wanted, and at what those want. Only what is below a root
// can be changed from inside.
func (t *taker) named() {
	for i := 0; i < len(t.wanted) && t.stopped == nil; i++ {
		w := t.wanted[i]
		for _, root := range slices.Sorted(maps.Keys(t.handles)) {
			name, ok := rel(root, w.path)
			if !ok {
				continue
			}
			d := t.handles[root]
			t.root = root
			if name == "" {
				if w.row != rowCommand {
					t.gap(root, "git's settings, a hook of the policy or a link name the whole directory, of which only names of the table are watched")
				}
				continue
			}
			if t.byLink(d, name, w) {
				continue
			}
			switch w.row {
			case rowHooksPath, rowLink, rowAlso:
				t.tree(d, name, w.row, strings.Count(name, "/"))
			case rowCommand:
				if st, err := d.stat(name); err == nil && kindOf(st) == folder {
					continue
				}
				t.file(d, name, w.row)
			default:
				t.config(d, name, w.row, w.top, w.hops)
			}
		}
	}
	if len(t.wanted) == wantedMost && t.stopped == nil {
		for root := range t.handles {
			t.gap(root, fmt.Sprintf("settings and links name more than %d files", wantedMost))
		}
	}
}

// byLink says whether the way to name has a symbolic link in it. That is
// watched, and what it leads to is wanted.
func (t *taker) byLink(d *directory, name string, w want) bool {
	for i, c := range []byte(name) {
		if c != '/' {
			continue
		}
		way := name[:i]
		st, err := d.stat(way)
		if err != nil {
			return false
		}
		if kindOf(st) != symlink {
			continue
		}
		f, _, ok := look(d, way, w.row)
		if !ok || f.Kind != symlink {
			return false
		}
		t.record(f)
		if f.Target == "" {
			return true
		}
		w.hops++
		t.want(w, path.Dir(d.join(way)), string(f.Target)+name[i:])
		return true
	}
	return false
}
