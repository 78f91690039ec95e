package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Proof is what a service's checks gave, and under which rules.
type Proof struct {
	report.Section
	Rules string // digest of the gate's rules and sets as the kernel has them
}

// Verify runs a service's checks inside it and joins what they saw with what
// the gate did. Every planned check gives one event; one that did not arrive
// could not be told.
func (e *Engine) Verify(ctx context.Context, gate, service string, s plan.Service) (*Proof, error) {
	status, err := e.GateStatus(ctx, gate)
	if err != nil {
		return nil, err
	}
	peers, err := e.peers(ctx, gate)
	if err != nil {
		return nil, err
	}
	list := spec.Verify{Version: spec.Version, Service: s.Name, Checks: plan.Join(plan.Peers(s.Verify, peers), status)}
	before, err := e.Verdicts(ctx, gate, 0)
	if err != nil {
		return nil, err
	}
	out, err := e.exec(ctx, service, spec.Encode(list), spec.GuestDir+"/bin/corral-verify")
	var exited *ExecError
	if err != nil && !errors.As(err, &exited) {
		return nil, fmt.Errorf("checker: %w", err)
	}
	if exited != nil && len(out) == 0 {
		return nil, fmt.Errorf("checker: %w", err)
	}
	after, err := e.Verdicts(ctx, gate, before.Mark)
	if err != nil {
		return nil, err
	}
	events, err := report.Read(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("checker's answer: %w", err)
	}
	section := report.Complete(s.Name, list.Checks, events)
	for i, ev := range section.Events {
		section.Events[i] = report.Join(ev, after.Verdicts)
	}
	return &Proof{Section: section, Rules: status.ReadBack}, nil
}

// peers are the gates of other sandboxes that are up now.
func (e *Engine) peers(ctx context.Context, gate string) (map[string]netip.Addr, error) {
	members, err := e.Members(ctx, "")
	if err != nil {
		return nil, err
	}
	var own string
	for _, m := range members {
		if m.ID == gate {
			own = m.Sandbox
		}
	}
	peers := map[string]netip.Addr{}
	for _, m := range members {
		if m.Role == RoleGate && m.Running && m.Sandbox != own && m.Address.IsValid() {
			peers[m.Sandbox+"/"+m.Service] = m.Address
		}
	}
	return peers, nil
}
