package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

var inForce = Circumstances{
	Rules: []Rule{
		{Domain: "api.allowed.test", Ports: []uint16{80, 443}, Liveness: true, Pos: diag.Pos{File: FileName, Line: 5}},
		{Domain: "git.allowed.test", Ports: []uint16{22}, Pos: diag.Pos{File: FileName, Line: 6}, Private: []netip.Prefix{netip.MustParsePrefix("10.38.0.0/16")}},
		{Domain: "any.allowed.test", AnyPort: true, Liveness: true, Pos: diag.Pos{File: FileName, Line: 7}},
		{Domain: "models.example", Ports: []uint16{80, 443}, Soft: true, Pos: diag.Pos{File: "profile opencode"}},
	},
	Services: []HostService{{Name: "port-8081", Port: 9000}, {Name: "llama", Port: 8080}},
	Gateway:  netip.MustParseAddr("172.30.0.1"),
	Network:  netip.MustParsePrefix("172.30.0.0/16"),
}

func lookupOf(name string) Attempt { return Attempt{Name: name} }

func packets(proto, to, name string) Attempt {
	if at, err := netip.ParseAddrPort(to); err == nil {
		return Attempt{Proto: proto, Addr: at.Addr(), Port: at.Port(), Name: name}
	}
	return Attempt{Proto: proto, Addr: netip.MustParseAddr(to), Name: name}
}

// R051: a denial comes with the line that would allow it, or with why there is
// none.
func TestSuggest(t *testing.T) {
	long := func(n int) string {
		return strings.Repeat("x", n-len(".test")-50) + "." + strings.Repeat("y", 49) + ".test"
	}
	for _, tt := range []struct {
		what  string
		a     Attempt
		entry string
		says  []string // each in one of the other fields
	}{
		{"a name", lookupOf("files.example.test"), "files.example.test", nil},
		{"below a listed one", lookupOf("x.api.allowed.test"), "x.api.allowed.test", []string{"corral.yaml:5 lists api.allowed.test, and no subdomain comes along"}},
		{"above a listed one", lookupOf("allowed.test"), "allowed.test", []string{"corral.yaml:5 lists api.allowed.test, which is below it"}},
		{"listed", lookupOf("api.allowed.test"), "", []string{"corral.yaml:5 lists it already"}},
		{"listed by the profile", lookupOf("models.example"), "", []string{"profile opencode lists it already"}},
		{"with underscores", lookupOf("_dmarc.a_b.example"), "_dmarc.a_b.example", nil},
		{"like a number", lookupOf("1e5.test"), "1e5.test", nil},
		{"the longest", lookupOf(long(maxSuggested)), long(maxSuggested), nil},
		{"one more", lookupOf(long(maxSuggested + 1)), "", []string{"carry something out"}},
		{"the beginning of one", lookupOf(strings.Repeat("x", 128) + "…"), "", []string{"carry something out"}},
		{"a single label", lookupOf("intranet"), "", []string{"single label"}},
		{"nothing", lookupOf(""), "", []string{"the name is empty"}},
		{"an address", lookupOf("10.9.9.9"), "", []string{"IP address"}},
		{"YAML in it", lookupOf("a.test\n- b.test"), "", []string{"white space"}},
		{"a comment in it", lookupOf("a.test # b"), "", []string{"white space"}},
		{"flow in it", lookupOf("a.test,b.test"), "", []string{"must be of letters"}},
		{"escaped", lookupOf(`a\.b.test`), "", []string{"must be of letters"}},
		{"in capitals", lookupOf("A.test"), "", []string{"another way"}},
		{"with a trailing dot", lookupOf("a.test."), "", []string{"another way"}},
		{"this machine", lookupOf("corral-host"), "", []string{"host_services"}},
		{"of no name server", lookupOf("printer.local"), "", []string{"no name server"}},
		{"of an address", lookupOf("9.9.10.44.in-addr.arpa"), "", []string{"no name server"}},
		{"internationalised", lookupOf("xn--mller-kva.example"), "xn--mller-kva.example", []string{"reads as müller.example"}},
		{"no A-label", lookupOf("xn--0.example"), "", []string{"not a valid internationalised label"}},
		{"two scripts", lookupOf("xn--pple-43d.example"), "", []string{"mixes scripts"}}, // Cyrillic а, then Latin
		{"a listed name in another's", lookupOf("api.allowed.test.evil.example"), "api.allowed.test.evil.example", []string{"belongs to whoever has evil.example"}},
		{"a digit for a letter", lookupOf("api.a1lowed.test"), "api.a1lowed.test", []string{"could be taken for api.allowed.test"}},
		{"two of them", lookupOf("api.a110wed.test"), "api.a110wed.test", []string{"could be taken for api.allowed.test"}},
		{"a letter more", lookupOf("api.alllowed.test"), "api.alllowed.test", []string{"could be taken for api.allowed.test"}},
		{"a hyphen for a dot", lookupOf("api-allowed.test"), "api-allowed.test", []string{"could be taken for api.allowed.test"}},
		{"a sister", lookupOf("apj.allowed.test"), "apj.allowed.test", nil},

		{"another port of a name", packets("tcp", "44.10.0.10:22", "api.allowed.test"), "{domain: api.allowed.test, ports: [22, 80, 443]}", []string{"corral.yaml:5"}},
		{"of one with more to it", packets("tcp", "44.10.0.10:443", "git.allowed.test"), "{domain: git.allowed.test, ports: [22, 443], liveness: false, private: [10.38.0.0/16]}", []string{"corral.yaml:6"}},
		{"of one of the profile's", packets("tcp", "44.10.0.10:8443", "models.example"), "{domain: models.example, ports: [80, 443, 8443]}", []string{"profile opencode"}},
		{"of one that is gone", packets("tcp", "44.10.0.10:8443", "old.example"), "{domain: old.example, ports: [8443]}", nil},
		{"the web's ports of one that is gone", packets("tcp", "44.10.0.10:443", "old.example"), "{domain: old.example, ports: [443]}", nil},
		{"a port that is listed", packets("tcp", "44.10.0.10:443", "api.allowed.test"), "", []string{"corral.yaml:5 lists it already"}},
		{"any port is", packets("tcp", "44.10.0.10:9", "any.allowed.test"), "", []string{"corral.yaml:7 lists it already"}},
		{"a peer's", packets("tcp", "44.10.0.10:9", "db"), "", []string{"ports of its own"}},
		{"no name", packets("tcp", "44.10.9.9:443", ""), "", []string{"no listed name has this address"}},
		{"private space", packets("tcp", "10.1.2.3:443", ""), "", []string{"private"}},
		{"UDP", packets("udp", "44.10.0.10:443", "api.allowed.test"), "", []string{"UDP"}},
		{"ICMP", packets("icmp", "44.10.0.10", "api.allowed.test"), "", []string{"ICMP"}},
		{"SCTP", packets("ip-132", "44.10.0.10", "api.allowed.test"), "", []string{"TCP ports and nothing else"}},
		{"a fragment", packets("tcp", "44.10.0.10", "api.allowed.test"), "", []string{"TCP ports and nothing else"}},
		{"IPv6", packets("tcp", "[2001:db8::1]:443", ""), "", []string{"IPv6"}},
		{"IPv4 in IPv6", packets("tcp", "[::ffff:44.10.0.10]:22", "api.allowed.test"), "{domain: api.allowed.test, ports: [22, 80, 443]}", nil},
		{"DNS", packets("udp", "44.10.0.53:53", ""), "", []string{"lookups"}},
		{"DNS by TCP at a listed name", packets("tcp", "44.10.0.10:53", "api.allowed.test"), "", []string{"lookups"}},
		{"DNS over TLS", packets("tcp", "44.10.0.10:853", "api.allowed.test"), "", []string{"lookups"}},
		{"multicast DNS", packets("udp", "224.0.0.251:5353", ""), "", []string{"lookups"}},
		{"Docker's resolver", packets("udp", "127.0.0.11:53", ""), "", []string{"lookups"}},
		{"metadata", packets("tcp", "169.254.169.254:80", ""), "", []string{"metadata"}},
		{"metadata at a name", packets("tcp", "169.254.169.254:81", "api.allowed.test"), "", []string{"metadata"}},
		{"another sandbox", packets("tcp", "172.30.0.9:22", ""), "", []string{"another sandbox"}},
		{"beside the network", packets("tcp", "172.31.0.9:22", ""), "", []string{"private"}},
		{"this machine's port", packets("tcp", "172.30.0.1:5432", ""), "{name: port-5432, port: 5432}", []string{"loopback"}},
		{"whose name is taken", packets("tcp", "172.30.0.1:8081", "corral-host"), "{name: port-8081-2, port: 8081}", nil},
		{"that is listed", packets("tcp", "172.30.0.1:8080", "corral-host"), "", []string{"as llama"}},
		{"the engine's port", packets("tcp", "172.30.0.1:2375", ""), "", []string{"commands the machine"}},
		{"this machine by UDP", packets("udp", "172.30.0.1:5432", ""), "", []string{"UDP"}},
	} {
		got := Suggest(tt.a, inForce)
		if got.Entry != tt.entry || (got.Key == "") != (got.Entry == "") {
			t.Errorf("%s: %+v, want %q", tt.what, got, tt.entry)
		}
		text := strings.Join([]string{got.Replaces, got.Note, got.Doubt}, "\n")
		for _, w := range tt.says {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in %+v", tt.what, w, got)
			}
		}
		if tt.says == nil && got.Doubt != "" || got.Entry == "" && got.Note == "" {
			t.Errorf("%s: %+v", tt.what, got)
		}
		holds(t, tt.a, got)
	}
}

// R013: what was refused before a refresh is told by what is in force after it.
func TestSuggestAfterARefresh(t *testing.T) {
	in := inForce
	at := netip.MustParseAddr("44.10.0.10")
	in.Pins = []spec.Pin{
		{Domain: "git.allowed.test", Addrs: []netip.Addr{at}, Ports: []uint16{22}},
		{Domain: "api.allowed.test", Addrs: []netip.Addr{at, netip.MustParseAddr("44.10.0.11")}, Ports: []uint16{80, 443}},
		{Domain: "any.allowed.test", Addrs: []netip.Addr{netip.MustParseAddr("44.10.0.12")}, AnyPort: true},
		{Domain: "models.example", Fading: []spec.Fading{{Addr: netip.MustParseAddr("44.10.0.13")}}},
	}
	for _, tt := range []struct {
		what        string
		a           Attempt
		entry, note string
	}{
		{"a name", lookupOf("api.allowed.test"), "", allowedNow},
		{"a name without an address", lookupOf("models.example"), "", "profile opencode lists it already: what is up was made without it, or it had no address"},
		{"a port of a name", packets("tcp", "44.10.0.10:443", "api.allowed.test"), "", allowedNow},
		{"one that it was not called then", packets("tcp", "44.10.0.10:443", ""), "", allowedNow + ": api.allowed.test has this address now"},
		{"any port", packets("tcp", "44.10.0.12:9", ""), "", allowedNow + ": any.allowed.test has this address now"},
		{"another port", packets("tcp", "44.10.0.11:22", ""), "{domain: api.allowed.test, ports: [22, 80, 443]}", "api.allowed.test has this address now"},
		{"another port of a name", packets("tcp", "44.10.0.11:22", "api.allowed.test"), "{domain: api.allowed.test, ports: [22, 80, 443]}", ""},
		{"an address that is nobody's", packets("tcp", "44.10.0.14:22", ""), "", "no listed name has this address, and a policy lists names: see which one the program was told"},
		{"an address that nobody has", packets("tcp", "192.0.2.1:80", ""), "", "192.0.2.1 is no public address (documentation: for examples only (RFC 5737, RFC 3849, RFC 9637)), and no policy opens it"},
		{"an address of somebody's own", packets("tcp", "10.9.8.7:80", ""), "", "no listed name has this address (private), and a policy lists names; one that has it needs private: as well"},
		{"an address of before", packets("tcp", "44.10.0.13:443", ""), "", "no listed name has this address, and a policy lists names: see which one the program was told"},
		{"no TCP", packets("udp", "44.10.0.10:443", ""), "", "no UDP leaves: a policy opens TCP ports (programs that try QUIC fall back to TCP)"},
	} {
		if got := Suggest(tt.a, in); got.Entry != tt.entry || got.Note != tt.note {
			t.Errorf("%s: %+v", tt.what, got)
		}
	}
}

// holds insists that what is suggested grants exactly what was attempted, and
// can be shown and pasted as it is.
func holds(t *testing.T, a Attempt, s Suggestion) {
	t.Helper()
	for _, text := range []string{s.Entry, s.Replaces, s.Note, s.Doubt} {
		if text != printable.Escape(text) || strings.ContainsAny(text, "\n\r") {
			t.Fatalf("%+v: not printable: %q", a, text)
		}
	}
	if s.Entry == "" {
		return
	}
	if len(s.Entry) > 1000 {
		t.Fatalf("%+v: %d bytes", a, len(s.Entry))
	}
	above, list, _ := strings.Cut(s.Key, ".")
	indent := "  "
	if list != "" {
		above += ":\n  " + list
		indent += "  "
	}
	// With a comment behind it, and among others.
	doc := fmt.Sprintf("profile: shell\n%s:\n%s- %s  # %s\n", above, indent, s.Entry, s.Note+s.Doubt)
	p, err := Parse(FileName, []byte(doc))
	if err != nil {
		t.Fatalf("%+v: %q is refused: %v", a, doc, err)
	}
	switch {
	case s.Key == "host_services":
		if len(p.Egress.Allow) != 0 || len(p.HostServices) != 1 || p.HostServices[0].Port != a.Port {
			t.Fatalf("%+v: %q grants %+v", a, doc, p)
		}
	case len(p.HostServices) != 0 || len(p.Egress.Allow) != 1 || string(p.Egress.Allow[0].Domain) != a.Name || p.Egress.Allow[0].AnyPort:
		t.Fatalf("%+v: %q grants %+v", a, doc, p)
	case a.Addr.IsValid() && !slices.Contains(p.Egress.Allow[0].Ports, a.Port), !a.Addr.IsValid() && !slices.Equal(p.Egress.Allow[0].Ports, []uint16{80, 443}):
		t.Fatalf("%+v: %q grants %+v", a, doc, p)
	}
}

// Whatever an agent tries, what is suggested grants that one name or port, or
// nothing is.
func FuzzSuggest(f *testing.F) {
	for _, name := range []string{"files.example.test", "a.test, b.test", "a.test\"]\n", "{domain: a.test}", "xn--mller-kva.example", "~.null.true", "1.0x10", "-.a", "\u202ea.test", "a.\\046.test"} {
		f.Add(name, "tcp", []byte{44, 10, 0, 10}, uint16(443))
	}
	f.Add("", "tcp", []byte{172, 30, 0, 1}, uint16(5432))
	f.Add("api.allowed.test", "", []byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, name, proto string, addr []byte, port uint16) {
		a := Attempt{Name: name, Proto: proto, Port: port}
		a.Addr, _ = netip.AddrFromSlice(addr)
		holds(t, a, Suggest(a, inForce))
	})
}
