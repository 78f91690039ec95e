package host

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Settings are the choices made once per machine. Unset fields mean the
// defaults.
type Settings struct {
	Subnet    netip.Prefix
	Resolvers []netip.Addr
	Probes    spec.Probes
}

// FromEnvironment reads the settings that scripts override: CORRAL_SUBNET
// (172.30.0.0/16), CORRAL_RESOLVERS (addresses, comma-separated) and
// CORRAL_PROBES (unlisted=ADDR,resolver=ADDR,metadata=ADDR,ipv6=ADDR; each may
// be left out).
func FromEnvironment() (Settings, error) {
	s := Settings{Probes: spec.DefaultProbes()}
	if v := os.Getenv("CORRAL_SUBNET"); v != "" {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return s, fmt.Errorf("CORRAL_SUBNET: %q is no network: write it like 172.30.0.0/16", v)
		}
		s.Subnet = p
	}
	for _, v := range list("CORRAL_RESOLVERS") {
		a, err := netip.ParseAddr(v)
		if err != nil {
			return s, fmt.Errorf("CORRAL_RESOLVERS: %q is no address: write them like 192.0.2.53,192.0.2.54", v)
		}
		if !usable(a) {
			return s, fmt.Errorf("CORRAL_RESOLVERS: %v: gates ask IPv4 name servers outside 127.0.0.0/8 only", a)
		}
		s.Resolvers = append(s.Resolvers, a)
	}
	for _, v := range list("CORRAL_PROBES") {
		key, addr, _ := strings.Cut(v, "=")
		a, err := netip.ParseAddr(addr)
		if err != nil {
			return s, fmt.Errorf("CORRAL_PROBES: %q: write each like unlisted=198.51.100.1", v)
		}
		switch key {
		case "unlisted":
			s.Probes.Unlisted = a
		case "resolver":
			s.Probes.Resolver = a
		case "metadata":
			s.Probes.Metadata = a
		case "ipv6":
			s.Probes.IPv6 = a
		default:
			return s, fmt.Errorf("CORRAL_PROBES: there is no probe %q (there is: unlisted, resolver, metadata, ipv6)", key)
		}
	}
	return s, nil
}

func list(name string) []string {
	return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' || r == ' ' })
}
