package engine

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// R029: what pins cannot refuse is said, and counts neither as proven nor as failed.
func TestSharedNotes(t *testing.T) {
	pin := func(name string, addrs ...string) spec.Pin {
		p := spec.Pin{Domain: name, Ports: []uint16{443}}
		for _, a := range addrs {
			p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
		}
		return p
	}
	const (
		alone = "whatever else answers at the addresses of "
		apart = " can be asked for by its own name: pins cannot tell names apart"
	)
	for _, tt := range []struct {
		name string
		pins []spec.Pin
		want []string
	}{
		{"nothing", nil, nil},
		{"a name without an address", []spec.Pin{pin("a.test")}, nil},
		{"one", []spec.Pin{pin("a.test", "44.10.0.1")}, []string{alone + "a.test" + apart}},
		{"two that share nothing", []spec.Pin{pin("a.test", "44.10.0.1"), pin("b.test", "44.10.0.2")}, []string{alone + "a.test, b.test" + apart}},
		{"three", []spec.Pin{pin("a.test", "44.10.0.1"), pin("b.test", "44.10.0.2"), pin("c.test", "44.10.0.3")}, []string{alone + "a.test, b.test and 1 more" + apart}},
		{"two that share one, and another", []spec.Pin{pin("a.test", "44.10.0.1", "44.10.0.2"), pin("b.test", "44.10.0.1"), pin("c.test", "44.10.0.3")}, []string{
			"a.test, b.test share 44.10.0.1: pins cannot tell them apart, nor from others there; port 443 is open for each of them", alone + "c.test" + apart}},
	} {
		var got []string
		for _, ev := range sharedNotes("main", spec.GateStatus{Pins: tt.pins}) {
			if ev.Check != "shared-address" || ev.Result != spec.Note || ev.Service != "main" || ev.Version != spec.Version {
				t.Errorf("%s: %+v", tt.name, ev)
			}
			got = append(got, ev.Detail)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
