package gate

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/spec"
)

var here = container{resolvers: []netip.Addr{addr("192.0.2.53")}, gateway: addr("172.28.0.1")}

// vars are variables, NAME=VALUE without the prefix.
func vars(settings ...string) map[string]string {
	var environ []string
	for _, s := range settings {
		environ = append(environ, settingPrefix+s)
	}
	return given(environ)
}

// base is what every such document has.
func base(change func(*spec.Gate)) spec.Gate {
	g := spec.Gate{Version: spec.Version, Class: spec.ClassPinned, Refresh: spec.RefreshAuto, Probes: spec.DefaultProbes()}
	change(&g)
	return g
}

func TestGateOf(t *testing.T) {
	name := func(domain string, ports ...uint16) spec.Name {
		return spec.Name{Domain: domain, Ports: ports, Liveness: true, Origin: "CORRAL_ALLOW"}
	}
	for _, tt := range []struct {
		what string
		vars map[string]string
		want spec.Gate
	}{
		{"names", vars("ALLOW=api.example.com, GitHub.com.:22+443 ,any.example.com:any,"), base(func(g *spec.Gate) {
			any := name("any.example.com")
			any.AnyPort = true
			g.Names, g.Resolvers = []spec.Name{name("api.example.com", 443, 80), name("github.com", 22, 443), any}, here.resolvers
		})},
		{"a name of a service, as a policy takes it", vars("ALLOW=_acme.a_b.example.com:443"), base(func(g *spec.Gate) {
			g.Names, g.Resolvers = []spec.Name{name("_acme.a_b.example.com", 443)}, here.resolvers
		})},
		{"on several lines", vars("ALLOW=a.example.com,\n  bücher.example:65535"), base(func(g *spec.Gate) {
			g.Names, g.Resolvers = []spec.Name{name("a.example.com", 443, 80), name("xn--bcher-kva.example", 65535)}, here.resolvers
		})},
		{"an own resolver", vars("ALLOW=a.example.com:1", "RESOLVERS=192.0.2.1,192.0.2.2,192.0.2.1"), base(func(g *spec.Gate) {
			g.Names, g.Resolvers = []spec.Name{name("a.example.com", 1)}, []netip.Addr{addr("192.0.2.1"), addr("192.0.2.2")}
		})},
		{"no liveness", vars("LIVENESS=off", "ALLOW=a.example.com:443"), base(func(g *spec.Gate) {
			n := name("a.example.com", 443)
			n.Liveness = false
			g.Names, g.Resolvers = []spec.Name{n}, here.resolvers
		})},
		{"liveness, on demand", vars("LIVENESS=on", "ALLOW=a.example.com:443"), base(func(g *spec.Gate) {
			g.Names, g.Resolvers = []spec.Name{name("a.example.com", 443)}, here.resolvers
		})},
		{"public", vars("EGRESS=public"), base(func(g *spec.Gate) { g.Class, g.Resolvers = spec.ClassPublic, here.resolvers })},
		{"nothing but links", vars("EGRESS=none", "LINKS=db=172.28.0.3:5432,cache=172.28.0.4:6379"), base(func(g *spec.Gate) {
			g.Class = spec.ClassNone
			g.Links = []spec.Link{{Name: "db", Addr: addr("172.28.0.3"), Port: 5432}, {Name: "cache", Addr: addr("172.28.0.4"), Port: 6379}}
		})},
		{"the ends of what a link may lead to", vars("EGRESS=none", "LINKS=a=10.0.0.0:52,b=172.31.255.255:54,c.d-e=192.168.0.2:2374,x1=100.127.255.255:2377"), base(func(g *spec.Gate) {
			g.Class = spec.ClassNone
			g.Links = []spec.Link{{Name: "a", Addr: addr("10.0.0.0"), Port: 52}, {Name: "b", Addr: addr("172.31.255.255"), Port: 54},
				{Name: "c.d-e", Addr: addr("192.168.0.2"), Port: 2374}, {Name: "x1", Addr: addr("100.127.255.255"), Port: 2377}}
		})},
		{"clients, one through a port that the engine publishes, and one of the machine's", vars("EGRESS=none", "CLIENTS=172.28.0.2:5432,8.8.8.8:5432,172.28.0.1:5432"), base(func(g *spec.Gate) {
			g.Class = spec.ClassNone
			g.Clients = []spec.Client{{Addr: addr("172.28.0.2"), Port: 5432}, {Addr: addr("8.8.8.8"), Port: 5432}, {Addr: addr("172.28.0.1"), Port: 5432}}
		})},
		{"host ports", vars("EGRESS=none", "HOST_PORTS=8081,8082"), base(func(g *spec.Gate) {
			g.Class, g.Gateway, g.HostPorts = spec.ClassNone, here.gateway, []uint16{8081, 8082}
		})},
		{"the rest", vars("NAMES=sink", "REFRESH=manual", "PIN_GRACE=90m", "NEVER=10.1.2.3/8,192.0.2.7", "PROBES=unlisted=44.10.9.9"), base(func(g *spec.Gate) {
			g.SinkNames, g.Refresh, g.PinGrace = true, spec.RefreshManual, 90*time.Minute
			g.Never = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32")}
			g.Probes.Unlisted = addr("44.10.9.9")
		})},
		{"the defaults in words", vars("EGRESS=pinned", "NAMES=blocked", "REFRESH=auto", "LIVENESS=on"), base(func(*spec.Gate) {})},
		{"empty ones", vars("EGRESS=", "ALLOW=", "PIN_GRACE="), base(func(*spec.Gate) {})},
	} {
		got, err := gateOf(tt.vars, here)
		if err != nil {
			t.Errorf("%s: %v", tt.what, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s:\n%s", tt.what, diff)
		}
	}
}

// A mistake is told with its variable, what is wrong and the right form, and
// grants nothing.
func TestGateOfMistakes(t *testing.T) {
	for _, tt := range []struct {
		vars map[string]string
		want []string
	}{
		{vars("ALLOW=1.2.3.4"), []string{`CORRAL_ALLOW: "1.2.3.4" is an IP address, not a name (write the name that it belongs to); write it like api.example.com,github.com:22+443,any.example.com:any`}},
		{vars("ALLOW=https://a.example.com/x"), []string{`is a URL, not a name (write a.example.com)`}},
		{vars("ALLOW=*.example.com"), []string{"is a wildcard"}},
		{vars("ALLOW=10.0.0.0/8"), []string{"is a range of addresses"}},
		{vars("ALLOW=[::1]:443"), []string{"is an IP address"}},
		{vars("ALLOW=db:443"), []string{`"db" is a single label`}},
		{vars("ALLOW=user@a.example.com:443"), []string{"holds a user name"}},
		{vars("ALLOW=a_.example.com;b.example.com"), []string{"must be of letters"}},
		{vars("ALLOW=a.example.com b.example.com"), []string{"white space"}},
		{vars("ALLOW=a.example.com:"), []string{`"" is not a port`}},
		{vars("ALLOW=a.example.com:0"), []string{`"0" is not a port`}},
		{vars("ALLOW=a.example.com:65536"), []string{`"65536" is not a port`}},
		{vars("ALLOW=a.example.com:443+53"), []string{`CORRAL_ALLOW: "a.example.com:443+53": 53 is the port of name servers, and lookups would carry anything out: leave it out`}},
		{vars("ALLOW=a.example.com:853"), []string{"853 is the port of name servers"}},
		{vars("ALLOW=a.example.com:0443"), []string{`"0443" is not a port`}},
		{vars("ALLOW=a.example.com:443+443"), []string{"port 443 is listed twice"}},
		{vars("ALLOW=a.example.com:443+"), []string{`"" is not a port`}},
		{vars("ALLOW=a.example.com:any+443"), []string{`"any" is not a port`}},
		{vars("ALLOW=a.example.com:+443"), []string{`"" is not a port`}},
		{vars("ALLOW=a.example.com:443:80"), []string{"CORRAL_ALLOW"}},
		{vars("ALLOW=a.example.com,A.example.com."), []string{"a.example.com is listed twice: write its ports together"}},
		{vars("ALLOW=github.com:22,443"), []string{`CORRAL_ALLOW: "443" is no name: ports are joined by +, as in github.com:22+443; write it like`}},
		{vars("ALLOW=443,a.example.com"), []string{`"443" ends in a number`}},
		{vars("ALLOW=,"), []string{"lists nothing"}},
		{vars("EGRESS=all"), []string{`CORRAL_EGRESS: "all" is none of its words; write it like pinned, public or none`}},
		{vars("EGRESS=none", "ALLOW=a.example.com"), []string{"CORRAL_ALLOW: names are for CORRAL_EGRESS=pinned"}},
		{vars("EGRESS=public", "ALLOW=a.example.com"), []string{"CORRAL_ALLOW: names are for CORRAL_EGRESS=pinned"}},
		{vars("EGRESS=public", "NAMES=sink"), []string{"CORRAL_NAMES: with CORRAL_EGRESS=public"}},
		{vars("NAMES=Sink"), []string{"CORRAL_NAMES"}},
		{vars("LINKS=172.28.0.3:5432"), []string{"has no name"}},
		{vars("LINKS=db=172.28.0.3"), []string{`"" is not a port`}},
		{vars("LINKS=db=:5432"), []string{"is not the IPv4 address"}},
		{vars("LINKS=db=db.example.com:5432"), []string{"is not the IPv4 address"}},
		{vars("LINKS=db=127.0.0.1:5432"), []string{"127.0.0.1 is refused: loopback"}},
		{vars("LINKS=db=0.0.0.0:5432"), []string{"0.0.0.0 is refused: unspecified"}},
		{vars("LINKS=db=224.0.0.1:5432"), []string{"224.0.0.1 is refused: multicast"}},
		{vars("LINKS=db=255.255.255.255:5432"), []string{"255.255.255.255 is refused: reserved"}},
		{vars("LINKS=db=169.254.169.254:80"), []string{"169.254.169.254 is refused: metadata"}},
		{vars("LINKS=db=100.100.100.200:80"), []string{"100.100.100.200 is refused: metadata"}},
		{vars("LINKS=db=169.254.1.1:80"), []string{"169.254.1.1 is refused: link-local"}},
		{vars("LINKS=db=8.8.8.8:443"), []string{"8.8.8.8 is refused: public: globally routable; a link leads to a container, at a private or shared address"}},
		{vars("LINKS=db=172.32.0.0:5432"), []string{"172.32.0.0 is refused: public"}},
		{vars("LINKS=db=172.28.0.1:8081"), []string{`CORRAL_LINKS: link "db": 172.28.0.1 is refused: it is this machine, whose ports are host ports`}},
		{vars("LINKS=db=172.28.0.3:53"), []string{`"db=172.28.0.3:53": 53 is the port of name servers`}},
		{vars("LINKS=db=172.28.0.3:2375"), []string{"2375 is the port of container engines"}},
		{vars("LINKS=db=172.28.0.3:2376"), []string{"2376 is the port of container engines"}},
		{vars("LINKS=Db=172.28.0.3:5432"), []string{"lower-case letters"}},
		{vars("LINKS==172.28.0.3:5432"), []string{"lower-case letters"}},
		{vars("LINKS=localhost=172.28.0.3:5432"), []string{"neither localhost nor a number"}},
		{vars("LINKS=10.0.0.1=172.28.0.3:5432"), []string{"neither localhost nor a number"}},
		{vars("LINKS=db=172.28.0.3:5432,db=172.28.0.4:5432"), []string{"means something else already"}},
		{vars("LINKS=corral-host=172.28.0.3:5432"), []string{"means something else already"}},
		{vars("CLIENTS=172.28.0.0/16:5432"), []string{"another container"}},
		{vars("CLIENTS=172.28.0.2"), []string{`"" is not a port`}},
		{vars("CLIENTS=127.0.0.1:5432"), []string{"127.0.0.1 is refused: loopback"}},
		{vars("CLIENTS=169.254.169.254:5432"), []string{"169.254.169.254 is refused: metadata"}},
		{vars("CLIENTS=255.255.255.255:5432"), []string{"255.255.255.255 is refused: reserved"}},
		{vars("HOST_PORTS=2375"), []string{"container engines"}},
		{vars("HOST_PORTS=53"), []string{"name servers"}},
		{vars("HOST_PORTS=8081+8082"), []string{"is not a port"}},
		{vars("RESOLVERS=127.0.0.11"), []string{`CORRAL_RESOLVERS: "127.0.0.11" is not the IPv4 address of a name server outside 127.0.0.0/8`}},
		{vars("RESOLVERS=2001:db8::1"), []string{"CORRAL_RESOLVERS"}},
		{vars("RESOLVERS=192.0.2.1:53"), []string{"CORRAL_RESOLVERS"}},
		{vars("PROBES=unlist=1.2.3.4,ipv6=1.2.3.4"), []string{`CORRAL_PROBES: "unlist=1.2.3.4"`, `CORRAL_PROBES: "ipv6=1.2.3.4"`}},
		{vars("REFRESH=1h"), []string{"CORRAL_REFRESH"}},
		{vars("PIN_GRACE=0s"), []string{"CORRAL_PIN_GRACE"}},
		{vars("PIN_GRACE=-1h"), []string{"CORRAL_PIN_GRACE"}},
		{vars("PIN_GRACE=3600"), []string{"CORRAL_PIN_GRACE"}},
		{vars("LIVENESS=false"), []string{"CORRAL_LIVENESS"}},
		{vars("NEVER=somewhere"), []string{"CORRAL_NEVER"}},
		{vars("NEVER=::ffff:10.0.0.0/104"), []string{"CORRAL_NEVER"}},
		{vars("ALOW=a.example.com"), []string{"CORRAL_ALOW: there is no such setting; did you mean CORRAL_ALLOW?"}},
		{vars("ALOW="), []string{"CORRAL_ALOW: there is no such setting"}},
		{vars("SPEC={}"), []string{"CORRAL_SPEC: there is no such setting"}},
		{vars("ALLOW=x,a.example.com:0", "EGRESS=?", "LINKS=a", "SOMETHING=1"), []string{
			`"x" is a single label`, `"0" is not a port`, "CORRAL_EGRESS", "CORRAL_LINKS", "CORRAL_SOMETHING"}},
	} {
		g, err := gateOf(tt.vars, here)
		if err == nil {
			t.Errorf("%v: %+v", tt.vars, g)
			continue
		}
		if g.Class != spec.ClassNone || len(g.Names)+len(g.Links)+len(g.HostPorts)+len(g.Clients) > 0 {
			t.Errorf("%v: granted %+v", tt.vars, g)
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %v, want %q", tt.vars, err, w)
			}
		}
		if len(tt.want) > 1 && len(strings.Split(err.Error(), "\n")) < len(tt.want) {
			t.Errorf("%v: not a line each: %v", tt.vars, err)
		}
	}
	nowhere := container{}
	for _, s := range []string{"ALLOW=a.example.com", "EGRESS=public"} {
		if _, err := gateOf(vars(s), nowhere); err == nil || !strings.Contains(err.Error(), "CORRAL_RESOLVERS: it must name a name server here; Docker puts its own") {
			t.Errorf("%s without a resolver: %v", s, err)
		}
	}
	if _, err := gateOf(vars("HOST_PORTS=8081"), nowhere); err == nil || !strings.Contains(err.Error(), "CORRAL_HOST_PORTS: this container has no default gateway") {
		t.Errorf("%v", err)
	}
	if _, err := gateOf(vars("EGRESS=none"), nowhere); err != nil {
		t.Errorf("nothing is needed where nothing is granted: %v", err)
	}
}

func TestGiven(t *testing.T) {
	got := given([]string{"PATH=/bin", "CORRAL_ALLOW=a=b", "CORRAL_EGRESS=", "CORRALX=1", "corral_allow=x", "MY_CORRAL_ALLOW=x"})
	if len(got) != 2 || got["CORRAL_ALLOW"] != "a=b" {
		t.Errorf("%v", got)
	}
	if names := saying(got); !slices.Equal(names, []string{"CORRAL_ALLOW"}) {
		t.Errorf("%v", names)
	}
}

func TestNameservers(t *testing.T) {
	got := nameservers("# nameserver 192.0.2.9\nnameserver 127.0.0.11\nnameserver 192.0.2.53\n nameserver\t192.0.2.54 \nnameserver 2001:db8::1\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver\noptions x\n")
	if !slices.Equal(got, []netip.Addr{addr("192.0.2.53"), addr("192.0.2.54")}) {
		t.Errorf("%v", got)
	}
}

func TestDefaultGateway(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	const local = "eth0\t00001CAC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
	const empty = "/proc/net/route is not whole"
	route := func(gateway, metric string) string {
		return "eth0\t00000000\t" + gateway + "\t0003\t0\t0\t" + metric + "\t00000000\t0\t0\t0\n"
	}
	for _, tt := range []struct{ what, routes, want string }{
		{"one", head + route("01001CAC", "0") + local, "172.28.0.1"},
		{"the better of two", head + route("02001CAC", "100") + route("01001CAC", "0"), "172.28.0.1"},
		{"no default", head + local, "invalid IP"},
		{"without a gateway", head + route("00000000", "0"), "invalid IP"},
		{"no routes", head, "invalid IP"},
		{"nothing", "", empty},
		{"no head", route("01001CAC", "0"), empty},
		{"cut in a line", strings.TrimSuffix(head+route("01001CAC", "0"), "\t0\n"), empty},
		{"a short line", head + "eth0\t00000000\n", `/proc/net/route: "eth0\t00000000"`},
		{"nonsense", head + route("xyz", "0"), `/proc/net/route: "eth0\t00000000\txyz\t`},
	} {
		a, err := defaultGateway(tt.routes)
		got := a.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, tt.want) || err != nil && a.IsValid() {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}

// Whatever is written, what comes out is a document that a gate takes, with
// nothing that was not named, or nothing at all.
func FuzzGateOf(f *testing.F) {
	for _, s := range []string{"api.example.com,github.com:22+443,any.example.com:any", "db=172.28.0.3:5432", "172.28.0.2:5432", "8081", "public", "unlisted=1.2.3.4", "90m", "10.0.0.0/8"} {
		f.Add(s, s, s)
	}
	f.Fuzz(func(t *testing.T, allow, links, rest string) {
		values := map[string]string{allowSetting: allow, settingPrefix + "LINKS": links}
		for _, s := range settings {
			if _, set := values[s.name]; !set {
				values[s.name] = rest
				break
			}
		}
		for _, s := range settings[4:] {
			one := map[string]string{s.name: rest}
			if g, err := gateOf(one, here); err == nil && (len(g.Names)+len(g.Links) > 0) {
				t.Fatalf("%s=%q grants %+v", s.name, rest, g)
			}
		}
		g, err := gateOf(values, here)
		if err != nil {
			if len(g.Names)+len(g.Links)+len(g.HostPorts)+len(g.Clients) > 0 {
				t.Fatalf("%q: %+v beside %v", values, g, err)
			}
			return
		}
		for _, n := range g.Names {
			if !strings.Contains(n.Domain, ".") || len(n.Domain) > 253 || !n.AnyPort && len(n.Ports) == 0 {
				t.Fatalf("%q: %+v", values, n)
			}
		}
		for _, l := range g.Links {
			if class := netguard.Classify(l.Addr); class != netguard.Private && class != netguard.Shared || l.Addr == here.gateway || l.Port == dnsPort {
				t.Fatalf("%q: %+v", values, l)
			}
		}
		if len(g.Names) > strings.Count(allow, ",")+1 || len(g.Links) > strings.Count(links, ",")+1 {
			t.Fatalf("%q: %+v", values, g)
		}
	})
}

// docs/gate-settings.md lists every variable.
func TestSettingsAreDocumented(t *testing.T) {
	const file, begin, end = "../../docs/gate-settings.md", "<!-- generated: settings -->\n", "<!-- end -->"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(b), begin)
	_, tail, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s has no place for the list", file)
	}
	var list strings.Builder
	list.WriteString("\n| variable | what it says | written like | default |\n|---|---|---|---|\n")
	for _, s := range settings {
		fmt.Fprintf(&list, "| `%s` | %s | %s | %s |\n", s.name, s.meaning, s.form, s.fallback)
	}
	want := head + begin + list.String() + "\n" + end + tail
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(b) != want {
		t.Errorf("%s does not list what there is (UPDATE=1 accepts)", file)
	}
}

// The document in docs/gate-settings.md is one.
func TestDocumentedDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/gate-settings.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "```json\n")
	doc, _, found := strings.Cut(rest, "```")
	g, err := parseSpec(strings.NewReader(doc))
	if !found || err != nil || len(g.Names) != 2 || !byItself(g) {
		t.Errorf("%v: %+v", err, g)
	}
}

func TestPrintSettings(t *testing.T) {
	var b strings.Builder
	if err := printSettings(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if !strings.Contains(b.String(), "\n  "+s.name+"\n") || strings.Contains(s.meaning+s.form+s.fallback, "|") {
			t.Errorf("%s is not listed well", s.name)
		}
	}
}
