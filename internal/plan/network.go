package plan

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Network is the bridge that all gates of a machine are on.
type Network struct {
	Name   string
	Subnet netip.Prefix
	// Range is where the engine may hand out addresses by itself: none of them
	// is ever planned.
	Range   netip.Prefix
	Gateway netip.Addr
}

// NetworkName is the one bridge of a machine that gates are on.
const NetworkName = "corral"

// DefaultSubnet is divided between the bridge and the links of sandboxes,
// unless it is taken or another was asked for.
var DefaultSubnet = netip.MustParsePrefix("172.30.0.0/16")

// subnets are what corral may take for itself, in the order in which it is
// tried. Each block is taken from its end: Docker, clouds, routers and VPNs
// number theirs from the beginning. 172.31.0.0/16 comes late because it is
// what one large cloud gives every customer.
var subnets = func() []netip.Prefix {
	list := []netip.Prefix{DefaultSubnet}
	add := func(a, b, c byte, bits int) {
		if p := netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, c}), bits); !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	for b := 29; b >= 16; b-- {
		add(172, byte(b), 0, 16)
	}
	add(172, 31, 0, 16)
	for b := 255; b >= 0; b-- {
		add(10, byte(b), 0, 16)
	}
	for c := 240; c >= 0; c -= 16 {
		add(192, 168, byte(c), 20)
	}
	return list
}()

// Subnets returns the subnets that corral can take where others are taken, in
// the order in which to try them: first, unless it is zero, then
// DefaultSubnet, then the other /16s of 172.16.0.0/12, the /16s of 10.0.0.0/8
// and the /20s of 192.168.0.0/16. Divide takes every one of them, if it takes
// first. There may be none.
func Subnets(first netip.Prefix, taken []netip.Prefix) []netip.Prefix {
	list := subnets
	if first.IsValid() {
		list = append([]netip.Prefix{first}, list...)
	}
	var free []netip.Prefix
	for _, p := range list {
		if !slices.ContainsFunc(taken, p.Overlaps) && !slices.Contains(free, p) {
			free = append(free, p)
		}
	}
	return free
}

// Divide gives the bridge the lower half of corral's subnet, and the engine
// the last /24 of that half.
func Divide(subnet netip.Prefix) (Network, error) {
	if !subnet.IsValid() || !subnet.Addr().Is4() || subnet != subnet.Masked() || subnet.Bits() < 12 || subnet.Bits() > 20 {
		return Network{}, fmt.Errorf("subnet %v: it must be an IPv4 network between /12 and /20, written with its first address", subnet)
	}
	half := netip.PrefixFrom(subnet.Addr(), subnet.Bits()+1)
	b := subnet.Addr().As4()
	last := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	last += 1<<(32-half.Bits()) - 1<<8
	rng := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(last >> 24), byte(last >> 16), byte(last >> 8), byte(last)}), 24)
	return Network{Name: NetworkName, Subnet: half, Range: rng, Gateway: subnet.Addr().Next()}, nil
}

// Undivide returns the subnet of corral's that a bridge's is the lower half
// of. A bridge that Divide would never make is an error.
func Undivide(half netip.Prefix) (netip.Prefix, error) {
	if half.IsValid() && half.Bits() > 0 {
		subnet := netip.PrefixFrom(half.Addr(), half.Bits()-1)
		if n, err := Divide(subnet); err == nil && n.Subnet == half {
			return subnet, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%v is not the lower half of a subnet that corral takes", half)
}

// Plannable reports whether a gate may be given that address.
func (n Network) Plannable(a netip.Addr) bool {
	return n.Subnet.Contains(a) && !n.Range.Contains(a) && a != n.Gateway && a != n.Subnet.Addr()
}

// Addresses are those of a sandbox. One that is not known yet is zero.
type Addresses struct {
	Gates map[string]netip.Addr // on the corral network, by the gates' names
	Links netip.Prefix          // of the network between the gates
}

// At are the addresses of a sandbox with one gate.
func At(gate netip.Addr) Addresses { return Addresses{Gates: map[string]netip.Addr{Main: gate}} }

// With are the addresses of at and of more, which counts where both say something.
func (at Addresses) With(more Addresses) Addresses {
	out := Addresses{Gates: maps.Clone(at.Gates), Links: at.Links}
	if out.Gates == nil {
		out.Gates = map[string]netip.Addr{}
	}
	maps.Copy(out.Gates, more.Gates)
	if more.Links.IsValid() {
		out.Links = more.Links
	}
	return out
}

// check refuses addresses that nobody may plan with.
func (at Addresses) check(n Network) error {
	for _, name := range sortedKeys(at.Gates) {
		if a := at.Gates[name]; a.IsValid() && !n.Plannable(a) {
			return fmt.Errorf("%v is not a plannable address of %v", a, n.Subnet)
		}
	}
	if at.Links.IsValid() && (at.Links.Bits() != LinkBits || !n.LinkRange().Contains(at.Links.Addr())) {
		return fmt.Errorf("%v is not a network of links of %v", at.Links, n.LinkRange())
	}
	return nil
}

// LinkBits make the network between a sandbox's gates: the host, thirteen gates, and
// the two addresses at the ends that nobody has.
const LinkBits = 28

// LinkRange is what networks between gates are taken from: the half of corral's subnet
// that the bridge has not.
func (n Network) LinkRange() netip.Prefix {
	b := n.Subnet.Addr().As4()
	v := binary.BigEndian.Uint32(b[:]) + 1<<(32-n.Subnet.Bits())
	binary.BigEndian.PutUint32(b[:], v)
	return netip.PrefixFrom(netip.AddrFrom4(b), n.Subnet.Bits())
}

// FreeLinks returns the first network of links that overlaps nothing that is taken.
func (n Network) FreeLinks(taken []netip.Prefix) (netip.Prefix, error) {
	whole := n.LinkRange()
	for p := netip.PrefixFrom(whole.Addr(), LinkBits); whole.Contains(p.Addr()); p = after(p) {
		if !slices.ContainsFunc(taken, p.Overlaps) {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no /%d of %v is free", LinkBits, whole)
}

// after is the next network of the same size.
func after(p netip.Prefix) netip.Prefix {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+1<<(32-p.Bits()))
	return netip.PrefixFrom(netip.AddrFrom4(b), p.Bits())
}

// linkAddress is the address of the nth gate, from 0, on the network between them, of
// which the host has the first.
func linkAddress(links netip.Prefix, n int) netip.Addr {
	if !links.IsValid() {
		return netip.Addr{}
	}
	a := links.Addr().Next().Next()
	for range n {
		a = a.Next()
	}
	return a
}

// Free returns the first plannable address that is not in use.
func (n Network) Free(used map[netip.Addr]bool) (netip.Addr, error) {
	for a := n.Gateway.Next(); n.Subnet.Contains(a); a = a.Next() {
		if n.Plannable(a) && !used[a] {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of %v is free", n.Subnet)
}
