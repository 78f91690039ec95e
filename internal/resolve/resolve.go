// Package resolve is a DNS client. In goes a name, out come its addresses, IPv4
// ones unless both kinds are asked for, as the given servers told them, or an error that says which of
// the ways to have none it was. It asks nobody but those servers, reads no
// file of the system, keeps no cache, and takes no record that the chain of
// the name asked for does not own.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// Limits on what a server may make us do.
const (
	MaxRecords = 64 // records in one answer, and addresses of one name
	MaxChain   = 16 // CNAMEs from a name to its addresses

	tries        = 3 // rounds over the servers before a name is given up
	firstAsks    = 2 // lookups that must agree on a name with a stable answer
	moreAsks     = 4 // lookups a round while a rotating pool still shows new addresses
	moreRounds   = 4
	udpSize      = 1232 // announced: no fragments on any usual path (DNS flag day 2020)
	readSize     = 4096 // for servers that do not care
	queryTimeout = 2 * time.Second
)

// Client asks Servers in order. It needs no set-up and may be shared.
type Client struct {
	Servers []netip.AddrPort
	// Timeout is for one query to one server; zero is two seconds.
	Timeout time.Duration
	// Admit, if it is set, is asked before Once and Both send a name, that which a chain
	// leads to included, and its error is the answer instead.
	Admit func(name string) error
}

// Answer is what a name resolved to: at least one address, sorted, each once.
type Answer struct {
	Addrs []netip.Addr
	// TTL is the smallest of all records that led to the addresses.
	TTL time.Duration
}

// A returns the IPv4 addresses of name. It asks twice at the same time and, as
// long as the answers differ, some more times, and merges them: one address of
// a rotating pool is as good as the next. Errors are of type *Error, or the
// context's.
func (c *Client) A(ctx context.Context, name string) (Answer, error) {
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		return Answer{}, &Error{Name: name, Kind: Malformed, Detail: "it is not a domain name"}
	}
	answers, err := c.several(ctx, name, firstAsks)
	if len(answers) == 0 {
		return Answer{}, err
	}
	all := merge(answers...)
	if agree(answers) {
		return all, nil
	}
	for range moreRounds {
		before := len(all.Addrs)
		answers, _ := c.several(ctx, name, moreAsks)
		all = merge(append(answers, all)...)
		if len(all.Addrs) == before || before == MaxRecords {
			break
		}
	}
	return all, nil
}

// Once returns what one lookup of name gives, as it is: for somebody who asks
// again when the TTL has passed. A name without an IPv4 address is of kind
// NoData; whether it has others is not asked.
func (c *Client) Once(ctx context.Context, name string) (Answer, error) {
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		return Answer{}, &Error{Name: name, Kind: Malformed, Detail: "it is not a domain name"}
	}
	admit := c.Admit
	if admit == nil {
		admit = func(string) error { return nil }
	}
	return c.lookup(ctx, name, dns.TypeA, admit, func(string, int) error { return &Error{Kind: NoData} })
}

// Both is Once for addresses of either family, asked for at the same time. A family
// without any is as good as none; whatever else fails for one of them fails.
func (c *Client) Both(ctx context.Context, name string) (Answer, error) {
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		return Answer{}, &Error{Name: name, Kind: Malformed, Detail: "it is not a domain name"}
	}
	admit := c.Admit
	if admit == nil {
		admit = func(string) error { return nil }
	}
	var (
		wg      sync.WaitGroup
		answers [2]Answer
		errs    [2]error
	)
	for i, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		wg.Go(func() {
			answers[i], errs[i] = c.lookup(ctx, name, qtype, admit, func(string, int) error { return &Error{Kind: NoData} })
		})
	}
	wg.Wait()
	for _, err := range errs {
		e, ok := errors.AsType[*Error](err)
		if err != nil && !(ok && (e.Kind == NoData || e.Kind == NXDomain)) {
			return Answer{}, err
		}
	}
	switch {
	case errs[0] != nil && errs[1] != nil:
		return Answer{}, errs[0]
	case errs[0] != nil:
		return answers[1], nil
	case errs[1] != nil:
		return answers[0], nil
	}
	if n := len(answers[0].Addrs) + len(answers[1].Addrs); n > MaxRecords { // none of them goes unseen
		return Answer{}, &Error{Name: name, Kind: TooMuch, Detail: fmt.Sprintf("%d addresses, %d are allowed", n, MaxRecords)}
	}
	return merge(answers[0], answers[1]), nil
}

// several asks n times at once and returns the answers, and the first error.
func (c *Client) several(ctx context.Context, name string, n int) ([]Answer, error) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers []Answer
		first   error
	)
	for range n {
		wg.Go(func() {
			a, err := c.lookup(ctx, name, dns.TypeA, func(string) error { return nil }, func(owner string, left int) error {
				return c.whyEmpty(ctx, owner, left)
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				answers = append(answers, a)
			case first == nil:
				first = err
			}
		})
	}
	wg.Wait()
	return answers, first
}

func agree(answers []Answer) bool {
	for _, a := range answers[1:] {
		if !slices.Equal(a.Addrs, answers[0].Addrs) {
			return false
		}
	}
	return true
}

func merge(answers ...Answer) Answer {
	all := answers[0]
	for _, a := range answers[1:] {
		all.Addrs = append(slices.Clip(all.Addrs), a.Addrs...)
		all.TTL = min(all.TTL, a.TTL)
	}
	all.Addrs = slices.Compact(slices.SortedFunc(slices.Values(all.Addrs), netip.Addr.Compare))
	if len(all.Addrs) > MaxRecords {
		all.Addrs = all.Addrs[:MaxRecords]
	}
	return all
}

// lookup walks one chain to its addresses, over several queries if a server
// gives only the first part of it.
func (c *Client) lookup(ctx context.Context, name string, qtype uint16, admit func(owner string) error, empty func(owner string, left int) error) (Answer, error) {
	owner, left, ttl := dns.CanonicalName(name), MaxChain, maxTTL
	for {
		if err := admit(owner); err != nil {
			return Answer{}, err
		}
		r, err := c.ask(ctx, owner, qtype, left)
		if err != nil {
			return Answer{}, named(err, name)
		}
		ttl = min(ttl, r.ttl)
		if len(r.addrs) > 0 {
			return merge(Answer{Addrs: r.addrs, TTL: ttl}), nil
		}
		if r.owner == owner {
			return Answer{}, named(empty(owner, left), name)
		}
		owner, left = r.owner, r.left
	}
}

// whyEmpty tells a name with IPv6 addresses only from one without any.
func (c *Client) whyEmpty(ctx context.Context, owner string, left int) error {
	if r, err := c.ask(ctx, owner, dns.TypeAAAA, left); err == nil && len(r.addrs) > 0 {
		return &Error{Kind: NoA}
	}
	return &Error{Kind: NoData}
}

// ask goes round the servers until one of them gives a definite answer.
func (c *Client) ask(ctx context.Context, owner string, qtype uint16, left int) (reading, error) {
	var last error = &Error{Kind: Unreachable, Detail: "no server is configured"}
	for range tries {
		for _, server := range c.Servers {
			r, err := c.exchange(ctx, server, owner, qtype, left)
			if ctx.Err() != nil {
				return reading{}, context.Cause(ctx)
			}
			if err == nil {
				return r, nil
			}
			err.Server = server
			if err.Kind == NXDomain {
				return reading{}, err
			}
			last = err
		}
	}
	return reading{}, last
}

// exchange asks one server once: by UDP, and by TCP if the answer did not fit.
func (c *Client) exchange(ctx context.Context, server netip.AddrPort, owner string, qtype uint16, left int) (reading, *Error) {
	q := new(dns.Msg)
	q.SetQuestion(mixCase(owner), qtype)
	q.SetEdns0(udpSize, false)
	raw, err := c.roundTrip(ctx, "udp4", server, q)
	if err == nil && raw.Truncated {
		raw, err = c.roundTrip(ctx, "tcp4", server, q)
	}
	if err != nil {
		return reading{}, err
	}
	return read(raw, owner, qtype, left)
}

// roundTrip returns the first message that answers q. Others are not ours:
// somebody is guessing, and the wait goes on.
func (c *Client) roundTrip(ctx context.Context, network string, server netip.AddrPort, q *dns.Msg) (*dns.Msg, *Error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = queryTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, broken(err, network)
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })()

	conn := &dns.Conn{Conn: nc, UDPSize: readSize}
	if err := conn.WriteMsg(q); err != nil {
		return nil, broken(err, network)
	}
	strange := ""
	for {
		raw, err := conn.ReadMsgHeader(nil)
		if err != nil {
			e := broken(err, network)
			if e.Kind == Timeout && strange != "" {
				e = &Error{Kind: Malformed, Detail: strange}
			}
			return nil, e
		}
		m, why := match(q, raw)
		if why == "" {
			return m, nil
		}
		strange = why
		if network == "tcp4" {
			return nil, &Error{Kind: Malformed, Detail: strange}
		}
	}
}

// match returns raw as a message if it answers q, otherwise what is strange.
func match(q *dns.Msg, raw []byte) (*dns.Msg, string) {
	m := new(dns.Msg)
	err := m.Unpack(raw)
	switch {
	case m.Id != q.Id:
		return nil, "an answer with another id"
	case !m.Response || m.Opcode != dns.OpcodeQuery:
		return nil, "something that is not an answer"
	case len(m.Question) != 1 || m.Question[0] != q.Question[0]:
		return nil, "an answer to another question (or in other letter case)"
	case err != nil && !m.Truncated: // some servers cut within a record
		return nil, fmt.Sprintf("an answer that cannot be read (%v)", err)
	}
	return m, ""
}

// mixCase gives each letter of a name a random case, which the answer has to
// repeat: one more thing to guess for somebody who forges answers.
func mixCase(name string) string {
	b := []byte(name)
	for i, ch := range b {
		if 'a' <= ch && ch <= 'z' && rand.N(2) == 0 {
			b[i] = ch - 'a' + 'A'
		}
	}
	return string(b)
}

// broken is an exchange that got no answer at all.
func broken(err error, network string) *Error {
	// EAGAIN calls itself a timeout, and is none: no time has passed.
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return &Error{Kind: Unreachable, Detail: fmt.Sprintf("every local port to ask it from is taken (%s)", strings.TrimSuffix(network, "4"))}
	}
	var n net.Error
	if errors.As(err, &n) && n.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return &Error{Kind: Timeout, Detail: strings.TrimSuffix(network, "4")}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return &Error{Kind: Unreachable, Detail: errno.Error()}
	}
	return &Error{Kind: Malformed, Detail: err.Error()}
}
