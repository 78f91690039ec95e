package screenshot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "draw docs/demo.svg anew")

// Record is what corral demo wrote on a terminal, once: test/engine records it.
const record = "testdata/demo.txt"

func recorded(t *testing.T) []Line {
	t.Helper()
	b, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := Parse(Unquote(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// The picture in the documents is of the recorded run, and of nothing else.
func TestDemoIsDrawn(t *testing.T) {
	const file = "../../docs/demo.svg"
	shown, _ := Shorten(recorded(t))
	want := SVG("corral demo: a hostile agent fails to get out", shown)
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not drawn from %s (go test ./test/screenshot -update draws it)", file, record)
	}
}

// Read back as XML, the picture has each line that is shown, in its order; together
// with those that it counts they are all of the record.
func TestPictureSaysWhatWasSaid(t *testing.T) {
	lines := recorded(t)
	shown, left := Shorten(lines)
	drawn := drawnIn(t, SVG("a title", shown))
	var want []string
	for _, l := range shown {
		if s := l.String(); s != "" {
			want = append(want, s)
		}
	}
	if !slices.Equal(drawn, want) {
		t.Errorf("drawn:\n%s\nwant:\n%s", strings.Join(drawn, "\n"), strings.Join(want, "\n"))
	}
	at := 0
	for _, l := range shown {
		if i := slices.IndexFunc(left, func(o Left) bool { return len(l) > 0 && &o.Said[0] == &l[0] }); i >= 0 {
			for _, o := range left[i].Lines {
				if at >= len(lines) || o.String() != lines[at].String() {
					t.Fatalf("left out %q, which does not follow", o)
				}
				at++
			}
			continue
		}
		if at >= len(lines) || l.String() != lines[at].String() {
			t.Fatalf("%q was not said there", l)
		}
		at++
	}
	if at != len(lines) {
		t.Errorf("%d of %d lines are shown or counted", at, len(lines))
	}
	text := strings.Join(drawn, "\n")
	for _, must := range []string{"A hostile agent behind the fence", "What left its network namespace", " 0 escaped; 0 packets left", ", 0 failed", "blocked"} {
		if !strings.Contains(text, must) {
			t.Errorf("nothing says %q", must)
		}
	}
	if n := len(shown); n > 90 {
		t.Errorf("%d lines are too many for a page", n)
	}
}

// drawnIn are the texts of a picture, which must be well-formed and take nothing from
// anywhere.
func drawnIn(t *testing.T, svg []byte) (texts []string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	var now strings.Builder
	inside := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if !slices.Contains([]string{"svg", "title", "style", "rect", "text", "tspan"}, e.Name.Local) {
				t.Errorf("a picture has no <%s>", e.Name.Local)
			}
			for _, a := range e.Attr {
				if strings.Contains(a.Name.Local, "href") || strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("%s=%q", a.Name.Local, a.Value)
				}
			}
			if e.Name.Local == "text" {
				inside = true
				now.Reset()
			}
		case xml.EndElement:
			if e.Name.Local == "text" {
				inside = false
				texts = append(texts, now.String())
			}
		case xml.CharData:
			if inside {
				now.Write(e)
			}
		}
	}
	for _, far := range []string{"url(", "@import", "@font-face"} {
		if bytes.Contains(svg, []byte(far)) {
			t.Errorf("the picture takes something from elsewhere: %s", far)
		}
	}
	if !bytes.Contains(svg, []byte("prefers-color-scheme: dark")) {
		t.Error("by night it is as by day")
	}
	return texts
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string // a line each, spans as class:text
	}{
		{"", nil},
		{"a\r\nb\n", []string{":a", ":b"}},
		{"\x1b[1mHead\x1b[0m\r\n  \x1b[32mok\x1b[0m <&>", []string{"b:Head", ":  |g:ok|: <&>"}},
		{"\r\x1b[Kcorral: building\r\x1b[Kcorral: building (1 s)\r\x1b[Kdone\n", []string{":done"}},
		{"a\n\nb", []string{":a", "", ":b"}},
		{"\x1b[31;1mLEFT\x1b[0m", []string{"r:LEFT"}},
	} {
		lines, err := Parse(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
		var got []string
		for _, l := range lines {
			var spans []string
			for _, s := range l {
				spans = append(spans, s.Class+":"+s.Text)
			}
			got = append(got, strings.Join(spans, "|"))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q", c.text, got)
		}
	}
	for _, bad := range []string{"\x1b[2J", "a\rb", "\x1b[44mx", "\a", "\x1b]0;title\a", "\xff"} {
		if lines, err := Parse(bad); err == nil {
			t.Errorf("%q is understood as %q", bad, lines)
		}
	}
}

func TestQuote(t *testing.T) {
	for _, s := range []string{"", "\x1b[1mA\x1b[0m\r\nb\\x1b\n", "\r\x1b[Kx", "a\\\\b"} {
		if got := Unquote(Quote(s)); got != strings.ReplaceAll(s, "\r\n", "\n") {
			t.Errorf("%q came back as %q", s, got)
		}
		if q := Quote(s); strings.ContainsAny(q, "\x1b\r") {
			t.Errorf("%q would act on a terminal", q)
		}
	}
}
