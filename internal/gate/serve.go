package gate

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

// gate is PID 1.
type gate struct {
	out      io.Writer // one write a line
	words    io.Writer // of the worker
	instance string
	tasks    *errgroup.Group
	kernel   *netfilter.Kernel
	mounts   *mountTable
	worker   *supervisor
	resolved map[string]resolution

	own    []netip.Prefix // which this namespace is on
	warned bool           // of what tidy could not end; the watchdog's

	// turn is held by whoever changes what is pinned: one at a time.
	turn chan struct{}
	// fence is held while the kernel's rules and sets change together with applied,
	// and its edition. Once closing is set nothing but shut changes them.
	fence   sync.Mutex
	applied applied
	edition int
	closing atomic.Bool

	// mu guards what a question may read while a start or a refresh writes it. The
	// values are replaced as wholes, never written into.
	mu        sync.Mutex
	state     spec.GateState
	spec      spec.Gate
	made      made
	pins      []spec.Pin
	unpinned  []spec.Unpinned
	sharing   []sharing
	unended   bool   // there may be connections to what is granted no longer
	why       string // they could not be ended when that was last tried
	lookAgain time.Time
	wanted    int                     // who wait for the turn in takeTurnFirst
	giveWay   context.CancelCauseFunc // ends the lookups of who has it; nil if there are none
	due       map[string]due
	refreshed time.Time
	dated     chan struct{} // holds one token when due has changed
	// found holds what an answer about a gate that serves said is not as it was: that it
	// may have been undone before the watchdog looks is no excuse.
	found chan error
}

// applied is what the kernel should have while the gate serves.
type applied struct {
	rules []netfilter.Ruleset
	sets  []netfilter.Set
	nat   string // the engine's, as it was when the gate began to serve
	at    stage
}

// shutTimeout is for the last thing that a gate does.
const shutTimeout = 15 * time.Second

// endWithin is for a refresh and the answers that are under way when the gate ends.
const endWithin = 5 * time.Second

// serve is the life of a gate: start, watch, and close, whatever ends it.
func serve(ctx context.Context, stdout, stderr io.Writer) error {
	if os.Getpid() != 1 {
		return exit.Invalidf("it closes the network of wherever it runs, so it must be the first process of a container of its own (and no init may stand before it)",
			"serve runs as PID 1 only")
	}
	thrift()
	out, words := newOutlet(stdout), newOutlet(stderr)
	defer out.flush(lastWordsWithin)
	defer words.flush(lastWordsWithin)
	g := &gate{out: out, instance: rand.Text(), turn: make(chan struct{}, 1), dated: make(chan struct{}, 1), found: make(chan error, 1)}
	g.words = &prefixWriter{w: words, prefix: "corral-gate: worker: "}
	g.sayf("fences services without NET_RAW, NET_ADMIN, SETUID, SETGID, SYS_ADMIN, SYS_PTRACE that do not run as uid 0, %d or %d, and no others", spec.CarrierUID, spec.WorkerUID)

	alive, end := context.WithCancel(ctx)
	defer end()
	g.tasks, alive = errgroup.WithContext(alive)
	hangup := make(chan os.Signal, 1)
	signal.Reset(syscall.SIGHUP) // elsewhere it means the end
	signal.Notify(hangup, syscall.SIGHUP)
	err := g.start(alive)
	if err == nil {
		settle()
		g.tasks.Go(func() error { return g.keepFresh(alive, hangup) })
		err = g.watch(alive)
	}
	g.mu.Lock()
	g.state = spec.GateClosed
	g.mu.Unlock()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
	defer cancel()
	shut := g.closeDown(last, end)
	if shut == nil && g.kernel != nil {
		g.sayf("closed: INPUT, OUTPUT and FORWARD drop everything")
	}
	if ctx.Err() != nil && shut == nil { // asked to leave
		return nil
	}
	return errors.Join(err, shut)
}

// closeDown lets nothing pass any more, at once, and ends all that the gate does. If a
// refresh was changing something meanwhile it is done again when that is over.
func (g *gate) closeDown(ctx context.Context, end func()) error {
	g.closing.Store(true)
	alone := g.fence.TryLock()
	shut := g.shut(ctx)
	if alone {
		g.fence.Unlock()
	}
	end()
	over := make(chan struct{})
	go func() {
		g.tasks.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(endWithin):
		g.sayf("warning: not all that it was doing ended within %v", endWithin)
	}
	if !alone {
		shut = g.shut(ctx)
	}
	return shut
}

func (g *gate) sayf(format string, args ...any) {
	fmt.Fprintf(g.out, "corral-gate: "+format+"\n", args...)
}

// audit prints one of the worker's audit lines, in PID 1's own encoding.
func (g *gate) audit(l auditLine) {
	l.Name, l.Rule, l.Proto, l.Verdict = plain(l.Name), plain(l.Rule), plain(l.Proto), plain(l.Verdict)
	l.Addr = l.Addr.WithZone("")
	b, err := json.Marshal(l)
	if err == nil {
		g.out.Write(append(b, '\n'))
	}
}

func (g *gate) verdicts(ctx context.Context, after uint64) (spec.Verdicts, error) {
	r, err := g.worker.ask(ctx, request{Verdicts: &after})
	if err != nil {
		return spec.Verdicts{}, fmt.Errorf("verdicts: %w", err)
	}
	if r.Verdicts == nil || r.Verdicts.Version != spec.Version || len(r.Verdicts.Verdicts) > maxVerdicts {
		return spec.Verdicts{}, errors.New("verdicts: the worker's answer makes no sense")
	}
	for i := range r.Verdicts.Verdicts {
		v := &r.Verdicts.Verdicts[i]
		v.Proto, v.Outcome, v.Rule, v.Addr = plain(v.Proto), spec.Outcome(plain(string(v.Outcome))), plain(v.Rule), v.Addr.WithZone("")
	}
	return *r.Verdicts, nil
}

// proof is verdicts for a checker: it asks for a mark before it begins and for
// what came after that when it is done.
func (g *gate) proof(ctx context.Context, after uint64) (spec.Verdicts, error) {
	begins := after == 0
	tell := func() error {
		_, err := g.worker.ask(ctx, request{Checking: &begins})
		return err
	}
	if begins {
		if err := tell(); err != nil {
			return spec.Verdicts{}, fmt.Errorf("verdicts: %w", err)
		}
		return g.verdicts(ctx, 0)
	}
	v, err := g.verdicts(ctx, after)
	g.mu.Lock()
	v.Pins = g.pins
	g.mu.Unlock()
	return v, errors.Join(err, tell())
}

// answer is the control socket's.
func (g *gate) answer(ctx context.Context, q question) (any, error) {
	switch {
	case q.Verdicts != nil:
		return g.proof(ctx, *q.Verdicts)
	case q.Status:
		return g.status(ctx)
	case q.Refresh != "":
		if done, err := g.mutate(ctx); done {
			return spec.Refreshed{Version: spec.Version}, err
		}
		return g.refresh(ctx, q.Refresh)
	}
	return nil, errors.New("nothing is asked")
}

func (g *gate) status(ctx context.Context) (spec.GateStatus, error) {
	g.mu.Lock()
	s := spec.GateStatus{Version: spec.Version, State: g.state, Instance: g.instance,
		Backend: g.kernel.Backend(), Class: g.spec.Class, Policy: g.spec.Policy, Pins: g.pins, Unpinned: g.unpinned, WorkerRestarts: g.worker.restarted(),
		Unended: g.why, Refreshed: g.refreshed, NextRefresh: g.nextRefresh(), Release: spec.Release(), Document: g.spec.Digest(), Never: g.spec.Never}
	g.mu.Unlock()
	s.SharedAddresses = spec.SharedAddresses(s.Pins)
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/net", &st); err != nil {
		return s, err
	}
	s.NetNS = st.Ino
	var err error
	if s.Namespace, err = g.namespace(); err != nil {
		s.Namespace = nil // who asks cannot tell, and the rest still counts
	}
	if err := g.countRules(ctx, &s); err != nil {
		return s, err
	}
	if len(s.Astray) > 0 { // unless a refresh is between two steps
		if err := g.takeTurn(ctx); err != nil {
			return s, err
		}
		err := g.countRules(ctx, &s)
		g.endTurn()
		if err != nil {
			return s, err
		}
	}
	if s.State == spec.GateReady {
		switch {
		case len(s.Differences) > 0:
			g.tell(errors.New(strings.Join(s.Differences, "; ")))
		case s.Namespace != nil && len(s.Namespace.Altered) > 0:
			g.tell(alteredBy(s.Namespace.Altered))
		}
	}
	if s.Pins, err = g.countFlows(ctx, s.Pins); err == nil {
		s.Shared, err = g.stillShared(ctx)
	}
	if err != nil { // how the gate is does not hang on it
		s.Uncounted = err.Error()
	}
	r, err := g.worker.ask(ctx, request{Account: true})
	if err != nil {
		return s, fmt.Errorf("what was refused: %w", err)
	}
	if a := r.Account; a != nil && len(a.Allowed) <= maxAllowed && len(a.Denied) <= maxDenied && len(a.Refused) <= maxRefused {
		a.plain()
		s.Allowed, s.AllowedMore, s.Probed = a.Allowed, a.AllowedMore, a.Probed
		s.Denied, s.DeniedMore, s.RefusedNames, s.RefusedMore = a.Denied, a.DeniedMore, a.Refused, a.RefusedMore
	}
	return s, nil
}

// tell wakes the watchdog with what it has to close for.
func (g *gate) tell(found error) {
	select {
	case g.found <- found:
	default: // it has one already
	}
}

// namespace is what it sees of its own.
func (g *gate) namespace() (*spec.Namespace, error) {
	n, err := namespace("/")
	if err != nil {
		return nil, err
	}
	if n.Altered, err = g.altered(); err != nil {
		return nil, err
	}
	n.PacketSockets, err = packetSockets("/", "1")
	return n, err
}

// astray is what the rules would do otherwise than what is in force says, and of how
// many packets.
func (g *gate) astray(now applied, at stage) (walked int, wrong []string) {
	g.mu.Lock()
	doc, pins := g.spec, g.pins
	g.mu.Unlock()
	return astray(doc, at, pins, now.rules, now.sets)
}

// countRules reads back what is in force, and what its rules have seen.
func (g *gate) countRules(ctx context.Context, s *spec.GateStatus) error {
	return g.steady(func(a applied) error {
		if a.rules == nil {
			return nil
		}
		now, err := g.readBack(ctx, a)
		if err != nil {
			return err
		}
		s.Walked, s.Astray = g.astray(now, a.at)
		s.Differences = brieflyShown(a.diff(now))
		s.Applied, s.ReadBack = netfilter.Digest(a.rules, a.sets), netfilter.Digest(now.rules, now.sets)
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		counters, err := g.kernel.Counters(ctx)
		if err != nil {
			return err
		}
		s.Rules = nil
		for _, c := range counters {
			s.Rules = append(s.Rules, spec.RuleCount{Family: c.Family.String(), Chain: c.Chain, Rule: c.ID, Proto: c.Proto, Packets: c.Packets, Bytes: c.Bytes})
		}
		s.AllowedUnrecorded, s.DeniedUnrecorded = unrecorded(counters)
		return nil
	})
}

// prefixWriter puts a prefix before each line of another process, in a form
// that is safe to print, and cuts lines that are too long.
type prefixWriter struct {
	mu     sync.Mutex
	w      io.Writer
	prefix string
	rest   []byte
}

const maxWords = 4096

func (p *prefixWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 && len(p.rest) < maxWords {
			return len(b), nil
		}
		line := p.rest
		if i >= 0 {
			line = p.rest[:i]
		}
		if _, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, plain(string(line))); err != nil {
			return len(b), err
		}
		p.rest = p.rest[min(len(p.rest), len(line)+1):]
	}
}
