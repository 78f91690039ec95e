package gate

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

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
		doc := spec.Gate{Names: []spec.Name{{Domain: "fine.test"}, {Domain: "a.test", Soft: tt.soft}}}
		results := map[string]resolution{"fine.test": {}, "a.test": {err: tt.err}}
		if got := failed(doc, results, resolve.Unreachable, resolve.Timeout); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if timeout.Error() != "said" {
		t.Errorf("%q is told", timeout)
	}
}

// An address that a policy could permit: a gate without one says what does, and
// proposes none that is the machine.
func TestPermission(t *testing.T) {
	variable, document := spec.Name{Domain: "a.test", Origin: allowSetting}, spec.Name{Domain: "a.test", Origin: "ours"}
	for _, tt := range []struct {
		addr string
		n    spec.Name
		want string
	}{
		{"10.1.2.3", variable, `no variable permits that, a document does in place of them: /etc/corral/gate.json, with "private": ["10.1.2.3/32"] for this name`},
		{"10.1.2.3", document, `"private": ["10.1.2.3/32"] for this name in /etc/corral/gate.json would permit it`},
		{"172.17.0.1", variable, "this machine itself, whose ports are for CORRAL_HOST_PORTS"},
		{"172.17.0.1", document, "this machine itself, whose ports are for CORRAL_HOST_PORTS"},
		{"169.254.169.254", variable, "no policy can permit it"},
	} {
		doc := spec.Gate{Class: spec.ClassPinned, Names: []spec.Name{tt.n}}
		_, err := decide(doc, outcome{}, map[string]resolution{"a.test": {addrs: []netip.Addr{addr(tt.addr)}}}, noon)
		if err == nil || !strings.Contains(err.Error(), "a.test ("+tt.n.Origin+"): "+tt.addr+" is refused: ") || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "private: [") {
			t.Errorf("%s: %v, want %q", tt.addr, err, tt.want)
		}
		if tt.addr == "172.17.0.1" && strings.Contains(err.Error(), "private\"") {
			t.Errorf("the machine is proposed: %v", err)
		}
	}
}

func TestTold(t *testing.T) {
	doc := spec.Gate{Names: make([]spec.Name, 2), HostPorts: []uint16{1}}
	if got := told(doc, []string{"CORRAL_ALLOW", "CORRAL_HOST_PORTS"}); got != "read from the environment, CORRAL_ALLOW, CORRAL_HOST_PORTS: 2 names, 0 links, 0 clients, 1 host port" {
		t.Error(got)
	}
	doc.Service = "db"
	if got := told(doc, nil); got != `read /etc/corral/gate.json, service "db": 2 names, 0 links, 0 clients, 1 host port` {
		t.Error(got)
	}
}
