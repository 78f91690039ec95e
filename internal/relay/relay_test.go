package relay

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		dns   bool
		words string
		want  string // of the error; empty if there is none
	}{
		{false, "172.30.0.1:8081 127.0.0.1:8081", ""},
		{false, "172.30.0.1:8081 [::1]:8081", ""},
		{false, "126.255.255.255:1 127.255.255.255:65535", ""},
		{true, "172.30.0.1:53 127.0.0.53:53", ""},
		{true, "172.30.0.1:53 127.0.0.53:53 127.0.0.54:53 [::1]:53", ""},

		{false, "", "no address to listen on"},
		{false, "172.30.0.1:8081", "no target"},
		{false, "172.30.0.1 127.0.0.1:8081", "no address with a port"},
		{false, "172.30.0.1:8081 127.0.0.1", "no address with a port"},
		{false, "localhost:8081 127.0.0.1:8081", "no address with a port"},
		{false, "172.30.0.1:8081 localhost:8081", "no address with a port"},
		{false, "172.30.0.1:65536 127.0.0.1:8081", "no address with a port"},
		{false, "172.30.0.1:8081 127.0.0.1:8081 --dns", "no address with a port"},
		{false, "172.30.0.1:0 127.0.0.1:8081", "port 0"},
		{false, "172.30.0.1:8081 127.0.0.1:0", "port 0"},
		{false, ":8081 127.0.0.1:8081", "no address with a port"},
		{false, "0.0.0.0:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "127.0.0.1:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "127.255.255.255:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "224.0.0.1:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "[::]:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "[2001:db8::1]:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "[::ffff:172.30.0.1]:8081 127.0.0.1:8081", "it must be one IPv4 address"},
		{false, "172.30.0.1:8081 172.30.0.1:8082", "it must be on loopback"},
		{false, "172.30.0.1:8081 128.0.0.0:8081", "it must be on loopback"},
		{false, "172.30.0.1:8081 0.0.0.0:8081", "it must be on loopback"},
		{false, "172.30.0.1:8081 [::]:8081", "it must be on loopback"},
		{false, "172.30.0.1:8081 [::2]:8081", "it must be on loopback"},
		{false, "172.30.0.1:8081 [::1%lo]:8081", "it must be on loopback"},
		{false, "172.30.0.1:8081 [::ffff:127.0.0.1]:8081", "it must be on loopback"},
		{false, "172.30.0.1:8081 127.0.0.1:8081 127.0.0.1:8082", "only lookups"},
		{true, "172.30.0.1:53 127.0.0.53:53 8.8.8.8:53", "it must be on loopback"},
		{true, "172.30.0.1:53", "no target"},
	} {
		c, err := Parse(tt.dns, strings.Fields(tt.words))
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: %v, want %q", tt.words, err, tt.want)
		case err != nil && (c.Listen.IsValid() || c.Targets != nil):
			t.Errorf("%q: an error and %v", tt.words, c)
		}
	}
	if _, err := Listen(t.Context(), Config{}); err == nil {
		t.Error("the zero value listens")
	}
}

func TestAddressTaken(t *testing.T) {
	needNamespace(t)
	free, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).AddrPort().Port()
	free.Close()
	c := Config{
		Listen:  netip.AddrPortFrom(netip.MustParseAddr(host), port),
		Targets: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)},
		DNS:     true,
	}
	for _, where := range []string{host, "0.0.0.0"} {
		at := netip.AddrPortFrom(netip.MustParseAddr(where), port)
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(t.Context(), c); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v by TCP: %v", at, err)
		}
		l.Close()
		u, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(t.Context(), c); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v by UDP: %v", at, err)
		}
		u.Close()
		r, err := Listen(t.Context(), c) // what failed kept nothing
		if err != nil {
			t.Fatal(err)
		}
		r.close()
	}
}
