package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

var sample = []Section{{Service: "main", Events: []spec.Event{
	{Version: 1, Service: "main", Check: "non-root", Result: spec.OK, Detail: "2 files\nwere left out"},
	{Version: 1, Service: "main", Check: "no-sudo", Result: spec.Failed, Detail: "/usr/bin/sudo exists"},
	{Version: 1, Service: "main", Check: "seccomp-on", Detail: "no /proc"},
	{Version: 1, Service: "main", Check: "allowed:api.openai.com:443", Result: spec.Skip, Detail: "not pinned (profile default)"},
	{Version: 1, Service: "main", Check: "shared-address", Result: spec.Note, Detail: "a.test and b.test share one"},
	{Version: 1, Service: "main", Check: "rw-writable:/a\x1b[2Jb", Result: "splendid", Detail: "\u202egnp.\nok   non-root"},
}}}

func TestText(t *testing.T) {
	second := Section{Service: "researcher", Events: []spec.Event{{Check: "non-root", Result: spec.OK}}}
	const lines = `ok   non-root: 2 files\nwere left out
FAIL no-sudo: /usr/bin/sudo exists
FAIL seccomp-on: cannot tell: no /proc
skip allowed:api.openai.com:443: not pinned (profile default)
note shared-address: a.test and b.test share one
FAIL rw-writable:/a\x1b[2Jb: cannot tell: \u202egnp.\nok   non-root
`
	for _, tt := range []struct {
		name     string
		sections []Section
		colour   bool
		want     string
		ok       bool
	}{
		{"one service", sample, false, lines + "1 passed, 1 skipped, 3 failed\n", false},
		{"several", append(sample[:1:1], second), false, "main:\n" + lines + "\nresearcher:\nok   non-root\n\n2 passed, 1 skipped, 3 failed\n", false},
		{"all well", []Section{second}, false, "ok   non-root\n1 passed, 0 skipped, 0 failed\n", true},
		{"colour", []Section{second}, true, "\x1b[32mok  \x1b[0m non-root\n1 passed, 0 skipped, 0 failed\n", true},
		{"nothing", nil, false, "FAIL checks: cannot tell: nothing was checked\n0 passed, 0 skipped, 1 failed\n", false},
		{"only skipped", []Section{{Events: sample[0].Events[3:4]}}, false, "skip allowed:api.openai.com:443: not pinned (profile default)\nFAIL checks: cannot tell: nothing was checked\n0 passed, 1 skipped, 1 failed\n", false},
		{"an empty service beside a good one", []Section{second, {Service: "fetch"}}, false, "researcher:\nok   non-root\n\nfetch:\nFAIL checks: cannot tell: nothing was checked\n\n1 passed, 0 skipped, 1 failed\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			tally, err := Text(&b, tt.sections, tt.colour)
			if err != nil || b.String() != tt.want || tally.OK() != tt.ok {
				t.Errorf("ok %v, %v, got\n%s\nwant\n%s", tally.OK(), err, b.String(), tt.want)
			}
		})
	}
}

// Of what holds nothing is shown, and all of it is counted.
func TestFailures(t *testing.T) {
	well := Section{Service: "gate", Events: []spec.Event{{Check: "non-root", Result: spec.OK}}}
	const failures = "FAIL no-sudo: /usr/bin/sudo exists\nFAIL seccomp-on: cannot tell: no /proc\nFAIL rw-writable:/a\\x1b[2Jb: cannot tell: \\u202egnp.\\nok   non-root\n"
	for _, tt := range []struct {
		sections []Section
		want     string
	}{
		{sample, failures + "1 passed, 1 skipped, 3 failed\n"},
		{[]Section{well, sample[0]}, "main:\n" + failures + "\n2 passed, 1 skipped, 3 failed\n"},
		{[]Section{well}, "1 passed, 0 skipped, 0 failed\n"},
		{nil, "FAIL checks: cannot tell: nothing was checked\n0 passed, 0 skipped, 1 failed\n"},
	} {
		var b strings.Builder
		if _, err := Failures(&b, tt.sections, false); err != nil || b.String() != tt.want {
			t.Errorf("%v, got\n%s\nwant\n%s", err, b.String(), tt.want)
		}
	}
}

// A checker that ended early has one line for what it did not say, and each check counts.
func TestTextUnsaid(t *testing.T) {
	const early = "FAIL checks: cannot tell: the checker ended early and said nothing about 9 of 11 checks, each of which counts as failed (--json lists them)\n"
	for _, tt := range []struct {
		checks, lines int
		shortened     bool
	}{{mostUnsaid + 2, mostUnsaid + 2 + 1, false}, {mostUnsaid + 3, 2 + 1 + 1, true}} {
		var checks []spec.Check
		for i := range tt.checks {
			checks = append(checks, spec.Check{Name: fmt.Sprintf("c%d", i)})
		}
		s := Complete("main", checks, []spec.Event{{Version: spec.Version, Check: "c0", Result: spec.OK}, {Version: spec.Version, Check: fmt.Sprintf("c%d", tt.checks-1), Result: spec.Failed, Detail: "no"}})
		var all, failures, stream strings.Builder
		tally, err := Text(&all, []Section{s}, false)
		if err != nil || tally != (Tally{Passed: 1, Failed: tt.checks - 1}) {
			t.Errorf("%v, %v", tally, err)
		}
		if got := strings.Count(all.String(), "\n"); got != tt.lines || strings.Contains(all.String(), early) != tt.shortened || !strings.Contains(all.String(), "FAIL c"+fmt.Sprint(tt.checks-1)+": no\n") {
			t.Errorf("%d lines:\n%s", got, all.String())
		}
		if _, err := Failures(&failures, []Section{s}, false); err != nil || failures.String() != strings.TrimPrefix(all.String(), "ok   c0\n") {
			t.Errorf("%v:\n%s", err, failures.String())
		}
		if again, err := JSON(&stream, Header{}, []Section{s}); err != nil || again != tally || strings.Count(stream.String(), `"detail":"the checker said nothing about it"`) != tt.checks-2 {
			t.Errorf("%v, %v:\n%s", again, err, stream.String())
		}
	}
}

func TestTallyZeroIsNotOK(t *testing.T) {
	if (Tally{}).OK() {
		t.Error("nothing passed, and it is fine")
	}
}

func TestJSON(t *testing.T) {
	var b strings.Builder
	h := Header{Time: time.Unix(0, 0).UTC(), Sandbox: "p-1", Purpose: "run", Versions: map[string]string{"corral": "v1"}, Digests: map[string]string{"policy": "sha256:00"}}
	tally, err := JSON(&b, h, []Section{{Service: "main", Hint: "try again", Events: []spec.Event{sample[0].Events[0], sample[0].Events[5]}}})
	want := `{"version":1,"time":"1970-01-01T00:00:00Z","sandbox":"p-1","purpose":"run","versions":{"corral":"v1"},"digests":{"policy":"sha256:00"}}
{"version":1,"service":"main","check":"non-root","result":"ok","detail":"2 files\nwere left out","hint":"","probes":[],"witnesses":[]}
{"version":1,"service":"main","check":"rw-writable:/a\u001b[2Jb","result":"splendid","detail":"\u202egnp.\nok   non-root","hint":"try again","probes":[],"witnesses":[]}
{"version":1,"passed":1,"skipped":0,"failed":1,"ok":false}
`
	if err != nil || tally.OK() || b.String() != want {
		t.Errorf("%v %v got\n%s\nwant\n%s", tally, err, b.String(), want)
	}
	b.Reset()
	if _, err := JSON(&b, Header{}, []Section{{Service: "alone", Events: []spec.Event{{Check: "a", Result: spec.OK}}}}); err != nil {
		t.Fatal(err)
	}
	want = `{"version":1,"time":"0001-01-01T00:00:00Z","sandbox":"","purpose":"","versions":{},"digests":{}}
{"version":1,"service":"alone","check":"a","result":"ok","detail":"","hint":"","probes":[],"witnesses":[]}
{"version":1,"passed":1,"skipped":0,"failed":0,"ok":true}
`
	if b.String() != want {
		t.Errorf("every field is always there: got\n%s\nwant\n%s", b.String(), want)
	}
	if got := string(printable.JSON([]byte("\"\U000e0041\x7f\""))); got != `"\udb40\udc41\u007f"` {
		t.Error(got)
	}
}
