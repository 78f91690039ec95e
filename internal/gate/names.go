package gate

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/domain"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// answerTTL: a pin holds until the gate says otherwise, and asking it again
	// costs nothing.
	answerTTL = 60
	// maxNameConns bounds the TCP connections that an agent can make the worker
	// keep.
	maxNameConns = 64
)

// named are the pins, and what the document itself gives an address: the host,
// if services may use any port of it, and the peers of links. Those come first,
// so that no pin takes their name.
func named(g spec.Gate, pins []spec.Pin) []spec.Pin {
	var fixed []spec.Pin
	if len(g.HostPorts) > 0 {
		fixed = append(fixed, spec.Pin{Domain: spec.HostName, Addrs: []netip.Addr{g.Gateway}, Ports: sorted(g.HostPorts)})
	}
	for _, l := range g.Links {
		fixed = append(fixed, spec.Pin{Domain: l.Name, Addrs: []netip.Addr{l.Addr}, Ports: []uint16{l.Port}})
	}
	return append(fixed, pins...)
}

// zone is a pin table made ready for lookups.
type zone struct {
	instance string
	document string                  // its digest
	addrs    map[string][]netip.Addr // by canonical name
	links    map[string][]string     // where they lead, by spec.LinkName
	sink     netip.Addr              // for names that are not in addrs, if it is valid
	forward  *forward                // for those too, if it is there
}

func newZone(t table) *zone {
	z := &zone{instance: t.Instance, document: t.Document, sink: t.Sink, forward: newForward(t), addrs: map[string][]netip.Addr{
		"localhost.": {netip.AddrFrom4([4]byte{127, 0, 0, 1})},
	}, links: map[string][]string{}}
	for _, l := range t.Links {
		name := spec.LinkName(l.Name)
		z.links[name] = append(z.links[name], netip.AddrPortFrom(l.Addr, l.Port).String())
	}
	for _, p := range t.Pins {
		z.addrs[dns.CanonicalName(p.Domain)] = p.Addrs
	}
	return z
}

// others is what becomes of lookups of names that have no address here.
func (z *zone) others() string {
	switch {
	case z.forward != nil:
		return spec.NamesPublic
	case z.sink.IsValid():
		return spec.NamesSink
	}
	return spec.NamesBlocked
}

// fate is what becomes of a lookup.
type fate int

const (
	refusedName fate = iota // on record as refused, whatever the answer
	answered
	passedOn // somebody outside has to be asked
)

// begin is the answer to q that says nothing yet.
func begin(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	if q.IsEdns0() != nil {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	return m
}

// explain gives the reason of an answer, to those who can take one.
func explain(m *dns.Msg, code uint16, text string) {
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: code, ExtraText: text}}
	}
}

// texts are what the gate tells of itself, and whether the name is one to ask so.
func (z *zone) texts(name string) (texts []string, own bool) {
	switch {
	case name == spec.InstanceName:
		return []string{z.instance}, true
	case name == spec.NamesName:
		return []string{z.others()}, true
	case name == spec.ReleaseName:
		return []string{spec.Release()}, true
	case name == spec.DocumentName:
		return []string{z.document}, true
	}
	return z.links[name], strings.HasSuffix(name, "."+spec.LinkZone)
}

// answer is what the names server knows by itself: A records of pinned names and
// nothing of any other type for them; for everything else "blocked", or the
// sink, or that it has to be asked for, which is for A records of public names
// only.
func (z *zone) answer(q *dns.Msg) (*dns.Msg, fate) {
	m := begin(q)
	question := q.Question[0]
	name := dns.CanonicalName(question.Name)
	hdr := dns.RR_Header{Name: question.Name, Class: question.Qclass, Ttl: answerTTL}

	if texts, own := z.texts(name); own && question.Qclass == dns.ClassCHAOS {
		if question.Qtype == dns.TypeTXT || question.Qtype == dns.TypeANY {
			hdr.Rrtype, hdr.Ttl = dns.TypeTXT, 0
			for _, text := range texts {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: hdr, Txt: []string{text}})
			}
		}
		return m, answered
	}
	addrs, became := z.addrs[name], answered
	if addrs == nil || question.Qclass != dns.ClassINET {
		blocked := "not in the sandbox's policy"
		if z.forward != nil && question.Qclass == dns.ClassINET {
			blocked = domain.NotPublic(name)
		}
		switch {
		case blocked == "" && question.Qtype == dns.TypeA:
			return m, passedOn
		case blocked == "":
			return m, answered // other types have nothing to say where IPv4 is all there is
		case z.sink.IsValid() && question.Qclass == dns.ClassINET:
			addrs, became = []netip.Addr{z.sink}, refusedName
		default:
			m.Rcode = dns.RcodeNameError
			explain(m, dns.ExtendedErrorCodeBlocked, blocked)
			return m, refusedName
		}
	}
	if question.Qtype == dns.TypeA || question.Qtype == dns.TypeANY {
		hdr.Rrtype = dns.TypeA
		for _, a := range addrs {
			m.Answer = append(m.Answer, &dns.A{Hdr: hdr, A: a.AsSlice()})
		}
	}
	return m, became
}

// names answers lookups inside the namespace from the current zone. It asks
// nobody, unless that zone passes lookups on.
type names struct {
	zone atomic.Pointer[zone]
	// refused and lookedUp are told names, verdicts gives those on a probe and the
	// newest number.
	refused, lookedUp func(name string)
	verdicts          func(spec.Probe) ([]spec.Verdict, uint64)
	// slots bound the lookups passed on at a time.
	slots chan struct{}
}

func (n *names) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z := n.zone.Load()
	if z == nil || len(q.Question) != 1 {
		m := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		w.WriteMsg(m)
		return
	}
	name := dns.CanonicalName(q.Question[0].Name)
	m := n.tell(q, name)
	if m == nil {
		var became fate
		m, became = z.answer(q)
		if became == passedOn {
			m, became = n.pass(z, q, name)
		}
		if became == refusedName {
			n.refused(name)
		}
	}
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
	}
	if w.LocalAddr().Network() == "tcp" {
		size = dns.MaxMsgSize
	}
	m.Truncate(size)
	w.WriteMsg(m)
}

// pass has a name looked up, if a slot is free for it.
func (n *names) pass(z *zone, q *dns.Msg, name string) (*dns.Msg, fate) {
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	default:
		m := begin(q)
		m.Rcode = dns.RcodeServerFailure
		explain(m, dns.ExtendedErrorCodeOther, "too many lookups at a time")
		return m, answered
	}
	n.lookedUp(name)
	m, refused := z.forward.reply(context.Background(), q)
	if refused {
		return m, refusedName
	}
	return m, answered
}

// tell answers questions about probes, nil for any other. Whoever is inside can
// ask; there is nothing to learn but what became of packets that were sent from
// here, from ports that nobody needs.
func (n *names) tell(q *dns.Msg, name string) *dns.Msg {
	question := q.Question[0]
	if question.Qclass != dns.ClassCHAOS || question.Qtype != dns.TypeTXT {
		return nil
	}
	p, about := spec.ParseVerdictName(name)
	if !about && name != spec.VerdictZone {
		return nil
	}
	m := begin(q)
	verdicts, newest := n.verdicts(p)
	texts := []string{strconv.FormatUint(newest, 10)}
	if about {
		texts = nil
		for _, v := range verdicts {
			texts = append(texts, v.Text())
		}
	}
	for _, text := range texts {
		hdr := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeTXT, Class: dns.ClassCHAOS}
		m.Answer = append(m.Answer, &dns.TXT{Hdr: hdr, Txt: []string{text}})
	}
	return m
}

// maxTold is how many verdicts on one probe are told, the newest: it is one
// packet as a rule, and some more where it was sent again.
const maxTold = 8

// about gives the newest verdicts on a probe, newest first, and the newest number of all.
// Docker rewrites the port of what is sent to its resolver.
func (a *audit) about(p spec.Probe) (told []spec.Verdict, newest uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range slices.Backward(a.ring) {
		same := v.Port == p.Port || p.Addr == dockerResolver.Addr() && p.Port == dockerResolver.Port()
		if v.Source == p.Source && v.Proto == p.Proto && v.Addr == p.Addr && same {
			if told = append(told, v); len(told) == maxTold {
				break
			}
		}
	}
	return told, a.seq
}

// run serves on both sockets until the context ends.
func (n *names) run(ctx context.Context, pc net.PacketConn, l net.Listener) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return serveDatagrams(ctx, pc, n) })
	s := &dns.Server{Listener: netutil.LimitListener(l, maxNameConns), Handler: n}
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	tasks.Go(s.ActivateAndServe)
	tasks.Go(func() error {
		select {
		case <-started:
			<-ctx.Done()
			s.Shutdown()
		case <-ctx.Done():
		}
		return nil
	})
	return tasks.Wait()
}
