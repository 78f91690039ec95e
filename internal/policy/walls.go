package policy

import (
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// id names a file whatever path leads to it.
type id struct{ dev, ino uint64 }

func idOf(fi fs.FileInfo) id { return id{stat(fi).Dev, stat(fi).Ino} }

// place is where a path leads: symlinks resolved as far as it exists.
type place struct {
	real string
	info fs.FileInfo // nil if err is not
	err  error       // why there is nothing
	self id          // zero if there is nothing
	up   *place      // the directory that holds it, nil of /
}

// chain are the identities of a place, if it exists, and of every directory
// above that does.
func (p *place) chain() (ids []id) {
	for ; p != nil; p = p.up {
		if p.err == nil {
			ids = append(ids, p.self)
		}
	}
	return ids
}

// places remembers what was looked up.
type places struct {
	table mountTable
	seen  map[string]*place
}

func newPlaces(table mountTable) *places { return &places{table, map[string]*place{}} }

// at is the place of a clean absolute path.
func (ps *places) at(path string) *place {
	if p, ok := ps.seen[path]; ok {
		return p
	}
	p := &place{real: path}
	if path != "/" {
		dir := parent(path)
		p.up = ps.at(dir)
		if p.up.real != dir {
			p.real = strings.TrimSuffix(p.up.real, "/") + path[strings.LastIndexByte(path, '/'):]
		}
		if p.err = p.up.err; p.err != nil {
			return p // not kept: a path can go on long after its end
		}
	}
	switch fi, err := os.Lstat(p.real); {
	case err != nil:
		p.err = err
	case fi.Mode()&fs.ModeSymlink == 0:
		p.info, p.self = fi, idOf(fi)
	default:
		if target, err := filepath.EvalSymlinks(p.real); err != nil {
			p.err = err
		} else {
			p = ps.at(target)
		}
	}
	ps.seen[path] = p
	return p
}

// written is the place of a path as a person wrote it. It is not cleaned: a ..
// after a symlink is the kernel's to resolve.
func (ps *places) written(path string) *place {
	if clean := filepath.Clean(path); !strings.Contains(path, "..") {
		return ps.at(clean)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return &place{real: ps.at(filepath.Clean(path)).real, err: err}
	}
	return ps.at(real)
}

// aliases are the other paths at which the file at this real path is found,
// because what holds it is mounted more than once.
func (ps *places) aliases(real string) (others []string) {
	self := ps.at(real)
	for _, other := range ps.table.others(real) {
		// It may be hidden by what is mounted over it.
		if at := ps.at(other); self.err == nil && at.err == nil && at.real == other && at.self == self.self {
			others = append(others, other)
		}
	}
	return others
}

// within reports whether path is dir or lies below it.
func within(dir, path string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

// upward are a clean absolute path and every directory above it.
func upward(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for ; yield(path) && path != "/"; path = parent(path) {
		}
	}
}

// parent is the directory of a clean absolute path, without cleaning it again.
func parent(path string) string { return path[:max(1, strings.LastIndexByte(path, '/'))] }

// wall is one row of guards on this machine.
type wall struct {
	path   string // of the table, ~ expanded
	real   string // symlinks resolved as far as it exists
	self   id     // zero if it does not exist
	chain  []id   // of everything on the way to it that exists
	reach  reach
	reason string
}

// walls are the rows in order, and what finds the first one that meets a path
// or an identity: what is a row's own, what holds it, and what it holds.
type walls struct {
	rows               []wall
	own, above, around index
}

// index is the first row by path and by identity.
type index struct {
	paths map[string]int
	ids   map[id]int
}

func newIndex() index { return index{map[string]int{}, map[id]int{}} }

func (x index) id(i id, row int) {
	if i != (id{}) {
		note(x.ids, i, row)
	}
}

// first is the first row before that one which any of these meet, that one if
// none does.
func (x index) first(row int, paths iter.Seq[string], ids ...id) int {
	for p := range paths {
		if r, ok := x.paths[p]; ok {
			row = min(row, r)
		}
	}
	for _, i := range ids {
		if r, ok := x.ids[i]; ok {
			row = min(row, r)
		}
	}
	return row
}

func wallsOf(rows []wall) walls {
	ws := walls{rows, newIndex(), newIndex(), newIndex()}
	for i, w := range rows {
		ws.own.id(w.self, i)
		for _, p := range []string{w.path, w.real} {
			note(ws.own.paths, p, i)
			for dir := range upward(p) {
				note(ws.above.paths, dir, i)
			}
			if w.reach == around {
				note(ws.around.paths, p, i)
			}
		}
		for _, c := range w.chain {
			ws.above.id(c, i)
		}
		if w.reach == around {
			ws.around.id(w.self, i)
		}
	}
	return ws
}

// only are the walls whose rows keep.
func (ws walls) only(keep func(wall) bool) walls {
	return wallsOf(slices.DeleteFunc(slices.Clone(ws.rows), func(w wall) bool { return !keep(w) }))
}

// walls are the rows of guards as they stand on this machine.
func (ps *places) walls(env Env) walls {
	var rows []wall
	add := func(path string, r reach, reason string) {
		path = filepath.Clean(path)
		at := ps.at(path)
		rows = append(rows, wall{path: path, real: at.real, self: at.self, chain: at.chain(), reach: r, reason: reason})
	}
	xdg := []struct{ std, now string }{{"~/.config", env.ConfigHome}, {"~/.local/share", env.DataHome}}
	for _, g := range guards {
		rest, personal := strings.CutPrefix(g.path, "~")
		if !personal {
			add(g.path, g.reach, g.reason)
			continue
		}
		for _, home := range env.homes() {
			add(home+rest, g.reach, g.reason)
		}
		for _, x := range xdg {
			if rest, ok := strings.CutPrefix(g.path, x.std+"/"); ok && filepath.IsAbs(x.now) {
				add(x.now+"/"+rest, g.reach, g.reason)
			}
		}
		if rest != "" {
			add("/root"+rest, g.reach, g.reason)
		}
	}
	for _, dir := range env.Own {
		add(dir, around, ownOther)
	}
	return wallsOf(rows)
}

// site is a path on its way to become a mount.
type site struct {
	spellings []string // absolute and clean: as written, and resolved
	self      id       // zero if it does not exist
	chain     []id
}

// verdict is the reason not to mount a site, empty if there is none. An exact
// one says what the site is, any other what it holds or where it lies.
func (ws walls) verdict(s site) (reason string, exact bool) {
	none := len(ws.rows)
	if i := ws.own.first(none, slices.Values(s.spellings), s.self); i < none {
		return ws.rows[i].reason, true
	}
	above := ws.above.first(none, slices.Values(s.spellings), s.self)
	below := ws.around.first(none, slices.Values(s.spellings), s.chain...)
	for _, p := range s.spellings {
		below = ws.around.first(below, upward(p))
	}
	switch i := min(above, below); {
	case i == none:
		return "", false
	case i == above:
		return fmt.Sprintf("it holds %s (%s)", ws.rows[i].path, ws.rows[i].reason), false
	default:
		return fmt.Sprintf("it lies in %s (%s)", ws.rows[i].path, ws.rows[i].reason), false
	}
}
