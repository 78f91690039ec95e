package cli

import (
	"context"
	"slices"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/secret"
)

// assembly is a sandbox that was brought up, whose agent is not started yet.
type assembly struct {
	parts []*brought // in the order in which they were started: the agent's is the last
}

// brought is a gate that serves, and the services behind it.
type brought struct {
	gate     *engine.Gate
	services []container // in the order of the plan
}

type container struct{ name, id string }

// gate is the agent's.
func (s *assembly) gate() *engine.Gate { return s.parts[len(s.parts)-1].gate }

// agent is the container in which the harness is to run.
func (s *assembly) agent() string { return s.standing().Services[plan.Main] }

func (s *assembly) standing() engine.Standing {
	up := engine.Standing{Gates: map[string]string{}, Services: map[string]string{}}
	for _, p := range s.parts {
		up.Gates[p.gate.Name] = p.gate.ID
		for _, c := range p.services {
			up.Services[c.name] = c.id
		}
	}
	return up
}

// shape is the plan as far as it does not depend on free addresses.
func (p *project) shape() (*plan.Plan, error) {
	return plan.Build(p.policy, p.profile, p.host, plan.Addresses{}, nil)
}

// secretsOf are those that a service is given.
func (p *project) secretsOf(s plan.Service) []secret.Var {
	return slices.DeleteFunc(slices.Clone(p.secrets), func(v secret.Var) bool { return !slices.Contains(s.Secrets, v.Name) })
}

// bring brings up a sandbox to the point where its agent can be started, on a terminal
// t; what serves the agent runs by then. Another one of the same policy is in its way,
// also what is left of one.
func (a *app) bring(ctx context.Context, e *engine.Engine, p *project, purpose string, args []string, t engine.Terminal) (*assembly, error) {
	shape, err := p.shape()
	if err != nil {
		return nil, err
	}
	done, err := making(p.id())
	if err != nil {
		return nil, err
	}
	defer done()
	up, at := &assembly{}, plan.Addresses{}
	for _, g := range shape.Gates {
		part, err := a.bringPart(ctx, e, p, g.Name, at, purpose, args, &t)
		if err == nil {
			up.parts = append(up.parts, part)
			at = at.With(engine.AddressesOf([]engine.Member{part.gate.Member()}))
			err = a.serving(ctx, e, part)
		}
		if err != nil {
			a.end(ctx, e, up)
			return nil, err
		}
	}
	return up, nil
}

// serving starts the services of a part that serve others.
func (a *app) serving(ctx context.Context, e *engine.Engine, part *brought) error {
	for _, c := range part.services {
		if c.name == plan.Main {
			continue
		}
		if err := e.Begin(ctx, c.id, part.gate.Service(c.name)); err != nil {
			return err
		}
	}
	return nil
}

// bringPart brings up a gate beside those that are up, and makes the services behind
// it. The agent's is on the terminal t, or on one that stays if that is nil.
func (a *app) bringPart(ctx context.Context, e *engine.Engine, p *project, name string, up plan.Addresses, purpose string, args []string, t *engine.Terminal) (*brought, error) {
	if !p.accepted {
		return nil, errNotAccepted
	}
	guests, err := host.FindGuests()
	if err != nil {
		return nil, err
	}
	if p.network, p.host.Subnet, err = inForce(ctx, e); err != nil {
		return nil, err
	}
	e.Trusted = p.host.Certificates
	g, err := e.StartGate(ctx, guests, p.network, name, purpose, p.draft(ctx, e, up, args))
	if err != nil {
		return nil, err
	}
	part := &brought{gate: g}
	for _, s := range g.Plan.Services {
		if s.Gate != name {
			continue
		}
		term := engine.TerminalOf(s, purpose)
		if t != nil && s.Console {
			term = *t
		}
		id, err := e.CreateService(ctx, g, s, p.secretsOf(s), term)
		if err != nil {
			a.endPart(ctx, e, part)
			return nil, err
		}
		part.services = append(part.services, container{s.Name, id})
	}
	return part, nil
}

// end takes a sandbox away, and says so if it could not. It reports whether all
// of it is gone.
func (a *app) end(ctx context.Context, e *engine.Engine, up *assembly) bool {
	all := true
	for _, part := range slices.Backward(up.parts) {
		all = a.endPart(ctx, e, part) && all
	}
	return all
}

// endPart does so with a gate and what is behind it.
func (a *app) endPart(ctx context.Context, e *engine.Engine, part *brought) bool {
	var ids []string
	for _, c := range part.services {
		ids = append(ids, c.id)
	}
	left := e.End(ctx, part.gate, ids...)
	if left != nil {
		a.sayf("not everything of %s was removed (corral down does it): %v", part.gate.Plan.ID, left)
	}
	return left == nil
}
