package gate

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Bounds of what is kept, whatever an agent does.
const (
	maxAllowed  = 1024 // destinations
	maxLookedUp = 512  // of those, names that were looked up for the service
	maxDenied   = 1024 // destinations
	maxRefused  = 4096 // names
	maxVerdicts = 2048 // packets from probe ports
	maxLines    = 256  // kinds of line waiting to be printed

	// maxNameBytes bounds the names kept of each kind together: any that a program
	// really asks for fit, 4,096 of the longest do not.
	maxNameBytes = 256 << 10
	// maxLineName is how much of a name a line shows: every host that people know
	// is shorter, and a flood of long ones fills no disk.
	maxLineName = 128

	// maxChecking bounds how long a checker's packets are no news: it runs for two
	// seconds, and an agent must not hide behind one that never came back.
	maxChecking = 30 * time.Second

	// Lines are gathered for lineDelay and then printed, lineBurst at once and
	// lineRate a second in the long run: a flood fills no disk.
	lineDelay = time.Second
	lineBurst = 60
	lineRate  = 2
)

// auditLine is one decision, or the same one several times, as printed on
// standard output.
type auditLine = spec.Decision

// alike is the line without what may differ between repetitions.
func alike(l auditLine) auditLine {
	l.Time, l.Count = time.Time{}, 0
	return l
}

// ledger counts what is alike, each from when it was first seen. What comes
// when it is full is counted together.
type ledger struct {
	rows []spec.Traffic
	at   map[spec.Traffic]int // index in rows, by what tells them apart
	more uint64
}

// add counts t once more, if room is left for one that is new.
func (l *ledger) add(t spec.Traffic, room bool, now time.Time) {
	k := t
	if t.Addr.IsValid() {
		k.Name = "" // it may be another's by the next time
	}
	i, known := l.at[k]
	switch {
	case known:
	case !room:
		l.more++
		return
	default:
		if l.at == nil {
			l.at = map[spec.Traffic]int{}
		}
		i = len(l.rows)
		l.at[k] = i
		t.First = now
		l.rows = append(l.rows, t)
	}
	r := &l.rows[i]
	r.Name = cmp.Or(t.Name, r.Name)
	r.Count++
	r.Last = now
}

// sorted are the rows, most frequent first.
func (l *ledger) sorted() []spec.Traffic {
	return slices.SortedStableFunc(slices.Values(l.rows), func(x, y spec.Traffic) int { return cmp.Compare(y.Count, x.Count) })
}

// audit is the memory of what the gate decided.
type audit struct {
	news chan struct{} // holds one token while lines wait

	mu       sync.Mutex
	byAddr   map[netip.Addr]string
	own      []netip.Addr
	serving  bool
	alone    bool
	checking time.Time // a checker runs until then, if it is not seen to end before

	passed, denied ledger
	probed         uint64
	lookups        int // rows of passed that are no connections
	lookupBytes    int // of their names

	refused      []spec.Refused
	refusedAt    map[string]int // index in refused
	refusedBytes int
	refusedMore  uint64

	seq  uint64
	ring []spec.Verdict // the newest maxVerdicts, in order of Seq modulo its size
	// marked is seq as it was when a proof last began, settled as it was the time
	// before: what was decided until then is.
	marked, settled uint64

	lines   map[auditLine]auditLine
	hidden  uint64 // decisions that no line will show
	allowed float64
	filled  time.Time
}

func newAudit() *audit {
	return &audit{news: make(chan struct{}, 1), refusedAt: map[string]int{}, lines: map[auditLine]auditLine{}, allowed: lineBurst}
}

// set takes over what the worker was told.
func (a *audit) set(t table) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byAddr = map[netip.Addr]string{}
	learn := func(addr netip.Addr, name string) {
		if _, known := a.byAddr[addr]; !known {
			a.byAddr[addr] = name
		}
	}
	for _, p := range t.Pins {
		for _, addr := range p.Addrs {
			learn(addr, p.Domain)
		}
	}
	for _, p := range t.Pins {
		for _, f := range p.Fading {
			learn(f.Addr, p.Domain)
		}
	}
	a.own, a.serving, a.alone = t.Own, t.Serving, t.Alone
	a.seq = max(a.seq, t.Base)
}

// packet records what a rule did with a packet.
func (a *audit) packet(p packet, now time.Time) {
	now = now.UTC().Truncate(time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch p.record {
	case recordSeen:
		a.append(p, spec.OutcomeAccepted)
	case recordProbe:
		a.reject(p)
	case recordAudit:
		switch {
		case a.isOwn(p):
		case a.isProbe(p, now):
			a.probed++
		case a.alone && a.likeProbe(p):
			// Who it is nobody can tell: where it went stays on record.
			a.probed++
			t := a.traffic(p)
			a.line(auditLine{Time: now, Verdict: spec.VerdictProbed, Proto: t.Proto, Addr: t.Addr, Port: t.Port, Name: t.Name, Rule: t.Rule, Count: 1})
		default:
			t := a.traffic(p)
			a.denied.add(t, len(a.denied.rows) < maxDenied, now)
			a.line(auditLine{Time: now, Verdict: spec.VerdictDenied, Proto: t.Proto, Addr: t.Addr, Port: t.Port, Name: t.Name, Rule: t.Rule, Count: 1})
		}
	case recordAllow:
		t := a.traffic(p)
		t.Rule = ""
		switch {
		case a.isOwn(p):
		case fromProbePort(p) && (a.alone || now.Before(a.checking)):
			// It led somewhere, so where stays on record, whoever it was.
			a.probed++
			a.line(auditLine{Time: now, Verdict: spec.VerdictProbed, Proto: t.Proto, Addr: t.Addr, Port: t.Port, Name: t.Name, Count: 1})
		default:
			a.passed.add(t, len(a.passed.rows) < maxAllowed, now)
			a.line(auditLine{Time: now, Verdict: spec.VerdictAllowed, Proto: t.Proto, Addr: t.Addr, Port: t.Port, Name: t.Name, Count: 1})
		}
	}
}

func (a *audit) traffic(p packet) spec.Traffic {
	return spec.Traffic{Proto: p.proto, Addr: p.addr, Port: p.port, Name: a.byAddr[p.addr], Rule: p.rule}
}

// isOwn tells the gate's own packets: those with its mark, the worker's, those of
// root before any service runs, and those of root to the addresses that only corral
// dials.
func (a *audit) isOwn(p packet) bool {
	switch {
	case p.mark == ownMark:
		return true
	case !p.hasUID:
		return false
	case p.uid == spec.WorkerUID:
		return true
	}
	return p.uid == 0 && (!a.serving || slices.Contains(a.own, p.addr))
}

// isProbe tells a checker's packets. While one is known to run they are those
// from probe ports, and those without ports to the addresses that only corral
// dials. A handover is not known of: those from probe ports to such an address
// are its own at any time. An agent that does as much is counted with them, and
// its packets have led nowhere.
func (a *audit) isProbe(p packet, now time.Time) bool {
	if now.Before(a.checking) {
		return a.likeProbe(p)
	}
	return fromProbePort(p) && slices.Contains(a.own, p.addr)
}

// likeProbe tells what a checker sends, and whoever does as much: programs that
// leave the choice to the kernel never have those ports.
func (a *audit) likeProbe(p packet) bool {
	return fromProbePort(p) || p.proto == "icmp" && slices.Contains(a.own, p.addr)
}

func fromProbePort(p packet) bool {
	return p.source >= spec.ProbePortFirst && p.source <= spec.ProbePortLast
}

// check says that a checker runs, or no longer does.
func (a *audit) check(runs bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checking = time.Time{}
	if runs {
		a.checking = now.Add(maxChecking)
	}
}

func (a *audit) append(p packet, o spec.Outcome) {
	a.seq++
	v := spec.Verdict{Seq: a.seq, Proto: p.proto, Source: p.source, Addr: p.addr, Port: p.port, Outcome: o, Rule: p.rule}
	if len(a.ring) < maxVerdicts {
		a.ring = append(a.ring, v)
	} else {
		copy(a.ring, a.ring[1:])
		a.ring[len(a.ring)-1] = v
	}
}

// reject corrects the verdict of the newest packet of the same flow that is
// not refused yet: its record came just before. If that came too fast to be
// recorded, the verdicts of proofs before are left alone.
func (a *audit) reject(p packet) {
	for i, v := range slices.Backward(a.ring) {
		if v.Seq <= a.settled {
			break
		}
		if v.Proto == p.proto && v.Source == p.source && v.Addr == p.addr && v.Port == p.port && v.Outcome == spec.OutcomeAccepted {
			a.ring[i].Outcome, a.ring[i].Rule = spec.OutcomeRejected, p.rule
			return
		}
	}
	a.append(p, spec.OutcomeRejected)
}

// lookup records a lookup of a name that is not pinned, other than those that
// corral's own checks make.
func (a *audit) lookup(name string, now time.Time) {
	now = now.UTC().Truncate(time.Millisecond)
	name = strings.TrimSuffix(name, ".")
	if strings.HasSuffix(name, "."+spec.ProbeDomain) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line(auditLine{Time: now, Verdict: spec.VerdictRefusedName, Name: name, Count: 1})
	i, known := a.refusedAt[name]
	if !known {
		if len(a.refused) == maxRefused || a.refusedBytes+len(name) > maxNameBytes {
			a.refusedMore++
			return
		}
		i = len(a.refused)
		a.refusedAt[name] = i
		a.refusedBytes += len(name)
		a.refused = append(a.refused, spec.Refused{Name: name, First: now})
	}
	a.refused[i].Count++
	a.refused[i].Last = now
}

// lookedUp records a lookup that was made for the service.
func (a *audit) lookedUp(name string) {
	name, now := strings.TrimSuffix(name, "."), time.Now().UTC().Truncate(time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line(auditLine{Time: now, Verdict: spec.VerdictLookedUp, Name: name, Count: 1})
	before := len(a.passed.rows)
	a.passed.add(spec.Traffic{Proto: spec.ProtoLookup, Name: name}, a.lookups < maxLookedUp && before < maxAllowed && a.lookupBytes+len(name) <= maxNameBytes, now)
	if len(a.passed.rows) > before {
		a.lookups++
		a.lookupBytes += len(name)
	}
}

// report is the account so far, most frequent first.
func (a *audit) report() *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &account{Allowed: a.passed.sorted(), AllowedMore: a.passed.more, Denied: a.denied.sorted(), DeniedMore: a.denied.more, Probed: a.probed,
		Refused:     slices.SortedStableFunc(slices.Values(a.refused), func(x, y spec.Refused) int { return cmp.Compare(y.Count, x.Count) }),
		RefusedMore: a.refusedMore}
}

// verdicts are those after a mark; all of them, for who begins a proof, after none.
func (a *audit) verdicts(after uint64) *spec.Verdicts {
	a.mu.Lock()
	defer a.mu.Unlock()
	if after == 0 {
		a.settled, a.marked = a.marked, a.seq
	}
	i, _ := slices.BinarySearchFunc(a.ring, after+1, func(v spec.Verdict, seq uint64) int { return cmp.Compare(v.Seq, seq) })
	return &spec.Verdicts{Version: spec.Version, Mark: a.seq, Verdicts: slices.Clone(a.ring[i:])}
}

func (a *audit) line(l auditLine) {
	l.Name = cutName(l.Name)
	k := alike(l)
	old, known := a.lines[k]
	if !known && len(a.lines) == maxLines {
		a.hidden++
	} else {
		l.Count += old.Count
		a.lines[k] = l
	}
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// cutName is a name, or the beginning of one that is too long for a line.
func cutName(s string) string {
	if len(s) <= maxLineName {
		return s
	}
	return strings.ToValidUTF8(s[:maxLineName], "") + "…"
}

// take returns the lines that may be printed now, oldest first. What is too
// much is counted in a line of its own.
func (a *audit) take(now time.Time) []auditLine {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allowed = min(lineBurst, a.allowed+lineRate*max(0, now.Sub(a.filled).Seconds()))
	a.filled = now
	var lines []auditLine
	for _, l := range a.lines {
		lines = append(lines, l)
	}
	clear(a.lines)
	slices.SortFunc(lines, func(x, y auditLine) int {
		return cmp.Or(x.Time.Compare(y.Time), x.Addr.Compare(y.Addr), cmp.Compare(x.Port, y.Port), strings.Compare(x.Name, y.Name))
	})
	if n := max(0, int(a.allowed)-1); len(lines) > n { // one is for the count
		for _, l := range lines[n:] {
			a.hidden += l.Count
		}
		lines = lines[:n]
	}
	if a.hidden > 0 && a.allowed >= 1 {
		lines = append(lines, auditLine{Time: now, Verdict: spec.VerdictNotShown, Count: a.hidden})
		a.hidden = 0
	}
	a.allowed -= float64(len(lines))
	return lines
}

// run prints lines until the context ends.
func (a *audit) run(ctx context.Context, print func(auditLine) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.news:
		}
		select {
		case <-ctx.Done():
		case <-time.After(lineDelay):
		}
		for _, l := range a.take(time.Now()) {
			if err := print(l); err != nil {
				return err
			}
		}
	}
}
