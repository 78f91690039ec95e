package gate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/exit"
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
	g.tellLinks()
	return g.checkLiveness(ctx)
}

// tellLinks says of each link what was proven before: its rule is in the kernel, and
// leads to a neighbour. Nobody is dialled. A service starts after its gate, so of
// two gates with links to each other neither would ever come up.
func (g *gate) tellLinks() {
	for _, l := range g.spec.Links {
		g.sayf("OK: link %s: rule %s lets %s port %d through, on a network of this gate; whether it answers was not tried", l.Name, linkRule(l), l.Addr, l.Port)
	}
}

func (g *gate) checkUnlisted(ctx context.Context) (string, error) {
	if g.spec.Class == spec.ClassPublic {
		return g.shutOff(ctx, g.unlisted(), ruleSpecial)
	}
	return g.shutOff(ctx, g.unlisted(), ruleUnlisted)
}

// notPublic is a documentation address (RFC 5737): where every public address
// may be reached, what is refused is what is not one.
var notPublic = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// unlisted is an address that no rule grants.
func (g *gate) unlisted() netip.Addr {
	if g.spec.Class == spec.ClassPublic {
		return notPublic
	}
	return g.spec.Probes.Unlisted
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
	switch {
	case g.spec.SinkNames:
		there, err := g.shutOff(ctx, spec.SinkAddress, ruleUnlisted)
		if err != nil {
			return "", fmt.Errorf("where unlisted names lead: %w", err)
		}
		return fmt.Sprintf("an unlisted name is answered here, %v, udp and tcp; %s", spec.SinkAddress, there), nil
	case g.spec.Class == spec.ClassPublic:
		return "a name that no public host has is answered here, NXDOMAIN and blocked, udp and tcp", nil
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
		ports    []uint16
		host     bool // one of the host's own services
	}
	var targets []target
	for _, p := range g.pins {
		if !origin[p.Domain+" "+p.Origin] {
			continue
		}
		t := target{what: fmt.Sprintf("%s (%s)", p.Domain, p.Origin), ok: p.Domain, ports: p.Ports}
		for _, port := range p.Ports {
			for _, a := range p.Addrs {
				t.to = append(t.to, netip.AddrPortFrom(a, port))
			}
		}
		targets = append(targets, t)
	}
	for _, port := range sorted(g.spec.HostPorts) {
		t := fmt.Sprintf("host service on port %d", port)
		targets = append(targets, target{what: t, ok: t, to: []netip.AddrPort{netip.AddrPortFrom(g.spec.Gateway, port)}, host: true})
	}
	slots := make(chan struct{}, maxDials)
	failures := make([]error, len(targets))
	reached := make([]netip.AddrPort, len(targets))
	var tasks errgroup.Group
	for i, t := range targets {
		tasks.Go(func() error {
			if t.host {
				reached[i], failures[i] = t.to[0], answers(ctx, t.to[0])
			} else {
				reached[i], failures[i] = connectAny(ctx, slots, t.to)
			}
			return nil
		})
	}
	tasks.Wait()
	var failed []error
	var hints []string
	unanswered := false
	for i, t := range targets {
		switch {
		case failures[i] == nil:
			g.sayf("OK: %s accepts connections at %s", t.ok, reached[i])
		case t.host:
			hint, err := g.hostFailure(t.to[0], failures[i])
			failed, hints = append(failed, fmt.Errorf("%s: %w", t.what, err)), append(hints, hint)
		default:
			failed, unanswered = append(failed, fmt.Errorf("%s: accepts no connection on %s: %w", t.what, anyOf(t.ports), failures[i])), true
		}
	}
	switch {
	case unanswered && !byItself(g.spec):
		failed, hints = append(failed, errors.New(spec.GateUnanswered)), append(hints, "see that what is listed answers there; liveness: false in its entry of the policy lets the sandbox start without")
	case unanswered && byVariables(g.spec):
		hints = append(hints, fmt.Sprintf("see that what is listed answers there; %s: \"off\" has none of the names tried", livenessSetting))
	case unanswered:
		hints = append(hints, fmt.Sprintf("see that what is listed answers there; without \"liveness\" in %s a name is not tried", spec.GateFile))
	}
	if len(hints) > 0 {
		return exit.Failedf(strings.Join(hints, "; "), "%w", errors.Join(failed...))
	}
	return errors.Join(failed...)
}

// anyOf are ports of which one is enough, in words.
func anyOf(ports []uint16) string {
	if len(ports) == 1 {
		return fmt.Sprintf("port %d", ports[0])
	}
	return "any of its ports " + portsText(ports, false)
}

// answers is nil if a host service accepts a connection and somebody is behind
// it: data comes, or an orderly end, or for a moment nothing at all.
func answers(ctx context.Context, to netip.AddrPort) error {
	conn, err := ownDialer().DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(spec.RelayWatch)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// hostFailure says in plain words why a host service does not answer, and what
// to do. Somebody who refuses at once was reached, so that only the service is
// missing; who is silent was not. In other people's stacks there is no relay
// between the gateway's address and the machine's loopback.
func (g *gate) hostFailure(to netip.AddrPort, err error) (hint string, plain error) {
	if !g.spec.Address.IsValid() {
		return fmt.Sprintf("see that what should answer there listens on that address, or on all of them, and that no firewall of the machine drops what comes from containers; or take the port out of %s", hostPortsSetting),
			fmt.Errorf("nobody answers at %v: %w", to, err)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return fmt.Sprintf("start what listens on port %d, or take it out of host_services (ss -ltn shows what listens); if it does listen, other sandboxes may hold all its connections", to.Port()),
			fmt.Errorf("nothing listens on 127.0.0.1:%d of this machine", to.Port())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH):
		return "let it in: " + letIn(to, "tcp"),
			fmt.Errorf("the relay listens on %v, and nothing that is sent there from the sandbox arrives: a firewall of this machine drops it", to)
	}
	return fmt.Sprintf("start what listens on port %d, or take it out of host_services", to.Port()), err
}

// letIn is how common firewalls of the host let in what gates send to it.
func letIn(to netip.AddrPort, proto string) string {
	return fmt.Sprintf(`with ufw: ufw allow in on %s to %v port %d proto %s; with firewalld: firewall-cmd --add-rich-rule='rule family="ipv4" destination address="%v" port port="%d" protocol="%s" accept', and again with --permanent`,
		spec.Bridge, to.Addr(), to.Port(), proto, to.Addr(), to.Port(), proto)
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
			conn, err := ownDialer().DialContext(ctx, "tcp", a.String())
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
