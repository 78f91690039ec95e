package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Verify runs a service's checks inside it and joins what they saw with what
// the gate did and with what can be seen from outside. Every planned check gives
// one event; one that did not arrive could not be told. The checker shares its
// user with the agent, so what it says counts only where nothing contradicts it,
// and where there is another witness only if that says the same. Of g the guests'
// volume and the image may be left out; beside is who else uses the engine.
func (e *Engine) Verify(ctx context.Context, g *Gate, service string, s plan.Service, beside *company) (report.Section, error) {
	gate := g.ID
	var status spec.GateStatus
	var before spec.Verdicts
	var beforeErr error
	var peers map[string]netip.Addr
	var seen evidence
	var others, listed findings
	var usual *choices
	first, asking := errgroup.WithContext(ctx)
	first.Go(func() (err error) { status, err = beside.status(gate); return err })
	first.Go(func() error { before, beforeErr = e.Verdicts(asking, gate, 0); return nil })
	first.Go(func() (err error) { peers, err = e.peers(asking, gate); return err })
	first.Go(func() error { seen = e.evidence(asking, gate, service); return nil })
	first.Go(func() error { usual = beside.choices(); return nil })
	first.Go(func() error { others = beside.around(gate, service); return nil })
	first.Go(func() error { listed = foundBy(e.listedOddly(asking, service, s.UID, s.GID)); return nil })
	if err := first.Wait(); err != nil {
		return report.Section{}, err
	}
	seen.strangers, seen.listed, seen.engine = others, listed, usual
	checks := searchable(plan.Join(plan.Peers(s.Verify, peers), status), seen.service)
	seen = e.outside(ctx, seen, g, s, status, checks, beside.own)
	defer seen.close()
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
	// Whatever those inside cannot tell, what is judged out here is told.
	untold := func(err error) (report.Section, error) {
		section := notTold(s.Name, err)
		for _, c := range checks {
			if i := slices.IndexFunc(outside, func(ev spec.Event) bool { return ev.Check == c.Name }); i >= 0 {
				section.Events = append(section.Events, seen.attest(c, outside[i]))
			}
		}
		return section, nil
	}
	if wrong := unsound(status); wrong != "" {
		return untold(errors.New(wrong))
	}
	if beforeErr != nil {
		return untold(beforeErr)
	}
	out, err := e.check(ctx, service, list, checkerWithin+time.Duration(len(list.Checks))*checkWithin)
	var exited *ExecError
	if err != nil && !(errors.As(err, &exited) && exited.Status == 1) { // 1: a check failed
		return untold(fmt.Errorf("cannot tell: checker: %w", err))
	}
	after, err := e.Verdicts(ctx, gate, before.Mark)
	if err != nil {
		return untold(err)
	}
	seen.pinned = pinnedBy(status.Pins, after.Pins) // names may have been resolved anew meanwhile
	events, readErr := report.Read(bytes.NewReader(out))
	if readErr != nil {
		return untold(fmt.Errorf("cannot tell: checker's answer: %w", readErr))
	}
	if report.Complete(s.Name, list.Checks, events).Holds() != (exited == nil) {
		return untold(errors.New("cannot tell: the checker's status and its answers disagree"))
	}
	section := report.Complete(s.Name, checks, append(events, outside...))
	if section.Unsaid() > 0 {
		section.Hint = meddled
	}
	for i, c := range checks {
		ev := report.Join(c, section.Events[i], after.Verdicts, seen.pinned)
		if c.Kind() == baited {
			ev = bait.join(ev, seen.gate)
		}
		section.Events[i] = seen.attest(c, ev)
	}
	section.Events = append(section.Events, strangers(s.Name, section.Events, after.Verdicts)...)
	section.Events = append(section.Events, sharedNotes(s.Name, status)...)
	return section, nil
}

// A checker has checkerWithin, and checkWithin more for each check: more than an
// honest one takes, of whose checks many run at once and few wait. The agent,
// whose user it is, may have stopped it.
const (
	checkerWithin = 20 * time.Second
	checkWithin   = 100 * time.Millisecond
)

// meddled is what to do where somebody inside may have ended or stopped a checker.
const meddled = "corral shell shows what runs in it; corral down ends it"

// check gives a checker its list, and returns what it answers.
func (e *Engine) check(ctx context.Context, service string, list spec.Verify, most time.Duration) ([]byte, error) {
	whole := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, most, exit.Failedf(meddled, "no answer within %v: a process of the sandbox's user may have stopped it", most))
	defer cancel()
	out, err := e.exec(ctx, service, spec.Encode(list), spec.GuestDir+"/bin/corral-verify")
	if ctx.Err() != nil && whole.Err() == nil {
		if err := e.unblock(whole, service); err != nil {
			e.Progress("what is stopped in the sandbox cannot be ended: %s", printable.Escape(Plain(err.Error())))
		}
	}
	if exited := (*ExecError)(nil); errors.As(err, &exited) && exited.Status >= broken {
		exited.Stderr += string(out[:min(len(out), maxErrors)])
		if noRoom(exited.Stderr) {
			return nil, exit.Failedf(roomier, "the sandbox may have no more processes and threads than it has")
		}
		if by := signalled(exited.Status); by != "" {
			return nil, exit.Failedf(meddled, "it ended with status %d, %s", exited.Status, by)
		}
	}
	return out, err
}

// signalled says which signal a status stands for, and where that may come from; empty
// if it stands for none.
func signalled(status int) string {
	s := syscall.Signal(status - signals)
	if s < 1 || s > lastSignal {
		return ""
	}
	by := fmt.Sprintf("by signal %d (%s), which a process of the sandbox's user can send", int(s), cmp.Or(unix.SignalName(s), "of no name"))
	if s == syscall.SIGKILL {
		by += "; the kernel does, too, where memory is short"
	}
	return by
}

const (
	signals    = 128 // what the statuses of programs that a signal ended begin above
	lastSignal = 64  // SIGRTMAX
)

// broken is the least status of a checker that did not end by itself: the Go
// runtime gave up, or it could not be started, and the engine says why where its
// answer would be.
const broken = 2

// noRoom is whether a checker ended because its container may have no process or
// thread more, by its own or the runtime's word.
func noRoom(said string) bool {
	said = strings.ToLower(said)
	return strings.Contains(said, "failed to create new os thread") || strings.Contains(said, "resource temporarily unavailable")
}

// mostStrangers are packets from the ports of probes that are no probe of a
// checker's: the gate's own checks send a few.
const mostStrangers = 40

// strangers is a note on packets from the ports of probes that nobody says are
// probes, if there are many: the gate records only so many from each port, so
// that the records of probes may be missing for that.
func strangers(service string, events []spec.Event, verdicts []spec.Verdict) []spec.Event {
	known := map[uint16]int{}
	for _, ev := range events {
		for _, p := range ev.Probes {
			known[p.Source]++
		}
	}
	n := 0
	for _, v := range verdicts {
		if v.Outcome != spec.OutcomeRejected {
			continue // what is granted is called from there, too
		}
		if known[v.Source]--; known[v.Source] < 0 {
			n++
		}
	}
	if n <= mostStrangers {
		return nil
	}
	return []spec.Event{{Version: spec.Version, Service: service, Check: "probe-ports", Result: spec.Note, Detail: fmt.Sprintf(
		"%d packets came from ports %d to %d that are no probes: something in the sandbox floods from there, and records of probes may be missing",
		n, spec.ProbePortFirst, spec.ProbePortLast)}}
}

// evidence is what the engine says of a gate and of a service.
func (e *Engine) evidence(ctx context.Context, gate, service string) evidence {
	said, unknown := e.inspected(ctx, gate, service)
	return evidence{gate: said[0], service: said[1], unknown: unknown[1]}
}

// onHost are the kinds that are judged here, by what the engine says, and that
// no checker inside is asked for.
var onHost = map[string]func(evidence) (spec.Result, string){
	"no-port-published":    noPortPublished,
	"rules-as-granted":     rulesAsGranted,
	"container-as-planned": containerAsPlanned,
	"no-strangers":         noStrangers,
	"processes-confined":   processesConfined,
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

// rulesAsGranted: what the gate read back of the kernel does with packets of every
// kind, on paper, what its document says. Most of them no service can send, so that no
// checker could try.
func rulesAsGranted(seen evidence) (spec.Result, string) {
	switch {
	case len(seen.status.Astray) > 0:
		return spec.Failed, Plain(strings.Join(seen.status.Astray, "; "))
	case seen.status.Walked == 0:
		return spec.Untold, "the gate does not say what its rules do"
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

// searchable skips the search for secrets none of which can be looked for.
func searchable(checks []spec.Check, service *container.InspectResponse) []spec.Check {
	if service == nil || service.Config == nil {
		return checks
	}
	values := map[string]string{}
	for _, v := range service.Config.Env {
		name, value, _ := strings.Cut(v, "=")
		values[name] = value
	}
	out := slices.Clone(checks)
	for i, c := range out {
		if c.Kind() != "secret-absent-elsewhere" || len(c.Names) == 0 {
			continue
		}
		var told []string
		each := fmt.Sprintf("each value is shorter than %d bytes: ", spec.SecretMin)
		for _, name := range c.Names {
			value, set := values[name]
			why := spec.TooPlain(value)
			if !set || why == "" {
				break
			}
			if len(value) >= spec.SecretMin {
				name += " (" + why + ")"
				each = fmt.Sprintf("each value is too plain to be looked for, or shorter than %d bytes: ", spec.SecretMin)
			}
			told = append(told, name)
		}
		if len(told) == len(c.Names) {
			out[i].Skip = each + strings.Join(told, ", ")
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
	ev.Witnesses = append(ev.Witnesses, spec.WitnessKernel)
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
