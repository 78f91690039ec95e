package cli

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

// A refresh that left connections alive which should have ended has not succeeded,
// however much else it has to say.
func TestShowRefreshed(t *testing.T) {
	for _, c := range []struct {
		name string
		done spec.Refreshed
		said string
		ok   bool
	}{
		{"nothing", spec.Refreshed{}, "no name differs\n", true},
		{"ended", spec.Refreshed{Removed: []string{"44.10.0.11:443"}, Ended: 1}, "removed  44.10.0.11:443\nended    1 connection to what is not allowed any more\n", true},
		{"silent", spec.Refreshed{Added: []string{"44.10.0.12:443"}, Silent: []spec.Silent{{Domain: "dead.allowed.test", Ports: []uint16{80, 443}, Why: "i/o timeout"}}},
			"added    44.10.0.12:443\nsilent   dead.allowed.test: accepts no connection on any of its ports 80 443: i/o timeout: the next start of the gate would refuse it (liveness: false in its entry lets it)\n", true},
		{"a shared address", spec.Refreshed{Added: []string{"44.10.0.12:22"}, Pins: []spec.Pin{
			{Domain: "more.allowed.test", Addrs: []netip.Addr{netip.MustParseAddr("44.10.0.12")}, Ports: []uint16{22}},
			{Domain: "api.allowed.test", Addrs: []netip.Addr{netip.MustParseAddr("44.10.0.12")}, Ports: []uint16{80, 443}},
		}}, "added    44.10.0.12:22\nnotice   api.allowed.test, more.allowed.test share 44.10.0.12: pins cannot tell them apart, nor from others there; ports 22, 80, 443 are open for each of them\n", true},
		{"not ended alone", spec.Refreshed{Unended: "no answer"}, "not ended: connections to what is not allowed any more: no answer\n", false},
		{"ended and not ended", spec.Refreshed{Ended: 2, Unended: "no answer"}, "ended    2 connections to what is not allowed any more\nnot ended: connections to what is not allowed any more: no answer\n", false},
		{"among many", spec.Refreshed{Added: slices.Repeat([]string{"44.10.0.11:443"}, 2*mostRefreshed), Unended: "no answer"}, "and 60 more (--json has them)\nnot ended: connections to what is not allowed any more: no answer\n", false},
	} {
		var b strings.Builder
		err := showRefreshed(&b, c.done)
		if !strings.HasSuffix(b.String(), c.said) || (err == nil) != c.ok {
			t.Errorf("%s: %v, said %q", c.name, err, b.String())
		}
		var e *exit.Error
		if !c.ok && (!errors.As(err, &e) || e.Status != exit.Failed || e.Hint == "") {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
}

// What a gate could not end or count is shown, and the former is not well.
func TestUnsettled(t *testing.T) {
	for _, c := range []struct {
		name string
		gate spec.GateStatus
		row  string
	}{
		{"well", spec.GateStatus{}, ""},
		{"not ended", spec.GateStatus{Unended: "no answer"}, "not ended connections to what is not allowed any more go on: no answer"},
		{"not counted", spec.GateStatus{Uncounted: "no memory"}, "not counted connections, which are as of an earlier look: no memory"},
	} {
		var rows []string
		for _, r := range serviceRows(engine.Health{Behind: "g", Gate: &c.gate}, time.Now()) {
			rows = append(rows, strings.Join(r, " "))
		}
		if got := len(rows) > 1; got != (c.row != "") || got && !slices.Contains(rows, c.row) {
			t.Errorf("%s: %q", c.name, rows)
		}
		h := engine.Health{Service: "main", State: "running", OK: true, Gate: &c.gate}
		if got := unwell(h); (got == "") != (c.gate.Unended == "") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	if got := unwell(engine.Health{Service: "main", State: "paused"}); got != "main: paused" {
		t.Error(got)
	}
}
