package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// R057: a name server on the host's loopback is asked at the gateway's address,
// once, in its place among the others.
func TestOutside(t *testing.T) {
	gateway := netip.MustParseAddr("172.30.0.1")
	for _, tt := range []struct{ resolvers, asked, upstream []netip.Addr }{
		{nil, nil, nil},
		{addrs("10.0.0.53", "10.0.0.54"), addrs("10.0.0.53", "10.0.0.54"), nil},
		{addrs("127.0.0.53"), addrs("172.30.0.1"), addrs("127.0.0.53")},
		{addrs("127.0.0.53", "127.0.0.1", "::1"), addrs("172.30.0.1"), addrs("127.0.0.53", "127.0.0.1", "::1")},
		{addrs("10.0.0.53", "127.0.0.53", "10.0.0.53"), addrs("10.0.0.53", "172.30.0.1"), addrs("127.0.0.53")},
		{addrs("126.255.255.255", "128.0.0.0"), addrs("126.255.255.255", "128.0.0.0"), nil},
	} {
		if asked, upstream := outside(tt.resolvers, gateway); !slices.Equal(asked, tt.asked) || !slices.Equal(upstream, tt.upstream) {
			t.Errorf("%v: asked %v by way of %v", tt.resolvers, asked, upstream)
		}
	}
}

// R024: what is opened of the host, carried to it and proven are the same
// ports, and each name server on loopback has its relay only where names need
// one.
func TestRelays(t *testing.T) {
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	const services = "host_services:\n  - {name: llama, port: 8081}\n  - {name: db, port: 443}\n"
	const names = "egress:\n  allow: [a.example.com]\n"
	for _, tt := range []struct {
		src       string
		resolvers []netip.Addr
		want      string
	}{
		{"", addrs("127.0.0.53"), "[]"},
		{services, addrs("127.0.0.53"), "[{443 []} {8081 []}]"},
		{names, addrs("10.0.0.53"), "[]"},
		{names, addrs("127.0.0.53", "127.0.0.1"), "[{53 [127.0.0.53 127.0.0.1]}]"},
		{names + services, addrs("127.0.0.53"), "[{443 []} {8081 []} {53 [127.0.0.53]}]"},
	} {
		p, err := policy.Parse("corral.yaml", []byte("profile: shell\nname: a\n"+tt.src))
		if err != nil {
			t.Fatal(err)
		}
		h := host()
		h.Resolvers = tt.resolvers
		got, err := Build(p, prof, h, At(netip.MustParseAddr("172.30.0.2")), nil)
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for _, r := range got.Relays {
			words = append(words, fmt.Sprintf("{%d %v}", r.Port, r.DNS))
			if len(r.Verify) == 0 {
				t.Errorf("%q: nothing proves the relay of port %d", tt.src, r.Port)
			}
		}
		if s := fmt.Sprint(words); s != tt.want {
			t.Errorf("%q: relays %s, want %s", tt.src, s, tt.want)
		}
		g := got.Gates[0].Spec
		for _, r := range got.Relays {
			if len(r.DNS) == 0 != slices.Contains(g.HostPorts, r.Port) {
				t.Errorf("%q: port %d is carried and open %v", tt.src, r.Port, g.HostPorts)
			}
		}
		proven := 0
		for _, c := range got.Services[0].Verify {
			if strings.HasPrefix(c.Name, "host-service:") && c.Addr == g.Gateway && slices.Contains(g.HostPorts, c.Port) {
				proven++
			}
			if c.Name == "gateway-closed" && slices.ContainsFunc(c.Ports, func(p uint16) bool { return slices.Contains(g.HostPorts, p) }) {
				t.Errorf("%q: %v must be closed and open", tt.src, c.Ports)
			}
		}
		if proven != len(g.HostPorts) {
			t.Errorf("%q: %d of %d ports are proven", tt.src, proven, len(g.HostPorts))
		}
	}
}
