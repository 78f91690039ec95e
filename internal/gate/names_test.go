package gate

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

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
		m, refused := newZone(pinTable).answer(q)
		if m.Rcode != tt.rcode || len(m.Answer) != tt.answers || refused != tt.refused || m.Id != q.Id || !m.Response || len(m.Ns) != 0 {
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
		m, refused := z.answer(q)
		if refused == (m.Rcode == dns.RcodeSuccess) || refused && len(m.Answer) > 0 {
			t.Fatalf("refused %v: %s", refused, m)
		}
	})
}
