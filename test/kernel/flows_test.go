package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

// pairOf is a connection from inside to the neighbour, both ends.
func pairOf(t *testing.T, inside, neighbour namespace, to string) (ours, theirs *net.TCPConn) {
	t.Helper()
	var l net.Listener
	neighbour.do(func() { l = must(net.Listen("tcp", net.JoinHostPort("0.0.0.0", "0"))) })
	defer l.Close()
	p := l.Addr().(*net.TCPAddr).Port
	inside.applySets(t, inside.open(t), netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry(neighbourV4, uint16(p))}})
	inside.do(func() {
		a := netip.MustParseAddr(to)
		if a.Is4() {
			ours = must(net.DialTimeout("tcp", fmt.Sprintf("%s:%d", to, p), patience)).(*net.TCPConn)
			return
		}
		// An IPv6 socket, as many runtimes use for everything.
		fd := must(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		check(t, unix.Connect(fd, &unix.SockaddrInet6{Port: p, Addr: a.As16()}))
		f := os.NewFile(uintptr(fd), "six")
		defer f.Close()
		ours = must(net.FileConn(f)).(*net.TCPConn)
	})
	theirs = must(l.Accept()).(*net.TCPConn)
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// reset reports that a connection ends without anything being sent on it.
func reset(t *testing.T, what string, c net.Conn) {
	t.Helper()
	check(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("%s: %v, want its end", what, err)
	}
}

func (n namespace) flows(t *testing.T, k *netfilter.Kernel, which func(netfilter.Flow) bool) (flows []netfilter.Flow) {
	t.Helper()
	n.do(func() { flows = must(k.Flows(t.Context(), func() func(netfilter.Flow) bool { return which })) })
	return flows
}

// Idle connections end at both ends, those by IPv6 sockets among them; others, and
// whoever listens where one was, do not notice (R011).
func TestEnd(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.open(t)
	inside.applySets(t, k, pins, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...))
	plain, plainEnd := pairOf(t, inside, neighbour, neighbourV4)
	mapped, mappedEnd := pairOf(t, inside, neighbour, "::ffff:"+neighbourV4)
	kept, keptEnd := pairOf(t, inside, neighbour, neighbourV4)
	inside.do(func() { check(t, dial("tcp", net.JoinHostPort(insideV4, fmt.Sprint(port)))) }) // stays inside

	all := inside.flows(t, k, nil)
	source := func(c net.Conn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }
	to := func(c net.Conn) netip.AddrPort { return c.RemoteAddr().(*net.TCPAddr).AddrPort() }
	unmap := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
	var end []netfilter.Flow
	for _, c := range []net.Conn{plain, mapped, kept} {
		i := slices.IndexFunc(all, func(f netfilter.Flow) bool {
			return f.Source == unmap(source(c)) && f.Destination == unmap(to(c)) && f.Proto == "tcp" && f.State == "ESTABLISHED" && f.Live()
		})
		if i < 0 {
			t.Fatalf("%v is not among %v", source(c), all)
		}
		if c != net.Conn(kept) {
			end = append(end, all[i])
		}
	}
	if len(all) != 3 {
		t.Errorf("connections: %v", all)
	}
	inside.do(func() {
		if n, err := k.End(t.Context(), end...); n != 2 || err != nil {
			t.Errorf("%d ended, %v", n, err)
		}
	})
	reset(t, "plain", plain)
	reset(t, "its other end", plainEnd)
	reset(t, "mapped", mapped)
	reset(t, "its other end", mappedEnd)
	if left := inside.flows(t, k, nil); len(left) != 1 || left[0].Source != unmap(source(kept)) {
		t.Errorf("left: %v", left)
	}
	if left := inside.flows(t, k, func(netfilter.Flow) bool { return false }); len(left) != 0 {
		t.Errorf("nothing was wanted: %v", left)
	}
	must(kept.Write([]byte("x")))
	check(t, keptEnd.SetReadDeadline(time.Now().Add(patience)))
	must(keptEnd.Read(make([]byte, 1)))

	// One that has gone is over; a listener in its place is somebody else.
	var l net.Listener
	inside.do(func() { l = must(net.Listen("tcp", source(plain).String())) })
	defer l.Close()
	inside.do(func() {
		if n, err := k.End(t.Context(), end...); n != 2 || err != nil {
			t.Errorf("again: %d ended, %v", n, err)
		}
		check(t, must(net.Dial("tcp", l.Addr().String())).Close())
	})
	must(l.Accept()).Close()

	// The port of a connection that is over may be anybody's by now: only the entry goes.
	over := inside.flows(t, k, nil)[0]
	over.State = "CLOSE"
	inside.do(func() {
		if n, err := k.End(t.Context(), over); n != 0 || err != nil {
			t.Errorf("one that is over: %d ended, %v", n, err)
		}
	})
	check(t, kept.SetReadDeadline(time.Now().Add(blink)))
	if _, err := kept.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("whoever has its port: %v", err)
	}
}

// Where the kernel destroys no sockets, a connection that is ended is cut off: nothing
// comes in on it, and it learns that when it sends.
func TestEndWithoutDestroying(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.open(t)
	inside.applySets(t, k, pins, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...))
	inside.do(func() { check(t, k.TryDestroy(t.Context())) })
	ours, theirs := pairOf(t, inside, neighbour, neighbourV4)
	inside.do(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var had, less [2]unix.CapUserData
		check(t, unix.Capget(&header, &had[0]))
		less = had
		less[0].Effective &^= 1 << unix.CAP_NET_ADMIN // of this thread
		check(t, unix.Capset(&header, &less[0]))
		err := k.TryDestroy(t.Context())
		check(t, unix.Capset(&header, &had[0]))
		if !errors.Is(err, unix.EPERM) || !strings.HasPrefix(err.Error(), spec.TrialDestroy+": ") {
			t.Errorf("without a right: %v", err)
		}
	})
	inside.applySets(t, k, pins)
	flows := inside.flows(t, k, func(f netfilter.Flow) bool { return f.Source == ours.LocalAddr().(*net.TCPAddr).AddrPort() })
	inside.do(func() {
		if n, err := k.End(t.Context(), flows...); n != 1 || err != nil {
			t.Errorf("%d ended, %v", n, err)
		}
	})
	must(theirs.Write([]byte("late")))
	check(t, ours.SetReadDeadline(time.Now().Add(blink)))
	if n, err := ours.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("came in: %d, %v", n, err)
	}
	ours.Write([]byte("secret"))
	reset(t, "ours", ours)
}

// A connection that is only tried is live, and not established.
func TestFlowThatIsTried(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.open(t)
	inside.applySets(t, k, netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry(neighbourV4, port)}}, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...))
	neighbour.run(t, "iptables -I INPUT -p tcp -j DROP")
	inside.do(func() {
		fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(neighbourV4).As4()}); !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
		flows := must(k.Flows(t.Context(), nil))
		if len(flows) != 1 || flows[0].State != "SYN_SENT" || !flows[0].Live() || flows[0].Established() {
			t.Errorf("%+v", flows)
		}
	})
}

// A connection that the kernel has forgotten is judged as new, in both directions, also
// where it would pick one up in the middle (nf_conntrack_tcp_loose).
func TestNoPickUp(t *testing.T) { backends(t, noPickUp) }

func noPickUp(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.open(t)
	inside.applySets(t, k, pins, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...))
	ours, theirs := pairOf(t, inside, neighbour, neighbourV4)
	inside.do(func() {
		loose := "/proc/sys/net/netfilter/nf_conntrack_tcp_loose"
		if b, err := os.ReadFile(loose); err != nil || strings.TrimSpace(string(b)) != "1" {
			t.Errorf("%s: %q, %v", loose, b, err)
		}
		filter := new(netlink.ConntrackFilter)
		check(t, filter.AddProtocol(unix.IPPROTO_TCP))
		if n := must(netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filter)); n == 0 {
			t.Error("there was nothing to forget")
		}
	})
	inside.applySets(t, k, pins)
	must(theirs.Write([]byte("late")))
	check(t, ours.SetReadDeadline(time.Now().Add(blink)))
	if n, err := ours.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("came in: %d, %v", n, err)
	}
	ours.Write([]byte("secret"))
	reset(t, "ours", ours)
	check(t, theirs.SetReadDeadline(time.Now().Add(blink)))
	if n, err := theirs.Read(make([]byte, 6)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("left: %d, %v", n, err)
	}
}

// Where nat sends a connection elsewhere, that is its destination, and it can be ended
// all the same.
func TestEndBehindNat(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.open(t)
	inside.applySets(t, k, pins, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...))
	inside.run(t, fmt.Sprintf("iptables -t nat -A OUTPUT -d 192.0.2.77/32 -p tcp -j DNAT --to-destination %s", neighbourV4))
	ours, theirs := pairOf(t, inside, neighbour, "192.0.2.77")
	flows := inside.flows(t, k, nil)
	if len(flows) != 1 || flows[0].Destination.Addr() != netip.MustParseAddr(neighbourV4) {
		t.Fatalf("%v", flows)
	}
	inside.do(func() {
		if n, err := k.End(t.Context(), flows...); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
	reset(t, "ours", ours)
	reset(t, "theirs", theirs)
	if left := inside.flows(t, k, nil); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// One chain is replaced, and no other notices: what their rules have seen is kept.
func TestApplyChains(t *testing.T) { backends(t, applyChains) }

func applyChains(t *testing.T) {
	inside, _ := newPair(t)
	k := inside.open(t)
	before := fence(netfilter.IPv4)
	before.Chains = append(before.Chains, netfilter.Chain{Name: "corral-extra"})
	before.Chains[1].Rules = append([]netfilter.Rule{{ID: "extra", Target: "corral-extra", Reason: "some more"}}, before.Chains[1].Rules...)
	inside.apply(t, k, before)
	inside.refused(t, neighbourV4, port)
	accept := netfilter.Rule{ID: "pin", Match: "-d " + neighbourV4 + "/32 -p tcp -m tcp --dport 443", Target: "ACCEPT", Reason: "one more"}
	after := netfilter.Ruleset{Family: netfilter.IPv4, Chains: append(slices.Clone(before.Chains[:3]), netfilter.Chain{Name: "corral-extra", Rules: []netfilter.Rule{accept}})}
	changed := netfilter.Changed(before, after)
	if len(changed) != 1 || changed[0].Name != "corral-extra" || len(netfilter.Changed(after, after)) != 0 {
		t.Fatalf("changed: %+v", changed)
	}
	inside.do(func() { check(t, k.ApplyChains(t.Context(), netfilter.IPv4, changed...)) })
	if d := netfilter.Diff(after, inside.read(t, k, netfilter.IPv4)); len(d) > 0 {
		t.Errorf("read back: %s", strings.Join(d, "\n"))
	}
	inside.reaches(t, neighbourV4, port)
	inside.do(func() {
		for _, c := range must(k.Counters(t.Context())) {
			if c.ID == "unlisted" && c.Packets != 1 {
				t.Errorf("%+v", c)
			}
		}
		check(t, k.ApplyChains(t.Context(), netfilter.IPv4, netfilter.Changed(after, before)...))
		check(t, k.ApplyChains(t.Context(), netfilter.IPv4))
	})
	inside.refused(t, neighbourV4, port)
	if d := netfilter.Diff(before, inside.read(t, k, netfilter.IPv4)); len(d) > 0 {
		t.Errorf("back: %s", strings.Join(d, "\n"))
	}
}
