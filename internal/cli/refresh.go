package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) refresh() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "refresh",
		Short: "Resolve the names anew, in place",
		Long: `Gives the gate of the sandbox that is up the names of the policy as it is now, and
resolves them. Nothing is restarted, and at no moment is more open than the old
names or the new ones grant. What was taken away is gone first, and connections
to it end; those to what is still allowed live on. If a lookup fails the name
keeps the addresses that it had. If connections could not be ended that is told,
with exit 1, though the new names are in force. Whatever else of the policy was
changed is refused here: a refresh cannot change it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				done, err := a.refreshNow(c.Context(), e, p)
				if err != nil {
					return err
				}
				if asJSON {
					_, err := a.out.Write(document(done))
					return cmp.Or(err, unended(done.Unended))
				}
				return showRefreshed(a.out, done)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	a.acceptFlag(c)
	return c
}

func (a *app) refreshNow(ctx context.Context, e *engine.Engine, p *project) (spec.Refreshed, error) {
	var none spec.Refreshed
	members, err := e.Members(ctx, p.policy.File)
	if err != nil {
		return none, err
	}
	gate, service := running(members)
	if service.ID == "" || gate.ID == "" {
		return none, exit.Failedf(a.starter()+" resolves all names when it starts", "nothing of %s is up", p.policy.File)
	}
	switch _, wrong, err := e.GateWrong(ctx, gate); {
	case err != nil:
		return none, err
	case wrong != "":
		return none, exit.Failedf(cure(service, "corral down ends it"), "the gate: %s", wrong)
	}
	if err := a.agreed(ctx, p); err != nil {
		return none, err
	}
	if service.Purpose == engine.PurposeDaemon { // a run holds this itself
		members, unlock, err := a.alone(ctx, e, p.policy.File, p.id())
		if err != nil {
			return none, err
		}
		defer unlock()
		if gate, service = running(members); gate.ID == "" || service.ID == "" {
			return none, engine.ErrTakenDown
		}
	}
	guests, err := host.FindGuests()
	if err != nil {
		return none, err
	}
	if err := p.asUp(ctx, e, service); err != nil {
		return none, err
	}
	now, err := p.sketch(ctx, e, guests, members, gate)
	if err != nil {
		return none, err
	}
	var differs []string
	for _, m := range []engine.Member{gate, service} {
		parts, err := e.Differs(now, p.secrets, m)
		if err != nil {
			return none, err
		}
		differs = append(differs, parts...)
	}
	if gate.Sandbox != p.id() {
		differs = append(differs, "the name of the sandbox")
	}
	if slices.Sort(differs); len(differs) > 0 {
		hint := "corral down ends it; the next corral run is by the policy as it is now"
		if service.Purpose == engine.PurposeDaemon {
			hint = "corral up makes anew what differs"
		}
		return none, exit.Invalidf(hint, "a refresh changes names alone, and this differs from what is up: %s", strings.Join(slices.Compact(differs), ", "))
	}
	done, err := e.Refresh(ctx, now)
	if err == nil && p.unboundBy(service) {
		a.sayf("%s", bindGone)
	}
	return done, err
}

// nothingRefreshed is what is said where all is as it was.
const nothingRefreshed = "no name differs\n"

// showRefreshed says what a refresh changed. Connections that should have ended
// and go on are an error.
func showRefreshed(w io.Writer, done spec.Refreshed) error {
	var rows []string
	for _, d := range done.Added {
		rows = append(rows, "added    "+cell(d))
	}
	for _, d := range done.Removed {
		rows = append(rows, "removed  "+cell(d))
	}
	for _, p := range done.Pins {
		if p.Failed != "" {
			rows = append(rows, fmt.Sprintf("kept     %s as it was: %s", cell(p.Domain), cell(p.Failed)))
		}
	}
	for _, u := range done.Unpinned {
		rows = append(rows, fmt.Sprintf("closed   %s: %s", cell(u.Domain), cell(u.Reason)))
	}
	if len(done.Added) > 0 { // it was told before otherwise
		for _, s := range spec.SharedAddresses(done.Pins) {
			rows = append(rows, "notice   "+cut(printable.Escape(s.String()), mostState))
		}
	}
	for _, s := range done.Silent {
		rows = append(rows, fmt.Sprintf("silent   %s: accepts no connection on %s: %s: the next start of the gate would refuse it (liveness: false in its entry lets it)",
			cell(s.Domain), anyOf(s.Ports), cell(s.Why)))
	}
	for _, s := range done.Shared {
		rows = append(rows, fmt.Sprintf("shared   %s is gone, and what it had open to %s (%s) lives on: %s has the same address", cell(s.Removed), cell(fmt.Sprintf("%v:%d", s.Addr, s.Port)), printable.Count(s.Flows, "connection"), cell(s.With)))
	}
	if done.Ended > 0 {
		rows = append(rows, fmt.Sprintf("ended    %s to what is not allowed any more", printable.Count(done.Ended, "connection")))
	}
	if n := len(rows) - mostRefreshed; n > 0 {
		rows = append(rows[:mostRefreshed], fmt.Sprintf("and %d more (--json has them)", n))
	}
	if done.Unended != "" { // never among what is cut
		rows = append(rows, "not ended: connections to what is not allowed any more: "+cut(printable.Escape(done.Unended), mostState))
	}
	if len(rows) == 0 {
		rows = []string{strings.TrimSuffix(nothingRefreshed, "\n")}
	}
	_, err := fmt.Fprintln(w, strings.Join(rows, "\n"))
	return cmp.Or(err, unended(done.Unended))
}

// anyOf are ports of which one is enough, in words.
func anyOf(ports []uint16) string {
	if len(ports) == 1 {
		return fmt.Sprintf("port %d", ports[0])
	}
	return "any of its ports " + strings.Trim(fmt.Sprint(ports), "[]")
}

// unended is the error of a refresh that is in force and could not end what it
// should have, for a reason of the gate's; none if that is empty.
func unended(why string) error {
	if why == "" {
		return nil
	}
	return exit.Failedf("the policy is in force, and the gate tries again until they have ended: corral status says whether they have; corral down ends all of them",
		"%w: %s", errUnended, cut(printable.Escape(why), mostState))
}

var errUnended = errors.New("connections to what is not allowed any more go on")

// mostRefreshed bounds what is shown of a refresh.
const mostRefreshed = 60
