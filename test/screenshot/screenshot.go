// Package screenshot turns what a terminal showed into a picture of it, for documents:
// recorded text goes in, an SVG comes out that takes no font and nothing else from
// anywhere, and is readable by day and by night. What is left out is said and counted.
package screenshot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Span is text of one look.
type Span struct {
	Text  string
	Class string // of the style: b, g, r, y, c or empty
}

// Line is one line of the screen.
type Line []Span

func (l Line) String() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.Text)
	}
	return b.String()
}

// classes are the looks that corral gives words.
var classes = map[string]string{"0": "", "1": "b", "32": "g", "31;1": "r", "1;31": "r", "33": "y", "36": "c"}

// control matches what a terminal acts on: a look, the end of a line that is written
// over, a newline.
var control = regexp.MustCompile(`\x1b\[([0-9;]*)m|\r\x1b\[K|\r?\n`)

// Parse reads what was written to a terminal. What else a terminal would act on is an
// error: it would be missing from the picture.
func Parse(recorded string) ([]Line, error) {
	var lines []Line
	var now Line
	class := ""
	write := func(text string) error {
		if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }); i >= 0 {
			return fmt.Errorf("line %d: %q is not understood", len(lines)+1, text[i:])
		}
		if text != "" {
			now = append(now, Span{text, class})
		}
		return nil
	}
	rest := recorded
	for {
		at := control.FindStringSubmatchIndex(rest)
		if at == nil {
			break
		}
		if err := write(rest[:at[0]]); err != nil {
			return nil, err
		}
		switch what := rest[at[0]:at[1]]; {
		case strings.HasSuffix(what, "m"):
			known := false
			if class, known = classes[rest[at[2]:at[3]]]; !known {
				return nil, fmt.Errorf("line %d: no look is known for %q", len(lines)+1, what)
			}
		case strings.HasSuffix(what, "K"):
			now = nil
		default:
			lines, now = append(lines, now), nil
		}
		rest = rest[at[1]:]
	}
	if err := write(rest); err != nil {
		return nil, err
	}
	if len(now) > 0 {
		lines = append(lines, now)
	}
	return lines, nil
}

// Sizes, in pixels: a character of the fonts below is at most so wide.
const (
	fontSize  = 13
	charWidth = 8
	lineStep  = 18
	margin    = 16
)

// style has no name of a font that would have to be fetched.
const style = `
    .back { fill: #ffffff; stroke: #d0d7de }
    text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; white-space: pre }
    .b { font-weight: bold } .g { fill: #1a7f37 } .r { fill: #cf222e; font-weight: bold } .y { fill: #9a6700 } .c { fill: #0969da } .m { fill: #656d76; font-style: italic }
    @media (prefers-color-scheme: dark) {
      .back { fill: #0d1117; stroke: #30363d }
      text { fill: #e6edf3 }
      .g { fill: #3fb950 } .r { fill: #f85149 } .y { fill: #d29922 } .c { fill: #58a6ff } .m { fill: #8d96a0 }
    }
  `

// SVG draws lines, with a title for whoever cannot see them.
func SVG(title string, lines []Line) []byte {
	columns := 0
	for _, l := range lines {
		columns = max(columns, utf8.RuneCountInString(l.String()))
	}
	width, height := 2*margin+columns*charWidth, 2*margin+len(lines)*lineStep
	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n", width, height, width, height)
	fmt.Fprintf(&b, "  <title>%s</title>\n  <style>%s</style>\n", escape(title), style)
	fmt.Fprintf(&b, "  <rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width-1, height-1)
	for i, l := range lines {
		if len(l) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  <text x=\"%d\" y=\"%d\" xml:space=\"preserve\">", margin, margin+i*lineStep+fontSize)
		for _, s := range l {
			if s.Class == "" {
				b.WriteString(escape(s.Text))
			} else {
				fmt.Fprintf(&b, "<tspan class=\"%s\">%s</tspan>", s.Class, escape(s.Text))
			}
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // into memory
	return b.String()
}
