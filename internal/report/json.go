package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Header is the first line of a JSON stream: what was checked, with what. Of each
// kind of line every field is always there.
type Header struct {
	Version  int               `json:"version"`
	Time     time.Time         `json:"time"`
	Sandbox  string            `json:"sandbox"`
	Purpose  string            `json:"purpose"`  // what the sandbox was brought up for; empty if none was proven
	Versions map[string]string `json:"versions"` // corral, engine, …
	Digests  map[string]string `json:"digests"`  // policy, rules, an image each
}

// Event is a line of a JSON stream: what became of one check.
type Event struct {
	Version   int            `json:"version"`
	Service   string         `json:"service"`
	Check     string         `json:"check"`
	Result    spec.Result    `json:"result"`
	Detail    string         `json:"detail"`
	Hint      string         `json:"hint"`
	Probes    []spec.Probe   `json:"probes"`
	Witnesses []spec.Witness `json:"witnesses"`
}

// event is the line of a section's event. Hints are about what does not hold, the
// section's about all that has none of its own.
func (s Section) event(ev spec.Event) Event {
	line := Event{
		Version: spec.Version, Service: cmp.Or(ev.Service, s.Service), Check: ev.Check, Result: ev.Result, Detail: ev.Detail,
		Probes: append([]spec.Probe{}, ev.Probes...), Witnesses: append([]spec.Witness{}, ev.Witnesses...),
	}
	if !holds(ev) {
		line.Hint = cmp.Or(ev.Hint, s.Hint)
	}
	return line
}

// Summary is the last line of a JSON stream; a stream without it was cut off.
type Summary struct {
	Version int  `json:"version"`
	Passed  int  `json:"passed"`
	Skipped int  `json:"skipped"`
	Failed  int  `json:"failed"`
	OK      bool `json:"ok"`
}

// JSON writes the header, an event a line and the summary. Everything that a
// terminal might act on is escaped within the strings.
func JSON(w io.Writer, h Header, sections []Section) (Tally, error) {
	h.Version = spec.Version
	if h.Versions == nil {
		h.Versions = map[string]string{}
	}
	if h.Digests == nil {
		h.Digests = map[string]string{}
	}
	sections = insist(sections)
	t := count(sections)
	lines := []any{h}
	for _, s := range sections {
		for _, ev := range s.Events {
			lines = append(lines, s.event(ev))
		}
	}
	lines = append(lines, Summary{Version: spec.Version, Passed: t.Passed, Skipped: t.Skipped, Failed: t.Failed, OK: t.OK()})
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, line := range lines {
		if err := enc.Encode(line); err != nil {
			return t, fmt.Errorf("encode an event: %w", err)
		}
	}
	_, err := w.Write(printable.JSON(b.Bytes()))
	return t, err
}
