package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/corral-sandbox/corral/internal/plan"
)

// R048: a route over corral's subnet is named at every bring-up; repair takes
// another subnet, and whatever comes up afterwards follows the network.
func TestSubnetCollides(t *testing.T) {
	// Alone: it moves the corral network.
	s := project(t, "profile: shell\nname: subnet\nmode: run\n")
	s.lab.GuardInterface(t, bridge) // wherever the network goes
	whole := corralSubnet(t)
	t.Cleanup(func() {
		wish := "CORRAL_SUBNET=" + whole.String()
		s.env = append(s.env, wish)
		if r := s.corral("install", "--repair"); r.code != 0 || corralSubnet(t) != whole {
			t.Errorf("the network was not put back: %v", r)
		}
		s.env = slices.DeleteFunc(s.env, func(v string) bool { return v == wish })
	})

	wider := netip.PrefixFrom(whole.Addr(), whole.Bits()-1).Masked()
	remove := addRoute(t, wider)
	if r := s.sh("echo in"); r.code != 0 || r.out != "in\n" || !strings.Contains(r.err, fmt.Sprintf("route %v dev lo", wider)) {
		t.Errorf("a wider route: %v", r)
	}
	remove()

	b := whole.Addr().As4()
	b[2] += 5
	inside := netip.PrefixFrom(netip.AddrFrom4(b), 24)
	addRoute(t, inside)
	wished := "CORRAL_SUBNET=" + whole.String()
	for _, c := range []struct {
		env  []string
		args []string
		hint string
	}{
		{nil, []string{"run", "--", "true"}, "corral install --repair"},
		{nil, []string{"verify"}, "corral install --repair"},
		{nil, []string{"install"}, "corral install --repair"},
		{[]string{wished}, []string{"install"}, "corral install --repair"},
		{[]string{wished}, []string{"install", "--repair"}, "CORRAL_SUBNET"},
	} {
		plain := s.env
		s.env = slices.Concat(plain, c.env)
		r := s.corral(c.args...)
		s.env = plain
		if r.code != 1 || !strings.Contains(r.err, fmt.Sprintf("%v collides with route %v dev lo\n", whole, inside)) || !strings.Contains(r.err, c.hint) {
			t.Errorf("%v corral %v beside a narrower route: %v", c.env, c.args, r)
		}
	}
	if now := corralSubnet(t); now != whole {
		t.Fatalf("the network moved to %v, and nobody asked for it", now)
	}

	if r := s.corral("install", "--repair"); r.code != 0 || !strings.Contains(r.err, inside.String()) {
		t.Fatalf("repair: %v", r)
	}
	now := corralSubnet(t)
	if now.Overlaps(whole) {
		t.Fatalf("%v is no other subnet than %v", now, whole)
	}
	if r := s.corral("install"); r.code != 0 || corralSubnet(t) != now {
		t.Errorf("a second install: %v", r)
	}
	if r := s.sh("cat /proc/net/fib_trie"); r.code != 0 || !strings.Contains(r.out, now.Addr().String()) || strings.Contains(r.out, whole.Addr().String()) {
		t.Errorf("the sandbox is not in %v: %v", now, r)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("verify in %v: %v", now, r)
	}
}

// corralSubnet is the whole subnet that the corral network is on.
func corralSubnet(t *testing.T) netip.Prefix {
	t.Helper()
	half, err := netip.ParsePrefix(docker(t, "network", "inspect", "--format", "{{(index .IPAM.Config 0).Subnet}}", plan.NetworkName))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := plan.Undivide(half)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// addRoute gives this machine a route that leads to itself, until the test
// ends or the result is called.
func addRoute(t *testing.T, to netip.Prefix) (remove func()) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	dst, err := netlink.ParseIPNet(to.String())
	if err != nil {
		t.Fatal(err)
	}
	r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(r); err != nil {
		t.Fatal(err)
	}
	remove = sync.OnceFunc(func() {
		if err := netlink.RouteDel(r); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(remove)
	return remove
}
