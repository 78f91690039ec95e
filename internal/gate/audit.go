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
	maxDenied   = 1024 // destinations
	maxRefused  = 4096 // names
	maxVerdicts = 2048 // packets from probe ports
	maxLines    = 256  // kinds of line waiting to be printed

	// Lines are gathered for lineDelay and then printed, lineBurst at once and
	// lineRate a second in the long run: a flood fills no disk.
	lineDelay = time.Second
	lineBurst = 60
	lineRate  = 2
)

// auditLine is one decision, or the same one several times, as printed on
// standard output.
type auditLine struct {
	Time    time.Time  `json:"time"`
	Verdict string     `json:"verdict"` // allowed, denied, refused-name, not-shown
	Proto   string     `json:"proto,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Name    string     `json:"name,omitempty"`
	Rule    string     `json:"rule,omitempty"`
	Count   uint64     `json:"count"`
}

// key is the line without what may differ between repetitions.
func (l auditLine) key() auditLine {
	l.Time, l.Count = time.Time{}, 0
	return l
}

type deniedKey struct {
	proto string
	addr  netip.Addr
	port  uint16
	rule  string
}

// audit is the memory of what the gate decided.
type audit struct {
	news chan struct{} // holds one token while lines wait

	mu      sync.Mutex
	byAddr  map[netip.Addr]string
	own     []netip.Addr
	serving bool

	account account
	denied  map[deniedKey]int // index in account.Denied
	refused map[string]int    // index in account.Refused

	seq  uint64
	ring []spec.Verdict // the newest maxVerdicts, in order of Seq modulo its size

	lines   map[auditLine]auditLine
	hidden  uint64 // decisions that no line will show
	allowed float64
	filled  time.Time
}

func newAudit() *audit {
	return &audit{news: make(chan struct{}, 1), denied: map[deniedKey]int{}, refused: map[string]int{},
		lines: map[auditLine]auditLine{}, allowed: lineBurst}
}

// set takes over what the worker was told.
func (a *audit) set(t table) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byAddr = map[netip.Addr]string{}
	for _, p := range t.Pins {
		for _, addr := range p.Addrs {
			a.byAddr[addr] = p.Domain
		}
	}
	a.own, a.serving = t.Own, t.Serving
	a.seq = max(a.seq, t.Base)
}

// packet records what a rule did with a packet.
func (a *audit) packet(p packet, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch p.record {
	case recordSeen:
		a.append(p, spec.OutcomeAccepted)
	case recordProbe:
		a.reject(p)
	case recordAudit:
		if !a.isOwn(p) {
			a.deny(p, now)
			a.line(auditLine{Time: now, Verdict: "denied", Proto: p.proto, Addr: p.addr, Port: p.port, Name: a.byAddr[p.addr], Rule: p.rule, Count: 1})
		}
	case recordAllow:
		if !a.isOwn(p) {
			a.line(auditLine{Time: now, Verdict: "allowed", Proto: p.proto, Addr: p.addr, Port: p.port, Name: a.byAddr[p.addr], Count: 1})
		}
	}
}

// isOwn tells corral's own packets: the worker's; those of root before any
// service runs; and those to the addresses that only corral dials, by root or
// from a probe port. An agent that does as much hides nothing: they lead
// nowhere.
func (a *audit) isOwn(p packet) bool {
	switch {
	case slices.Contains(a.own, p.addr) && p.source >= spec.ProbePortFirst && p.source <= spec.ProbePortLast:
		return true
	case !p.hasUID:
		return false
	case p.uid == spec.WorkerUID:
		return true
	}
	return p.uid == 0 && (!a.serving || slices.Contains(a.own, p.addr))
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
// not refused yet: its record came just before.
func (a *audit) reject(p packet) {
	for i, v := range slices.Backward(a.ring) {
		if v.Proto == p.proto && v.Source == p.source && v.Addr == p.addr && v.Port == p.port && v.Outcome == spec.OutcomeAccepted {
			a.ring[i].Outcome, a.ring[i].Rule = spec.OutcomeRejected, p.rule
			return
		}
	}
	a.append(p, spec.OutcomeRejected)
}

func (a *audit) deny(p packet, now time.Time) {
	k := deniedKey{p.proto, p.addr, p.port, p.rule}
	i, known := a.denied[k]
	if !known {
		if len(a.account.Denied) == maxDenied {
			a.account.DeniedMore++
			return
		}
		i = len(a.account.Denied)
		a.denied[k] = i
		a.account.Denied = append(a.account.Denied, spec.Traffic{Proto: p.proto, Addr: p.addr, Port: p.port, Rule: p.rule, First: now})
	}
	a.account.Denied[i].Count++
	a.account.Denied[i].Last = now
}

// lookup records a lookup of a name that is not pinned, other than those that
// corral's own checks make.
func (a *audit) lookup(name string, now time.Time) {
	name = strings.TrimSuffix(name, ".")
	if strings.HasSuffix(name, "."+spec.ProbeDomain) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line(auditLine{Time: now, Verdict: "refused-name", Name: name, Count: 1})
	i, known := a.refused[name]
	if !known {
		if len(a.account.Refused) == maxRefused {
			a.account.RefusedMore++
			return
		}
		i = len(a.account.Refused)
		a.refused[name] = i
		a.account.Refused = append(a.account.Refused, spec.Refused{Name: name, First: now})
	}
	a.account.Refused[i].Count++
	a.account.Refused[i].Last = now
}

// report is the account so far, most frequent first.
func (a *audit) report() *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.account
	r.Denied = slices.SortedStableFunc(slices.Values(r.Denied), func(x, y spec.Traffic) int { return cmp.Compare(y.Count, x.Count) })
	r.Refused = slices.SortedStableFunc(slices.Values(r.Refused), func(x, y spec.Refused) int { return cmp.Compare(y.Count, x.Count) })
	return &r
}

// verdicts are those after a mark.
func (a *audit) verdicts(after uint64) *spec.Verdicts {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, _ := slices.BinarySearchFunc(a.ring, after+1, func(v spec.Verdict, seq uint64) int { return cmp.Compare(v.Seq, seq) })
	return &spec.Verdicts{Version: spec.Version, Mark: a.seq, Verdicts: slices.Clone(a.ring[i:])}
}

func (a *audit) line(l auditLine) {
	k := l.key()
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
		lines = append(lines, auditLine{Time: now, Verdict: "not-shown", Count: a.hidden})
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
