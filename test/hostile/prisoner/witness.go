package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// summary is what a witness saw leave.
type summary struct {
	Packets      int           `json:"packets"` // without ARP
	ARP          int           `json:"arp"`
	Dropped      int           `json:"dropped"` // not looked at: the summary is incomplete
	Destinations []destination `json:"destinations"`
}

type destination struct {
	Proto string     `json:"proto"` // tcp, udp, icmp, icmp6, or a number; of a frame that is not IP, its type
	Addr  netip.Addr `json:"addr"`
	Port  uint16     `json:"port,omitempty"`
	Count int        `json:"count"`
}

// witness counts packets that leave by any interface but loopback until ctx
// ends or stdin does. It needs CAP_NET_RAW and sends nothing.
func witness(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	defer unix.Close(fd)
	const room = 16 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	loopback := 0
	if lo, err := net.InterfaceByName("lo"); err == nil {
		loopback = lo.Index
	}
	if err := leavingOnly(fd, loopback); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	// The end comes as a byte in a pipe, so that one wait covers both.
	var end [2]int
	if err := unix.Pipe2(end[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	go func() {
		<-ctx.Done()
		_, _ = unix.Write(end[1], []byte{0})
	}()
	fmt.Fprintln(stdout, "witness: watching")
	seen := map[destination]int{}
	var s summary
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(end[0]), Events: unix.POLLIN}}
	for wait[1].Revents == 0 {
		if _, err := unix.Poll(wait, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if err := drain(fd, loopback, seen, &s); err != nil {
			return err
		}
	}
	if stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		s.Dropped = int(stats.Drops)
	}
	s.Destinations = []destination{}
	for d, n := range seen {
		d.Count = n
		s.Destinations = append(s.Destinations, d)
	}
	slices.SortFunc(s.Destinations, func(a, b destination) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	return json.NewEncoder(stdout).Encode(s)
}

// leavingOnly keeps out of a socket's buffer what is not to be counted: scans
// of loopback would fill it.
func leavingOnly(fd, loopback int) error {
	const outgoing = unix.PACKET_OUTGOING
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: outgoing, SkipTrue: 3},
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(loopback), SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, ins := range program {
		filter[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// drain takes what is waiting.
func drain(fd, loopback int, seen map[destination]int, s *summary) error {
	b := make([]byte, 128) // headers are enough
	for {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		ll, isLink := from.(*unix.SockaddrLinklayer)
		if !isLink || ll.Pkttype != unix.PACKET_OUTGOING || ll.Ifindex == loopback {
			continue
		}
		ethertype := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, ll.Protocol))
		if ethertype == unix.ETH_P_ARP {
			s.ARP++
			continue
		}
		s.Packets++
		seen[parsePacket(ethertype, b[:n])]++
	}
}

// parsePacket reads where a packet goes. Whatever it cannot read still counts.
func parsePacket(ethertype uint16, b []byte) destination {
	var d destination
	var proto byte
	var payload []byte
	switch {
	case ethertype == unix.ETH_P_IP && len(b) >= 20:
		d.Addr = netip.AddrFrom4([4]byte(b[16:20]))
		proto = b[9]
		if size := int(b[0]&0xf) * 4; size >= 20 && size <= len(b) && binary.BigEndian.Uint16(b[6:])&0x1fff == 0 {
			payload = b[size:] // later fragments have no ports
		}
	case ethertype == unix.ETH_P_IPV6 && len(b) >= 40:
		d.Addr = netip.AddrFrom16([16]byte(b[24:40]))
		proto, payload = b[6], b[40:]
	default:
		d.Proto = fmt.Sprintf("frame 0x%04x", ethertype)
		return d
	}
	switch proto {
	case unix.IPPROTO_TCP:
		d.Proto = "tcp"
	case unix.IPPROTO_UDP:
		d.Proto = "udp"
	case unix.IPPROTO_ICMP:
		d.Proto = "icmp"
	case unix.IPPROTO_ICMPV6:
		d.Proto = "icmp6"
	default:
		d.Proto = fmt.Sprint(proto)
	}
	if (d.Proto == "tcp" || d.Proto == "udp") && len(payload) >= 4 {
		d.Port = binary.BigEndian.Uint16(payload[2:])
	}
	return d
}
