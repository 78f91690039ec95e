// Package netguard says what kind of address an IP address is and whether a
// gate may pin it. In go addresses and prefixes, out come a class of a closed
// list or a refusal with its reason. It never resolves, dials or asks the
// machine: what is special about this host is handed in.
package netguard

import (
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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

// special.tsv holds the rows of IANA's special-purpose registries for IPv4 and
// IPv6, multicast, and the metadata services known by value, each with its class.
//
//go:embed special.tsv
var special string

// blocks are the rows of special.tsv that decide anything, in order.
var blocks = deciding(rows(special))

// rows reads the table. It is ours: what cannot be read is a mistake in it.
func rows(table string) (all []Block) {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), "\t")
		if len(cells) != 4 {
			panic(fmt.Sprintf("netguard: special.tsv: %q has %d columns", line, len(cells)))
		}
		c := slices.IndexFunc(classes[:], func(c struct{ name, reason string }) bool { return c.name == cells[1] })
		if c <= int(Public) {
			panic(fmt.Sprintf("netguard: special.tsv: %q is no class of special addresses", cells[1]))
		}
		all = append(all, Block{netip.MustParsePrefix(cells[0]), Class(c)})
	}
	return all
}

// deciding leaves out the rows that lie in a wider one of the same class, which a
// gate would make needless rules of, and that of IPv4-mapped addresses, which are
// unmapped before anything is looked up.
func deciding(all []Block) []Block {
	return slices.DeleteFunc(slices.Clone(all), func(b Block) bool {
		return b.Prefix.Addr().Is4In6() || slices.ContainsFunc(all, func(w Block) bool {
			return w.Class == b.Class && w.Prefix.Bits() < b.Prefix.Bits() && w.Prefix.Contains(b.Prefix.Addr())
		})
	})
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
