package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The two ends of the cable, and their addresses.
const (
	hostLink = "corral-lab"
	labLink  = "lab0"
)

var (
	hostAddr  = netip.MustParsePrefix("44.10.255.1/30")
	labAddr   = netip.MustParsePrefix("44.10.255.2/30")
	hostAddr6 = netip.MustParsePrefix("fd44:10:0:1::1/64")
	labAddr6  = netip.MustParsePrefix("fd44:10:0:1::2/64")
)

// HostAddr is the host's address in the lab: where masqueraded packets seem to
// come from.
var HostAddr = hostAddr.Addr()

// connect makes the namespace and the cable to it. The namespace has no name:
// it and the cable end with this process, however it ends.
func (l *Lab) connect() (err error) {
	if l.ns, err = newNamespace(); err != nil {
		return err
	}
	if l.inside, err = netlink.NewHandleAt(netns.NsHandle(l.ns.Fd())); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostLink
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: labLink, PeerNamespace: netlink.NsFd(l.ns.Fd())})
	if err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	lo, err := l.inside.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := l.inside.LinkSetUp(lo); err != nil {
		return err
	}
	local := []netip.Prefix{Net}
	if l.guard.ipv6 {
		local = append(local, Net6)
	}
	for _, p := range local { // every address of the lab is one of the namespace's own
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(p), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := l.inside.RouteReplace(r); err != nil {
			return fmt.Errorf("local %v: %w", p, err)
		}
	}
	if l.guard.ipv6 { // to listen there takes an address as well
		if err := addAddr(l.inside, lo, netip.PrefixFrom(Canary6, 128)); err != nil {
			return err
		}
	}
	if err := l.plug(); err != nil {
		return err
	}

	host, err := netlink.LinkByName(hostLink)
	if err != nil {
		return err
	}
	if err := setUp(&netlink.Handle{}, host, hostAddr); err != nil {
		return err
	}
	routes := []*netlink.Route{{LinkIndex: host.Attrs().Index, Dst: ipNet(Net), Gw: labAddr.Addr().AsSlice(), Table: table}}
	if l.guard.ipv6 {
		if err := addAddr(&netlink.Handle{}, host, hostAddr6); err != nil {
			return err
		}
		routes = append(routes, &netlink.Route{LinkIndex: host.Attrs().Index, Dst: ipNet(Net6), Gw: labAddr6.Addr().AsSlice(), Table: table})
	}
	for _, r := range routes {
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %v: %w", r.Dst, err)
		}
	}
	return nil
}

// plug brings the lab's end of the cable up, with what the kernel drops when
// it goes down.
func (l *Lab) plug() error {
	link, err := l.inside.LinkByName(labLink)
	if err != nil {
		return err
	}
	if err := setUp(l.inside, link, labAddr); err != nil {
		return err
	}
	index := link.Attrs().Index
	routes := []*netlink.Route{
		// More specific than Net: the host's end is not one of the lab's own.
		{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(HostAddr, 32)), Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Gw: HostAddr.AsSlice()},
	}
	if l.guard.ipv6 {
		if err := addAddr(l.inside, link, labAddr6); err != nil {
			return err
		}
		routes = append(routes, &netlink.Route{LinkIndex: index, Gw: hostAddr6.Addr().AsSlice(), Dst: ipNet(netip.MustParsePrefix("::/0"))})
	}
	for _, r := range routes {
		if err := l.inside.RouteReplace(r); err != nil {
			return fmt.Errorf("route %v: %w", r, err)
		}
	}
	return nil
}

func setUp(h *netlink.Handle, link netlink.Link, p netip.Prefix) error {
	if err := addAddr(h, link, p); err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s up: %w", link.Attrs().Name, err)
	}
	return nil
}

func addAddr(h *netlink.Handle, link netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // usable at once; nobody else is on this cable
	}
	if err := h.AddrReplace(link, a); err != nil {
		return fmt.Errorf("%v on %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

// Cut pulls the cable: the lab hears and says nothing until Mend.
func (l *Lab) Cut(tb testing.TB) {
	tb.Helper()
	link, err := l.inside.LinkByName(labLink)
	if err == nil {
		err = l.inside.LinkSetDown(link)
	}
	if err != nil {
		tb.Fatalf("lab: cut: %v", err)
	}
}

// Mend undoes Cut and returns when the host reaches the lab again.
func (l *Lab) Mend(tb testing.TB) {
	tb.Helper()
	if err := l.plug(); err != nil {
		tb.Fatalf("lab: mend: %v", err)
	}
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(OriginFirst, 80).String(), 20*time.Second)
	if err != nil {
		tb.Fatalf("lab: mend: %v", err)
	}
	c.Close()
}

func newNamespace() (*os.File, error) {
	type made struct {
		f   *os.File
		err error
	}
	done := make(chan made, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{err: fmt.Errorf("unshare: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- made{f, err}
	}()
	m := <-done
	return m.f, m.err
}

// Listen listens inside the lab, on any of its addresses ("44.10.0.10:22"),
// until the test ends or the listener is closed.
func (l *Lab) Listen(tb testing.TB, addr string) net.Listener {
	tb.Helper()
	ln, err := l.listen(addr)
	if err != nil {
		tb.Fatalf("lab: %v", err)
	}
	tb.Cleanup(func() { ln.Close() })
	return ln
}

// ListenPacket is Listen for UDP.
func (l *Lab) ListenPacket(tb testing.TB, addr string) net.PacketConn {
	tb.Helper()
	pc, err := l.listenPacket(addr)
	if err != nil {
		tb.Fatalf("lab: %v", err)
	}
	tb.Cleanup(func() { pc.Close() })
	return pc
}

func (l *Lab) listen(addr string) (ln net.Listener, err error) {
	err = l.Do(func() error {
		ln, err = new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
		return err
	})
	return ln, err
}

func (l *Lab) listenPacket(addr string) (pc net.PacketConn, err error) {
	err = l.Do(func() error {
		pc, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp", addr)
		return err
	})
	return pc, err
}

// Echo answers every connection to addr with what it says.
func (l *Lab) Echo(tb testing.TB, addr string) {
	tb.Helper()
	l.accept(l.Listen(tb, addr), echo)
}

// accept serves connections until ln is closed; open ones end with the lab.
func (l *Lab) accept(ln net.Listener, serve func(net.Conn)) {
	l.serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.serving.Go(func() {
				stop := context.AfterFunc(l.ctx, func() { c.Close() })
				defer stop()
				defer c.Close()
				serve(c)
			})
		}
	})
}
