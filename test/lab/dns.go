package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// ttl is the TTL of an answer that says nothing else, in seconds.
const ttl = 60

// Reply is what the stub says to one query. The zero value is an empty answer
// without an error (NODATA).
type Reply struct {
	addrs    []netip.Addr
	chain    []string
	records  []string
	rcode    int
	ttl      uint32
	pick     int
	delay    time.Duration
	until    <-chan struct{}
	truncate bool
	silent   bool
}

// A answers with addresses, in this order, duplicates included: IPv4 ones to A
// queries, IPv6 ones to AAAA queries.
func A(addrs ...string) Reply {
	r := Reply{ttl: ttl}
	for _, a := range addrs {
		r.addrs = append(r.addrs, netip.MustParseAddr(a))
	}
	return r
}

// Rcode answers with an error, such as dns.RcodeServerFailure.
func Rcode(code int) Reply { return Reply{rcode: code} }

// Silence never answers.
func Silence() Reply { return Reply{silent: true} }

// Records answers every query with records as in a zone file, whoever owns
// them.
func Records(records ...string) Reply { return Reply{records: records} }

// TTL sets the TTL in seconds.
func (r Reply) TTL(seconds uint32) Reply { r.ttl = seconds; return r }

// Via puts a chain of CNAMEs before the addresses.
func (r Reply) Via(names ...string) Reply { r.chain = names; return r }

// Rotating gives k of the addresses at a time, the next k at the next query.
func (r Reply) Rotating(k int) Reply { r.pick = k; return r }

// Slow answers after a delay.
func (r Reply) Slow(d time.Duration) Reply { r.delay = d; return r }

// Until answers once ch is closed.
func (r Reply) Until(ch <-chan struct{}) Reply { r.until = ch; return r }

// Truncated gives the first record only and says so, over UDP; TCP gets all.
func (r Reply) Truncated() Reply { r.truncate = true; return r }

// Query is one question that a name server heard.
type Query struct {
	At    time.Time
	From  netip.AddrPort
	Name  string // lower case, without the final dot
	Asked string // as it was spelled
	Type  string // A, AAAA, …
	Proto string // udp, tcp
	ID    uint16
}

func (q Query) String() string {
	return fmt.Sprintf("%s %s from %v by %s", q.Type, q.Asked, q.From, q.Proto)
}

// DNS is a name server in the lab. It answers as told, NXDOMAIN for what it
// was not told about, and remembers every question.
type DNS struct {
	journal journal[Query]
	ctx     context.Context

	mu    sync.Mutex
	names map[string]*script
}

type script struct {
	replies []Reply
	asked   int
	turn    int // of a rotating reply
}

func (l *Lab) nameServer(addr netip.Addr) (*DNS, error) {
	d := &DNS{ctx: l.ctx, names: map[string]*script{}}
	at := netip.AddrPortFrom(addr, 53).String()
	pc, err := l.listenPacket(at)
	if err != nil {
		return nil, err
	}
	ln, err := l.listen(at)
	if err != nil {
		pc.Close()
		return nil, err
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: d}, {Listener: ln, Handler: d}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		l.serving.Go(func() { _ = s.ActivateAndServe() })
		<-started
		l.onClose(s.Shutdown)
	}
	return d, nil
}

// Set says what to answer for a name from now on: the first query gets the
// first reply, and so on; the last one stays. Without replies the name does
// not exist.
func (d *DNS) Set(name string, replies ...Reply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[clean(name)] = &script{replies: replies}
}

func (d *DNS) reset() {
	d.mu.Lock()
	clear(d.names)
	d.mu.Unlock()
	d.journal.reset()
}

// Queries returns every question so far about one of the names, or about any
// name if none is given.
func (d *DNS) Queries(names ...string) []Query {
	return d.journal.list(func(q Query) bool {
		return len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return clean(n) == q.Name })
	})
}

// Await returns the first question that matches, waiting for it if it has not
// come yet.
func (d *DNS) Await(tb testing.TB, match func(Query) bool) Query {
	tb.Helper()
	return d.journal.await(tb, "query", match)
}

// ServeDNS answers one query.
func (d *DNS) ServeDNS(w dns.ResponseWriter, req *dns.Msg) {
	if len(req.Question) != 1 {
		return
	}
	q := req.Question[0]
	name, proto := clean(q.Name), w.RemoteAddr().Network()
	d.journal.add(Query{
		At: time.Now(), From: addrPort(w.RemoteAddr()), Name: name, Asked: q.Name,
		Type: dns.TypeToString[q.Qtype], Proto: proto, ID: req.Id,
	})

	r, turn, known := d.next(name)
	if r.silent {
		w.Close()
		return
	}
	if r.until != nil {
		select {
		case <-r.until:
		case <-d.ctx.Done():
		}
	}
	if r.delay > 0 {
		select {
		case <-time.After(r.delay):
		case <-d.ctx.Done():
		}
	}

	m := new(dns.Msg).SetReply(req)
	m.Authoritative, m.RecursionAvailable = true, true
	size := dns.MinMsgSize
	if opt := req.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
		m.SetEdns0(opt.UDPSize(), opt.Do())
	}
	m.Rcode = r.rcode
	if !known {
		m.Rcode = dns.RcodeNameError
	}
	m.Answer = r.answer(q, turn)
	if proto == "udp" {
		m.Truncate(size)
		if r.truncate {
			m.Truncated = true
			m.Answer = m.Answer[:min(1, len(m.Answer))]
		}
	}
	_ = w.WriteMsg(m) // whoever asked may be gone
}

func (d *DNS) next(name string) (r Reply, turn int, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.names[name]
	if s == nil || len(s.replies) == 0 {
		return Reply{}, 0, false
	}
	r = s.replies[min(s.asked, len(s.replies)-1)]
	s.asked++
	turn = s.turn
	s.turn += r.pick
	return r, turn, true
}

func (r Reply) answer(q dns.Question, turn int) []dns.RR {
	var rrs []dns.RR
	for _, s := range r.records {
		rr, err := dns.NewRR(s)
		if err != nil {
			panic(fmt.Sprintf("lab: record %q: %v", s, err))
		}
		rrs = append(rrs, rr)
	}
	owner := q.Name
	for _, next := range r.chain {
		rrs = append(rrs, &dns.CNAME{Hdr: r.header(owner, dns.TypeCNAME), Target: dns.Fqdn(next)})
		owner = dns.Fqdn(next)
	}
	for i := range len(r.addrs) {
		if r.pick > 0 && i >= r.pick {
			break
		}
		a := r.addrs[(turn+i)%len(r.addrs)]
		switch {
		case a.Is4() && q.Qtype == dns.TypeA:
			rrs = append(rrs, &dns.A{Hdr: r.header(owner, dns.TypeA), A: a.AsSlice()})
		case a.Is6() && q.Qtype == dns.TypeAAAA:
			rrs = append(rrs, &dns.AAAA{Hdr: r.header(owner, dns.TypeAAAA), AAAA: a.AsSlice()})
		}
	}
	return rrs
}

func (r Reply) header(owner string, rtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: rtype, Class: dns.ClassINET, Ttl: r.ttl}
}

func clean(name string) string {
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

func addrPort(a net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
