package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Member is one container of a sandbox.
type Member struct {
	ID       string
	Name     string
	Service  string
	Role     string
	Sandbox  string
	Running  bool
	Address  netip.Addr // a gate's planned address
	Instance string     // the gate instance that a service was started behind
	State    string     // the engine's word: running, exited, created…
	Policy   string
	Digest   string       // of the policy that it was made from
	Inode    string       // of the policy file, see plan.Plan
	Shields  []plan.Mount // those of a service
	// Furniture is what the profile brought a service.
	Furniture []plan.Mount
	Relays    []string // what a gate needs carried from the host
	Purpose   string
	Owner     string // the process that looks after it
}

// Members lists the containers of the sandbox of a policy file, whatever its
// name was when it was brought up; of all sandboxes for an empty path.
func (e *Engine) Members(ctx context.Context, policy string) ([]Member, error) {
	label := labelSandbox
	if policy != "" {
		label = labelPolicy + "=" + policy
	}
	list, err := e.ours(ctx, label)
	if err != nil {
		return nil, err
	}
	var out []Member
	for _, c := range list {
		m := Member{
			ID:       c.ID,
			Name:     strings.TrimPrefix(slices.Concat(c.Names, []string{""})[0], "/"),
			Service:  c.Labels[labelService],
			Role:     c.Labels[labelRole],
			Sandbox:  c.Labels[labelSandbox],
			Running:  c.State == "running",
			State:    c.State,
			Instance: c.Labels[labelInstance],
			Policy:   c.Labels[labelPolicy],
			Digest:   c.Labels[labelDigest],
			Inode:    c.Labels[labelInode],
			Purpose:  c.Labels[labelPurpose],
			Owner:    c.Labels[labelOwner],
			Relays:   splitNeeds(c.Labels[labelRelays]),
		}
		if a, err := netip.ParseAddr(c.Labels[labelAddress]); err == nil {
			m.Address = a
		}
		for name, mounts := range map[string]*[]plan.Mount{labelShields: &m.Shields, labelFurniture: &m.Furniture} {
			if label := c.Labels[name]; label != "" {
				if *mounts, err = parseMounts(label); err != nil {
					return nil, fmt.Errorf("container %s: label %s: %w", m.Name, name, err)
				}
			}
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Unattended says that the corral that looked after it is gone.
func (m Member) Unattended() bool { return ownerLife(m.Owner) == gone }

// Down takes containers away: what joins gates first, gates last. What relays
// did for them ends, and a relay that serves nobody goes, whoever left it.
func (e *Engine) Down(ctx context.Context, members []Member) error {
	var services, gates []string
	for _, m := range members {
		if m.Role == RoleGate {
			gates = append(gates, m.ID)
		} else {
			services = append(services, m.ID)
		}
	}
	return errors.Join(e.removeAll(ctx, services), e.takeAway(ctx, "", gates...))
}

// Clear removes what a corral that was cut short left of a policy's sandbox.
// One that is up, or being brought up by a living process, is Running. Only
// what was judged is removed: what comes into being meanwhile is another's.
func (e *Engine) Clear(ctx context.Context, policy string) error {
	members, err := e.Members(ctx, policy)
	if err != nil {
		return err
	}
	if err := leftovers(members); err != nil || len(members) == 0 {
		return err
	}
	return e.Down(ctx, members)
}

// leftovers is nil if nobody needs any of the members any more.
func leftovers(members []Member) error {
	for _, m := range members {
		switch {
		case m.Role == RoleService && m.Running && !(m.Purpose != PurposeRun && m.Unattended()):
			return &Running{ID: m.Sandbox, Unattended: m.Unattended()}
		case m.Role == RoleGate && !m.Unattended():
			return &Running{ID: m.Sandbox}
		}
	}
	return nil
}

// Sweep removes the containers of all sandboxes and tools of a purpose whose
// corral is gone.
func (e *Engine) Sweep(ctx context.Context, purpose string) error {
	list, err := e.ours(ctx, labelPurpose+"="+purpose)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if ownerLife(c.Labels[labelOwner]) == gone {
			errs = append(errs, e.remove(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}

// Health is what is known of one service.
type Health struct {
	Service string `json:"service"`
	State   string `json:"state"` // running, or what is wrong in plain words
	OK      bool   `json:"ok"`
	// Gate is what the gate said; nil if it did not answer.
	Gate *spec.GateStatus `json:"gate,omitempty"`
}

// Health looks at every service of a sandbox and at the gate it is behind. A
// gate without a service is told as well.
func (e *Engine) Health(ctx context.Context, members []Member) []Health {
	gates, services := map[string]Member{}, map[string]Member{}
	for _, m := range members {
		switch m.Role {
		case RoleGate:
			gates[m.Service] = m
		case RoleService:
			services[m.Service] = m
		}
	}
	var out []Health
	for _, name := range slices.Sorted(maps.Keys(services)) {
		var status *spec.GateStatus
		gate, there := gates[name]
		if there && gate.Running {
			if got, err := e.GateStatus(ctx, gate.ID); err == nil {
				status = &got
			}
		}
		out = append(out, health(services[name], gate, status))
	}
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		if _, there := services[name]; !there {
			out = append(out, Health{Service: name, State: "not started (there is a gate only)"})
		}
	}
	return out
}

// health judges a service by itself, its gate, and what that gate says.
func health(service, gate Member, status *spec.GateStatus) Health {
	h := Health{Service: service.Service, Gate: status}
	switch {
	case !gate.Running:
		h.State = "no network (gate is gone)"
	case status == nil:
		h.State = "gate does not answer"
	case !service.Running:
		h.State = service.State
	case status.Instance != service.Instance:
		h.State = "no network (gate was replaced)"
	case unsound(*status) != "":
		h.State = unsound(*status)
	case service.Unattended():
		h.State = "running on, but the corral that looked after it is gone (corral down ends it)"
	default:
		h.State, h.OK = "running", true
	}
	return h
}

// unsound says what is wrong with a gate by its own account, empty if nothing
// is. Digests that are not there agree about nothing.
func unsound(s spec.GateStatus) string {
	switch {
	case s.State != spec.GateReady:
		return "no network (gate is closed)"
	case s.Applied == "" || s.Applied != s.ReadBack:
		return "the gate's rules are not what it wrote"
	}
	return ""
}
