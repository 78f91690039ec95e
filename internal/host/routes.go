package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is where this machine sends IPv4 packets for some addresses.
type Route struct {
	To        netip.Prefix
	Interface string // empty if it leads nowhere
	Table     int    // the kernel's number for the table that it is in
}

// Main reports whether a route is in the main table. Of its routes the longest
// prefix wins; those of another table may be asked first, whatever their
// length.
func (r Route) Main() bool { return r.Table == unix.RT_TABLE_MAIN }

// String is the route as the ip command writes it.
func (r Route) String() string {
	s := r.To.String()
	if r.Interface != "" {
		s += " dev " + r.Interface
	}
	switch {
	case r.Main():
		return s
	case r.Table == unix.RT_TABLE_LOCAL:
		return s + " table local"
	}
	return fmt.Sprintf("%s table %d", s, r.Table)
}

const (
	// widest is the shortest prefix that names a network. What is wider than
	// the widest private block is a way out: the default route, or the pieces
	// of it that VPN clients write so as to win over it.
	widest = 8
	// readings is how often the routes are read if they change meanwhile.
	readings = 5
)

// Routes returns the IPv4 routes of this machine, of every table, those to its
// own addresses included. Left out are ways out (the default route, whole or
// in pieces) and routes that only say to ask the next table. A route with
// several next hops is one for each.
func Routes() ([]Route, error) {
	var list []netlink.Route
	var err error
	for range readings {
		list, err = netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("routes of this machine: %w", err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("interfaces of this machine: %w", err)
	}
	names := map[int]string{}
	for _, i := range interfaces {
		names[i.Index] = i.Name
	}
	var out []Route
	for _, r := range list {
		if r.Dst == nil || r.Type == unix.RTN_THROW {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, size := r.Dst.Mask.Size()
		if !ok || size != 32 {
			return nil, fmt.Errorf("routes of this machine: %v is no IPv4 network", r.Dst)
		}
		if bits < widest {
			continue
		}
		to := netip.PrefixFrom(addr.Unmap(), bits)
		if len(r.MultiPath) == 0 {
			out = append(out, Route{to, names[r.LinkIndex], r.Table})
		}
		for _, hop := range r.MultiPath {
			out = append(out, Route{to, names[hop.LinkIndex], r.Table})
		}
	}
	return out, nil
}
