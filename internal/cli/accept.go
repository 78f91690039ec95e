package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
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
	a.question(ctx, p, pending)
	if !a.yes {
		if !terminal(a.in) || !terminal(a.err) {
			return exit.Invalidf("read it, then say --accept; or start it at a terminal, where corral asks", "%s: %s", p.policy.File, pending.reason())
		}
		yes, err := a.ask(ctx, "Accept it? [y/N] ")
		if err != nil {
			return err
		}
		if !yes {
			return exit.Invalidf("", "%s: not accepted", p.policy.File)
		}
	}
	return a.record(p)
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
	fmt.Fprintln(a.err)
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
	if holders := planted(p); len(holders) > 0 {
		out = append(out, fmt.Sprintf("this policy lies in a directory that the agent of %s may write: it may be the agent's work", strings.Join(holders, " and ")))
	}
	if p.policy.Mode == policy.Run {
		if n := repositories(ctx, p.policy.Dir); n != "" {
			out = append(out, fmt.Sprintf("%s holds %s repositories: the agent could change them all", p.policy.Dir, n))
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
	case len(dirs) <= 1:
		return ""
	case !whole:
		return fmt.Sprintf("at least %d", len(dirs))
	}
	return fmt.Sprint(len(dirs))
}

// planted names the accepted sandboxes whose agents can write the policy file
// of p, its own aside.
func planted(p *project) []string {
	home, err := state.Home()
	if err != nil {
		return nil
	}
	ids, err := state.Sandboxes(home)
	if err != nil {
		return nil
	}
	var out []string
	for _, id := range ids {
		b, err := state.Accepted(home, id)
		if err != nil || b == nil {
			continue
		}
		other, err := policy.DecodeEffective(b)
		if err != nil || id == plan.ID(other.Name, p.policy.File) { // its own, by whatever name
			continue
		}
		for _, m := range other.Mounts {
			if !m.ReadOnly && strings.HasPrefix(p.policy.File, m.Path+string(filepath.Separator)) {
				out = append(out, id)
				break
			}
		}
	}
	return out
}

// ask puts a question at the terminal. Anything but a yes is a no.
func (a *app) ask(ctx context.Context, question string) (bool, error) {
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

// showRows writes a policy as a table. Values may come from anybody.
func showRows(w io.Writer, rows []policy.Row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		if r.Origin != "default" {
			r.Value = runs[r.Key] + r.Value
		}
		lines := strings.Split(r.Value, "\n")
		fmt.Fprintf(t, "  %s\t%s\t%s\n", printable.Escape(r.Key), printable.Escape(lines[0]), printable.Escape(r.Origin))
		for _, l := range lines[1:] {
			fmt.Fprintf(t, "  \t%s\t\n", printable.Escape(l))
		}
	}
	_ = t.Flush()
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
			showSide(w, mark, "+", c.Key, c.New)
		}
	}
}

func showSide(w io.Writer, mark, sign, key, text string) {
	s := bufio.NewScanner(strings.NewReader(text))
	s.Buffer(nil, len(text)+1)
	for s.Scan() {
		fmt.Fprintf(w, "%s %s %s  %s\n", mark, sign, printable.Escape(key), printable.Escape(s.Text()))
		key = strings.Repeat(" ", len(key))
	}
}

// effective is what the project's policy amounts to.
func (p *project) effective() policy.Effective { return p.policy.Effective(plan.Defaults(p.profile)) }

func (p *project) rows() []policy.Row { return p.policy.Rows(plan.Defaults(p.profile)) }
