package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// gateCapabilities are all that a gate ever holds: NET_ADMIN writes the rules,
// NET_RAW is what the set match and iptables-legacy open their sockets with,
// SETUID, SETGID and KILL make and end the unprivileged worker.
var gateCapabilities = []string{"NET_ADMIN", "NET_RAW", "SETUID", "SETGID", "KILL"}

const (
	// readyWithin bounds a gate's bring-up: a slow resolver, retried, with room.
	readyWithin = 60 * time.Second
	// attempts is how often an address that somebody else took is exchanged.
	attempts = 3
)

// Gate is a gate that proved its rules.
type Gate struct {
	ID     string
	Plan   *plan.Plan
	Tree   render.Tree
	Image  string
	Guests string // the volume of guest binaries
}

// GateFailed is a gate that stayed closed, with what it said.
type GateFailed struct {
	Log    []string
	Status int
}

func (e *GateFailed) Error() string {
	if len(e.Log) == 0 {
		return fmt.Sprintf("the gate ended with status %d and said nothing", e.Status)
	}
	return "the gate stayed closed: " + strings.TrimPrefix(e.Log[len(e.Log)-1], "corral-gate: ")
}

// Draft makes the plan once an address is known to be free.
type Draft func(netip.Addr) (*plan.Plan, error)

// StartGate brings up the gate of a plan: created, told, started, and proven
// by its own ready line. Nothing that joins it may be started before. On any
// error nothing of it is left.
func (e *Engine) StartGate(ctx context.Context, guests host.Guests, net plan.Network, draft Draft) (*Gate, error) {
	if err := e.CheckNetwork(ctx, net); err != nil {
		return nil, err
	}
	image, err := e.GateImage(ctx, guests)
	if err != nil {
		return nil, err
	}
	var conflict error
	for range attempts {
		g, err := e.createGate(ctx, image, guests, net, draft)
		if err != nil {
			return nil, err
		}
		err = e.open(ctx, g)
		if err == nil {
			return g, nil
		}
		if cleanup := e.remove(ctx, g.ID); cleanup != nil {
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

func (e *Engine) createGate(ctx context.Context, image string, guests host.Guests, net plan.Network, draft Draft) (*Gate, error) {
	unlock, err := e.lock(ctx, image)
	if err != nil {
		return nil, err
	}
	defer unlock()
	volume, err := e.guestVolume(ctx, image, guests)
	if err != nil {
		return nil, err
	}
	used, err := e.used(ctx, net)
	if err != nil {
		return nil, err
	}
	address, err := net.Free(used)
	if err != nil {
		return nil, err
	}
	p, err := draft(address)
	if err != nil {
		return nil, err
	}
	tree, err := render.Render(p)
	if err != nil {
		return nil, err
	}
	planned := p.Gates[0]
	limit := int64(64)
	created, err := e.api.ContainerCreate(ctx, &container.Config{
		Image:    image,
		Hostname: p.Name,
		Env:      gateEnvironment(),
		// Its own ready line and its watchdog say more, and need no exec every while.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Labels:      labels(p, planned.Name, RoleGate, map[string]string{labelAddress: address.String(), labelOwner: owner(os.Getpid())}),
	}, &container.HostConfig{
		NetworkMode: container.NetworkMode(net.Name),
		CapDrop:     []string{"ALL"},
		CapAdd:      gateCapabilities,
		SecurityOpt: []string{"no-new-privileges"},
		Tmpfs:       map[string]string{"/run": "rw,nosuid,nodev,noexec,size=1m,mode=0755"},
		Sysctls:     sysctls(),
		// The engine's own resolver, which nobody may ask, would have nobody to ask
		// but the gate.
		DNS:            []string{"127.0.0.1"},
		LogConfig:      logging(),
		Resources:      container.Resources{PidsLimit: &limit},
		ReadonlyRootfs: false, // the engine would make /etc/hosts and /etc/resolv.conf read-only with it
	}, &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
		net.Name: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: address.String()}},
	}}, nil, containerName(p.ID, planned.Name)+"-gate")
	if errdefs.IsConflict(err) {
		return nil, &Running{ID: p.ID}
	}
	if err != nil {
		return nil, fmt.Errorf("gate of %s: %w", p.ID, err)
	}
	g := &Gate{ID: created.ID, Plan: p, Tree: tree, Image: image, Guests: volume}
	told := render.Tree{"etc/corral/gate.json": tree[render.GateSpec(planned.Name)]}
	if err := e.api.CopyToContainer(ctx, g.ID, "/", told.Tar(), container.CopyToContainerOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("gate of %s: %w", p.ID, err), e.remove(ctx, g.ID))
	}
	return g, nil
}

// Running is a sandbox that is up already.
type Running struct{ ID string }

func (e *Running) Error() string { return fmt.Sprintf("sandbox %s is up already", e.ID) }

// open starts a created gate and waits for its ready line.
func (e *Engine) open(ctx context.Context, g *Gate) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("the gate was not ready within %v", readyWithin))
	defer cancel()
	stream, err := e.Start(ctx, g.ID)
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	defer stream.Close()
	var log []string
	for {
		line, more := stream.Next()
		if !more {
			break
		}
		if strings.HasPrefix(line, spec.ReadyLine) {
			return nil
		}
		if strings.HasPrefix(line, "corral-gate: ") {
			log = append(log, line)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return &GateFailed{Log: log, Status: stream.Status(ctx)}
}

// sysctls keeps IPv6 out of the namespace where the kernel has it at all.
func sysctls() map[string]string {
	if !host.HasIPv6() {
		return nil
	}
	return map[string]string{
		"net.ipv6.conf.all.disable_ipv6":     "1",
		"net.ipv6.conf.default.disable_ipv6": "1",
	}
}

// logging bounds what a container can write to the host's disk.
func logging() container.LogConfig {
	return container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "10m", "max-file": "3"}}
}

func containerName(sandbox, service string) string { return "corral-" + sandbox + "-" + service }

func labels(p *plan.Plan, service, role string, more map[string]string) map[string]string {
	l := map[string]string{
		labelSandbox: p.ID,
		labelService: service,
		labelRole:    role,
		labelPolicy:  p.PolicyFile,
		labelDigest:  p.Digest,
	}
	for k, v := range more {
		l[k] = v
	}
	return l
}
