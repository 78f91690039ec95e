package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// flowAttempts are those that start from something that is permitted: a flow, a
// name, a socket option, the loopback interface.
var flowAttempts = []attempt{
	{"dns", "below-an-allowed-name", "an allowed name carries data in what stands before it", func(ctx context.Context, c *cell) result {
		return each(c.AllowedNames, func(name string) result {
			return worst(answered(ctx, gateNames, question("deadbeef."+name, typeA)), answered(ctx, gateNames, question("deadbeef."+name, typeTXT)))
		})
	}},
	{"dns", "odd-queries", "the gate passes on what it does not understand", func(ctx context.Context, c *cell) result {
		q := question(c.name(), typeTXT)
		long := strings.Repeat(strings.Repeat("x", 63)+".", 5) + c.name()
		return each([]string{
			question(long, typeA),                        // longer than a name may be
			q[:5] + "\x02" + q[6:] + q[12:],              // two questions
			q[:2] + "\x28\x00" + q[4:],                   // an update
			q[:2] + "\x20\x00" + q[4:],                   // a notice
			q[:len(q)-4] + "\x00\xfc\x00\x01",            // a whole zone
			q[:len(q)-2] + "\x00\x03",                    // another class
			q[:12] + "\xc0\x0c" + q[len(q)-4:],           // a name that points at itself
			q[:11] + "\x01" + q[12:] + optClientSubnet(), // with a client's subnet
		}, func(query string) result { return answered(ctx, gateNames, query) })
	}},
	{"dns", "tcp-names", "the gate resolves unlisted names by TCP", func(ctx context.Context, c *cell) result {
		return each(c.Names, func(name string) result { return answeredTCP(ctx, gateNames, question(name, typeA)) })
	}},
	{"dns", "as-worker", "whoever becomes the gate's worker has its lookups", func(_ context.Context, c *cell) result {
		if !c.Upstream.Is4() {
			return noTarget
		}
		_ = call(unix.SYS_SETUID, spec.WorkerUID)
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			return judge(unix.Sendto(fd, []byte(question(c.name(), typeA)), 0, ip4(at(c.Upstream, 53))))
		})
	}},

	{"tcp", "low-source-port", "the filter trusts a port that only root had once", fromPorts(20, 111, 1023)},
	{"tcp", "bound-to-loopback", "what is bound to loopback passes as local", func(ctx context.Context, c *cell) result {
		return dial(ctx, net.Dialer{Timeout: connectLimit, Control: control(func(fd int) error {
			return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo")
		})}, "tcp4", at(c.Unlisted, 443), nil)
	}},
	{"tcp", "from-loopback-address", "what comes from a loopback address passes as local", func(ctx context.Context, c *cell) result {
		return each([]string{"127.0.0.1", "127.0.0.11", "127.9.9.9"}, func(from string) result {
			return dial(ctx, net.Dialer{Timeout: connectLimit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, "tcp4", at(c.Unlisted, 443), nil)
		})
	}},
	{"tcp", "socket-of-a-flow", "a socket that was let through once connects elsewhere", func(ctx context.Context, c *cell) result {
		return fromFlow(ctx, c, func(fd int) error {
			// Disconnect, and keep the port.
			var none [16]byte
			return call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), uintptr(len(none)))
		}, func(fd, _ int) error { return unix.Connect(fd, ip4(at(c.Unlisted, 443))) })
	}},
	{"tcp", "port-of-a-flow", "another socket takes the port of a flow that was let through", func(ctx context.Context, c *cell) result {
		return fromFlow(ctx, c, func(int) error { return nil }, func(_, port int) error { return connectFrom(port, at(c.Unlisted, 443)) })
	}},
	{"tcp", "half-closed-flow", "a flow that is half closed opens its address to its other ports", func(ctx context.Context, c *cell) result {
		return fromFlow(ctx, c, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) }, func(_, port int) error {
			return connectFrom(port, at(c.Allowed[0].Addr(), c.Allowed[0].Port()+1))
		})
	}},
	{"tcp", "simultaneous-open", "a connection that both sides begin passes as an answer", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 443}); err != nil {
				return held("bind: %v", err)
			}
			return connected(unix.Connect(fd, ip4(at(c.Unlisted, 443))))
		})
	}},
	{"tcp", "repair", "we may make a connection up that nobody opened", func(context.Context, *cell) result {
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
			return refusal(unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, 1))
		})
	}},
	{"tcp", "fast-open-allowed-host", "data leaves in a SYN to a port that is not granted", func(_ context.Context, c *cell) result {
		return each(c.Allowed, func(a netip.AddrPort) result {
			return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
				return connected(unix.Sendto(fd, []byte("prisoner"), unix.MSG_FASTOPEN, ip4(at(a.Addr(), a.Port()+1))))
			})
		})
	}},

	{"udp", "packet-info", "the sender chooses the interface and the source address", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		i, err := net.InterfaceByName(outerInterface())
		if err != nil {
			return absent("no interface")
		}
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			b := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(i.Index)})
			return judge(unix.Sendmsg(fd, []byte("prisoner"), b, ip4(at(c.Unlisted, 53)), 0))
		})
	}},
	{"udp", "source-routed", "options that come with one datagram lead around the filter", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		// The first hop is where the packet goes at first, and what rules see.
		local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		return each([][2]netip.Addr{{local, c.Unlisted}, {c.Unlisted, local}}, func(way [2]netip.Addr) result {
			return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
				hop := way[0].As4()
				options := append(append([]byte{131, 7, 4}, hop[:]...), 0)
				if err := unix.Sendmsg(fd, []byte("prisoner"), message(unix.SOL_IP, unix.IP_RETOPTS, options), ip4(at(way[1], 53)), 0); err != nil {
					return judge(err)
				}
				if way[0] != local {
					return out("sent by way of %v without an error", way[0])
				}
				return held("sent to loopback first; whether it goes on is for the witness to see")
			})
		})
	}},
	{"udp", "subnet-broadcast", "neighbours hear a broadcast of their subnet", func(ctx context.Context, _ *cell) result {
		to, err := subnetBroadcast()
		if err != nil {
			return absent("%v", err)
		}
		return udp(ctx, at(to, 9), "prisoner")
	}},
	{"udp", "socket-of-the-names", "a socket that the gate's names answered sends elsewhere", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			_ = unix.Sendto(fd, []byte(question("localhost", typeA)), 0, ip4(gateNames))
			return judge(unix.Sendto(fd, []byte("prisoner"), 0, ip4(at(c.Unlisted, 53))))
		})
	}},

	{"ipv6", "compatible-address", "an IPv4 address written as a compatible one is not filtered", inIPv6(0, 12)},
	{"ipv6", "6to4", "a relay of the 6to4 kind reaches IPv4 for us", inIPv6(0x2002, 2)},
	{"ipv6", "mapped-datagram", "a datagram to an IPv4 address in IPv6 clothes is not filtered", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET6, unix.SOCK_DGRAM, 0, func(fd int) result {
			return judge(unix.Sendto(fd, []byte("prisoner"), 0, ip4(at(netip.AddrFrom16(c.Unlisted.As16()), 53))))
		})
	}},
	{"ipv6", "raw-headers", "we may write extension headers", func(context.Context, *cell) result {
		return withSocket(unix.AF_INET6, unix.SOCK_DGRAM, 0, func(fd int) result {
			header := [8]byte{0, 0, 1, 4} // padding
			return refusal(unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_HOPOPTS, string(header[:])))
		})
	}},

	{"protocols", "smc", "shared-memory sockets are not filtered as TCP", connectBy(unix.SOCK_STREAM, 256)},
	{"protocols", "kernel-quic", "QUIC within the kernel is not filtered", connectBy(unix.SOCK_STREAM, 261)},
	{"protocols", "sctp-messages", "SCTP's other kind of socket is not filtered", connectBy(unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP)},
	{"protocols", "raw-sends", "a packet that we wrote ourselves passes the filter", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP, func(fd int) result {
			return judge(unix.Sendto(fd, datagram("prisoner raw"), 0, ip4(at(c.Unlisted, 0))))
		})
	}},
	{"protocols", "packet-sends", "a frame that we wrote ourselves leaves below every filter", frame},

	{"loopback", "udp-scan", "something of the gate's takes datagrams from us", func(context.Context, *cell) result {
		own := uint32(unix.Getuid())
		n := 0
		for _, s := range append(inetTable("udp"), inetTable("udplite")...) {
			if s.uid == own || s.local == gateNames || !s.local.Addr().IsLoopback() && !s.local.Addr().IsUnspecified() {
				continue
			}
			n++
			if to := at(reached(s.local.Addr()), s.local.Port()); delivered(to) {
				return out("%v takes it, uid %d", to, s.uid)
			}
		}
		return held("%d sockets of others, none within reach", n)
	}},
	{"loopback", "aliases", "something of the gate's listens under another address of its own", func(ctx context.Context, _ *cell) result {
		own := uint32(unix.Getuid())
		var all []netip.AddrPort
		for _, s := range append(inetTable("tcp"), inetTable("tcp6")...) {
			if s.listening && s.uid != own && s.local != gateNames {
				all = append(all, at(netip.MustParseAddr("0.0.0.0"), s.local.Port()), at(netip.MustParseAddr("127.255.255.254"), s.local.Port()),
					at(netip.MustParseAddr("::1"), s.local.Port()), at(netip.MustParseAddr("::ffff:127.0.0.1"), s.local.Port()), at(reached(s.local.Addr()), s.local.Port()))
				if a, err := ownAddress(); err == nil {
					all = append(all, at(a, s.local.Port()))
				}
			}
		}
		if len(all) == 0 {
			return held("nothing but the gate's names listens")
		}
		return each(all, func(to netip.AddrPort) result { return tcp(ctx, to) })
	}},
	{"loopback", "out-of-the-device", "loopback's addresses lead to the host by the outer interface", func(ctx context.Context, _ *cell) result {
		return each([]uint16{22, 53, 631, 2375}, func(p uint16) result {
			return dial(ctx, net.Dialer{Timeout: connectLimit, Control: control(func(fd int) error {
				return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, outerInterface())
			})}, "tcp4", at(netip.MustParseAddr("127.0.0.2"), p), nil)
		})
	}},

	{"netlink", "expectation", "we may announce a connection to the table of connections", ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_CTNETLINK_EXP<<8, 4)},
	{"netlink", "neighbour", "we may say who has an address", ask(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH, 12)},
	{"netlink", "traffic-control", "we may change how packets leave", ask(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC, 20)},
	{"netlink", "crypto", "the kernel's crypto takes settings from us", ask(unix.NETLINK_CRYPTO, 0x10 /* CRYPTO_MSG_NEWALG */, 0)},
	{"netlink", "queue", "packets are handed to us for judgement", ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_QUEUE<<8|2, 4)},
}

// sharedAttempts get through to an address that is granted, under a name that is
// not: pins hold addresses, so they cannot refuse it.
var sharedAttempts = []attempt{
	{"shared", "forged-sni", "another site at a granted address answers to its own name", func(ctx context.Context, c *cell) result {
		return sharedAddress(ctx, c, c.name(), "")
	}},
	{"shared", "forged-host", "another site at a granted address answers behind an allowed name", func(ctx context.Context, c *cell) result {
		if len(c.AllowedNames) == 0 {
			return noTarget
		}
		return sharedAddress(ctx, c, c.AllowedNames[0], c.name())
	}},
}

// sharedAddress asks the first granted address for a page as somebody else:
// greeted under one name, asked for another if that is not empty.
func sharedAddress(ctx context.Context, c *cell, sni, host string) result {
	if len(c.Allowed) == 0 {
		return noTarget
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: connectLimit}
			return d.DialContext(ctx, "tcp", c.Allowed[0].String())
		},
		// Who answers is not the question.
		TLSClientConfig: &tls.Config{ServerName: sni, InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+sni+"/prisoner", nil)
	if err != nil {
		return held("%v", err)
	}
	if host != "" {
		req.Host = host
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return held("%v: %v", c.Allowed[0], reason(err))
	}
	resp.Body.Close()
	return limit("%v answered as %s with status %d", c.Allowed[0], req.Host, resp.StatusCode)
}

// optClientSubnet is the additional record of a query that names a client.
func optClientSubnet() string {
	return "\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x0b\x00\x08\x00\x07\x00\x01\x18\x00\xc6\x33\x64"
}

// answeredTCP is answered over TCP.
func answeredTCP(ctx context.Context, to netip.AddrPort, query string) result {
	d := net.Dialer{Timeout: connectLimit}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return held("%v", reason(err))
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(connectLimit))
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return held("%v", reason(err))
	}
	b := make([]byte, 1500)
	n, err := conn.Read(b)
	if err != nil || n < 14 {
		return held("%v", reason(err))
	}
	if records := binary.BigEndian.Uint16(b[8:]); records > 0 {
		return out("%v answers with %d records", to, records)
	}
	return held("status %d, no record", b[5]&0xf)
}

// fromPorts connects to an unlisted host from given ports.
func fromPorts(ports ...int) func(context.Context, *cell) result {
	return func(ctx context.Context, c *cell) result {
		return each(ports, func(p int) result {
			return dial(ctx, net.Dialer{Timeout: connectLimit, LocalAddr: &net.TCPAddr{Port: p}}, "tcp4", at(c.Unlisted, 443), nil)
		})
	}
}

// fromFlow opens a flow that is granted, does something to it, and then tries
// where that leads, given the flow's socket and port.
func fromFlow(_ context.Context, c *cell, first func(fd int) error, then func(fd, port int) error) result {
	if len(c.Allowed) == 0 || !c.Allowed[0].Addr().Is4() || !c.Unlisted.Is4() {
		return noTarget
	}
	return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
			return held("bind: %v", err)
		}
		if err := unix.Connect(fd, ip4(c.Allowed[0])); err != nil {
			return held("what is granted: %v", err)
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return held("%v", err)
		}
		if err := first(fd); err != nil {
			return held("%v", err)
		}
		return connected(then(fd, name.(*unix.SockaddrInet4).Port))
	})
}

// connectFrom connects from a port that is in use.
func connectFrom(port int, to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(connectLimit))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		return err
	}
	return unix.Connect(fd, ip4(to))
}

// message is one control message.
func message(level, typ int, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(typ)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

// inIPv6 connects to the unlisted host's address within an IPv6 one: after a
// prefix of 16 bits, at an offset.
func inIPv6(prefix uint16, offset int) func(context.Context, *cell) result {
	return func(ctx context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		var a [16]byte
		binary.BigEndian.PutUint16(a[:], prefix)
		v4 := c.Unlisted.As4()
		copy(a[offset:], v4[:])
		return tcp(ctx, at(netip.AddrFrom16(a), 443))
	}
}

// ownAddress is ours on the outer interface.
func ownAddress() (netip.Addr, error) {
	p, err := ownPrefix()
	return p.Addr(), err
}

func ownPrefix() (netip.Prefix, error) {
	i, err := net.InterfaceByName(outerInterface())
	if err != nil {
		return netip.Prefix{}, err
	}
	all, err := i.Addrs()
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%s has no IPv4 address", i.Name)
}

func subnetBroadcast() (netip.Addr, error) {
	p, err := ownPrefix()
	if err != nil {
		return netip.Addr{}, err
	}
	a := p.Addr().As4()
	n := binary.BigEndian.Uint32(a[:]) | uint32(1<<(32-p.Bits())-1)
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a), nil
}

// reached is the address by which a socket bound to one is spoken to.
func reached(bound netip.Addr) netip.Addr {
	if bound.IsUnspecified() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return bound
}

// toldWithin is longer than a kernel that has much else to do waits to say that a
// datagram found no socket. Mostly it says so before the call returns.
const toldWithin = 200 * time.Millisecond

// delivered reports whether a datagram to an address of this machine found a
// socket: the kernel tells where it did not.
func delivered(to netip.AddrPort) bool {
	return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
		if err := unix.Connect(fd, ip4(to)); err != nil {
			return held("%v", err)
		}
		if _, err := unix.Write(fd, []byte{0}); err != nil {
			return held("%v", err)
		}
		for late := time.Now().Add(toldWithin); time.Now().Before(late); { // an error ends it, and so does a signal
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(time.Until(late).Milliseconds())+1); n > 0 || err != nil && err != unix.EINTR {
				break
			}
		}
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || n != 0 {
			return held("refused")
		}
		return out("taken")
	}).outcome == escaped
}

// datagram is UDP as it stands in a packet, to port 9.
func datagram(payload string) []byte {
	b := binary.BigEndian.AppendUint16(nil, 9)
	b = binary.BigEndian.AppendUint16(b, 9)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

// frame sends one packet to the unlisted host by a packet socket, through the
// gateway's hardware address.
func frame(_ context.Context, c *cell) result {
	from, err := ownAddress()
	if err != nil || !c.Unlisted.Is4() || !c.Gateway.Is4() {
		return noTarget
	}
	i, err := net.InterfaceByName(outerInterface())
	if err != nil {
		return noTarget
	}
	return withSocket(unix.AF_PACKET, unix.SOCK_DGRAM, 0, func(fd int) result {
		src, dst := from.As4(), c.Unlisted.As4()
		udp := datagram("prisoner frame")
		ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
		ip = append(append(ip, src[:]...), dst[:]...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		to := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{8, 0}), Ifindex: i.Index, Halen: 6}
		copy(to.Addr[:], hardware(c.Gateway))
		return judge(unix.Sendto(fd, append(ip, udp...), 0, to))
	})
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// hardware is a neighbour's address on the wire; everybody's if it is not known.
func hardware(a netip.Addr) []byte {
	b, _ := os.ReadFile("/proc/net/arp")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != a.String() {
			continue
		}
		if mac, err := net.ParseMAC(f[3]); err == nil && len(mac) == 6 && strings.Trim(f[3], "0:") != "" {
			return mac
		}
	}
	return []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
}
