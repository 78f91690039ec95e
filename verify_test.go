package corral_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// field is one field of a kind of line of the JSON stream.
type field struct{ name, what string }

var (
	headerFields = []field{
		{"version", "of this format"},
		{"time", "when the line was written, RFC 3339"},
		{"sandbox", "its name; of `corral-verify alone` the container's host name; empty if the policy could not be read"},
		{"purpose", "which sandbox was proven: `run` or `daemon`, one that was up, or `verify`, one that was made for the proof, since nothing was up; empty if none was proven, and of `corral-verify alone`"},
		{"versions", "of what made the proof, an object: below"},
		{"digests", "of what was proven, an object: below; empty if nothing is known"},
	}
	eventFields = []field{
		{"version", "of this format"},
		{"service", "the section: the service, `gate`, or a relay as `relay-PORT`; `alone` of `corral-verify alone`; empty where it is about the whole sandbox"},
		{"check", "its name; before the colon is its kind"},
		{"result", "`ok`, `failed`, `skip`, `note`; empty if it could not be told"},
		{"detail", "why it failed, does not apply or could not be told; of one that holds, what the proof left out; else empty"},
		{"hint", "what to do about it, of one that does not hold, where something is known; else empty"},
		{"probes", "packets that were sent for it, a list of objects, mostly an empty one"},
		{"probes[].proto", "`tcp` or `udp`"},
		{"probes[].source", "the source port, 61000 to 61099"},
		{"probes[].addr", "where it was sent"},
		{"probes[].port", "and to which port"},
		{"witnesses", "the sides that said that it holds, of one that does: a list of `agent`, `gate`, `engine`, `kernel`; empty of any other, and of `corral-verify alone`"},
	}
	summaryFields = []field{
		{"version", "of this format"},
		{"passed", "how many hold"},
		{"skipped", "how many do not apply"},
		{"failed", "how many failed or could not be told"},
		{"ok", "whether everything holds that was checked, and something was; the exit status is 0 only then"},
	}
)

// fieldsOf are the names by which a type is written as JSON, those of objects in
// its lists included.
func fieldsOf(t reflect.Type, prefix string) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, prefix+name)
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			names = append(names, fieldsOf(f.Type.Elem(), prefix+name+"[].")...)
		}
	}
	return names
}

func documentFields(t *testing.T, of any, fields []field) string {
	t.Helper()
	told, is := map[string]bool{}, fieldsOf(reflect.TypeOf(of), "")
	var b strings.Builder
	b.WriteString("| field | what it is |\n|---|---|\n")
	for _, f := range fields {
		told[f.name] = true
		if !slices.Contains(is, f.name) {
			t.Errorf("%T has no field %s", of, f.name)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.name, f.what)
	}
	for _, name := range is {
		if !told[name] {
			t.Errorf("nothing is said of the field %s of %T", name, of)
		}
	}
	return b.String()
}

// docs/verify.md has every field of the JSON stream, and a stream.
func TestDocumentedStream(t *testing.T) {
	probe := spec.Probe{Proto: "udp", Source: 61003, Addr: netip.MustParseAddr("198.51.100.1"), Port: 53}
	event := func(section, check string, result spec.Result, detail string, witnesses ...spec.Witness) spec.Event {
		return spec.Event{Version: spec.Version, Service: section, Check: check, Result: result, Detail: detail, Witnesses: witnesses}
	}
	sent := event("main", "udp-closed", spec.OK, "", spec.WitnessAgent, spec.WitnessGate)
	sent.Probes = []spec.Probe{probe}
	var b strings.Builder
	if _, err := report.JSON(&b, report.Header{
		Time: time.Date(2026, 11, 30, 7, 41, 3, 0, time.UTC), Sandbox: "project-034d724f", Purpose: "run",
		Versions: map[string]string{"corral": "v0.1.0", "engine": "20.10.24", "api": "1.41", "kernel": "6.1.0", "gate": "v0.1.0"},
		Digests:  map[string]string{"policy": "sha256:eba31c…", "document": "sha256:90d2c4…", "rules": "62ada7…", "image:gate": "sha256:5e1f02…", "image:main": "sha256:77a8bc…"},
	}, []report.Section{
		{Service: "gate", Events: []spec.Event{event("gate", "capabilities-exact", spec.OK, "", spec.WitnessEngine, spec.WitnessKernel)}},
		{Service: "main", Events: []spec.Event{
			sent,
			event("main", "no-sudo", spec.Failed, "/usr/bin/sudo exists"),
			event("main", "seccomp-on", spec.Untold, "no status"),
			event("main", "secret-absent-elsewhere", spec.Skip, "the policy has no secrets"),
		}},
	}); err != nil {
		t.Fatal(err)
	}
	why := report.NotTold("", "main: paused")
	why.Hint = "corral up heals it"
	var early strings.Builder
	if _, err := report.JSON(&early, report.Header{
		Time: time.Date(2026, 11, 30, 7, 42, 9, 0, time.UTC), Sandbox: "project-034d724f",
		Versions: map[string]string{"corral": "v0.1.0"}, Digests: map[string]string{"policy": "sha256:eba31c…"},
	}, []report.Section{why}); err != nil {
		t.Fatal(err)
	}
	document(t, "docs/verify.md", map[string]string{
		"early":   "```json\n" + early.String() + "```\n",
		"example": "```json\n" + b.String() + "```\n",
		"header":  documentFields(t, report.Header{}, headerFields),
		"event":   documentFields(t, report.Event{}, eventFields),
		"summary": documentFields(t, report.Summary{}, summaryFields),
	})
}
