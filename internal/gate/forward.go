package gate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/resolve"
)

const (
	// maxForwards bounds the lookups that a service can have under way; what is
	// more fails at once.
	maxForwards = 64
	// forwardTimeout is for one of them: two tries at a silent server, and less
	// than programs wait.
	forwardTimeout = 4500 * time.Millisecond
	// forwardTTL is how long an answer may be kept at most: the addresses behind a
	// name are judged anew with every lookup.
	forwardTTL = time.Minute
)

// forward looks names up for a service whose gate is of ClassPublic, and passes
// on nothing that is not public: neither a name nor an address.
type forward struct {
	client resolve.Client
	never  []netip.Prefix
}

// newForward is nil where nothing is looked up for the service.
func newForward(t table) *forward {
	if len(t.Forward) == 0 {
		return nil
	}
	return &forward{never: t.Never, client: resolve.Client{Servers: t.Forward, Admit: func(name string) error {
		if why := notPublicName(name); why != "" {
			return &filtered{fmt.Sprintf("it leads to %s: %s", name, why)}
		}
		return nil
	}}}
}

// filtered is an answer that a service does not get.
type filtered struct{ why string }

func (e *filtered) Error() string { return e.why }

// lookUp is the addresses of a name, all of them public, and for how long.
// Where one is not, who answers with it may answer with anything: the error is
// a *filtered.
func (f *forward) lookUp(ctx context.Context, name string) (resolve.Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, forwardTimeout, &resolve.Error{Name: name, Kind: resolve.Timeout})
	defer cancel()
	answer, err := f.client.Once(ctx, name)
	if err != nil {
		return resolve.Answer{}, err
	}
	for _, a := range answer.Addrs {
		if err := netguard.Pin(a, nil, f.never); err != nil {
			return resolve.Answer{}, &filtered{err.Error()}
		}
	}
	answer.TTL = max(0, min(answer.TTL, forwardTTL))
	return answer, nil
}

// reply answers a question for A records by a lookup. It reports whether the
// name is refused for where it leads.
func (f *forward) reply(ctx context.Context, q *dns.Msg) (m *dns.Msg, refused bool) {
	m = begin(q)
	question := q.Question[0]
	answer, err := f.lookUp(ctx, dns.CanonicalName(question.Name))
	var spoilt *filtered
	var failure *resolve.Error
	switch {
	case err == nil:
		hdr := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: uint32(answer.TTL / time.Second)}
		for _, a := range answer.Addrs {
			m.Answer = append(m.Answer, &dns.A{Hdr: hdr, A: a.AsSlice()})
		}
	case errors.As(err, &spoilt):
		m.Rcode = dns.RcodeNameError
		explain(m, dns.ExtendedErrorCodeFiltered, spoilt.why)
		return m, true
	case errors.As(err, &failure) && failure.Kind == resolve.NXDomain:
		m.Rcode = dns.RcodeNameError
	case errors.As(err, &failure) && failure.Kind == resolve.NoData:
	default:
		m.Rcode = dns.RcodeServerFailure
		explain(m, dns.ExtendedErrorCodeNetworkError, strings.TrimPrefix(err.Error(), dns.CanonicalName(question.Name)+": "))
	}
	return m, false
}

// notHosts are the top-level domains that hold no public host, whatever a
// resolver says of them: special by RFC 6761, 6762 (its appendix G too), 7686,
// 9476 or, like home.arpa and in-addr.arpa, below a domain that is there for the
// network itself (RFC 3172); kept for private networks by ICANN; or the names of
// this machine. Of RFC 6761, test is missing on purpose: only the resolver of a
// test network knows such names, and who names one means it. No other is asked
// anything that its own root does not deny.
var notHosts = map[string]string{
	"invalid":     "names below invalid exist nowhere",
	"example":     "names below example exist nowhere",
	"localhost":   "it means this machine",
	"localdomain": "it means this machine",
	"local":       "names below local are a link's own",
	"onion":       "names below onion are not in the DNS",
	"alt":         "names below alt are not in the DNS",
	"arpa":        "names below arpa are the network's own",
	"internal":    "names below internal are a private network's",
	"intranet":    "names below intranet are a private network's",
	"private":     "names below private are a private network's",
	"corp":        "names below corp are a private network's",
	"home":        "names below home are a private network's",
	"lan":         "names below lan are a private network's",
}

// notPublicName says why a name, in canonical form with its dot, cannot be that
// of a public host; empty if it can.
func notPublicName(name string) string {
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 { // RFC 1035, section 2.3.4, without the trailing dot
		return "it is longer than a name can be"
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		switch {
		case l == "":
			return "it has an empty label"
		case len(l) > 63:
			return "a label of it is longer than 63 characters"
		case strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-") != "", l[0] == '-', l[len(l)-1] == '-':
			return "names of hosts are of letters, digits and hyphens"
		}
	}
	top := labels[len(labels)-1]
	switch why := notHosts[top]; {
	case why != "":
		return why
	case len(labels) == 1:
		return "a single label means a host of this network"
	case strings.Trim(top, "0123456789") == "", strings.HasPrefix(top, "0x"):
		return "it ends in a number, as an address does"
	}
	return ""
}
