// Package plan turns a policy into the only description of a sandbox: its
// gates, services, addresses, mounts, and the checks that will prove it.
// Policy, profile, facts of the host and free addresses go in, a Plan comes
// out. Nothing happens, and nothing downstream looks at the policy again.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Host is what a plan needs to know of the machine.
type Host struct {
	UID, GID  uint32   // whose agent it is
	Homes     []string // that person's home on the host, by whatever record
	Resolvers []netip.Addr
	Probes    spec.Probes
	Subnet    netip.Prefix   // all of corral's addresses on this machine
	Never     []netip.Prefix // addresses of the host and of Docker's networks
	// Environment is passed to the agent as it is: terminal and locale.
	Environment map[string]string
}

// Plan is one sandbox.
type Plan struct {
	ID         string
	Name       string
	Profile    string
	PolicyFile string
	Project    string
	Digest     string // of the policy's bytes
	Network    Network
	Gates      []Gate
	Services   []Service
}

// Gate owns the network namespace of the services that join it.
type Gate struct {
	Name string
	Spec spec.Gate
}

// Service is one container with a job.
type Service struct {
	Name string
	Gate string // the gate whose namespace it joins

	UID, GID    uint32
	Command     []string
	Environment map[string]string
	WorkDir     string
	Mounts      []Mount
	Pids        int64

	Dockerfile []byte
	Readme     []byte // baked as /etc/corral/README

	Handover []spec.Check // must hold before the first instruction of Command
	Verify   []spec.Check // proves the whole
}

// Mount binds a path of the host at the same path inside.
type Mount struct {
	Path     string
	ReadOnly bool
	Dev, Ino uint64
}

// ErrNoResolver is a policy with names on a machine without a usable resolver.
type ErrNoResolver struct{ Names int }

func (e ErrNoResolver) Error() string {
	return fmt.Sprintf("the policy lists %d names and this machine has no name server outside 127.0.0.0/8 to pin them with", e.Names)
}

const (
	// main is the service that runs the harness.
	main = "main"
	// pids bounds a service's processes: room for compilers, not for a fork bomb.
	pids = 2048
	// base is the image that profiles build on.
	base = "debian:bookworm-slim"
)

// ID names the sandbox of a policy file: unique on a machine, stable.
func ID(name, file string) string {
	sum := sha256.Sum256([]byte(file))
	return name + "-" + hex.EncodeToString(sum[:4])
}

// Build plans a sandbox. address is a free address of the corral network;
// args, if any, replace the profile's and the policy's command.
func Build(p *policy.Policy, prof *profile.Profile, h Host, address netip.Addr, args []string) (*Plan, error) {
	network, err := Divide(h.Subnet)
	if err != nil {
		return nil, err
	}
	if address.IsValid() && !network.Plannable(address) {
		return nil, fmt.Errorf("%v is not a plannable address of %v", address, network.Subnet)
	}
	names := grants(p, prof)
	if len(names) > 0 && len(h.Resolvers) == 0 {
		return nil, ErrNoResolver{len(names)}
	}
	dockerfile, err := prof.Dockerfile(profile.Image{Base: base, UID: h.UID, GID: h.GID})
	if err != nil {
		return nil, err
	}
	gate := Gate{Name: main, Spec: spec.Gate{
		Version: spec.Version,
		Sandbox: ID(p.Name, p.File),
		Service: main,
		Class:   spec.ClassPinned,
		Address: address,
		Gateway: network.Gateway,
		Names:   names,
		Never:   h.Never,
		Probes:  h.Probes,
	}}
	if len(names) > 0 {
		gate.Spec.Resolvers = h.Resolvers
	}
	bound, err := mounts(p)
	if err != nil {
		return nil, err
	}
	svc := Service{
		Name:        main,
		Gate:        main,
		UID:         h.UID,
		GID:         h.GID,
		Command:     command(p, prof, args),
		Environment: environment(h, gate.Spec.Sandbox),
		WorkDir:     p.Dir,
		Mounts:      bound,
		Pids:        pids,
		Dockerfile:  dockerfile,
	}
	svc.Readme = readme(p, gate.Spec, svc)
	svc.Handover = handover(gate.Spec, svc)
	svc.Verify = verify(p, h, gate.Spec, svc)
	return &Plan{
		ID:         gate.Spec.Sandbox,
		Name:       p.Name,
		Profile:    prof.Name,
		PolicyFile: p.File,
		Project:    p.Dir,
		Digest:     p.Digest,
		Network:    network,
		Gates:      []Gate{gate},
		Services:   []Service{svc},
	}, nil
}

// grants merges the policy's names with the profile's own, which are soft and
// give way where the person wrote the same name.
func grants(p *policy.Policy, prof *profile.Profile) []spec.Name {
	var out []spec.Name
	written := map[string]bool{}
	for _, r := range p.Egress.Allow {
		written[string(r.Domain)] = true
		out = append(out, spec.Name{
			Domain:   string(r.Domain),
			Ports:    r.Ports,
			AnyPort:  r.AnyPort,
			Private:  r.Private,
			Liveness: r.Liveness,
			Origin:   fmt.Sprintf("%s:%d", filepath.Base(r.Pos.File), r.Pos.Line),
		})
	}
	if p.Egress.Defaults {
		for _, d := range prof.Egress {
			if !written[d] {
				out = append(out, spec.Name{Domain: d, Ports: []uint16{80, 443}, Soft: true, Origin: "profile " + prof.Name})
			}
		}
	}
	return out
}

func command(p *policy.Policy, prof *profile.Profile, args []string) []string {
	switch {
	case len(args) > 0:
		return args
	case len(p.Command) > 0:
		return p.Command
	}
	return prof.Command
}

func environment(h Host, sandbox string) map[string]string {
	env := map[string]string{
		"HOME":           Home,
		"USER":           "agent",
		"CORRAL_SANDBOX": sandbox,
	}
	for k, v := range h.Environment {
		env[k] = v
	}
	return env
}

// ErrPolicyBelow is a policy that an agent could replace by renaming a
// directory that it may write.
type ErrPolicyBelow struct{ File, Mount string }

func (e ErrPolicyBelow) Error() string {
	return fmt.Sprintf("the policy %s lies in a subdirectory of %s, which the agent may write: it could put another one in its place", e.File, e.Mount)
}

// mounts are the project directory, read-write in run mode, what the policy
// lists, and over all of it the policy file itself, read-only: what the agent
// writes there would be obeyed by the next start.
func mounts(p *policy.Policy) ([]Mount, error) {
	var out []Mount
	inside := false
	for _, m := range append([]policy.Mount{p.Project}, p.Mounts...) {
		if m.Path == "" {
			continue
		}
		out = append(out, mount(m))
		switch {
		case p.File == m.Path || !strings.HasPrefix(p.File, m.Path+"/"):
		case !m.ReadOnly && filepath.Dir(p.File) != m.Path:
			return nil, ErrPolicyBelow{p.File, m.Path}
		default:
			inside = true
		}
	}
	if inside {
		out = append(out, mount(p.Self))
	}
	return out, nil
}

func mount(m policy.Mount) Mount {
	return Mount{Path: m.Path, ReadOnly: m.ReadOnly, Dev: m.Dev, Ino: m.Ino}
}
