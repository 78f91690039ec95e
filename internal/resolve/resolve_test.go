package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// serve runs a DNS server on loopback, UDP and TCP on one port, until the
// test ends.
func serve(t *testing.T, h dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	pc, l := listen(t)
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}} {
		started, ended := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			s.Shutdown()
			if err := <-ended; err != nil {
				t.Errorf("DNS server: %v", err)
			}
		})
	}
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 100 { // the UDP port may be taken for TCP
		pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp4", pc.LocalAddr().String())
		if err == nil {
			return pc, l
		}
		pc.Close()
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

func rr(t *testing.T, s string) dns.RR {
	t.Helper()
	r, err := dns.NewRR(s)
	if err != nil || r == nil {
		t.Fatalf("record %q: %v", s, err)
	}
	return r
}

// zone answers from records, whatever the letter case, by owner and type with
// whole CNAME chains, as a resolver does.
func zone(t *testing.T, records ...string) dns.HandlerFunc {
	t.Helper()
	var all []dns.RR
	for _, s := range records {
		all = append(all, rr(t, s))
	}
	return func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		owner, known := strings.ToLower(q.Question[0].Name), false
		for range 40 {
			next := ""
			for _, r := range all {
				if r.Header().Name != owner {
					continue
				}
				known = true
				if c, ok := r.(*dns.CNAME); ok {
					next = c.Target
					m.Answer = append(m.Answer, r)
				} else if r.Header().Rrtype == q.Question[0].Qtype {
					m.Answer = append(m.Answer, r)
				}
			}
			if next == "" {
				break
			}
			owner = next
		}
		if !known {
			m.Rcode = dns.RcodeNameError
		}
		w.WriteMsg(m)
	}
}

func addrs(s ...string) []netip.Addr {
	var as []netip.Addr
	for _, a := range s {
		as = append(as, netip.MustParseAddr(a))
	}
	return as
}

func TestA(t *testing.T) {
	chain := func(n int) []string {
		var rs []string
		for i := range n {
			rs = append(rs, fmt.Sprintf("c%d.test. 60 IN CNAME c%d.test.", i, i+1))
		}
		return append(rs, fmt.Sprintf("c%d.test. 60 IN A 44.10.0.10", n))
	}
	pool := func(n int) []string {
		var rs []string
		for i := range n {
			rs = append(rs, fmt.Sprintf("pool.test. 60 IN A 44.10.1.%d", i))
		}
		return rs
	}
	for _, tt := range []struct {
		what    string
		records []string
		name    string
		want    []netip.Addr
		ttl     time.Duration
		kind    Kind
	}{
		{"one address", []string{"a.test. 60 IN A 44.10.0.10"}, "a.test", addrs("44.10.0.10"), time.Minute, 0},
		{"the same address twice", []string{"a.test. 60 IN A 44.10.0.10", "a.test. 60 IN A 44.10.0.10"}, "a.test", addrs("44.10.0.10"), time.Minute, 0},
		{"several, sorted, smallest TTL", []string{"a.test. 60 IN A 44.10.0.11", "a.test. 30 IN A 44.10.0.10"}, "a.test.", addrs("44.10.0.10", "44.10.0.11"), 30 * time.Second, 0},
		{"a chain, its smallest TTL", []string{"a.test. 5 IN CNAME b.test.", "b.test. 60 IN CNAME c.test.", "c.test. 60 IN A 44.10.0.10"}, "a.test", addrs("44.10.0.10"), 5 * time.Second, 0},
		{"both families", []string{"a.test. 60 IN A 44.10.0.10", "a.test. 60 IN AAAA 2a00::1"}, "a.test", addrs("44.10.0.10"), time.Minute, 0},
		{"AAAA only", []string{"a.test. 60 IN AAAA 2a00::1"}, "a.test", nil, 0, NoA},
		{"AAAA only behind a chain", []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN AAAA 2a00::1"}, "a.test", nil, 0, NoA},
		{"no address", []string{"a.test. 60 IN TXT x"}, "a.test", nil, 0, NoData},
		{"no name", nil, "a.test", nil, 0, NXDomain},
		{"a loop", []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN CNAME a.test."}, "a.test", nil, 0, TooMuch},
		{"16 CNAMEs", chain(16), "c0.test", addrs("44.10.0.10"), time.Minute, 0},
		{"17 CNAMEs", chain(17), "c0.test", nil, 0, TooMuch},
		{"64 records", pool(64), "pool.test", nil, time.Minute, 0},
		{"65 records", pool(65), "pool.test", nil, 0, TooMuch},
		{"no domain name", nil, "a..test", nil, 0, Malformed},
		{"empty", nil, "", nil, 0, Malformed},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			c := Client{Servers: []netip.AddrPort{serve(t, zone(t, tt.records...))}}
			got, err := c.A(t.Context(), tt.name)
			var e *Error
			if errors.As(err, &e); err != nil && (e == nil || e.Kind != tt.kind) || err == nil && tt.kind != 0 {
				t.Fatalf("error %v, want kind %d", err, tt.kind)
			}
			if err != nil {
				if !strings.HasPrefix(err.Error(), tt.name+": ") {
					t.Errorf("%q does not name %q", err, tt.name)
				}
				return
			}
			if tt.want != nil && !slices.Equal(got.Addrs, tt.want) || tt.want == nil && len(got.Addrs) != 64 || got.TTL != tt.ttl {
				t.Errorf("got %v %v, want %v %v", got.Addrs, got.TTL, tt.want, tt.ttl)
			}
		})
	}
}

func TestOnlyTheChainsOwner(t *testing.T) {
	c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{
			rr(t, "other.test. 60 IN A 44.10.9.9"),
			rr(t, "a.test. 60 IN CNAME b.test."),
			rr(t, "a.test. 60 IN A 44.10.9.10"),
			rr(t, "b.test. 60 CH A 44.10.9.11"),
			rr(t, "b.test. 60 IN A 44.10.0.10"),
		}
		m.Extra = []dns.RR{rr(t, "b.test. 60 IN A 44.10.9.12")}
		w.WriteMsg(m)
	})}}
	got, err := c.A(t.Context(), "a.test")
	if err != nil || !slices.Equal(got.Addrs, addrs("44.10.0.10")) {
		t.Errorf("got %v, %v", got, err)
	}
}

// A server that is not a full resolver gives the CNAME alone.
func TestChainOverSeveralQueries(t *testing.T) {
	c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if strings.EqualFold(q.Question[0].Name, "a.test.") {
			m.Answer = []dns.RR{rr(t, "a.test. 60 IN CNAME b.test.")}
		} else {
			m.Answer = []dns.RR{rr(t, "b.test. 60 IN A 44.10.0.10")}
		}
		w.WriteMsg(m)
	})}}
	got, err := c.A(t.Context(), "a.test")
	if err != nil || !slices.Equal(got.Addrs, addrs("44.10.0.10")) {
		t.Errorf("got %v, %v", got, err)
	}
}

// Once asks once, for IPv4 addresses alone, and no name that it may not ask.
func TestOnce(t *testing.T) {
	for _, tt := range []struct {
		what    string
		records []string
		want    []netip.Addr
		kind    Kind
		asked   string
	}{
		{"an address", []string{"a.test. 60 IN A 44.10.0.10"}, addrs("44.10.0.10"), 0, "a.test. A"},
		{"a chain", []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 44.10.0.10"}, addrs("44.10.0.10"), 0, "a.test. A"},
		{"AAAA only", []string{"a.test. 60 IN AAAA 2a00::1"}, nil, NoData, "a.test. A"},
		{"no name", nil, nil, NXDomain, "a.test. A"},
		{"a chain further than it goes", []string{"a.test. 60 IN CNAME b.other."}, nil, NoData, "a.test. A, b.other. A"},
		{"a chain to what may not be asked", []string{"a.test. 60 IN CNAME b.inner."}, nil, 0, "a.test. A"},
	} {
		var mu sync.Mutex
		var asked []string
		answer := zone(t, append(tt.records, "b.other. 60 IN TXT x")...)
		inner := errors.New("not that one")
		c := Client{Admit: func(name string) error {
			if strings.HasSuffix(name, ".inner.") {
				return inner
			}
			return nil
		}, Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
			mu.Lock()
			asked = append(asked, strings.ToLower(q.Question[0].Name)+" "+dns.TypeToString[q.Question[0].Qtype])
			mu.Unlock()
			if len(tt.records) == 1 && strings.Contains(tt.records[0], "CNAME") && strings.EqualFold(q.Question[0].Name, "a.test.") {
				m := new(dns.Msg).SetReply(q)
				m.Answer = []dns.RR{rr(t, tt.records[0])}
				w.WriteMsg(m)
				return
			}
			answer(w, q)
		})}}
		got, err := c.Once(t.Context(), "a.test")
		var e *Error
		errors.As(err, &e)
		switch {
		case tt.kind != 0 && (e == nil || e.Kind != tt.kind), tt.want != nil && err != nil, !slices.Equal(got.Addrs, tt.want):
			t.Errorf("%s: %v, %v", tt.what, got, err)
		case tt.kind == 0 && tt.want == nil && !errors.Is(err, inner):
			t.Errorf("%s: %v", tt.what, err)
		}
		if s := strings.Join(asked, ", "); s != tt.asked {
			t.Errorf("%s: asked %s", tt.what, s)
		}
	}
	if _, err := new(Client).Once(t.Context(), "a..test"); err == nil {
		t.Error("a name that is none")
	}
}

// Both asks for each family once; one without any is no failure, anything else is.
func TestBoth(t *testing.T) {
	many := []string{"a.test. 60 IN AAAA ::1"}
	for i := range MaxRecords {
		many = append(many, fmt.Sprintf("a.test. 60 IN A 44.10.0.%d", i))
	}
	for _, tt := range []struct {
		what    string
		records []string
		broken  uint16 // of this type, SERVFAIL
		want    []netip.Addr
		kind    Kind
	}{
		{"both", []string{"a.test. 60 IN A 44.10.0.10", "a.test. 30 IN AAAA 2a00::1"}, 0, addrs("44.10.0.10", "2a00::1"), 0},
		{"IPv4", []string{"a.test. 60 IN A 44.10.0.10"}, 0, addrs("44.10.0.10"), 0},
		{"IPv6", []string{"a.test. 60 IN AAAA 2a00::1"}, 0, addrs("2a00::1"), 0},
		{"neither", []string{"a.test. 60 IN TXT x"}, 0, nil, NoData},
		{"no name", nil, 0, nil, NXDomain},
		{"one more than there may be", many, 0, nil, TooMuch},
		{"IPv6 broken", []string{"a.test. 60 IN A 44.10.0.10"}, dns.TypeAAAA, nil, ServFail},
		{"IPv4 broken", []string{"a.test. 60 IN AAAA 2a00::1"}, dns.TypeA, nil, ServFail},
		{"IPv6 of another name", []string{"a.test. 60 IN A 44.10.0.10", "b.test. 60 IN AAAA 2a00::1"}, 0, addrs("44.10.0.10"), 0},
	} {
		answer := zone(t, tt.records...)
		var asked atomic.Int32
		c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
			asked.Add(1)
			if q.Question[0].Qtype == tt.broken {
				w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
				return
			}
			answer(w, q)
		})}}
		got, err := c.Both(t.Context(), "a.test")
		var e *Error
		errors.As(err, &e)
		if (tt.kind == 0) != (err == nil) || tt.kind != 0 && (e == nil || e.Kind != tt.kind) || !slices.Equal(got.Addrs, tt.want) {
			t.Errorf("%s: %v, %v", tt.what, got, err)
		}
		if n := asked.Load(); tt.broken == 0 && n != 2 {
			t.Errorf("%s: asked %d times", tt.what, n)
		}
	}
	if _, err := new(Client).Both(t.Context(), "a..test"); err == nil {
		t.Error("a name that is none")
	}
}

func TestTruncatedGoesToTCP(t *testing.T) {
	var edns atomic.Bool
	c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{rr(t, "a.test. 60 IN A 44.10.0.10")}
		if w.LocalAddr().Network() == "udp" {
			edns.Store(q.IsEdns0() != nil)
			m.Truncated = true
		} else {
			m.Answer = append(m.Answer, rr(t, "a.test. 60 IN A 44.10.0.11"))
		}
		w.WriteMsg(m)
	})}}
	got, err := c.A(t.Context(), "a.test")
	if err != nil || !slices.Equal(got.Addrs, addrs("44.10.0.10", "44.10.0.11")) {
		t.Errorf("got %v, %v", got, err)
	}
	if !edns.Load() {
		t.Error("asked without EDNS0")
	}
}

func TestRotatingPoolIsMerged(t *testing.T) {
	var n atomic.Int32
	c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for range 4 {
			m.Answer = append(m.Answer, rr(t, fmt.Sprintf("a.test. 60 IN A 44.10.1.%d", n.Add(1)%12)))
		}
		w.WriteMsg(m)
	})}}
	got, err := c.A(t.Context(), "a.test")
	if err != nil || len(got.Addrs) != 12 {
		t.Errorf("%d addresses of 12, %v", len(got.Addrs), err)
	}
}

func TestStableNameTakesTwoQueries(t *testing.T) {
	var n atomic.Int32
	h := zone(t, "a.test. 60 IN A 44.10.0.10")
	c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) { n.Add(1); h(w, q) })}}
	if _, err := c.A(t.Context(), "a.test"); err != nil {
		t.Fatal(err)
	}
	if n.Load() != 2 {
		t.Errorf("%d queries", n.Load())
	}
}

// Wrong answers are waited out; the right one that follows counts.
func TestForgedAnswersAreIgnored(t *testing.T) {
	for what, spoil := range map[string]func(*dns.Msg){
		"id":       func(m *dns.Msg) { m.Id++ },
		"question": func(m *dns.Msg) { m.Question[0].Name = "b.test." },
		"case":     func(m *dns.Msg) { m.Question[0].Name = swapCase(m.Question[0].Name) },
		"type":     func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT },
		"query":    func(m *dns.Msg) { m.Response = false },
		"none":     func(m *dns.Msg) { m.Question = nil },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			answer := func(w dns.ResponseWriter, q *dns.Msg, forge, honest bool) {
				m := new(dns.Msg).SetReply(q)
				m.Answer = []dns.RR{rr(t, "a.test. 60 IN A 44.10.9.9")}
				spoil(m)
				if forge {
					w.WriteMsg(m)
				}
				if honest {
					m = new(dns.Msg).SetReply(q)
					m.Answer = []dns.RR{rr(t, "a.test. 60 IN A 44.10.0.10")}
					w.WriteMsg(m)
				}
			}
			c := Client{Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) { answer(w, q, true, true) })}}
			got, err := c.A(t.Context(), "a.test")
			if err != nil || !slices.Equal(got.Addrs, addrs("44.10.0.10")) {
				t.Errorf("got %v, %v", got, err)
			}
			c = Client{Timeout: 20 * time.Millisecond, Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) { answer(w, q, true, false) })}}
			var e *Error
			if _, err := c.A(t.Context(), "a.test"); !errors.As(err, &e) || e.Kind != Malformed {
				t.Errorf("forged only: %v", err)
			}
		})
	}
}

func swapCase(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r ^ 0x20
		}
		return r
	}, s)
}

func TestServersThatFail(t *testing.T) {
	rcode := func(n int) dns.HandlerFunc {
		return func(w dns.ResponseWriter, q *dns.Msg) { w.WriteMsg(new(dns.Msg).SetRcode(q, n)) }
	}
	closed := func() netip.AddrPort {
		pc, l := listen(t)
		pc.Close()
		l.Close()
		return netip.MustParseAddrPort(pc.LocalAddr().String())
	}
	for _, tt := range []struct {
		what   string
		server netip.AddrPort
		kind   Kind
	}{
		{"SERVFAIL", serve(t, rcode(dns.RcodeServerFailure)), ServFail},
		{"FORMERR", serve(t, rcode(dns.RcodeFormatError)), ServFail},
		{"REFUSED", serve(t, rcode(dns.RcodeRefused)), Refused},
		{"silence", serve(t, func(dns.ResponseWriter, *dns.Msg) {}), Timeout},
		{"nobody", closed(), Unreachable},
		{"noise", serve(t, func(w dns.ResponseWriter, _ *dns.Msg) { w.Write([]byte("nonsense of some length")) }), Malformed},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			c := Client{Servers: []netip.AddrPort{tt.server}, Timeout: 20 * time.Millisecond}
			_, err := c.A(t.Context(), "a.test")
			var e *Error
			if !errors.As(err, &e) || e.Kind != tt.kind || e.Server != tt.server || e.Name != "a.test" {
				t.Errorf("%v, want kind %d", err, tt.kind)
			}
			good := serve(t, zone(t, "a.test. 60 IN A 44.10.0.10"))
			c.Servers = append(c.Servers, good)
			c.Timeout = 200 * time.Millisecond
			if got, err := c.A(t.Context(), "a.test"); err != nil || len(got.Addrs) != 1 {
				t.Errorf("with a second server: %v, %v", got, err)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		var e *Error
		if _, err := new(Client).A(t.Context(), "a.test"); !errors.As(err, &e) || e.Kind != Unreachable {
			t.Errorf("%v", err)
		}
	})
}

func TestOneLostAnswerIsAskedForAgain(t *testing.T) {
	var n atomic.Int32
	h := zone(t, "a.test. 60 IN A 44.10.0.10")
	c := Client{Timeout: 50 * time.Millisecond, Servers: []netip.AddrPort{serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if n.Add(1) > 2 {
			h(w, q)
		}
	})}}
	if _, err := c.A(t.Context(), "a.test"); err != nil {
		t.Error(err)
	}
}

func TestCancelEndsTheWait(t *testing.T) {
	asked := make(chan struct{}, 10)
	c := Client{Timeout: time.Hour, Servers: []netip.AddrPort{serve(t, func(dns.ResponseWriter, *dns.Msg) { asked <- struct{}{} })}}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := c.A(ctx, "a.test"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	q := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
	q.Id = 1
	for _, records := range [][]string{nil, {"a.test. 60 IN A 44.10.0.10"}, {"a.test. 60 IN CNAME b.test.", "b.test. 60 IN A 44.10.0.10"}, {"a.test. 60 IN CNAME a.test."}} {
		m := new(dns.Msg).SetReply(q)
		for _, s := range records {
			r, err := dns.NewRR(s)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer = append(m.Answer, r)
		}
		raw, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, why := match(q, raw)
		if why != "" {
			return
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			r, err := read(m, "a.test.", qtype, MaxChain)
			if err != nil {
				continue
			}
			if len(r.addrs) > MaxRecords || r.left < 0 || r.left > MaxChain {
				t.Fatalf("%d addresses, %d CNAMEs left", len(r.addrs), r.left)
			}
			for _, a := range r.addrs {
				if a.Is4() != (qtype == dns.TypeA) {
					t.Fatalf("%v for type %d", a, qtype)
				}
			}
			if r.left == MaxChain && r.owner != "a.test." {
				t.Fatalf("owner %q without a CNAME", r.owner)
			}
		}
	})
}
