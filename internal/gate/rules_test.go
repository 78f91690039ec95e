package gate

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var document = spec.Gate{
	Version: 1, Class: spec.ClassPinned, Gateway: addr("172.30.0.1"), Address: addr("172.30.0.9"),
	Resolvers: []netip.Addr{addr("44.10.0.53"), addr("44.10.0.54")},
	Names:     []spec.Name{{Domain: "api.allowed.test", Ports: []uint16{443}, Origin: "corral.yaml:7"}},
	HostPorts: []uint16{8002, 8001, 8001},
	Probes:    spec.DefaultProbes(),
}

// linked is a gate that another one's service calls, and that calls one itself.
var linked = spec.Gate{
	Version: 1, Class: spec.ClassNone, Address: addr("172.30.128.3"), SinkNames: true,
	Links:   []spec.Link{{Name: "search", Addr: addr("172.30.128.4"), Port: 8080}, {Name: "fetch", Addr: addr("172.30.128.5"), Port: 8766}},
	Clients: []spec.Client{{Addr: addr("172.30.128.2"), Port: 8765}},
	Probes:  spec.DefaultProbes(),
}

// open is a gate whose service may use the web.
var open = spec.Gate{
	Version: 1, Class: spec.ClassPublic, Address: addr("172.30.128.5"), Gateway: addr("172.30.0.1"),
	Resolvers: []netip.Addr{addr("44.10.0.53")},
	Never:     []netip.Prefix{netip.MustParsePrefix("44.20.0.0/16"), netip.MustParsePrefix("2a01:4f8::/32")},
	Clients:   []spec.Client{{Addr: addr("172.30.128.3"), Port: 8766}},
	Probes:    spec.DefaultProbes(),
}

func TestRules(t *testing.T) {
	var b strings.Builder
	for _, at := range []struct {
		name  string
		gate  spec.Gate
		stage stage
	}{
		{"closed", document, closed}, {"resolving", document, resolving}, {"serving", document, serving}, {"refreshing", document, refreshing},
		{"class none with links, serving", linked, serving}, {"class public, resolving", open, resolving}, {"class public, serving", open, serving},
	} {
		for _, r := range rulesets(at.gate, at.stage) {
			fmt.Fprintf(&b, "# %s, %s\n%s\n", at.name, r.Family, r)
			if r.Encode() == "" { // panics where a rule could not be applied
				t.Error("nothing to apply")
			}
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("testdata/rules.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/rules.txt")
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("testdata/rules.txt differs (UPDATE=1 accepts):\n%s", &b)
	}
}

// Every new connection that is accepted, but for loopback and the worker's
// lookups, is TCP and starts with a SYN; everything else is refused.
func TestAccepts(t *testing.T) {
	for _, r := range slices.Concat(rulesets(document, serving), rulesets(document, refreshing), rulesets(linked, serving), rulesets(open, serving)) {
		for _, c := range r.Chains {
			for _, rule := range c.Rules {
				if rule.ID == "" || rule.Reason == "" {
					t.Errorf("%s: a rule without ID or reason: %s", c.Name, rule)
				}
				opens := rule.Target == "ACCEPT" && c.Name != chainAllow || rule.Target == chainAllow
				harmless := rule.ID == "loopback" || strings.HasPrefix(rule.ID, "docker-resolver-") || strings.HasPrefix(rule.ID, "resolve-") || strings.Contains(rule.Match, "ESTABLISHED") || strings.Contains(rule.Match, "RELATED")
				if opens && !harmless && !strings.Contains(rule.Match, "-p tcp -m tcp "+syn) && !strings.HasSuffix(rule.Match, syn) {
					t.Errorf("%s accepts more than new TCP connections: %s", c.Name, rule)
				}
			}
			last := ""
			if n := len(c.Rules); n > 0 {
				last = c.Rules[n-1].Target
			}
			if c.Name == "OUTPUT" && !strings.HasPrefix(last, chainReject) {
				t.Errorf("%s OUTPUT ends with %q", r.Family, last)
			}
		}
	}
}

func TestSets(t *testing.T) {
	got := sets([]spec.Pin{
		{Domain: "a", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.11")}, Ports: []uint16{443, 22}},
		{Domain: "b", Addrs: []netip.Addr{addr("44.10.0.10")}, Ports: []uint16{443}},
		{Domain: "c", Addrs: []netip.Addr{addr("44.10.0.12")}, AnyPort: true, Ports: []uint16{1}},
	})
	want := []netfilter.Set{
		{Name: setPins, Entries: []netfilter.Entry{{Addr: addr("44.10.0.10"), Port: 443}, {Addr: addr("44.10.0.10"), Port: 22}, {Addr: addr("44.10.0.11"), Port: 443}, {Addr: addr("44.10.0.11"), Port: 22}}},
		{Name: setPinsAny, AnyPort: true, Entries: []netfilter.Entry{{Addr: addr("44.10.0.12")}}},
	}
	if netfilter.Digest(nil, got) != netfilter.Digest(nil, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if none := sets(nil); len(none) != 2 || len(none[0].Entries)+len(none[1].Entries) != 0 {
		t.Errorf("without pins: %v", none)
	}
}
