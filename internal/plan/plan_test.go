package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

func TestDivide(t *testing.T) {
	for subnet, want := range map[string]string{
		"172.30.0.0/16": "172.30.0.0/17 172.30.127.0/24 172.30.0.1",
		"10.200.0.0/20": "10.200.0.0/21 10.200.7.0/24 10.200.0.1",
		"10.16.0.0/12":  "10.16.0.0/13 10.23.255.0/24 10.16.0.1",
	} {
		n, err := Divide(netip.MustParsePrefix(subnet))
		if err != nil {
			t.Errorf("%s: %v", subnet, err)
			continue
		}
		if got := n.Subnet.String() + " " + n.Range.String() + " " + n.Gateway.String(); got != want {
			t.Errorf("%s is divided into %s, want %s", subnet, got, want)
		}
	}
	for _, subnet := range []string{"172.30.0.1/16", "10.0.0.0/11", "10.0.0.0/21", "fd00::/16"} {
		if n, err := Divide(netip.MustParsePrefix(subnet)); err == nil {
			t.Errorf("%s was divided: %v", subnet, n)
		}
	}
	if _, err := Divide(netip.Prefix{}); err == nil {
		t.Error("no subnet was divided")
	}
}

func TestFree(t *testing.T) {
	n, err := Divide(netip.MustParsePrefix("10.200.0.0/20"))
	if err != nil {
		t.Fatal(err)
	}
	used := map[netip.Addr]bool{}
	for {
		a, err := n.Free(used)
		if err != nil {
			break
		}
		if used[a] || a == n.Gateway || a == n.Subnet.Addr() || n.Range.Contains(a) || !n.Subnet.Contains(a) {
			t.Fatalf("%v is not free", a)
		}
		used[a] = true
	}
	// A /21 less the engine's /24, the network's own address and the gateway's.
	if want := 2048 - 256 - 2; len(used) != want {
		t.Errorf("%d addresses, want %d", len(used), want)
	}
}

func host() Host {
	return Host{UID: 1000, GID: 1000, Homes: []string{"/home/dev"}, Subnet: DefaultSubnet, Probes: spec.DefaultProbes()}
}

func build(t *testing.T, src string, args ...string) (*Plan, error) {
	t.Helper()
	p, err := policy.Parse("corral.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	p.File, p.Dir, p.Project = "/p/corral.yaml", "/p", policy.Mount{Path: "/p"}
	p.Self = policy.Mount{Path: p.File, ReadOnly: true}
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	return Build(p, prof, host(), At(netip.MustParseAddr("172.30.0.2")), args)
}

func TestNamesNeedAResolver(t *testing.T) {
	if _, err := build(t, "profile: shell\nname: a\negress:\n  allow: [a.example.com]\n"); err == nil {
		t.Error("names without a resolver were planned")
	}
	p, err := build(t, "profile: shell\nname: a\n")
	if err != nil {
		t.Fatal(err)
	}
	if g := p.Gates[0].Spec; len(g.Names) != 0 || len(g.Resolvers) != 0 {
		t.Errorf("nothing was allowed: %v %v", g.Names, g.Resolvers)
	}
}

func TestAddressIsPlannable(t *testing.T) {
	prof, _ := profile.Load("shell")
	for _, a := range []string{"172.30.0.1", "172.30.127.5", "172.30.128.2", "10.0.0.1"} {
		p := &policy.Policy{Name: "a", File: "/p/corral.yaml", Dir: "/p", Mode: policy.Run, Image: policy.Image{Base: policy.DefaultBase}}
		if _, err := Build(p, prof, host(), At(netip.MustParseAddr(a)), nil); err == nil {
			t.Errorf("a gate was planned at %s", a)
		}
	}
}

func TestCommand(t *testing.T) {
	const src = "profile: shell\nname: a\nprofile_options:\n  shell:\n    command: [mine]\n"
	for _, c := range []struct {
		src  string
		args []string
		want string
	}{{"profile: shell\nname: a\n", nil, "sh"}, {src, nil, "mine"}, {src, []string{"typed"}, "typed"}} {
		p, err := build(t, c.src, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Services[0].Command[0]; got != c.want {
			t.Errorf("command %q, want %q", got, c.want)
		}
	}
}

// Of a build that fails it is told what the policy has to do with it.
func TestAsked(t *testing.T) {
	for src, want := range map[string]string{
		"":                               "",
		"image: {base: debian:bookworm}": "image.base",
		"image: {packages: [git], run: [\"true\"]}": "image.packages image.run",
	} {
		p, err := build(t, "profile: shell\nname: a\n"+src+"\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(p.Services[0].Asked, " "); got != want {
			t.Errorf("%s: %q, want %q", src, got, want)
		}
	}
}

// Whatever a policy says, handover keeps what its own checker insists on, and
// verify proves at least what the documented catalogue lists for this profile.
func TestEveryPlanHasItsChecks(t *testing.T) {
	p, err := build(t, "profile: shell\nname: a\n")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, c := range p.Services[0].Handover {
		have["handover "+c.Name] = true
	}
	for _, c := range p.Services[0].Verify {
		if have[c.Name] {
			t.Errorf("%s is listed twice", c.Name)
		}
		have[c.Name] = true
	}
	for _, want := range []string{
		"handover non-root", "handover no-capabilities", "handover no-new-privs", "handover same-netns-as-gate", "handover unlisted-host-blocked",
		"non-root", "no-sudo", "no-capabilities", "same-netns-as-gate", "gate-control-unreachable", "unlisted-host-blocked", "dns-closed", "names-only-pinned",
		"udp-closed", "icmp-closed", "raw-sockets-refused", "vsock-refused", "metadata-blocked", "ipv6-disabled", "no-ipv6-address", "ipv6-blocked",
		"gateway-closed", "host-port-undeclared-blocked", "mounts-only-declared", "rw-writable:/p",
	} {
		if !have[want] {
			t.Errorf("no check %s", want)
		}
	}
}

func TestJoinSkipsWhatIsNotPinned(t *testing.T) {
	checks := []spec.Check{
		{Name: "allowed:soft.test:443", Host: "soft.test"}, {Name: "allowed:hard.test:443", Host: "hard.test"},
		{Name: "names-only-pinned", Names: []string{"soft.test", "hard.test"}}, {Name: "same-netns-as-gate"},
	}
	got := Join(checks, spec.GateStatus{Instance: "i", NetNS: 7, Unpinned: []spec.Unpinned{{Domain: "soft.test"}}})
	if got[0].Skip == "" || got[1].Skip != "" {
		t.Errorf("skips %q and %q", got[0].Skip, got[1].Skip)
	}
	if len(got[2].Names) != 1 || got[2].Names[0] != "hard.test" {
		t.Errorf("names %v", got[2].Names)
	}
	if got[3].Gate == nil || got[3].Gate.Instance != "i" || got[3].Gate.NetNS != 7 {
		t.Errorf("joined %v", got[3].Gate)
	}
	if checks[3].Gate != nil {
		t.Error("the plan's own checks were changed")
	}
}

// The policy is read-only inside wherever a mount shows it, and never where a
// directory on the way to it could be renamed.
func TestPolicyIsShielded(t *testing.T) {
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file     string
		project  string
		mounts   []policy.Mount
		shielded bool
		refused  bool
	}{
		{"/p/corral.yaml", "/p", nil, true, false},
		{"/elsewhere/corral.yaml", "/p", nil, false, false},
		{"/p-2/corral.yaml", "/p", nil, false, false},
		{"/p/conf/corral.yaml", "/p", nil, false, true},
		{"/m/corral.yaml", "/p", []policy.Mount{{Path: "/m"}}, true, false},
		{"/m/conf/corral.yaml", "/p", []policy.Mount{{Path: "/m"}}, false, true},
		{"/m/conf/corral.yaml", "/p", []policy.Mount{{Path: "/m", ReadOnly: true}}, true, false},
	} {
		p := &policy.Policy{Name: "a", File: c.file, Self: policy.Mount{Path: c.file, ReadOnly: true}, Dir: c.project,
			Project: policy.Mount{Path: c.project}, Mounts: c.mounts, Mode: policy.Run, Image: policy.Image{Base: policy.DefaultBase}}
		got, err := Build(p, prof, host(), At(netip.MustParseAddr("172.30.0.2")), nil)
		if (err != nil) != c.refused {
			t.Errorf("%s in %s: %v", c.file, c.project, err)
		}
		if err != nil {
			continue
		}
		last := got.Services[0].Mounts[len(got.Services[0].Mounts)-1]
		if (last.Path == c.file && last.ReadOnly) != c.shielded || (got.PolicyInode != "") != c.shielded {
			t.Errorf("%s in %s: the last mount is %+v", c.file, c.project, last)
		}
	}
}

// A service begins where something is: what the engine would have to make of the
// way to a project that is not mounted, host-home-only-mounts finds.
func TestWorkDirIsThere(t *testing.T) {
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode   policy.Mode
		mounts []policy.Mount
		want   string
	}{
		{policy.Run, nil, "/h/p"},
		{policy.Daemon, nil, Home},
		{policy.Daemon, []policy.Mount{{Path: "/h/p"}}, "/h/p"},
		{policy.Daemon, []policy.Mount{{Path: "/h", ReadOnly: true}}, "/h/p"},
		{policy.Daemon, []policy.Mount{{Path: "/h/p/data"}}, "/h/p"},
		{policy.Daemon, []policy.Mount{{Path: "/h/p2"}, {Path: "/h/q"}}, Home},
	} {
		p := &policy.Policy{Name: "a", File: "/h/p/corral.yaml", Self: policy.Mount{Path: "/h/p/corral.yaml", ReadOnly: true}, Dir: "/h/p",
			Mounts: c.mounts, Mode: c.mode, Image: policy.Image{Base: policy.DefaultBase}}
		if c.mode == policy.Run {
			p.Project = policy.Mount{Path: p.Dir}
		}
		got, err := Build(p, prof, host(), At(netip.MustParseAddr("172.30.0.2")), nil)
		if err != nil {
			t.Errorf("%v: %v", c.mounts, err)
			continue
		}
		if s := got.Services[0]; s.WorkDir != c.want {
			t.Errorf("%v %v: %s, want %s", c.mode, c.mounts, s.WorkDir, c.want)
		}
	}
}
