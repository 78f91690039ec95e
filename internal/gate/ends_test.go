package gate

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// What a document says of links and clients is judged as what variables say is.
func TestParseSpecHoldsEnds(t *testing.T) {
	for _, tt := range []struct {
		link, client, gateway, want string
	}{
		{"172.30.128.4", "172.30.128.2", "172.30.0.1", ""},
		{"100.64.0.1", "8.8.8.8", "172.30.0.1", ""},
		{"172.30.0.2", "172.30.0.1", "172.30.0.1", ""},
		{"172.30.0.1", "172.30.128.2", "172.30.0.1", `gate spec: link "db": 172.30.0.1 is refused: it is this machine`},
		{"169.254.169.254", "172.30.128.2", "", `gate spec: link "db": 169.254.169.254 is refused: metadata`},
		{"100.100.100.200", "172.30.128.2", "", "metadata"},
		{"8.8.8.8", "172.30.128.2", "", "8.8.8.8 is refused: public"},
		{"255.255.255.255", "172.30.128.2", "", "reserved"},
		{"198.51.100.1", "172.30.128.2", "", "documentation"},
		{"172.30.128.4", "169.254.169.254", "", "gate spec: client of port 5432: 169.254.169.254 is refused: metadata"},
		{"172.30.128.4", "169.254.0.1", "", "link-local"},
		{"172.30.128.4", "240.0.0.1", "", "reserved"},
		{"172.30.128.4", "192.88.99.1", "", "relay"},
	} {
		g := spec.Gate{Version: spec.Version, Class: spec.ClassNone, Probes: spec.DefaultProbes(),
			Links: []spec.Link{{Name: "db", Addr: addr(tt.link), Port: 5432}}, Clients: []spec.Client{{Addr: addr(tt.client), Port: 5432}}}
		if tt.gateway != "" {
			g.Gateway = addr(tt.gateway)
		}
		got, err := parseSpec(bytes.NewReader(spec.Encode(g)))
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || len(got.Links)+len(got.Clients) > 0) {
			t.Errorf("%+v: %+v, %v", tt, got, err)
		}
	}
}

// A link leads to a neighbour: not to this machine or this gate, whatever the
// document names as the gateway, nor past a router.
func TestLinksLeadToNeighbours(t *testing.T) {
	prefix := netip.MustParsePrefix
	here := surroundings{
		addrs:    []netip.Prefix{prefix("172.28.0.5/16"), prefix("10.213.77.2/28"), prefix("10.9.9.1/31"), prefix("2001:db8::2/64")},
		gateways: []netip.Addr{addr("172.28.0.254"), addr("192.168.7.1")},
	}
	for _, tt := range []struct{ link, want string }{
		{"172.28.0.3", ""},
		{"172.28.0.1", ""}, // the default gateway is another address of that network
		{"172.28.0.254", "172.28.0.254 is refused: it is the default gateway"},
		{"192.168.7.1", "it is the default gateway"},
		{"172.28.0.5", "it is this gate's own"},
		{"10.213.77.2", "it is this gate's own"},
		{"10.213.77.1", "it is the first address of 10.213.77.0/28"},
		{"10.213.77.3", ""},
		{"10.213.77.14", ""},
		{"10.213.77.16", "this gate is on no network with that address"},
		{"10.213.76.255", "on no network"},
		{"10.9.9.0", ""},
		{"192.168.7.2", "on no network"},
	} {
		err := here.holds([]spec.Link{{Name: "peer", Addr: addr("172.28.0.3"), Port: 1}, {Name: "db", Addr: addr(tt.link), Port: 5432}})
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), `link "db": `+tt.link+" is refused: ")) {
			t.Errorf("%s: %v", tt.link, err)
		}
	}
	if err := (surroundings{}).holds([]spec.Link{{Name: "db", Addr: addr("172.28.0.3"), Port: 1}}); err == nil {
		t.Error("a link, and no network")
	}
}
