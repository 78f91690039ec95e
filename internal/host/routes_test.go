package host

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

func TestRouteString(t *testing.T) {
	to := netip.MustParsePrefix("172.30.5.0/24")
	for want, r := range map[string]Route{
		"172.30.5.0/24 dev tun0":             {to, "tun0", unix.RT_TABLE_MAIN},
		"172.30.5.0/24":                      {to, "", unix.RT_TABLE_MAIN},
		"172.30.5.0/24 dev eth0 table local": {to, "eth0", unix.RT_TABLE_LOCAL},
		"172.30.5.0/24 dev tun0 table 52":    {to, "tun0", 52},
		"172.30.5.0/24 table 52":             {to, "", 52},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if r.Main() != (r.Table == 254) {
			t.Errorf("%v: in the main table: %v", r, r.Main())
		}
	}
	if (Route{}).Main() {
		t.Error("no route is in the main table")
	}
}

// R048: what a VPN client writes is seen, wherever it writes it.
func TestRoutes(t *testing.T) {
	testenv.Require(t, "netns")
	inNamespace(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "tun7"
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}))
		tun, err := netlink.LinkByName("tun7")
		if err != nil {
			t.Fatal(err)
		}
		peer, err := netlink.LinkByName("peer")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []netlink.Link{lo, tun, peer} {
			check(t, netlink.LinkSetUp(l))
		}
		addr, err := netlink.ParseAddr("10.7.0.1/24")
		if err != nil {
			t.Fatal(err)
		}
		check(t, netlink.AddrAdd(tun, addr))
		add := func(dst string, r netlink.Route) {
			t.Helper()
			r.Dst, err = netlink.ParseIPNet(dst)
			check(t, err)
			check(t, netlink.RouteAdd(&r))
		}
		via := tun.Attrs().Index
		gateway := netip.MustParseAddr("10.7.0.9").AsSlice()
		add("0.0.0.0/0", netlink.Route{LinkIndex: via, Gw: gateway})
		add("0.0.0.0/1", netlink.Route{LinkIndex: via, Gw: gateway})
		add("128.0.0.0/1", netlink.Route{LinkIndex: via, Gw: gateway})
		add("8.0.0.0/7", netlink.Route{LinkIndex: via, Gw: gateway})
		add("10.0.0.0/8", netlink.Route{LinkIndex: via, Gw: gateway})
		add("172.16.0.0/12", netlink.Route{LinkIndex: via, Gw: gateway, Table: 52})
		add("172.17.0.0/16", netlink.Route{Type: unix.RTN_THROW, Table: 52})
		add("172.30.5.0/24", netlink.Route{LinkIndex: via, Scope: netlink.SCOPE_LINK, Table: 51820})
		add("192.168.3.0/24", netlink.Route{Type: unix.RTN_BLACKHOLE})
		add("192.168.4.0/24", netlink.Route{MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: via, Gw: gateway}, {LinkIndex: lo.Attrs().Index},
		}})

		routes, err := Routes()
		check(t, err)
		var got []string
		for _, r := range routes {
			if !r.To.Addr().IsLoopback() {
				got = append(got, r.String())
			}
		}
		slices.Sort(got)
		want := []string{
			"10.0.0.0/8 dev tun7",
			"10.7.0.0/24 dev tun7",
			"10.7.0.1/32 dev tun7 table local",
			"10.7.0.255/32 dev tun7 table local",
			"172.16.0.0/12 dev tun7 table 52",
			"172.30.5.0/24 dev tun7 table 51820",
			"192.168.3.0/24",
			"192.168.4.0/24 dev lo",
			"192.168.4.0/24 dev tun7",
		}
		if !slices.Equal(got, want) {
			t.Errorf("routes\n%q, want\n%q", got, want)
		}
	})
}

// inNamespace runs f in a network namespace of its own, which goes with it.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	check(t, err)
	defer home.Close()
	fresh, err := netns.New()
	check(t, err)
	defer fresh.Close()
	defer func() {
		if err := netns.Set(home); err != nil {
			panic(err) // the thread is in the wrong place
		}
		runtime.UnlockOSThread()
	}()
	f()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
