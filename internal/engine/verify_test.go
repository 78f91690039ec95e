package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// R046: whatever publishes a port, or joins another network, is named; what
// the engine does not say cannot be told.
func TestNoPortPublished(t *testing.T) {
	const gate = `{"Id":"g","HostConfig":{"NetworkMode":"corral"},"NetworkSettings":{"Ports":{},"Networks":{"corral":{}}}}`
	const service = `{"Id":"s","HostConfig":{"NetworkMode":"container:g"},"NetworkSettings":{"Ports":{},"Networks":{}}}`
	for _, tt := range []struct {
		name, gate, service string
		want                spec.Result
		detail              string
	}{
		{"as it should be", gate, service, spec.OK, ""},
		{"named by the image only", strings.Replace(gate, `"Ports":{}`, `"Ports":{"80/tcp":null}`, 1), service, spec.OK, ""},
		{"the gate is asked to", strings.Replace(gate, `"corral"}`, `"corral","PortBindings":{"80/tcp":[{"HostPort":"8080"}]}}`, 1), service, spec.Failed, "the gate publishes port 80/tcp"},
		{"the gate does", strings.Replace(gate, `"Ports":{}`, `"Ports":{"80/tcp":[{"HostPort":"8080"}]}`, 1), service, spec.Failed, "the gate publishes port 80/tcp"},
		{"the service does", gate, strings.Replace(service, `"Ports":{}`, `"Ports":{"53/udp":[{"HostPort":"53"}]}`, 1), spec.Failed, "the service publishes port 53/udp"},
		{"all of them", strings.Replace(gate, `"corral"}`, `"corral","PublishAllPorts":true}`, 1), service, spec.Failed, "every port"},
		{"another gate's network", gate, strings.Replace(service, "container:g", "container:h", 1), spec.Failed, `"container:h"`},
		{"a network of its own", gate, strings.Replace(service, "container:g", "bridge", 1), spec.Failed, `"bridge"`},
		{"one more network", gate, strings.Replace(service, `"Networks":{}`, `"Networks":{"bridge":{}}`, 1), spec.Failed, "on the network bridge"},
		{"no gate", "", service, spec.Untold, "the gate"},
		{"no service", gate, "", spec.Untold, "the service"},
		{"nothing of the settings", gate, `{"Id":"s","HostConfig":{"NetworkMode":"container:g"}}`, spec.Untold, "the service"},
		{"nothing of what was asked", `{"Id":"g","NetworkSettings":{}}`, service, spec.Untold, "the gate"},
	} {
		if got, detail := noPortPublished(evidence{gate: inspected(t, tt.gate), service: inspected(t, tt.service)}); got != tt.want || !strings.Contains(detail, tt.detail) {
			t.Errorf("%s: %q %q", tt.name, got, detail)
		}
	}
}

func inspected(t *testing.T, text string) *container.InspectResponse {
	t.Helper()
	if text == "" {
		return nil
	}
	got := &container.InspectResponse{}
	if err := json.Unmarshal([]byte(text), got); err != nil {
		t.Fatal(err)
	}
	return got
}

// The same, as a real engine says it.
func TestNoPortPublishedByTheEngine(t *testing.T) {
	testenv.Require(t, "engine")
	e, err := Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, err := command.Run(ctx, nil, append(append([]string{"docker", "run", "--detach", "--rm", "--stop-timeout", "0"}, args...), testenv.BaseImage, "sleep", "300")...)
		if err != nil {
			t.Fatal(err)
		}
		id := strings.TrimSpace(string(out))
		t.Cleanup(func() {
			if err := e.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
		})
		return id
	}
	closed, open := start("--expose", "80"), start("--publish", "127.0.0.1::80")
	for _, tt := range []struct {
		name          string
		gate, service string
		want          spec.Result
	}{
		{"nothing", closed, start("--network", "container:"+closed), spec.OK},
		{"a gate that publishes", open, start("--network", "container:"+open), spec.Failed},
		{"a service beside its gate", closed, start(), spec.Failed},
		{"none", closed, "none-of-these", spec.Untold},
	} {
		if got, detail := noPortPublished(e.evidence(t.Context(), tt.gate, tt.service)); got != tt.want {
			t.Errorf("%s: %q %q", tt.name, got, detail)
		}
	}
}

// Where no secret is long enough to be looked for, that is said; one that the
// service was not given is left for the checker to miss.
func TestSearchable(t *testing.T) {
	service := &container.InspectResponse{Config: &container.Config{Env: []string{"SHORT=1234567", "LONG=12345-Ab", "PLAIN=localhost", "EMPTY=", "EQUALS=a=b=c=D=1"}}}
	for _, tt := range []struct {
		names   []string
		service *container.InspectResponse
		skipped bool
	}{
		{[]string{"SHORT"}, service, true},
		{[]string{"PLAIN"}, service, true},
		{[]string{"PLAIN", "SHORT"}, service, true},
		{[]string{"PLAIN", "LONG"}, service, false},
		{[]string{"PLAIN", "GONE"}, service, false},
		{[]string{"SHORT", "EMPTY"}, service, true},
		{[]string{"LONG"}, service, false},
		{[]string{"EQUALS"}, service, false},
		{[]string{"SHORT", "LONG"}, service, false},
		{[]string{"GONE"}, service, false},
		{nil, service, false},
		{[]string{"SHORT"}, nil, false},
	} {
		given := []spec.Check{{Name: "non-root", Names: tt.names}, {Name: "secret-absent-elsewhere", Names: tt.names}}
		got := searchable(given, tt.service)
		if got[0].Skip != "" || (got[1].Skip != "") != tt.skipped || given[1].Skip != "" {
			t.Errorf("%v: %+v", tt.names, got)
		}
	}
}

// R024: the canary answers, on a port that is not granted; who called from the
// gate's address got through, whatever the checker says.
func TestCanary(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	e := &Engine{Progress: func(format string, args ...any) { t.Errorf(format, args...) }}
	checks := []spec.Check{{Name: "host-service:8081", Port: 8081}, {Name: baited, Addr: loopback, Port: 8445}}
	c := e.bait(t.Context(), checks)
	defer c.close()
	port := checks[1].Port
	if port == 8445 || port == 8081 {
		t.Fatalf("the check keeps port %d", port)
	}
	fine := spec.Event{Check: baited, Result: spec.OK, Probes: []spec.Probe{{Proto: "tcp"}}}
	joins := func(name string, ev spec.Event, gate string, want spec.Result, detail string) {
		t.Helper()
		if got := c.join(ev, inspected(t, gate)); got.Result != want || !strings.Contains(got.Detail, detail) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	gateAt := func(address string) string {
		return fmt.Sprintf(`{"Id":"g","NetworkSettings":{"Networks":{"corral":{"IPAddress":"%s"}}}}`, address)
	}
	joins("nobody from there called", fine, gateAt("172.30.0.2"), spec.OK, "")
	joins("a call from the gate's address", fine, gateAt("127.0.0.1"), spec.Failed, "was reached")
	joins("what could not be told stays", spec.Event{Check: baited, Detail: "why"}, gateAt("127.0.0.1"), spec.Untold, "why")
	joins("what failed stays", spec.Event{Check: baited, Result: spec.Failed, Detail: "why"}, "", spec.Failed, "why")
	joins("what was skipped stays", spec.Event{Check: baited, Result: spec.Skip, Detail: "why"}, "", spec.Skip, "why")
	for _, gate := range []string{"", `{"Id":"g"}`, `{"Id":"g","NetworkSettings":{}}`, `{"Id":"g","NetworkSettings":{"Networks":{"corral":null}}}`, gateAt(""), gateAt("nonsense")} {
		joins("a gate of which no address is known: "+gate, fine, gate, spec.Untold, "which addresses the gate has")
	}
	for n := range mostCallers - 2 { // beside this test's own address
		c.note(&net.TCPAddr{IP: net.IPv4(10, 1, byte(n>>8), byte(n)), Port: 1})
	}
	joins("many others called", fine, gateAt("172.30.0.2"), spec.OK, "")
	c.note(&net.TCPAddr{IP: net.IPv4(10, 2, 0, 0), Port: 1})
	joins("too many others called", fine, gateAt("172.30.0.2"), spec.Untold, "more called")
	joins("the gate among too many", fine, gateAt("127.0.0.1"), spec.Failed, "was reached")
	c.close()
	if err := call(t.Context(), netip.AddrPortFrom(loopback, port)); err == nil {
		t.Error("it answers after its end")
	}
}

// Without a canary the planned port is tried, and the reason is told.
func TestNoCanary(t *testing.T) {
	told := ""
	e := &Engine{Progress: func(format string, args ...any) { told += fmt.Sprintf(format, args...) }}
	checks := []spec.Check{{Name: baited, Addr: netip.MustParseAddr("192.0.2.1"), Port: 8445}}
	c := e.bait(t.Context(), checks)
	defer c.close()
	if checks[0].Port != 8445 || !strings.Contains(told, "192.0.2.1") || !strings.Contains(told, "8445") {
		t.Errorf("port %d, %q", checks[0].Port, told)
	}
	fine := spec.Event{Check: baited, Result: spec.OK, Probes: []spec.Probe{{Proto: "tcp"}}}
	if got := c.join(fine, nil); got.Result != spec.OK || !strings.Contains(got.Detail, "nothing was made to answer") {
		t.Errorf("with verdicts of the gate: %+v", got)
	}
	for name, c := range map[string]*canary{"none": {}, "none, for a reason": c} {
		if got := c.join(spec.Event{Check: baited, Result: spec.OK}, nil); got.Result != spec.Untold {
			t.Errorf("%s and no verdict: %+v", name, got)
		}
	}
	if got := (&canary{}).join(fine, nil); got.Result != spec.Untold {
		t.Errorf("nobody knows why there is none: %+v", got)
	}
}

// Who floods from the ports of probes is told, and neither a checker nor the
// gate's own few packets are taken for that.
func TestStrangers(t *testing.T) {
	probe := func(port uint16) spec.Probe { return spec.Probe{Proto: "tcp", Source: port} }
	verdicts := func(n int, o spec.Outcome) (all []spec.Verdict) {
		for i := range n {
			all = append(all, spec.Verdict{Proto: "tcp", Source: spec.ProbePortFirst + uint16(i%100), Outcome: o})
		}
		return all
	}
	var events []spec.Event
	for i := range uint16(100) {
		events = append(events, spec.Event{Probes: []spec.Probe{probe(spec.ProbePortFirst + i)}})
	}
	for _, tt := range []struct {
		name     string
		verdicts []spec.Verdict
		told     bool
	}{
		{"none", nil, false},
		{"a checker's", verdicts(100, spec.OutcomeRejected), false},
		{"a few more", verdicts(100+mostStrangers, spec.OutcomeRejected), false},
		{"one too many", verdicts(101+mostStrangers, spec.OutcomeRejected), true},
		{"what is granted", verdicts(1000, spec.OutcomeAccepted), false},
	} {
		got := strangers("main", events, tt.verdicts)
		if (len(got) == 1) != tt.told || tt.told && (got[0].Result != spec.Note || !strings.Contains(got[0].Detail, "41 packets")) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}
