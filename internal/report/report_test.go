package report

import (
	"net/netip"
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
			got := Join(spec.Check{Name: "icmp-closed"}, ev, tt.verdicts)
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
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK}, nil); got.Result != spec.Untold {
			t.Errorf("%s without a probe: %v", c.Name, got)
		}
		elsewhere := spec.Probe{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("10.9.9.9"), Port: 443}
		refused := spec.Verdict{Proto: "tcp", Source: 61000, Addr: elsewhere.Addr, Port: 443, Outcome: spec.OutcomeRejected, Rule: "unlisted"}
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK, Probes: []spec.Probe{elsewhere}}, []spec.Verdict{refused}); got.Result != spec.Untold {
			t.Errorf("%s with a probe of something else: %v", c.Name, got)
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
		if got := Join(c, spec.Event{Check: c.Name, Result: spec.OK, Probes: tt.probes}, verdicts); got.Result != tt.want {
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
	})
}
