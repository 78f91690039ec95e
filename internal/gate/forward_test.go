package gate

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

var publicTable = table{Instance: "instance-1", Forward: []netip.AddrPort{netip.MustParseAddrPort("44.10.0.53:53")}}

// Only A records of what can be a public host are worth a question.
func TestWhatIsPassedOn(t *testing.T) {
	z := newZone(publicTable)
	for _, tt := range []struct {
		name   string
		qtype  uint16
		rcode  int
		became fate
	}{
		{"www.example.com.", dns.TypeA, dns.RcodeSuccess, passedOn},
		{"WWW.Example.com.", dns.TypeA, dns.RcodeSuccess, passedOn},
		{"www.example.com.", dns.TypeAAAA, dns.RcodeSuccess, answered},
		{"www.example.com.", dns.TypeHTTPS, dns.RcodeSuccess, answered},
		{"www.example.com.", dns.TypeSVCB, dns.RcodeSuccess, answered},
		{"www.example.com.", dns.TypeMX, dns.RcodeSuccess, answered},
		{"www.example.com.", dns.TypeTXT, dns.RcodeSuccess, answered},
		{"www.example.com.", dns.TypeANY, dns.RcodeSuccess, answered},
		{"www.example.com.", dns.TypeCNAME, dns.RcodeSuccess, answered},
		{"localhost.", dns.TypeA, dns.RcodeSuccess, answered},
		{"x." + spec.ProbeDomain + ".", dns.TypeA, dns.RcodeNameError, refusedName},
		{"x." + spec.ProbeDomain + ".", dns.TypeAAAA, dns.RcodeNameError, refusedName},
		{"1.0.0.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError, refusedName},
	} {
		q := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
		if m, became := z.answer(q); m.Rcode != tt.rcode || became != tt.became || tt.became != answered && len(m.Answer) > 0 {
			t.Errorf("%s %s: %d, %s", tt.name, dns.TypeToString[tt.qtype], became, m)
		}
	}
}

// upstream is a resolver on loopback that gives one answer after another.
func upstream(t *testing.T, answers ...[]string) (at netip.AddrPort, asked func() []string) {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var names []string
	s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, dns.CanonicalName(q.Question[0].Name)+" "+dns.TypeToString[q.Question[0].Qtype])
		m := new(dns.Msg).SetReply(q)
		records := answers[min(len(names), len(answers))-1]
		for _, text := range records {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Error(err)
				return
			}
			m.Answer = append(m.Answer, rr)
		}
		if records == nil {
			m.Rcode = dns.RcodeNameError
		}
		w.WriteMsg(m)
	})}
	started, ended := make(chan struct{}), make(chan error, 1)
	s.NotifyStartedFunc = func() { close(started) }
	go func() { ended <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { s.Shutdown(); <-ended })
	return netip.MustParseAddrPort(pc.LocalAddr().String()), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(names)
	}
}

// An answer with any address that is not public is none, wherever it is among
// the others and however it is spelt.
func TestForwardFilters(t *testing.T) {
	never := []netip.Prefix{netip.MustParsePrefix("44.10.7.0/24")}
	for _, tt := range []struct {
		what    string
		records []string
		want    string // addresses and TTL, or a part of the reason
		spoilt  bool
	}{
		{"one address", []string{"a.test. 30 IN A 44.10.0.10"}, "44.10.0.10 30s", false},
		{"two", []string{"a.test. 30 IN A 44.10.0.11", "a.test. 20 IN A 44.10.0.10"}, "44.10.0.10 44.10.0.11 20s", false},
		{"a long TTL", []string{"a.test. 86400 IN A 44.10.0.10"}, "44.10.0.10 1m0s", false},
		{"at the cap", []string{"a.test. 61 IN A 44.10.0.10"}, "44.10.0.10 1m0s", false},
		{"no TTL", []string{"a.test. 0 IN A 44.10.0.10"}, "44.10.0.10 0s", false},
		{"a chain", []string{"a.test. 30 IN CNAME b.test.", "b.test. 30 IN A 44.10.0.10"}, "44.10.0.10 30s", false},
		{"private", []string{"a.test. 30 IN A 10.0.0.1"}, "10.0.0.1 is refused: private", true},
		{"metadata", []string{"a.test. 30 IN A 169.254.169.254"}, "metadata", true},
		{"metadata in public space", []string{"a.test. 30 IN A 168.63.129.16"}, "metadata", true},
		{"loopback", []string{"a.test. 30 IN A 127.0.0.1"}, "loopback", true},
		{"unspecified", []string{"a.test. 30 IN A 0.0.0.0"}, "unspecified", true},
		{"benchmark", []string{"a.test. 30 IN A 198.18.0.1"}, "benchmark", true},
		{"mixed, the bad one first", []string{"a.test. 30 IN A 10.0.0.1", "a.test. 30 IN A 44.10.0.10"}, "10.0.0.1", true},
		{"mixed, the bad one last", []string{"a.test. 30 IN A 44.10.0.10", "a.test. 30 IN A 192.168.0.1"}, "192.168.0.1", true},
		{"this host's", []string{"a.test. 30 IN A 44.10.7.1"}, "belongs to this host", true},
		{"beside this host's", []string{"a.test. 30 IN A 44.10.8.1"}, "44.10.8.1 30s", false},
		{"a chain inward, in one answer", []string{"a.test. 30 IN CNAME vault.internal.", "vault.internal. 30 IN A 10.0.0.1"}, "10.0.0.1", true},
		{"a chain to what is no public name", []string{"a.test. 30 IN CNAME vault.internal."}, "it leads to vault.internal.: names below internal", true},
		{"nothing", []string{}, "", false},
		{"no such name", nil, "NXDOMAIN", false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			at, asked := upstream(t, tt.records)
			f := newForward(table{Forward: []netip.AddrPort{at}, Never: never})
			answer, err := f.lookUp(t.Context(), "a.test.")
			var spoilt *filtered
			if errors.As(err, &spoilt) != tt.spoilt {
				t.Errorf("%v", err)
			}
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				for _, a := range answer.Addrs {
					got += a.String() + " "
				}
				got += answer.TTL.String()
			}
			if !strings.Contains(got, tt.want) || err == nil && got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if names := asked(); !slices.Equal(names, []string{"a.test. A"}) {
				t.Errorf("asked %q", names)
			}
		})
	}
}

// What a service gets for each end of a lookup, and what it is told of it.
func TestForwardReplies(t *testing.T) {
	for _, tt := range []struct {
		what    string
		records []string
		rcode   int
		answers int
		ede     uint16
		refused bool
	}{
		{"an address", []string{"a.test. 30 IN A 44.10.0.10"}, dns.RcodeSuccess, 1, 0, false},
		{"no such name", nil, dns.RcodeNameError, 0, 0, false},
		{"no address", []string{}, dns.RcodeSuccess, 0, 0, false},
		{"inward", []string{"a.test. 30 IN A 10.0.0.1", "a.test. 30 IN A 44.10.0.10"}, dns.RcodeNameError, 0, dns.ExtendedErrorCodeFiltered, true},
	} {
		at, _ := upstream(t, tt.records)
		f := newForward(table{Forward: []netip.AddrPort{at}})
		q := new(dns.Msg).SetQuestion("A.test.", dns.TypeA).SetEdns0(1232, false)
		m, refused := f.reply(t.Context(), q)
		ede := uint16(0)
		if o := m.IsEdns0().Option; len(o) == 1 {
			ede = o[0].(*dns.EDNS0_EDE).InfoCode
		}
		if m.Rcode != tt.rcode || len(m.Answer) != tt.answers || ede != tt.ede || refused != tt.refused || m.Id != q.Id {
			t.Errorf("%s: refused %v, %s", tt.what, refused, m)
		}
		for _, rr := range m.Answer {
			if rr.Header().Name != "A.test." || rr.Header().Ttl != 30 {
				t.Errorf("%s: %s", tt.what, rr)
			}
		}
	}
	// Nobody there: a failure of the server, at once.
	f := newForward(table{Forward: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}})
	q := new(dns.Msg).SetQuestion("a.test.", dns.TypeA).SetEdns0(1232, false)
	if m, refused := f.reply(t.Context(), q); m.Rcode != dns.RcodeServerFailure || refused || len(m.IsEdns0().Option) != 1 {
		t.Errorf("%s", m)
	}
}

// sinkhole is a writer of answers that keeps the last one.
type sinkhole struct {
	dns.ResponseWriter
	got *dns.Msg
}

func (s *sinkhole) LocalAddr() net.Addr       { return &net.UDPAddr{} }
func (s *sinkhole) WriteMsg(m *dns.Msg) error { s.got = m; return nil }

// Beyond as many lookups as there may be at a time, the next fails at once and
// nothing is sent; all are told, refused ones as such.
func TestForwardIsBounded(t *testing.T) {
	at, asked := upstream(t, []string{"a.test. 30 IN A 44.10.0.10"})
	var lookedUp, refused []string
	n := &names{slots: make(chan struct{}, 1)}
	n.lookedUp = func(name string) { lookedUp = append(lookedUp, name) }
	n.refused = func(name string) { refused = append(refused, name) }
	n.zone.Store(newZone(table{Forward: []netip.AddrPort{at}}))
	ask := func(name string) *dns.Msg {
		w := &sinkhole{}
		n.ServeDNS(w, new(dns.Msg).SetQuestion(name, dns.TypeA))
		return w.got
	}
	n.slots <- struct{}{}
	began := time.Now()
	if m := ask("a.test."); m.Rcode != dns.RcodeServerFailure || len(asked()) != 0 || len(lookedUp) != 0 || time.Since(began) > time.Second {
		t.Errorf("%s, asked %q, told %q", m, asked(), lookedUp)
	}
	<-n.slots
	if m := ask("a.test."); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("%s", m)
	}
	if m := ask("x.local."); m.Rcode != dns.RcodeNameError {
		t.Errorf("%s", m)
	}
	if !slices.Equal(lookedUp, []string{"a.test."}) || !slices.Equal(refused, []string{"x.local."}) || len(n.slots) != 0 {
		t.Errorf("looked up %q, refused %q, %d slots taken", lookedUp, refused, len(n.slots))
	}
	if len(asked()) != 1 {
		t.Errorf("asked %q", asked())
	}
}

// A rebinding name gives its public address while it has one, and nothing once
// it points inward.
func TestForwardRebinding(t *testing.T) {
	at, _ := upstream(t, []string{"a.test. 0 IN A 44.10.0.10"}, []string{"a.test. 0 IN A 172.30.0.1"})
	f := newForward(table{Forward: []netip.AddrPort{at}})
	if a, err := f.lookUp(t.Context(), "a.test."); err != nil || a.Addrs[0] != addr("44.10.0.10") {
		t.Errorf("%v, %v", a, err)
	}
	a, err := f.lookUp(t.Context(), "a.test.")
	if e := (*filtered)(nil); !errors.As(err, &e) || len(a.Addrs) > 0 {
		t.Errorf("%v, %v", a, err)
	}
	if e := (*resolve.Error)(nil); errors.As(err, &e) {
		t.Errorf("a failure of the lookup: %v", err)
	}
}
