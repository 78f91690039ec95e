package lab

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

func TestMain(m *testing.M) { Main(m) }

// TestNothingIsLeft needs the machine's lab for itself.
func TestNothingIsLeft(t *testing.T) {
	testenv.Require(t, "netns")
	if err := closeShared(); err != nil {
		t.Fatal(err)
	}
	before := traces(t)
	l, err := start([]netip.Prefix{netip.MustParsePrefix("172.29.0.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	l.Guarded(t)
	l.Control(t, "")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if after := traces(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}

	// A predecessor that crashed leaves its guard.
	g := &guard{prefixes: []netip.Prefix{netip.MustParsePrefix("172.28.0.0/24")}, ipv6: hasIPv6()}
	if err := g.raise(); err != nil {
		t.Fatal(err)
	}
	if l, err = start(nil); err != nil {
		t.Fatal(err)
	}
	l.Guarded(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if after := traces(t); after != before {
		t.Errorf("left behind after a crash:\n%s\nbefore:\n%s", after, before)
	}
}

// traces is everything on the host that a lab may change.
func traces(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name == hostLink {
			fmt.Fprintln(&b, "link", l.Attrs().Name)
		}
	}
	rules, err := netlink.RuleList(unix.AF_UNSPEC)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		fmt.Fprintln(&b, words(r))
	}
	routes, err := tableRoutes()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

func TestControlFromTheHost(t *testing.T) {
	l := Use(t)
	l.Control(t, "")
	if l.guard.ipv6 {
		c, err := net.Dial("tcp", netip.AddrPortFrom(Canary6, 443).String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		l.Wire.Await(t, func(p Packet) bool { return p.Dst == Canary6 && p.DstPort == 443 })
	}
}

func TestWireSeesEveryPortAndContent(t *testing.T) {
	l := Use(t)
	c, err := net.Dial("udp", netip.AddrPortFrom(Canary, 3478).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "the family silver"); err != nil {
		t.Fatal(err)
	}
	p := l.Wire.Await(t, func(p Packet) bool { return p.Proto == "udp" && p.DstPort == 3478 })
	if string(p.Payload) != "the family silver" || p.Dst != Canary || p.Src != HostAddr {
		t.Errorf("%v %q", p, p.Payload)
	}
	_, err = net.DialTimeout("tcp", netip.AddrPortFrom(Canary, 9999).String(), patience)
	if err == nil {
		t.Fatal("nothing listens on 9999")
	}
	l.Wire.Await(t, func(p Packet) bool { return p.Proto == "tcp" && p.DstPort == 9999 })
}

func TestCutAndMend(t *testing.T) {
	l := Use(t)
	l.Echo(t, "44.10.0.10:2222")
	say := func() error {
		c, err := net.DialTimeout("tcp", "44.10.0.10:2222", 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			return err
		}
		buf := make([]byte, 5)
		_, err = io.ReadFull(c, buf)
		return err
	}
	if err := say(); err != nil {
		t.Fatal(err)
	}
	l.Cut(t)
	l.Guarded(t)
	if c, err := net.DialTimeout("tcp", "44.10.0.10:2222", 300*time.Millisecond); err == nil {
		c.Close()
		t.Error("reached through a cut cable")
	}
	l.Mend(t)
	l.Guarded(t)
	if err := say(); err != nil {
		t.Errorf("after mending: %v", err)
	}
	if l.guard.ipv6 {
		if c, err := net.DialTimeout("tcp", netip.AddrPortFrom(Canary6, 443).String(), 5*time.Second); err != nil {
			t.Errorf("after mending: %v", err)
		} else {
			c.Close()
		}
	}
}

func TestListenIsInTheLab(t *testing.T) {
	l := Use(t)
	ln := l.Listen(t, "44.10.3.4:0")
	if got := ln.Addr().(*net.TCPAddr).AddrPort().Addr(); got != netip.MustParseAddr("44.10.3.4") {
		t.Errorf("listens on %v", got)
	}
	outside, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Do(func() error {
		inside, err := os.Readlink("/proc/thread-self/ns/net")
		if inside == outside {
			return fmt.Errorf("Do runs on the host: %s", inside)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestProbesAreInTheLab(t *testing.T) {
	p := Probes()
	for _, a := range []netip.Addr{p.Unlisted, p.Resolver, p.Metadata} {
		if !Net.Contains(a) {
			t.Errorf("%v is outside the lab", a)
		}
	}
	if !Net6.Contains(p.IPv6) {
		t.Errorf("%v is outside the lab", p.IPv6)
	}
}
