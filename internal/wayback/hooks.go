package wayback

import (
	"cmp"
	"context"
	"path"
	"slices"
)

// Named says what changed since a snapshot, below its roots, of what paths lead to
// now: what the hooks of a policy would run. What cannot be told is a finding too,
// also where a path is a whole root, whatever else lies there and whichever row of
// the table is the first to name it.
func Named(ctx context.Context, before Snapshot, paths []string) ([]Finding, error) {
	if len(before.Roots) == 0 || len(paths) == 0 {
		return nil, nil
	}
	t := taker{budget: budget{ctx: ctx, left: entriesMost}, files: map[string]File{}, handles: map[string]*directory{}, few: true}
	t.Roots, t.Also = before.Scope().Roots, paths
	after, err := t.take()
	if err != nil {
		return nil, err
	}
	now := byPath(after.Files)
	then := before
	then.Files = slices.DeleteFunc(slices.Clone(before.Files), func(f File) bool {
		_, led := now[f.Path]
		return !led && !slices.ContainsFunc(paths, func(p string) bool { return within(f.Path, Raw(p)) })
	})
	return Compare(then, after), nil
}

// Since is s where an older snapshot did not look, and that where it did: the two
// are one to compare with what comes later.
func (s Snapshot) Since(older Snapshot) Snapshot {
	if len(older.Roots) == 0 {
		return s
	}
	out := Snapshot{Version: version, Home: cmp.Or(s.Home, older.Home)}
	out.Roots, out.Also = slices.Clone(older.Roots), slices.Clone(older.Also)
	for _, r := range s.Roots {
		if !slices.Contains(out.Roots, r) {
			out.Roots = append(out.Roots, r)
		}
	}
	for _, p := range s.Also {
		if !slices.Contains(out.Also, p) {
			out.Also = append(out.Also, p)
		}
	}
	old := func(p Raw) bool { return slices.ContainsFunc(older.Roots, func(r Raw) bool { return within(p, r) }) }
	out.Files = append(slices.Clone(older.Files), slices.DeleteFunc(slices.Clone(s.Files), func(f File) bool { return old(f.Path) })...)
	slices.SortFunc(out.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	out.Incomplete = append(slices.Clone(older.Incomplete), slices.DeleteFunc(slices.Clone(s.Incomplete), func(g Gap) bool { return old(g.Below) })...)
	return out
}

// single looks at those roots that are one file, if they are wanted.
func (t *taker) single() {
	for _, root := range t.Roots {
		if t.stopped != nil || !slices.ContainsFunc(t.wanted, func(w want) bool { return w.path == root }) {
			continue
		}
		if d, err := openRoot(root); err != errFile {
			if err == nil {
				d.close()
			}
			continue // it was looked at
		}
		dir, name := path.Split(root)
		d, err := openRoot(path.Clean(dir))
		if err != nil {
			t.gap(root, unlookable(cause(err)))
			continue
		}
		t.file(d, name, rowAlso)
		d.close()
	}
}
