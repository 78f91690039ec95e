package wayback

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Finding is one thing that the host would later execute and that changed, or
// that could not be told. Its strings may come from a sandbox, byte for byte;
// String makes them safe to show.
type Finding struct {
	Path   string
	What   string // what became of it: "new", "changed", "is now a FIFO", …
	Target string // where it points, if it is a symbolic link now
	Reason string // why it matters
	// First is what cannot be shielded and sends the host's git elsewhere.
	First bool

	// Key is the setting of a git configuration that changed, Old and New its
	// values in the order of the file; none is no such setting.
	Key      string
	Old, New []string

	rank int
	// row is of which kind a finding is: a pattern of the table, or a word.
	row string
	// nested is whether it is about a repository that is not at the top of a
	// root.
	nested bool
	// apart is a finding to be told beside others of the same path.
	apart bool
}

// The order of findings; within one it is by path and key.
const (
	rankFirst = iota
	rankGap   // whatever was not seen may be of any rank
	rankHook
	rankKey
	rankRest
	rankStands  // a gap that was there before
	rankPackage // in installed packages: many, and rarely obeyed
)

// Words that more than one place says.
const (
	isNew      = "new"
	isChanged  = "changed"
	isRemoved  = "removed"
	isRunnable = "is now executable"
	isSet      = "is now set-user-ID or set-group-ID"
	notSeen    = "was not looked at before"
	notLooked  = "was not looked at"
	notEither  = "was not looked at before either"
)

// Compare says what changed from one snapshot to a later one of the same
// directories, and what of the later one could not be told, in the order to
// print. Nothing is left out of it silently: a place that either snapshot did
// not look at is a finding.
func Compare(before, after Snapshot) []Finding {
	var out []Finding
	var stands []Gap
	for _, g := range after.Incomplete {
		if slices.Contains(before.Incomplete, g) {
			stands = append(stands, g)
			continue
		}
		out = append(out, g.finding(notLooked))
	}
	if len(stands) > 0 {
		f := stands[0].finding(notEither)
		if f.rank = rankStands; len(stands) > 1 {
			f.What += fmt.Sprintf(", nor were %d other places", len(stands)-1)
		}
		out = append(out, f)
	}
	for _, r := range before.Roots { // of other directories than were asked for
		if !slices.ContainsFunc(after.Roots, func(now Raw) bool { return within(r, now) }) {
			out = append(out, Gap{Path: r, Why: "the later look was not at this directory"}.finding(notLooked))
		}
	}
	then, now := byPath(before.Files), byPath(after.Files)
	for p, a := range now {
		b, ok := then[p]
		if !ok {
			what := isNew
			if !before.looked(p) {
				what = notSeen
			}
			out = append(out, appeared(a, what)...)
			if set(a) && a.Pattern != rowMode {
				out = append(out, a.setFinding())
			}
			continue
		}
		out = append(out, changed(b, a)...)
	}
	for p, b := range then {
		if _, ok := now[p]; !ok && after.looked(p) {
			out = append(out, removed(b)...)
		}
	}
	var roots []string
	for _, r := range after.Roots {
		roots = append(roots, string(r))
	}
	return ordered(placed(gathered(out), roots))
}

func (g Gap) finding(what string) Finding {
	return Finding{Path: string(g.Path), What: what, Reason: g.Why, rank: rankGap, row: rowUnseen}
}

// bulkMost is how many files of a directory of programs are told one by one.
const bulkMost = 3

// gathered makes one finding of many in the same directory of programs, which
// tools fill all at once.
func gathered(findings []Finding) []Finding {
	bulk := map[string][]Finding{}
	var out []Finding
	for _, f := range findings {
		if dir := f.bulk(); dir != "" {
			bulk[dir] = append(bulk[dir], f)
		} else {
			out = append(out, f)
		}
	}
	for dir, all := range bulk {
		if len(all) <= bulkMost {
			out = append(out, all...)
			continue
		}
		f := slices.MinFunc(all, func(a, b Finding) int { return cmp.Compare(a.rank, b.rank) })
		f.Path, f.Target, f.What = dir, "", fmt.Sprintf("%d things in it are new, changed or removed", len(all))
		out = append(out, f)
	}
	return out
}

// bulk is the directory of programs that a finding is in.
func (f Finding) bulk() string {
	switch f.row {
	case rowDirenv, rowVenv, rowPlainVenv:
		name := "/" + f.row
		if i := strings.LastIndex(f.Path, name); i >= 0 {
			return f.Path[:i+len(name)-1]
		}
	}
	return ""
}

// placed says of findings which are in a repository that is at the top of no
// root.
func placed(findings []Finding, roots []string) []Finding {
	for i := range findings {
		f := &findings[i]
		f.nested = !slices.ContainsFunc(roots, func(root string) bool {
			name, ok := rel(root, f.Path)
			first, _, more := strings.Cut(name, "/")
			return ok && (first == ".git" || !more)
		})
	}
	return findings
}

// Odd is what a snapshot found in a place of the table and could not read: no
// regular file, too large, unreadable, or not to be understood.
func (s Snapshot) Odd() []Finding {
	var out []Finding
	for _, g := range s.Incomplete {
		out = append(out, g.finding(notLooked))
	}
	for _, f := range s.Files {
		if f.but() != "" && !(f.Kind == folder && f.way()) {
			out = append(out, f.finding(f.is()))
		}
	}
	return ordered(out)
}

// Join adds what was seen for a moment to a comparison, in the order to print.
// What the comparison tells of the same path comes first too, and is enough but
// where a shield was lost.
func Join(findings, seen []Finding) []Finding {
	out := slices.Clone(findings)
	for _, s := range seen {
		i := slices.IndexFunc(out, func(f Finding) bool { return f.Path == s.Path && f.What != isRemoved })
		if i >= 0 && !(s.apart && s.row == rowUnseen) {
			out[i].First, out[i].rank = true, rankFirst
		}
		if i < 0 || s.apart {
			out = append(out, s)
		}
	}
	return ordered(out)
}

func byPath(files []File) map[Raw]File {
	m := make(map[Raw]File, len(files))
	for _, f := range files {
		m[f.Path] = f
	}
	return m
}

// looked says whether a path that is not among the files was not there.
func (s *Snapshot) looked(p Raw) bool {
	inside := func(r Raw) bool { return within(p, r) }
	return slices.ContainsFunc(s.Roots, inside) && !slices.ContainsFunc(s.Incomplete, func(g Gap) bool { return inside(g.Below) })
}

// appeared is what to say of a file that was not there.
func appeared(f File, what string) []Finding {
	switch {
	case f.Kind == folder && f.way():
		return nil // its files are told
	case f.Pattern == rowMode && what == isNew: // the file may be old
		return []Finding{f.finding(isSet)}
	case f.Kind == regular && f.Why == "" && f.executes():
		return keys(File{Path: f.Path, Pattern: f.Pattern}, f)
	case f.Kind == regular && f.Why == "" && f.attributes() && len(f.Keys) == 0:
		return nil
	}
	out := []Finding{f.finding(what + f.but())}
	if f.executes() {
		out = append(out, keys(File{Path: f.Path, Pattern: f.Pattern}, f)...)
	}
	return out
}

func removed(f File) []Finding {
	if f.harmlessGone() || f.Kind == folder && f.way() || f.attributes() && f.Why == "" && len(f.Keys) == 0 {
		return nil
	}
	f.Target = ""
	if f.executes() && f.Kind == regular && f.Why == "" {
		return keys(f, File{Path: f.Path, Pattern: f.Pattern})
	}
	return []Finding{f.finding(isRemoved)}
}

// harmlessGone says of what nothing is left to tell once it is gone.
func (f File) harmlessGone() bool {
	switch f.Pattern {
	case rowMode, rowRebase, rowApply, rowSequencer, rowAlternates:
		return true
	}
	return false
}

func changed(b, a File) []Finding {
	if set(a) && !set(b) {
		return append([]Finding{a.setFinding()}, differs(b, a)...)
	}
	return differs(b, a)
}

func (f File) setFinding() Finding {
	f.Pattern = rowMode
	return f.finding(isSet)
}

func set(f File) bool { return f.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 }

func differs(b, a File) []Finding {
	if a.Kind == folder && b.Kind == folder {
		return nil
	}
	if b.Kind != a.Kind {
		return append([]Finding{a.finding("is now " + a.is())}, keys(b, a)...)
	}
	if a.Kind != regular {
		if b.Target != a.Target || b.Why != a.Why {
			return []Finding{a.finding("is now " + a.is())}
		}
		return nil
	}
	same := a.Sum == b.Sum
	if a.Sum == "" || b.Sum == "" {
		same = a.Size == b.Size && a.Changed == b.Changed
	}
	switch {
	case same && b.Mode&0o111 == 0 && a.Mode&0o111 != 0 && !a.executes() && !a.attributes():
		return []Finding{a.finding(isRunnable)}
	case same:
		return nil
	case a.Why != "" || b.Why != "":
		return append([]Finding{a.finding(isChanged + a.but())}, keys(b, a)...)
	case a.executes():
		return keys(b, a)
	case a.attributes() && len(a.Keys) == 0 && len(b.Keys) == 0:
		return nil
	}
	return []Finding{a.finding(isChanged)}
}

// keys compares the executing settings of two versions of a file, either of
// which may be none.
func keys(b, a File) []Finding {
	if !a.executes() {
		return nil
	}
	then, now := b.values(), a.values()
	var out []Finding
	for name := range union(then, now) {
		old, new := then[name], now[name]
		if slices.Equal(old, new) {
			continue
		}
		f := a.finding(isChanged)
		switch {
		case old == nil:
			f.What = isNew
		case new == nil:
			f.What = isRemoved
		}
		f.Key, f.Old, f.New, f.Target = name, old, new, ""
		if e, _, ok := keyRow(setting{name: name, value: strings.Join(slices.Concat(old, new), "")}); ok {
			f.Reason, f.row = e.Reason, e.Pattern
		}
		out = append(out, f)
	}
	return out
}

// values are the settings by name. One without a value is true.
func (f File) values() map[string][]string {
	m := map[string][]string{}
	for _, k := range f.Keys {
		v := string(k.Value)
		if k.Bare {
			v = "true"
		}
		m[string(k.Name)] = append(m[string(k.Name)], v)
	}
	return m
}

func union(a, b map[string][]string) map[string]bool {
	m := map[string]bool{}
	for name := range a {
		m[name] = true
	}
	for name := range b {
		m[name] = true
	}
	return m
}

// executes says whether a file is settings, of which only some execute.
func (f File) executes() bool {
	switch f.Pattern {
	case rowConfig, rowWorktree, rowInclude, rowGitmodules:
		return true
	}
	return false
}

func (f File) attributes() bool {
	switch f.Pattern {
	case rowAttributes, rowGitattributes, rowAttributesFile:
		return true
	}
	return false
}

// way says whether a directory is what its pattern names, so that only what is
// in it counts.
func (f File) way() bool {
	return strings.HasSuffix(f.Pattern, "/") || f.Pattern == rowCommand || f.Pattern == rowAlso
}

// is says what is there instead of a file that can be read.
func (f File) is() string {
	switch {
	case f.Kind == regular && f.Why != "":
		return f.Why
	case f.Why != "":
		return f.Kind + ", " + f.Why
	}
	return f.Kind
}

// but is what to add to a word about a file for its being odd.
func (f File) but() string {
	if f.Kind == regular && f.Why == "" || f.Kind == folder && (f.Pattern == rowDotGit || f.Pattern == rowShape) {
		return ""
	}
	return ", " + f.is()
}

// finding is about a file as it is now.
func (f File) finding(what string) Finding {
	e := rowOf(f.Pattern)
	out := Finding{Path: string(f.Path), What: what, Target: string(f.Target), Reason: e.Reason, rank: rankRest, row: e.Pattern}
	switch {
	case e.Group == GroupRedirect && f.redirects(what):
		out.First, out.rank = true, rankFirst
	case f.Pattern == rowHooks || f.Pattern == rowHooksPath:
		out.rank = rankHook
	case packaged(f.Path):
		out.rank = rankPackage
	case f.executes():
		out.rank = rankKey
	}
	return out
}

// redirects leaves out what git does itself when a repository or a worktree is
// made or ends.
func (f File) redirects(what string) bool {
	switch f.Pattern {
	case rowCommondir, rowWorktree:
		return true
	case rowDotGit:
		return f.Kind != folder || what != isNew && what != notSeen && what != isRemoved
	case rowGitdir:
		return what != isNew && what != isRemoved
	}
	return false
}

// packaged says whether a path is where package managers put the work of
// others.
func packaged(p Raw) bool {
	for part := range strings.SplitSeq(string(p), "/") {
		if part == "node_modules" || part == "site-packages" {
			return true
		}
	}
	return false
}

// within puts a root's own before what is deeper down, of what comes first.
func (f Finding) within(o Finding) int {
	switch {
	case f.rank != rankFirst || f.nested == o.nested:
		return 0
	case o.nested:
		return -1
	}
	return 1
}

func ordered(findings []Finding) []Finding {
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.within(b), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Key, b.Key), cmp.Compare(a.What, b.What))
	})
	return findings
}
