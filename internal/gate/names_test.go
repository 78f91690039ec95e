package gate

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/domain"
	"github.com/corral-sandbox/corral/internal/spec"
)

var pinTable = table{Instance: "instance-1", Pins: []spec.Pin{
	{Domain: "api.allowed.test", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.11")}},
}}

func TestAnswer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		qtype   uint16
		class   uint16
		rcode   int
		answers int
		refused bool
	}{
		{"api.allowed.test.", dns.TypeA, dns.ClassINET, dns.RcodeSuccess, 2, false},
		{"API.Allowed.test.", dns.TypeA, dns.ClassINET, dns.RcodeSuccess, 2, false},
		{"api.allowed.test.", dns.TypeANY, dns.ClassINET, dns.RcodeSuccess, 2, false},
		{"api.allowed.test.", dns.TypeAAAA, dns.ClassINET, dns.RcodeSuccess, 0, false},
		{"api.allowed.test.", dns.TypeHTTPS, dns.ClassINET, dns.RcodeSuccess, 0, false},
		{"api.allowed.test.", dns.TypeSVCB, dns.ClassINET, dns.RcodeSuccess, 0, false},
		{"api.allowed.test.", dns.TypeA, dns.ClassCHAOS, dns.RcodeNameError, 0, true},
		{"www.api.allowed.test.", dns.TypeA, dns.ClassINET, dns.RcodeNameError, 0, true},
		{"allowed.test.", dns.TypeA, dns.ClassINET, dns.RcodeNameError, 0, true},
		{"leak.evil.test.", dns.TypeTXT, dns.ClassINET, dns.RcodeNameError, 0, true},
		{"10.0.10.44.in-addr.arpa.", dns.TypePTR, dns.ClassINET, dns.RcodeNameError, 0, true},
		{".", dns.TypeNS, dns.ClassINET, dns.RcodeNameError, 0, true},
		{"localhost.", dns.TypeA, dns.ClassINET, dns.RcodeSuccess, 1, false},
		{"localhost.", dns.TypeAAAA, dns.ClassINET, dns.RcodeSuccess, 0, false},
		{spec.InstanceName, dns.TypeTXT, dns.ClassCHAOS, dns.RcodeSuccess, 1, false},
		{spec.InstanceName, dns.TypeTXT, dns.ClassINET, dns.RcodeNameError, 0, true},
		{"version.bind.", dns.TypeTXT, dns.ClassCHAOS, dns.RcodeNameError, 0, true},
	} {
		q := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
		q.Question[0].Qclass = tt.class
		q.SetEdns0(1232, false)
		m, became := newZone(pinTable).answer(q)
		refused := became == refusedName
		if became == passedOn || m.Rcode != tt.rcode || len(m.Answer) != tt.answers || refused != tt.refused || m.Id != q.Id || !m.Response || len(m.Ns) != 0 {
			t.Errorf("%s %s: %s, refused %v", tt.name, dns.TypeToString[tt.qtype], m, refused)
		}
		blocked := len(m.IsEdns0().Option) == 1 && m.IsEdns0().Option[0].(*dns.EDNS0_EDE).InfoCode == dns.ExtendedErrorCodeBlocked
		if blocked != refused {
			t.Errorf("%s: blocked %v", tt.name, blocked)
		}
		if _, err := m.Pack(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestAnswerWithoutEDNS(t *testing.T) {
	m, _ := newZone(pinTable).answer(new(dns.Msg).SetQuestion("leak.evil.test.", dns.TypeA))
	if m.Rcode != dns.RcodeNameError || m.IsEdns0() != nil {
		t.Errorf("%s", m)
	}
}

func TestInstance(t *testing.T) {
	q := new(dns.Msg).SetQuestion(spec.InstanceName, dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	m, _ := newZone(pinTable).answer(q)
	if txt, ok := m.Answer[0].(*dns.TXT); !ok || txt.Txt[0] != "instance-1" || txt.Hdr.Class != dns.ClassCHAOS {
		t.Errorf("%s", m)
	}
}

var sink = table{Instance: "instance-1", Pins: pinTable.Pins, Sink: spec.SinkAddress}

// Every name that is not pinned is one address, which is recorded as a refusal
// all the same, and has nothing else; nobody is asked.
func TestSink(t *testing.T) {
	for _, tt := range []struct {
		name   string
		qtype  uint16
		class  uint16
		answer string
		became fate
	}{
		{"leak.evil.test.", dns.TypeA, dns.ClassINET, "192.88.99.1", refusedName},
		{"LEAK.evil.test.", dns.TypeANY, dns.ClassINET, "192.88.99.1", refusedName},
		{"x." + spec.ProbeDomain + ".", dns.TypeA, dns.ClassINET, "192.88.99.1", refusedName},
		{"leak.evil.test.", dns.TypeAAAA, dns.ClassINET, "", refusedName},
		{"leak.evil.test.", dns.TypeHTTPS, dns.ClassINET, "", refusedName},
		{"1.99.88.192.in-addr.arpa.", dns.TypePTR, dns.ClassINET, "", refusedName},
		{"api.allowed.test.", dns.TypeA, dns.ClassINET, "44.10.0.10", answered},
		{"api.allowed.test.", dns.TypeAAAA, dns.ClassINET, "", answered},
		{"localhost.", dns.TypeA, dns.ClassINET, "127.0.0.1", answered},
	} {
		q := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
		q.Question[0].Qclass = tt.class
		m, became := newZone(sink).answer(q)
		got := ""
		if len(m.Answer) > 0 {
			got = m.Answer[0].(*dns.A).A.String()
		}
		if m.Rcode != dns.RcodeSuccess || got != tt.answer || became != tt.became {
			t.Errorf("%s %s: %d, %s", tt.name, dns.TypeToString[tt.qtype], became, m)
		}
	}
	q := new(dns.Msg).SetQuestion("version.bind.", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	if m, became := newZone(sink).answer(q); m.Rcode != dns.RcodeNameError || became != refusedName {
		t.Errorf("%s", m)
	}
}

// A gate says what it is, and by which document it goes.
func TestReleaseAndDocument(t *testing.T) {
	z := newZone(table{Instance: "i", Document: "sha256:0a"})
	for name, want := range map[string]string{spec.ReleaseName: spec.Release(), spec.DocumentName: "sha256:0a"} {
		q := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		m, _ := z.answer(q)
		if txt, ok := only(m).(*dns.TXT); !ok || !slices.Equal(txt.Txt, []string{want}) {
			t.Errorf("%s: %v", name, m)
		}
		q.Question[0].Qclass = dns.ClassINET
		if m, fate := z.answer(q); fate != refusedName || m.Rcode != dns.RcodeNameError {
			t.Errorf("%s by the ordinary way: %v", name, m)
		}
	}
}

// What becomes of names is told, so that a checker knows what to expect.
func TestNamesName(t *testing.T) {
	for want, of := range map[string]table{spec.NamesBlocked: pinTable, spec.NamesSink: sink, spec.NamesPublic: publicTable} {
		q := new(dns.Msg).SetQuestion(spec.NamesName, dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		if m, became := newZone(of).answer(q); became != answered || len(m.Answer) != 1 || m.Answer[0].(*dns.TXT).Txt[0] != want {
			t.Errorf("%s: %s", want, m)
		}
	}
}

// Where links lead is told by name, and of nothing else.
func TestLinkName(t *testing.T) {
	linked := pinTable
	linked.Links = []spec.Link{{Name: "db", Addr: addr("172.30.0.3"), Port: 5432}, {Name: "cache", Addr: addr("172.30.0.4"), Port: 1}, {Name: "db", Addr: addr("172.30.0.3"), Port: 22}}
	for name, want := range map[string][]string{spec.LinkName("db"): {"172.30.0.3:5432", "172.30.0.3:22"}, spec.LinkName("DB"): {"172.30.0.3:5432", "172.30.0.3:22"},
		spec.LinkName("cache"): {"172.30.0.4:1"}, spec.LinkName("api.allowed.test"): nil} {
		q := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		m, became := newZone(linked).answer(q)
		var got []string
		for _, rr := range m.Answer {
			got = append(got, rr.(*dns.TXT).Txt...)
		}
		if became != answered || m.Rcode != dns.RcodeSuccess || !slices.Equal(got, want) {
			t.Errorf("%s: %s", name, m)
		}
		q.Question[0].Qclass = dns.ClassINET
		if m, became := newZone(linked).answer(q); became != refusedName || len(m.Answer) > 0 {
			t.Errorf("%s: %s", name, m)
		}
	}
}

// A probe's verdicts are told to whoever is inside, and nothing of any other
// packet.
func TestTell(t *testing.T) {
	a := newAudit()
	probe := spec.Probe{Proto: "tcp", Source: 61000, Addr: addr("44.10.9.9"), Port: 443}
	send := func(record string, p spec.Probe, rule string) {
		a.packet(packet{record: record, rule: rule, proto: p.Proto, source: p.Source, addr: p.Addr, port: p.Port}, time.Now())
	}
	refuse := func(p spec.Probe, rule string) { send(recordSeen, p, ""); send(recordProbe, p, rule) }
	other := func(change func(*spec.Probe)) spec.Probe { p := probe; change(&p); return p }
	docker := spec.Probe{Proto: "udp", Source: 61002, Addr: dockerResolver.Addr(), Port: 41234}
	for range maxTold {
		send(recordSeen, other(func(p *spec.Probe) { p.Port = 80 }), "")
	}
	send(recordSeen, other(func(p *spec.Probe) { p.Port = 80 }), "")
	send(recordSeen, other(func(p *spec.Probe) { p.Addr = addr("44.10.0.10") }), "")
	refuse(probe, ruleUnlisted)
	refuse(docker, ruleDocker)
	n := names{verdicts: a.about}
	ask := func(name string) *dns.Msg {
		q := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		return n.tell(q, name)
	}
	texts := func(m *dns.Msg) (all []string) {
		for _, rr := range m.Answer {
			all = append(all, rr.(*dns.TXT).Txt...)
		}
		return all
	}
	at := func(p spec.Probe, port uint16) spec.Probe { p.Port = port; return p }
	for _, tt := range []struct {
		what, name string
		want       []string
	}{
		{"refused", spec.VerdictName(probe), []string{"11 rejected unlisted"}},
		{"let through", spec.VerdictName(other(func(p *spec.Probe) { p.Addr = addr("44.10.0.10") })), []string{"10 accepted"}},
		{"sent often", spec.VerdictName(at(probe, 80)), []string{"9 accepted", "8 accepted", "7 accepted", "6 accepted", "5 accepted", "4 accepted", "3 accepted", "2 accepted"}},
		{"the engine's resolver, after nat", spec.VerdictName(at(docker, 53)), []string{"12 rejected docker-resolver"}},
		{"its hidden port", spec.VerdictName(at(docker, 41235)), nil},
		{"another source port", spec.VerdictName(other(func(p *spec.Probe) { p.Source++ })), nil},
		{"another port", spec.VerdictName(at(probe, 444)), nil},
		{"another protocol", spec.VerdictName(other(func(p *spec.Probe) { p.Proto = "udp" })), nil},
		{"the newest number", spec.VerdictZone, []string{"12"}},
	} {
		if m := ask(tt.name); m == nil || !slices.Equal(texts(m), tt.want) {
			t.Errorf("%s: %v", tt.what, m)
		}
	}
	for _, name := range []string{"tcp.40000.443.2c0a0909." + spec.VerdictZone, "x." + spec.VerdictZone, spec.InstanceName} {
		if m := ask(name); m != nil {
			t.Errorf("%s: %s", name, m)
		}
	}
	if q := new(dns.Msg).SetQuestion(spec.VerdictZone, dns.TypeTXT); n.tell(q, spec.VerdictZone) != nil {
		t.Error("told in the Internet class")
	}
}

func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"api.allowed.test.", "leak.evil.test.", spec.InstanceName} {
		raw, err := new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(1232, false).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	z := newZone(pinTable)
	f.Fuzz(func(t *testing.T, raw []byte) {
		q := new(dns.Msg)
		if q.Unpack(raw) != nil || len(q.Question) != 1 {
			return
		}
		m, became := z.answer(q)
		if refused := became == refusedName; became == passedOn || refused == (m.Rcode == dns.RcodeSuccess) || refused && len(m.Answer) > 0 {
			t.Fatalf("refused %v: %s", refused, m)
		}
		sunk := sink
		sunk.Instance = z.instance
		if m, became := newZone(sunk).answer(q); became == passedOn || became == refusedName && q.Question[0].Qclass == dns.ClassINET &&
			(m.Rcode != dns.RcodeSuccess || len(m.Answer) > 1) {
			t.Fatalf("sunk: %s", m)
		}
		if _, became := newZone(publicTable).answer(q); became == passedOn && domain.NotPublic(dns.CanonicalName(q.Question[0].Name)) != "" {
			t.Fatalf("%q is passed on", q.Question[0].Name)
		}
	})
}
