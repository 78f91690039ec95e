// Package report turns the events of checkers into what a person or a program
// reads: in go events, the checks that were asked for and the gate's verdicts;
// out come lines, or JSON, and a tally that decides the exit status. It never
// calls a check passed that nobody proved, and prints nothing raw that may come
// from a sandbox.
package report

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Section is what one service's checks gave.
type Section struct {
	Service string
	Events  []spec.Event
}

// Holds says whether no event of the section failed or could not be told.
func (s Section) Holds() bool { return count([]Section{s}).Failed == 0 }

// Tally counts checks. The zero value has proven nothing.
type Tally struct {
	Passed, Skipped, Failed int
}

// OK says whether everything holds that was checked, and that something was.
func (t Tally) OK() bool { return t.Failed == 0 && t.Passed > 0 }

func (t Tally) String() string {
	return fmt.Sprintf("%d passed, %d skipped, %d failed", t.Passed, t.Skipped, t.Failed)
}

// count tallies sections.
func count(sections []Section) Tally {
	var t Tally
	for _, s := range sections {
		for _, ev := range s.Events {
			switch ev.Result {
			case spec.OK:
				t.Passed++
			case spec.Skip:
				t.Skipped++
			case spec.Note:
			default:
				t.Failed++
			}
		}
	}
	return t
}

// insist adds a failure to every section in which nothing passed and nothing
// failed, and makes one if there is none: saying nothing is no proof.
func insist(sections []Section) []Section {
	if len(sections) == 0 {
		sections = []Section{{}}
	}
	out := slices.Clone(sections)
	for i, s := range out {
		if t := count(out[i : i+1]); t.Passed == 0 && t.Failed == 0 {
			none := spec.Event{Version: spec.Version, Service: s.Service, Check: "checks", Detail: "nothing was checked"}
			out[i].Events = append(slices.Clip(s.Events), none)
		}
	}
	return out
}

// Read decodes a checker's stream, one event a line.
func Read(r io.Reader) ([]spec.Event, error) {
	const most = 1 << 20 // far above the longest event
	var events []spec.Event
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, most)
	for sc.Scan() {
		var ev spec.Event
		if err := spec.Decode(bytes.NewReader(sc.Bytes()), &ev); err != nil {
			return events, fmt.Errorf("event %d: %w", len(events)+1, err)
		}
		if ev.Version != spec.Version {
			return events, fmt.Errorf("event %d has version %d, this binary reads version %d", len(events)+1, ev.Version, spec.Version)
		}
		events = append(events, ev)
	}
	if err := sc.Err(); err != nil {
		return events, fmt.Errorf("event %d: %w", len(events)+1, err)
	}
	return events, nil
}

// Complete puts a service's events in the order of its checks. A check without
// an event could not be told; neither could one with two, or an event that
// nobody asked for.
func Complete(service string, checks []spec.Check, events []spec.Event) Section {
	s := Section{Service: service}
	arrived := map[string][]spec.Event{}
	for _, ev := range events {
		arrived[ev.Check] = append(arrived[ev.Check], ev)
	}
	add := func(name, why string) {
		s.Events = append(s.Events, spec.Event{Version: spec.Version, Service: service, Check: name, Detail: why})
	}
	for _, c := range checks {
		switch got := arrived[c.Name]; len(got) {
		case 0:
			add(c.Name, "the checker said nothing about it")
		case 1:
			ev := got[0]
			ev.Service = service
			if (ev.Result == spec.Skip) != (c.Skip != "") || ev.Result == spec.Note {
				ev.Result, ev.Detail = spec.Untold, "the checker calls it "+string(got[0].Result)+", which was not planned"
			}
			s.Events = append(s.Events, ev)
		default:
			add(c.Name, "the checker answered twice")
		}
		delete(arrived, c.Name)
	}
	for _, ev := range events {
		if _, left := arrived[ev.Check]; left {
			add(ev.Check, "nobody asked for it")
			delete(arrived, ev.Check)
		}
	}
	return s
}

// Join decides an event by what the gate says about its probes: the check
// holds only if each probe was refused by a rule of the gate and none was let
// through, and if what an honest checker must have probed is among them. An
// event that does not hold already stays.
func Join(c spec.Check, ev spec.Event, verdicts []spec.Verdict) spec.Event {
	if ev.Result != spec.OK {
		return ev
	}
	for _, a := range mustProbe(c) {
		if !slices.ContainsFunc(ev.Probes, func(p spec.Probe) bool { return p.Addr == a }) {
			ev.Result, ev.Detail = spec.Untold, fmt.Sprintf("no probe was sent to %v", a)
			return ev
		}
	}
	for _, proto := range mustUse(c) {
		if !slices.ContainsFunc(ev.Probes, func(p spec.Probe) bool { return p.Proto == proto && p.Port == c.Port }) {
			ev.Result, ev.Detail = spec.Untold, fmt.Sprintf("no probe was sent to %s port %d", proto, c.Port)
			return ev
		}
	}
	for _, p := range ev.Probes {
		rejected := false
		for _, v := range verdicts {
			if !about(v, p) {
				continue
			}
			switch {
			case v.Outcome == spec.OutcomeAccepted:
				ev.Result, ev.Detail = spec.Failed, describe(p)+" was let through"
				return ev
			case v.Outcome == spec.OutcomeRejected && v.Rule != "":
				rejected = true
			}
		}
		if !rejected && ev.Result == spec.OK {
			// Not yet the last word: a later probe may have been let through.
			ev.Result, ev.Detail = spec.Untold, fmt.Sprintf("the gate has no record that it refused %s (source port %d)", describe(p), p.Source)
		}
	}
	return ev
}

// mustProbe lists the addresses without which a check cannot have been made.
func mustProbe(c spec.Check) []netip.Addr {
	var probes spec.Probes
	if c.Probes != nil {
		probes = *c.Probes
	}
	switch c.Kind() {
	case "unlisted-host-blocked":
		return []netip.Addr{probes.Unlisted, probes.Resolver}
	case "udp-closed":
		return []netip.Addr{probes.Unlisted}
	case "metadata-blocked":
		return []netip.Addr{probes.Metadata}
	case "public-only":
		return append([]netip.Addr{probes.Metadata}, c.Addrs...)
	case "dns-closed":
		return []netip.Addr{c.Addr, probes.Resolver, probes.Metadata, dockerResolver}
	case "names-sink", "gateway-closed", "host-port-undeclared-blocked", "peer-unreachable":
		return []netip.Addr{c.Addr}
	}
	return nil
}

// mustUse lists the protocols by which a check must have tried its own port.
func mustUse(c spec.Check) []string {
	switch c.Kind() {
	case "port-not-listed-blocked":
		return []string{"tcp"}
	case "host-port-undeclared-blocked":
		return []string{"tcp", "udp"}
	}
	return nil
}

// dockerResolver is the engine's DNS forwarder. What is sent to its port 53
// has another port by the time the filter sees it: nat comes first.
var dockerResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// about says whether a verdict is on the packet of a probe.
func about(v spec.Verdict, p spec.Probe) bool {
	if v.Proto != p.Proto || v.Source != p.Source || v.Addr.Unmap() != p.Addr.Unmap() {
		return false
	}
	return v.Port == p.Port || p.Addr.Unmap() == dockerResolver && p.Port == 53
}

func describe(p spec.Probe) string {
	return fmt.Sprintf("%s %v", p.Proto, netip.AddrPortFrom(p.Addr, p.Port))
}
