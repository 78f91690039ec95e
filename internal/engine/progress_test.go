package engine

import (
	"slices"
	"testing"
)

// A gate's own lines say where it is, each step once and in its order.
func TestGateLaps(t *testing.T) {
	for _, c := range []struct {
		said, want []string
	}{
		{
			[]string{"corral-gate: fences services", "corral-gate: closed: INPUT, OUTPUT and FORWARD drop everything (IPv4 and IPv6, nf_tables)", "corral-gate: read /x: 1 name",
				"corral-gate: lookups open for the worker alone", "corral-gate: lookups closed", "corral-gate: pinned a.example 192.0.2.1", "corral-gate: IPv4: 30 rules in place",
				"corral-gate: names written: /etc/hosts", "corral-gate: OK: it", "corral-gate: egress policy applied", "corral-gate: ready"},
			[]string{"gate started and closed", "names resolved", "pins and rules in force", "self-check of the gate"},
		},
		{ // no names
			[]string{"corral-gate: closed: all", "corral-gate: names written: /etc/hosts", "corral-gate: ready"},
			[]string{"gate started and closed", "pins and rules in force", "self-check of the gate"},
		},
		{ // what comes twice, too early, or is somebody else's
			[]string{"closed: all", "corral-gate: lookups closed", "corral-gate: closed: all", "corral-gate: lookups closed", "ready"},
			[]string{"names resolved"},
		},
	} {
		var got []string
		e := &Engine{Watcher: Watcher{Lap: func(step string) { got = append(got, step) }}}
		lap := e.gateLaps()
		for _, line := range c.said {
			lap(line)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q", c.said, got)
		}
	}
}
