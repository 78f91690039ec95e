package gate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

// walked are documents of every kind, with pins of every kind.
func walked() map[string]spec.Gate {
	a := netip.MustParseAddr
	pinned := spec.Gate{Version: spec.Version, Class: spec.ClassPinned, Address: a("172.30.0.2"), Gateway: a("172.30.0.1"), Resolvers: []netip.Addr{a("10.0.0.53"), a("172.30.0.1")},
		HostPorts: []uint16{8001, 11434}, Links: []spec.Link{{Name: "db", Addr: a("172.30.0.3"), Port: 5432}, {Name: "db", Addr: a("172.30.0.3"), Port: 5433}},
		Clients: []spec.Client{{Addr: a("172.30.0.4"), Port: 8080}}, Probes: spec.DefaultProbes()}
	none := pinned
	none.Class = spec.ClassNone
	public := pinned
	public.Class, public.Never = spec.ClassPublic, []netip.Prefix{netip.MustParsePrefix("44.10.0.0/24"), netip.MustParsePrefix("2001:db8:9::/48")}
	alone := spec.Gate{Version: spec.Version, Class: spec.ClassPinned, Resolvers: []netip.Addr{a("10.0.0.53")}, Probes: spec.DefaultProbes()}
	bare := spec.Gate{Version: spec.Version, Class: spec.ClassPublic, Resolvers: []netip.Addr{a("8.8.8.8")}, Probes: spec.DefaultProbes()}
	return map[string]spec.Gate{"pinned": pinned, "none": none, "public": public, "alone": alone, "public alone": bare}
}

var walkedPins = []spec.Pin{
	{Domain: "a.test", Addrs: []netip.Addr{netip.MustParseAddr("44.10.1.10"), netip.MustParseAddr("44.10.1.11")}, Ports: []uint16{443, 8443}},
	{Domain: "b.test", Addrs: []netip.Addr{netip.MustParseAddr("44.10.1.12")}, AnyPort: true},
	{Domain: "c.test", Addrs: []netip.Addr{netip.MustParseAddr("10.7.0.1")}, Ports: []uint16{22}},
}

// On paper the rules of every document do with every packet what the document says.
func TestRulesOnPaper(t *testing.T) {
	for name, g := range walked() {
		pins := walkedPins
		if g.Class != spec.ClassPinned {
			pins = nil
		}
		for _, at := range []stage{serving, refreshing} {
			n, all := astray(g, at, pins, rulesets(g, at), sets(pins))
			for _, wrong := range all {
				t.Errorf("%s: %s", name, wrong)
			}
			if n < 300 {
				t.Errorf("%s: %d packets", name, n)
			}
		}
		// A refresh opens the worker's lookups, unless they are open at any time.
		_, all := astray(g, serving, pins, rulesets(g, refreshing), sets(pins))
		if open := g.Class == spec.ClassPublic || len(g.Resolvers) == 0; open != (len(all) == 0) {
			t.Errorf("%s: lookups while nothing is resolved: %q", name, all)
		}
	}
}

// What is not understood is not taken for right, whether a packet comes there or not.
func TestRulesNotUnderstood(t *testing.T) {
	g := walked()["none"]
	for _, tt := range []struct{ match, target, want string }{
		{"-m statistic --mode random", "ACCEPT", "--mode random is not understood"},
		{"-p tcp -m tcp --dport x", "ACCEPT", `port "x"`},
		{"-p 253 -m tcp --dport 1:x", "ACCEPT", `port "1:x"`},
		{"-d nowhere", "ACCEPT", "nowhere"},
		{"-m set --match-set other dst", "ACCEPT", `set "other dst"`},
		{"-m owner --uid-owner root", "ACCEPT", `owner "root"`},
		{"!", "ACCEPT", `"!"`},
		{"-m tcp --tcp-flags SYN", "ACCEPT", `flags "SYN"`},
		{"-p 253", "NFLOG --nflog-group 1", "a record without a prefix"},
		{"-p 253", "RETURN", "no chain is called RETURN"},
	} {
		rules := rulesets(g, serving)
		rules[0].Chains[0].Rules = append(rules[0].Chains[0].Rules, netfilter.Rule{ID: "x", Match: tt.match, Target: tt.target})
		n, wrong := astray(g, serving, nil, rules, sets(nil))
		if n != 0 || len(wrong) != 1 || !strings.HasPrefix(wrong[0], "cannot tell: rule x of INPUT: ") || !strings.Contains(wrong[0], tt.want) {
			t.Errorf("%s %s: %q", tt.match, tt.target, wrong)
		}
	}
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		rules := rulesets(g, serving)
		rules[0].Chains = slices.DeleteFunc(rules[0].Chains, func(c netfilter.Chain) bool { return c.Name == chain })
		if n, wrong := astray(g, serving, nil, rules, sets(nil)); n != 0 || len(wrong) != 1 || wrong[0] != "cannot tell: no chain is called "+chain {
			t.Errorf("without %s: %q", chain, wrong)
		}
	}
	rules := rulesets(g, serving)
	rules[0].Chains = append(rules[0].Chains, netfilter.Chain{Name: "round", Rules: []netfilter.Rule{{ID: "again", Target: "round"}}})
	rules[0].Chains[0].Rules = []netfilter.Rule{{ID: "x", Target: "round"}}
	if n, wrong := astray(g, serving, nil, rules, sets(nil)); n != 0 || len(wrong) != 1 || wrong[0] != "cannot tell: no way through chain round" {
		t.Errorf("in a circle: %q", wrong)
	}
}

func BenchmarkAstray(b *testing.B) {
	for name, g := range walked() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				astray(g, serving, nil, rulesets(g, serving), sets(nil))
			}
		})
	}
}
