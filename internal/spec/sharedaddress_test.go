package spec

import (
	"net/netip"
	"reflect"
	"testing"
)

// R029: what several names have in common is told with the ports that each opens for
// the others.
func TestSharedAddresses(t *testing.T) {
	addr := netip.MustParseAddr
	pins := []Pin{
		{Domain: "b.test", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.11")}, Ports: []uint16{80, 443}},
		{Domain: "a.test", Addrs: []netip.Addr{addr("44.10.0.10")}, Ports: []uint16{22, 443}},
		{Domain: "a.test", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.12")}, Ports: []uint16{23}}, // with itself
		{Domain: "c.test", Addrs: []netip.Addr{addr("44.10.0.11")}, AnyPort: true},
		{Domain: "d.test", Addrs: []netip.Addr{addr("44.10.0.9")}, Ports: []uint16{22}},
		{Domain: "e.test", Addrs: []netip.Addr{addr("44.10.0.9")}, Ports: []uint16{22}},
		{Domain: "f.test", Addrs: []netip.Addr{addr("44.10.0.9")}, Ports: []uint16{22}},
	}
	got := SharedAddresses(pins)
	want := []SharedAddress{
		{Names: []string{"d.test", "e.test", "f.test"}, Addr: addr("44.10.0.9"), Ports: []uint16{22}},
		{Names: []string{"a.test", "b.test"}, Addr: addr("44.10.0.10"), Ports: []uint16{22, 23, 80, 443}},
		{Names: []string{"b.test", "c.test"}, Addr: addr("44.10.0.11"), AnyPort: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v", got)
	}
	const apart = ": pins cannot tell them apart, nor from others there; "
	for i, text := range []string{
		"d.test, e.test and 1 more share 44.10.0.9" + apart + "port 22 is open for each of them",
		"a.test, b.test share 44.10.0.10" + apart + "ports 22, 23, 80, 443 are open for each of them",
		"b.test, c.test share 44.10.0.11" + apart + "every port is open for each of them",
	} {
		if got[i].String() != text {
			t.Errorf("%q, want %q", got[i], text)
		}
	}
}
