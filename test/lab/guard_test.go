package lab

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// TestGuardRemovalIsNoticed takes away or adds one thing at a time. No packet
// is sent meanwhile.
func TestGuardRemovalIsNoticed(t *testing.T) {
	l := Use(t)
	noticed := func(what string) {
		t.Helper()
		if err := l.guard.check(); err == nil || !strings.Contains(err.Error(), "guard not in force") {
			t.Errorf("%s: not noticed (%v)", what, err)
		}
	}
	restore := func() {
		t.Helper()
		if err := l.guard.raise(); err != nil {
			t.Fatal(err)
		}
		l.Guarded(t)
	}

	for _, r := range l.guard.rules() {
		if err := netlink.RuleDel(r); err != nil {
			t.Fatal(err)
		}
		noticed("without " + words(*r))
		restore()
	}
	for _, r := range l.guard.nowhere() {
		if err := netlink.RouteDel(r); err != nil {
			t.Fatal(err)
		}
		noticed("without an unreachable default")
		restore()
	}

	ahead := netlink.NewRule()
	ahead.Family, ahead.Priority, ahead.Table, ahead.Src = unix.AF_INET, 100, unix.RT_TABLE_MAIN, ipNet(Corral)
	wide := netlink.NewRule()
	wide.Family, wide.Priority, wide.Table, wide.Src = unix.AF_INET, rankOnLink, unix.RT_TABLE_MAIN, ipNet(netip.MustParsePrefix("172.30.0.0/17"))
	for _, r := range []*netlink.Rule{ahead, wide} {
		if err := netlink.RuleAdd(r); err != nil {
			t.Fatal(err)
		}
		noticed("beside " + words(*r))
		if err := netlink.RuleDel(r); err != nil {
			t.Fatal(err)
		}
		l.Guarded(t)
	}

	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("203.0.113.0/24")), Table: table}
	if err := netlink.RouteAdd(elsewhere); err != nil {
		t.Fatal(err)
	}
	noticed("with a route that leads elsewhere")
	if err := netlink.RouteDel(elsewhere); err != nil {
		t.Fatal(err)
	}
	l.Guarded(t)
}

// TestNothingLeavesAGuardedBridge gives the host a way out of its own, to a
// namespace that this test made, and sends there from a bridge as Docker makes
// it.
func TestNothingLeavesAGuardedBridge(t *testing.T) {
	l := Use(t)
	testenv.Require(t, "engine") // its rules forward what comes from a bridge

	const bridge, network = "lab-test0", "corral-lab-test"
	_ = exec.Command("docker", "network", "rm", network).Run() // a run that was killed leaves it
	docker(t, "network", "create", "--subnet", "172.30.255.240/28", "-o", "com.docker.network.bridge.name="+bridge, network)
	t.Cleanup(func() { docker(t, "network", "rm", network) })
	away := netip.MustParseAddr("203.0.113.7") // in the namespace
	out := wayOut(t, away)
	sandbox := join(t, bridge, netip.MustParsePrefix("172.30.255.250/28"), netip.MustParseAddr("172.30.255.241"))
	seen := l.Capture(t, bridge)
	honest, forged := netip.MustParseAddr("172.30.255.250"), netip.MustParseAddr("192.0.2.9")

	l.Control(t, network)
	seen.Await(t, func(p Packet) bool { return p.Dst == Canary && p.DstPort == 443 })

	for i, src := range []netip.Addr{honest, forged} {
		mark := uint16(7000 + i)
		send(t, sandbox, src, away, mark)
		seen.Await(t, func(p Packet) bool { return p.Dst == away && p.DstPort == mark && p.Src == src })
		l.Control(t, network) // takes the same bridge, later: what left before it has arrived by now
		if got := out.To(away); len(got) > 0 {
			t.Errorf("from %v: %v left the machine", src, got)
		}
	}

	// The same packets without the rules: it was the guard that held them.
	for _, r := range l.guard.rules() {
		if err := netlink.RuleDel(r); err != nil {
			t.Fatal(err)
		}
	}
	for i, src := range []netip.Addr{honest, forged} {
		mark := uint16(7100 + i)
		send(t, sandbox, src, away, mark)
		out.Await(t, func(p Packet) bool { return p.Dst == away && p.DstPort == mark })
	}
	if err := l.guard.raise(); err != nil {
		t.Fatal(err)
	}
	l.Guarded(t)
}

// TestCaptureSeesNeighbours: what goes from one container to another on a
// bridge is seen, although the host is not addressed.
func TestCaptureSeesNeighbours(t *testing.T) {
	l := Use(t)
	const bridge = "lab-test1"
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	br := &netlink.Bridge{LinkAttrs: attrs}
	_ = netlink.LinkDel(br) // a run that was killed leaves it
	if err := netlink.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(br) })
	if err := netlink.LinkSetUp(br); err != nil {
		t.Fatal(err)
	}
	one, other := netip.MustParseAddr("172.30.255.226"), netip.MustParseAddr("172.30.255.227")
	a := join(t, bridge, netip.PrefixFrom(one, 28), netip.Addr{})
	join(t, bridge, netip.PrefixFrom(other, 28), netip.Addr{})
	seen := l.Capture(t, bridge)
	send(t, a, one, other, 4711)
	seen.Await(t, func(p Packet) bool { return p.Src == one && p.Dst == other && p.DstPort == 4711 })
}

// wayOut gives the host a route to away's /24 that ends in a namespace, and
// records what arrives there.
func wayOut(t *testing.T, away netip.Addr) *Capture {
	t.Helper()
	p := netip.PrefixFrom(away, 24)
	ns := pair(t, "lab-out0", "out0")
	link, err := netlink.LinkByName("lab-out0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p.Masked()), Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	inside := &Lab{ns: ns}
	var c *Capture
	err = inside.Do(func() error {
		peer, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(peer, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(peer); err != nil {
			return err
		}
		c, err = capture("out0", nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	inside.serving.Go(c.run)
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
		inside.serving.Wait()
	})
	return c
}

// join puts a namespace on a bridge.
func join(t *testing.T, bridge string, p netip.Prefix, gateway netip.Addr) *Lab {
	t.Helper()
	name := "lab-t" + strings.ReplaceAll(p.Addr().String()[len("172.30.255."):], ".", "-")
	ns := pair(t, name, "eth0")
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetMaster(link, br), netlink.LinkSetUp(link)); err != nil {
		t.Fatal(err)
	}
	inside := &Lab{ns: ns}
	err = inside.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := setUp(&netlink.Handle{}, eth0, p); err != nil {
			return err
		}
		if !gateway.IsValid() {
			return nil
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway.AsSlice()})
	})
	if err != nil {
		t.Fatal(err)
	}
	return inside
}

func pair(t *testing.T, name, peer string) *os.File {
	t.Helper()
	ns, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = netlink.LinkDel(link)
		ns.Close()
	})
	return ns
}

// send sends one UDP packet from inside, from whatever source address.
func send(t *testing.T, inside *Lab, src, dst netip.Addr, port uint16) {
	t.Helper()
	b := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, 5353)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, 0, 8, 0, 0)
	err := inside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: dst.As4()})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func docker(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
		t.Errorf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
