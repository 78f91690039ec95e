package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/secret"
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
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				proof, err := a.prove(c.Context(), e, p)
				if err != nil {
					return err
				}
				if asJSON {
					return a.showJSON(p, proof)
				}
				return a.show(proof)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "a stream of JSON events")
	a.acceptFlag(c)
	return c
}

// prove verifies the sandbox that is up, or a throw-away one.
func (a *app) prove(ctx context.Context, e *engine.Engine, p *project) (proof *engine.Proof, err error) {
	members, err := e.Members(ctx, p.policy.File)
	if err != nil {
		return nil, err
	}
	gate, service := running(members)
	if service.ID != "" {
		return a.proveRunning(ctx, e, p, members, gate, service)
	}
	if gate.Purpose == engine.PurposeDaemon {
		return nil, exit.Failedf("corral up starts it", "%s: not started (there is a gate only)", gate.Service)
	}
	unlock, err := a.begin(ctx, e, p, toBuild)
	if err != nil {
		return nil, err
	}
	defer unlock()
	w := a.lookBack(ctx, p, nil) // what the image brings is the agent's as well
	g, id, err := a.bring(ctx, e, p, engine.PurposeVerify, []string{"sleep", "infinity"}, engine.Terminal{})
	if err != nil {
		w.abandon(p)
		return nil, err
	}
	defer func() {
		gone := a.end(ctx, e, g, id)
		w.end(ctx, a, p, gone)
	}()
	if err := w.begun(ctx); err != nil {
		return nil, err
	}
	stream, err := e.Start(ctx, id)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	proof, err = e.Verify(ctx, g.ID, id, g.Plan.Services[0])
	if err != nil {
		if said := stream.LastWords(ctx); said != "" {
			return nil, fmt.Errorf("%w (the service said: %s)", err, printable.Escape(said))
		}
	}
	return proof, err
}

// running are the gate and the service of a run that is up, or of a sandbox that
// is always on, however its service is; the service is zero if there is none.
func running(members []engine.Member) (gate, service engine.Member) {
	for _, m := range members {
		switch {
		case m.Role == engine.RoleGate:
			gate = m
		case m.Role == engine.RoleService && (m.Running && m.Purpose == engine.PurposeRun || m.Purpose == engine.PurposeDaemon):
			service = m
		}
	}
	return gate, service
}

// outdated says how what is up differs from the policy as it is now, empty if
// it does not.
func (p *project) outdated(members []engine.Member, gate *spec.GateStatus) string {
	now := policy.Seen{Dev: p.policy.Self.Dev, Ino: p.policy.Self.Ino, Digest: p.policy.Digest}
	switch gone := unbound(now, members); {
	case changed(now, members, gate):
		wrong := fmt.Sprintf("the sandbox that is up (%s) was made from another version of %s", members[0].Sandbox, p.policy.File)
		if gone {
			wrong += "; " + bindGone
		}
		return wrong
	case gone:
		return bindGone
	}
	return ""
}

// well is what the gate of a service says, if the two are as they should be.
func well(ctx context.Context, e *engine.Engine, gate, service engine.Member) (spec.GateStatus, error) {
	h := e.Health(ctx, []engine.Member{gate, service})[0] // a service is always told
	if !h.OK || h.Gate == nil {
		return spec.GateStatus{}, exit.Failedf(cure(service, ""), "%s: %s", h.Service, h.State)
	}
	return *h.Gate, nil
}

// cure is what brings right what is wrong with a service; once is said of one
// that is not always on.
func cure(service engine.Member, once string) string {
	if service.Purpose == engine.PurposeDaemon {
		return "corral up heals it"
	}
	return once
}

// show prints a proof as lines and turns it into the exit status.
func (a *app) show(proof *engine.Proof) error {
	tally, err := report.Text(a.out, []report.Section{proof.Section}, a.colour())
	return verdict(tally, err)
}

// showJSON prints it as a stream of events.
func (a *app) showJSON(p *project, proof *engine.Proof) error {
	tally, err := report.JSON(a.out, report.Header{
		Time:     time.Now().UTC(),
		Sandbox:  p.id(),
		Versions: map[string]string{"corral": spec.Release()},
		Digests:  map[string]string{"policy": p.policy.Digest, "rules": proof.Rules},
	}, []report.Section{proof.Section})
	return verdict(tally, err)
}

func verdict(t report.Tally, err error) error {
	if err == nil && !t.OK() {
		return exit.Status(exit.Failed)
	}
	return err
}

func (a *app) proveRunning(ctx context.Context, e *engine.Engine, p *project, members []engine.Member, gate, service engine.Member) (*engine.Proof, error) {
	status, err := well(ctx, e, gate, service)
	if err != nil {
		return nil, err
	}
	if wrong := p.outdated(members, &status); wrong != "" {
		return nil, exit.Failedf(cure(service, "corral down ends it; the next verify proves the policy as it is now"), "cannot tell: %s", wrong)
	}
	if err := p.asUp(ctx, e, service); err != nil {
		return nil, err
	}
	planned, err := p.draft(ctx, e, nil)(gate.Address)
	if err != nil {
		return nil, err
	}
	return e.Verify(ctx, gate.ID, service.ID, planned.Services[0])
}

// asUp takes from a service that is up, and from this machine, what else its
// plan needs: what depends on how the machine looked at the start is as it was.
func (p *project) asUp(ctx context.Context, e *engine.Engine, service engine.Member) error {
	var err error
	if p.network, p.host.Subnet, err = inForce(ctx, e); err != nil {
		return err
	}
	p.host.Shields, p.host.Furniture = service.Shields, service.Furniture
	p.secrets, err = p.variables()
	p.host.Secrets = names(p.secrets)
	return err
}

// sketch is the sandbox as it would be made now behind a gate that is up.
func (p *project) sketch(ctx context.Context, e *engine.Engine, guests host.Guests, gate engine.Member) (*engine.Gate, error) {
	if err := p.identity(ctx); err != nil {
		return nil, err
	}
	planned, err := p.draft(ctx, e, nil)(gate.Address)
	if err != nil {
		return nil, err
	}
	g, err := e.Sketch(guests, planned, gate.Purpose)
	if err != nil {
		return nil, err
	}
	g.ID = gate.ID
	return g, nil
}

// variables are what the policy's env_file says.
func (p *project) variables() ([]secret.Var, error) {
	if p.policy.EnvFile.Path == "" {
		return nil, nil
	}
	owners := []uint32{p.host.UID}
	if os.Geteuid() == 0 {
		owners = append(owners, 0)
	}
	return secret.Load(p.policy.EnvFile.Path, owners...)
}

func names(vars []secret.Var) []string {
	var out []string
	for _, v := range vars {
		out = append(out, v.Name)
	}
	return out
}
