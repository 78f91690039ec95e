// Package diag is how a mistake in a person's file is told: the place, what
// is wrong, the line itself with a caret, and what to do. Values go in, text
// comes out. It opens no file, decides nothing, and never prints a character
// of a file that a terminal would act on.
package diag

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/printable"
)

const (
	maxPrinted = 100 // mistakes of one list
	maxWidth   = 120 // characters of a source line
)

// Pos is a place in a file. Line and Col count from 1, Col in runes; zero
// means not known.
type Pos struct {
	File      string
	Line, Col int
}

func (p Pos) String() string {
	s := printable.Escape(p.File)
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
		if p.Col > 0 {
			s += fmt.Sprintf(":%d", p.Col)
		}
	}
	return s
}

// Diagnostic is one mistake.
type Diagnostic struct {
	Pos
	Kind    string // "policy error"
	Message string // lower case, one line, no full stop
	Hint    string // what to do; may be empty
	Source  string // the line of the file that Pos names; may be empty
}

// List is every mistake found, as one error.
type List []Diagnostic

// Err is nil for an empty list, otherwise the list in order of place.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	s := slices.Clone(l)
	slices.SortStableFunc(s, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return s
}

func (l List) Error() string {
	var b strings.Builder
	l.Print(&b)
	return strings.TrimSuffix(b.String(), "\n")
}

// Print writes every diagnostic, each ending in a line feed; of more than a
// person will read, the first and the number of the rest.
func (l List) Print(w io.Writer) {
	for i, d := range l {
		if i == maxPrinted {
			fmt.Fprintf(w, "and %d more\n", len(l)-i)
			return
		}
		d.Print(w)
	}
}

// Print writes the diagnostic, its source line with a caret below, and the hint.
func (d Diagnostic) Print(w io.Writer) {
	fmt.Fprintf(w, "%s: %s: %s\n", d.Pos, d.Kind, printable.Escape(d.Message))
	if d.Source != "" {
		line, caret := excerpt(d.Source, d.Col)
		fmt.Fprintf(w, "  %s\n", line)
		if d.Col > 0 {
			fmt.Fprintf(w, "  %s^\n", caret)
		}
	}
	if d.Hint != "" {
		fmt.Fprintf(w, "  hint: %s\n", printable.Escape(d.Hint))
	}
}

// excerpt is the source line, or what of a long one is around column col, made
// printable, and the blanks that bring a caret under that column. Tabs stay
// tabs in both.
func excerpt(source string, col int) (line, blanks string) {
	var l, b strings.Builder
	from, n := 0, 0
	if utf8.RuneCountInString(source) > maxWidth {
		from = max(0, col-maxWidth/2)
	}
	if from > 0 {
		l.WriteString("...")
		b.WriteString("   ")
	}
	for i, r := range source {
		n++
		if n <= from {
			continue
		}
		if n > from+maxWidth {
			l.WriteString("...")
			break
		}
		s := string(r)
		switch {
		case r == utf8.RuneError:
			_, size := utf8.DecodeRuneInString(source[i:])
			s = printable.Escape(source[i : i+size])
		case r != '\t':
			s = printable.Escape(s)
		}
		l.WriteString(s)
		switch {
		case n >= col:
		case r == '\t':
			b.WriteByte('\t')
		default:
			b.WriteString(strings.Repeat(" ", utf8.RuneCountInString(s)))
		}
	}
	return l.String(), b.String()
}
