package gate

import (
	"bytes"
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
