package gate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// livenessTimeout is how long a name may take to accept a connection.
	livenessTimeout = 5 * time.Second
	// maxDials bounds the connections tried at the same time.
	maxDials = 128
	// httpsPort is where the unlisted address is tried.
	httpsPort = 443
)

// dockerResolver is Docker's embedded resolver as a program would ask it.
var dockerResolver = netip.MustParseAddrPort("127.0.0.11:53")

// selfCheck proves from inside that the rules do what they say, the refusals
// first, and prints an OK line for each thing proven.
func (g *gate) selfCheck(ctx context.Context) error {
	for _, check := range []func(context.Context) (string, error){
		g.checkUnlisted, g.checkDockerResolver, g.checkNames, g.checkIPv6,
	} {
		ok, err := check(ctx)
		if err != nil {
			return err
		}
		g.sayf("OK: %s", ok)
	}
	return g.checkLiveness(ctx)
}

func (g *gate) checkUnlisted(ctx context.Context) (string, error) {
	return g.shutOff(ctx, g.spec.Probes.Unlisted, ruleUnlisted)
}

func (g *gate) checkIPv6(ctx context.Context) (string, error) {
	return g.shutOff(ctx, g.spec.Probes.IPv6, ruleIPv6)
}

// unreachable are the errors of a machine without the family of an address,
// without an address of its own or without a way there: nothing was sent.
var unreachable = []error{syscall.ENETUNREACH, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT}

// shutOff proves that an unlisted address cannot be reached: by the rule, or
// because the namespace has no way there at all.
func (g *gate) shutOff(ctx context.Context, to netip.Addr, rule string) (string, error) {
	at := netip.AddrPortFrom(to, httpsPort)
	err := g.refused(ctx, "tcp", at, rule)
	for _, u := range unreachable {
		if errors.Is(err, u) {
			return fmt.Sprintf("unlisted address %s: no way there (%v)", at, u), nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("unlisted address: %w", err)
	}
	return fmt.Sprintf("unlisted address %s refused by rule %s", at, rule), nil
}

func (g *gate) checkDockerResolver(ctx context.Context) (string, error) {
	for _, proto := range []string{"udp", "tcp"} {
		if err := g.refused(ctx, proto, dockerResolver, ruleDocker); err != nil {
			return "", fmt.Errorf("the engine's resolver: %w", err)
		}
	}
	return fmt.Sprintf("the engine's resolver %s refused by rule %s, udp and tcp", dockerResolver, ruleDocker), nil
}

func (g *gate) checkNames(ctx context.Context) (string, error) {
	if _, err := g.worker.ask(ctx, request{Refusal: strings.ToLower(rand.Text()) + "." + spec.ProbeDomain}); err != nil {
		return "", fmt.Errorf("lookup of an unlisted name at %s: %w", namesServer, err)
	}
	return "an unlisted name is answered here, NXDOMAIN and blocked, udp and tcp", nil
}

// refused sends one packet and insists on its refusal by the rule. The record
// of the rule counts; an error alone proves nothing. The port on record may be
// another, since the engine redirects some before the filter sees them.
func (g *gate) refused(ctx context.Context, proto string, to netip.AddrPort, rule string) error {
	before, err := g.verdicts(ctx, 0)
	if err != nil {
		return err
	}
	p, sent := probe(ctx, proto, to)
	if sent == nil {
		return fmt.Errorf("%s %s can be reached", proto, to)
	}
	after, err := g.verdicts(ctx, before.Mark)
	if err != nil {
		return err
	}
	for _, v := range after.Verdicts {
		if v.Proto == proto && v.Source == p.Source && v.Addr == p.Addr && v.Outcome == spec.OutcomeRejected && v.Rule == rule {
			return nil
		}
	}
	return fmt.Errorf("%s %s: cannot tell that rule %s refused it (%w)", proto, to, rule, sent)
}

// checkLiveness tries each name that must be alive, and each host service, in
// parallel.
func (g *gate) checkLiveness(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, livenessTimeout)
	defer cancel()
	origin := map[string]bool{}
	for _, n := range g.spec.Names {
		if n.Liveness && !n.Soft && len(n.Ports) > 0 {
			origin[n.Domain+" "+n.Origin] = true
		}
	}
	type target struct {
		what, ok string
		to       []netip.AddrPort
	}
	var targets []target
	for _, p := range g.pins {
		if !origin[p.Domain+" "+p.Origin] {
			continue
		}
		t := target{what: fmt.Sprintf("%s (%s)", p.Domain, p.Origin), ok: p.Domain}
		for _, port := range p.Ports {
			for _, a := range p.Addrs {
				t.to = append(t.to, netip.AddrPortFrom(a, port))
			}
		}
		targets = append(targets, t)
	}
	for _, port := range sorted(g.spec.HostPorts) {
		t := fmt.Sprintf("host service on port %d", port)
		targets = append(targets, target{t, t, []netip.AddrPort{netip.AddrPortFrom(g.spec.Gateway, port)}})
	}
	slots := make(chan struct{}, maxDials)
	failures := make([]error, len(targets))
	reached := make([]netip.AddrPort, len(targets))
	var tasks errgroup.Group
	for i, t := range targets {
		tasks.Go(func() error {
			reached[i], failures[i] = connectAny(ctx, slots, t.to)
			return nil
		})
	}
	tasks.Wait()
	var failed []error
	for i, t := range targets {
		if failures[i] != nil {
			failed = append(failed, fmt.Errorf("%s: accepts no connection: %w", t.what, failures[i]))
			continue
		}
		g.sayf("OK: %s accepts connections at %s", t.ok, reached[i])
	}
	return errors.Join(failed...)
}

// connectAny returns the first of the destinations to accept a connection.
func connectAny(ctx context.Context, slots chan struct{}, to []netip.AddrPort) (netip.AddrPort, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		to  netip.AddrPort
		err error
	}
	results := make(chan result, len(to))
	for _, a := range to {
		go func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				results <- result{a, context.Cause(ctx)}
				return
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", a.String())
			if err == nil {
				conn.Close()
			}
			results <- result{a, err}
		}()
	}
	var last error
	for range to {
		r := <-results
		if r.err == nil {
			return r.to, nil
		}
		last = r.err
	}
	return netip.AddrPort{}, last
}
