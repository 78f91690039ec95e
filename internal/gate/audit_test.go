package gate

import (
	"fmt"
	"net/netip"
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
	if r := a.report(); len(r.Denied) != 0 || len(a.lines) != 0 {
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
