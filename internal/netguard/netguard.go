// Package netguard says what kind of address an IP address is and whether a
// gate may pin it. In go addresses and prefixes, out come a class of a closed
// list or a refusal with its reason. It never resolves, dials or asks the
// machine: what is special about this host is handed in.
package netguard

import (
	"fmt"
	"net/netip"
)

// Class is the kind of an address. The zero value is no permission.
type Class int

const (
	Unclassified Class = iota
	Public
	Zoned
	Unspecified
	ThisNetwork
	Loopback
	LinkLocal
	Metadata
	Private
	Shared
	Benchmark
	Documentation
	Protocol
	Service
	Relay
	Multicast
	Reserved
	Translated
	Tunnelled
	SiteLocal
	Discard
	Segment
	Unallocated
)

var classes = [...]struct{ name, reason string }{
	Unclassified:  {"unclassified", "not an address"},
	Public:        {"public", "globally routable"},
	Zoned:         {"zoned", "a zone ties it to one interface of one machine"},
	Unspecified:   {"unspecified", "no destination; the kernel connects it to this machine"},
	ThisNetwork:   {"this-network", "0.0.0.0/8 means this host on this network (RFC 791)"},
	Loopback:      {"loopback", "this machine itself (RFC 1122, RFC 4291)"},
	LinkLocal:     {"link-local", "reaches the neighbours on one link, cloud services among them (RFC 3927, RFC 4291)"},
	Metadata:      {"metadata", "a cloud's metadata service, which hands out credentials"},
	Private:       {"private", "inside somebody's own network (RFC 1918, RFC 4193)"},
	Shared:        {"shared", "a carrier's or a VPN's own network (CGNAT, RFC 6598)"},
	Benchmark:     {"benchmark", "for benchmarks between devices (RFC 2544, RFC 5180)"},
	Documentation: {"documentation", "for examples only (RFC 5737, RFC 3849, RFC 9637)"},
	Protocol:      {"protocol", "reserved for protocols of the IETF (RFC 6890, RFC 2928)"},
	Service:       {"service", "answered by whoever is nearest: AS112 and AMT (RFC 7534, RFC 7535, RFC 7450)"},
	Relay:         {"relay", "the 6to4 relay, withdrawn (RFC 7526)"},
	Multicast:     {"multicast", "more than one receiver (RFC 5771, RFC 4291)"},
	Reserved:      {"reserved", "reserved, broadcast included (RFC 1112, RFC 8190)"},
	Translated:    {"translated", "carries an IPv4 address that a translator would reach (RFC 6052, RFC 8215, RFC 4291)"},
	Tunnelled:     {"tunnelled", "carries an IPv4 address that a tunnel would reach (6to4, Teredo)"},
	SiteLocal:     {"site-local", "inside somebody's own network, withdrawn (RFC 3879)"},
	Discard:       {"discard", "thrown away on purpose (RFC 6666, RFC 9780)"},
	Segment:       {"segment", "segment routing inside a provider (RFC 9602)"},
	Unallocated:   {"unallocated", "outside the global unicast space 2000::/3"},
}

func (c Class) String() string {
	if c < 0 || int(c) >= len(classes) {
		c = Unclassified
	}
	return classes[c].name
}

// Reason is why addresses of the class are treated as they are, in a few words.
func (c Class) Reason() string {
	if c < 0 || int(c) >= len(classes) {
		c = Unclassified
	}
	return classes[c].reason
}

// Block is a range of addresses of one class.
type Block struct {
	Prefix netip.Prefix
	Class  Class
}

// blocks holds IANA's special-purpose registries for IPv4 and IPv6, multicast,
// and the metadata services known by value. The first one that contains an
// address counts.
var blocks = []Block{
	{netip.MustParsePrefix("168.63.129.16/32"), Metadata},   // Azure, public space
	{netip.MustParsePrefix("169.254.169.254/32"), Metadata}, // most clouds
	{netip.MustParsePrefix("169.254.170.2/32"), Metadata},   // AWS ECS
	{netip.MustParsePrefix("169.254.170.23/32"), Metadata},  // AWS EKS
	{netip.MustParsePrefix("100.100.100.200/32"), Metadata}, // Alibaba, shared space
	{netip.MustParsePrefix("192.0.0.192/32"), Metadata},     // Oracle
	{netip.MustParsePrefix("fd00:ec2::254/128"), Metadata},  // AWS
	{netip.MustParsePrefix("fd00:ec2::23/128"), Metadata},   // AWS EKS
	{netip.MustParsePrefix("fd20:ce::254/128"), Metadata},   // Google

	{netip.MustParsePrefix("0.0.0.0/32"), Unspecified},
	{netip.MustParsePrefix("0.0.0.0/8"), ThisNetwork},
	{netip.MustParsePrefix("10.0.0.0/8"), Private},
	{netip.MustParsePrefix("100.64.0.0/10"), Shared},
	{netip.MustParsePrefix("127.0.0.0/8"), Loopback},
	{netip.MustParsePrefix("169.254.0.0/16"), LinkLocal},
	{netip.MustParsePrefix("172.16.0.0/12"), Private},
	{netip.MustParsePrefix("192.0.0.0/24"), Protocol},
	{netip.MustParsePrefix("192.0.2.0/24"), Documentation},
	{netip.MustParsePrefix("192.31.196.0/24"), Service}, // AS112
	{netip.MustParsePrefix("192.52.193.0/24"), Service}, // AMT
	{netip.MustParsePrefix("192.88.99.0/24"), Relay},
	{netip.MustParsePrefix("192.168.0.0/16"), Private},
	{netip.MustParsePrefix("192.175.48.0/24"), Service}, // AS112
	{netip.MustParsePrefix("198.18.0.0/15"), Benchmark},
	{netip.MustParsePrefix("198.51.100.0/24"), Documentation},
	{netip.MustParsePrefix("203.0.113.0/24"), Documentation},
	{netip.MustParsePrefix("224.0.0.0/4"), Multicast},
	{netip.MustParsePrefix("240.0.0.0/4"), Reserved},

	{netip.MustParsePrefix("::/128"), Unspecified},
	{netip.MustParsePrefix("::1/128"), Loopback},
	{netip.MustParsePrefix("::/96"), Translated}, // IPv4-compatible; IPv4-mapped is unmapped first
	{netip.MustParsePrefix("64:ff9b::/96"), Translated},
	{netip.MustParsePrefix("64:ff9b:1::/48"), Translated},
	{netip.MustParsePrefix("100::/64"), Discard},
	{netip.MustParsePrefix("100:0:0:1::/64"), Discard},
	{netip.MustParsePrefix("2001::/32"), Tunnelled}, // Teredo
	{netip.MustParsePrefix("2001:2::/48"), Benchmark},
	{netip.MustParsePrefix("2001::/23"), Protocol}, // ORCHID, TURN, AMT and the rest
	{netip.MustParsePrefix("2001:db8::/32"), Documentation},
	{netip.MustParsePrefix("2002::/16"), Tunnelled},       // 6to4
	{netip.MustParsePrefix("2620:4f:8000::/48"), Service}, // AS112
	{netip.MustParsePrefix("3fff::/20"), Documentation},
	{netip.MustParsePrefix("5f00::/16"), Segment},
	{netip.MustParsePrefix("fc00::/7"), Private},
	{netip.MustParsePrefix("fe80::/10"), LinkLocal},
	{netip.MustParsePrefix("fec0::/10"), SiteLocal},
	{netip.MustParsePrefix("ff00::/8"), Multicast},
}

var globalUnicast = netip.MustParsePrefix("2000::/3")

// Special are the ranges of a family, 4 or 6, that are not public, in the order in
// which they count.
func Special(family int) []Block {
	var out []Block
	for _, b := range blocks {
		if b.Prefix.Addr().Is4() == (family == 4) {
			out = append(out, b)
		}
	}
	return out
}

// Classify gives the class of an address. An IPv4-mapped IPv6 address is the
// IPv4 address it carries. Only what is in no special block is Public.
func Classify(a netip.Addr) Class {
	if !a.IsValid() {
		return Unclassified
	}
	if a.Zone() != "" {
		return Zoned
	}
	a = a.Unmap()
	for _, b := range blocks {
		if b.Prefix.Contains(a) {
			return b.Class
		}
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return Unallocated
	}
	return Public
}

// Unpermitted is the refusal of an address that a policy could permit for its name.
type Unpermitted struct {
	Addr  netip.Addr
	Class Class
}

// Prefix is the narrowest that permits it.
func (e *Unpermitted) Prefix() netip.Prefix { return netip.PrefixFrom(e.Addr, e.Addr.BitLen()) }

func (e *Unpermitted) Error() string {
	return fmt.Sprintf("%s is refused: %s: %s; the policy permits no prefix that contains it for this name (private: [%v] would)", e.Addr, e.Class, e.Class.Reason(), e.Prefix())
}

// Pin says why a gate may not pin an address that a permitted name has, or nil.
// Public IPv4 addresses may be pinned, private, shared and benchmark ones only
// inside a prefix of private, which the policy names for that domain. Nothing
// inside never may be.
func Pin(a netip.Addr, private, never []netip.Prefix) error {
	class := Classify(a)
	if class == Unclassified || class == Zoned {
		return fmt.Errorf("%s is refused: %s: %s", a, class, class.Reason())
	}
	a = a.Unmap()
	for _, p := range never {
		// A prefix that Contains cannot compare with an IPv4 address denies.
		if !p.IsValid() || p.Addr().Is4In6() || p.Contains(a) {
			return fmt.Errorf("%s is refused: it belongs to this host or to one of its container networks (%s)", a, p)
		}
	}
	if !a.Is4() {
		return fmt.Errorf("%s is refused: only IPv4 addresses are pinned", a)
	}
	switch class {
	case Public:
		return nil
	case Private, Shared, Benchmark:
		for _, p := range private {
			if p.Contains(a) {
				return nil
			}
		}
		if class == Benchmark {
			return fmt.Errorf("%s is refused: %s: %s; a resolver that answers with it is a fake-IP resolver of a proxy or VPN, whose answers mean nothing outside it: name a real resolver, or permit 198.18.0.0/15 for this name", a, class, class.Reason())
		}
		return &Unpermitted{Addr: a, Class: class}
	}
	return fmt.Errorf("%s is refused: %s: %s; no policy can permit it", a, class, class.Reason())
}
