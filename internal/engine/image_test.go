package engine

import (
	"strings"
	"testing"
)

// What a failed build said last is shown plain: without the builder's colours,
// and with whatever else a terminal would obey made visible.
func TestLastWords(t *testing.T) {
	said := strings.Repeat("worked\n", 40) + "\x1b[91mE: \x1b[0m\x1b[1;31mUnable to locate package treee\x1b[0m\r\n\x1b]0;title\x07done\n"
	got := lastWords(said)
	lines := strings.Split(got, "\n")
	if len(lines) != mostLines {
		t.Errorf("%d lines, want %d", len(lines), mostLines)
	}
	if want := "  E: Unable to locate package treee"; lines[len(lines)-2] != want {
		t.Errorf("%q, want %q", lines[len(lines)-2], want)
	}
	if strings.ContainsAny(got, "\x1b\x07\r") {
		t.Errorf("%q", got)
	}
}
