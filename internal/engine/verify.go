package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Proof is what a service's checks gave, and under which rules.
type Proof struct {
	report.Section
	Rules string // digest of the gate's rules and sets as the kernel has them
}

// Verify runs a service's checks inside it and joins what they saw with what
// the gate did. Every planned check gives one event; one that did not arrive
// could not be told. The checker shares its user with the agent, so what it
// says counts only where nothing contradicts it.
func (e *Engine) Verify(ctx context.Context, gate, service string, s plan.Service) (*Proof, error) {
	status, err := e.GateStatus(ctx, gate)
	if err != nil {
		return nil, err
	}
	if wrong := unsound(status); wrong != "" {
		return nil, errors.New(wrong)
	}
	peers, err := e.peers(ctx, gate)
	if err != nil {
		return nil, err
	}
	seen := e.evidence(ctx, gate, service)
	checks := searchable(plan.Join(plan.Peers(s.Verify, peers), status), seen.service)
	bait := e.bait(ctx, checks)
	defer bait.close()
	list := spec.Verify{Version: spec.Version, Service: s.Name}
	var outside []spec.Event
	for _, c := range checks {
		if judge, ours := onHost[c.Kind()]; ours {
			outside = append(outside, judged(s.Name, c, judge, seen))
		} else {
			list.Checks = append(list.Checks, c)
		}
	}
	before, err := e.Verdicts(ctx, gate, 0)
	if err != nil {
		return nil, err
	}
	out, err := e.exec(ctx, service, spec.Encode(list), spec.GuestDir+"/bin/corral-verify")
	var exited *ExecError
	if err != nil && !(errors.As(err, &exited) && exited.Status == 1) { // 1: a check failed
		return nil, fmt.Errorf("cannot tell: checker: %w", err)
	}
	after, askErr := e.Verdicts(ctx, gate, before.Mark)
	if askErr != nil {
		return nil, askErr
	}
	events, readErr := report.Read(bytes.NewReader(out))
	if readErr != nil {
		return nil, fmt.Errorf("cannot tell: checker's answer: %w", readErr)
	}
	if report.Complete(s.Name, list.Checks, events).Holds() != (exited == nil) {
		return nil, errors.New("cannot tell: the checker's status and its answers disagree")
	}
	section := report.Complete(s.Name, checks, append(events, outside...))
	for i, c := range checks {
		section.Events[i] = report.Join(c, section.Events[i], after.Verdicts)
		if c.Kind() == baited {
			section.Events[i] = bait.join(section.Events[i], seen.gate)
		}
	}
	return &Proof{Section: section, Rules: status.ReadBack}, nil
}

// evidence is what the engine says of a gate and of a service, nil where it
// says nothing.
type evidence struct {
	gate, service *container.InspectResponse
}

func (e *Engine) evidence(ctx context.Context, gate, service string) evidence {
	look := func(id string) *container.InspectResponse {
		got, err := e.api.ContainerInspect(ctx, id)
		if err != nil || got.ContainerJSONBase == nil {
			return nil
		}
		return &got
	}
	return evidence{gate: look(gate), service: look(service)}
}

// onHost are the kinds that are judged here, by what the engine says, and that
// no checker inside is asked for.
var onHost = map[string]func(evidence) (spec.Result, string){
	"no-port-published": noPortPublished,
}

func judged(service string, c spec.Check, judge func(evidence) (spec.Result, string), seen evidence) spec.Event {
	ev := spec.Event{Version: spec.Version, Service: service, Check: c.Name, Result: spec.Skip, Detail: c.Skip}
	if c.Skip == "" {
		ev.Result, ev.Detail = judge(seen)
	}
	return ev
}

// noPortPublished: neither of the two has a port of the host's forwarded to it,
// and the service has no network but its gate's.
func noPortPublished(seen evidence) (spec.Result, string) {
	for _, c := range []struct {
		what string
		got  *container.InspectResponse
	}{{"the gate", seen.gate}, {"the service", seen.service}} {
		if c.got == nil || c.got.HostConfig == nil || c.got.NetworkSettings == nil {
			return spec.Untold, "the engine does not say how " + c.what + " is connected"
		}
		if c.got.HostConfig.PublishAllPorts {
			return spec.Failed, c.what + " publishes every port that its image names"
		}
		for _, ports := range [][]string{bound(c.got.HostConfig.PortBindings), bound(c.got.NetworkSettings.Ports)} {
			if len(ports) > 0 {
				return spec.Failed, fmt.Sprintf("%s publishes port %s", c.what, strings.Join(ports, ", "))
			}
		}
	}
	if mode := seen.service.HostConfig.NetworkMode; string(mode) != "container:"+seen.gate.ID {
		return spec.Failed, fmt.Sprintf("the service has the network %q, not its gate's", Plain(string(mode)))
	}
	for _, name := range slices.Sorted(maps.Keys(seen.service.NetworkSettings.Networks)) {
		return spec.Failed, "the service is on the network " + name
	}
	return spec.OK, ""
}

// bound are the ports that are bound to one of the host's. One without a
// binding is only named by the image.
func bound[P ~string, B any](ports map[P][]B) []string {
	var out []string
	for port, bindings := range ports {
		if len(bindings) > 0 {
			out = append(out, string(port))
		}
	}
	slices.Sort(out)
	return out
}

// searchable skips the search for secrets none of which is long enough for it.
func searchable(checks []spec.Check, service *container.InspectResponse) []spec.Check {
	if service == nil || service.Config == nil {
		return checks
	}
	short := map[string]bool{}
	for _, v := range service.Config.Env {
		name, value, _ := strings.Cut(v, "=")
		short[name] = len(value) < spec.SecretMin
	}
	out := slices.Clone(checks)
	for i, c := range out {
		if c.Kind() == "secret-absent-elsewhere" && len(c.Names) > 0 && !slices.ContainsFunc(c.Names, func(n string) bool { return !short[n] }) {
			out[i].Skip = fmt.Sprintf("each value is shorter than %d bytes: %s", spec.SecretMin, strings.Join(c.Names, ", "))
		}
	}
	return out
}

// baited is the kind of check that a canary stands behind.
const baited = "host-port-undeclared-blocked"

// canary is a port of the gateway's address that answers while a sandbox is
// verified, by TCP and UDP, so that silence is known to be the gate's doing.
type canary struct {
	tcp net.Listener
	udp net.PacketConn
	why string // there is none, for this reason

	mu      sync.Mutex
	callers []netip.Addr
}

// canaryWithin bounds a call of our own on this very machine.
const canaryWithin = time.Second

// bait opens a canary for the check that needs one, whose port it becomes. If
// there is none the check keeps the port that was planned, and the reason is
// told.
func (e *Engine) bait(ctx context.Context, checks []spec.Check) *canary {
	i := slices.IndexFunc(checks, func(c spec.Check) bool { return c.Kind() == baited && c.Skip == "" })
	if i < 0 {
		return &canary{}
	}
	var granted []uint16
	for _, c := range checks {
		if c.Kind() == "host-service" {
			granted = append(granted, c.Port)
		}
	}
	c, port, err := openCanary(ctx, checks[i].Addr, granted)
	if err != nil {
		e.Progress("nothing could be made to answer on %v, so %s tries port %d without: %v", checks[i].Addr, checks[i].Name, checks[i].Port, err)
		return &canary{why: fmt.Sprintf("nothing was made to answer there: %v", err)}
	}
	checks[i].Port = port
	return c
}

// openCanary opens a canary on a free port that is not granted, and calls it.
func openCanary(ctx context.Context, gateway netip.Addr, granted []uint16) (*canary, uint16, error) {
	const tries = 8 // somebody may have the same port by UDP
	var last error
	for range tries {
		tcp, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(gateway, 0)))
		if err != nil {
			return nil, 0, err
		}
		at := tcp.Addr().(*net.TCPAddr).AddrPort()
		udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err != nil || slices.Contains(granted, at.Port()) {
			last = errors.Join(err, fmt.Errorf("port %d is not free", at.Port()))
			tcp.Close()
			if udp != nil {
				udp.Close()
			}
			continue
		}
		c := &canary{tcp: tcp, udp: udp}
		go c.acceptTCP()
		go c.answerUDP()
		if err := call(ctx, at); err != nil {
			c.close()
			return nil, 0, fmt.Errorf("it does not answer this machine: %w", err)
		}
		return c, at.Port(), nil
	}
	return nil, 0, last
}

func (c *canary) acceptTCP() {
	for {
		conn, err := c.tcp.Accept()
		if err != nil {
			return
		}
		c.note(conn.RemoteAddr())
		conn.Close()
	}
}

func (c *canary) answerUDP() {
	b := make([]byte, 1)
	for {
		_, from, err := c.udp.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			c.note(from)
			_, _ = c.udp.WriteTo(b, from)
		}
	}
}

// mostCallers bounds what is kept: a flood tells no more than its beginning.
const mostCallers = 1000

func (c *canary) note(from net.Addr) {
	at, err := netip.ParseAddrPort(from.String())
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && len(c.callers) < mostCallers && !slices.Contains(c.callers, at.Addr().Unmap()) {
		c.callers = append(c.callers, at.Addr().Unmap())
	}
}

// call proves that a canary can be reached, by TCP and UDP.
func call(ctx context.Context, at netip.AddrPort) error {
	for _, network := range []string{"tcp4", "udp4"} {
		d := net.Dialer{Timeout: canaryWithin}
		conn, err := d.DialContext(ctx, network, at.String())
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(canaryWithin))
		if network == "udp4" {
			if _, err = conn.Write([]byte{0}); err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
		}
		conn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// join joins what a canary heard with what the checker and the gate say: who
// came from the gate's address got through, whatever those saw. Where there is
// no canary the gate's verdicts must bear the event: report.Join has seen them,
// and there is something that they are about.
func (c *canary) join(ev spec.Event, gate *container.InspectResponse) spec.Event {
	if ev.Result != spec.OK {
		return ev
	}
	untold := func(why string) spec.Event {
		ev.Result, ev.Detail = spec.Untold, why
		return ev
	}
	if c.tcp == nil {
		if c.why == "" || len(ev.Probes) == 0 {
			return untold("nothing answered there, and the gate was asked about nothing")
		}
		ev.Detail = c.why
		return ev
	}
	own := addresses(gate)
	if len(own) == 0 {
		return untold("the engine does not say which addresses the gate has, so who called is not known")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case slices.ContainsFunc(own, func(a netip.Addr) bool { return slices.Contains(c.callers, a) }):
		ev.Result, ev.Detail = spec.Failed, "a port of the host that is not declared was reached from the gate's address"
	case len(c.callers) >= mostCallers:
		return untold("more called than could be noted")
	}
	return ev
}

// addresses are those that the engine says a container has.
func addresses(c *container.InspectResponse) []netip.Addr {
	if c == nil || c.NetworkSettings == nil {
		return nil
	}
	var all []netip.Addr
	for _, n := range c.NetworkSettings.Networks {
		if n == nil {
			continue
		}
		if a, err := netip.ParseAddr(n.IPAddress); err == nil {
			all = append(all, a)
		}
	}
	return all
}

func (c *canary) close() {
	if c.tcp != nil {
		c.tcp.Close()
		c.udp.Close()
	}
}

// peers are the gates of other sandboxes that are up now.
func (e *Engine) peers(ctx context.Context, gate string) (map[string]netip.Addr, error) {
	members, err := e.Members(ctx, "")
	if err != nil {
		return nil, err
	}
	var own string
	for _, m := range members {
		if m.ID == gate {
			own = m.Sandbox
		}
	}
	peers := map[string]netip.Addr{}
	for _, m := range members {
		if m.Role == RoleGate && m.Running && m.Sandbox != own && m.Address.IsValid() {
			peers[m.Sandbox+"/"+m.Service] = m.Address
		}
	}
	return peers, nil
}
