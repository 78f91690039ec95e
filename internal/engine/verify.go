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

// Verify runs a service's checks inside it and joins what they saw with what
// the gate did. Every planned check gives one event; one that did not arrive
// could not be told.
func (e *Engine) Verify(ctx context.Context, gate, service string, s plan.Service) ([]spec.Event, error) {
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
	return join(list, out, after.Verdicts)
}

func join(list spec.Verify, out []byte, verdicts []spec.Verdict) ([]spec.Event, error) {
	arrived := map[string]spec.Event{}
	for line := range bytes.Lines(out) {
		var ev spec.Event
		if err := spec.Decode(bytes.NewReader(line), &ev); err != nil {
			return nil, fmt.Errorf("checker's answer: %w", err)
		}
		if ev.Version != spec.Version {
			return nil, fmt.Errorf("checker's answer has version %d, not %d", ev.Version, spec.Version)
		}
		if _, twice := arrived[ev.Check]; twice {
			return nil, fmt.Errorf("checker answered %s twice", ev.Check)
		}
		arrived[ev.Check] = ev
	}
	var events []spec.Event
	for _, c := range list.Checks {
		ev, ok := arrived[c.Name]
		if !ok {
			ev = spec.Event{Version: spec.Version, Check: c.Name, Result: spec.Untold, Detail: "the checker did not answer"}
		}
		ev.Service = list.Service
		events = append(events, report.Join(ev, verdicts))
	}
	return events, nil
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
