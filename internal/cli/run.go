package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) run() *cobra.Command {
	return &cobra.Command{
		Use:   "run [-- COMMAND [ARGS…]]",
		Short: "Run the agent in this project, behind the fence",
		Long: `Brings up a gate, waits until it has proven its rules, then starts the agent
behind it on this terminal. Both are gone afterwards; the exit status is the
agent's.`,
		Example: `  corral run
  corral run -- sh -c 'make && make test'
  echo question | corral run -- my-agent`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 && c.ArgsLenAtDash() != 0 {
				return exit.Invalidf("write corral run -- "+strings.Join(args, " "), "the agent's command goes after --")
			}
			return a.runAgent(c.Context(), args)
		},
	}
}

func (a *app) runAgent(ctx context.Context, args []string) error {
	p, err := a.load()
	if err != nil {
		return err
	}
	e, err := a.connect(ctx)
	if err != nil {
		return err
	}
	t := engine.Terminal{TTY: terminal(a.in) && terminal(a.out), Stdin: true}
	g, id, err := a.bring(ctx, e, p, args, t)
	if err != nil {
		return err
	}
	defer func() {
		// The agent's status stands, whatever becomes of its containers.
		if left := e.End(ctx, g, id); left != nil {
			fmt.Fprintf(a.err, "corral: not everything of %s was removed (corral down does it): %v\n", g.Plan.ID, left)
		}
	}()
	code, err := e.Attach(ctx, id, t, a.in, a.out, a.err)
	if err != nil {
		return err
	}
	a.denied(ctx, e, g)
	if code != 0 {
		return exit.Status(code)
	}
	return nil
}

// bring brings up a sandbox to the point where its service can be started.
func (a *app) bring(ctx context.Context, e *engine.Engine, p *project, args []string, t engine.Terminal) (*engine.Gate, string, error) {
	guests, err := host.FindGuests()
	if err != nil {
		return nil, "", err
	}
	if err := e.Clear(ctx, p.id()); err != nil {
		return nil, "", err
	}
	g, err := e.StartGate(ctx, guests, p.network, p.draft(ctx, e, args))
	if err != nil {
		return nil, "", a.gateFailed(err)
	}
	id, err := e.CreateService(ctx, g, g.Plan.Services[0], t)
	if err != nil {
		return nil, "", errors.Join(err, e.End(ctx, g))
	}
	return g, id, nil
}

// gateFailed shows what a gate that stayed closed had to say.
func (a *app) gateFailed(err error) error {
	var failed *engine.GateFailed
	if !errors.As(err, &failed) {
		return err
	}
	for _, line := range failed.Log {
		fmt.Fprintln(a.err, printable.Escape(line))
	}
	if failed.Status == exit.Invalid {
		return exit.Failedf("", "%w", err)
	}
	return err
}

// denied says in one line what the agent asked for and did not get, and
// whether its gate is still there.
func (a *app) denied(ctx context.Context, e *engine.Engine, g *engine.Gate) {
	status, err := e.GateStatus(context.WithoutCancel(ctx), g.ID)
	if err != nil {
		fmt.Fprintln(a.err, "corral: the gate ended during the run: the agent was without a network")
		return
	}
	if line := summary(status); line != "" {
		fmt.Fprintln(a.err, "corral: denied:", line)
	}
}

// mostShown bounds a line: the rest is counted.
const mostShown = 5

func summary(s spec.GateStatus) string {
	var parts []string
	for _, n := range s.RefusedNames {
		parts = append(parts, printable.Escape(n.Name)+times(n.Count))
	}
	for _, d := range s.Denied {
		to := d.Addr.String()
		if d.Port != 0 {
			to = fmt.Sprintf("%v:%d", d.Addr, d.Port)
		}
		parts = append(parts, d.Proto+" "+to+times(d.Count))
	}
	if more := len(parts) - mostShown; more > 0 {
		parts = append(parts[:mostShown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

func times(n uint64) string {
	if n <= 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times)", n)
}
