package printable

import (
	"strings"
	"testing"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		`plain, "ünïcode" 日本 \`:    `plain, "ünïcode" 日本 \`,
		"\x1b]0;title\a":           `\x1b]0;title\a`,
		"a\tb\r\n\x7f\u0085":       `a\tb\r\n\x7f\u0085`,
		"\u202e\u2066\u200f\u200d": `\u202e\u2066\u200f\u200d`,
		"\u200b\ufeff\u00a0\u00ad": `\u200b\ufeff\u00a0\u00ad`,
		"\xff\xc3x\ufffd":          `\xff\xc3x` + "\ufffd",
		"\U000e0041\u2028":         `\U000e0041\u2028`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %s, want %s", in, got, want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\u202ea\x1b\xff")
	f.Fuzz(func(t *testing.T, s string) {
		if got := Escape(s); strings.ContainsFunc(got, func(r rune) bool { return !Is(r) }) {
			t.Errorf("%q", got)
		}
	})
}
