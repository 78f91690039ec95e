package gate

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/spec"
)

// parseSpec decodes a document and checks it, the ends of its links included.
func parseSpec(r io.Reader) (spec.Gate, error) {
	g, err := spec.ParseGate(r)
	if err != nil {
		return spec.Gate{}, err
	}
	if err := checkEnds(g); err != nil {
		return spec.Gate{}, fmt.Errorf("gate spec: %w", err)
	}
	return g, nil
}

// checkEnds holds what a link may lead to, and who a client may be: no word of a
// document's is to open what every other one keeps shut.
func checkEnds(g spec.Gate) error {
	var failures []error
	for _, l := range g.Links {
		if err := checkLinked(l.Addr, g.Gateway); err != nil {
			failures = append(failures, fmt.Errorf("link %q: %w", l.Name, err))
		}
	}
	for _, c := range g.Clients {
		if err := checkCaller(c.Addr); err != nil {
			failures = append(failures, fmt.Errorf("client of port %d: %w", c.Port, err))
		}
	}
	return errors.Join(failures...)
}

// A link leads to another container, and those have addresses of networks that
// nobody else routes to; what is public is reached by name. A client may be public:
// an engine that publishes a port leaves the caller its address.
var (
	linkClasses   = []netguard.Class{netguard.Private, netguard.Shared}
	clientClasses = []netguard.Class{netguard.Private, netguard.Shared, netguard.Public}
)

// checkLinked refuses what is no other container: gateway is the machine, if it is
// known where that is.
func checkLinked(a, gateway netip.Addr) error {
	if gateway.IsValid() && a == gateway {
		return fmt.Errorf("%s is refused: it is this machine, whose ports are host ports", a)
	}
	if class := netguard.Classify(a); !slices.Contains(linkClasses, class) {
		return fmt.Errorf("%s is refused: %s: %s; a link leads to a container, at a private or shared address", a, class, class.Reason())
	}
	return nil
}

func checkCaller(a netip.Addr) error {
	if class := netguard.Classify(a); !slices.Contains(clientClasses, class) {
		return fmt.Errorf("%s is refused: %s: %s; nobody calls from there", a, class, class.Reason())
	}
	return nil
}

// holds refuses links that lead elsewhere than to a neighbour on one of the
// networks here: to the machine, which is the default gateway, or on a network
// without one the first address, where engines put it; to this gate itself; or on
// by a router, to whoever has the address there.
func (s surroundings) holds(links []spec.Link) error {
	var failures []error
	for _, l := range links {
		if err := s.neighbour(l.Addr); err != nil {
			failures = append(failures, fmt.Errorf("link %q: %s is refused: %w", l.Name, l.Addr, err))
		}
	}
	return errors.Join(failures...)
}

func (s surroundings) neighbour(a netip.Addr) error {
	if slices.Contains(s.gateways, a) {
		return errors.New("it is the default gateway, this machine, whose ports are host ports")
	}
	on := false
	for _, p := range s.addrs {
		if p.Addr() == a {
			return errors.New("it is this gate's own; what listens here is reached at 127.0.0.1")
		}
		if !p.Contains(a) {
			continue
		}
		on = true
		first := p.Masked().Addr().Next()
		if !slices.ContainsFunc(s.gateways, p.Contains) && p.Bits() < 31 && a == first {
			return fmt.Errorf("it is the first address of %s, where engines put this machine", p.Masked())
		}
	}
	if !on {
		return errors.New("this gate is on no network with that address; a link leads to a neighbour")
	}
	return nil
}
