package resolve

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// maxTTL is the largest that RFC 8767 lets a resolver believe.
const maxTTL = 7 * 24 * time.Hour

// reading is what one message says of a name: the end of its CNAME chain as
// far as the message goes, and the addresses there, if any.
type reading struct {
	owner string
	addrs []netip.Addr
	ttl   time.Duration
	left  int // CNAMEs that may still follow
}

// read takes from m the addresses of type qtype that belong to name: those of
// the last owner of the chain of CNAMEs that starts at name, and no others,
// whatever else the server put in.
func read(m *dns.Msg, name string, qtype uint16, left int) (reading, *Error) {
	switch m.Rcode {
	case dns.RcodeSuccess:
	case dns.RcodeNameError:
		return reading{}, &Error{Kind: NXDomain}
	case dns.RcodeRefused:
		return reading{}, &Error{Kind: Refused}
	default:
		return reading{}, &Error{Kind: ServFail, Rcode: m.Rcode}
	}
	if len(m.Answer) > MaxRecords {
		return reading{}, &Error{Kind: TooMuch, Detail: fmt.Sprintf("%d records, %d are allowed", len(m.Answer), MaxRecords)}
	}
	next := map[string]*dns.CNAME{}
	for _, rr := range m.Answer {
		if c, ok := rr.(*dns.CNAME); ok && c.Hdr.Class == dns.ClassINET {
			next[dns.CanonicalName(c.Hdr.Name)] = c
		}
	}
	r := reading{owner: dns.CanonicalName(name), ttl: maxTTL, left: left}
	for {
		c, ok := next[r.owner]
		if !ok {
			break
		}
		if r.left == 0 {
			return reading{}, &Error{Kind: TooMuch, Detail: fmt.Sprintf("more than %d CNAMEs in a row", MaxChain)}
		}
		r.left--
		r.owner = dns.CanonicalName(c.Target)
		r.ttl = min(r.ttl, seconds(c.Hdr.Ttl))
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Class != dns.ClassINET || h.Rrtype != qtype || dns.CanonicalName(h.Name) != r.owner {
			continue
		}
		var addr netip.Addr
		var ok bool
		switch rr := rr.(type) {
		case *dns.A:
			addr, ok = netip.AddrFromSlice(rr.A.To4())
		case *dns.AAAA:
			addr, ok = netip.AddrFromSlice(rr.AAAA.To16())
		}
		if !ok {
			return reading{}, &Error{Kind: Malformed, Detail: "an address record without an address"}
		}
		r.addrs = append(r.addrs, addr)
		r.ttl = min(r.ttl, seconds(h.Ttl))
	}
	return r, nil
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }
