package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Header is the first event of a JSON stream: what was checked, with what.
type Header struct {
	Version  int               `json:"version"`
	Time     time.Time         `json:"time"`
	Sandbox  string            `json:"sandbox"`
	Versions map[string]string `json:"versions,omitempty"` // corral, engine, …
	Digests  map[string]string `json:"digests,omitempty"`  // policy, rules, an image each
}

// Summary is the last event of a JSON stream; a stream without it was cut off.
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
	sections = insist(sections)
	t := count(sections)
	lines := []any{h}
	for _, s := range sections {
		for _, ev := range s.Events {
			lines = append(lines, ev)
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
