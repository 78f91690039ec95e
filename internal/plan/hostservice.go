package plan

import (
	"net/netip"
	"slices"

	"github.com/corral-sandbox/corral/internal/policy"
)

const dnsPort = 53

// ports are those of the host that a policy opens.
func ports(p *policy.Policy) []uint16 {
	var out []uint16
	for _, s := range p.HostServices {
		out = append(out, s.Port)
	}
	slices.Sort(out)
	return out
}

func relays(p *policy.Policy) []Relay {
	var out []Relay
	for _, port := range ports(p) {
		out = append(out, Relay{Port: port})
	}
	return out
}

// outside is the list of resolvers as a gate asks them: those on the host's
// loopback, upstream, are asked at the gateway's address, where a relay is.
func outside(resolvers []netip.Addr, gateway netip.Addr) (asked, upstream []netip.Addr) {
	for _, r := range resolvers {
		if r.IsLoopback() {
			upstream = append(upstream, r)
			r = gateway
		}
		if !slices.Contains(asked, r) {
			asked = append(asked, r)
		}
	}
	return asked, upstream
}
