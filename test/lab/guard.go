package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The guard's table and the places of its rules, before the main table's.
const (
	table        = 4410
	rankOnLink   = 4409 // between guarded subnets, by the bridges' own routes
	rankLabTable = 4410 // everything else: the lab, or nowhere
)

// outside stands for any address that is not in the lab (RFC 5737). It is only
// looked up, never sent to.
var outside = netip.MustParseAddr("198.51.100.1")

// guard is what keeps the sandboxes' packets on the machine: rules that send
// what comes from a guarded subnet or interface, and what goes to the lab, to
// a table that knows the lab and nothing else.
type guard struct {
	prefixes   []netip.Prefix
	interfaces []string
	ipv6       bool
}

func (g *guard) rules() []*netlink.Rule {
	var rules []*netlink.Rule
	add := func(family int, fill func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table = family, rankLabTable, table
		fill(r)
		rules = append(rules, r)
	}
	for _, lab := range []netip.Prefix{Net, Net6} {
		family := familyOf(lab)
		if family == unix.AF_INET6 && !g.ipv6 {
			continue
		}
		var guarded []netip.Prefix
		for _, p := range g.prefixes {
			if familyOf(p) == family {
				guarded = append(guarded, p)
			}
		}
		var matches []func(*netlink.Rule)
		for _, p := range append(guarded, lab) {
			matches = append(matches, func(r *netlink.Rule) { r.Src = ipNet(p) })
		}
		for _, name := range g.interfaces {
			matches = append(matches, func(r *netlink.Rule) { r.IifName = name })
		}
		for _, match := range matches {
			for _, to := range guarded {
				add(family, func(r *netlink.Rule) {
					match(r)
					r.Dst, r.Priority, r.Table = ipNet(to), rankOnLink, unix.RT_TABLE_MAIN
					r.SuppressPrefixlen = to.Bits() - 1 // a wider route than the subnet itself leads away
				})
			}
			add(family, match)
		}
		add(family, func(r *netlink.Rule) { r.Dst = ipNet(lab) })
	}
	return rules
}

// nowhere are the routes that end every lookup in the guard's table.
func (g *guard) nowhere() []*netlink.Route {
	routes := []*netlink.Route{{Table: table, Type: unix.RTN_UNREACHABLE, Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0"))}}
	if g.ipv6 {
		routes = append(routes, &netlink.Route{Table: table, Type: unix.RTN_UNREACHABLE, Dst: ipNet(netip.MustParsePrefix("::/0")), Priority: 1 << 20})
	}
	return routes
}

// raise puts the guard in force: the table's end first, then what leads there.
func (g *guard) raise() error {
	for _, r := range g.nowhere() {
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("unreachable default: %w", err)
		}
	}
	for _, r := range g.rules() {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%v: %w", r, err)
		}
	}
	return nil
}

// lower removes every guard from the host, rules first.
func lower() error {
	for {
		rules, err := ownRules()
		if err != nil {
			return err
		}
		if len(rules) == 0 {
			break
		}
		if err := netlink.RuleDel(&rules[0]); err != nil {
			return fmt.Errorf("remove %v: %w", rules[0], err)
		}
	}
	routes, err := tableRoutes()
	if err != nil {
		return err
	}
	for _, r := range routes {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove %v: %w", r, err)
		}
	}
	return nil
}

// check reads the guard back from the kernel and asks the kernel where a
// guarded packet would go.
func (g *guard) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("guard not in force: "+format, args...)
	}
	have, err := netlink.RuleList(unix.AF_UNSPEC)
	if err != nil {
		return fail("read rules: %w", err)
	}
	var got, want []string
	for _, r := range have {
		switch {
		case own(r):
			got = append(got, words(r))
		case r.Priority <= rankLabTable && r.Table != unix.RT_TABLE_LOCAL:
			return fail("%v comes before it", r)
		}
	}
	for _, r := range g.rules() {
		want = append(want, words(*r))
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			return fail("missing rule: %s", w)
		}
	}
	for _, w := range got {
		if !slices.Contains(want, w) {
			return fail("unknown rule: %s", w)
		}
	}

	link, err := netlink.LinkByName(hostLink)
	if err != nil {
		return fail("%w", err)
	}
	routes, err := tableRoutes()
	if err != nil {
		return fail("read routes: %w", err)
	}
	ends := 0
	for _, r := range routes {
		switch {
		case r.Type == unix.RTN_UNREACHABLE && (r.Dst == nil || isDefault(r.Dst)):
			ends++
		case r.LinkIndex != link.Attrs().Index:
			return fail("table %d leads elsewhere: %v", table, r)
		}
	}
	if want := len(g.nowhere()); ends != want {
		return fail("table %d has %d unreachable defaults, want %d", table, ends, want)
	}

	for _, p := range g.prefixes {
		if !p.Addr().Is4() {
			continue
		}
		src := p.Masked().Addr()
		for range 9 {
			src = src.Next()
		}
		route, err := netlink.RouteGetWithOptions(outside.AsSlice(), &netlink.RouteGetOptions{Iif: hostLink, SrcAddr: src.AsSlice()})
		// EXDEV: the kernel's own reverse path filter refused it before the route did.
		if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EXDEV) {
			return fail("a packet from %v to %v would go to %v (%v)", src, outside, route, err)
		}
	}
	return nil
}

// Guarded fails the test unless the guard is in force.
func (l *Lab) Guarded(tb testing.TB) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.guard.check(); err != nil {
		tb.Fatalf("lab: %v", err)
	}
}

// GuardInterface guards whatever comes in by the named interface as well, also
// under a forged source address. The interface need not exist yet.
func (l *Lab) GuardInterface(tb testing.TB, name string) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.guard.interfaces, name) {
		l.guard.interfaces = append(l.guard.interfaces, name)
	}
	if err := l.guard.raise(); err != nil {
		tb.Fatalf("lab: guard %s: %v", name, err)
	}
}

func own(r netlink.Rule) bool {
	return r.Priority == rankOnLink || r.Priority == rankLabTable
}

func ownRules() ([]netlink.Rule, error) {
	rules, err := netlink.RuleList(unix.AF_UNSPEC)
	return slices.DeleteFunc(rules, func(r netlink.Rule) bool { return !own(r) }), err
}

func tableRoutes() ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		all = append(all, routes...)
	}
	return all, nil
}

// words is a rule as a person would write it, the same for a rule as made and
// as read back.
func words(r netlink.Rule) string {
	var b strings.Builder
	family := "ipv4"
	if r.Family == unix.AF_INET6 {
		family = "ipv6"
	}
	fmt.Fprintf(&b, "%s %d:", family, r.Priority)
	if r.Src != nil {
		fmt.Fprintf(&b, " from %v", r.Src)
	}
	if r.Dst != nil {
		fmt.Fprintf(&b, " to %v", r.Dst)
	}
	if r.IifName != "" {
		fmt.Fprintf(&b, " iif %s", r.IifName)
	}
	fmt.Fprintf(&b, " table %d suppress %d", r.Table, r.SuppressPrefixlen)
	if r.Invert {
		b.WriteString(" inverted")
	}
	return b.String()
}

func familyOf(p netip.Prefix) int {
	if p.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func isDefault(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}

// hasIPv6 says whether this host speaks IPv6 at all.
func hasIPv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}
