package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

// acceptFlag gives a command that lets a policy have effect its --accept.
func (a *app) acceptFlag(c *cobra.Command) {
	c.Flags().BoolVar(&a.yes, "accept", false, "accept the policy as it is, without a question")
}

// accept lets the policy of p have effect if a person accepted all that it
// grants: before, or now. Nothing of it has run, been built or been read by
// then but the policy file itself.
func (a *app) accept(ctx context.Context, p *project) error {
	pending, err := a.pending(p)
	if err != nil {
		return err
	}
	switch {
	case !pending.asks() && len(pending.changes) == 0:
		p.accepted = true
		return nil
	case !pending.asks(): // what is taken away now is not given back without a question
		return a.record(p)
	}
	if a.unasked { // it is not shown at every look
		return exit.Invalidf("corral up by hand shows it, and asks", "%s: %s", p.policy.File, pending.reason())
	}
	a.question(ctx, p, pending)
	if !a.yes {
		if !terminal(a.in) || !terminal(a.err) {
			return exit.Invalidf("read it, then say --accept; or start it at a terminal, where corral asks", "%s: not accepted, and nobody can be asked here", p.policy.File)
		}
		yes, err := a.ask(ctx, "Accept it? [y/N] ")
		if err != nil {
			return err
		}
		if !yes {
			return exit.Invalidf("", "%s: not accepted", p.policy.File)
		}
	}
	if err := a.record(p); err != nil || !a.yes {
		return err
	}
	// Nobody typed it just now, and what else is asked for may be refused yet.
	a.sayf("%s: accepted, by --accept", p.policy.File)
	return nil
}

// record keeps what p amounts to as accepted.
func (a *app) record(p *project) error {
	home, err := state.Home()
	if err != nil {
		return err
	}
	if err := state.Accept(home, p.id(), p.effective().Encode()); err != nil {
		return fmt.Errorf("what was accepted cannot be kept: %w", err)
	}
	p.accepted = true
	return nil
}

// pending is how a policy differs from what was accepted of it.
type pending struct {
	first   bool   // nothing was accepted yet
	damage  string // why what was accepted cannot be told
	changes []policy.Change
}

// asks reports whether a person must say yes.
func (d pending) asks() bool { return d.first || policy.Widens(d.changes) }

func (d pending) reason() string {
	switch {
	case d.damage != "":
		return "what was accepted cannot be told: " + d.damage
	case d.first:
		return "nobody has accepted this policy yet"
	}
	return "it grants more than was accepted"
}

func (a *app) pending(p *project) (pending, error) {
	home, err := state.Home()
	if err != nil {
		return pending{}, err
	}
	b, err := state.Accepted(home, p.id())
	if err != nil {
		return pending{first: true, damage: err.Error()}, nil
	}
	if b == nil {
		return pending{first: true}, nil
	}
	before, err := policy.DecodeEffective(b)
	if err != nil {
		return pending{first: true, damage: err.Error()}, nil
	}
	if before.File != p.policy.File {
		return pending{first: true, damage: "the record is of " + before.File}, nil
	}
	return pending{changes: policy.Diff(before, p.effective())}, nil
}

// question shows what a yes would grant: everything at the first use, else
// what is different.
func (a *app) question(ctx context.Context, p *project, d pending) {
	file := printable.Escape(p.policy.File)
	if d.first {
		fmt.Fprintf(a.err, "corral: %s: %s. It asks for this:\n\n", file, printable.Escape(d.reason()))
		showRows(a.err, p.rows())
	} else {
		fmt.Fprintf(a.err, "corral: %s was changed, and %s:\n\n", file, d.reason())
		showChanges(a.err, d.changes)
	}
	for _, note := range a.notes(ctx, p) {
		fmt.Fprintf(a.err, "\n  note: %s\n", printable.Escape(note))
	}
	if d.first {
		fmt.Fprintf(a.err, "\n  in all: %s\n", sum(p.effective()))
	} else {
		fmt.Fprintf(a.err, "\n  in all: %s\n", sumChanges(d.changes))
	}
	fmt.Fprintln(a.err)
}

// sumChanges is sum for a difference.
func sumChanges(changes []policy.Change) string {
	widen, keys := 0, []string{}
	for _, c := range changes {
		if c.Widens {
			widen++
			if !slices.Contains(keys, c.Key) {
				keys = append(keys, c.Key)
			}
		}
	}
	grants := "grant"
	if widen == 1 {
		grants = "grants"
	}
	return fmt.Sprintf("%d of %s %s more: %s", widen, printable.Count(len(changes), "change"), grants, strings.Join(keys, ", "))
}

// personal reports whether a path is of the kind that a home keeps settings
// and programs in: hidden, or bin.
func personal(path string, homes []string) bool {
	return slices.ContainsFunc(homes, func(home string) bool {
		rest, below := strings.CutPrefix(path, home+"/")
		first, _, _ := strings.Cut(rest, "/")
		return below && (strings.HasPrefix(first, ".") || first == "bin")
	})
}

const (
	// lookWithin bounds the search for repositories.
	lookWithin = 2 * time.Second
	// manyRepositories is where counting them ends.
	manyRepositories = 100
)

// notes are what a person should know of where the policy lies.
func (a *app) notes(ctx context.Context, p *project) []string {
	var out []string
	holders, err := planted(p)
	if err != nil {
		out = append(out, fmt.Sprintf("cannot tell whether an agent may have written this policy: %v", err))
	}
	if len(holders) > 0 {
		out = append(out, fmt.Sprintf("this policy lies in a directory that the agent of %s may write: it may be the agent's work", strings.Join(holders, " and ")))
	}
	if p.policy.Mode == policy.Run {
		if n := repositories(ctx, p.policy.Dir); n != "" {
			out = append(out, fmt.Sprintf("%s holds %s repositories: the agent could change them all", p.policy.Dir, n))
		}
	}
	if len(p.policy.PreLaunch) > 0 && len(p.roots()) > 0 {
		out = append(out, "what a command on this machine reads or runs in a writable mount, the agent may have written")
		if names := p.rewritable(p.mounted()); len(names) > 0 {
			out = append(out, "the agent may rewrite what a command on this machine names, which runs as you: "+some(names))
		}
	}
	for _, m := range p.wants.reads {
		// The own agent may not write there at all.
		if agents, err := writers(m.Path, p.policy.File); len(agents) > 0 || err != nil {
			out = append(out, fmt.Sprintf("%s, which the agent is to read and your own %s obeys, may be the work of another agent (%s)", m.Path, p.profile.Name, cmp.Or(strings.Join(agents, " and "), "that cannot be told")))
		}
	}
	for _, m := range p.policy.Mounts {
		if !m.ReadOnly && personal(m.Path, p.host.Homes) {
			out = append(out, fmt.Sprintf("%s is writable: what programs of yours obey lies in such places, and the agent could make them run its own", m.Path))
		}
	}
	return out
}

// repositories says how many there are at and below a directory, nothing if
// there is at most one.
func repositories(ctx context.Context, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	dirs, whole := wayback.Repositories(ctx, dir, manyRepositories)
	switch {
	case !whole && len(dirs) <= 1:
		return "more files than could be looked at, and perhaps many"
	case !whole:
		return fmt.Sprintf("at least %d", len(dirs))
	case len(dirs) <= 1:
		return ""
	}
	return fmt.Sprint(len(dirs))
}

// planted names the accepted sandboxes whose agents can write the policy file
// of p, its own aside. The error is that of records that cannot be read.
func planted(p *project) ([]string, error) {
	return writers(p.policy.File, p.policy.File)
}

// writers names the accepted sandboxes whose agents can write a file, leaving
// out the one of the policy except. The error is that of records that cannot be
// read.
func writers(file, except string) ([]string, error) {
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	ids, err := state.Sandboxes(home)
	var out []string
	errs := []error{err}
	for _, id := range ids {
		b, err := state.Accepted(home, id)
		if err == nil && b == nil {
			continue
		}
		var other policy.Effective
		if err == nil {
			other, err = policy.DecodeEffective(b)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the record of %s: %w", id, err))
			continue
		}
		if other.File != except && slices.ContainsFunc(other.Mounts, func(m policy.EffectiveMount) bool {
			return !m.ReadOnly && (file == m.Path || strings.HasPrefix(file, m.Path+string(filepath.Separator)))
		}) {
			out = append(out, id)
		}
	}
	return out, errors.Join(errs...)
}

// ask puts a question at the terminal. Anything but a yes is a no.
func (a *app) ask(ctx context.Context, question string) (bool, error) {
	if f, ok := a.in.(*os.File); ok { // what was typed before the question is no answer
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH)
	}
	fmt.Fprint(a.err, question)
	answer := make(chan string, 1)
	go func() { answer <- line(a.in) }()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.err)
		return false, context.Cause(ctx)
	case s := <-answer:
		s = strings.ToLower(strings.TrimSpace(s))
		return s == "y" || s == "yes", nil
	}
}

// line reads one line and no byte more: what follows is the agent's.
func line(r io.Reader) string {
	var b strings.Builder
	one := make([]byte, 1)
	for {
		n, err := r.Read(one)
		if n == 1 && one[0] != '\n' {
			b.WriteByte(one[0])
		}
		if err != nil || n == 1 && one[0] == '\n' {
			return b.String()
		}
	}
}

// runs says where the commands of a policy run, and as whom.
var runs = map[string]string{
	"hooks.pre_launch": "on this machine, as you: ",
	"image.run":        "at build time, as root: ",
}

// keyWidth holds every key of a policy.
const keyWidth = 17

// showRows writes a policy as a list. Values may come from anybody.
func showRows(w io.Writer, rows []policy.Row) {
	for _, r := range rows {
		if r.Value != "none" {
			r.Value = runs[r.Key] + r.Value
		}
		key := printable.Escape(r.Key)
		lines := fold(r.Value)
		lines[len(lines)-1] += "   [" + printable.Escape(r.Origin) + "]"
		for _, l := range lines {
			fmt.Fprintf(w, "  %-*s %s\n", keyWidth, key, l)
			key = ""
		}
	}
}

const (
	// foldWidth is how much of a value stands in one line: wider ones are cut or
	// wrapped by terminals, where nobody looks.
	foldWidth = 100
	// mostBlanks in a row are shown as they are: more could push what follows out
	// of sight.
	mostBlanks = 3
)

var manyBlanks = regexp.MustCompile(fmt.Sprintf(" {%d,}", mostBlanks+1))

// fold is a value in lines that can be shown whole, every character of it.
func fold(value string) []string {
	var out []string
	for text := range strings.SplitSeq(value, "\n") {
		text = manyBlanks.ReplaceAllStringFunc(printable.Escape(text), func(s string) string { return fmt.Sprintf("[%d blanks]", len(s)) })
		runes := []rune(text)
		for len(runes) > foldWidth {
			out = append(out, string(runes[:foldWidth])+" …")
			runes = runes[foldWidth:]
		}
		out = append(out, string(runes))
	}
	return out
}

// sum says in one line, next to the question, what a list may have scrolled
// out of sight.
func sum(e policy.Effective) string {
	var parts []string
	count := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	count(len(e.PreLaunch), "command on this machine", "commands on this machine")
	count(len(e.Run), "build step as root", "build steps as root")
	if e.EnvFile != "" {
		parts = append(parts, "a file of secrets")
	}
	writable := 0
	for _, m := range e.Mounts {
		if !m.ReadOnly {
			writable++
		}
	}
	count(writable, "writable mount", "writable mounts")
	count(len(e.Mounts)-writable, "read-only mount", "read-only mounts")
	count(len(e.Egress), "name on the network", "names on the network")
	count(len(e.HostServices), "service of this machine", "services of this machine")
	count(len(e.ProfileReads), "directory of yours that the profile reads", "directories of yours that the profile reads")
	count(len(e.ProfileCopies), "file of yours that the profile copies", "files of yours that the profile copies")
	if parts == nil {
		return "nothing of this machine or the network"
	}
	return strings.Join(parts, ", ")
}

// showChanges writes a difference as people know it, with a ! before what
// widens.
func showChanges(w io.Writer, changes []policy.Change) {
	for _, c := range changes {
		mark := " "
		if c.Widens {
			mark = "!"
		}
		if c.Old != "" {
			showSide(w, mark, "-", c.Key, c.Old)
		}
		if c.New != "" {
			showSide(w, mark, "+", c.Key, runs[c.Key]+c.New)
		}
	}
}

func showSide(w io.Writer, mark, sign, key, text string) {
	key = printable.Escape(key)
	for _, l := range fold(text) {
		fmt.Fprintf(w, "%s %s %s  %s\n", mark, sign, key, l)
		key = strings.Repeat(" ", len(key))
	}
}

// effective is what the project's policy amounts to.
func (p *project) effective() policy.Effective { return p.policy.Effective(p.defaults()) }

func (p *project) rows() []policy.Row { return p.policy.Rows(p.defaults()) }
