package cli

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
)

// spoil puts text into every string below v, in lists of one, and into the zones
// of addresses, which may be any text too.
func spoil(v reflect.Value, text string) {
	switch addr, isAddr := v.Addr().Interface().(*netip.Addr); {
	case isAddr:
		*addr = netip.IPv6LinkLocalAllNodes().WithZone(text)
		return
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(noon))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		spoil(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		spoil(v.Index(0), text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				spoil(v.Field(i), text)
			}
		}
	case reflect.Uint16, reflect.Uint64:
		v.SetUint(7)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	}
}

func spoilt[T any](text string) (v T) {
	spoil(reflect.ValueOf(&v).Elem(), text)
	return v
}

// Whatever a gate says, in whichever field, is what an agent or a name server may
// have chosen: nothing of it reaches a terminal that would act on it, makes a line
// of its own, or fills the screen.
func TestNothingHostileIsShown(t *testing.T) {
	texts := map[string]string{
		"escape":      "a\x1b[2J\x1b]0;title\x07b.test",
		"C1 controls": "a\u009b2J\u0090q\u009cb.test",
		"bare C1":     "a\x9b2Jb.test",
		"bidi marks":  "a\u202eb\u2066c\u200f.test",
		"invisible":   "a\u200b\u3164\ufe0f\U000e0041.test",
		"lines":       "a\r\nok   non-root\u2028b\x00\x7f",
		"broken":      "a\xff\xc3(",
		"long":        strings.Repeat("long.", 2000) + "test",
		"long escape": strings.Repeat("\x1b", 2000),
	}
	const mostLine = 1500 // bytes, of some cells each
	for name, text := range texts {
		gate := spoilt[spec.GateStatus](text)
		gate.Denied = append(gate.Denied, spec.Traffic{Proto: text, Addr: gate.Denied[0].Addr}) // no port
		lookup := spoilt[spec.Traffic](text)
		lookup.Proto, lookup.Addr = spec.ProtoLookup, netip.Addr{}
		gate.Allowed = append(gate.Allowed, lookup)
		known := gate
		known.Denied = []spec.Traffic{spoilt[spec.Traffic](text)}
		known.Denied[0].Proto, known.Denied[0].Rule, known.Denied[0].Addr = "tcp", "unlisted", netip.MustParseAddr("44.10.0.10")
		showers := map[string]func(w *strings.Builder) error{
			"status": func(w *strings.Builder) error {
				health := spoilt[engine.Health](text)
				health.Gate = &gate
				other := spoilt[engine.Health](text)
				other.Gate = nil
				return (&app{out: w, err: w}).showStatus(statusReport{Sandbox: text, Services: []engine.Health{health, other}, Relays: []engine.RelayHealth{spoilt[engine.RelayHealth](text)}, Unbound: true, Changed: true, Healed: &state.Heals{MadeAnew: 2, StartedAgain: 1, Why: text}}, false)
			},
			"status --json": func(w *strings.Builder) error {
				health := spoilt[engine.Health](text)
				health.Gate = &gate
				return (&app{out: w, err: w}).showStatus(statusReport{Sandbox: text, Services: []engine.Health{health}, Healed: &state.Heals{Why: text}}, true)
			},
			"ps": func(w *strings.Builder) error {
				return (&app{out: w, err: w}).showSandboxes(sandboxList{Sandboxes: []sandboxUp{spoilt[sandboxUp](text)}}, false, noon)
			},
			"ps --json": func(w *strings.Builder) error {
				return (&app{out: w, err: w}).showSandboxes(sandboxList{Sandboxes: []sandboxUp{spoilt[sandboxUp](text)}}, true, noon)
			},
			"traffic": func(w *strings.Builder) error {
				r := trafficReport{Sandbox: text}
				r.add(text, gate, policy.Circumstances{}, trafficWish{})
				r.add(text, known, policy.Circumstances{}, trafficWish{})
				return r.show(w, noon, true)
			},
			"traffic -f": func(w *strings.Builder) error {
				for _, verdict := range []string{text, spec.VerdictAllowed, spec.VerdictDenied, spec.VerdictRefusedName, spec.VerdictLookedUp, spec.VerdictNotShown} {
					d := spoilt[decided](text)
					d.Verdict, d.Suggestion = verdict, nil // that is corral's own
					d.judge(policy.Circumstances{})
					if err := (trafficEvent{decided: d, Time: noon, Count: 2}).show(w, map[string]bool{}); err != nil {
						return err
					}
					if err := writeEvent(w, trafficEvent{decided: d, Time: noon, Service: text}); err != nil {
						return err
					}
				}
				return nil
			},
			"refresh": func(w *strings.Builder) error {
				exit.Report(w, "corral", showRefreshed(w, spoilt[spec.Refreshed](text)))
				return nil
			},
			"verify": func(w *strings.Builder) error {
				var sections []report.Section
				for _, outcome := range []spec.Outcome{spec.OutcomeAccepted, spec.OutcomeRejected, spec.Outcome(text)} {
					v := spoilt[spec.Verdict](text)
					v.Outcome = outcome
					probe := spec.Probe{Proto: v.Proto, Source: v.Source, Addr: v.Addr, Port: v.Port}
					ev := report.Join(spec.Check{Name: "udp-closed:" + text}, spec.Event{Check: "udp-closed:" + text, Result: spec.OK, Detail: text, Probes: []spec.Probe{probe}}, []spec.Verdict{v}, nil)
					sections = append(sections, report.Section{Service: text, Events: []spec.Event{ev}})
				}
				if _, err := report.Text(w, sections, false); err != nil {
					return err
				}
				_, err := report.JSON(w, report.Header{Sandbox: text}, sections)
				return err
			},
			"refusals": func(w *strings.Builder) error {
				a := &app{out: w, err: w}
				a.sayf("denied: %s", summary(gate))
				a.sayf("%s", remedy(gate, nil))
				a.showDenied(gate)
				exit.Report(w, "corral", exit.Failedf(summary(gate), "it ended: %s", summary(gate)))
				return nil
			},
		}
		for which, show := range showers {
			var b strings.Builder
			if err := show(&b); err != nil {
				t.Errorf("%s, %s: %v", which, name, err)
			}
			if b.Len() == 0 {
				t.Errorf("%s, %s: nothing is shown", which, name)
			}
			if i := strings.IndexFunc(strings.NewReplacer("\n", " ").Replace(b.String()), func(r rune) bool { return !printable.Is(r) || r == '\ufffd' && name != "broken" && name != "bare C1" }); i >= 0 {
				t.Errorf("%s, %s: %q", which, name, b.String()[max(0, i-40):min(b.Len(), i+40)])
			}
			for line := range strings.Lines(b.String()) {
				if strings.HasPrefix(line, "ok   non-root") {
					t.Errorf("%s, %s: a line of its own: %q", which, name, line)
				}
				if len(line) > mostLine && which != "verify" && !strings.Contains(line, `"`) {
					t.Errorf("%s, %s: a line of %d bytes: %.100q", which, name, len(line), line)
				}
			}
		}
	}
}
