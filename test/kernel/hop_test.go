package kernel

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/netfilter"
)

// Behind the neighbour, a link of the smallest MTU that IPv6 allows and the
// tunnels of the world have.
const (
	hopMTU             = 1280
	routerAddr, farEnd = "198.51.100.1", "198.51.100.9"
	upload             = 400_000
)

// newHop is a pair whose neighbour forwards to a third namespace by a small link
// and changes no MSS; that one answers an upload with "ok".
func newHop(t *testing.T) (inside, router namespace) {
	t.Helper()
	inside, router = newPair(t)
	far := newNamespace(t)
	router.do(func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "veth1", hopMTU
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "veth1", PeerMTU: hopMTU, PeerNamespace: netlink.NsFd(far.NsHandle)}))
		link := must(netlink.LinkByName("veth1"))
		check(t, netlink.AddrAdd(link, must(netlink.ParseAddr(routerAddr+"/24"))))
		check(t, netlink.LinkSetUp(link))
		check(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	})
	var l net.Listener
	far.do(func() {
		link := must(netlink.LinkByName("veth1"))
		// The far end would say by its MSS what the link bears.
		check(t, netlink.LinkSetMTU(link, 1500))
		check(t, netlink.AddrAdd(link, must(netlink.ParseAddr(farEnd+"/24"))))
		check(t, netlink.LinkSetUp(link))
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(routerAddr)}))
		l = must(net.Listen("tcp", farEnd+":443"))
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(patience))
			if n, _ := io.Copy(io.Discard, c); n == upload {
				c.Write([]byte("ok"))
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	inside.do(func() {
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: must(netlink.LinkByName("veth0")).Attrs().Index, Gw: net.ParseIP(neighbourV4)}))
	})
	return inside, router
}

func uploads(limit time.Duration) error {
	c, err := net.DialTimeout("tcp", farEnd+":443", limit)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	if _, err := c.Write(make([]byte, upload)); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 2))
	return err
}

// hangs is how long an upload that gets nowhere is waited for, on a path where
// another one has just taken a fraction of it.
const hangs = 800 * time.Millisecond

const mtuRule = "fragmentation-needed"

// An upload over a smaller MTU further on needs the one ICMP error that is let
// in; a forged one about no connection of ours is not let in.
func TestSmallHop(t *testing.T) { backends(t, smallHop) }

func smallHop(t *testing.T) {
	inside, router := newHop(t)
	rules := gateRules(t, "serving")
	k := inside.fenceIn(t, rules, entry(farEnd, 443), entry(neighbourV4, port))
	mtu := func() (n int) {
		inside.do(func() { n = must(netlink.RouteGet(net.ParseIP(farEnd)))[0].MTU })
		return n
	}

	// Forged: about a connection that is not there, and about one to somebody else.
	before := inside.packets(t, k, "INPUT", mtuRule)
	w := router.wiretap(t, "veth0")
	for _, about := range []netip.AddrPort{netip.MustParseAddrPort(farEnd + ":443"), netip.MustParseAddrPort("198.51.100.77:443")} {
		router.sendRaw(t, fragmentationNeeded(about))
	}
	inside.reaches(t, neighbourV4, port)
	w.until(t, "a knock", knock) // was sent after them
	if n := inside.packets(t, k, "INPUT", mtuRule); n != before || mtu() != 0 {
		t.Errorf("a forged notice was let in: %d packets, MTU %d", n-before, mtu())
	}

	// Without the rule an upload hangs: the control of all of this.
	without := slices.Clone(rules)
	without[0] = less(t, rules[0], mtuRule)
	inside.apply(t, k, without...)
	inside.do(func() {
		var timeout net.Error
		if err := uploads(hangs); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("without the rule: %v", err)
		}
	})

	inside.apply(t, k, rules...)
	inside.do(func() { check(t, uploads(patience)) })
	if n := inside.packets(t, k, "INPUT", mtuRule); n == 0 || mtu() != hopMTU {
		t.Errorf("%d notices, MTU %d", n, mtu())
	}
}

// less is a ruleset without the rules of one ID.
func less(t *testing.T, r netfilter.Ruleset, id string) netfilter.Ruleset {
	t.Helper()
	r.Chains = slices.Clone(r.Chains)
	found := false
	for i, c := range r.Chains {
		r.Chains[i].Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(rule netfilter.Rule) bool {
			found = found || rule.ID == id
			return rule.ID == id
		})
	}
	if !found {
		t.Fatalf("no rule %s", id)
	}
	return r
}

// fragmentationNeeded is what a router says of a packet from inside.
func fragmentationNeeded(about netip.AddrPort) []byte {
	inner := ipv4(unix.IPPROTO_TCP, netip.MustParseAddr(insideV4), about.Addr(), tcp(netip.AddrPort{}, 40001, about.Port(), 0)[:8])
	b := append([]byte{3, 4, 0, 0, 0, 0, hopMTU >> 8, hopMTU & 0xff}, inner...)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return ipv4(unix.IPPROTO_ICMP, netip.MustParseAddr(neighbourV4), netip.MustParseAddr(insideV4), b)
}

func ipv4(proto byte, src, dst netip.Addr, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// tcp is a header; its checksum is for packets from src to inside.
func tcp(src netip.AddrPort, from, to uint16, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], 1000)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 0xffff)
	if src.IsValid() {
		pseudo := slices.Concat(src.Addr().AsSlice(), netip.MustParseAddr(insideV4).AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, 20}, b)
		binary.BigEndian.PutUint16(b[16:], checksum(pseudo))
	}
	return b
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sendRaw sends whole IPv4 packets to inside.
func (n namespace) sendRaw(t *testing.T, packets ...[]byte) {
	t.Helper()
	n.do(func() {
		fd := must(unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW))
		defer unix.Close(fd)
		for _, p := range packets {
			check(t, unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(insideV4).As4()}))
		}
	})
}

// From outside nothing gets in but answers: nothing is accepted, nothing that
// waits for datagrams gets one, and nothing is said to whoever tries. Without
// rules the same packets are answered or delivered.
func TestWaysIn(t *testing.T) {
	// No kernel has these addresses, so none resets what it knows nothing of.
	stranger, pinned := netip.MustParseAddrPort("192.0.2.50:40002"), netip.MustParseAddrPort("192.0.2.51:443")
	packet := func(from netip.AddrPort, to uint16, flags byte) []byte {
		return ipv4(unix.IPPROTO_TCP, from.Addr(), netip.MustParseAddr(insideV4), tcp(from, from.Port(), to, flags))
	}
	udp := func(from, to uint16) []byte {
		b := make([]byte, 12)
		binary.BigEndian.PutUint16(b, from)
		binary.BigEndian.PutUint16(b[2:], to)
		binary.BigEndian.PutUint16(b[4:], 12)
		return ipv4(unix.IPPROTO_UDP, stranger.Addr(), netip.MustParseAddr(insideV4), b)
	}
	icmp := func(kind, code byte) []byte {
		b := make([]byte, 20)
		b[0], b[1] = kind, code
		binary.BigEndian.PutUint16(b[2:], checksum(b))
		return ipv4(unix.IPPROTO_ICMP, stranger.Addr(), netip.MustParseAddr(insideV4), b)
	}
	syn := packet(stranger, port, tcpSYN)
	ways := []struct {
		name    string
		packets [][]byte
	}{
		{"a connection", [][]byte{syn}},
		{"a connection from the pinned port", [][]byte{packet(pinned, port, tcpSYN)}},
		{"the middle of one", [][]byte{packet(stranger, port, tcpACK)}},
		{"the middle of one, from the pinned port", [][]byte{packet(pinned, port, tcpACK)}},
		{"an answer to nothing", [][]byte{packet(pinned, 50000, tcpSYN|tcpACK)}},
		{"a connection in fragments", fragments(syn)},
		{"a port where nobody is", [][]byte{packet(stranger, 1, tcpSYN)}},
		{"a datagram to where nobody is", [][]byte{udp(53, 1)}},
		{"echo", [][]byte{icmp(8, 0)}},
		{"timestamp", [][]byte{icmp(13, 0)}},
	}
	backends(t, func(t *testing.T) {
		inside, neighbour := newPair(t)
		var mac net.HardwareAddr
		neighbour.do(func() { mac = must(netlink.LinkByName("veth0")).Attrs().HardwareAddr })
		inside.do(func() {
			for _, a := range []netip.AddrPort{stranger, pinned} {
				check(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: must(netlink.LinkByName("veth0")).Attrs().Index,
					State: netlink.NUD_PERMANENT, IP: a.Addr().AsSlice(), HardwareAddr: mac}))
			}
		})
		back := neighbour.wiretap(t, "veth0")
		for i, w := range ways {
			neighbour.sendRaw(t, w.packets...)
			answers := 0
			back.until(t, "an answer to "+w.name, func(p seen) bool {
				if p.dst.Addr() == stranger.Addr() || p.dst.Addr() == pinned.Addr() {
					answers++
				}
				return answers > i
			})
		}
		var heard net.PacketConn
		inside.do(func() {
			heard = must(net.ListenPacket("udp4", insideV4+":5300"))
			inside.fenceIn(t, gateRules(t, "refreshing"), entry(neighbourV4, port), entry(pinned.Addr().String(), 443))
		})
		defer heard.Close()
		fenced := neighbour.wiretap(t, "veth0")
		for _, w := range ways {
			neighbour.sendRaw(t, w.packets...)
		}
		neighbour.sendRaw(t, udp(53, 5300))
		inside.reaches(t, neighbourV4, port)
		for _, p := range fenced.until(t, "a knock", knock) {
			if !knock(p) {
				t.Errorf("an answer came: protocol %d, %v to %v, flags %x", p.proto, p.src, p.dst, p.flags)
			}
		}
		heard.SetReadDeadline(time.Now())
		if n, from, err := heard.ReadFrom(make([]byte, 16)); err == nil {
			t.Errorf("%d bytes came in from %v", n, from)
		}
	})
}

// fragments are two, the first without the whole of the TCP header.
func fragments(p []byte) [][]byte {
	first, second := slices.Clone(p[:20+8]), slices.Concat(p[:20], p[20+8:])
	for i, f := range [][]byte{first, second} {
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		binary.BigEndian.PutUint16(f[4:], 7)
		binary.BigEndian.PutUint16(f[6:], []uint16{0x2000, 1}[i])
		f[10], f[11] = 0, 0
		binary.BigEndian.PutUint16(f[10:], checksum(f[:20]))
	}
	return [][]byte{first, second}
}
