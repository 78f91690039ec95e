package plan

import (
	"fmt"
	"net/netip"
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

// DefaultSubnet is divided between the bridge and the links of sandboxes.
var DefaultSubnet = netip.MustParsePrefix("172.30.0.0/16")

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

// Plannable reports whether a gate may be given that address.
func (n Network) Plannable(a netip.Addr) bool {
	return n.Subnet.Contains(a) && !n.Range.Contains(a) && a != n.Gateway && a != n.Subnet.Addr()
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
