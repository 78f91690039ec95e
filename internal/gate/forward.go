package gate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/domain"
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
		if why := domain.NotPublic(name); why != "" {
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
