package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Limits of a capture.
const (
	captureBuffer = 64 << 20 // bytes waiting to be read: a burst must not cost a packet
	captureBytes  = 2048     // of each packet: a whole frame of the lab
)

// Packet is one packet seen on a wire.
type Packet struct {
	At       time.Time
	Proto    string // tcp, udp, icmp, icmp6, ip-N, or ether-0xNNNN for what is not IP
	Src, Dst netip.Addr
	// Ports are 0 where the protocol has none, and in later fragments.
	SrcPort, DstPort uint16
	Payload          []byte
}

func (p Packet) String() string {
	return fmt.Sprintf("%s %v -> %v", p.Proto, netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort))
}

// Capture records the packets that come in by one interface, whatever becomes
// of them afterwards. On a bridge these are the packets that containers send,
// to each other included, before masquerade; what the host sends to them is
// not recorded, nor is ARP.
type Capture struct {
	journal journal[Packet]

	file *os.File
	conn syscall.RawConn
	mu   sync.Mutex // around reading, so that records keep their order
	lost uint32
}

// Capture records on an interface of the host until the test ends. It is ready
// when it returns: the next packet is in it. The interface is guarded from then
// on, also against forged source addresses.
func (l *Lab) Capture(tb testing.TB, name string) *Capture {
	tb.Helper()
	l.GuardInterface(tb, name)
	c, err := capture(name, nil)
	if err != nil {
		tb.Fatalf("lab: capture %s: %v", name, err)
	}
	l.serving.Go(c.run)
	tb.Cleanup(func() {
		if err := c.close(); err != nil {
			tb.Errorf("lab: capture %s: %v", name, err)
		}
	})
	return c
}

// watch records, inside the lab, what arrives for the addresses that no
// sandbox may reach.
func (l *Lab) watch() (c *Capture, err error) {
	err = l.Do(func() error {
		c, err = capture(labLink, unwelcome())
		return err
	})
	if err != nil {
		return nil, err
	}
	l.serving.Go(c.run)
	l.onClose(c.close)
	return c, nil
}

// unwelcome passes packets for Canary, Metadata and Authority, and for all of
// Net6 but its cable. Without it a benchmark's own traffic would be kept.
func unwelcome() []bpf.Instruction {
	v4 := func(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }
	v6 := Canary6.As16()
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 6, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: v4(Canary), SkipTrue: 6},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: v4(Metadata), SkipTrue: 5},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: v4(Authority), SkipTrue: 4},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 24 + 12, Size: 4}, // the last quarter of the destination
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(v6[12:]), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: captureBytes},
	}
}

func capture(name string, filter []bpf.Instruction) (_ *Capture, err error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	// Protocol 0 hears nothing until bind, so no packet of another interface
	// gets in.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer); err != nil {
		return nil, fmt.Errorf("receive buffer: %w", err)
	}
	// On a bridge, what goes from port to port is seen only this way.
	mreq := unix.PacketMreq{Ifindex: int32(link.Index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
		return nil, fmt.Errorf("promiscuous: %w", err)
	}
	if filter != nil {
		raw, err := bpf.Assemble(filter)
		if err != nil {
			return nil, err
		}
		prog := make([]unix.SockFilter, len(raw))
		for i, r := range raw {
			prog[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
		}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}); err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link.Index}); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	c := &Capture{file: os.NewFile(uintptr(fd), "capture "+name)}
	c.conn, err = c.file.SyscallConn()
	return c, err
}

// run reads until the capture is closed, so that the buffer never fills.
func (c *Capture) run() {
	_ = c.conn.Read(func(fd uintptr) bool {
		c.drain(int(fd))
		return false
	})
}

// drain records everything that has arrived.
func (c *Capture) drain(fd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := make([]byte, captureBytes)
	for {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) { // the interface went down: an error to be taken note of once
			continue
		}
		if err != nil {
			break
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Pkttype == unix.PACKET_OUTGOING || ll.Protocol == htons(unix.ETH_P_ARP) {
			continue
		}
		c.journal.add(parse(htons(ll.Protocol), buf[:n]))
	}
	if stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		c.lost += stats.Drops
	}
}

func (c *Capture) close() error {
	err := c.conn.Control(func(fd uintptr) { c.drain(int(fd)) })
	if c.lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d packets lost: nothing can be told from this capture", c.lost))
	}
	return errors.Join(err, c.file.Close())
}

// Packets returns everything that has come in so far.
func (c *Capture) Packets() []Packet {
	return c.Match(func(Packet) bool { return true })
}

// To returns the packets sent to addr.
func (c *Capture) To(addr netip.Addr) []Packet {
	return c.Match(func(p Packet) bool { return p.Dst == addr })
}

// Match returns the packets that match.
func (c *Capture) Match(match func(Packet) bool) []Packet {
	_ = c.conn.Control(func(fd uintptr) { c.drain(int(fd)) }) // a closed capture has all it will have
	return c.journal.list(match)
}

// Await returns the first packet that matches, waiting for it if it has not
// come yet.
func (c *Capture) Await(tb testing.TB, match func(Packet) bool) Packet {
	tb.Helper()
	return c.journal.await(tb, "packet", match)
}

// parse reads a packet from its network header on. What it cannot read it
// leaves empty: a packet is recorded, however odd.
func parse(ethertype uint16, b []byte) Packet {
	p := Packet{At: time.Now(), Proto: fmt.Sprintf("ether-%#04x", ethertype)}
	var proto byte
	first := true // not a later fragment
	switch {
	case ethertype == unix.ETH_P_IP && len(b) >= 20 && len(b) >= int(b[0]&15)*4:
		p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		proto = b[9]
		first = binary.BigEndian.Uint16(b[6:])&0x1fff == 0
		end := min(len(b), int(binary.BigEndian.Uint16(b[2:])))
		b = b[min(int(b[0]&15)*4, end):end]
	case ethertype == unix.ETH_P_IPV6 && len(b) >= 40:
		p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		proto, b = b[6], b[40:]
		for len(b) >= 8 && (proto == unix.IPPROTO_HOPOPTS || proto == unix.IPPROTO_ROUTING || proto == unix.IPPROTO_DSTOPTS || proto == unix.IPPROTO_FRAGMENT) {
			size := 8 + 8*int(b[1])
			if proto == unix.IPPROTO_FRAGMENT {
				size, first = 8, binary.BigEndian.Uint16(b[2:])>>3 == 0
			}
			proto, b = b[0], b[min(size, len(b)):]
		}
	default:
		p.Payload = append([]byte(nil), b...)
		return p
	}
	header := 0
	switch proto {
	case unix.IPPROTO_TCP:
		p.Proto = "tcp"
		if len(b) >= 13 {
			header = int(b[12]>>4) * 4
		}
	case unix.IPPROTO_UDP:
		p.Proto, header = "udp", 8
	case unix.IPPROTO_ICMP:
		p.Proto = "icmp"
	case unix.IPPROTO_ICMPV6:
		p.Proto = "icmp6"
	default:
		p.Proto = "ip-" + strconv.Itoa(int(proto))
	}
	if !first {
		header = 0
	} else if header > 0 && len(b) >= 4 {
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
	p.Payload = append([]byte(nil), b[min(header, len(b)):]...)
	return p
}

// htons turns a number into network order and back.
func htons(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
