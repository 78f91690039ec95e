package engine

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

var (
	gateway = netip.MustParseAddr("172.30.0.1")
	service = plan.Relay{Port: 8081}
	lookups = plan.Relay{Port: 53, DNS: addrs("127.0.0.53", "::1")}
)

func TestRelayCommand(t *testing.T) {
	for want, r := range map[string]plan.Relay{
		"relay 172.30.0.1:8081 127.0.0.1:8081":             service,
		"relay --dns 172.30.0.1:53 127.0.0.53:53 [::1]:53": lookups,
		"relay 172.30.0.1:1023 127.0.0.1:1023":             {Port: 1023},
		"relay --dns 172.30.0.1:53 127.0.0.1:53":           {Port: 53, DNS: addrs("127.0.0.1")},
	} {
		if got := strings.Join(relayCommand(r, gateway), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A relay holds no more than it needs: nothing at all, and below the first port
// that anybody may listen on three rights, which it gives up.
func TestRelayRequest(t *testing.T) {
	for port, root := range map[uint16]bool{53: true, 1023: true, 1024: false, 8081: false} {
		r := relayRequest("image", plan.Relay{Port: port}, gateway)
		if got := r.config.User == "0:0"; got != root || slices.Equal(r.host.CapAdd, relayCapabilities) != root {
			t.Errorf("port %d: user %s, capabilities %v", port, r.config.User, r.host.CapAdd)
		}
		if !root && (r.config.User != "64998:64998" || len(r.host.CapAdd) > 0) {
			t.Errorf("port %d: user %s, capabilities %v", port, r.config.User, r.host.CapAdd)
		}
		if !r.host.ReadonlyRootfs || r.host.NetworkMode != "host" || r.host.Privileged || len(r.host.Mounts)+len(r.host.Binds) > 0 ||
			r.host.RestartPolicy.Name != "" || *r.host.PidsLimit == 0 || r.host.Memory == 0 || r.host.Memory != r.host.MemorySwap || len(r.options) > 0 {
			t.Errorf("port %d: %+v", port, r.host)
		}
		if l := r.config.Labels; l[labelRole] != RoleRelay || l[labelSandbox] != "" || l[labelPolicy] != "" || l[labelPurpose] != "" {
			t.Errorf("port %d: labels %v", port, l)
		}
	}
	if relayRequest("i", service, gateway).config.Labels[labelTarget] == relayRequest("i", service, gateway.Next()).config.Labels[labelTarget] {
		t.Error("a relay at another address looks the same")
	}
}

func TestNeeds(t *testing.T) {
	if got := needs(&plan.Plan{Relays: []plan.Relay{service, {Port: 443}, lookups}}); got != "443,53/dns,8081" {
		t.Errorf("%q", got)
	}
	if got := splitNeeds("443,53/dns,8081"); !slices.Equal(got, []string{"443", "53/dns", "8081"}) {
		t.Errorf("%q", got)
	}
	for _, none := range []string{"", ","} {
		if got := splitNeeds(none); len(got) != 0 {
			t.Errorf("%q is %q", none, got)
		}
	}
}

// Whom a relay serves are the gates that say so, all of them but who leaves.
func TestSources(t *testing.T) {
	users := []user{
		{"c", netip.MustParseAddr("172.30.0.9"), []string{"8081"}},
		{"a", netip.MustParseAddr("172.30.0.2"), []string{"53/dns", "8081"}},
		{"b", netip.MustParseAddr("172.30.0.3"), []string{"808"}},
	}
	for _, tt := range []struct {
		word    string
		leaving []string
		want    []netip.Addr
	}{
		{"8081", nil, addrs("172.30.0.2", "172.30.0.9")},
		{"8081", []string{"a"}, addrs("172.30.0.9")},
		{"8081", []string{"a", "c"}, nil},
		{"53/dns", nil, addrs("172.30.0.2")},
		{"53", nil, nil},
		{"808", []string{"a"}, addrs("172.30.0.3")},
		{"", nil, nil},
	} {
		if got := sources(users, tt.word, tt.leaving...); !slices.Equal(got, tt.want) {
			t.Errorf("%q without %v: %v, want %v", tt.word, tt.leaving, got, tt.want)
		}
	}
}

// The lock is taken only for a relay that serves who leaves, or nobody.
func TestConcerned(t *testing.T) {
	users := []user{
		{"a", netip.MustParseAddr("172.30.0.2"), []string{"8081"}},
		{"b", netip.MustParseAddr("172.30.0.3"), []string{"8081"}},
	}
	shared, orphan := relay{carries: "8081", image: "shared"}, relay{carries: "9090", image: "orphan"}
	for _, tt := range []struct {
		name   string
		relays []relay
		gates  []string
		want   string
	}{
		{"no relay", nil, []string{"a"}, ""},
		{"somebody else's", []relay{shared}, []string{"x"}, ""},
		{"nobody leaves", []relay{shared}, nil, ""},
		{"one of two leaves", []relay{shared}, []string{"a"}, "shared"},
		{"nobody's", []relay{shared, orphan}, nil, "orphan"},
	} {
		if got := (carriers{tt.relays, users}).concerned(tt.gates); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestRelayFailed(t *testing.T) {
	for said, taken := range map[string]bool{
		"corral-gate: " + spec.RelayTaken + "172.30.0.1:8081": true,
		"corral-gate: no such address":                        false,
		"":                                                    false,
	} {
		err := relayFailed(said)
		if got := errors.As(err, new(*relayTaken)); got != taken || err.Error() == "" {
			t.Errorf("%q: taken %v, %q", said, got, err)
		}
	}
}

func TestRelayHealth(t *testing.T) {
	for state, ok := range map[string]bool{"running": true, "exited": false, "created": false, "paused": false, "": false} {
		if h := relayHealth("8081", state); h.OK != ok || h.State == "" || !ok && !strings.Contains(h.State, "corral run") {
			t.Errorf("%q: %+v", state, h)
		}
	}
}
