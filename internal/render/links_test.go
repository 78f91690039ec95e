package render

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// linked is full with a second gate, whose service main may call.
func linked() *plan.Plan {
	p := full()
	p.Links = netip.MustParsePrefix("172.30.128.16/28")
	main := &p.Gates[0]
	main.Link = netip.MustParseAddr("172.30.128.18")
	other := plan.Gate{Name: "other", Link: netip.MustParseAddr("172.30.128.19"), Spec: main.Spec}
	other.Spec.Service, other.Spec.Class, other.Spec.Names, other.Spec.Address = "other", spec.ClassNone, nil, netip.MustParseAddr("172.30.0.3")
	main.Spec.Links = []spec.Link{{Name: "other", Addr: other.Link, Port: 8765}}
	other.Spec.Clients = []spec.Client{{Addr: main.Link, Port: 8765}}
	p.Gates = append([]plan.Gate{other}, p.Gates...)
	s := p.Services[0]
	s.Name, s.Gate, s.ReadOnly, s.Scratch, s.Mounts, s.Shields, s.Secrets = "other", "other", true, []string{"/run/other"}, nil, nil, nil
	p.Services = append([]plan.Service{s}, p.Services...)
	return p
}

// Gates that are linked have a network of their own that leads nowhere, each its
// planned address there; a service is behind its own gate only.
func TestComposeLinks(t *testing.T) {
	f := stack(t, compose(t, linked()), machine)
	want := map[string]any{"name": "corral-demo-0a1b2c3d-links", "internal": true,
		"ipam":   map[string]any{"config": []any{map[string]any{"subnet": "172.30.128.16/28"}}},
		"labels": map[string]any{LabelRole: RoleLinks, LabelSandbox: "demo-0a1b2c3d", LabelPolicy: "/home/dev/a b/corral.yaml"}}
	if d := cmp.Diff(want, at(t, f, "networks", "links")); d != "" {
		t.Error(d)
	}
	for gate, addresses := range map[string][2]string{"main": {"172.30.0.2", "172.30.128.18"}, "other": {"172.30.0.3", "172.30.128.19"}} {
		service := at(t, f, "services", gate+"-gate")
		want := map[string]any{"corral": map[string]any{"ipv4_address": addresses[0]}, "links": map[string]any{"ipv4_address": addresses[1]}}
		if d := cmp.Diff(want, at(t, service, "networks")); d != "" {
			t.Errorf("%s: %s", gate, d)
		}
		if got := at(t, service, "labels", LabelLink); got != addresses[1] {
			t.Errorf("%s: label %v", gate, got)
		}
		joined := at(t, f, "services", gate)
		if got := at(t, joined, "network_mode"); got != "service:"+gate+"-gate" {
			t.Errorf("%s: %v", gate, got)
		}
		if got := at(t, joined, "labels", LabelGate); got != gate {
			t.Errorf("%s: gate %v", gate, got)
		}
	}
	other := at(t, f, "services", "other")
	if got := at(t, other, "read_only"); got != true {
		t.Errorf("its root can be written: %v", got)
	}
	if d := cmp.Diff([]any{"/run/other:" + ServiceTmpfs, "/tmp:" + ServiceTmpfs}, at(t, other, "tmpfs")); d != "" {
		t.Error(d)
	}
}
