package report

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

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
			fmt.Fprintf(&b, "%s:\n", Escape(s.Service))
		}
		for _, ev := range s.Events {
			b.WriteString(Line(ev, colour) + "\n")
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
	line := text + " " + Escape(ev.Check)
	switch ev.Result {
	case spec.OK: // what is as it should be needs no words
	case spec.Failed, spec.Skip, spec.Note:
		if ev.Detail != "" {
			line += ": " + Escape(ev.Detail)
		}
	default:
		line += ": cannot tell: " + Escape(ev.Detail)
	}
	return line
}

// Escape makes s safe to print: control, bidi, invisible and escape characters
// and broken UTF-8 become what Go would write for them.
func Escape(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unprintable(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// unprintable says whether a rune is anything but a graphic character or the
// ASCII space. RuneError stands for broken UTF-8.
func unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }
