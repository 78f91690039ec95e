// Package report turns the events of checkers into what a person or a program
// reads: in go events, the checks that were asked for and the gate's verdicts;
// out come lines, or JSON, and a tally that decides the exit status. It never
// calls a check passed that nobody proved, and prints nothing raw that may come
// from a sandbox.
package report

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Section is what one service's checks gave.
type Section struct {
	Service string
	Events  []spec.Event
	Hint    string // what to do about what does not hold, where something is known
}

// Holds says whether no event of the section failed or could not be told.
func (s Section) Holds() bool { return count([]Section{s}).Failed == 0 }

// Hints are what to do about what does not hold, each once: what JSON has in its events.
func (s Section) Hints() []string {
	var hints []string
	for _, ev := range s.Events {
		if hint := cmp.Or(ev.Hint, s.Hint); hint != "" && !holds(ev) && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return hints
}

// Bare is a section without hints, for who prints them in a place of their own.
func (s Section) Bare() Section {
	s.Hint, s.Events = "", slices.Clone(s.Events)
	for i := range s.Events {
		s.Events[i].Hint = ""
	}
	return s
}

// Tally counts checks. The zero value has proven nothing.
type Tally struct {
	Passed, Skipped, Failed int
}

// OK says whether everything holds that was checked, and that something was.
func (t Tally) OK() bool { return t.Failed == 0 && t.Passed > 0 }

func (t Tally) String() string {
	return fmt.Sprintf("%d passed, %d skipped, %d failed", t.Passed, t.Skipped, t.Failed)
}

// holds says whether an event is none that counts as failed.
func holds(ev spec.Event) bool {
	return ev.Result == spec.OK || ev.Result == spec.Skip || ev.Result == spec.Note
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
			none := spec.Event{Version: spec.Version, Service: s.Service, Check: wholeSection, Detail: "nothing was checked"}
			out[i].Events = append(slices.Clip(s.Events), none)
		}
	}
	return out
}

// NotTold is a section of which nothing could be told, for a reason.
func NotTold(service, why string) Section {
	why = strings.TrimPrefix(why, "cannot tell: ") // the word comes with the result
	return Section{Service: service, Events: []spec.Event{{Version: spec.Version, Service: service, Check: wholeSection, Detail: why}}}
}

// Untold says whether a section is one of NotTold's, whatever else was added to it.
func (s Section) Untold() bool {
	return len(s.Events) > 0 && s.Events[0].Check == wholeSection && s.Events[0].Result == spec.Untold
}

// wholeSection is the name of an event that is about all checks of a section.
const wholeSection = "checks"

// maxProbes is how many probes a checker's stream may name in all. A gate keeps its last
// 2048 verdicts, so that of more probes it bears out no more; each is looked for among
// all verdicts, which takes a minute for as many as a stream has room for.
const maxProbes = 4096

// Read decodes a checker's stream, one event a line. One that names more probes than any
// honest checker sends is an error.
func Read(r io.Reader) ([]spec.Event, error) {
	const most = 1 << 20 // far above the longest event
	var events []spec.Event
	probes := 0
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
		if probes += len(ev.Probes); probes > maxProbes {
			return events, fmt.Errorf("event %d: more than %d probes are named, and no checker sends as many", len(events)+1, maxProbes)
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
			add(c.Name, unsaid)
		case 1:
			ev := got[0]
			ev.Service, ev.Witnesses = service, nil
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

// unsaid is why a check that a checker did not mention could not be told.
const unsaid = "the checker said nothing about it"

func silent(ev spec.Event) bool { return ev.Result == spec.Untold && ev.Detail == unsaid }

// Unsaid is how many of a section's checks its checker did not mention.
func (s Section) Unsaid() int {
	n := 0
	for _, ev := range s.Events {
		if silent(ev) {
			n++
		}
	}
	return n
}

// Join decides an event by what the gate says about its probes: the check
// holds only if each probe was refused by a rule of the gate and none was let
// through, or the reverse where it is about a grant, and if what an honest checker must
// have probed is among them. pins are what names were resolved to; a name that is not
// there may have any address. An event that does not hold already stays, but that
// one of its probes was let through is told.
func Join(c spec.Check, ev spec.Event, verdicts []spec.Verdict, pins map[string][]netip.Addr) spec.Event {
	if ev.Result == spec.Untold && !granted(c) {
		for _, p := range ev.Probes {
			if slices.ContainsFunc(verdicts, func(v spec.Verdict) bool { return about(v, p) && v.Outcome == spec.OutcomeAccepted }) {
				ev.Result, ev.Detail = spec.Failed, describe(p)+" was let through"
				break
			}
		}
	}
	if ev.Result != spec.OK {
		return ev
	}
	for _, p := range ev.Probes {
		if granted(c) {
			if ev = wanted(ev, p, verdicts); ev.Result == spec.Failed {
				return ev
			}
			continue
		}
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
	if ev.Result != spec.OK {
		return ev // what was let through is the worse word
	}
	for _, m := range mustProbe(c, pins) {
		if !slices.ContainsFunc(ev.Probes, m.met) {
			ev.Result, ev.Detail = spec.Untold, fmt.Sprintf("no probe was sent to %v", m)
			return ev
		}
	}
	return ev
}

// granted says whether a check is about what must be let through. Its kind says so,
// and no checker.
func granted(c spec.Check) bool {
	return slices.Contains([]string{"allowed", "host-service", "link"}, c.Kind())
}

// wanted decides an event by a probe that must have been let through.
func wanted(ev spec.Event, p spec.Probe, verdicts []spec.Verdict) spec.Event {
	accepted := false
	for _, v := range verdicts {
		switch {
		case !about(v, p):
		case v.Outcome == spec.OutcomeRejected:
			ev.Result, ev.Detail = spec.Failed, fmt.Sprintf("%s was refused by rule %s", describe(p), v.Rule)
			return ev
		case v.Outcome == spec.OutcomeAccepted:
			accepted = true
		}
	}
	if !accepted && ev.Result == spec.OK {
		ev.Result, ev.Detail = spec.Untold, fmt.Sprintf("the gate has no record that it let %s through (source port %d)", describe(p), p.Source)
	}
	return ev
}

// must is a probe without which a check cannot have been made: to one of addrs, or any
// address if nobody knows which.
type must struct {
	proto string
	addrs []netip.Addr
	port  uint16
}

func (m must) met(p spec.Probe) bool {
	return p.Proto == m.proto && p.Port == m.port && (len(m.addrs) == 0 || slices.Contains(m.addrs, p.Addr.Unmap()))
}

func (m must) String() string {
	switch len(m.addrs) {
	case 0:
		return fmt.Sprintf("%s port %d", m.proto, m.port)
	case 1:
		return fmt.Sprintf("%s %v", m.proto, netip.AddrPortFrom(m.addrs[0], m.port))
	}
	return fmt.Sprintf("%s port %d at %v or its like", m.proto, m.port, m.addrs[0])
}

// mustProbe lists what an honest checker sends. The zero address is nobody's, so that a
// check without one cannot be met.
func mustProbe(c spec.Check, pins map[string][]netip.Addr) (all []must) {
	var probes spec.Probes
	if c.Probes != nil {
		probes = *c.Probes
	}
	at := func(proto string, addr netip.Addr, ports ...uint16) {
		for _, port := range ports {
			all = append(all, must{proto, []netip.Addr{addr.Unmap()}, port})
		}
	}
	switch c.Kind() {
	case "unlisted-host-blocked":
		at("tcp", probes.Unlisted, append([]uint16{443, 80}, c.Ports...)...)
		at("tcp", probes.Resolver, 53, 853, 443)
		at("udp", probes.Resolver, 443)
	case "bound-sockets-closed":
		at("udp", probes.Unlisted, 443)
		at("udp", ownNames, 53)
	case "udp-closed":
		ports := c.Ports
		if len(ports) == 0 {
			ports = []uint16{53, 123, 443}
		}
		at("udp", probes.Unlisted, ports...)
		for _, name := range c.Names {
			all = append(all, must{"udp", pins[name], 443})
		}
	case "metadata-blocked":
		at("tcp", probes.Metadata, 80)
	case "public-only":
		for _, a := range append([]netip.Addr{probes.Metadata}, c.Addrs...) {
			at("tcp", a, 80, 443)
		}
	case "names-sink":
		at("tcp", c.Addr, 80, 443)
	case "dns-closed":
		for _, a := range []netip.Addr{c.Addr, probes.Resolver, probes.Metadata, dockerResolver} {
			at("tcp", a, 53)
			at("udp", a, 53)
		}
	case "gateway-closed", "host-port-undeclared-blocked", "peer-unreachable", "link-closed":
		ports := c.Ports
		if c.Port != 0 || len(ports) == 0 {
			ports = append([]uint16{c.Port}, ports...)
		}
		at("tcp", c.Addr, ports...)
		at("udp", c.Addr, ports...)
	case "host-service", "link":
		at("tcp", c.Addr, c.Port)
	case "allowed":
		all = append(all, must{"tcp", pins[c.Host], c.Port})
	case "port-not-listed-blocked":
		if len(c.Addrs) > 0 {
			at("tcp", c.Addrs[0], c.Port)
		} else {
			all = append(all, must{"tcp", pins[c.Host], c.Port})
		}
	}
	return all
}

// dockerResolver is the engine's DNS forwarder. What is sent to its port 53
// has another port by the time the filter sees it: nat comes first.
var dockerResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// ownNames is where a gate answers lookups.
var ownNames = netip.AddrFrom4([4]byte{127, 0, 0, 1})

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
