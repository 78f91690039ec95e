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
// could not be told. The checker shares its user with the agent, so what it
// says counts only where nothing contradicts it.
func (e *Engine) Verify(ctx context.Context, gate, service string, s plan.Service) (*Proof, error) {
	status, err := e.GateStatus(ctx, gate)
	if err != nil {
		return nil, err
	}
	if wrong := unsound(status); wrong != "" {
		return nil, errors.New(wrong)
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
	if err != nil && !(errors.As(err, &exited) && exited.Status == 1) { // 1: a check failed
		return nil, fmt.Errorf("cannot tell: checker: %w", err)
	}
	after, askErr := e.Verdicts(ctx, gate, before.Mark)
	if askErr != nil {
		return nil, askErr
	}
	events, readErr := report.Read(bytes.NewReader(out))
	if readErr != nil {
		return nil, fmt.Errorf("cannot tell: checker's answer: %w", readErr)
	}
	section := report.Complete(s.Name, list.Checks, events)
	if section.Holds() != (exited == nil) {
		return nil, errors.New("cannot tell: the checker's status and its answers disagree")
	}
	for i, c := range list.Checks {
		section.Events[i] = report.Join(c, section.Events[i], after.Verdicts)
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
