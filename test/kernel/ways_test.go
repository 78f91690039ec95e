package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/netfilter"
)

// way is something that a program without any right can do to make a packet.
type way struct {
	name string
	do   func(to netip.Addr) error
	// to is where it goes, if not to an address of the way's own.
	to netip.Addr
	// absent says that this kernel may not know the protocol at all.
	absent bool
}

// The neighbour has an address for each way, from this one on.
var firstTarget = netip.MustParseAddr("192.0.2.100")

var ways = []way{
	{name: "tcp", do: connects(unix.AF_INET, unix.SOCK_STREAM, 0, port)},
	{name: "tcp, another port", do: connects(unix.AF_INET, unix.SOCK_STREAM, 0, 22)},
	{name: "tcp from a checker's port", do: with(unix.SOCK_STREAM, 0, func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 61007}) }, port)},
	{name: "tcp by interface", do: with(unix.SOCK_STREAM, 0, func(fd int) error { return unix.BindToDevice(fd, "veth0") }, port)},
	{name: "tcp with options", do: with(unix.SOCK_STREAM, 0, func(fd int) error {
		return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x07\x0b\x04"+strings.Repeat("\x00", 9))
	}, port)},
	{name: "tcp fast open", do: fastOpen},
	{name: "mptcp", do: connects(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, port), absent: true},
	{name: "udp", do: connects(unix.AF_INET, unix.SOCK_DGRAM, 0, port)},
	{name: "udp in fragments", do: sends(unix.AF_INET, unix.SOCK_DGRAM, 0, port, 4000)},
	{name: "udp from port 53", do: with(unix.SOCK_DGRAM, 0, func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 53}) }, 53)},
	{name: "udp-lite", do: connects(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, port), absent: true},
	{name: "dccp", do: connects(unix.AF_INET, unix.SOCK_DCCP, unix.IPPROTO_DCCP, port), absent: true},
	{name: "sctp", do: connects(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, port), absent: true},
	{name: "l2tp", do: sends(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_L2TP, 0, 8), absent: true},
	{name: "ping", do: ping},
	{name: "multicast", to: netip.MustParseAddr("239.1.2.3"), do: with(unix.SOCK_DGRAM, 0, func(fd int) error {
		return unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, netip.MustParseAddr(insideV4).As4())
	}, 5353)},
	{name: "broadcast", to: netip.MustParseAddr("192.0.2.255"), do: broadcasts},
	{name: "broadcast to all", to: netip.MustParseAddr("255.255.255.255"), do: broadcasts},
	{name: "datagrams to the pinned port", to: netip.MustParseAddr(neighbourV4), do: connects(unix.AF_INET, unix.SOCK_DGRAM, 0, port)},
	{name: "IPv4 in an IPv6 socket", do: func(to netip.Addr) error {
		return connects(unix.AF_INET6, unix.SOCK_STREAM, 0, port)(netip.AddrFrom16(to.As16()))
	}},
	{name: "IPv6 tcp", to: netip.MustParseAddr(neighbourV6), do: connects(unix.AF_INET6, unix.SOCK_STREAM, 0, port)},
	{name: "IPv6 udp", to: netip.MustParseAddr("2001:db8:10::a"), do: connects(unix.AF_INET6, unix.SOCK_DGRAM, 0, 53)},
	{name: "IPv6 multicast", to: netip.MustParseAddr("ff02::fb"), do: func(to netip.Addr) error {
		return connects(unix.AF_INET6, unix.SOCK_DGRAM, 0, 5353)(to.WithZone("veth0"))
	}},
}

func socket(family, kind, proto int, use func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return fmt.Errorf("%w: %w", errAbsent, err)
	}
	defer unix.Close(fd)
	return use(fd)
}

var errAbsent = errors.New("no such socket")

func sockaddr(to netip.Addr, port int) unix.Sockaddr {
	if to.Is4() {
		return &unix.SockaddrInet4{Addr: to.As4(), Port: port}
	}
	sa := &unix.SockaddrInet6{Addr: to.As16(), Port: port}
	if i, err := net.InterfaceByName(to.Zone()); err == nil {
		sa.ZoneId = uint32(i.Index)
	}
	return sa
}

// connects begins a connection, or sends a datagram.
func connects(family, kind, proto, port int) func(netip.Addr) error {
	return sends(family, kind, proto, port, 8)
}

func sends(family, kind, proto, port, size int) func(netip.Addr) error {
	return func(to netip.Addr) error {
		return socket(family, kind, proto, func(fd int) error { return send(fd, to, port, size) })
	}
}

func send(fd int, to netip.Addr, port, size int) error {
	if err := unix.Connect(fd, sockaddr(to, port)); err != nil {
		return err
	}
	_, err := unix.Write(fd, make([]byte, size))
	return err
}

// with sets something before it sends.
func with(kind, proto int, set func(fd int) error, port int) func(netip.Addr) error {
	return func(to netip.Addr) error {
		return socket(unix.AF_INET, kind, proto, func(fd int) error {
			if err := set(fd); err != nil {
				return err
			}
			return send(fd, to, port, 8)
		})
	}
}

func fastOpen(to netip.Addr) error {
	return socket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
		return unix.Sendto(fd, []byte("secret"), unix.MSG_FASTOPEN, sockaddr(to, port))
	})
}

func ping(to netip.Addr) error {
	return socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, func(fd int) error {
		return unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1, 's'}, 0, sockaddr(to, 0))
	})
}

func broadcasts(to netip.Addr) error {
	return with(unix.SOCK_DGRAM, 0, func(fd int) error {
		if err := unix.BindToDevice(fd, "veth0"); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	}, 68)(to)
}

func (w way) target(i int) netip.Addr {
	if w.to.IsValid() {
		return w.to
	}
	a := firstTarget.As4()
	a[3] += byte(i)
	return netip.AddrFrom4(a)
}

// tryWays goes every way, says what came of each, and knocks at the pinned port
// last.
func tryWays() {
	for i, w := range ways {
		err := w.do(w.target(i))
		fmt.Printf("%s\t%v\t%v\n", w.name, errors.Is(err, errAbsent), err)
	}
	fmt.Printf("last\tfalse\t%v\n", dial("tcp", net.JoinHostPort(neighbourV4, fmt.Sprint(port))))
}

// seen is what a wire carried from the other end.
type seen struct {
	proto    byte
	src, dst netip.AddrPort
	flags    byte // TCP's
	raw      []byte
}

// wire listens at the namespace's end, from now on.
type wire struct {
	f  *os.File
	mu sync.Mutex
	on chan struct{} // closed and made anew with every packet
	ps []seen
}

func (n namespace) wiretap(t *testing.T, device string) *wire {
	t.Helper()
	w := &wire{on: make(chan struct{})}
	n.do(func() {
		fd := must(unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))))
		check(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: must(net.InterfaceByName(device)).Index}))
		w.f = os.NewFile(uintptr(fd), "wire")
	})
	raw := must(w.f.SyscallConn())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 65536)
		for {
			var got int
			var from unix.Sockaddr
			if raw.Read(func(fd uintptr) bool {
				var err error
				got, from, err = unix.Recvfrom(int(fd), b, 0)
				return !errors.Is(err, unix.EAGAIN)
			}) != nil {
				return
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING {
				w.add(parsePacket(b[:got]))
			}
		}
	}()
	t.Cleanup(func() { w.f.Close(); <-done })
	return w
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (w *wire) add(p seen, ok bool) {
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ps = append(w.ps, p)
	close(w.on)
	w.on = make(chan struct{})
}

// parsePacket is false for what is not IP.
func parsePacket(b []byte) (p seen, ok bool) {
	p.raw = bytes.Clone(b)
	var src, dst netip.Addr
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p.proto, src, dst = b[9], netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		b = b[min(len(b), int(b[0]&15)*4):]
	case len(b) >= 40 && b[0]>>4 == 6:
		p.proto, src, dst = b[6], netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		b = b[40:]
	default:
		return p, false
	}
	var ports [2]uint16
	if len(b) >= 4 && (p.proto == unix.IPPROTO_TCP || p.proto == unix.IPPROTO_UDP) {
		ports = [2]uint16{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])}
	}
	if len(b) > 13 && p.proto == unix.IPPROTO_TCP {
		p.flags = b[13]
	}
	p.src, p.dst = netip.AddrPortFrom(src, ports[0]), netip.AddrPortFrom(dst, ports[1])
	return p, true
}

// until waits for a packet and returns all up to it.
func (w *wire) until(t *testing.T, what string, is func(seen) bool) []seen {
	t.Helper()
	limit := time.After(patience)
	for {
		w.mu.Lock()
		ps, on := slices.Clone(w.ps), w.on
		w.mu.Unlock()
		if i := slices.IndexFunc(ps, is); i >= 0 {
			return ps[:i+1]
		}
		select {
		case <-on:
		case <-limit:
			t.Fatalf("%s was not seen among %d packets", what, len(ps))
		}
	}
}

const tcpSYN, tcpRST, tcpACK = 2, 4, 16

// knock is the first packet of a connection to the pinned port.
func knock(p seen) bool {
	return p.dst == netip.AddrPortFrom(netip.MustParseAddr(neighbourV4), port) && p.proto == unix.IPPROTO_TCP && p.flags&(tcpSYN|tcpACK) == tcpSYN
}

// newTargets is a pair whose neighbour has an address for each way.
func newTargets(t *testing.T) (inside, neighbour namespace) {
	t.Helper()
	inside, neighbour = newPair(t)
	var mac net.HardwareAddr
	neighbour.do(func() {
		link := must(netlink.LinkByName("veth0"))
		for i, w := range ways {
			if a := w.target(i); a.Is4() && !w.to.IsValid() {
				check(t, netlink.AddrAdd(link, must(netlink.ParseAddr(a.String()+"/24"))))
			}
		}
		v6 := must(netlink.ParseAddr("2001:db8:10::a/64"))
		v6.Flags = unix.IFA_F_NODAD
		check(t, netlink.AddrAdd(link, v6))
		mac = link.Attrs().HardwareAddr
	})
	inside.do(func() {
		// Who asked for a neighbour's address first would be seen late, or not at all.
		link := must(netlink.LinkByName("veth0")).Attrs().Index
		known := []string{neighbourV4}
		for i, w := range ways {
			if a := w.target(i); !a.IsMulticast() && a.String() != neighbourV4 {
				known = append(known, a.String())
			}
		}
		for _, a := range known {
			check(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: net.ParseIP(a), HardwareAddr: mac}))
		}
		check(t, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644))
		check(t, os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o644))
	})
	return inside, neighbour
}

// goAll goes every way as an agent would.
func (n namespace) goAll(t *testing.T) map[string][]string {
	t.Helper()
	var out []byte
	n.do(func() {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"=ways")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		out = must(cmd.Output())
	})
	said := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Split(strings.TrimSpace(line), "\t")
		said[words[0]] = words[1:]
	}
	if got := said["last"]; len(got) != 2 || got[1] != "<nil>" {
		t.Fatalf("the pinned port: %v", got)
	}
	return said
}

// R017, R028: of all the packets that a program without rights can make, none leaves but those of
// connections to what is pinned. The same ways are open where there are no rules.
func TestWaysOut(t *testing.T) {
	inside, neighbour := newTargets(t)
	free := neighbour.wiretap(t, "veth0")
	said := inside.goAll(t)
	for i, w := range ways {
		if w.absent && said[w.name][0] == "true" {
			continue
		}
		free.until(t, fmt.Sprintf("%s to %v: %v", w.name, w.target(i), said[w.name]), func(p seen) bool { return p.dst.Addr() == w.target(i) })
	}
	backends(t, func(t *testing.T) {
		inside, neighbour := newTargets(t)
		inside.fenceIn(t, gateRules(t, "serving"), entry(neighbourV4, port))
		fenced := neighbour.wiretap(t, "veth0")
		said := inside.goAll(t)
		for _, p := range fenced.until(t, "a knock", knock) {
			if !knock(p) {
				t.Errorf("protocol %d to %v left", p.proto, p.dst)
			}
		}
		for _, w := range ways {
			if words := said[w.name]; words[1] == "<nil>" && w.name != "tcp fast open" { // whose socket learns of it later
				t.Errorf("%s: no error", w.name)
			}
		}
	})
}

// A program without rights makes the kernel speak by joining a group. The kernel
// takes its time, so the rule that refuses is waited for.
func TestJoiningAGroup(t *testing.T) { backends(t, joinsAGroup) }

func joinsAGroup(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.fenceIn(t, gateRules(t, "serving"), entry(neighbourV4, port))
	fenced := neighbour.wiretap(t, "veth0")
	before := inside.packets(t, k, "corral-unlisted", "unlisted")
	inside.do(func() {
		fd := must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
		t.Cleanup(func() { unix.Close(fd) })
		check(t, unix.SetsockoptIPMreq(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreq{Multiaddr: [4]byte{239, 4, 5, 6}, Interface: netip.MustParseAddr(insideV4).As4()}))
	})
	for limit := time.Now().Add(patience); inside.packets(t, k, "corral-unlisted", "unlisted") == before; {
		if time.Now().After(limit) {
			t.Fatal("the kernel said nothing of the group")
		}
	}
	inside.reaches(t, neighbourV4, port)
	for _, p := range fenced.until(t, "a knock", knock) {
		if !knock(p) {
			t.Errorf("protocol %d to %v left", p.proto, p.dst)
		}
	}
}

// packets is how many a rule has seen.
func (n namespace) packets(t *testing.T, k *netfilter.Kernel, chain, id string) (sum uint64) {
	t.Helper()
	n.do(func() {
		for _, c := range must(k.Counters(t.Context())) {
			if c.Chain == chain && c.ID == id {
				sum += c.Packets
			}
		}
	})
	return sum
}

// A program cannot speak in another's name, nor have anything go round by
// loopback and on from there, even where the namespace forwards.
func TestNobodyElsesName(t *testing.T) { backends(t, nobodyElsesName) }

func nobodyElsesName(t *testing.T) {
	inside, neighbour := newPair(t)
	inside.do(func() {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			check(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0o644))
		}
	})
	inside.fenceIn(t, gateRules(t, "serving"), entry(neighbourV4, port))
	fenced := neighbour.wiretap(t, "veth0")
	bind := func(set int, to unix.Sockaddr) func(fd int) error {
		return func(fd int) error {
			if set != 0 {
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, set, 1); err != nil {
					return err
				}
			}
			return unix.Bind(fd, to)
		}
	}
	byLoopback := func(fd int) error { return unix.BindToDevice(fd, "lo") }
	inside.do(func() {
		for _, w := range []way{
			{name: "an address of nobody here", do: with(unix.SOCK_STREAM, 0, bind(unix.IP_FREEBIND, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 77}, Port: 7}), port)},
			{name: "loopback's address", do: with(unix.SOCK_STREAM, 0, bind(0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 7}), port)},
			{name: "datagrams by loopback", do: with(unix.SOCK_DGRAM, 0, byLoopback, port)},
			{name: "IPv6 datagrams by loopback", to: netip.MustParseAddr(neighbourV6), do: func(to netip.Addr) error {
				return socket(unix.AF_INET6, unix.SOCK_DGRAM, 0, func(fd int) error {
					if err := byLoopback(fd); err != nil {
						return err
					}
					return send(fd, to, port, 8)
				})
			}},
		} {
			to := w.to
			if !to.IsValid() {
				to = netip.MustParseAddr(neighbourV4)
			}
			if err := w.do(to); err == nil && w.to == (netip.Addr{}) {
				t.Errorf("%s: no error", w.name)
			}
		}
		// To a pinned address that is let through; it only never gets there.
		if err := with(unix.SOCK_STREAM, 0, byLoopback, port)(netip.MustParseAddr(neighbourV4)); !errors.Is(err, unix.EINPROGRESS) {
			t.Errorf("tcp by loopback: %v", err)
		}
	})
	inside.reaches(t, neighbourV4, port)
	packets := fenced.until(t, "a knock", knock)
	if len(packets) != 1 {
		t.Errorf("%d packets left: %v", len(packets)-1, packets)
	}
}

// What a connection could have been picked up from does not count: what is not
// tracked any more is refused although its peer is pinned, and no new
// connection takes over the entry of an old one.
func TestMidStream(t *testing.T) { backends(t, midStream) }

func midStream(t *testing.T) {
	inside, neighbour := newPair(t)
	k := inside.fenceIn(t, gateRules(t, "serving"), entry(neighbourV4, port))
	neighbour.do(func() {
		l := must(net.Listen("tcp", neighbourV4+":7000"))
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
			}
		}()
	})
	inside.applySets(t, k, netfilter.Set{Name: gatePins, Entries: []netfilter.Entry{entry(neighbourV4, 7000), entry(neighbourV4, port)}})
	at := &net.TCPAddr{IP: net.ParseIP(insideV4), Port: 40000}
	to := net.JoinHostPort(neighbourV4, "7000")
	dialer := net.Dialer{LocalAddr: at, Timeout: patience, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	from40000 := func(p seen) bool { return p.src.Port() == 40000 }
	inside.do(func() {
		c := must(dialer.Dial("tcp", to)).(*net.TCPConn)
		defer c.Close()
		check(t, c.SetDeadline(time.Now().Add(patience)))
		must(c.Write([]byte("while it is tracked")))
		check(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		w := neighbour.wiretap(t, "veth0")
		must(c.Write([]byte("no longer")))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("an untracked connection: %v", err)
		}
		check(t, dial("tcp", net.JoinHostPort(neighbourV4, fmt.Sprint(port))))
		if ps := w.until(t, "a knock", knock); slices.ContainsFunc(ps, from40000) {
			t.Errorf("it went on: %v", ps)
		}
	})
	inside.do(func() {
		c := must(dialer.Dial("tcp", to)).(*net.TCPConn)
		inside.applySets(t, k, netfilter.Set{Name: gatePins, Entries: []netfilter.Entry{entry(neighbourV4, port)}})
		must(c.Write([]byte("a connection goes on until it is ended")))
		check(t, c.SetLinger(0))
		check(t, c.Close())
		w := neighbour.wiretap(t, "veth0")
		if _, err := dialer.Dial("tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a new connection in the place of an old one: %v", err)
		}
		check(t, dial("tcp", net.JoinHostPort(neighbourV4, fmt.Sprint(port))))
		if ps := w.until(t, "a knock", knock); slices.ContainsFunc(ps, from40000) {
			t.Errorf("it left: %v", ps)
		}
	})
}
