package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

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
	Owner    string // the process that brought a gate up
}

// Members lists the containers of one sandbox, or of all for an empty id.
func (e *Engine) Members(ctx context.Context, sandbox string) ([]Member, error) {
	label := labelSandbox
	if sandbox != "" {
		label += "=" + sandbox
	}
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
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
			Owner:    c.Labels[labelOwner],
		}
		if a, err := netip.ParseAddr(c.Labels[labelAddress]); err == nil {
			m.Address = a
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Down takes a sandbox away: what joins gates first, gates last. It reports
// how many containers went.
func (e *Engine) Down(ctx context.Context, sandbox string) (int, error) {
	members, err := e.Members(ctx, sandbox)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, gates := range []bool{false, true} {
		for _, m := range members {
			if (m.Role == RoleGate) == gates {
				errs = append(errs, e.remove(ctx, m.ID))
			}
		}
	}
	return len(members), errors.Join(errs...)
}

// Clear removes what a run that was cut short left of a sandbox. One that is
// up, or being brought up by a living process, is Running.
func (e *Engine) Clear(ctx context.Context, sandbox string) error {
	members, err := e.Members(ctx, sandbox)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Role == RoleService && m.Running || m.Role == RoleGate && ownerLife(m.Owner) != gone {
			return &Running{ID: sandbox}
		}
	}
	_, err = e.Down(ctx, sandbox)
	return err
}

// Health is what is known of one service.
type Health struct {
	Service string
	State   string // running, or what is wrong in plain words
	OK      bool
	Gate    *spec.GateStatus // nil if the gate did not answer
}

// Health looks at every service of a sandbox and at the gate it is behind.
func (e *Engine) Health(ctx context.Context, members []Member) []Health {
	gates := map[string]Member{}
	for _, m := range members {
		if m.Role == RoleGate {
			gates[m.Service] = m
		}
	}
	var out []Health
	for _, m := range members {
		if m.Role != RoleService {
			continue
		}
		h := Health{Service: m.Service, State: m.State}
		gate, there := gates[m.Service]
		switch {
		case !there || !gate.Running:
			h.State = "no network (gate is gone)"
		default:
			status, err := e.GateStatus(ctx, gate.ID)
			if err != nil {
				h.State = "gate does not answer"
				break
			}
			h.Gate = &status
			switch {
			case !m.Running:
				h.State = m.State
			case status.Instance != m.Instance:
				h.State = "no network (gate was replaced)"
			case status.State != spec.GateReady:
				h.State = "no network (gate is closed)"
			case status.Applied != status.ReadBack:
				h.State = "the gate's rules are not what it wrote"
			default:
				h.State, h.OK = "running", true
			}
		}
		out = append(out, h)
	}
	return out
}
