package verify

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// The real thing, beside a real gate, is tested with the gate.

const (
	routesHead = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	toAll      = "eth0\t00000000\t01001CAC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
	toLink     = "eth1\t004D1CAC\t00000000\t0001\t0\t0\t0\tF0FFFFFF\t0\t0\t0\n"
	down       = "eth2\t00000A0A\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
	refusing   = "*\t00000B0A\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
)

func TestRouted(t *testing.T) {
	const six = "20010db8000000000000000000000000 20 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n" +
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n"
	for _, tt := range []struct {
		name, routes, six string
		addr              string
		want              bool
	}{
		{"by default", routesHead + toAll, "", "198.51.100.1", true},
		{"on the link", routesHead + toLink, "", "172.28.77.3", true},
		{"beside the link", routesHead + toLink, "", "172.28.77.16", false},
		{"a route that is down", routesHead + down, "", "10.10.0.1", false},
		{"a route that refuses", routesHead + refusing, "", "10.11.0.1", false},
		{"no routes", routesHead, "", "198.51.100.1", false},
		{"loopback", routesHead, "", "127.0.0.11", true},
		{"nonsense", routesHead + "x\n", "", "198.51.100.1", true},
		{"IPv6, a route", "", six, "2001:db8::1", true},
		{"IPv6, the one that refuses all", "", six, "2a00::1", false},
		{"IPv6, nonsense", "", "x\n", "2a00::1", true},
	} {
		e := tree(t, map[string]string{"/proc/net/route": tt.routes, "/proc/net/ipv6_route": tt.six})
		if got := e.routed(netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if !tree(t, nil).routed(netip.MustParseAddr("198.51.100.1")) {
		t.Error("what cannot be read is a way")
	}
}

func TestGateways(t *testing.T) {
	for routes, want := range map[string]string{
		routesHead + toLink + toAll: "172.28.0.1 172.28.77.1",
		routesHead + toLink:         "172.28.77.1",
		routesHead:                  "",
		"":                          "",
	} {
		var got []string
		for _, a := range tree(t, map[string]string{"/proc/net/route": routes}).gateways() {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v", routes, got)
		}
	}
}

// The plan of what can be said of any service, for each thing that a gate does
// with names.
func TestAlonePlan(t *testing.T) {
	e := tree(t, map[string]string{"/proc/net/route": routesHead + toAll + toLink,
		"/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n203.0.113.9 api.allowed.test\n203.0.113.8 api.allowed.test\n172.28.0.1 corral-host\n172.28.77.3 db\n"})
	public := spec.DefaultProbes()
	public.Unlisted = netip.MustParseAddr("44.10.9.9")
	for names, kind := range map[string]string{"": "names-only-pinned", spec.NamesBlocked: "names-only-pinned", spec.NamesSink: "names-sink", spec.NamesPublic: "public-only"} {
		seen := map[string]spec.Check{}
		for _, c := range e.alone(public, names) {
			if _, known := kinds[c.Kind()]; !known || seen[c.Name].Name != "" {
				t.Errorf("%s: unknown, or there twice", c.Name)
			}
			seen[c.Name] = c
		}
		for _, k := range []string{"names-only-pinned", "names-sink", "public-only"} {
			if _, planned := seen[k]; planned != (k == kind) {
				t.Errorf("%q: %s planned: %v", names, k, planned)
			}
		}
		if a := seen["allowed:api.allowed.test"].Addrs; len(a) != 2 || seen["allowed:db"].Name == "" || seen["allowed:localhost"].Name != "" {
			t.Errorf("%q: %v", names, seen)
		}
		if seen["gateway-closed"].Skip == "" || seen["gateway-closed:172.28.77.1"].Skip != "" || seen["gateway-closed:172.28.77.1"].Addr != netip.MustParseAddr("172.28.77.1") {
			t.Errorf("%q: gateways: %+v", names, seen)
		}
		want := public.Unlisted
		if names == spec.NamesPublic {
			want = spec.DefaultProbes().Unlisted
		}
		if got := seen["unlisted-host-blocked"].Probes.Unlisted; got != want {
			t.Errorf("%q: the unlisted address is %v", names, got)
		}
	}
}

func TestCapabilitiesByName(t *testing.T) {
	status := func(bounding string) map[string]string {
		const zero = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
		s := "Name:\tapp\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t\n" + zero + "CapBnd:\t" + bounding + "\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
		return map[string]string{"/proc/self/status": s, "/proc/1/status": s}
	}
	for bounding, want := range map[string]string{
		"0000000000000000": "",
		"0000000000000400": "", // NET_BIND_SERVICE
		"0000000000002000": "NET_RAW (CapBnd): `cap_drop: [ALL]`",
		"00000000a80425fb": "NET_RAW (CapBnd), SETUID (CapBnd), SETGID (CapBnd): ", // Docker's default
		"0000000000280000": "SYS_ADMIN (CapBnd), SYS_PTRACE (CapBnd): ",
		"0000000000001000": "NET_ADMIN (CapBnd): ",
	} {
		e := tree(t, status(bounding))
		got := examine(t.Context(), spec.Check{Name: "no-capabilities", Names: unfenced}, e)
		if (got.result == spec.OK) != (want == "") || !strings.Contains(got.detail, want) {
			t.Errorf("%s: %+v", bounding, got)
		}
	}
	want(t, tree(t, status("0")), spec.Check{Name: "no-capabilities", Names: []string{"NET_RAW", "FLY"}}, spec.Untold, "no capability is called FLY")
}

func TestNamesSink(t *testing.T) {
	c := spec.Check{Name: "names-sink", Addr: netip.MustParseAddr("127.9.9.9")} // nobody listens there
	for _, tt := range []struct {
		name   string
		dns    gateDNS
		result spec.Result
		detail string
	}{
		{"the sink", gateDNS{wildcard: "127.9.9.9"}, spec.OK, ""},
		{"somewhere else", gateDNS{wildcard: "127.9.9.8"}, spec.Failed, "not 127.9.9.9"},
		{"blocked", gateDNS{}, spec.Failed, "not 127.9.9.9"},
	} {
		e := tree(t, nil)
		tt.dns.serve(t, e)
		want(t, e, c, tt.result, tt.detail)
	}
}

func TestAllowedByAddress(t *testing.T) {
	c := spec.Check{Name: "allowed:a.test", Host: "a.test", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for _, tt := range []struct {
		name   string
		dns    gateDNS
		result spec.Result
		detail string
	}{
		{"the same", gateDNS{pins: map[string][]string{"a.test.": {"192.0.2.1"}}}, spec.OK, ""},
		{"one more", gateDNS{pins: map[string][]string{"a.test.": {"192.0.2.1", "192.0.2.2"}}}, spec.Failed, "192.0.2.2] from the gate"},
		{"unknown", gateDNS{}, spec.Failed, "from the gate"},
	} {
		e := tree(t, nil)
		tt.dns.serve(t, e)
		want(t, e, c, tt.result, tt.detail)
	}
	want(t, tree(t, nil), spec.Check{Name: "allowed:a.test", Host: "a.test"}, spec.Untold, "no host and port")
}

// Where nobody tells what becomes of packets none is sent, and what was to be
// proven by one is not.
func TestJudgeWithoutAGate(t *testing.T) {
	e := tree(t, nil)
	e.aside = true
	gateDNS{instance: "x"}.serve(t, e) // a name server, and no gate of ours
	probes := spec.DefaultProbes()
	s := e.judge(t.Context(), []spec.Check{{Name: "gate-answers"}, {Name: "unlisted-host-blocked", Probes: &probes}, {Name: "raw-sockets-refused"}})
	if len(s.Events) != 3 || s.Events[0].Result != spec.OK || s.Events[1].Result != spec.Untold || !strings.Contains(s.Events[1].Detail, "none was sent") || s.Holds() {
		t.Errorf("%+v", s)
	}
	if len(e.ports.used) != 0 {
		t.Errorf("sent to %v", e.ports.used)
	}
}

// Who is silent has not refused, and neither the gate's word nor anybody's can
// make it so where a program is about to be started.
func TestSilentIsNoRefusal(t *testing.T) {
	mute, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	to := []target{{"udp", netip.MustParseAddrPort(mute.LocalAddr().String())}}
	for aside, want := range map[bool]spec.Result{true: spec.Untold, false: spec.OK} {
		e := tree(t, nil)
		e.aside = aside
		if got := e.closed(t.Context(), to, somePayload); got.result != want || (len(got.probes) == 0) != aside {
			t.Errorf("aside %v: %+v", aside, got)
		}
	}
}

// A refusal that the gate has no record of is none, unless the kernel had no way.
func TestVerdictsOfNobody(t *testing.T) {
	probe := spec.Probe{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("198.51.100.1"), Port: 443}
	for routes, want := range map[string]spec.Result{routesHead + toAll: spec.Untold, routesHead + toLink: spec.OK} {
		e := tree(t, map[string]string{"/proc/net/route": routes})
		gateDNS{silentChaos: true}.serve(t, e)
		got := report.Join(spec.Check{Name: "icmp-closed"}, spec.Event{Result: spec.OK, Probes: []spec.Probe{probe}}, e.verdicts(t.Context(), probe, 0))
		if got.Result != want {
			t.Errorf("%+v", got)
		}
	}
	for _, said := range []struct {
		text string
		want spec.Result
	}{{"7 rejected unlisted", spec.OK}, {"7 accepted", spec.Failed}, {"5 rejected unlisted", spec.Untold}, {"7 rejected", spec.Untold}, {"nonsense", spec.Untold}} {
		e := tree(t, map[string]string{"/proc/net/route": routesHead + toAll})
		gateDNS{said: said.text}.serve(t, e)
		got := report.Join(spec.Check{Name: "icmp-closed"}, spec.Event{Result: spec.OK, Probes: []spec.Probe{probe}}, e.verdicts(t.Context(), probe, 5))
		if got.Result != said.want {
			t.Errorf("%q: %+v", said.text, got)
		}
	}
}

func FuzzParseRoutes(f *testing.F) {
	f.Add([]byte(routesHead + toAll + toLink))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseRoutes(b)
		if err == nil && slices.ContainsFunc(all, func(r route) bool { return !r.to.Addr().Is4() || !r.gateway.Is4() }) {
			t.Fatalf("%v", all)
		}
		parseRoutes6(b)
	})
}
