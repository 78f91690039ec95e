package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/corral-sandbox/corral/internal/domain"
)

// Change is one difference between two policies. What was added has no Old,
// what was removed no New.
type Change struct {
	Key    string `json:"key"` // of the schema, like mounts.rw; project and command besides
	Old    string `json:"old"`
	New    string `json:"new"`
	Widens bool   `json:"widens"` // it needs a person's consent
}

// Widens reports whether one of the changes does.
func Widens(changes []Change) bool {
	return slices.ContainsFunc(changes, func(c Change) bool { return c.Widens })
}

// Diff is every difference between two policies, one entry of a list each, in
// the schema's order; empty, never nil, if there is none. A change widens
// unless it is one of a few that can only take away:
//
//   - an entry removed from mounts, egress, host services, image.run or
//     hooks.pre_launch, or the secrets file removed, or something that the
//     profile takes of the person's
//   - a mount that was writable and is read-only
//   - a smaller limit, or one where there was none
//   - fewer ports or narrower prefixes of an egress entry that is otherwise
//     the same
//   - a researcher less, or one that reads no pages, a stricter approval of
//     commands, or one command more that nobody may approve
//
// Both policies are as Effective or DecodeEffective gave them. What is not
// sorted as they sort it may count as removed and added, never as equal.
func Diff(old, new Effective) []Change {
	d := changes{}
	d.word("profile", old.Profile, new.Profile)
	d.word("name", old.Name, new.Name)
	d.word("mode", old.Mode, new.Mode)
	d.word("policy", old.File, new.File)
	d.word("project", old.Project, new.Project)
	d.mounts(old.Mounts, new.Mounts)
	d.egress(old.Egress, new.Egress)
	d.word("egress.refresh", old.Refresh, new.Refresh)
	d.services(old.HostServices, new.HostServices)
	if old.EnvFile != new.EnvFile {
		d.add("secrets.env_file", oneLine(old.EnvFile), oneLine(new.EnvFile), new.EnvFile != "")
	}
	d.word("image.base", old.Base, new.Base)
	d.set("image.packages", old.Packages, new.Packages)
	d.sequence("image.run", old.Run, new.Run)
	d.limit("resources.memory", old.Memory, new.Memory, bytesText)
	d.limit("resources.cpus", old.NanoCPUs, new.NanoCPUs, cpusText)
	d.limit("resources.pids", old.Pids, new.Pids, pidsText)
	d.word("git.config", old.GitConfig, new.GitConfig)
	d.word("git.dir", old.GitDir, new.GitDir)
	d.set("background", old.Background, new.Background)
	d.hermes(old.Hermes, new.Hermes)
	d.sequence("hooks.pre_launch", old.PreLaunch, new.PreLaunch)
	d.lent("profile.reads", old.ProfileReads, new.ProfileReads)
	d.lent("profile.copies", old.ProfileCopies, new.ProfileCopies)
	if !slices.Equal(old.Command, new.Command) {
		d.add("command", commandText(old.Command), commandText(new.Command), true)
	}
	return d
}

type changes []Change

func (d *changes) add(key, old, new string, widens bool) {
	*d = append(*d, Change{key, old, new, widens})
}

// word compares what cannot be narrowed.
func (d *changes) word(key, old, new string) {
	if old != new {
		d.add(key, oneLine(old), oneLine(new), true)
	}
}

func (d *changes) mounts(old, new []EffectiveMount) {
	left := make(map[string]bool, len(new))
	for _, m := range new {
		left[m.Path] = true
	}
	// What is taken off another mount shows what that one holds at the place.
	uncovers := func(path string) bool {
		for path != "/" && path != "." {
			path = filepath.Dir(path)
			if left[path] {
				return true
			}
		}
		return false
	}
	var ro changes // after all that is writable, as in the schema
	pairs(old, new, byPath, func(was, is *EffectiveMount) {
		switch {
		case is == nil && was.ReadOnly:
			ro.add("mounts.ro", oneLine(was.Path), "", uncovers(was.Path))
		case is == nil:
			d.add("mounts.rw", oneLine(was.Path), "", uncovers(was.Path))
		case was == nil && is.ReadOnly:
			ro.add("mounts.ro", "", oneLine(is.Path), true)
		case was == nil:
			d.add("mounts.rw", "", oneLine(is.Path), true)
		case is.ReadOnly && !was.ReadOnly:
			ro.add("mounts.ro", "rw "+oneLine(was.Path), "ro "+oneLine(is.Path), false)
		case *is != *was:
			d.add("mounts.rw", "ro "+oneLine(was.Path), "rw "+oneLine(is.Path), true)
		}
	})
	*d = append(*d, ro...)
}

func (d *changes) egress(old, new []EffectiveRule) {
	pairs(old, new, byDomain, func(was, is *EffectiveRule) {
		switch {
		case is == nil:
			d.add("egress.allow", was.text(), "", false)
		case was == nil:
			d.add("egress.allow", "", is.text(), true)
		case !was.equal(*is):
			d.add("egress.allow", was.text(), is.text(), !was.covers(*is))
		}
	})
}

func (r EffectiveRule) equal(o EffectiveRule) bool {
	return r.same(o) && r.AnyPort == o.AnyPort && slices.Equal(r.Ports, o.Ports) && slices.Equal(r.Private, o.Private)
}

// covers reports whether o is r but for fewer ports and narrower prefixes.
func (r EffectiveRule) covers(o EffectiveRule) bool {
	ports := r.AnyPort || !o.AnyPort && !slices.ContainsFunc(o.Ports, func(p uint16) bool { return !slices.Contains(r.Ports, p) })
	within := func(p netip.Prefix) bool {
		return slices.ContainsFunc(r.Private, func(outer netip.Prefix) bool { return contains(outer, p) })
	}
	return r.same(o) && ports && !slices.ContainsFunc(o.Private, func(p netip.Prefix) bool { return !within(p) })
}

// same compares all but ports and prefixes.
func (r EffectiveRule) same(o EffectiveRule) bool {
	return r.Domain == o.Domain && r.Liveness == o.Liveness && r.Soft == o.Soft
}

func (d *changes) services(old, new []EffectiveService) {
	pairs(old, new, byPort, func(was, is *EffectiveService) {
		switch {
		case is == nil:
			d.add("host_services", was.text(), "", false)
		case was == nil:
			d.add("host_services", "", is.text(), true)
		case *was != *is:
			d.add("host_services", was.text(), is.text(), true)
		}
	})
}

// set compares lists whose order means nothing and of which no entry can be
// known to grant nothing: a package removed may be one that kept something
// out.
func (d *changes) set(key string, old, new []string) {
	pairs(old, new, cmp.Compare, func(was, is *string) {
		switch {
		case is == nil:
			d.add(key, oneLine(*was), "", true)
		case was == nil:
			d.add(key, "", oneLine(*is), true)
		}
	})
}

// lent compares what a profile takes of the person's.
func (d *changes) lent(key string, old, new []string) {
	pairs(old, new, cmp.Compare, func(was, is *string) {
		switch {
		case is == nil:
			d.add(key, oneLine(*was), "", false)
		case was == nil:
			d.add(key, "", oneLine(*is), true)
		}
	})
}

// sequence compares lists of commands. What is left after removals is a
// subsequence of what was; anything else adds a command or moves one, which is
// shown as one removed and one added.
func (d *changes) sequence(key string, old, new []string) {
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		old, new = old[1:], new[1:]
	}
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	gone, added := old, new
	if rest, ok := without(old, new); ok {
		gone, added = rest, nil
	} else if rest, ok := without(new, old); ok {
		gone, added = nil, rest
	}
	for _, s := range gone {
		d.add(key, s, "", false)
	}
	for _, s := range added {
		d.add(key, "", s, true)
	}
}

// without is what of long is left when short is taken out of it, in order. It
// is not ok if short is no subsequence of long.
func without(long, short []string) (rest []string, ok bool) {
	for _, s := range long {
		if len(short) > 0 && s == short[0] {
			short = short[1:]
		} else {
			rest = append(rest, s)
		}
	}
	return rest, len(short) == 0
}

// limit compares bounds, of which 0 is none.
func (d *changes) limit(key string, old, new int64, text func(int64) string) {
	if old != new {
		smaller := new > 0 && (old <= 0 || new < old)
		d.add(key, cmp.Or(text(old), unbound), cmp.Or(text(new), unbound), !smaller)
	}
}

// unbound is the text of a limit that is none.
const unbound = "no bound"

// pairs walks two sorted lists and calls do with each entry and its partner,
// which is nil if the other list has none.
func pairs[T any](old, new []T, compare func(a, b T) int, do func(was, is *T)) {
	for len(old) > 0 || len(new) > 0 {
		var was, is *T
		c := 0
		switch {
		case len(old) == 0:
			c = 1
		case len(new) == 0:
			c = -1
		default:
			c = compare(old[0], new[0])
		}
		if c <= 0 {
			was, old = &old[0], old[1:]
		}
		if c >= 0 {
			is, new = &new[0], new[1:]
		}
		do(was, is)
	}
}

// text is a rule for people: what it opens, and how far it is trusted.
func (r EffectiveRule) text() string {
	var b strings.Builder
	b.WriteString(oneLine(r.Domain))
	if u := domain.Unicode(r.Domain); u != r.Domain {
		fmt.Fprintf(&b, " (%s)", u)
	}
	b.WriteString(", ports: ")
	switch {
	case r.AnyPort:
		b.WriteString("any")
	case len(r.Ports) == 0:
		b.WriteString("none")
	default:
		for i, p := range r.Ports {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(strconv.Itoa(int(p)))
		}
	}
	switch {
	case r.Soft && r.Liveness:
		b.WriteString("; soft, liveness: true")
	case r.Soft:
		b.WriteString("; soft: closed while it does not resolve")
	case !r.Liveness:
		b.WriteString("; liveness: false")
	}
	for i, p := range r.Private {
		if i == 0 {
			b.WriteString("; private: may resolve to any host in ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}

func (s EffectiveService) text() string {
	return fmt.Sprintf("%s: port %d of this machine's loopback, inside as corral-host:%d", oneLine(s.Name), s.Port, s.Port)
}

// commandText shows where each argument ends.
func commandText(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || !strconv.IsPrint(r) }) {
			words[i] = strconv.Quote(a)
		}
	}
	return strings.Join(words, " ")
}

// bytesText is a size in the largest unit that divides it, empty for no bound.
func bytesText(n int64) string {
	if n == 0 {
		return ""
	}
	for _, unit := range []string{"", "k", "m", "g"} {
		if n%1024 != 0 {
			return strconv.FormatInt(n, 10) + unit
		}
		n /= 1024
	}
	return strconv.FormatInt(n, 10) + "t"
}

// cpusText is a number of processors, empty for no bound.
func cpusText(nano int64) string {
	switch {
	case nano == 0:
		return ""
	case nano < 0:
		return strconv.FormatInt(nano, 10) // no policy has it
	}
	s := fmt.Sprintf("%d.%09d", nano/1e9, nano%1e9)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

func pidsText(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// oneLine keeps a path that holds a line feed from looking like two.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", `\n`) }

func (d *changes) hermes(old, new EffectiveHermes) {
	const options = "profile_options.hermes."
	flag := func(key string, was, is bool) {
		if was != is {
			d.add(options+key, strconv.FormatBool(was), strconv.FormatBool(is), is)
		}
	}
	d.word(options+"model.base_url", old.BaseURL, new.BaseURL)
	d.word(options+"model.name", old.Model, new.Model)
	if old.Context != new.Context {
		d.add(options+"model.context_length", strconv.Itoa(old.Context), strconv.Itoa(new.Context), true)
	}
	flag("researcher", old.Researcher, new.Researcher)
	flag("fetch", old.Fetch, new.Fetch)
	d.word(options+"search_image", old.Search, new.Search)
	if old.Approvals != new.Approvals {
		d.add(options+"approvals", old.Approvals, new.Approvals, slices.Index(leniency, new.Approvals) > slices.Index(leniency, old.Approvals))
	}
	pairs(old.Deny, new.Deny, cmp.Compare, func(was, is *string) {
		switch {
		case is == nil:
			d.add(options+"approvals_deny", oneLine(*was), "", true)
		case was == nil:
			d.add(options+"approvals_deny", "", oneLine(*is), false)
		}
	})
}

// leniency are the ways of approving commands, the strictest first.
var leniency = []string{ApprovalsManual, ApprovalsSmart, ApprovalsOff}
