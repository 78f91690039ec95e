package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

func (a *app) down() *cobra.Command {
	var purge bool
	c := &cobra.Command{
		Use:   "down",
		Short: "End this project's sandbox",
		Long: `Ends the agent, whatever it is doing, and removes its containers. It is asked
first (SIGTERM) and has 10 seconds to end by itself, which Ctrl-C cuts short. The
agent of a corral run that looks after it is ended at once.

A corral run that looks after it says that the sandbox was taken down, and exits
with 1; a corral up --watch of yours ends; one of another user's brings it up
again, since what is to be up is each user's own to say. One that corral enable
has started ends too, until the next boot or login. The project's image stays,
for the next run.

With --purge the image goes, too, and all that is kept of the sandbox: what the
agent has of its own (sessions, logins, memory), what you accepted of the policy,
what was written out, and what corral enable made. It asks first. The project and what is mounted stay as
they are.`,
		Example: `  corral down
  corral down --purge`,
		Args: noArgs,
		RunE: func(c *cobra.Command, args []string) error { return a.takeDown(c.Context(), purge) },
	}
	c.Flags().BoolVar(&purge, "purge", false, "remove the image and all that is kept, too, after a question")
	c.Flags().BoolVarP(&a.sure, "yes", "y", false, "purge without a question")
	return c
}

func (a *app) takeDown(ctx context.Context, purge bool) error {
	e, file, members, err := a.here(ctx)
	if err != nil {
		return err
	}
	// What is kept may be what is wrong. That keeps nobody from ending what runs.
	is, kept := wanted(file)
	if purge {
		if kept != nil {
			return exit.Failedf("corral down alone ends what runs", "what is to be purged cannot be read: %w", kept)
		}
		switch goes, err := a.mayPurge(ctx, file, members); {
		case err != nil:
			return err
		case !goes:
			purge = false
		}
	}
	if purge { // before anybody is kept from ending, and nothing of it is accepted any more
		if err := a.dropUnits(ctx, file, "", "what it goes by is purged"); err != nil {
			return err
		}
	}
	alone := false
	// A corral up that is busy with it would bring back what goes; a corral run
	// holds the lock for as long as it lives.
	if is && len(members) == 0 || slices.ContainsFunc(members, func(m engine.Member) bool { return m.Purpose == engine.PurposeDaemon }) {
		switch now, unlock, err := a.alone(ctx, e, file); {
		case errors.As(err, new(*unkept)):
			kept = errors.Join(kept, err)
		case err != nil:
			return err
		default:
			alone, members = true, now
			defer unlock()
			is, kept = wanted(file) // whoever had it to themselves until now may have changed that
		}
	}
	if kept == nil && notYours(is, members) {
		a.sayf("%s", notYoursNote)
	}
	kept = errors.Join(kept, unwanted(file))
	tells := slices.DeleteFunc(sandboxes(members), func(id string) bool { return !lookedAfter(members, id) }) // its corral run does, and ends
	a.stopUnits(ctx, file)
	if err := errors.Join(e.Down(ctx, members), e.SweepTools(ctx)); err != nil {
		return errors.Join(err, kept)
	}
	if err := a.stragglers(ctx, e, file, alone); err != nil {
		return errors.Join(err, kept)
	}
	ids := sandboxes(members)
	for _, id := range ids {
		findings, err := changedSince(ctx, id)
		for _, m := range members {
			if m.Sandbox == id {
				findings = wayback.Join(findings, wayback.Lost(binds(m.Shields)))
			}
		}
		if !errors.Is(err, errNoBaseline) || !slices.Contains(tells, id) {
			showFindings(a.err, id, findings, err)
		}
		kept = errors.Join(kept, keepBaseline(id, nil))
		fmt.Fprintf(a.err, "corral: %s is down\n", id)
	}
	if purge && kept == nil && !alone { // a corral run has lost its agent, and ends
		left, unlock, err := a.alone(ctx, e, file)
		if err != nil {
			return err
		}
		defer unlock()
		if len(left) > 0 {
			return exit.Failedf("corral down --purge once more", "%s came up again meanwhile: nothing was purged", left[0].Sandbox)
		}
		alone = true
	}
	kept = errors.Join(kept, a.tellUntold(ctx, file, notTold, alone))
	switch {
	case kept != nil && len(ids) == 0:
		return exit.Failedf("mend that, then corral down once more", "nothing of %s is up, and what is kept of it cannot be read or written: %w", file, once(kept))
	case kept != nil:
		return exit.Failedf("mend that, then corral down once more: until then a corral up --watch of yours may bring it up again, and what changed may be told twice or not at all",
			"what ran is ended, but what is kept of it cannot be read or written: %w", once(kept))
	case purge:
		return a.purge(ctx, e, file, ids)
	}
	if len(ids) == 0 {
		fmt.Fprintf(a.err, "corral: nothing of %s is up\n", printable.Escape(file))
	}
	return nil
}

// making says that containers of a sandbox are made from now on, until done.
func making(id string) (done func(), err error) {
	home, err := state.Home()
	if err == nil {
		err = state.SetMaking(home, id, true)
	}
	return func() { _ = state.SetMaking(home, id, false) }, err // what stays costs the next down a moment
}

// An engine that is busy may finish what a corral asked for that was killed meanwhile,
// after a down has looked: so long that one looks again, and so often.
const (
	stragglersWithin = 3 * time.Second
	stragglersLook   = 200 * time.Millisecond
)

// stragglers ends what an engine makes of a sandbox after the corral that asked for it
// was killed. The caller may have the sandbox to itself: else another one is at it.
func (a *app) stragglers(ctx context.Context, e *engine.Engine, file string, alone bool) error {
	home, err := state.Home()
	if err != nil {
		return nil // nothing is kept, which the caller says
	}
	cut := unfinished(home, file)
	if len(cut) > 0 && !alone {
		left, unlock, err := a.alone(ctx, e, file)
		if err != nil {
			return err
		}
		defer unlock()
		if err := e.Down(ctx, left); err != nil {
			return err
		}
		cut = unfinished(home, file) // one that lives has said by now that it is done
	}
	if len(cut) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stragglersWithin)
	defer cancel()
	look := time.NewTicker(stragglersLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			for _, id := range cut {
				if err := state.SetMaking(home, id, false); err != nil {
					return err
				}
			}
			return nil
		}
		members, err := e.Members(ctx, file)
		if err == nil {
			err = e.Down(ctx, members)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// unfinished are the sandboxes of a policy file of which somebody began to make containers
// and did not say that it was done.
func unfinished(home, file string) (cut []string) {
	ids, err := known(home, file)
	if err != nil {
		return nil // down says so
	}
	for _, id := range ids {
		if is, err := state.Making(home, id); is && err == nil {
			cut = append(cut, id)
		}
	}
	return cut
}

// lookedAfter reports whether a sandbox is one of a corral run that lives.
func lookedAfter(members []engine.Member, id string) bool {
	return slices.ContainsFunc(members, func(m engine.Member) bool {
		return m.Sandbox == id && m.Purpose == engine.PurposeRun && m.Role == engine.RoleService && !m.Unattended()
	})
}

// once is an error of several parts without those that say the same.
func once(err error) error {
	var parts []error
	var each func(error)
	each = func(err error) {
		if joined, is := err.(interface{ Unwrap() []error }); is {
			for _, part := range joined.Unwrap() {
				each(part)
			}
		} else if !slices.ContainsFunc(parts, func(p error) bool { return p.Error() == err.Error() }) {
			parts = append(parts, err)
		}
	}
	each(err)
	return errors.Join(parts...)
}

// mayPurge asks whether all that is kept of a policy file's sandboxes may go. It is
// false if nothing is.
func (a *app) mayPurge(ctx context.Context, file string, members []engine.Member) (bool, error) {
	home, err := state.Home()
	if err != nil {
		return false, err
	}
	ids, err := known(home, file)
	if err != nil {
		return false, err
	}
	if len(ids) == 0 && len(members) == 0 {
		if err := state.SweepForgotten(home); err != nil {
			return false, exit.Failedf(byHand, "not everything was removed: %w", err)
		}
		a.sayf("nothing is kept of %s", file)
		return false, nil
	}
	if a.sure {
		return true, nil
	}
	fmt.Fprintf(a.err, "corral: of %s this removes:\n\n", printable.Escape(file))
	for _, m := range members {
		fmt.Fprintf(a.err, "  %s, which is %s\n", printable.Escape(m.Name), printable.Escape(m.State))
	}
	for _, id := range ids {
		fmt.Fprintf(a.err, "  %s: the agent's own state, what you accepted, what was written out (%s)\n", printable.Escape(filepath.Join(home, id)), sizeText(ctx, home, id))
		fmt.Fprintf(a.err, "  the images of %s\n", printable.Escape(id))
	}
	units, err := unitsOf(file)
	if err != nil {
		return false, err
	}
	for _, u := range units {
		fmt.Fprintf(a.err, "  %s\n", printable.Escape(u.path))
	}
	fmt.Fprintln(a.err)
	if !terminal(a.in) || !terminal(a.err) {
		return false, exit.Invalidf("say --yes, or purge at a terminal, where corral asks", "nothing was removed, and nothing was ended")
	}
	yes, err := a.ask(ctx, "There is no way back. Remove it? [y/N] ")
	if err == nil && !yes {
		err = exit.Invalidf("corral down alone ends the sandbox and keeps the rest", "nothing was removed, and nothing was ended")
	}
	return yes, err
}

const byHand = "corral down --purge once more, or remove it by hand"

// purge removes what is kept of a policy file's sandboxes, of which nothing is up. The
// caller holds their locks.
func (a *app) purge(ctx context.Context, e *engine.Engine, file string, ended []string) error {
	home, err := state.Home()
	if err != nil {
		return err
	}
	ids, err := known(home, file)
	if err != nil {
		return err
	}
	ids = append(ids, ended...)
	slices.Sort(ids)
	kept := 0
	for _, id := range slices.Compact(ids) {
		b, unknown := state.Accepted(home, id)
		if b != nil || unknown != nil { // else it is another person's, whose images are theirs; our lock made the directory
			kept++
			err = errors.Join(err, e.RemoveImages(ctx, id))
		}
		err = errors.Join(err, state.Forget(home, id))
	}
	switch {
	case err != nil:
		return exit.Failedf(byHand, "not everything was removed: %w", err)
	case kept == 0:
		a.sayf("nothing of %s is kept in %s", file, home)
	default:
		a.sayf("nothing is kept of %s any more", file)
	}
	return nil
}

// sizeText is how much is kept of a sandbox, as people say it.
func sizeText(ctx context.Context, home, sandbox string) string {
	n, whole := state.Size(ctx, home, sandbox)
	more := ""
	if !whole {
		more = "more than "
	}
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%s%d bytes", more, n)
	case n < 1<<20:
		return fmt.Sprintf("%s%d kB", more, n>>10)
	}
	return fmt.Sprintf("%s%.1f MB", more, float64(n)/(1<<20))
}

// notYours reports whether an always-on sandbox is up that by what is kept in this
// home is not to be: brought up from another one, or left by a down that was cut
// short.
func notYours(wanted bool, members []engine.Member) bool {
	return !wanted && slices.ContainsFunc(members, func(m engine.Member) bool { return m.Purpose == engine.PurposeDaemon })
}

const notYoursNote = "it was not brought up from this home directory, or a corral down was cut short: if another user's corral up --watch looks after it, that brings it up again"

// sandboxes are the ids of members, each once.
func sandboxes(members []engine.Member) []string {
	var out []string
	for _, m := range members {
		if !slices.Contains(out, m.Sandbox) {
			out = append(out, m.Sandbox)
		}
	}
	return out
}
