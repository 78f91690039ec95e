package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// gatesOf are the gates of a Hermes sandbox in words, one a line.
func gatesOf(h *policy.Hermes, names ...spec.Name) string {
	p := &policy.Policy{Name: "p", File: "/p/corral.yaml", Hermes: h, HostServices: []policy.HostService{{Name: "llama", Port: 8081}, {Name: "db", Port: 5432}}}
	network, _ := Divide(DefaultSubnet)
	at := Addresses{Links: netip.MustParsePrefix("172.30.128.0/28"), Gates: map[string]netip.Addr{Main: netip.MustParseAddr("172.30.0.2"), Search: netip.MustParseAddr("172.30.0.5")}}
	var b strings.Builder
	for _, g := range topology(p, Host{}, network, at, names, []netip.Addr{netip.MustParseAddr("10.0.0.53")}) {
		var grants []string
		for _, n := range g.Spec.Names {
			grants = append(grants, fmt.Sprintf("%s %v", n.Domain, n.Ports))
		}
		for _, l := range g.Spec.Links {
			grants = append(grants, fmt.Sprintf("to %s %v:%d", l.Name, l.Addr, l.Port))
		}
		for _, c := range g.Spec.Clients {
			grants = append(grants, fmt.Sprintf("from %v on %d", c.Addr, c.Port))
		}
		fmt.Fprintf(&b, "%s %q %v host %v resolvers %d sink %t: %s\n", g.Name, g.Spec.Class, g.Link, g.Spec.HostPorts, len(g.Spec.Resolvers), g.Spec.SinkNames, strings.Join(grants, ", "))
	}
	return b.String()
}

// Each right has a gate, in the order in which they are started; what is called has
// no way back, and main none to what the researcher calls.
func TestTopology(t *testing.T) {
	local := policy.Model{BaseURL: "http://corral-host:8081/v1", Host: spec.HostName, Port: 8081, Name: "m", Context: 65536}
	remote := policy.Model{BaseURL: "https://api.test/v1", Host: "api.test", Port: 443, Name: "m", Context: 65536}
	names := []spec.Name{{Domain: "a.test", Ports: []uint16{80}}, {Domain: "api.test", Ports: []uint16{80, 443}}}
	for name, tt := range map[string]struct {
		hermes *policy.Hermes
		want   string
	}{
		"alone": {&policy.Hermes{Model: local}, `main "pinned" invalid IP host [5432 8081] resolvers 1 sink false: a.test [80], api.test [80 443]
`},
		"another profile": {nil, `main "pinned" invalid IP host [5432 8081] resolvers 1 sink false: a.test [80], api.test [80 443]
`},
		"no pages": {&policy.Hermes{Model: local, Researcher: true}, `search "public" 172.30.128.4 host [] resolvers 1 sink false: from 172.30.128.3 on 8080
researcher "" 172.30.128.3 host [8081] resolvers 0 sink true: to search 172.30.128.4:8080, from 172.30.128.2 on 8765
main "pinned" 172.30.128.2 host [5432 8081] resolvers 1 sink false: a.test [80], api.test [80 443], to researcher 172.30.128.3:8765
`},
		"all": {&policy.Hermes{Model: remote, Researcher: true, Fetch: true}, `fetch "public" 172.30.128.5 host [] resolvers 1 sink false: from 172.30.128.3 on 8766
search "public" 172.30.128.4 host [] resolvers 1 sink false: from 172.30.128.3 on 8080
researcher "pinned" 172.30.128.3 host [] resolvers 1 sink true: api.test [443], to search 172.30.128.4:8080, to fetch 172.30.128.5:8766, from 172.30.128.2 on 8765
main "pinned" 172.30.128.2 host [5432 8081] resolvers 1 sink false: a.test [80], api.test [80 443], to researcher 172.30.128.3:8765
`},
	} {
		if d := cmp.Diff(tt.want, gatesOf(tt.hermes, names...)); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
}

// Both ends of every pair of gates are proven: a link where there is one, and nothing
// beside it.
func TestNeighbours(t *testing.T) {
	a := Gate{Name: "a", Link: netip.MustParseAddr("172.30.128.2"), Spec: spec.Gate{Address: netip.MustParseAddr("172.30.0.2")}}
	b := Gate{Name: "b", Link: netip.MustParseAddr("172.30.128.3"), Spec: spec.Gate{Address: netip.MustParseAddr("172.30.0.3")}}
	link(&a, &b, 8765)
	show := func(behind Gate) (out []string) {
		for _, c := range neighbours(behind, []Gate{a, b}) {
			out = append(out, fmt.Sprintf("%s %v %d %d %v", c.Name, c.Addr, c.Port, c.Ports, c.Addrs))
		}
		return out
	}
	if got, want := show(a), []string{"link:b:8765 172.30.128.3 8765 [] []", "resolves:b invalid IP 0 [] [172.30.128.3]",
		"peer-unreachable:b 172.30.0.3 0 [22 80 443 8765] []", "link-closed:b 172.30.128.3 0 [22 80 443] []"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got, want := show(b), []string{"peer-unreachable:a 172.30.0.2 0 [22 80 443] []", "link-closed:a 172.30.128.2 0 [22 80 443] []"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Networks of links are taken one after the other from the half that the bridge has
// not, and addresses in them do not depend on who else is there.
func TestFreeLinks(t *testing.T) {
	n, err := Divide(netip.MustParsePrefix("10.0.0.0/20"))
	if err != nil {
		t.Fatal(err)
	}
	if got := n.LinkRange(); got != netip.MustParsePrefix("10.0.8.0/21") {
		t.Errorf("range %v", got)
	}
	var taken []netip.Prefix
	for i := range 1 << 7 {
		p, err := n.FreeLinks(taken)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if slices.ContainsFunc(taken, p.Overlaps) || !n.LinkRange().Contains(p.Addr()) || (Addresses{Links: p}).check(n) != nil {
			t.Fatalf("%v after %v", p, taken)
		}
		taken = append(taken, p)
	}
	if p, err := n.FreeLinks(taken); err == nil {
		t.Errorf("%v, and all are taken", p)
	}
	for _, wrong := range []string{"10.0.8.0/27", "10.0.0.0/28", "10.1.8.0/28"} {
		if (Addresses{Links: netip.MustParsePrefix(wrong)}).check(n) == nil {
			t.Errorf("%s is taken for a network of links", wrong)
		}
	}
}

// What is read and not brought up yet is refused, with its place: nobody is to believe
// that it runs.
func TestNotBroughtUpYet(t *testing.T) {
	at := diag.Pos{File: "corral.yaml", Line: 3, Col: 1}
	for key, p := range map[string]*policy.Policy{
		"profile_options.hermes.search_image": {Hermes: &policy.Hermes{Researcher: true, Search: "searxng/searxng:1"}},
		"background":                          {Hermes: &policy.Hermes{}, Background: []string{"cron"}},
	} {
		p.Origins = map[string]diag.Pos{key: at}
		if err := unplannable(p, Host{}); err == nil || !strings.Contains(err.Error(), "corral.yaml:3:1") || !strings.Contains(err.Error(), "is not in this version") {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := unplannable(&policy.Policy{Hermes: &policy.Hermes{}}, Host{}); err != nil {
		t.Error(err)
	}
}

// What a gate of the web is asked to refuse is nothing that the web has.
func TestProbesOfTheWeb(t *testing.T) {
	asked := spec.Probes{Unlisted: netip.MustParseAddr("44.10.9.9"), Resolver: netip.MustParseAddr("10.0.0.53"), Metadata: netip.MustParseAddr("44.10.9.169"), IPv6: netip.MustParseAddr("2a00::1")}
	network, err := Divide(DefaultSubnet)
	if err != nil {
		t.Fatal(err)
	}
	p := &policy.Policy{Name: "p", File: "/p/corral.yaml", Hermes: &policy.Hermes{Model: policy.Model{Host: spec.HostName, Port: 1}, Researcher: true, Fetch: true}}
	for _, g := range topology(p, Host{Probes: asked}, network, Addresses{}, nil, []netip.Addr{netip.MustParseAddr("10.0.0.53")}) {
		want := asked
		if g.Spec.Class == spec.ClassPublic {
			want = spec.DefaultProbes()
			want.Resolver = asked.Resolver
		}
		if g.Spec.Probes != want {
			t.Errorf("%s: %+v, want %+v", g.Name, g.Spec.Probes, want)
		}
	}
}
