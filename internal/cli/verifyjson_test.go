package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
)

// streamed are the lines of a JSON stream.
func streamed(t *testing.T, out string) (h report.Header, events []report.Event, sum report.Summary) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) < 3 {
		t.Fatalf("no header, event and summary: %q", out)
	}
	for i, line := range lines {
		var v any
		switch i {
		case 0:
			v = &h
		case len(lines) - 1:
			v = &sum
		default:
			events = append(events, report.Event{})
			v = &events[len(events)-1]
		}
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return h, events, sum
}

// Where nothing can be proven the stream is whole all the same, and says so.
func TestVerifyJSONUntold(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	status := Main(t.Context(), strings.NewReader(""), &out, &errs, []string{"verify", "--json", "--policy", t.TempDir() + "/corral.yaml"})
	h, events, sum := streamed(t, out.String())
	if status == 0 || errs.Len() == 0 {
		t.Errorf("status %d, said %q", status, errs.String())
	}
	if h.Purpose != "" {
		t.Errorf("nothing was proven, and it was for %q", h.Purpose)
	}
	if h.Version != spec.Version || h.Time.IsZero() || h.Versions["corral"] != spec.Release() {
		t.Errorf("header %+v", h)
	}
	if len(events) != 1 || events[0].Check != "checks" || events[0].Result != spec.Untold || events[0].Detail == "" {
		t.Errorf("events %+v", events)
	}
	if sum.OK || sum.Failed != 1 || sum.Passed != 0 {
		t.Errorf("summary %+v", sum)
	}

	a := &app{out: &out, err: io.Discard}
	out.Reset()
	if err := a.showUntold(nil, exit.Failedf("turn it on", "cannot tell: the gate is \x1b[2Jaway")); err != nil {
		t.Fatal(err)
	}
	if _, events, _ := streamed(t, out.String()); events[0].Detail != "the gate is \x1b[2Jaway" && !strings.Contains(events[0].Detail, "the gate is ") || strings.Contains(out.String(), "\x1b") || events[0].Hint != "turn it on" {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	if err := a.showUntold(nil, errors.Join(errors.New("x"), context.Canceled)); err != nil || out.Len() > 0 {
		t.Errorf("interrupted: %q, %v", out.String(), err)
	}
}

// The head of a stream says which sandbox was proven.
func TestVerifyJSONPurpose(t *testing.T) {
	t.Parallel()
	well := report.Section{Service: "gate", Events: []spec.Event{{Check: "c", Result: spec.OK}}}
	for _, purpose := range []string{engine.PurposeRun, engine.PurposeDaemon, engine.PurposeVerify} {
		var out bytes.Buffer
		if err := (&app{out: &out, err: io.Discard}).showJSON(nil, &engine.Proof{Purpose: purpose, Sections: []report.Section{well}}); err != nil {
			t.Fatal(err)
		}
		if h, _, _ := streamed(t, out.String()); h.Purpose != purpose {
			t.Errorf("%s: %+v", purpose, h)
		}
	}
}

// A sandbox that is there, and has no service that runs, is on its way up or down: it
// is not up already, and no shell can be opened in it.
func TestVerifyBetween(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		told string // empty: no proof could be begun, and the error stays
	}{
		{&engine.Running{ID: "p-1"}, "sandbox p-1 is starting or ending"},
		{&engine.Running{ID: "p-1", Daemon: true}, "sandbox p-1 is starting or ending"},
		{fmt.Errorf("gate: %w", &engine.Running{ID: "p-1", Unattended: true}), "sandbox p-1 is starting or ending"},
		{fmt.Errorf("p-1: %w", state.ErrLocked), "p-1: another corral is bringing it up, or looks after it"},
		{errors.New("broken"), ""},
		{context.Canceled, ""},
	} {
		err := between(c.err)
		if c.told == "" {
			if err != c.err {
				t.Errorf("%v became %v", c.err, err)
			}
			continue
		}
		if !errors.As(err, new(*unproven)) {
			t.Errorf("%v has no line", err)
			continue
		}
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs}
		if status := a.report(a.showUnproven(err)); status != exit.Failed {
			t.Errorf("%v: status %d", err, status)
		}
		if want := "FAIL checks: cannot tell: " + c.told + "\n0 passed, 0 skipped, 1 failed\n"; out.String() != want {
			t.Errorf("%q", out.String())
		}
		if want := "corral: " + c.told + "\n  hint: wait a moment, then corral verify again; corral down ends one that stays as it is\n"; errs.String() != want {
			t.Errorf("%q", errs.String())
		}
	}
}

// A sandbox whose corral was killed is as good a fence as before: it is proven, and
// that nobody looks after it is said.
func TestVerifyLeftAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h    engine.Health
		ok   bool
		said string
	}{
		{engine.Health{Service: "main", State: "running", OK: true, Gate: &spec.GateStatus{Instance: "i"}}, true, ""},
		{engine.Health{Service: "main", State: "running on (corral down ends it)", Alone: true, Gate: &spec.GateStatus{Instance: "i"}}, true, "corral: main: running on (corral down ends it)\n"},
		{engine.Health{Service: "main", State: "paused", Gate: &spec.GateStatus{Instance: "i"}}, false, ""},
		{engine.Health{Service: "main", State: "gate does not answer"}, false, ""},
	} {
		var errs bytes.Buffer
		status, err := (&app{err: &errs}).judge(c.h, engine.Member{})
		if (err == nil) != c.ok || c.ok && status.Instance != "i" || errs.String() != c.said {
			t.Errorf("%s: %v, said %q", c.h.State, err, errs.String())
		}
	}
}

// A service of which nothing could be told makes the whole proof fail.
func TestVerifyOneUntold(t *testing.T) {
	t.Parallel()
	well := report.Section{Service: "gate", Events: []spec.Event{{Check: "c", Result: spec.OK}}}
	proof := &engine.Proof{Sections: []report.Section{well, report.NotTold("main", "cannot tell: it broke off")}}
	var out bytes.Buffer
	a := &app{out: &out, err: io.Discard}
	if err := a.show(proof, false); err == nil {
		t.Error("it passed")
	}
	if want := "gate:\nok   c\n\nmain:\nFAIL checks: cannot tell: it broke off\n\n1 passed, 0 skipped, 1 failed\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
}

// What to do about what does not hold comes once, after the tally, and of what holds
// nothing is said.
func TestVerifyHints(t *testing.T) {
	t.Parallel()
	red := func(name, hint string) report.Section {
		return report.Section{Service: name, Hint: hint, Events: []spec.Event{{Check: "a", Result: spec.OK}, {Check: "b", Result: spec.Failed, Detail: "no"}}}
	}
	well := report.Section{Service: "gate", Hint: "nothing", Events: []spec.Event{{Check: "c", Result: spec.OK}}}
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	if status := a.report(a.show(&engine.Proof{Sections: []report.Section{well, red("main", "mend it"), red("other", "mend it")}}, true)); status != exit.Failed {
		t.Errorf("status %d", status)
	}
	if want := "main:\nFAIL b: no\n\nother:\nFAIL b: no\n\n3 passed, 0 skipped, 2 failed\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
	if want := "corral: not everything holds\n  hint: mend it\n"; errs.String() != want {
		t.Errorf("%q", errs.String())
	}
	out.Reset()
	errs.Reset()
	own := red("main", "mend it")
	own.Events = append(own.Events, spec.Event{Check: "d", Result: spec.Failed, Detail: "away", Hint: "call it"})
	if a.report(a.show(&engine.Proof{Sections: []report.Section{own}}, true)); errs.String() != "corral: not everything holds\n  hint: mend it; call it\n" || out.String() != "FAIL b: no\nFAIL d: away\n1 passed, 0 skipped, 2 failed\n" {
		t.Errorf("hints of checks: %q, %q", errs.String(), out.String())
	}
	errs.Reset()
	if a.report(a.show(&engine.Proof{Sections: []report.Section{red("main", "")}}, true)); errs.String() != "corral: not everything holds\n  hint: "+hintNone+"\n" {
		t.Errorf("nothing better is known: %q", errs.String())
	}
	out.Reset()
	errs.Reset()
	if status := a.report(a.show(&engine.Proof{Sections: []report.Section{well}}, true)); status != exit.OK || errs.Len() > 0 || out.String() != "1 passed, 0 skipped, 0 failed\n" {
		t.Errorf("status %d, %q, %q", status, out.String(), errs.String())
	}
}

// Where a sandbox that is up cannot be proven, whoever reads lines has a check that
// failed and the tally, and a person why and what to do.
func TestVerifyUnproven(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	if status := a.report(a.showUnproven(&unproven{exit.Failedf("corral up heals it", "main: paused")})); status != exit.Failed {
		t.Errorf("status %d", status)
	}
	if want := "FAIL checks: cannot tell: main: paused\n0 passed, 0 skipped, 1 failed\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
	if want := "corral: main: paused\n  hint: corral up heals it\n"; errs.String() != want {
		t.Errorf("%q", errs.String())
	}
	if status := Main(t.Context(), strings.NewReader(""), io.Discard, &errs, []string{"verify", "--json", "--failed"}); status != exit.Invalid {
		t.Errorf("--json --failed: status %d", status)
	}
}
