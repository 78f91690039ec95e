package spec

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

func valid() Gate {
	return Gate{
		Version: Version, Sandbox: "s-1", Service: "main", Class: ClassPinned,
		Address: netip.MustParseAddr("172.30.0.2"), Gateway: netip.MustParseAddr("172.30.0.1"),
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.53")},
		Names:     []Name{{Domain: "a.test", Ports: []uint16{443}, Origin: "corral.yaml:3"}},
		Probes:    DefaultProbes(),
	}
}

func TestGateRoundTrip(t *testing.T) {
	b := Encode(valid())
	got, err := ParseGate(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if again := Encode(got); !bytes.Equal(again, b) {
		t.Errorf("%s became %s", b, again)
	}
}

func TestGateRefusals(t *testing.T) {
	for name, spoil := range map[string]func(*Gate){
		"version":                  func(g *Gate) { g.Version = Version + 1 },
		"no version":               func(g *Gate) { g.Version = 0 },
		"class":                    func(g *Gate) { g.Class = "public" },
		"names without a class":    func(g *Gate) { g.Class = ClassNone },
		"names without a resolver": func(g *Gate) { g.Resolvers = nil },
		"loopback resolver":        func(g *Gate) { g.Resolvers[0] = netip.MustParseAddr("127.0.0.11") },
		"IPv6 resolver":            func(g *Gate) { g.Resolvers[0] = netip.MustParseAddr("2001:db8::53") },
		"no address of a resolver": func(g *Gate) { g.Resolvers[0] = netip.Addr{} },
		"name without a port":      func(g *Gate) { g.Names[0].Ports = nil },
		"never no prefix":          func(g *Gate) { g.Never = []netip.Prefix{{}} },
		"never an IPv4-mapped one": func(g *Gate) { g.Never = []netip.Prefix{netip.MustParsePrefix("::ffff:44.20.0.0/112")} },
		"port 0":                   func(g *Gate) { g.Names[0].Ports = []uint16{0} },
		"port of name servers":     func(g *Gate) { g.Names[0].Ports = []uint16{443, 53} },
		"the same, by TLS":         func(g *Gate) { g.Names[0].Ports = []uint16{853} },
		"name without a domain":    func(g *Gate) { g.Names[0].Domain = "" },
		"host port, no gateway":    func(g *Gate) { g.Gateway, g.HostPorts = netip.Addr{}, []uint16{80} },
		"no probe":                 func(g *Gate) { g.Probes.Unlisted = netip.Addr{} },
		"probe with a zone":        func(g *Gate) { g.Probes.IPv6 = netip.MustParseAddr("fe80::1%eth0") },
	} {
		g := valid()
		spoil(&g)
		if _, err := ParseGate(bytes.NewReader(Encode(g))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A link's name is one that nobody reads as anything else.
func TestLinkNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for name, want := range map[string]bool{
		"db": true, "a": true, "a-b.c": true, "1a": true, "10.0.0.1a": true, "0xg": true, "2.db": true, "localhosts": true, "localhost.db": true, long: true,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, "-a": false, "a-": false, "a.-b": false, "a-.b": false, "Db": false, "a_b": false,
		"localhost": false, "db.localhost": false, "1": false, "10.0.0.1": false, "db.1": false, "0x7f": false, "0x": false, "db.0x1": false, long + "a": false,
	} {
		l := Link{Name: name, Addr: netip.MustParseAddr("172.28.0.3"), Port: 1}
		if err := l.Check(); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestDecodeIsStrict(t *testing.T) {
	good := string(Encode(valid()))
	for name, in := range map[string]string{
		"empty":         "",
		"unknown field": strings.Replace(good, `"sandbox"`, `"sandbocks"`, 1),
		"two documents": good + good,
		"cut short":     good[:len(good)/2],
		"another kind":  "[]",
		"null":          "null",
	} {
		if _, err := ParseGate(strings.NewReader(in)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestListsProveSomething(t *testing.T) {
	for name, in := range map[string]string{
		"no checks":      `{"version":1,"service":"main","checks":[]}`,
		"without a name": `{"version":1,"service":"main","checks":[{}]}`,
		"twice":          `{"version":1,"service":"main","checks":[{"name":"a"},{"name":"a"}]}`,
		"version":        `{"version":2,"service":"main","checks":[{"name":"a"}]}`,
	} {
		if _, err := ParseVerify(strings.NewReader(in)); err == nil {
			t.Errorf("verify, %s: accepted", name)
		}
		if _, err := ParseHandover(strings.NewReader(in)); err == nil {
			t.Errorf("handover, %s: accepted", name)
		}
	}
}

func TestZeroValuesDeny(t *testing.T) {
	var (
		g Gate
		e Event
		v Verdict
		s GateStatus
	)
	if g.Class != ClassNone || e.Result != Untold || v.Outcome != OutcomeUnknown || s.State != GateClosed {
		t.Error("a zero value grants something")
	}
}

func FuzzParseGate(f *testing.F) {
	f.Add(Encode(valid()))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseGate(bytes.NewReader(b))
		if err != nil {
			return
		}
		if _, err := ParseGate(bytes.NewReader(Encode(g))); err != nil {
			t.Errorf("accepted once only: %v", err)
		}
	})
}
