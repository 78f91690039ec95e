package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// ask asks a name server from the host and returns the records' values, or the
// status.
func ask(t *testing.T, server netip.Addr, proto, name string, rtype uint16) (string, *dns.Msg) {
	t.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), rtype)
	c := &dns.Client{Net: proto, Timeout: patience}
	r, _, err := c.Exchange(m, netip.AddrPortFrom(server, 53).String())
	if err != nil {
		t.Fatalf("%s %s: %v", name, proto, err)
	}
	if r.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[r.Rcode], r
	}
	var values []string
	for _, rr := range r.Answer {
		values = append(values, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return strings.Join(values, " "), r
}

func TestScripts(t *testing.T) {
	l := Use(t)
	many := make([]string, 80)
	for i := range many {
		many[i] = fmt.Sprintf("44.10.1.%d", i+1)
	}
	for _, tt := range []struct {
		name    string
		replies []Reply
		rtype   uint16
		want    []string // of successive queries
	}{
		{"nothing.unlisted.test", nil, dns.TypeA, []string{"NXDOMAIN"}},
		{"one.allowed.test", []Reply{A("44.10.0.10")}, dns.TypeA, []string{"44.10.0.10", "44.10.0.10"}},
		{"six.allowed.test", []Reply{A("44.10.0.10", "fd44:10::1")}, dns.TypeAAAA, []string{"fd44:10::1"}},
		{"nodata.allowed.test", []Reply{A("fd44:10::1")}, dns.TypeA, []string{""}},
		{"fails.allowed.test", []Reply{Rcode(dns.RcodeServerFailure), A("44.10.0.11")}, dns.TypeA, []string{"SERVFAIL", "44.10.0.11", "44.10.0.11"}},
		{"twice.allowed.test", []Reply{A("44.10.0.10", "44.10.0.10")}, dns.TypeA, []string{"44.10.0.10 44.10.0.10"}},
		{"moves.allowed.test", []Reply{A("44.10.0.10"), A("44.10.0.11"), Rcode(dns.RcodeNameError)}, dns.TypeA, []string{"44.10.0.10", "44.10.0.11", "NXDOMAIN", "NXDOMAIN"}},
		{"pool.allowed.test", []Reply{A("44.10.0.10", "44.10.0.11", "44.10.0.12").Rotating(2)}, dns.TypeA, []string{"44.10.0.10 44.10.0.11", "44.10.0.12 44.10.0.10", "44.10.0.11 44.10.0.12"}},
		{"rebinds.evil.test", []Reply{A("44.10.0.10"), A("10.0.0.1", "127.0.0.1")}, dns.TypeA, []string{"44.10.0.10", "10.0.0.1 127.0.0.1"}},
		{"chain.allowed.test", []Reply{A("44.10.0.10").Via("a.cdn.test", "b.cdn.test")}, dns.TypeA, []string{"a.cdn.test. b.cdn.test. 44.10.0.10"}},
		{"stray.evil.test", []Reply{Records("stray.evil.test. 5 IN A 44.10.0.10", "other.test. 5 IN A 44.10.9.9")}, dns.TypeA, []string{"44.10.0.10 44.10.9.9"}},
		{"slow.allowed.test", []Reply{A("44.10.0.10").Slow(time.Millisecond)}, dns.TypeA, []string{"44.10.0.10"}},
	} {
		l.DNS.Set(tt.name, tt.replies...)
		for i, want := range tt.want {
			if got, _ := ask(t, NameServer, "udp", tt.name, tt.rtype); got != want {
				t.Errorf("%s, query %d: %q, want %q", tt.name, i, got, want)
			}
		}
		if got := len(l.DNS.Queries(tt.name)); got != len(tt.want) {
			t.Errorf("%s: %d queries in the log, want %d", tt.name, got, len(tt.want))
		}
	}

	l.DNS.Set("big.allowed.test", A(many...))
	_, small := ask(t, NameServer, "udp", "big.allowed.test", dns.TypeA)
	_, whole := ask(t, NameServer, "tcp", "big.allowed.test", dns.TypeA)
	if !small.Truncated || whole.Truncated || len(whole.Answer) != len(many) {
		t.Errorf("80 addresses: udp truncated %v, tcp truncated %v with %d", small.Truncated, whole.Truncated, len(whole.Answer))
	}
	l.DNS.Set("cut.allowed.test", A("44.10.0.10", "44.10.0.11").Truncated().TTL(0))
	_, small = ask(t, NameServer, "udp", "cut.allowed.test", dns.TypeA)
	_, whole = ask(t, NameServer, "tcp", "cut.allowed.test", dns.TypeA)
	if !small.Truncated || len(small.Answer) != 1 || whole.Truncated || len(whole.Answer) != 2 || whole.Answer[0].Header().Ttl != 0 {
		t.Errorf("truncated on purpose: udp %v, tcp %v", small, whole)
	}
}

func TestSilenceAndUntil(t *testing.T) {
	l := Use(t)
	l.DNS.Set("silent.allowed.test", Silence())
	m := new(dns.Msg).SetQuestion("silent.allowed.test.", dns.TypeA)
	c := &dns.Client{Timeout: 100 * time.Millisecond}
	if r, _, err := c.Exchange(m, netip.AddrPortFrom(NameServer, 53).String()); err == nil {
		t.Errorf("an answer: %v", r)
	}
	l.DNS.Await(t, func(q Query) bool { return q.Name == "silent.allowed.test" })

	gate := make(chan struct{})
	l.DNS.Set("held.allowed.test", A("44.10.0.10").Until(gate))
	answer := make(chan string, 1)
	go func() {
		r, _, err := (&dns.Client{Timeout: patience}).Exchange(new(dns.Msg).SetQuestion("held.allowed.test.", dns.TypeA), netip.AddrPortFrom(NameServer, 53).String())
		answer <- fmt.Sprint(err, r != nil && len(r.Answer) == 1)
	}()
	l.DNS.Await(t, func(q Query) bool { return q.Name == "held.allowed.test" })
	select {
	case got := <-answer:
		t.Fatalf("answered before it may: %v", got)
	default:
	}
	close(gate)
	if got := <-answer; got != "<nil> true" {
		t.Error(got)
	}
}

func TestAuthorityRecords(t *testing.T) {
	l := Use(t)
	secret := "c2VjcmV0.Exfil.Evil.test"
	for _, proto := range []string{"udp", "tcp"} {
		if got, _ := ask(t, Authority, proto, secret, dns.TypeTXT); got != "NXDOMAIN" {
			t.Errorf("%s: %s", proto, got)
		}
	}
	qs := l.Authority.Queries(secret)
	if len(qs) != 2 || qs[0].Proto != "udp" || qs[1].Proto != "tcp" || qs[0].Type != "TXT" || qs[0].From.Addr() != HostAddr || qs[0].Asked != secret+"." {
		t.Errorf("log: %v", qs)
	}
	if got := l.DNS.Queries(secret); len(got) != 0 {
		t.Errorf("the other server has it too: %v", got)
	}
	if !slices.ContainsFunc(l.Wire.To(Authority), func(p Packet) bool { return p.Proto == "udp" && p.DstPort == 53 }) {
		t.Error("not on the wire")
	}
}
