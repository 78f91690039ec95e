package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) verify() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Prove the fence from the inside",
		Long: `Runs every check of the policy inside the sandbox and asks the gate to confirm
what was refused. If the sandbox is not up, one is brought up for the purpose.
Exit 1 if a check failed or could not be told.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := a.load()
			if err != nil {
				return err
			}
			e, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			events, err := a.prove(c.Context(), e, p)
			if err != nil {
				return err
			}
			return a.verdict(events, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "a stream of JSON events")
	return c
}

// prove verifies the sandbox that is up, or a throw-away one.
func (a *app) prove(ctx context.Context, e *engine.Engine, p *project) (events []spec.Event, err error) {
	members, err := e.Members(ctx, p.id())
	if err != nil {
		return nil, err
	}
	var gate, service engine.Member
	for _, m := range members {
		switch {
		case m.Role == engine.RoleGate:
			gate = m
		case m.Role == engine.RoleService && m.Running:
			service = m
		}
	}
	if service.ID != "" {
		return a.proveRunning(ctx, e, p, gate, service)
	}
	g, id, err := a.bring(ctx, e, p, []string{"sleep", "infinity"}, engine.Terminal{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.End(ctx, g, id)) }()
	stream, err := e.Start(ctx, id)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	events, err = e.Verify(ctx, g.ID, id, g.Plan.Services[0])
	if err != nil {
		if said := stream.LastWords(ctx); said != "" {
			return nil, fmt.Errorf("%w (the service said: %s)", err, diag.Escape(said))
		}
	}
	return events, err
}

func (a *app) proveRunning(ctx context.Context, e *engine.Engine, p *project, gate, service engine.Member) ([]spec.Event, error) {
	for _, h := range e.Health(ctx, []engine.Member{gate, service}) {
		if !h.OK {
			return nil, fmt.Errorf("%s: %s", h.Service, h.State)
		}
	}
	planned, err := p.draft(ctx, e, nil)(gate.Address)
	if err != nil {
		return nil, err
	}
	return e.Verify(ctx, gate.ID, service.ID, planned.Services[0])
}

