package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/wayback"
)

func (a *app) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End this project's sandbox",
		Long: `Ends the agent, whatever it is doing, and removes its containers. It is asked
first (SIGTERM) and has 10 seconds to end by itself, which Ctrl-C cuts short. The
agent of a corral run that looks after it is ended at once.

A corral run that looks after it says that the sandbox was taken down, and exits
with 1; a corral up --watch of yours ends; one of another user's brings it up
again, since what is to be up is each user's own to say. One that corral enable
has started ends too, until the next boot or login. The project's image stays,
for the next run.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, file, members, err := a.here(c.Context())
			if err != nil {
				return err
			}
			is, err := wanted(file)
			if err != nil {
				return err
			}
			alone := false
			// A corral up that is busy with it would bring back what goes; a corral run
			// holds the lock for as long as it lives.
			if is && len(members) == 0 || slices.ContainsFunc(members, func(m engine.Member) bool { return m.Purpose == engine.PurposeDaemon }) {
				var unlock func()
				alone = true
				if members, unlock, err = a.alone(c.Context(), e, file); err != nil {
					return err
				}
				defer unlock()
			}
			if notYours(is, members) {
				a.sayf("%s", notYoursNote)
			}
			if err := unwanted(file); err != nil {
				return err
			}
			a.stopUnits(c.Context(), file)
			if err := errors.Join(e.Down(c.Context(), members), e.SweepTools(c.Context())); err != nil {
				return err
			}
			if len(members) == 0 {
				if err := a.tellUntold(c.Context(), file, notTold, alone); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "corral: nothing of %s is up\n", printable.Escape(file))
				return nil
			}
			for _, id := range sandboxes(members) {
				findings, err := changedSince(c.Context(), id)
				for _, m := range members {
					if m.Sandbox == id {
						findings = wayback.Join(findings, wayback.Lost(binds(m.Shields)))
					}
				}
				showFindings(a.err, id, findings, err)
				if err := keepBaseline(id, nil); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "corral: %s is down\n", id)
			}
			return a.tellUntold(c.Context(), file, notTold, alone)
		},
	}
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
