package lab

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	v4 := func(proto byte, fragment byte, rest ...byte) []byte {
		return append([]byte{0x45, 0, 0, byte(20 + len(rest)), 0, 0, 0, fragment, 64, proto, 0, 0, 44, 10, 0, 1, 44, 10, 9, 9}, rest...)
	}
	v6 := func(next byte, rest ...byte) []byte {
		b := append([]byte{0x60, 0, 0, 0, 0, byte(len(rest)), next, 64}, netip.MustParseAddr("fd44:10::1").AsSlice()...)
		return append(append(b, Canary6.AsSlice()...), rest...)
	}
	tcp := []byte{0x10, 0x00, 0x01, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0, 'h', 'i'}
	udp := []byte{0x10, 0x00, 0, 53, 0, 10, 0, 0, 'h', 'i'}
	for _, tt := range []struct {
		name  string
		ether uint16
		b     []byte
		want  string
		data  string
	}{
		{"tcp", unix.ETH_P_IP, v4(6, 0, tcp...), "tcp 44.10.0.1:4096 -> 44.10.9.9:443", "hi"},
		{"udp", unix.ETH_P_IP, v4(17, 0, udp...), "udp 44.10.0.1:4096 -> 44.10.9.9:53", "hi"},
		{"padding", unix.ETH_P_IP, append(v4(17, 0, udp...), 0, 0, 0), "udp 44.10.0.1:4096 -> 44.10.9.9:53", "hi"},
		{"later fragment", unix.ETH_P_IP, v4(17, 1, udp...), "udp 44.10.0.1:0 -> 44.10.9.9:0", string(udp)},
		{"icmp", unix.ETH_P_IP, v4(1, 0, 8, 0), "icmp 44.10.0.1:0 -> 44.10.9.9:0", "\x08\x00"},
		{"other protocol", unix.ETH_P_IP, v4(47, 0, 1), "ip-47 44.10.0.1:0 -> 44.10.9.9:0", "\x01"},
		{"short tcp", unix.ETH_P_IP, v4(6, 0, 1, 2), "tcp 44.10.0.1:0 -> 44.10.9.9:0", "\x01\x02"},
		{"ipv6 udp", unix.ETH_P_IPV6, v6(17, udp...), "udp [fd44:10::1]:4096 -> [fd44:10::9:9]:53", "hi"},
		{"ipv6 hop-by-hop", unix.ETH_P_IPV6, v6(0, append([]byte{58, 0, 0, 0, 0, 0, 0, 0}, 143)...), "icmp6 [fd44:10::1]:0 -> [fd44:10::9:9]:0", "\x8f"},
		{"not ip", 0x88b5, []byte("x"), "ether-0x88b5 invalid AddrPort -> invalid AddrPort", "x"},
		{"short", unix.ETH_P_IP, []byte("x"), "ether-0x0800 invalid AddrPort -> invalid AddrPort", "x"},
	} {
		p := parse(tt.ether, tt.b)
		if p.String() != tt.want || string(p.Payload) != tt.data {
			t.Errorf("%s: %v %q, want %s %q", tt.name, p, p.Payload, tt.want, tt.data)
		}
	}
}
