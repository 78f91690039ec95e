package wayback

import (
	"fmt"
	"strings"

	"github.com/corral-sandbox/corral/internal/printable"
)

// Limits of one line, in characters: the agent chooses how long what is in it
// is.
const (
	pathShown  = 300
	valueShown = 200
	valuesMost = 3 // of one key
)

// alike is how many findings of one row have a line of their own.
const alike = 3

// String is one line, safe for a terminal.
func (f Finding) String() string {
	var b strings.Builder
	b.WriteString(middle(f.Path) + ": ")
	if f.Key != "" {
		b.WriteString(start(f.Key) + " ")
	}
	b.WriteString(printable.Escape(f.What))
	if f.Target != "" {
		b.WriteString(" to " + middle(f.Target))
	}
	if f.Key != "" {
		fmt.Fprintf(&b, ": %s → %s", values(f.Old), values(f.New))
	}
	return b.String() + ": " + printable.Escape(f.Reason)
}

func values(v []string) string {
	if v == nil {
		return "none"
	}
	var shown []string
	for i, s := range v {
		if i == valuesMost {
			shown = append(shown, fmt.Sprintf("and %d more", len(v)-i))
			break
		}
		shown = append(shown, `"`+start(s)+`"`)
	}
	return strings.Join(shown, ", ")
}

// start is a value that can be shown, without its end if that is too long.
func start(s string) string {
	shown := []rune(printable.Escape(s))
	if len(shown) <= valueShown {
		return string(shown)
	}
	return string(shown[:valueShown-1]) + "…"
}

// middle is a path that can be shown, without its middle if that is too long:
// where it is and what it is called count.
func middle(s string) string {
	shown := []rune(printable.Escape(s))
	if len(shown) <= pathShown {
		return string(shown)
	}
	half := pathShown / 2
	return string(shown[:half]) + "…" + string(shown[len(shown)-half+1:])
}

// Lines are findings, in their order, as at most most lines that are safe for a
// terminal. Many of one row are shown by the first of them and one line for the
// rest, and by fewer if not every row had a line otherwise. hidden is how many
// findings have no line of their own.
func Lines(findings []Finding, most int) (lines []string, hidden int) {
	var own int
	for each := alike; each > 0; each-- {
		if lines, own = grouped(findings, each, most); len(lines) <= most {
			break
		}
	}
	if len(lines) > most {
		// Not even one line for each and one for the rest of them: no line for
		// the rest.
		lines, own = nil, 0
		seen := map[kind]bool{}
		for _, f := range findings {
			if k := f.kind(); !seen[k] && own < most {
				seen[k] = true
				lines = append(lines, f.String())
				own++
			}
		}
	}
	return lines, len(findings) - own
}

// kind is what findings are alike in.
type kind struct {
	row   string
	first bool
}

func (f Finding) kind() kind {
	row := f.row
	if row == "" {
		row = f.What
	}
	return kind{row, f.First}
}

// grouped are lines with at most each of a kind and one for the rest of it.
func grouped(findings []Finding, each, most int) (lines []string, own int) {
	all, seen := map[kind]int{}, map[kind]int{}
	for _, f := range findings {
		all[f.kind()]++
	}
	for _, f := range findings {
		k := f.kind()
		switch seen[k]++; {
		case seen[k] <= each || all[k] == each+1:
			lines = append(lines, f.String())
			own++
		case seen[k] == each+1:
			lines = append(lines, fmt.Sprintf("%s: and %d more like it (%s)", start(k.row), all[k]-each, printable.Escape(f.Reason)))
		}
		if len(lines) > most {
			break
		}
	}
	return lines, own
}
