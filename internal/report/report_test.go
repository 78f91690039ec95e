package report

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func TestJoin(t *testing.T) {
	addr := netip.MustParseAddr("198.51.100.1")
	probe := spec.Probe{Proto: "tcp", Source: 61000, Addr: addr, Port: 443}
	other := spec.Probe{Proto: "udp", Source: 61001, Addr: addr, Port: 53}
	verdict := func(p spec.Probe, o spec.Outcome) spec.Verdict {
		return spec.Verdict{Proto: p.Proto, Source: p.Source, Addr: p.Addr, Port: p.Port, Outcome: o, Rule: "unlisted"}
	}
	rejected := verdict(probe, spec.OutcomeRejected)
	change := func(f func(*spec.Verdict)) spec.Verdict { v := rejected; f(&v); return v }
	docker := spec.Probe{Proto: "udp", Source: 61002, Addr: dockerResolver, Port: 53}
	hidden := spec.Probe{Proto: "udp", Source: 61003, Addr: dockerResolver, Port: 40000}
	for _, tt := range []struct {
		name     string
		result   spec.Result
		probes   []spec.Probe
		verdicts []spec.Verdict
		want     spec.Result
		detail   string
	}{
		{"no probes", spec.OK, nil, nil, spec.OK, ""},
		{"refused", spec.OK, []spec.Probe{probe}, []spec.Verdict{rejected}, spec.OK, ""},
		{"no record", spec.OK, []spec.Probe{probe}, nil, spec.Untold, "no record that it refused tcp 198.51.100.1:443 (source port 61000)"},
		{"let through", spec.OK, []spec.Probe{probe}, []spec.Verdict{verdict(probe, spec.OutcomeAccepted)}, spec.Failed, "tcp 198.51.100.1:443 was let through"},
		{"refused and let through", spec.OK, []spec.Probe{probe}, []spec.Verdict{rejected, verdict(probe, spec.OutcomeAccepted)}, spec.Failed, "let through"},
		{"refused more than once", spec.OK, []spec.Probe{probe}, []spec.Verdict{rejected, rejected}, spec.OK, ""},
		{"an unknown outcome", spec.OK, []spec.Probe{probe}, []spec.Verdict{change(func(v *spec.Verdict) { v.Outcome = "" })}, spec.Untold, "no record"},
		{"by no rule", spec.OK, []spec.Probe{probe}, []spec.Verdict{change(func(v *spec.Verdict) { v.Rule = "" })}, spec.Untold, "no record"},
		{"another protocol", spec.OK, []spec.Probe{probe}, []spec.Verdict{change(func(v *spec.Verdict) { v.Proto = "udp" })}, spec.Untold, "no record"},
		{"another source port", spec.OK, []spec.Probe{probe}, []spec.Verdict{change(func(v *spec.Verdict) { v.Source++ })}, spec.Untold, "no record"},
		{"another address", spec.OK, []spec.Probe{probe}, []spec.Verdict{change(func(v *spec.Verdict) { v.Addr = v.Addr.Next() })}, spec.Untold, "no record"},
		{"another port", spec.OK, []spec.Probe{probe}, []spec.Verdict{change(func(v *spec.Verdict) { v.Port++ })}, spec.Untold, "no record"},
		{"one of two", spec.OK, []spec.Probe{probe, other}, []spec.Verdict{rejected}, spec.Untold, "udp 198.51.100.1:53"},
		{"one unknown, the next let through", spec.OK, []spec.Probe{probe, other}, []spec.Verdict{verdict(other, spec.OutcomeAccepted)}, spec.Failed, "udp 198.51.100.1:53 was let through"},
		{"failed inside", spec.Failed, []spec.Probe{probe}, []spec.Verdict{rejected}, spec.Failed, "before"},
		{"untold inside", spec.Untold, []spec.Probe{probe}, []spec.Verdict{rejected}, spec.Untold, "before"},
		{"the engine's resolver, after nat", spec.OK, []spec.Probe{docker}, []spec.Verdict{{Proto: "udp", Source: 61002, Addr: dockerResolver, Port: 41234, Outcome: spec.OutcomeRejected, Rule: "docker-resolver"}}, spec.OK, ""},
		{"its hidden port", spec.OK, []spec.Probe{hidden}, []spec.Verdict{{Proto: "udp", Source: 61003, Addr: dockerResolver, Port: 41234, Outcome: spec.OutcomeRejected, Rule: "docker-resolver"}}, spec.Untold, "no record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ev := spec.Event{Check: "x", Result: tt.result, Probes: tt.probes}
			if tt.result != spec.OK {
				ev.Detail = "before"
			}
			got := Join(spec.Check{Name: "icmp-closed"}, ev, tt.verdicts, nil)
			if got.Result != tt.want || !strings.Contains(got.Detail, tt.detail) {
				t.Errorf("%q %q, want %q %q", got.Result, got.Detail, tt.want, tt.detail)
			}
		})
	}
}

// An answer that leaves out what an honest checker must have done proves
// nothing, whoever wrote it.
func TestJoinWantsTheProbes(t *testing.T) {
	probes := spec.DefaultProbes()
	gateway := netip.MustParseAddr("172.30.0.1")
	for _, c := range []spec.Check{
		{Name: "unlisted-host-blocked", Probes: &probes}, {Name: "udp-closed", Probes: &probes}, {Name: "metadata-blocked", Probes: &probes},
		{Name: "public-only", Addrs: []netip.Addr{gateway}, Probes: &spec.Probes{Metadata: netip.MustParseAddr("10.9.9.9")}},
		{Name: "dns-closed", Probes: &probes, Addr: gateway}, {Name: "gateway-closed", Addr: gateway},
		{Name: "port-not-listed-blocked:a.test", Host: "a.test", Port: 8445},
		{Name: "host-port-undeclared-blocked", Addr: gateway}, {Name: "peer-unreachable:a", Addr: gateway},
	} {
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK}, nil, nil); got.Result != spec.Untold {
			t.Errorf("%s without a probe: %v", c.Name, got)
		}
		elsewhere := spec.Probe{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("10.9.9.9"), Port: 443}
		refused := spec.Verdict{Proto: "tcp", Source: 61000, Addr: elsewhere.Addr, Port: 443, Outcome: spec.OutcomeRejected, Rule: "unlisted"}
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK, Probes: []spec.Probe{elsewhere}}, []spec.Verdict{refused}, nil); got.Result != spec.Untold {
			t.Errorf("%s with a probe of something else: %v", c.Name, got)
		}
	}
}

// Each probe that an honest checker sends is one without which it proves nothing: one
// that is left out, or sent by another protocol, to another port or another's address.
func TestJoinWantsEveryProbe(t *testing.T) {
	probes := spec.Probes{Unlisted: netip.MustParseAddr("44.10.9.9"), Resolver: netip.MustParseAddr("44.10.0.66"), Metadata: netip.MustParseAddr("44.10.9.169")}
	gateway := netip.MustParseAddr("172.30.0.1")
	pins := map[string][]netip.Addr{"a.test": {netip.MustParseAddr("44.10.0.1"), netip.MustParseAddr("44.10.0.2")}, "b.test": {netip.MustParseAddr("44.10.0.3")}}
	for _, tt := range []struct {
		check spec.Check
		sent  string
	}{
		{spec.Check{Name: "unlisted-host-blocked", Probes: &probes, Ports: []uint16{5432}}, "tcp 44.10.9.9:443 tcp 44.10.9.9:80 tcp 44.10.9.9:5432 tcp 44.10.0.66:53 tcp 44.10.0.66:853 tcp 44.10.0.66:443 udp 44.10.0.66:443"},
		{spec.Check{Name: "udp-closed", Probes: &probes, Names: []string{"a.test", "b.test"}}, "udp 44.10.9.9:53 udp 44.10.9.9:123 udp 44.10.9.9:443 udp 44.10.0.2:443 udp 44.10.0.3:443"},
		{spec.Check{Name: "udp-closed", Probes: &probes, Ports: []uint16{9}}, "udp 44.10.9.9:9"},
		{spec.Check{Name: "bound-sockets-closed", Probes: &probes}, "udp 44.10.9.9:443 udp 127.0.0.1:53"},
		{spec.Check{Name: "metadata-blocked", Probes: &probes}, "tcp 44.10.9.169:80"},
		{spec.Check{Name: "public-only", Probes: &probes, Addrs: []netip.Addr{gateway}}, "tcp 44.10.9.169:80 tcp 44.10.9.169:443 tcp 172.30.0.1:80 tcp 172.30.0.1:443"},
		{spec.Check{Name: "names-sink", Addr: gateway}, "tcp 172.30.0.1:80 tcp 172.30.0.1:443"},
		{spec.Check{Name: "dns-closed", Probes: &probes, Addr: gateway}, "tcp 172.30.0.1:53 udp 172.30.0.1:53 tcp 44.10.0.66:53 udp 44.10.0.66:53 tcp 44.10.9.169:53 udp 44.10.9.169:53 tcp 127.0.0.11:53 udp 127.0.0.11:53"},
		{spec.Check{Name: "gateway-closed", Addr: gateway, Ports: []uint16{22, 80}}, "tcp 172.30.0.1:22 udp 172.30.0.1:22 tcp 172.30.0.1:80 udp 172.30.0.1:80"},
		{spec.Check{Name: "peer-unreachable:x", Addr: gateway, Ports: []uint16{22}}, "tcp 172.30.0.1:22 udp 172.30.0.1:22"},
		{spec.Check{Name: "link-closed:x", Addr: gateway, Ports: []uint16{22}}, "tcp 172.30.0.1:22 udp 172.30.0.1:22"},
		{spec.Check{Name: "host-port-undeclared-blocked", Addr: gateway, Port: 8445}, "tcp 172.30.0.1:8445 udp 172.30.0.1:8445"},
		{spec.Check{Name: "port-not-listed-blocked:a.test", Host: "a.test", Port: 8445}, "tcp 44.10.0.1:8445"},
		{spec.Check{Name: "port-not-listed-blocked:x", Addrs: []netip.Addr{gateway}, Port: 8445}, "tcp 172.30.0.1:8445"},
		{spec.Check{Name: "allowed:b.test:443", Host: "b.test", Port: 443}, "tcp 44.10.0.3:443"},
		{spec.Check{Name: "host-service:8080", Addr: gateway, Port: 8080}, "tcp 172.30.0.1:8080"},
	} {
		var sent []spec.Probe
		words := strings.Fields(tt.sent)
		for i := 0; i < len(words); i += 2 {
			to := netip.MustParseAddrPort(words[i+1])
			sent = append(sent, spec.Probe{Proto: words[i], Source: uint16(spec.ProbePortFirst + i), Addr: to.Addr(), Port: to.Port()})
		}
		// told is what comes of probes on all of which the gate has the verdict that the
		// check wants.
		told := func(probes []spec.Probe) spec.Event {
			outcome := spec.OutcomeRejected
			if granted(tt.check) {
				outcome = spec.OutcomeAccepted
			}
			var verdicts []spec.Verdict
			for _, p := range probes {
				verdicts = append(verdicts, spec.Verdict{Proto: p.Proto, Source: p.Source, Addr: p.Addr, Port: p.Port, Outcome: outcome, Rule: "r"})
			}
			return Join(tt.check, spec.Event{Check: tt.check.Name, Result: spec.OK, Probes: probes}, verdicts, pins)
		}
		if ev := told(sent); ev.Result != spec.OK {
			t.Errorf("%s with all of them: %+v", tt.check.Name, ev)
		}
		for i, p := range sent {
			other := map[string]string{"tcp": "udp", "udp": "tcp"}[p.Proto]
			for _, instead := range [][]spec.Probe{
				nil,
				{{Proto: other, Source: p.Source, Addr: p.Addr, Port: p.Port}},
				{{Proto: p.Proto, Source: p.Source, Addr: p.Addr, Port: p.Port + 1}},
				{{Proto: p.Proto, Source: p.Source, Addr: netip.MustParseAddr("44.10.0.77"), Port: p.Port}},
			} {
				if ev := told(slices.Concat(sent[:i], instead, sent[i+1:])); ev.Result != spec.Untold || !strings.Contains(ev.Detail, "no probe was sent to "+p.Proto) {
					t.Errorf("%s with %v instead of %v: %+v", tt.check.Name, instead, p, ev)
				}
			}
		}
	}
}

// A check about one port has tried that one, by every protocol it is about.
func TestJoinWantsThePort(t *testing.T) {
	gateway := netip.MustParseAddr("172.30.0.1")
	c := spec.Check{Name: "host-port-undeclared-blocked", Addr: gateway, Port: 40001}
	for _, tt := range []struct {
		name   string
		probes []spec.Probe
		want   spec.Result
	}{
		{"both", []spec.Probe{{Proto: "tcp", Source: 61000, Addr: gateway, Port: 40001}, {Proto: "udp", Source: 61001, Addr: gateway, Port: 40001}}, spec.OK},
		{"TCP alone", []spec.Probe{{Proto: "tcp", Source: 61000, Addr: gateway, Port: 40001}}, spec.Untold},
		{"UDP alone", []spec.Probe{{Proto: "udp", Source: 61000, Addr: gateway, Port: 40001}}, spec.Untold},
		{"the port beside it", []spec.Probe{{Proto: "tcp", Source: 61000, Addr: gateway, Port: 40002}, {Proto: "udp", Source: 61001, Addr: gateway, Port: 40001}}, spec.Untold},
	} {
		var verdicts []spec.Verdict
		for _, p := range tt.probes {
			verdicts = append(verdicts, spec.Verdict{Proto: p.Proto, Source: p.Source, Addr: p.Addr, Port: p.Port, Outcome: spec.OutcomeRejected, Rule: "gateway"})
		}
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK, Probes: tt.probes}, verdicts, nil); got.Result != tt.want {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// Only the plan says what does not apply.
func TestCompleteTakesNoExcuses(t *testing.T) {
	checks := []spec.Check{{Name: "a"}, {Name: "b", Skip: "not here"}, {Name: "c"}, {Name: "d", Skip: "not here"}}
	got := Complete("main", checks, []spec.Event{
		{Version: 1, Check: "a", Result: spec.Skip, Detail: "please"}, {Version: 1, Check: "b", Result: spec.Skip, Detail: "not here"},
		{Version: 1, Check: "c", Result: spec.Note}, {Version: 1, Check: "d", Result: spec.OK},
	})
	for i, want := range []spec.Result{spec.Untold, spec.Skip, spec.Untold, spec.Untold} {
		if got.Events[i].Result != want {
			t.Errorf("%s is %q, want %q", checks[i].Name, got.Events[i].Result, want)
		}
	}
}

func TestComplete(t *testing.T) {
	got := Complete("main", []spec.Check{{Name: "a"}, {Name: "b"}, {Name: "c"}}, []spec.Event{
		{Version: 1, Check: "c", Result: spec.OK}, {Version: 1, Check: "b", Result: spec.OK}, {Version: 1, Check: "b", Result: spec.OK},
		{Version: 1, Check: "z", Result: spec.OK}, {Version: 1, Check: "z", Result: spec.OK},
	})
	want := Section{Service: "main", Events: []spec.Event{
		{Version: 1, Service: "main", Check: "a", Detail: "the checker said nothing about it"},
		{Version: 1, Service: "main", Check: "b", Detail: "the checker answered twice"},
		{Version: 1, Service: "main", Check: "c", Result: spec.OK},
		{Version: 1, Service: "main", Check: "z", Detail: "nobody asked for it"},
	}}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		in  string
		n   int
		err string
	}{
		{"", 0, ""},
		{`{"version":1,"check":"a","result":"ok"}` + "\n" + `{"version":1,"check":"b","result":""}` + "\n", 2, ""},
		{`{"version":1,"check":"a","result":"ok"}` + "\n" + `{"version":1,"ch`, 1, "event 2"},
		{`{"version":2,"check":"a"}`, 0, "version 2"},
		{`{"version":1,"check":"a","pardon":1}`, 0, "pardon"},
		{"hello\n", 0, "event 1"},
	} {
		got, err := Read(strings.NewReader(tt.in))
		if len(got) != tt.n || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %d events, %v", tt.in, len(got), err)
		}
	}
}

// Whoever answers for a checker makes nobody look for more probes than one sends, in one
// event or in all of them.
func TestReadProbes(t *testing.T) {
	event := func(n int) string {
		ev := spec.Event{Version: spec.Version, Check: "udp-closed", Result: spec.OK}
		for i := range n {
			ev.Probes = append(ev.Probes, spec.Probe{Proto: "udp", Source: uint16(i), Addr: netip.MustParseAddr("44.10.9.9"), Port: 443})
		}
		b, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	}
	for _, tt := range []struct {
		events []int // of so many probes
		n      int
		err    string
	}{
		{[]int{0, 9}, 2, ""},
		{[]int{maxProbes}, 1, ""},
		{[]int{maxProbes + 1}, 0, "event 1: more than 4096 probes"},
		{[]int{12000}, 0, "event 1: "},
		{[]int{maxProbes / 2, maxProbes / 2, 0}, 3, ""},
		{[]int{maxProbes / 2, maxProbes / 2, 0, 1}, 3, "event 4: more than 4096 probes"},
	} {
		var in strings.Builder
		for _, n := range tt.events {
			in.WriteString(event(n))
		}
		got, err := Read(strings.NewReader(in.String()))
		if len(got) != tt.n || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%v: %d events, %v", tt.events, len(got), err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"version":1,"check":"a","result":"ok"}`)
	f.Fuzz(func(t *testing.T, s string) {
		events, _ := Read(strings.NewReader(s))
		var b strings.Builder
		if _, err := Text(&b, []Section{{Events: events}}, false); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(strings.NewReplacer("\n", "", "\ufffd", "").Replace(b.String()), func(r rune) bool { return !printable.Is(r) }) {
			t.Errorf("%q", b.String())
		}
		var stream bytes.Buffer
		tally, err := JSON(&stream, Header{Sandbox: s, Digests: map[string]string{s: s}}, []Section{{Events: events}})
		if err != nil {
			t.Fatal(err)
		}
		passed := 0
		for _, ev := range events {
			if ev.Result == spec.OK {
				passed++
			}
		}
		if tally.Passed != passed {
			t.Errorf("%d passed of %d", tally.Passed, passed)
		}
		lines := bytes.Split(bytes.TrimSuffix(stream.Bytes(), []byte("\n")), []byte("\n"))
		for _, line := range lines {
			if !json.Valid(line) || bytes.ContainsFunc(line, func(r rune) bool { return r != '\ufffd' && !printable.Is(r) }) {
				t.Errorf("%q", line)
			}
		}
	})
}

// A connection that must have been let through holds by the gate's record that it
// was, and by nothing else; what a checker says of who agreed counts for nothing.
func TestJoinWanted(t *testing.T) {
	at := netip.MustParseAddr("44.10.0.1")
	c := spec.Check{Name: "allowed:a.test:443", Host: "a.test", Port: 443}
	probe := spec.Probe{Proto: "tcp", Source: 61001, Addr: at, Port: 443}
	verdict := func(o spec.Outcome, port uint16) spec.Verdict {
		return spec.Verdict{Proto: "tcp", Source: 61001, Addr: at, Port: port, Outcome: o, Rule: "unlisted"}
	}
	for _, tt := range []struct {
		name     string
		probes   []spec.Probe
		verdicts []spec.Verdict
		want     spec.Result
	}{
		{"let through", []spec.Probe{probe}, []spec.Verdict{verdict(spec.OutcomeAccepted, 443)}, spec.OK},
		{"no probe", nil, []spec.Verdict{verdict(spec.OutcomeAccepted, 443)}, spec.Untold},
		{"no record", []spec.Probe{probe}, nil, spec.Untold},
		{"a record of another port", []spec.Probe{probe}, []spec.Verdict{verdict(spec.OutcomeAccepted, 80)}, spec.Untold},
		{"a record that says nothing", []spec.Probe{probe}, []spec.Verdict{verdict(spec.OutcomeUnknown, 443)}, spec.Untold},
		{"refused", []spec.Probe{probe}, []spec.Verdict{verdict(spec.OutcomeRejected, 443)}, spec.Failed},
		{"refused once", []spec.Probe{probe}, []spec.Verdict{verdict(spec.OutcomeAccepted, 443), verdict(spec.OutcomeRejected, 443)}, spec.Failed},
		{"a probe of another port", []spec.Probe{{Proto: "tcp", Source: 61001, Addr: at, Port: 80}}, []spec.Verdict{verdict(spec.OutcomeAccepted, 80)}, spec.Untold},
		{"one of two", []spec.Probe{probe, {Proto: "tcp", Source: 61002, Addr: at, Port: 443}}, []spec.Verdict{verdict(spec.OutcomeAccepted, 443)}, spec.Untold},
	} {
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK, Probes: tt.probes}, tt.verdicts, nil); got.Result != tt.want {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	// What must be refused is no such connection.
	closed := spec.Check{Name: "metadata-blocked", Probes: &spec.Probes{Metadata: at}}
	if got := Join(closed, spec.Event{Check: closed.Name, Result: spec.OK, Probes: []spec.Probe{probe}}, []spec.Verdict{verdict(spec.OutcomeAccepted, 443)}, nil); got.Result != spec.Failed {
		t.Errorf("a refusal that wants to be let through: %+v", got)
	}
	s := Complete("main", []spec.Check{c}, []spec.Event{{Version: spec.Version, Check: c.Name, Result: spec.OK, Witnesses: []spec.Witness{spec.WitnessEngine}}})
	if len(s.Events) != 1 || len(s.Events[0].Witnesses) > 0 {
		t.Errorf("%+v", s)
	}
}
