package wayback

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/printable"
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
}

// The order of findings; within one it is by path and key.
const (
	rankFirst = iota
	rankGap   // whatever was not seen may be of any rank
	rankHook
	rankKey
	rankRest
	rankPackage // in installed packages: many, and rarely obeyed
)

// Words that more than one place says.
const (
	isNew      = "new"
	isChanged  = "changed"
	isRemoved  = "removed"
	isRunnable = "is now executable"
	notSeen    = "was not looked at before"
	notLooked  = "was not looked at"
)

// String is one line, safe for a terminal.
func (f Finding) String() string {
	var b strings.Builder
	b.WriteString(printable.Escape(f.Path) + ": ")
	if f.Key != "" {
		b.WriteString(printable.Escape(f.Key) + " ")
	}
	b.WriteString(printable.Escape(f.What))
	if f.Target != "" {
		b.WriteString(" to " + printable.Escape(f.Target))
	}
	if f.Key != "" {
		fmt.Fprintf(&b, ": %s → %s", values(f.Old), values(f.New))
	}
	return b.String() + ": " + printable.Escape(f.Reason)
}

func values(v []string) string {
	if v == nil {
		return "none"
	}
	quoted := make([]string, len(v))
	for i, s := range v {
		quoted[i] = `"` + printable.Escape(s) + `"`
	}
	return strings.Join(quoted, ", ")
}

// Compare says what changed from one snapshot to a later one of the same
// directories, and what of the later one could not be told, in the order to
// print. Nothing is left out of it silently: a place that either snapshot did
// not look at is a finding.
func Compare(before, after Snapshot) []Finding {
	var out []Finding
	for _, g := range after.Incomplete {
		out = append(out, Finding{Path: string(g.Path), What: notLooked, Reason: g.Why, rank: rankGap})
	}
	for _, r := range before.Roots { // of other directories than were asked for
		if !slices.ContainsFunc(after.Roots, func(now Raw) bool { return within(r, now) }) {
			out = append(out, Finding{Path: string(r), What: notLooked, Reason: "the later look was not at this directory", rank: rankGap})
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
			continue
		}
		out = append(out, changed(b, a)...)
	}
	for p, b := range then {
		if _, ok := now[p]; !ok && after.looked(p) {
			out = append(out, removed(b)...)
		}
	}
	return ordered(out)
}

// Odd is what a snapshot found in a place of the table and could not read: no
// regular file, too large, unreadable, or not to be understood.
func (s Snapshot) Odd() []Finding {
	var out []Finding
	for _, g := range s.Incomplete {
		out = append(out, Finding{Path: string(g.Path), What: notLooked, Reason: g.Why, rank: rankGap})
	}
	for _, f := range s.Files {
		if f.but() != "" && !(f.Kind == folder && f.way()) {
			out = append(out, f.finding(f.is()))
		}
	}
	return ordered(out)
}

// Join adds what was seen for a moment to a comparison, in the order to print.
// What the comparison tells of the same path is enough, and comes first too.
func Join(findings, seen []Finding) []Finding {
	out := slices.Clone(findings)
	for _, s := range seen {
		i := slices.IndexFunc(out, func(f Finding) bool { return f.Path == s.Path && f.What != isRemoved })
		if i < 0 {
			out = append(out, s)
			continue
		}
		out[i].First, out[i].rank = true, rankFirst
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
	if f.Kind == folder && f.way() || f.attributes() && f.Why == "" && len(f.Keys) == 0 {
		return nil
	}
	f.Target = ""
	if f.executes() && f.Kind == regular && f.Why == "" {
		return keys(f, File{Path: f.Path, Pattern: f.Pattern})
	}
	return []Finding{f.finding(isRemoved)}
}

func changed(b, a File) []Finding {
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
			f.Reason = e.Reason
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
	return strings.HasSuffix(f.Pattern, "/") || f.Pattern == rowCommand
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
	out := Finding{Path: string(f.Path), What: what, Target: string(f.Target), Reason: e.Reason, rank: rankRest}
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

func ordered(findings []Finding) []Finding {
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Key, b.Key), cmp.Compare(a.What, b.What))
	})
	return findings
}
