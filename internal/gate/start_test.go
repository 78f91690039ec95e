package gate

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// The kind of a failure survives the way from the worker, whatever else it says;
// what is of none gets none.
func TestKindOf(t *testing.T) {
	server := netip.MustParseAddrPort("192.0.2.53:53")
	for kind := resolve.NXDomain; kind <= resolve.TooMuch; kind++ {
		for _, e := range []resolve.Error{
			{Name: "a.test", Kind: kind},
			{Name: "a.test", Kind: kind, Rcode: 2, Detail: "a (detail): no such name (NXDOMAIN)", Server: server},
			{Name: "a.test", Kind: kind, Rcode: 5},
		} {
			said := plain(e.Error()[len("a.test: "):])
			if got := kindOf(said); got != kind {
				t.Errorf("%q is kind %d, want %d", said, got, kind)
			}
		}
	}
	for _, said := range []string{"", "the worker is gone", "a.test: no such name (NXDOMAIN)", "an answer without an address", "no such"} {
		if got := kindOf(said); got != 0 {
			t.Errorf("%q is kind %d", said, got)
		}
	}
}

// Only a name that must be pinned stops a start, and only its failure counts.
func TestFailed(t *testing.T) {
	timeout := &lookupFailed{errors.New("said"), resolve.Timeout}
	for _, tt := range []struct {
		name string
		soft bool
		err  error
		want bool
	}{
		{"silence", false, timeout, true},
		{"silence about a soft one", true, timeout, false},
		{"another kind", false, &lookupFailed{errors.New("said"), resolve.NXDomain}, false},
		{"no kind", false, errors.New("no answer from the resolver in time"), false},
		{"none", false, nil, false},
	} {
		g := &gate{spec: spec.Gate{Names: []spec.Name{{Domain: "fine.test"}, {Domain: "a.test", Soft: tt.soft}}},
			resolved: map[string]resolution{"fine.test": {}, "a.test": {err: tt.err}}}
		if got := g.failed(resolve.Unreachable, resolve.Timeout); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if timeout.Error() != "said" {
		t.Errorf("%q is told", timeout)
	}
}
