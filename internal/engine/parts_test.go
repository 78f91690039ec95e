package engine

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/client"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/secret"
	"github.com/corral-sandbox/corral/internal/spec"
)

// sketched is a sandbox as it would be made, with what a test changes of it.
func sketched(t *testing.T, change func(*plan.Plan)) (*Engine, *Gate) {
	t.Helper()
	network, err := plan.Divide(plan.DefaultSubnet)
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.NewClientWithOpts(client.WithVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	p := &plan.Plan{
		ID: "p-00000000", Name: "p", PolicyFile: "/p/corral.yaml", Digest: "sha256:0a", Network: network,
		Gates: []plan.Gate{{Name: "main", Spec: spec.Gate{Version: spec.Version, Sandbox: "p-00000000", Service: "main", Class: spec.ClassPinned,
			Address: netip.MustParseAddr("172.30.0.9"), Gateway: network.Gateway, Probes: spec.DefaultProbes()}}},
		Services: []plan.Service{{
			Name: "main", Gate: "main", UID: 1000, GID: 1000, Command: []string{"sh"}, Environment: map[string]string{"HOME": "/home/agent", "TERM": "dumb"},
			Passed: []string{"TERM"}, Secrets: []string{"KEY"}, WorkDir: "/p", Pids: 100, Dockerfile: []byte("FROM debian\n"), Readme: []byte("names"),
			Mounts: []plan.Mount{{Path: "/p", Dev: 1, Ino: 2}, {Path: "/p/corral.yaml", ReadOnly: true, Dev: 1, Ino: 3}},
		}},
	}
	if change != nil {
		change(p)
	}
	e := &Engine{api: api, Progress: func(string, ...any) {}}
	g, err := e.Sketch(nil, p, plan.Main, PurposeDaemon)
	if err != nil {
		t.Fatal(err)
	}
	return e, g
}

// asMade are the containers of a sandbox as their labels tell them.
func asMade(t *testing.T, e *Engine, g *Gate, secrets []secret.Var) (gate, service Member) {
	t.Helper()
	p := g.Plan
	made, err := e.serviceRequest(g, p.Services[0], secrets, Terminal{TTY: true})
	if err != nil {
		t.Fatal(err)
	}
	return Member{Role: RoleGate, Service: "main", Config: gateParts(g, e.gateRequest(g, p.Network, p.Gates[0].Spec.Address)).String()},
		Member{Role: RoleService, Service: "main", Config: serviceParts(g, p.Services[0], made).String()}
}

// What a refresh can change, and what nobody asked for, is no difference; each
// other change is one of exactly the part that people know it as.
func TestDiffers(t *testing.T) {
	key := func(v string) []secret.Var { return []secret.Var{{Name: "KEY", Value: secret.New(v)}} }
	was, before := sketched(t, nil)
	gate, service := asMade(t, was, before, key("one"))
	gateOf := func(f func(*spec.Gate)) func(*plan.Plan) { return func(p *plan.Plan) { f(&p.Gates[0].Spec) } }
	serviceOf := func(f func(*plan.Service)) func(*plan.Plan) { return func(p *plan.Plan) { f(&p.Services[0]) } }
	for _, c := range []struct {
		name          string
		change        func(*plan.Plan)
		secrets       []secret.Var
		gate, service string
	}{
		{"nothing", nil, nil, "", ""},
		{"names", gateOf(func(g *spec.Gate) { g.Names = []spec.Name{{Domain: "a.test", Ports: []uint16{443}}} }), nil, "", ""},
		{"resolvers", gateOf(func(g *spec.Gate) { g.Resolvers = []netip.Addr{netip.MustParseAddr("192.0.2.1")} }), nil, "", ""},
		{"never", gateOf(func(g *spec.Gate) { g.Never = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }), nil, "", ""},
		{"refresh", gateOf(func(g *spec.Gate) { g.Refresh, g.PinGrace = spec.RefreshAuto, 5 }), nil, "", ""},
		{"the policy's bytes", func(p *plan.Plan) { p.Digest, p.Gates[0].Spec.Policy = "sha256:0b", "sha256:0b" }, nil, "", ""},
		{"the README", serviceOf(func(s *plan.Service) { s.Readme = []byte("other names") }), nil, "", ""},
		{"the terminal", serviceOf(func(s *plan.Service) { s.Environment["TERM"] = "xterm" }), nil, "", ""},
		{"the policy file replaced", serviceOf(func(s *plan.Service) { s.Mounts[1].Ino = 4 }), nil, "", ""},
		{"a host port", gateOf(func(g *spec.Gate) { g.HostPorts = []uint16{8080} }), nil, partServices, ""},
		{"a relay", func(p *plan.Plan) {
			p.Relays = []plan.Relay{{Port: 53, DNS: addrs("127.0.0.53")}}
			p.Gates[0].Spec.Resolvers = []netip.Addr{p.Gates[0].Spec.Gateway}
		}, nil, partLookups, ""},
		{"a relay that another gate needs", func(p *plan.Plan) { p.Relays = []plan.Relay{{Port: 8082}} }, nil, "", ""},
		{"a place between the gates", gateOf(func(g *spec.Gate) { g.Link = netip.MustParseAddr("172.30.128.2") }), nil, partLinks, ""},
		{"a link", gateOf(func(g *spec.Gate) { g.Links = []spec.Link{{Name: "x", Port: 1}} }), nil, partLinks, ""},
		{"the class", gateOf(func(g *spec.Gate) { g.Class = spec.ClassNone }), nil, partClass, ""},
		{"a probe", gateOf(func(g *spec.Gate) { g.Probes.Unlisted = netip.MustParseAddr("198.51.100.2") }), nil, partProbes, ""},
		{"the image", serviceOf(func(s *plan.Service) { s.Dockerfile = []byte("FROM other\n") }), nil, "", partImage},
		{"the command", serviceOf(func(s *plan.Service) { s.Command = []string{"other"} }), nil, "", partCommand},
		{"a variable", serviceOf(func(s *plan.Service) { s.Environment["HOME"] = "/" }), nil, "", partVars},
		{"a secret's value", nil, key("two"), "", partSecrets},
		{"a mount", serviceOf(func(s *plan.Service) { s.Mounts = append(s.Mounts, plan.Mount{Path: "/q", Ino: 9}) }), nil, "", partMounts},
		{"a mount read-only", serviceOf(func(s *plan.Service) { s.Mounts[0].ReadOnly = true }), nil, "", partMounts},
		{"a directory replaced", serviceOf(func(s *plan.Service) { s.Mounts[0].Ino = 8 }), nil, "", partMounts},
		{"what is mounted below", serviceOf(func(s *plan.Service) { s.Mounts[0].Submounts = []string{s.Mounts[0].Path + "/x"} }), nil, "", partMounts},
		{"git", serviceOf(func(s *plan.Service) { s.Git = "more" }), nil, "", partGit},
		{"a limit", serviceOf(func(s *plan.Service) { s.Pids = 101 }), nil, "", partLimits},
		{"the user", serviceOf(func(s *plan.Service) { s.UID = 1001 }), nil, "", partRest},
	} {
		e, now := sketched(t, c.change)
		if c.secrets == nil {
			c.secrets = key("one")
		}
		for member, want := range map[*Member]string{&gate: c.gate, &service: c.service} {
			got, err := e.Differs(now, c.secrets, *member)
			if err != nil || strings.Join(got, ", ") != want {
				t.Errorf("%s: the %s differs in %q (%v), want %q", c.name, member.Role, got, err, want)
			}
		}
	}
	// Who has no such label differs in everything.
	if got, err := was.Differs(before, nil, Member{Role: RoleGate, Service: "main"}); err != nil || !slices.Contains(got, partRest) {
		t.Errorf("without a label: %v, %v", got, err)
	}
	if strings.Contains(service.Config, "one") {
		t.Error("a secret is in the label")
	}
}
