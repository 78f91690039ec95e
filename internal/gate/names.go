package gate

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

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
func (g *gate) named() []spec.Pin {
	var fixed []spec.Pin
	if len(g.spec.HostPorts) > 0 {
		fixed = append(fixed, spec.Pin{Domain: spec.HostName, Addrs: []netip.Addr{g.spec.Gateway}, Ports: sorted(g.spec.HostPorts)})
	}
	for _, l := range g.spec.Links {
		fixed = append(fixed, spec.Pin{Domain: l.Name, Addrs: []netip.Addr{l.Addr}, Ports: []uint16{l.Port}})
	}
	return append(fixed, g.pins...)
}

// zone is a pin table made ready for lookups.
type zone struct {
	instance string
	addrs    map[string][]netip.Addr // by canonical name
}

func newZone(t table) *zone {
	z := &zone{instance: t.Instance, addrs: map[string][]netip.Addr{
		"localhost.": {netip.AddrFrom4([4]byte{127, 0, 0, 1})},
	}}
	for _, p := range t.Pins {
		z.addrs[dns.CanonicalName(p.Domain)] = p.Addrs
	}
	return z
}

// answer is the whole of what the names server knows: A records of pinned
// names, nothing of any other type for them, and "blocked" for everything
// else. It reports whether the name was refused.
func (z *zone) answer(q *dns.Msg) (m *dns.Msg, refused bool) {
	m = new(dns.Msg).SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	opt := q.IsEdns0()
	if opt != nil {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	question := q.Question[0]
	name := dns.CanonicalName(question.Name)
	hdr := dns.RR_Header{Name: question.Name, Class: question.Qclass, Ttl: answerTTL}

	if question.Qclass == dns.ClassCHAOS && name == spec.InstanceName {
		if question.Qtype == dns.TypeTXT || question.Qtype == dns.TypeANY {
			hdr.Rrtype, hdr.Ttl = dns.TypeTXT, 0
			m.Answer = []dns.RR{&dns.TXT{Hdr: hdr, Txt: []string{z.instance}}}
		}
		return m, false
	}
	addrs, known := z.addrs[name]
	if !known || question.Qclass != dns.ClassINET {
		m.Rcode = dns.RcodeNameError
		if opt != nil {
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: "not in the sandbox's policy"}}
		}
		return m, true
	}
	if question.Qtype == dns.TypeA || question.Qtype == dns.TypeANY {
		hdr.Rrtype = dns.TypeA
		for _, a := range addrs {
			m.Answer = append(m.Answer, &dns.A{Hdr: hdr, A: a.AsSlice()})
		}
	}
	return m, false
}

// names answers lookups inside the namespace from the current zone alone. It
// asks nobody.
type names struct {
	zone    atomic.Pointer[zone]
	refused func(name string)
}

func (n *names) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z := n.zone.Load()
	if z == nil || len(q.Question) != 1 {
		m := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		w.WriteMsg(m)
		return
	}
	m, refused := z.answer(q)
	if refused {
		n.refused(dns.CanonicalName(q.Question[0].Name))
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

// run serves on both sockets until the context ends.
func (n *names) run(ctx context.Context, pc net.PacketConn, l net.Listener) error {
	tasks, ctx := errgroup.WithContext(ctx)
	for _, s := range []*dns.Server{
		{PacketConn: pc, Handler: n, ReadTimeout: time.Hour}, // it need not wake up
		{Listener: netutil.LimitListener(l, maxNameConns), Handler: n},
	} {
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
	}
	return tasks.Wait()
}
