package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"

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
	return text(w, sections, colour, func(spec.Event) bool { return true })
}

// Failures writes as Text does, but of the checks only those that do not hold.
func Failures(w io.Writer, sections []Section, colour bool) (Tally, error) {
	return text(w, sections, colour, func(ev spec.Event) bool { return !holds(ev) })
}

func text(w io.Writer, sections []Section, colour bool, shown func(spec.Event) bool) (Tally, error) {
	sections = insist(sections)
	var b bytes.Buffer
	for _, s := range sections {
		events := slices.DeleteFunc(s.shortened(), func(ev spec.Event) bool { return !shown(ev) })
		if len(events) == 0 {
			continue
		}
		if len(sections) > 1 {
			fmt.Fprintf(&b, "%s:\n", printable.Escape(s.Service))
		}
		for _, ev := range events {
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

// mostUnsaid are checks without an answer that each have a line. Of a checker that ended
// early there are more, and one line says so.
const mostUnsaid = 8

// shortened are a section's events as a person reads them. What is left out is counted
// as it was.
func (s Section) shortened() []spec.Event {
	n := s.Unsaid()
	if n <= mostUnsaid {
		return slices.Clone(s.Events)
	}
	first := slices.IndexFunc(s.Events, silent)
	out := slices.DeleteFunc(slices.Clone(s.Events), silent)
	return slices.Insert(out, first, spec.Event{Check: wholeSection, Detail: fmt.Sprintf(
		"the checker ended early and said nothing about %d of %d checks, each of which counts as failed (--json lists them)", n, len(s.Events))})
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
	if ev.Hint != "" && !holds(ev) {
		line += "; " + printable.Escape(ev.Hint)
	}
	return line
}
