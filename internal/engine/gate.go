package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// attempts is how often an address that somebody else took is exchanged.
const attempts = 3

// Gate is a gate that proved its rules, one of those of its plan.
type Gate struct {
	Name   string
	ID     string
	Plan   *plan.Plan
	Tree   render.Tree
	Image  string
	Guests string // the volume of guest binaries
	// Purpose is what the sandbox was brought up for.
	Purpose string
}

// GateFailed is a gate that stayed closed, with its reasons, one a line.
type GateFailed struct {
	Reasons []string
	Hint    string
}

func (e *GateFailed) Error() string {
	if len(e.Reasons) == 0 {
		return "the gate ended and said nothing"
	}
	return "the gate stayed closed: " + strings.Join(e.Reasons, "\n  ")
}

// planned is what the plan says of it.
func (g *Gate) planned() plan.Gate {
	i := slices.IndexFunc(g.Plan.Gates, func(p plan.Gate) bool { return p.Name == g.Name })
	return g.Plan.Gates[i] // whoever made the one made the other
}

// Service is what the plan says of a service.
func (g *Gate) Service(name string) plan.Service {
	i := slices.IndexFunc(g.Plan.Services, func(s plan.Service) bool { return s.Name == name })
	return g.Plan.Services[i]
}

// Member is the gate's container, which runs.
func (g *Gate) Member() Member {
	p := g.planned()
	return Member{ID: g.ID, Name: render.GateContainer(g.Plan.ID, g.Name), Service: g.Name, Role: RoleGate, Sandbox: g.Plan.ID, Running: true,
		State: container.StateRunning, Address: p.Spec.Address, Link: p.Link, Policy: g.Plan.PolicyFile, Purpose: g.Purpose}
}

// Draft makes the plan once addresses are known to be free. Those of gates that are up
// are whoever drafts's to add.
type Draft func(plan.Addresses) (*plan.Plan, error)

// StartGate brings up the gate of that name of a plan: created, told, started, and
// proven by its own ready line. Nothing that joins it may be started before. On any
// error nothing of it is left.
func (e *Engine) StartGate(ctx context.Context, guests host.Guests, net plan.Network, name, purpose string, draft Draft) (*Gate, error) {
	if err := e.CheckNetwork(ctx, net); err != nil {
		return nil, err
	}
	image, err := e.GateImage(ctx, guests)
	if err != nil {
		return nil, err
	}
	e.lap("image of the gate")
	var conflict error
	for range attempts {
		g, err := e.createGate(ctx, image, guests, net, name, purpose, draft)
		if err != nil {
			return nil, err
		}
		e.lap("gate created")
		err = e.open(ctx, g)
		if err == nil {
			return g, nil
		}
		if cleanup := e.End(ctx, g); cleanup != nil {
			return nil, errors.Join(err, cleanup)
		}
		if !addressTaken(err) {
			return nil, err
		}
		conflict = err
	}
	return nil, conflict
}

func addressTaken(err error) bool { return strings.Contains(err.Error(), "Address already in use") }

// createGate creates a gate on a free address, with the guest binaries proven,
// its document in place, and what it needs of the host carried there.
func (e *Engine) createGate(ctx context.Context, image string, guests host.Guests, net plan.Network, name, purpose string, draft Draft) (g *Gate, err error) {
	unlock, err := e.lock(ctx, image)
	if err != nil {
		return nil, err
	}
	defer func() {
		if left := unlock(); left != nil {
			e.Progress("the machine-wide lock was not given back: %v", left)
		}
	}()
	used, err := e.used(ctx, net)
	if err != nil {
		return nil, err
	}
	address, err := net.Free(used)
	if err != nil {
		return nil, err
	}
	at := plan.Addresses{Gates: map[string]netip.Addr{name: address}}
	p, err := draft(at)
	if err != nil {
		return nil, err
	}
	if p.Linked() {
		if at.Links, err = e.ensureLinks(ctx, p); err != nil {
			return nil, err
		}
		if p, err = draft(at); err != nil {
			return nil, err
		}
	}
	if err := e.bindable(p); err != nil {
		return nil, err
	}
	tree, err := render.Render(p)
	if err != nil {
		return nil, err
	}
	g = &Gate{Name: name, Plan: p, Tree: tree, Image: image, Guests: guestName(guests), Purpose: purpose}
	made := e.gateRequest(g, net, address)
	made.config.Labels[labelConfig] = gateParts(g, made).String()
	for filled := false; ; filled = true {
		g.ID, err = e.create(ctx, made)
		if errdefs.IsConflict(err) {
			return nil, &Running{ID: p.ID, Daemon: purpose == PurposeDaemon}
		}
		if err != nil {
			return nil, fmt.Errorf("gate of %s: %w", p.ID, err)
		}
		err = e.checkGuests(ctx, g.ID, guests)
		if err == nil {
			break
		}
		if left := e.remove(ctx, g.ID); left != nil || filled || !errors.As(err, new(*otherFiles)) {
			return nil, errors.Join(err, left)
		}
		if err := e.fillGuests(ctx, image, g.Guests); err != nil {
			return nil, err
		}
	}
	if err := e.link(ctx, g); err != nil {
		return nil, errors.Join(err, e.remove(ctx, g.ID))
	}
	told := render.Tree{"etc/corral/gate.json": tree[render.GateSpec(name)]}
	if err := e.api.CopyToContainer(ctx, g.ID, "/", told.Tar(), container.CopyToContainerOptions{}); err != nil {
		err = e.unlessTakenDown(ctx, g.ID, fmt.Errorf("gate of %s: %w", p.ID, err))
		return nil, errors.Join(err, e.remove(ctx, g.ID))
	}
	if err := e.carry(ctx, image, g); err != nil {
		return nil, errors.Join(err, e.dismiss(ctx, g.ID))
	}
	return g, nil
}

// bindable refuses a plan with a mount that the engine cannot make, or that a
// service could not read.
func (e *Engine) bindable(p *plan.Plan) error {
	for _, s := range p.Services {
		if err := errors.Join(mountable(s.Mounts, e.recursive()), e.readable(s)); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) gateRequest(g *Gate, net plan.Network, address netip.Addr) request {
	planned := g.planned()
	limit := int64(render.GatePids)
	return request{
		name: render.GateContainer(g.Plan.ID, planned.Name),
		config: &container.Config{
			Image:    g.Image,
			Hostname: g.Plan.Name,
			Env:      gateEnvironment(),
			// Its own ready line and its watchdog say more, and need no exec every while.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			Labels:      labels(g, planned.Name, RoleGate, gateLabels(g.Plan, planned, address)),
		},
		host: &container.HostConfig{
			NetworkMode: container.NetworkMode(net.Name),
			IpcMode:     render.ServiceIPC,
			CapAdd:      render.GateCapabilities,
			Tmpfs:       map[string]string{"/run": render.GateTmpfs},
			Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: g.Guests, Target: render.GateGuestDir, ReadOnly: true,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true}}},
			Sysctls: sysctls(),
			// The engine's own resolver, which nobody may ask, would have nobody to ask
			// but the gate.
			DNS:            []string{render.GateResolver},
			Resources:      container.Resources{PidsLimit: &limit},
			ReadonlyRootfs: false, // the engine would make /etc/hosts and /etc/resolv.conf read-only with it
		},
		network: &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			net.Name: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: address.String()}},
		}},
	}
}

func gateLabels(p *plan.Plan, g plan.Gate, address netip.Addr) map[string]string {
	l := map[string]string{labelAddress: address.String()}
	if g.Link.IsValid() {
		l[labelLink] = g.Link.String()
	}
	if words := needs(p, g); words != "" {
		l[labelRelays] = words
	}
	return l
}

// Running is a sandbox that is up already. Unattended says that the corral
// that brought it up is gone, Daemon that it is always on.
type Running struct {
	ID         string
	Unattended bool
	Daemon     bool
}

func (e *Running) Error() string {
	switch {
	case e.Daemon:
		return fmt.Sprintf("sandbox %s is up already, and always on", e.ID)
	case e.Unattended:
		return fmt.Sprintf("sandbox %s is up already, and the corral that looked after it is gone", e.ID)
	}
	return fmt.Sprintf("sandbox %s is up already", e.ID)
}

// open starts a created gate and waits for its ready line.
func (e *Engine) open(ctx context.Context, g *Gate) error {
	ctx, cancel := context.WithTimeoutCause(ctx, render.GateReadyWithin, &GateFailed{Reasons: []string{fmt.Sprintf("it was not ready within %v", render.GateReadyWithin)}})
	defer cancel()
	defer e.waiting("waiting for the gate: names, rules, self-check")()
	stream, err := e.Start(ctx, g.ID)
	if err != nil {
		return e.unlessTakenDown(ctx, g.ID, fmt.Errorf("gate: %w", err))
	}
	defer stream.Close()
	lap := e.gateLaps()
	last := ""
	for {
		line, more := stream.Next()
		if !more {
			break
		}
		last = line
		lap(line)
		if warning, ok := strings.CutPrefix(line, spec.GateWarning); ok {
			e.Progress("warning: %s", printable.Escape(warning))
		}
		if notice, ok := strings.CutPrefix(line, spec.GateNotice); ok {
			e.Progress("notice: %s", printable.Escape(notice))
		}
		if line == spec.ReadyLine {
			return nil
		}
	}
	if err := context.Cause(ctx); err != nil {
		if late := (*GateFailed)(nil); errors.As(err, &late) {
			return late.saying(stream.Errors(), last)
		}
		return err
	}
	return e.unlessTakenDown(ctx, g.ID, gateFailed(stream.Errors()))
}

// saying is e with what the gate said last: on standard error, which says what it could not
// do, and on standard output, which says how far it came.
func (e *GateFailed) saying(errors, last string) *GateFailed {
	said := gateFailed(errors)
	for _, line := range tail(said.Reasons, mostReasons) {
		e = &GateFailed{append(slices.Clone(e.Reasons), "it said: "+clipped(line)), cmp.Or(said.Hint, e.Hint)}
	}
	if last = strings.TrimSpace(strings.TrimPrefix(last, "corral-gate: ")); last != "" {
		e = &GateFailed{append(slices.Clone(e.Reasons), "the last that it had done: "+clipped(last)), e.Hint}
	}
	return e
}

// tail is the end of a list.
func tail(list []string, most int) []string { return list[max(0, len(list)-most):] }

// gateFailed makes sense of what a gate said on standard error before it
// ended: its reasons, one a line, and a hint.
func gateFailed(said string) *GateFailed {
	failed := &GateFailed{}
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "corral-gate: "))
		if hint, ok := strings.CutPrefix(line, "hint: "); ok {
			failed.Hint = hint
		} else if line != "" {
			failed.Reasons = append(failed.Reasons, line)
		}
	}
	return withProxy(failed)
}

// sysctls keeps IPv6 out of the namespace where the kernel has it at all.
func sysctls() map[string]string {
	if !host.HasIPv6() {
		return nil
	}
	return render.GateSysctls
}

func labels(g *Gate, service, role string, more map[string]string) map[string]string {
	l := map[string]string{
		labelSandbox: g.Plan.ID,
		labelService: service,
		labelRole:    role,
		labelPolicy:  g.Plan.PolicyFile,
		labelDigest:  g.Plan.Digest,
		labelInode:   g.Plan.PolicyInode,
		labelPurpose: g.Purpose,
	}
	for k, v := range more {
		l[k] = v
	}
	return l
}
