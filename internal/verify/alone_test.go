package verify

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/netguard"
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
		{"an empty list", "", "", "198.51.100.1", true},
		{"a list without its head", toLink, "", "198.51.100.1", true},
		{"a list that is cut", routesHead + strings.TrimSuffix(toLink, "\n"), "", "198.51.100.1", true},
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
	const untold = "routes: the list is not whole"
	for routes, want := range map[string]string{
		routesHead + toLink + toAll: "172.28.0.1 172.28.77.1",
		routesHead + toLink:         "172.28.77.1",
		routesHead:                  "",
		"":                          untold,
		toAll:                       untold,
		routesHead + toAll[:20]:     untold,
		routesHead + "eth0\n":       `routes: "eth0"`,
	} {
		var got []string
		all, err := tree(t, map[string]string{"/proc/net/route": routes}).gateways()
		for _, a := range all {
			got = append(got, a.String())
		}
		if err != nil {
			got = append(got, err.Error())
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
		if a := seen["resolves:api.allowed.test"].Addrs; len(a) != 2 || seen["resolves:db"].Name == "" || seen["resolves:localhost"].Name != "" || seen["resolves"].Name != "" {
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

// What the plan is made from may be missing, empty or cut: what was to be checked
// by it is there all the same, and cannot be told.
func TestAlonePlanOfWhatIsNotWhole(t *testing.T) {
	const hosts = "127.0.0.1 localhost\n203.0.113.9 api.allowed.test\n"
	for _, tt := range []struct {
		name   string
		files  map[string]string
		check  string
		detail string
	}{
		{"no routes file", map[string]string{"/etc/hosts": hosts}, "gateway-closed", "no such file"},
		{"an empty one", map[string]string{"/etc/hosts": hosts, "/proc/net/route": ""}, "gateway-closed", "not whole"},
		{"one that is cut", map[string]string{"/etc/hosts": hosts, "/proc/net/route": routesHead + toAll[:30]}, "gateway-closed", "not whole"},
		{"no hosts file", map[string]string{"/proc/net/route": routesHead}, "resolves", "no such file"},
		{"an empty one", map[string]string{"/proc/net/route": routesHead, "/etc/hosts": ""}, "resolves", "not whole"},
		{"one without loopback", map[string]string{"/proc/net/route": routesHead, "/etc/hosts": "203.0.113.9 api.allowed.test\n"}, "resolves", "not whole"},
		{"one that is cut", map[string]string{"/proc/net/route": routesHead, "/etc/hosts": strings.TrimSuffix(hosts, "st\n")}, "resolves", "not whole"},
	} {
		e := tree(t, tt.files)
		found := false
		for _, c := range e.alone(spec.DefaultProbes(), "") {
			if c.Name == tt.check {
				found = true
				want(t, e, c, spec.Untold, tt.detail)
			}
			if c.Kind() == "gateway-closed" && c.Addr.IsValid() || c.Kind() == "resolves" && c.Host != "" && tt.check == "resolves" {
				t.Errorf("%s: %+v", tt.name, c)
			}
		}
		if !found {
			t.Errorf("%s: no %s", tt.name, tt.check)
		}
	}
}

// The addresses that public-only dials are of the kinds that are inside, and
// nobody's who may answer here.
func TestInward(t *testing.T) {
	classes := []netguard.Class{netguard.Private, netguard.Private, netguard.Private, netguard.Shared, netguard.Documentation}
	hosts := map[string][]netip.Addr{"db": {netip.MustParseAddr("10.255.255.254")}, "cache": {netip.MustParseAddr("10.255.255.253")}}
	for i, a := range inward(nil) {
		if netguard.Classify(a) != classes[i] {
			t.Errorf("%v", a)
		}
	}
	if got := inward(hosts); len(got) != len(classes) || got[0] != netip.MustParseAddr("10.255.255.252") || got[1] != inward(nil)[1] {
		t.Errorf("%v", got)
	}
}

func TestPublicOnly(t *testing.T) {
	probes := spec.DefaultProbes()
	probes.Metadata = netip.MustParseAddr("127.9.9.9") // nobody listens there
	listener, err := net.Listen("tcp4", "127.9.9.8:80")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, tt := range []struct {
		name   string
		addrs  string
		dns    gateDNS
		result spec.Result
		detail string
		probes int
	}{
		{"all refuse", "127.9.9.7 127.9.9.6", gateDNS{}, spec.OK, "refused on ports 80 and 443: 127.9.9.9 127.9.9.7 127.9.9.6", 6},
		{"one answers", "127.9.9.7 127.9.9.8", gateDNS{}, spec.Failed, "tcp 127.9.9.8:80 answers", 0},
		{"none to dial", "", gateDNS{}, spec.Untold, "no addresses", 0},
		{"a public one", "127.9.9.7 44.10.9.9", gateDNS{}, spec.Untold, "no addresses that are not public", 0},
		{"a resolver that knows everything", "127.9.9.7", gateDNS{wildcard: "192.0.2.9"}, spec.Failed, "an unlisted name", 0},
	} {
		e := tree(t, map[string]string{"/etc/hosts": ""})
		e.aside = true
		tt.dns.serve(t, e)
		c := spec.Check{Name: "public-only", Probes: &probes}
		for _, a := range strings.Fields(tt.addrs) {
			c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
		}
		got := examine(t.Context(), c, e)
		if got.result != tt.result || !strings.Contains(got.detail, tt.detail) || len(got.probes) != tt.probes {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	// Where the first of them answers, none of the others is dialled.
	probes.Metadata = netip.MustParseAddr("127.9.9.8")
	e := tree(t, map[string]string{"/etc/hosts": ""})
	gateDNS{}.serve(t, e)
	want(t, e, spec.Check{Name: "public-only", Probes: &probes, Addrs: []netip.Addr{netip.MustParseAddr("127.9.9.7")}}, spec.Failed, "tcp 127.9.9.8:80 answers")
	for u := range e.ports.used {
		if u.target.addr.Addr() != probes.Metadata {
			t.Errorf("dialled %v", u.target)
		}
	}
}

func TestCapabilitiesByName(t *testing.T) {
	status := func(bounding string) map[string]string {
		const zero = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
		s := "Name:\tapp\nThreads:\t1\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t\n" + zero + "CapBnd:\t" + bounding + "\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
		return map[string]string{"/proc/self/status": s, "/proc/1/status": s}
	}
	for bounding, want := range map[string]string{
		"0000000000000000": "",
		"0000000000000400": "", // NET_BIND_SERVICE
		"0000000000002000": "NET_RAW (CapBnd)",
		"00000000a80425fb": "NET_RAW (CapBnd), SETUID (CapBnd), SETGID (CapBnd)", // Docker's default
		"0000000000280000": "SYS_ADMIN (CapBnd), SYS_PTRACE (CapBnd)",
		"0000000000001000": "NET_ADMIN (CapBnd)",
	} {
		e := tree(t, status(bounding))
		got := examine(t.Context(), spec.Check{Name: "no-capabilities", Names: unfenced}, e)
		if (got.result == spec.OK) != (want == "") || !strings.HasSuffix(got.detail, want) || (got.hint != "") != (want != "") {
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

func TestResolves(t *testing.T) {
	c := spec.Check{Name: "resolves:a.test", Host: "a.test", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
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
	want(t, tree(t, map[string]string{"/etc/hosts": "127.0.0.1 localhost\n"}), spec.Check{Name: "resolves:a.test", Host: "a.test"}, spec.Untold, "no name and addresses")
	// Only a port makes it a check of what is reached.
	want(t, tree(t, nil), spec.Check{Name: "allowed:a.test", Host: "a.test", Addrs: c.Addrs}, spec.Untold, "no host and port")
}

// A link leads to somebody, or it fails; and what else its peer may have is closed.
// What the gate does not tell cannot be told.
func TestLinkChecks(t *testing.T) {
	peer, err := net.Listen("tcp4", "127.9.9.8:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	at := peer.Addr().String()
	port := netip.MustParseAddrPort(at).Port()
	const hosts = "127.0.0.1 localhost\n10.9.9.8 db\n10.9.9.8 too.test\n10.9.9.7 cache\n203.0.113.9 api.test\n"
	plan := func(g gateDNS, hosts string) (*env, map[string]spec.Check) {
		e := tree(t, map[string]string{"/etc/hosts": hosts})
		e.aside = true
		g.serve(t, e)
		seen := map[string]spec.Check{}
		for _, c := range e.linkChecks(t.Context()) {
			if _, known := kinds[c.Kind()]; !known || seen[c.Name].Name != "" || !sends(c) {
				t.Errorf("%s: unknown, there twice, or said to send nothing", c.Name)
			}
			seen[c.Name] = c
		}
		return e, seen
	}
	links := map[string][]string{spec.LinkName("db"): {"10.9.9.8:5432", "10.9.9.8:22"}, spec.LinkName("cache"): {"10.9.9.7:6379"}}
	_, seen := plan(gateDNS{links: links}, hosts)
	if len(seen) != 5 || seen["link:db:22"].Port != 22 || seen["link:db:5432"].Addr != netip.MustParseAddr("10.9.9.8") || seen["link:cache:6379"].Port != 6379 ||
		!strings.Contains(seen["link-closed:db"].Skip, "too.test") || seen["link-closed:cache"].Skip != "" || !slices.Equal(seen["link-closed:cache"].Ports, []uint16{22, 53, 80, 443, 2375}) ||
		slices.Contains(seen["link-closed:db"].Ports, 22) || seen["link-closed:db"].Addr != netip.MustParseAddr("10.9.9.8") {
		t.Errorf("%+v", seen)
	}
	for name, g := range map[string]gateDNS{"no answer": {deaf: true}, "nonsense": {links: map[string][]string{spec.LinkName("db"): {"nonsense"}}}} {
		e, seen := plan(g, hosts)
		if len(seen) != 1 {
			t.Errorf("%s: %+v", name, seen)
		}
		want(t, e, seen["link"], spec.Untold, "does not tell where links lead")
	}
	if _, seen := plan(gateDNS{}, hosts); len(seen) != 0 {
		t.Errorf("no link: %+v", seen)
	}
	e := tree(t, nil)
	c := spec.Check{Name: fmt.Sprintf("link:db:%d", port), Addr: netip.MustParseAddr("127.9.9.8"), Port: port}
	want(t, e, c, spec.OK, "")
	c.Addr = netip.MustParseAddr("127.9.9.7")
	want(t, e, c, spec.Failed, "connection refused")
	if got := examine(t.Context(), c, e); !strings.Contains(got.hint, "see that the service there is up") {
		t.Errorf("%+v", got)
	}
}

// What is wrong and what to do about it are two things, and stand apart in JSON; a line
// has both. Corral's own proof has advice of its own.
func TestAdvice(t *testing.T) {
	for _, tt := range []struct {
		status, check, detail, hint string
	}{
		{statusFile(0, 0, "", noCaps, 1, 2), "non-root", "this process (agent) runs as root", "in compose.yaml: `user: \"1000:1000\"`, say"},
		{statusFile(spec.WorkerUID, 1000, "", noCaps, 1, 2), "user-not-the-gates", "this process (agent) runs as uid 64999, which is the gate's own", "choose another; in compose.yaml: `user: \"1000:1000\"`, say"},
		{statusFile(1000, 1000, "", "0000000000002000", 1, 2), "no-capabilities", "this process (agent) has NET_RAW (CapBnd)", "in compose.yaml: `cap_drop: [ALL]`"},
		{statusFile(1000, 1000, "", noCaps, 0, 2), "no-new-privs", "this process (agent) may gain privileges", "in compose.yaml: `security_opt: [no-new-privileges]`"},
	} {
		e := tree(t, map[string]string{"/proc/self/status": tt.status, "/proc/1/status": tt.status})
		e.aside = true
		e.dns = netip.MustParseAddrPort("127.0.0.1:1") // nobody is there
		s := e.judge(t.Context(), []spec.Check{{Name: tt.check, Names: unfenced}})
		if len(s.Events) != 1 || s.Events[0].Detail != tt.detail || s.Events[0].Hint != tt.hint {
			t.Errorf("%s: %+v", tt.check, s.Events)
		}
		e.aside = false
		if tt.check == "non-root" || tt.check == "no-new-privs" {
			if got := examine(t.Context(), spec.Check{Name: tt.check}, e); got.detail != tt.detail || got.hint != "" {
				t.Errorf("%s: %+v", tt.check, got)
			}
		}
	}
}

// A gate that hangs is there: who is told so knows where to look, and within the time
// of one question that is asked as often as any.
func TestAloneBesideAGateThatHangs(t *testing.T) {
	mute, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	e := tree(t, map[string]string{"/proc/net/route": routesHead + toAll, "/etc/hosts": "127.0.0.1 localhost\n203.0.113.9 api.allowed.test\n"})
	e.dns = netip.MustParseAddrPort(mute.LocalAddr().String())
	var out strings.Builder
	start := time.Now()
	err = verifyAlone(t.Context(), []string{"--json"}, e, &out)
	if took := time.Since(start); err == nil || took < answerLimit || took > 2*answerLimit {
		t.Errorf("after %v: %v", took, err)
	}
	want := fmt.Sprintf(`"check":"gate-answers","result":"failed","detail":"a gate, or something in its place, is here and does not answer: %v is silent: asked every 50ms, and no answer within 2s","hint":%q`, e.dns, hangHint)
	if !strings.Contains(out.String(), want) {
		t.Errorf("%s", out.String())
	}
	if len(e.ports.used) != 0 {
		t.Errorf("sent to %v", e.ports.used)
	}
}

// Where no gate is, and no network any more, the same checks are listed as where one
// is; a gate's own word that it has no gateway is another thing.
func TestAloneWithoutANetwork(t *testing.T) {
	files := map[string]string{"/proc/net/route": routesHead, "/etc/hosts": "127.0.0.1 localhost\n"}
	for names, skipped := range map[string]bool{"": false, spec.NamesBlocked: true} {
		found := 0
		e := tree(t, files)
		for _, c := range e.alone(spec.DefaultProbes(), names) {
			if c.Name == "gateway-closed" {
				if found++; (c.Skip != "") != skipped {
					t.Errorf("%q: %+v", names, c)
				}
				if !skipped {
					want(t, e, c, spec.Untold, "nothing to probe")
				}
			}
		}
		if found != 1 {
			t.Errorf("%q: gateway-closed is there %d times", names, found)
		}
	}
}

// With --failed the lines are those of what does not hold, and the tally is of all.
func TestAloneOptions(t *testing.T) {
	status := statusFile(1000, 1000, "", noCaps, 0, 2)
	e := tree(t, map[string]string{"/proc/self/status": status, "/proc/1/status": status})
	e.dns = netip.MustParseAddrPort("127.0.0.1:1") // nobody is there
	var all, failed strings.Builder
	for out, args := range map[*strings.Builder][]string{&all: nil, &failed: {"--failed"}} {
		if err := verifyAlone(t.Context(), args, e, out); exit.Report(io.Discard, program, err) != exit.Failed {
			t.Errorf("%q: %v", args, err)
		}
	}
	var want strings.Builder
	for line := range strings.Lines(all.String()) {
		if !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "skip ") {
			want.WriteString(line)
		}
	}
	if failed.String() != want.String() || want.Len() == all.Len() || !strings.Contains(want.String(), "FAIL no-new-privs: this process (agent) may gain privileges; in compose.yaml: ") {
		t.Errorf("%s\nof\n%s", failed.String(), all.String())
	}
	for _, args := range [][]string{{"--failed", "--json"}, {"--json", "--json"}, {"--quiet"}} {
		if err := verifyAlone(t.Context(), args, e, &all); exit.Report(io.Discard, program, err) != exit.Invalid {
			t.Errorf("%q: %v", args, err)
		}
	}
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
// make it so.
func TestSilentIsNoRefusal(t *testing.T) {
	mute, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	to := []target{{"udp", netip.MustParseAddrPort(mute.LocalAddr().String())}}
	for _, aside := range []bool{true, false} {
		e := tree(t, nil)
		e.aside = aside
		if got := e.closed(t.Context(), to, somePayload); got.result != spec.Untold || len(got.probes) != 1 {
			t.Errorf("aside %v: %+v", aside, got)
		}
	}
}

// A refusal that the gate has no record of is none, unless the kernel had no way
// and said so of that very probe.
func TestVerdictsOfNobody(t *testing.T) {
	probe := spec.Probe{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("198.51.100.1"), Port: 443}
	other := probe
	other.Source++
	for _, tt := range []struct {
		routes string
		lost   spec.Probe
		want   spec.Result
	}{
		{routesHead + toAll, probe, spec.Untold},
		{routesHead + toLink, probe, spec.OK},
		{routesHead + toLink, other, spec.Untold},
		{"", probe, spec.Untold},
	} {
		e := tree(t, map[string]string{"/proc/net/route": tt.routes})
		gateDNS{silentChaos: true}.serve(t, e)
		e.ports.lose(tt.lost)
		got := report.Join(spec.Check{Name: "icmp-closed"}, spec.Event{Result: spec.OK, Probes: []spec.Probe{probe}}, e.verdicts(t.Context(), probe, 0), nil)
		if got.Result != tt.want {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
	for _, said := range []struct {
		text string
		want spec.Result
	}{{"7 rejected unlisted", spec.OK}, {"7 accepted", spec.Failed}, {"5 rejected unlisted", spec.Untold}, {"7 rejected", spec.Untold}, {"nonsense", spec.Untold}} {
		e := tree(t, map[string]string{"/proc/net/route": routesHead + toAll})
		gateDNS{said: said.text}.serve(t, e)
		got := report.Join(spec.Check{Name: "icmp-closed"}, spec.Event{Result: spec.OK, Probes: []spec.Probe{probe}}, e.verdicts(t.Context(), probe, 5), nil)
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
