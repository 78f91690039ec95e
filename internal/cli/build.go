package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
)

func (a *app) build() *cobra.Command {
	c := &cobra.Command{
		Use:   "build",
		Short: "Build the images that the policy asks for",
		Long: `Builds the gate image and the image of the agent where something in them has
changed, and says for each whether it was. corral run and corral up do the same
by themselves; this does it beforehand, and starts nothing.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				return a.buildImages(c.Context(), p, e)
			})
		},
	}
	a.acceptFlag(c)
	return c
}

func (a *app) buildImages(ctx context.Context, p *project, e *engine.Engine) error {
	if err := a.agreed(ctx, p); err != nil {
		return err
	}
	if err := a.ready(ctx, p, toBuild); err != nil {
		return err
	}
	guests, err := host.FindGuests()
	if err != nil {
		return err
	}
	planned, err := p.draft(ctx, e, plan.Addresses{}, nil)(plan.Addresses{})
	if err != nil {
		return err
	}
	tree, err := render.Render(planned)
	if err != nil {
		return err
	}
	e.Trusted = p.host.Certificates
	gate, services, err := e.Build(ctx, guests, planned, tree)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "gate\t%s\t%s\n", built(gate), gate.Image)
	for i, s := range planned.Services {
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, built(services[i]), services[i].Image)
	}
	return w.Flush()
}

func built(b engine.Built) string {
	if b.Took == 0 {
		return "up to date"
	}
	return fmt.Sprintf("built in %v", b.Took.Round(100*time.Millisecond))
}
