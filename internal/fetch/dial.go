package fetch

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/corral-sandbox/corral/internal/domain"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// maxTried bounds the addresses of one name that are dialled.
const maxTried = 8

// check says why an address may not be dialled, or nil. It is asked about every
// address that a name has, and again about the one that a socket is about to be
// connected to.
func (f *follower) check(a netip.Addr) error {
	switch class := netguard.Classify(a); {
	case class != netguard.Public:
		return failf(spec.FetchBlocked, "%s: %s: %s", a, class, class.Reason())
	case a.Is4In6():
		return failf(spec.FetchBlocked, "%s: %s: %s", a, netguard.Translated, netguard.Translated.Reason())
	}
	for _, p := range f.Never {
		if p.Contains(a) {
			return failf(spec.FetchBlocked, "%s: the settings say never %s", a, p)
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return failf(spec.FetchBlocked, "%s: it cannot be told from this machine's: %v", a, err)
	}
	for _, o := range own {
		p, err := netip.ParsePrefix(o.String())
		if err != nil || p.Addr() == a {
			return failf(spec.FetchBlocked, "%s: it belongs to this machine", a)
		}
	}
	return nil
}

// destination are the addresses of a target, every one of them checked: a name that
// has one which may not be dialled may have any, and is refused whole.
func (f *follower) destination(ctx context.Context, t target) ([]netip.Addr, error) {
	addrs := []netip.Addr{t.addr}
	if t.name != "" {
		var err error
		if addrs, err = f.lookUp(ctx, t.name); err != nil {
			return nil, err
		}
	}
	for _, a := range addrs {
		if err := f.check(a); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

// lookUp asks once. Nothing is kept: what a name meant a moment ago says nothing.
func (f *follower) lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.Connect, &resolve.Error{Name: name, Kind: resolve.Timeout})
	defer cancel()
	client := resolve.Client{Servers: f.Resolvers, Admit: func(owner string) error {
		if why := domain.NotPublic(owner); why != "" {
			return failf(spec.FetchBlocked, "%s leads to %s: %s", name, owner, why)
		}
		return nil
	}}
	answer, err := client.Both(ctx, name)
	var refused *failure
	var unknown *resolve.Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case errors.As(err, &unknown):
		unknown.Server = netip.AddrPort{} // whom this asks is nobody's business
		return nil, failf(spec.FetchDNS, "%v", unknown)
	case err != nil:
		return nil, err
	}
	return answer.Addrs, nil
}

// dial connects to one of the checked addresses of one hop, and to nothing else.
type dial struct {
	*follower
	addrs []netip.Addr
	port  uint16
	at    netip.Addr // where it got through
}

// connect is a transport's DialContext. What address the transport has in mind does
// not count.
func (d *dial) connect(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Connect)
	defer cancel()
	// Addresses are sorted, IPv4 first: it is what a gate lets through.
	deadline, _ := ctx.Deadline()
	var errs []error
	tried := d.addrs[:min(len(d.addrs), maxTried)]
	for i, a := range tried {
		dialer := net.Dialer{ControlContext: d.wall, KeepAlive: -1}
		dialer.Deadline = share(deadline, len(tried)-i)
		c, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, d.port).String())
		if err == nil {
			d.at = a
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &unconnected{errs}
}

// unconnected is a dial that failed at every address.
type unconnected struct{ errs []error }

func (e *unconnected) Error() string { return errors.Join(e.errs...).Error() }

func (e *unconnected) Unwrap() []error { return e.errs }

// wall looks at what the kernel is about to connect to, whatever came before it.
func (d *dial) wall(_ context.Context, network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return failf(spec.FetchBlocked, "%s %s: not an address to connect to", network, address)
	}
	if to.Port() != d.port || !slices.Contains(d.addrs, to.Addr()) {
		return failf(spec.FetchBlocked, "%s: it was not checked", to)
	}
	return d.check(to.Addr())
}
