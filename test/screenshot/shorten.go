package screenshot

import (
	"fmt"
	"strings"
)

// Left is a run of lines that a picture leaves out, and what it says in their place.
type Left struct {
	Lines []Line
	Said  Line
}

// piece is a line that is shown, or lines that are not.
type piece struct {
	line Line
	left []Line
}

// Shorten makes a run of corral demo fit for a page: of each list the first lines,
// and of what follows how many there are, by the word that each begins with. Headings
// and tallies stay.
func Shorten(lines []Line) (shown []Line, left []Left) {
	var pieces []piece
	section, group, inGroup, groups := "", "", 0, 0
	for i, l := range lines {
		text := l.String()
		switch {
		case len(l) == 1 && l[0].Class == "b":
			section, group, inGroup, groups = text, "", 0, 0
		case strings.HasPrefix(text, "  ") && !strings.HasPrefix(text, "   ") && i+1 < len(lines) && strings.HasPrefix(lines[i+1].String(), "    "):
			group, inGroup = text, 0
			groups++
		case strings.HasSuffix(text, ":") && !strings.HasPrefix(text, " "):
			group, inGroup = text, 0
		case text == "":
			group, inGroup = "", 0
		default:
			inGroup++
		}
		keep := true
		switch {
		case strings.HasPrefix(text, "    "):
			keep = inGroup <= firstAttempts && groups <= firstGroups
		case strings.HasPrefix(text, "  ") && group == "" && section != "":
			keep = inGroup <= firstDenied
		case strings.HasSuffix(group, ":") && text != group:
			keep = inGroup <= firstChecks
		}
		if keep {
			pieces = append(pieces, piece{line: l})
			continue
		}
		if n := len(pieces); n > 0 && pieces[n-1].left != nil {
			pieces[n-1].left = append(pieces[n-1].left, l)
		} else {
			pieces = append(pieces, piece{left: []Line{l}})
		}
	}
	for _, p := range pieces {
		if p.left == nil {
			shown = append(shown, p.line)
			continue
		}
		said := Line{{Text: indent(p.left[0].String()) + "… " + tally(p.left), Class: "m"}}
		shown = append(shown, said)
		left = append(left, Left{p.left, said})
	}
	return shown, left
}

// What is shown of each list.
const (
	firstGroups   = 4 // groups of attempts of which some are shown
	firstAttempts = 3
	firstDenied   = 5
	firstChecks   = 4
)

func indent(s string) string { return s[:len(s)-len(strings.TrimLeft(s, " "))] }

// outcomes are the words by which lines that are left out are counted.
var outcomes = []string{"blocked", "absent", "ESCAPED", "ok", "skip", "note", "FAIL"}

// tally says how many lines begin with each outcome, or how many there are.
func tally(lines []Line) string {
	var parts []string
	counted := 0
	for _, word := range outcomes {
		n := 0
		for _, l := range lines {
			if f := strings.Fields(l.String()); len(f) > 0 && f[0] == word {
				n++
			}
		}
		if counted += n; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	if counted != len(lines) {
		return fmt.Sprintf("%d more", len(lines))
	}
	return strings.Join(parts, ", ")
}
