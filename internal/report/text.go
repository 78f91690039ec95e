package report

import (
	"bytes"
	"fmt"
	"io"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// word is how a result is printed, padded to one width, and its colour.
func word(r spec.Result) (text, colour string) {
	switch r {
	case spec.OK:
		return "ok  ", "\x1b[32m"
	case spec.Skip:
		return "skip", "\x1b[33m"
	case spec.Note:
		return "note", "\x1b[36m"
	}
	return "FAIL", "\x1b[1;31m"
}

// Text writes a line a check and the tally last; several services have a
// heading each. Colour is for terminals whose owner did not refuse it.
func Text(w io.Writer, sections []Section, colour bool) (Tally, error) {
	sections = insist(sections)
	var b bytes.Buffer
	for _, s := range sections {
		if len(sections) > 1 {
			fmt.Fprintf(&b, "%s:\n", printable.Escape(s.Service))
		}
		for _, ev := range s.Events {
			b.WriteString(Line(ev, colour))
			if ev.Result == spec.OK && ev.Detail != "" { // what the proof left out
				b.WriteString(": " + printable.Escape(ev.Detail))
			}
			b.WriteByte('\n')
		}
		if len(sections) > 1 {
			b.WriteByte('\n')
		}
	}
	t := count(sections)
	fmt.Fprintf(&b, "%v\n", t)
	_, err := w.Write(b.Bytes())
	return t, err
}

// Line is one event for a person.
func Line(ev spec.Event, colour bool) string {
	text, paint := word(ev.Result)
	if colour {
		text = paint + text + "\x1b[0m"
	}
	line := text + " " + printable.Escape(ev.Check)
	switch ev.Result {
	case spec.OK: // what it proves is its name
	case spec.Failed, spec.Skip, spec.Note:
		if ev.Detail != "" {
			line += ": " + printable.Escape(ev.Detail)
		}
	default:
		line += ": cannot tell: " + printable.Escape(ev.Detail)
	}
	return line
}
