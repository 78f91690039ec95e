package gate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func flow(record, rule string, source uint16, to string) packet {
	ap := netip.MustParseAddrPort(to)
	return packet{record: record, rule: rule, proto: "tcp", source: source, addr: ap.Addr(), port: ap.Port()}
}

func TestVerdictOfAProbe(t *testing.T) {
	a := newAudit()
	a.packet(flow(recordSeen, "", 61000, "44.10.9.9:443"), noon)
	a.packet(flow(recordSeen, "", 61001, "44.10.0.10:443"), noon)
	a.packet(flow(recordProbe, ruleUnlisted, 61000, "44.10.9.9:443"), noon)
	a.packet(flow(recordProbe, ruleUnlisted, 61002, "44.10.9.9:443"), noon) // its sight was lost
	got := a.verdicts(0)
	want := []struct {
		source  uint16
		outcome spec.Outcome
		rule    string
	}{{61000, spec.OutcomeRejected, ruleUnlisted}, {61001, spec.OutcomeAccepted, ""}, {61002, spec.OutcomeRejected, ruleUnlisted}}
	if got.Mark != 3 || len(got.Verdicts) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, w := range want {
		v := got.Verdicts[i]
		if v.Seq != uint64(i+1) || v.Source != w.source || v.Outcome != w.outcome || v.Rule != w.rule {
			t.Errorf("%d: %+v, want %+v", i, v, w)
		}
	}
	// The same port again: the old refusal does not speak for the new packet.
	a.packet(flow(recordSeen, "", 61000, "44.10.9.9:443"), noon)
	again := a.verdicts(got.Mark)
	if len(again.Verdicts) != 1 || again.Verdicts[0].Outcome != spec.OutcomeAccepted {
		t.Errorf("%+v", again)
	}
	if after := a.verdicts(again.Mark); len(after.Verdicts) != 0 || after.Mark != 4 {
		t.Errorf("%+v", after)
	}
}

// A refusal whose sight was lost is told in the proof that it belongs to: it is not
// taken for that of a packet that a proof before saw pass.
func TestVerdictsOfProofsBeforeStay(t *testing.T) {
	a := newAudit()
	a.verdicts(0)
	a.packet(flow(recordSeen, "", 61000, "44.10.9.9:443"), noon)
	a.verdicts(0)
	mark := a.verdicts(0).Mark
	a.packet(flow(recordProbe, ruleUnlisted, 61000, "44.10.9.9:443"), noon)
	if got := a.verdicts(mark).Verdicts; len(got) != 1 || got[0].Outcome != spec.OutcomeRejected {
		t.Errorf("%+v", got)
	}
	if got := a.verdicts(0).Verdicts; len(got) != 2 || got[0].Outcome != spec.OutcomeAccepted {
		t.Errorf("%+v", got)
	}
}

// Proofs side by side: whoever begins one while a packet is between two rules
// does not make it one that was let through.
func TestVerdictAcrossAMark(t *testing.T) {
	a := newAudit()
	before := a.verdicts(0).Mark
	a.packet(flow(recordSeen, "", 61000, "44.10.9.9:443"), noon)
	a.verdicts(0)
	a.packet(flow(recordProbe, ruleUnlisted, 61000, "44.10.9.9:443"), noon)
	if got := a.verdicts(before).Verdicts; len(got) != 1 || got[0].Outcome != spec.OutcomeRejected {
		t.Errorf("%+v", got)
	}
}

func TestVerdictsOfTwoWorkers(t *testing.T) {
	a := newAudit()
	a.set(table{Base: 1 << 32})
	a.packet(flow(recordSeen, "", 61000, "44.10.9.9:443"), noon)
	if m := a.verdicts(0).Mark; m != 1<<32+1 {
		t.Errorf("mark %d", m)
	}
}

// Whatever comes, what is kept is bounded, and what is not kept is counted.
func TestAuditIsBounded(t *testing.T) {
	a := newAudit()
	for i := range maxVerdicts + 10 {
		a.packet(flow(recordSeen, "", 61000, fmt.Sprintf("44.10.9.9:%d", i+1)), noon)
	}
	if v := a.verdicts(0); len(v.Verdicts) != maxVerdicts || v.Verdicts[0].Seq != 11 || v.Mark != maxVerdicts+10 {
		t.Errorf("%d verdicts from %d to %d", len(v.Verdicts), v.Verdicts[0].Seq, v.Mark)
	}
	for range 2 {
		for i := range maxDenied + 10 {
			a.packet(flow(recordAudit, ruleUnlisted, 0, fmt.Sprintf("44.10.9.9:%d", i+1)), noon)
		}
		for i := range maxRefused + 10 {
			a.lookup(fmt.Sprintf("x%d.evil.test.", i), noon)
		}
	}
	r := a.report()
	if len(r.Denied) != maxDenied || r.DeniedMore != 20 || r.Denied[0].Count != 2 {
		t.Errorf("%d denied and %d more", len(r.Denied), r.DeniedMore)
	}
	if len(r.Refused) != maxRefused || r.RefusedMore != 20 || r.Refused[0].Count != 2 || r.Refused[0].Name != "x0.evil.test" {
		t.Errorf("%d refused and %d more", len(r.Refused), r.RefusedMore)
	}
	if n := len(a.lines); n != maxLines {
		t.Errorf("%d lines wait", n)
	}
	var decisions, printed uint64
	decisions = 2 * (maxDenied + maxRefused + 20)
	lines := a.take(noon)
	for _, l := range lines {
		printed += l.Count
	}
	if len(lines) != lineBurst || printed != decisions || lines[len(lines)-1].Verdict != "not-shown" {
		t.Errorf("%d lines for %d of %d decisions", len(lines), printed, decisions)
	}
	a.lookup("y.evil.test.", noon)
	if again := a.take(noon); len(again) != 0 {
		t.Errorf("%v beyond the rate", again)
	}
	a.lookup("z.evil.test.", noon)
	if later := a.take(noon.Add(10 * time.Second)); len(later) != 2 || later[1].Count != 1 {
		t.Errorf("%v later", later)
	}
}

func TestOwnTrafficIsNoNews(t *testing.T) {
	a := newAudit()
	own := table{Own: []netip.Addr{addr("44.10.9.9")}, Pins: []spec.Pin{{Domain: "api.allowed.test", Addrs: []netip.Addr{addr("44.10.0.10")}}}}
	a.set(own)
	by := func(p packet, uid uint32) packet { p.uid, p.hasUID = uid, true; return p }
	deny := flow(recordAudit, ruleUnlisted, 0, "44.10.9.9:443")
	a.packet(by(deny, 0), noon)
	a.packet(by(flow(recordAllow, "", 0, "44.10.0.10:443"), 0), noon)
	a.packet(by(flow(recordAudit, ruleUnlisted, 0, "44.10.0.53:53"), spec.WorkerUID), noon)
	own.Serving = true
	a.set(own)
	a.packet(by(deny, 0), noon)
	if r := a.report(); len(r.Denied) != 0 || r.Probed != 0 || len(a.lines) != 0 {
		t.Errorf("own: %+v, %+v", r.Denied, a.lines)
	}
	a.packet(deny, noon)
	a.packet(by(deny, 1000), noon)
	a.packet(by(flow(recordAudit, ruleUnlisted, 0, "44.10.9.8:443"), 0), noon)
	a.packet(by(flow(recordAllow, "", 0, "44.10.0.10:443"), 0), noon)
	if r := a.report(); len(r.Denied) != 2 || r.Denied[0].Count != 2 {
		t.Errorf("a service's: %+v", r.Denied)
	}
	lines := a.take(noon)
	if len(lines) != 3 || lines[0].Name != "api.allowed.test" || lines[0].Verdict != "allowed" {
		t.Errorf("%+v", lines)
	}
}

// What a checker is refused is no news while it is known to run, and what an
// agent sends from the same ports at any other time is: all that it can hide is
// what a handover sends, which leads nowhere.
func TestProbesAreNoNewsWhileACheckerRuns(t *testing.T) {
	const first, last = spec.ProbePortFirst, spec.ProbePortLast
	probeAddr, other := "44.10.9.9:443", "44.10.0.10:25"
	icmp := func(to string) packet {
		return packet{record: recordAudit, rule: ruleUnlisted, proto: "icmp", addr: addr(to)}
	}
	for what, tt := range map[string]struct {
		p              packet
		idle, inWindow bool // told as traffic
	}{
		"the first probe port":             {flow(recordAudit, ruleUnlisted, first, other), true, false},
		"the last one":                     {flow(recordAudit, ruleUnlisted, last, other), true, false},
		"the port before":                  {flow(recordAudit, ruleUnlisted, first-1, other), true, true},
		"the port after":                   {flow(recordAudit, ruleUnlisted, last+1, other), true, true},
		"IPv6":                             {flow(recordAudit, ruleIPv6, first, "[2001:db8::9]:443"), true, false},
		"ICMP to where only corral dials":  {icmp("44.10.9.9"), true, false},
		"ICMP elsewhere":                   {icmp("44.10.0.10"), true, true},
		"a handover's":                     {flow(recordAudit, ruleUnlisted, first, probeAddr), false, false},
		"an agent's to the same address":   {flow(recordAudit, ruleUnlisted, 40000, probeAddr), true, true},
		"a service's on the way to a link": {flow(recordAudit, ruleUnlisted, 0, other), true, true},
	} {
		for _, when := range []struct {
			what string
			told bool
			set  func(*audit)
		}{
			{"before any", tt.idle, func(*audit) {}},
			{"while one runs", tt.inWindow, func(a *audit) { a.check(true, noon.Add(-maxChecking+time.Millisecond)) }},
			{"while one should have ended", tt.idle, func(a *audit) { a.check(true, noon.Add(-maxChecking)) }},
			{"after one", tt.idle, func(a *audit) { a.check(true, noon); a.check(false, noon) }},
		} {
			a := newAudit()
			a.set(table{Own: []netip.Addr{addr("44.10.9.9")}, Serving: true})
			when.set(a)
			a.packet(tt.p, noon)
			r, lines := a.report(), a.take(noon)
			if told := len(r.Denied) == 1; told != when.told || len(lines) != len(r.Denied) || (r.Probed == 1) == told {
				t.Errorf("%s, %s: %+v, %d lines", what, when.what, r, len(lines))
			}
		}
	}
}

// What was let through from the ports of a checker is no row while one runs, and
// where it went is on record all the same.
func TestConnectionsOfAChecker(t *testing.T) {
	const first, last = spec.ProbePortFirst, spec.ProbePortLast
	to := "44.10.0.10:443"
	marked := flow(recordAllow, "allow", 40000, to)
	marked.mark, marked.hasUID = ownMark, true
	for what, tt := range map[string]struct {
		p                     packet
		idle, inWindow, alone string // the verdict of its line
	}{
		"the first probe port":    {flow(recordAllow, "allow", first, to), spec.VerdictAllowed, spec.VerdictProbed, spec.VerdictProbed},
		"the last one":            {flow(recordAllow, "allow", last, to), spec.VerdictAllowed, spec.VerdictProbed, spec.VerdictProbed},
		"the port before":         {flow(recordAllow, "allow", first-1, to), spec.VerdictAllowed, spec.VerdictAllowed, spec.VerdictAllowed},
		"the port after":          {flow(recordAllow, "allow", last+1, to), spec.VerdictAllowed, spec.VerdictAllowed, spec.VerdictAllowed},
		"the gate's, by its mark": {marked, "", "", ""},
	} {
		for _, when := range []struct {
			what, verdict string
			alone         bool
			set           func(*audit)
		}{
			{"before any", tt.idle, false, func(*audit) {}},
			{"while one runs", tt.inWindow, false, func(a *audit) { a.check(true, noon.Add(-maxChecking+time.Millisecond)) }},
			{"while one should have ended", tt.idle, false, func(a *audit) { a.check(true, noon.Add(-maxChecking)) }},
			{"after one", tt.idle, false, func(a *audit) { a.check(true, noon); a.check(false, noon) }},
			{"alone", tt.alone, true, func(*audit) {}},
		} {
			a := newAudit()
			a.set(table{Serving: true, Alone: when.alone})
			when.set(a)
			a.packet(tt.p, noon)
			r, got := a.report(), ""
			for _, l := range a.take(noon) {
				if got = l.Verdict; l.Addr != tt.p.addr || l.Port != tt.p.port || l.Rule != "" {
					t.Errorf("%s, %s: %+v", what, when.what, l)
				}
			}
			if got != when.verdict || (len(r.Allowed) == 1) != (got == spec.VerdictAllowed) || (r.Probed == 1) != (got == spec.VerdictProbed) {
				t.Errorf("%s, %s: a line %q, %+v", what, when.what, got, r)
			}
		}
	}
}

// Where nobody tells when a proof runs, what is refused to its ports is told apart
// from the programs', and where it went stays on record.
func TestProbesOfAGateAlone(t *testing.T) {
	const first, last = spec.ProbePortFirst, spec.ProbePortLast
	icmp := func(to string) packet {
		return packet{record: recordAudit, rule: ruleUnlisted, proto: "icmp", addr: addr(to)}
	}
	for what, tt := range map[string]struct {
		p       packet
		verdict string // of its line, if it has one
	}{
		"the first probe port":            {flow(recordAudit, ruleUnlisted, first, "172.18.0.1:2375"), spec.VerdictProbed},
		"the last one":                    {flow(recordAudit, ruleUnlisted, last, "172.18.0.1:2375"), spec.VerdictProbed},
		"the port before":                 {flow(recordAudit, ruleUnlisted, first-1, "172.18.0.1:2375"), spec.VerdictDenied},
		"the port after":                  {flow(recordAudit, ruleUnlisted, last+1, "172.18.0.1:2375"), spec.VerdictDenied},
		"ICMP to where only corral is":    {icmp("44.10.9.9"), spec.VerdictProbed},
		"ICMP elsewhere":                  {icmp("44.10.0.10"), spec.VerdictDenied},
		"a handover's":                    {flow(recordAudit, ruleUnlisted, first, "44.10.9.9:443"), ""},
		"a program's to what is corral's": {flow(recordAudit, ruleUnlisted, 40000, "44.10.9.9:443"), spec.VerdictDenied},
	} {
		a := newAudit()
		a.set(table{Own: []netip.Addr{addr("44.10.9.9")}, Serving: true, Alone: true})
		a.packet(tt.p, noon)
		r, got := a.report(), ""
		for _, l := range a.take(noon) {
			if got = l.Verdict; l.Addr != tt.p.addr || l.Port != tt.p.port || l.Rule != tt.p.rule {
				t.Errorf("%s: %+v", what, l)
			}
		}
		if got != tt.verdict || (len(r.Denied) == 1) != (tt.verdict == spec.VerdictDenied) || int(r.Probed)+len(r.Denied) != 1 {
			t.Errorf("%s: a line %q, %+v", what, got, r)
		}
	}
}

// What passed is counted with what it was called, and so is what was refused at
// an address that has a name.
func TestAccountHasNames(t *testing.T) {
	a := newAudit()
	pins := []spec.Pin{
		{Domain: "api.allowed.test", Addrs: []netip.Addr{addr("44.10.0.10")}, Fading: []spec.Fading{{Addr: addr("44.10.0.11")}}},
		{Domain: "other.allowed.test", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.11")}},
	}
	a.set(table{Serving: true, Pins: pins})
	for i, p := range []packet{
		flow(recordAllow, "allow", 0, "44.10.0.10:443"), flow(recordAllow, "allow", 0, "44.10.0.10:443"), flow(recordAllow, "allow", 0, "44.10.0.11:443"),
		flow(recordAudit, ruleUnlisted, 0, "44.10.0.10:22"), flow(recordAudit, ruleUnlisted, 0, "44.10.9.9:22"),
	} {
		a.packet(p, noon.Add(time.Duration(i)*time.Second))
	}
	a.set(table{Serving: true}) // a name that is gone is remembered
	a.packet(flow(recordAudit, ruleUnlisted, 0, "44.10.0.10:22"), noon.Add(9*time.Second))
	r := a.report()
	type row struct {
		name  string
		port  uint16
		count uint64
		took  time.Duration
	}
	for what, tt := range map[string]struct {
		got  []spec.Traffic
		want []row
	}{
		"allowed": {r.Allowed, []row{{"api.allowed.test", 443, 2, time.Second}, {"other.allowed.test", 443, 1, 0}}},
		"denied":  {r.Denied, []row{{"api.allowed.test", 22, 2, 6 * time.Second}, {"", 22, 1, 0}}},
	} {
		if len(tt.got) != len(tt.want) {
			t.Errorf("%s: %+v", what, tt.got)
			continue
		}
		for i, w := range tt.want {
			g := tt.got[i]
			if (row{g.Name, g.Port, g.Count, g.Last.Sub(g.First)}) != w || (g.Rule == "") != (what == "allowed") {
				t.Errorf("%s: %+v, want %+v", what, g, w)
			}
		}
	}
}

// Names that were looked up for a service are told as what they are, and crowd
// no connection out.
func TestLookedUpNames(t *testing.T) {
	a := newAudit()
	for i := range maxLookedUp + 10 {
		a.lookedUp(fmt.Sprintf("x%d.public.test.", i))
	}
	a.lookedUp("x0.public.test.")
	a.packet(flow(recordAllow, "allow", 0, "44.10.0.10:443"), noon)
	r := a.report()
	if len(r.Allowed) != maxLookedUp+1 || r.AllowedMore != 10 || len(r.Refused) != 0 {
		t.Fatalf("%d allowed and %d more, %d refused", len(r.Allowed), r.AllowedMore, len(r.Refused))
	}
	if first := r.Allowed[0]; first.Name != "x0.public.test" || first.Proto != spec.ProtoLookup || first.Count != 2 || first.Addr.IsValid() {
		t.Errorf("%+v", first)
	}
	for _, l := range a.take(noon) {
		if l.Verdict != spec.VerdictLookedUp && l.Verdict != spec.VerdictNotShown && l.Verdict != spec.VerdictAllowed {
			t.Errorf("%+v", l)
		}
	}
}

// Names are bounded by what they take, and by what of one a line shows.
func TestLongNamesAreBounded(t *testing.T) {
	long := func(i int) string { return fmt.Sprintf("%d.%s.evil.test", i, strings.Repeat("x", 230)) }
	a := newAudit()
	const n = 2 * maxNameBytes / 240
	for i := range n {
		a.lookup(long(i)+".", noon)
		a.lookedUp(long(i) + ".")
	}
	r := a.report()
	for what, names := range map[string]int{"refused": len(r.Refused), "looked up": len(r.Allowed)} {
		if size := names * len(long(0)); names == 0 || size > maxNameBytes {
			t.Errorf("%s: %d names, %d bytes", what, names, size)
		}
	}
	if r.Refused[0].Name != long(0) || r.RefusedMore != uint64(n-len(r.Refused)) || r.AllowedMore != uint64(n-len(r.Allowed)) {
		t.Errorf("%q, %d of %d more", r.Refused[0].Name, r.RefusedMore, n)
	}
	for in, want := range map[string]string{
		strings.Repeat("x", maxLineName):         strings.Repeat("x", maxLineName),
		strings.Repeat("x", maxLineName+1):       strings.Repeat("x", maxLineName) + "…",
		strings.Repeat("x", maxLineName-1) + "ü": strings.Repeat("x", maxLineName-1) + "…",
	} {
		if got := cutName(in); got != want {
			t.Errorf("%q", got)
		}
	}
	for _, l := range a.take(noon) {
		if len(l.Name) > maxLineName+len("…") {
			t.Errorf("%d bytes in a line", len(l.Name))
		}
	}
}
