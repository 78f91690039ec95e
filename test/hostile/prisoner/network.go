package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// quicInitial looks like the first datagram of a QUIC connection.
var quicInitial = "\xc0\x00\x00\x00\x01\x08prisoner\x00\x00\x44\x00" + strings.Repeat("\x00", 1180)

var networkAttempts = []attempt{
	{"tcp", "unlisted-web", "an unlisted host can be reached", func(ctx context.Context, c *cell) result {
		return each([]uint16{80, 443, 8443}, func(p uint16) result { return tcp(ctx, at(c.Unlisted, p)) })
	}},
	{"tcp", "unlisted-other-ports", "an unlisted host can be reached where a filter looks only at the web", func(ctx context.Context, c *cell) result {
		return each([]uint16{22, 25, 53, 853, 6667, 9418}, func(p uint16) result { return tcp(ctx, at(c.Unlisted, p)) })
	}},
	{"tcp", "trusted-source-port", "the filter trusts a source port", func(ctx context.Context, c *cell) result {
		return each([]int{53, 443, 64999, 61050}, func(p int) result {
			return dial(ctx, net.Dialer{Timeout: connectLimit, LocalAddr: &net.TCPAddr{Port: p}}, "tcp4", at(c.Unlisted, 443), nil)
		})
	}},
	{"tcp", "bound-to-device", "the filter trusts a bound device", func(ctx context.Context, c *cell) result {
		d := net.Dialer{Timeout: connectLimit, Control: control(func(fd int) error {
			return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, outerInterface())
		})}
		return dial(ctx, d, "tcp4", at(c.Unlisted, 443), nil)
	}},
	{"tcp", "source-routed", "a source route leads around the filter", func(ctx context.Context, c *cell) result {
		if !c.Gateway.Is4() || !c.Unlisted.Is4() {
			return noTarget
		}
		hop := c.Gateway.As4()
		d := net.Dialer{Timeout: connectLimit, Control: control(func(fd int) error {
			return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, "\x83\x07\x04"+string(hop[:])+"\x00")
		})}
		return dial(ctx, d, "tcp4", at(c.Unlisted, 443), nil)
	}},
	{"tcp", "fast-open", "data leaves in a SYN", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
			return connected(unix.Sendto(fd, []byte("prisoner"), unix.MSG_FASTOPEN, ip4(at(c.Unlisted, 443))))
		})
	}},
	{"tcp", "mptcp", "Multipath TCP is not filtered as TCP", connectBy(unix.SOCK_STREAM, unix.IPPROTO_MPTCP)},
	{"tcp", "mapped-address", "an IPv4 address in IPv6 clothes is not filtered", func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		mapped := netip.AddrFrom16(c.Unlisted.As16())
		return withSocket(unix.AF_INET6, unix.SOCK_STREAM, 0, func(fd int) result {
			return connected(unix.Connect(fd, ip4(at(mapped, 443))))
		})
	}},
	{"tcp", "listener-on-host", "an undeclared port of the host can be reached", func(ctx context.Context, c *cell) result {
		return tcp(ctx, c.Listener)
	}},
	{"tcp", "gateway-scan", "the host offers something at its gateway address", func(ctx context.Context, c *cell) result {
		return each([]uint16{21, 22, 23, 25, 53, 80, 111, 139, 443, 445, 631, 873, 2049, 2375, 2376, 3000, 3306, 4243, 5000, 5355, 5432, 6379, 8000, 8080, 8443, 9000, 9090, 9200, 11211, 11434, 27017}, func(p uint16) result {
			return tcp(ctx, at(c.Gateway, p))
		})
	}},
	{"tcp", "allowed-host-other-ports", "a grant of one port opens others", func(ctx context.Context, c *cell) result {
		var all []netip.AddrPort
		granted := map[netip.AddrPort]bool{}
		for _, a := range c.Allowed {
			granted[a] = true
		}
		for _, a := range c.Allowed {
			for _, p := range []uint16{22, 25, 853, 8080, 9001, a.Port() + 1} {
				if !granted[at(a.Addr(), p)] {
					all = append(all, at(a.Addr(), p))
				}
			}
		}
		return each(all, func(a netip.AddrPort) result { return tcp(ctx, a) })
	}},
	{"tcp", "peers", "one sandbox reaches another", func(ctx context.Context, c *cell) result {
		return each(c.Peers, func(a netip.Addr) result {
			return each([]uint16{22, 53, 80, 443, 3000, 4096, 8000, 8080, 8081, 8888}, func(p uint16) result { return tcp(ctx, at(a, p)) })
		})
	}},
	{"tcp", "metadata", "a cloud hands out the machine's credentials", func(ctx context.Context, c *cell) result {
		return worst(tcp(ctx, at(c.Metadata, 80)), tcp(ctx, at(c.Metadata, 443)))
	}},
	{"tcp", "other-sandboxes-subnet", "neighbours by number can be reached", func(ctx context.Context, c *cell) result {
		if !c.Gateway.Is4() {
			return noTarget
		}
		a := c.Gateway
		var near []netip.Addr
		for range 4 {
			a = a.Next()
			near = append(near, a)
		}
		return each(near, func(a netip.Addr) result { return tcp(ctx, at(a, 443)) })
	}},

	{"udp", "unlisted", "UDP leaves", func(ctx context.Context, c *cell) result {
		return each([]uint16{53, 123, 500, 3478, 51820}, func(p uint16) result { return udp(ctx, at(c.Unlisted, p), "prisoner") })
	}},
	{"udp", "quic", "HTTP/3 leaves", func(ctx context.Context, c *cell) result { return udp(ctx, at(c.Unlisted, 443), quicInitial) }},
	{"udp", "quic-allowed-host", "HTTP/3 to an allowed host leaves beside the TCP grant", func(ctx context.Context, c *cell) result {
		return each(c.Allowed, func(a netip.AddrPort) result { return udp(ctx, a, quicInitial) })
	}},
	{"udp", "fragments", "later fragments pass where the first does not", func(ctx context.Context, c *cell) result {
		return udp(ctx, at(c.Unlisted, 4444), strings.Repeat("x", 4000))
	}},
	{"udp", "worker-source-port", "the gate's own lookups can be impersonated", workerSourcePort},
	{"udp", "peers", "one sandbox reaches another by UDP", func(ctx context.Context, c *cell) result {
		return each(c.Peers, func(a netip.Addr) result { return udp(ctx, at(a, 53), "prisoner") })
	}},
	{"udp", "gateway", "the host takes UDP at its gateway address", func(ctx context.Context, c *cell) result {
		return each([]uint16{67, 123, 514, 5353}, func(p uint16) result { return udp(ctx, at(c.Gateway, p), "prisoner") })
	}},
	{"udp", "lite", "UDP-Lite is not filtered as UDP", sendBy(unix.IPPROTO_UDPLITE)},
	{"udp", "multicast", "neighbours hear multicast", func(ctx context.Context, _ *cell) result {
		return each([]netip.AddrPort{netip.MustParseAddrPort("224.0.0.1:9"), netip.MustParseAddrPort("239.255.255.250:1900")}, func(to netip.AddrPort) result {
			return udp(ctx, to, "prisoner")
		})
	}},
	{"udp", "multicast-join", "the kernel itself announces a group that we chose", multicastJoin},
	{"udp", "broadcast", "neighbours hear broadcast", func(ctx context.Context, c *cell) result {
		return udp(ctx, netip.MustParseAddrPort("255.255.255.255:9"), "prisoner")
	}},
	{"udp", "borrowed-source", "the filter trusts a source address that is not ours", func(ctx context.Context, c *cell) result {
		if !c.Gateway.Is4() {
			return noTarget
		}
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: c.Gateway.AsSlice()}, Control: control(func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1)
		})}
		return dial(ctx, d, "udp4", at(c.Unlisted, 53), []byte("prisoner"))
	}},

	{"icmp", "echo", "data leaves in echo requests", echo(func(c *cell) netip.Addr { return c.Unlisted })},
	{"icmp", "echo-gateway", "the host answers echo requests", echo(func(c *cell) netip.Addr { return c.Gateway })},
	{"icmp", "echo-allowed-host", "data reaches an allowed host outside the grant", echo(func(c *cell) netip.Addr {
		if len(c.Allowed) == 0 {
			return netip.Addr{}
		}
		return c.Allowed[0].Addr()
	})},

	{"ipv6", "tcp", "an unlisted host can be reached by IPv6", func(ctx context.Context, c *cell) result { return tcp(ctx, at(c.IPv6, 443)) }},
	{"ipv6", "udp", "UDP leaves by IPv6", func(ctx context.Context, c *cell) result { return udp(ctx, at(c.IPv6, 53), "prisoner") }},
	{"ipv6", "echo", "data leaves in ICMPv6", echo(func(c *cell) netip.Addr { return c.IPv6 })},
	{"ipv6", "all-nodes", "neighbours hear link-local multicast", func(ctx context.Context, _ *cell) result {
		return udp(ctx, at(netip.MustParseAddr("ff02::1").WithZone(outerInterface()), 9), "prisoner")
	}},
	{"ipv6", "nat64", "a translator reaches IPv4 for us", func(ctx context.Context, c *cell) result {
		if !c.Unlisted.Is4() || !c.IPv6.Is6() {
			return noTarget
		}
		a := [16]byte{0, 0x64, 0xff, 0x9b}
		v4 := c.Unlisted.As4()
		copy(a[12:], v4[:])
		return tcp(ctx, at(netip.AddrFrom16(a), 443))
	}},

	{"protocols", "sctp", "SCTP is not filtered", connectBy(unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
	{"protocols", "dccp", "DCCP is not filtered", connectBy(unix.SOCK_DCCP, unix.IPPROTO_DCCP)},
	{"protocols", "l2tp", "L2TP is not filtered", sendBy(unix.IPPROTO_L2TP)},
	{"protocols", "raw-icmp", "we may write ICMP ourselves", noSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
	{"protocols", "raw-ip", "we may write whole packets", noSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)},
	{"protocols", "raw-ipv6", "we may write whole IPv6 packets", noSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)},
	{"protocols", "packet", "we may write frames below every filter", noSocket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
	{"protocols", "packet-cooked", "we may write packets below every filter", noSocket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)},
	{"protocols", "tun", "we may make an interface", func(context.Context, *cell) result { return openFor("/dev/net/tun", unix.O_RDWR) }},
	{"protocols", "mark", "we may mark packets to pass a filter or choose a route", func(context.Context, *cell) result {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			return refusal(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1))
		})
	}},
	{"protocols", "transparent", "we may pose as any address", func(context.Context, *cell) result {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			return refusal(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
		})
	}},

	{"protocols", "source-route", "a packet to a permitted address may name the next one", func(context.Context, *cell) result {
		// The kernel takes the lower 32 bits of level and option, a filter may see 64.
		return each([][2]uint64{{unix.IPPROTO_IP, unix.IP_OPTIONS}, {1<<32 | unix.IPPROTO_IP, unix.IP_OPTIONS}, {unix.IPPROTO_IP, 1<<32 | unix.IP_OPTIONS}}, func(a [2]uint64) result {
			return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
				route := [8]byte{131, 7, 4, 192, 0, 2, 1} // loose, by way of a documentation address
				_, _, errno := syscall.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(a[0]), uintptr(a[1]), uintptr(unsafe.Pointer(&route)), uintptr(len(route)), 0)
				if errno == 0 {
					return refusal(nil)
				}
				return refusal(errno)
			})
		})
	}},

	{"families", "vsock", "the hypervisor or sibling machines can be reached", noSocket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	{"families", "alg", "the kernel's crypto interface is open to us", noSocket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
	{"families", "bluetooth", "radio can be used", noSocket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1)},
	{"families", "xdp", "frames can be sent below every filter", noSocket(unix.AF_XDP, unix.SOCK_RAW, 0)},
	{"families", "key", "IPsec can be configured", noSocket(unix.AF_KEY, unix.SOCK_RAW, 2)},
	{"families", "others", "some rarely audited family is open to us", func(ctx context.Context, c *cell) result {
		return each([]int{unix.AF_CAN, unix.AF_TIPC, unix.AF_RDS, unix.AF_KCM, unix.AF_NFC, unix.AF_QIPCRTR, unix.AF_SMC, unix.AF_APPLETALK, unix.AF_X25, unix.AF_AX25, unix.AF_PPPOX, unix.AF_IEEE802154, unix.AF_PHONET, unix.AF_CAIF, unix.AF_LLC}, func(family int) result {
			return each([]int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET, unix.SOCK_RAW}, func(typ int) result {
				r := noSocket(family, typ, 0)(ctx, c)
				r.detail = fmt.Sprintf("family %d: %s", family, r.detail)
				return r
			})
		})
	}},
}

// control adapts a socket option to net.Dialer. An option that is refused
// fails the dial.
func control(set func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		if refused := raw.Control(func(fd uintptr) { err = set(int(fd)) }); refused != nil {
			return refused
		}
		return err
	}
}

// outerInterface is the first interface besides loopback.
func outerInterface() string {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			return i.Name
		}
	}
	return "eth0"
}

// connected judges a connect: none that only began has got anywhere yet.
func connected(err error) result {
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EAGAIN) {
		return held("no answer")
	}
	return judge(err)
}

func connectBy(typ, proto int) func(context.Context, *cell) result {
	return func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET, typ, proto, func(fd int) result {
			if typ == unix.SOCK_DCCP {
				_ = unix.SetsockoptInt(fd, 269 /* SOL_DCCP */, 2 /* DCCP_SOCKOPT_SERVICE */, 1)
			}
			return connected(unix.Connect(fd, ip4(at(c.Unlisted, 443))))
		})
	}
}

func sendBy(proto int) func(context.Context, *cell) result {
	return func(_ context.Context, c *cell) result {
		if !c.Unlisted.Is4() {
			return noTarget
		}
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, proto, func(fd int) result {
			return judge(unix.Sendto(fd, []byte("prisoner"), 0, ip4(at(c.Unlisted, 443))))
		})
	}
}

func echo(to func(*cell) netip.Addr) func(context.Context, *cell) result {
	return func(_ context.Context, c *cell) result {
		a := to(c)
		if !a.IsValid() {
			return noTarget
		}
		family, proto, request := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
		if a.Is6() {
			family, proto, request = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
		}
		return withSocket(family, unix.SOCK_DGRAM, proto, func(fd int) result {
			return judge(unix.Sendto(fd, append([]byte{request, 0, 0, 0, 0, 0, 0, 1}, "prisoner"...), 0, ip4(at(a, 0))))
		})
	}
}

// multicastJoin makes the kernel send a membership report. Only a witness can
// tell whether it left.
func multicastJoin(context.Context, *cell) result {
	i, err := net.InterfaceByName(outerInterface())
	if err != nil {
		return absent("no interface")
	}
	return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
		err := unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: [4]byte{239, 1, 2, 3}, Ifindex: int32(i.Index)})
		if err != nil {
			return judge(err)
		}
		return held("joined; the report is for the witness to see")
	})
}

// workerSourcePort sends from every UDP port that somebody else holds here.
func workerSourcePort(_ context.Context, c *cell) result {
	if !c.Resolver.Is4() {
		return noTarget
	}
	var ports []uint16
	for _, s := range inetTable("udp") {
		if s.uid != uint32(unix.Getuid()) && !s.local.Addr().IsLoopback() {
			ports = append(ports, s.local.Port())
		}
	}
	ports = append(ports, 53)
	return each(ports, func(port uint16) result {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}); err != nil {
				return held("bind: %v", err)
			}
			return judge(unix.Sendto(fd, []byte(question(c.name(), typeA)), 0, ip4(at(c.Resolver, 53))))
		})
	})
}
