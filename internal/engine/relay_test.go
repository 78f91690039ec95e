package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

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
		if got := r.config.User == "0:0"; got != root || slices.Equal(r.host.CapAdd, plan.RelayCapabilities) != root {
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
	p := planned("172.30.0.2", service, plan.Relay{Port: 443}, lookups)
	if got := needs(p, p.Gates[0]); got != "443,53/dns,8081" {
		t.Errorf("%q", got)
	}
	for _, only := range []struct {
		gate spec.Gate
		want string
	}{{spec.Gate{Gateway: gateway}, ""}, {spec.Gate{Gateway: gateway, HostPorts: []uint16{443}}, "443"},
		{spec.Gate{Gateway: gateway, Resolvers: []netip.Addr{gateway}}, "53/dns"}} {
		if got := needs(p, plan.Gate{Spec: only.gate}); got != only.want {
			t.Errorf("%+v: %q, want %q", only.gate, got, only.want)
		}
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
		{id: "c", address: netip.MustParseAddr("172.30.0.9"), needs: []string{"8081"}},
		{id: "a", address: netip.MustParseAddr("172.30.0.2"), needs: []string{"53/dns", "8081"}},
		{id: "b", address: netip.MustParseAddr("172.30.0.3"), needs: []string{"808"}},
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
		{id: "a", address: netip.MustParseAddr("172.30.0.2"), needs: []string{"8081"}},
		{id: "b", address: netip.MustParseAddr("172.30.0.3"), needs: []string{"8081"}},
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
	for state, why := range map[string]string{"running": "", "exited": "it ended", "created": "it is created", "paused": "it is paused", "": "it is gone"} {
		ok := why == ""
		if h := relayHealth("8081", state, "corral up"); h.OK != ok || h.State == "" || h.Why != why || !ok && !strings.Contains(h.State, "corral up") {
			t.Errorf("%q: %+v", state, h)
		}
	}
	for purpose, remedy := range map[string]string{PurposeRun: "corral down, then corral run", PurposeDaemon: "corral up"} {
		f := &relayEngine{carrying: carrying{relays: []container.Summary{madeRelay("r", plan.Relay{Port: 8081}, func(s *container.Summary) { s.State = "exited" })}}}
		got, err := answered(t, f.answer).RelayHealth(t.Context(), []Member{{Role: RoleGate, Purpose: purpose, Relays: []string{"8081"}}, {Role: RoleService, Purpose: purpose}})
		if err != nil || len(got) != 1 || got[0].OK || !strings.Contains(got[0].State, remedy) {
			t.Errorf("%s: %+v %v", purpose, got, err)
		}
	}
}

// carrying is what an engine has and says of relays and gates.
type carrying struct {
	relays, gates []container.Summary
	noRelays      bool // it does not say which there are
	noGates       bool
	deaf          bool // no relay takes a list
	lost          int  // so many commands the engine does not begin
}

// relayEngine is the engine of such a machine. It notes what is asked of it and
// makes no container.
type relayEngine struct {
	carrying

	mu    sync.Mutex
	asked []string
}

const relayImage = "sha256:now"

func (f *relayEngine) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *relayEngine) answer(w http.ResponseWriter, r *http.Request, path string) {
	words := strings.Split(strings.TrimPrefix(path, "/"), "/")
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	failed := map[string]string{"message": "it does not say"}
	switch {
	case path == "/containers/json":
		list, no, what := f.gates, f.noGates, "gates"
		if by, err := filters.FromJSON(r.URL.Query().Get("filters")); err == nil && by.ExactMatch("label", labelRole+"="+RoleRelay) {
			list, no, what = f.relays, f.noRelays, "relays"
		}
		f.note("list %s", what)
		if no {
			say(http.StatusInternalServerError, failed)
			return
		}
		say(http.StatusOK, list)
	case path == "/containers/create":
		f.note("create %s", r.URL.Query().Get("name"))
		say(http.StatusInternalServerError, failed)
	case r.Method == http.MethodDelete:
		f.note("remove %s", words[1])
		w.WriteHeader(http.StatusNoContent)
	case words[0] == "images":
		say(http.StatusOK, map[string]string{"Id": relayImage})
	case words[0] == "containers" && words[2] == "exec" && f.lost > 0:
		f.lost--
		f.note("lost")
		say(http.StatusInternalServerError, failed)
	case words[0] == "containers" && words[2] == "exec":
		say(http.StatusCreated, map[string]string{"Id": words[1]})
	case words[0] == "exec" && words[2] == "start":
		conn, more, err := upgraded(w, r)
		if err != nil {
			return
		}
		defer conn.Close()
		list, err := spec.ParseRelay(more)
		f.note("tell %s %v %v", words[1], list.Sources, err)
	case words[0] == "exec":
		status := 0
		if f.deaf {
			status = 1
		}
		say(http.StatusOK, map[string]any{"Running": false, "ExitCode": status})
	default:
		say(http.StatusNotFound, failed)
	}
}

// changes are what was asked beside questions.
func (f *relayEngine) changes() []string {
	return slices.DeleteFunc(slices.Clone(f.asked), func(s string) bool { return strings.HasPrefix(s, "list ") })
}

// madeRelay is a relay as the engine lists it, made as carry makes it.
func madeRelay(id string, r plan.Relay, spoil func(*container.Summary)) container.Summary {
	want := relayRequest("image", r, gateway)
	s := container.Summary{ID: id, Names: []string{"/" + want.name}, State: "running", Labels: want.config.Labels}
	s.Labels[labelMade] = relayRequest("image", r, gateway).digest(relayImage)
	if spoil != nil {
		spoil(&s)
	}
	return s
}

func listedGate(id, address, needs string) container.Summary {
	return container.Summary{ID: id, Names: []string{"/corral-" + id + "-main-gate"}, State: "running",
		Labels: map[string]string{labelRole: RoleGate, labelAddress: address, labelRelays: needs}}
}

// planned is a plan for an address that needs relays.
func planned(address string, relays ...plan.Relay) *plan.Plan {
	told := spec.Gate{Address: netip.MustParseAddr(address), Gateway: gateway}
	for _, r := range relays {
		if len(r.DNS) > 0 {
			told.Resolvers = []netip.Addr{gateway}
		} else {
			told.HostPorts = append(told.HostPorts, r.Port)
		}
	}
	return &plan.Plan{Relays: relays, Network: plan.Network{Gateway: gateway}, Gates: []plan.Gate{{Name: plan.Main, Spec: told}}}
}

// When a gate is about to start, every relay has the list of those who declare
// its port, whatever became of earlier gates at that address: also where the
// gate needs no relay, at the price of one question where there is none.
func TestCarry(t *testing.T) {
	state := func(s string) func(*container.Summary) { return func(c *container.Summary) { c.State = s } }
	elsewhere := plan.Relay{Port: 53, DNS: addrs("127.0.0.54")}
	a, b := listedGate("a", "172.30.0.2", "8081"), listedGate("b", "172.30.0.3", "53/dns")
	ended := listedGate("b", "172.30.0.3", "53/dns")
	ended.State = "exited"
	for name, tt := range map[string]struct {
		engine carrying
		plan   *plan.Plan
		asked  string // all of it, if not empty
		want   []string
		says   string // in the error; empty: none
	}{
		"no relays and none needed": {plan: planned("172.30.0.9"), asked: "list relays"},
		"none needed": {engine: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9"), want: []string{"tell r [172.30.0.2] <nil>"}},
		"none needed, at an address that somebody declared for": {
			engine: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a, listedGate("x", "172.30.0.9", "8081")}},
			plan:   planned("172.30.0.9"), want: []string{"tell r [172.30.0.2] <nil>"}},
		"a relay that serves nobody": {engine: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{b}},
			plan: planned("172.30.0.9"), want: []string{"remove r"}},
		"a relay that takes no list": {engine: carrying{deaf: true, relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9"), want: []string{"tell r [172.30.0.2] <nil>", "remove r"}},
		"a relay that is told the second time": {engine: carrying{lost: 1, relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9"), want: []string{"lost", "tell r [172.30.0.2] <nil>"}},
		"a relay that cannot be told": {engine: carrying{lost: 9, relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9"), want: []string{"lost", "lost", "remove r"}},
		"a relay that has ended": {engine: carrying{relays: []container.Summary{madeRelay("r", service, state("exited"))}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9")},
		"a relay that is paused": {engine: carrying{relays: []container.Summary{madeRelay("r", service, state("paused"))}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9"), want: []string{"tell r [172.30.0.2] <nil>"}},
		"gates are not told": {engine: carrying{noGates: true, relays: []container.Summary{madeRelay("r", service, nil)}},
			plan: planned("172.30.0.9"), says: "it does not say"},
		"relays are not told": {engine: carrying{noRelays: true}, plan: planned("172.30.0.9"), says: "it does not say"},
		"needed and there": {engine: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a, listedGate("new", "172.30.0.9", "8081")}},
			plan: planned("172.30.0.9", service), want: []string{"tell r [172.30.0.2 172.30.0.9] <nil>"}},
		"another one is there": {engine: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a, listedGate("new", "172.30.0.9", "9090")}},
			plan: planned("172.30.0.9", plan.Relay{Port: 9090}), want: []string{"tell r [172.30.0.2] <nil>", "create corral-relay-9090"}, says: "relay of port 9090"},
		"of another image": {engine: carrying{relays: []container.Summary{madeRelay("r", service, func(c *container.Summary) {
			c.Labels[labelMade] = relayRequest("image", service, gateway).digest("sha256:before")
		})}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9", service), want: []string{"remove r", "create corral-relay-8081"}, says: "relay of port 8081"},
		"of a corral that did not say": {engine: carrying{relays: []container.Summary{madeRelay("r", service, func(c *container.Summary) { delete(c.Labels, labelMade) })},
			gates: []container.Summary{a}},
			plan: planned("172.30.0.9", service), want: []string{"remove r", "create corral-relay-8081"}, says: "relay of port 8081"},
		"needed and ended": {engine: carrying{relays: []container.Summary{madeRelay("r", service, state("exited"))}, gates: []container.Summary{a}},
			plan: planned("172.30.0.9", service), want: []string{"remove r", "create corral-relay-8081"}, says: "relay of port 8081"},
		"others ask the same name servers": {engine: carrying{relays: []container.Summary{madeRelay("r", lookups, nil)}, gates: []container.Summary{b, listedGate("new", "172.30.0.9", "53/dns")}},
			plan: planned("172.30.0.9", lookups), want: []string{"tell r [172.30.0.3 172.30.0.9] <nil>"}},
		"others ask other name servers": {engine: carrying{relays: []container.Summary{madeRelay("r", lookups, nil)}, gates: []container.Summary{b, listedGate("new", "172.30.0.9", "53/dns")}},
			plan: planned("172.30.0.9", elsewhere), says: "ask the name servers 127.0.0.53:53, [::1]:53 by way of its one relay of lookups, and this one is to ask 127.0.0.54:53"},
		"others asked other name servers": {engine: carrying{relays: []container.Summary{madeRelay("r", lookups, nil)}, gates: []container.Summary{ended, a, listedGate("new", "172.30.0.9", "53/dns")}},
			plan: planned("172.30.0.9", elsewhere), want: []string{"remove r", "create corral-relay-53"}, says: "relay of port 53"},
	} {
		t.Run(name, func(t *testing.T) {
			f := relayEngine{carrying: tt.engine}
			e := answered(t, f.answer)
			err := e.carry(t.Context(), "image", &Gate{Name: plan.Main, Plan: tt.plan})
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
			if got := f.changes(); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if got := strings.Join(f.asked, ", "); tt.asked != "" && got != tt.asked {
				t.Errorf("%q, want %q", got, tt.asked)
			}
		})
	}
}

// A corral that is interrupted takes no relay from others.
func TestCarryInterrupted(t *testing.T) {
	f := relayEngine{carrying: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{listedGate("a", "172.30.0.2", "8081")}}}
	ctx, cancel := context.WithCancel(t.Context())
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		if strings.HasSuffix(path, "/exec") {
			cancel()
		}
		f.answer(w, r, path)
	})
	for _, p := range []*plan.Plan{planned("172.30.0.9"), planned("172.30.0.9", service)} {
		if err := e.carry(ctx, "image", &Gate{Name: plan.Main, Plan: p}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	for _, change := range f.changes() {
		if !strings.HasPrefix(change, "tell") {
			t.Error(change)
		}
	}
}

// The gates go in any case. Relays are judged only by what the engine says, and
// not by its silence.
func TestGatesGoInAnyCase(t *testing.T) {
	a, b := listedGate("a", "172.30.0.2", "8081"), listedGate("b", "172.30.0.3", "8081")
	for name, tt := range map[string]struct {
		engine carrying
		image  string
		want   []string
		fails  bool
	}{
		"no relays":           {engine: carrying{gates: []container.Summary{a}}, want: []string{"remove a"}},
		"somebody else's":     {engine: carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{b}}, want: []string{"remove a"}},
		"gates are not told":  {engine: carrying{noGates: true, relays: []container.Summary{madeRelay("r", service, nil)}}, want: []string{"remove a"}, fails: true},
		"relays are not told": {engine: carrying{noRelays: true}, want: []string{"remove a"}, fails: true},
		"no lock":             {engine: carrying{gates: []container.Summary{a}}, image: "image", want: []string{"create " + lockName, "remove a"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := relayEngine{carrying: tt.engine}
			e := answered(t, f.answer)
			if err := e.takeAway(t.Context(), tt.image, "a"); (err != nil) != tt.fails {
				t.Error(err)
			}
			if got := f.changes(); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	// With the lock.
	for name, tt := range map[string]struct {
		engine carrying
		want   []string
		fails  bool
	}{
		"gates are not told":  {carrying{noGates: true, relays: []container.Summary{madeRelay("r", service, nil)}}, []string{"remove a"}, true},
		"relays are not told": {carrying{noRelays: true}, []string{"remove a"}, true},
		"the other stays": {carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a, b}},
			[]string{"tell r [172.30.0.3] <nil>", "remove a"}, false},
		"nobody stays": {carrying{relays: []container.Summary{madeRelay("r", service, nil)}, gates: []container.Summary{a}},
			[]string{"remove r", "remove a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := relayEngine{carrying: tt.engine}
			e := answered(t, f.answer)
			if err := e.dismiss(t.Context(), "a"); (err != nil) != tt.fails {
				t.Error(err)
			}
			if got := f.changes(); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// Whatever a relay is asked to be is in its digest.
func TestRelayDigest(t *testing.T) {
	same := relayRequest("image", service, gateway).digest("id")
	if got := relayRequest("image", service, gateway).digest("id"); got != same {
		t.Error("the same is not the same")
	}
	for name, other := range map[string]string{
		"image":   relayRequest("image", service, gateway).digest("other"),
		"tag":     relayRequest("other", service, gateway).digest("id"),
		"port":    relayRequest("image", plan.Relay{Port: 8082}, gateway).digest("id"),
		"gateway": relayRequest("image", service, gateway.Next()).digest("id"),
		"memory": func() string {
			r := relayRequest("image", service, gateway)
			r.host.Memory++
			return r.digest("id")
		}(),
		"option": func() string {
			r := relayRequest("image", service, gateway)
			r.options = []string{"seccomp=unconfined"}
			return r.digest("id")
		}(),
	} {
		if other == same {
			t.Errorf("another %s looks the same", name)
		}
	}
}

// onPort listens at an address by TCP or UDP, on port 0 for a free one, and
// shares it with whoever shares it too.
func onPort(t *testing.T, network, at string) netip.AddrPort {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); cerr != nil {
			return cerr
		}
		return err
	}}
	lc.SetMultipathTCP(false)
	var c io.Closer
	var got string
	if strings.HasPrefix(network, "tcp") {
		l, err := lc.Listen(t.Context(), network, at)
		if err != nil {
			t.Fatal(err)
		}
		c, got = l, l.Addr().String()
	} else {
		pc, err := lc.ListenPacket(t.Context(), network, at)
		if err != nil {
			t.Fatal(err)
		}
		c, got = pc, pc.LocalAddr().String()
	}
	t.Cleanup(func() { c.Close() })
	return netip.MustParseAddrPort(got)
}

// Who listens on every address of this machine is the service that is meant; who
// listens on one of them may be anybody.
func TestByItself(t *testing.T) {
	const own = "127.0.0.7" // as good as the gateway's: an address of this machine
	for name, tt := range map[string]struct {
		listens []string // network and address, all on the port of the first
		lookups bool
		says    string // empty: it is
	}{
		"every address":                 {listens: []string{"tcp4 0.0.0.0"}},
		"every address, IPv6 too":       {listens: []string{"tcp ::"}},
		"every address, IPv6 only":      {listens: []string{"tcp6 ::"}, says: "accepts no connection"},
		"this address":                  {listens: []string{"tcp4 " + own}, says: "listens there alone (tcp)"},
		"this address, before everyone": {listens: []string{"tcp4 0.0.0.0", "tcp4 " + own}, says: "listens there alone (tcp)"},
		"another address":               {listens: []string{"tcp4 127.0.0.8"}, says: "no program of this machine listens on every address"},
		"by UDP":                        {listens: []string{"udp4 0.0.0.0"}, says: "no program of this machine listens on every address"},
		"lookups, by TCP":               {listens: []string{"tcp4 0.0.0.0"}, lookups: true, says: "(udp)"},
		"lookups, this address":         {listens: []string{"udp4 " + own}, lookups: true, says: "listens there alone (udp)"},
		"lookups, this address by TCP":  {listens: []string{"udp4 0.0.0.0", "tcp4 " + own}, lookups: true, says: "listens there alone (tcp)"},
		"lookups, nobody answers":       {listens: []string{"udp4 0.0.0.0"}, lookups: true, says: "answers no lookup"},
	} {
		t.Run(name, func(t *testing.T) {
			port := "0"
			for _, l := range tt.listens {
				network, address, _ := strings.Cut(l, " ")
				port = fmt.Sprint(onPort(t, network, net.JoinHostPort(address, port)).Port())
			}
			at := netip.MustParseAddrPort(own + ":" + port)
			if err := byItself(t.Context(), at, tt.lookups); (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
	for rcode, says := range map[int]string{dns.RcodeNameError: "", dns.RcodeServerFailure: "", dns.RcodeRefused: "", -1: "answers no lookup"} {
		pc, err := net.ListenPacket("udp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			if rcode < 0 {
				w.Write([]byte("this is no answer at all"))
				return
			}
			w.WriteMsg(new(dns.Msg).SetRcode(q, rcode))
		})}
		started, ended := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		at := netip.AddrPortFrom(netip.MustParseAddr(own), netip.MustParseAddrPort(pc.LocalAddr().String()).Port())
		if err := byItself(t.Context(), at, true); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("a name server that says %d: %v, want %q", rcode, err, says)
		}
		s.Shutdown()
		<-ended
	}
}

// What cannot be read is no list without anybody.
func TestListenersUnread(t *testing.T) {
	const head = "  sl  local_address rem_address   st\n"
	at := netip.MustParseAddrPort("172.30.0.1:8081")
	for name, tt := range map[string]struct {
		files map[string]string
		fails bool
	}{
		"nobody":               {map[string]string{"tcp": head, "tcp6": head}, false},
		"no IPv6":              {map[string]string{"tcp": head}, false},
		"nothing there":        {nil, true},
		"IPv6 alone":           {map[string]string{"tcp6": head}, true},
		"half a line":          {map[string]string{"tcp": head + "0: 00000000:1F91 00000000:0000\n"}, true},
		"no address":           {map[string]string{"tcp": head + "0: nowhere:1F91 00000000:0000 0A\n"}, true},
		"no port":              {map[string]string{"tcp": head + "0: 00000000 00000000:0000 0A\n"}, true},
		"a port too high":      {map[string]string{"tcp": head + "0: 00000000:11F91 00000000:0000 0A\n"}, true},
		"half an address":      {map[string]string{"tcp": head, "tcp6": head + "0: 0000000000000000:1F91 00000000:0000 0A\n"}, true},
		"what does not listen": {map[string]string{"tcp": head + "0: nowhere:1F91 00000000:0000 01\n"}, false},
	} {
		dir := t.TempDir()
		for file, text := range tt.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		every, alone, err := listeners(dir, "tcp", at)
		if every || alone || (err != nil) != tt.fails {
			t.Errorf("%s: %v, %v, %v", name, every, alone, err)
		}
	}
}

// Only a port of loopback that nobody has is refused.
func TestUnserved(t *testing.T) {
	for listens, want := range map[string]bool{"127.0.0.1": true, "0.0.0.0": true, "127.0.0.2": false} {
		l, err := net.Listen("tcp4", net.JoinHostPort(listens, "0"))
		if err != nil {
			t.Fatal(err)
		}
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		if err := Unserved(t.Context(), port); (err == nil) != want {
			t.Errorf("what listens on %s: %v", listens, err)
		}
		l.Close()
		if err := Unserved(t.Context(), port); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("nothing listens on 127.0.0.1:%d", port)) {
			t.Errorf("nobody: %v", err)
		}
	}
}
