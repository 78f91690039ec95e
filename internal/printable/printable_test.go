package printable

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                                "",
		`plain, "ünïcode" 日本 \`:           `plain, "ünïcode" 日本 \`,
		"\x1b]0;title\a":                  `\x1b]0;title\a`,
		"a\tb\r\n\x7f\u0085":              `a\tb\r\n\x7f\u0085`,
		"\u202e\u2066\u200f\u200d":        `\u202e\u2066\u200f\u200d`,
		"\u200b\ufeff\u00a0\u00ad":        `\u200b\ufeff\u00a0\u00ad`,
		"\xff\xc3x\ufffd":                 `\xff\xc3x` + "\ufffd",
		"\u3164\u115f\u1160\uffa0":        `\u3164\u115f\u1160\uffa0`,
		"a\u2800\u034f\ufe0f\u180b\u17b4": `a\u2800\u034f\ufe0f\u180b\u17b4`,
		"\U000e0100":                      `\U000e0100`,
		"\U000e0041\u2028":                `\U000e0041\u2028`,
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

func TestJSON(t *testing.T) {
	want := map[string]string{"a\u202eb": "\U000e0100 ü \x1b[31m\n\x7f \u3164 \xff"}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	safe := JSON(b)
	if strings.ContainsFunc(string(safe), func(r rune) bool { return !Is(r) }) {
		t.Errorf("%q", safe)
	}
	var got map[string]string
	if err := json.Unmarshal(safe, &got); err != nil || got["a\u202eb"] != "\U000e0100 ü \x1b[31m\n\x7f \u3164 \ufffd" {
		t.Errorf("%q %v", got, err)
	}
	if indented := []byte("{\n  \"a\": 1\n}\n"); string(JSON(indented)) != string(indented) {
		t.Errorf("%q", JSON(indented))
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		n         uint64
		one, want string
	}{
		{0, "connection", "0 connections"}, {1, "connection", "1 connection"}, {2, "connection", "2 connections"},
		{0, "address", "0 addresses"}, {1, "address", "1 address"}, {11, "address", "11 addresses"},
	} {
		if got := Count(c.n, c.one); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
