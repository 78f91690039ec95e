package domain

import (
	"errors"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/exit"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"github.com", "GitHub.COM.", "bücher.example", "xn--bcher-kva.example", "faß.example", "例え.テスト",
		"1.2.3.4", "[::1]:443", "10.0.0.0/8", "https://u@a.test:1/x", "a.test:443", "*.a.test", "_.a", "a..b", "аpple.test",
		"a_b.test", "r3---sn.test", "", " ", ".", "xn--.a", "İ.test", "ﬁ.test",
		"a.b", "a.b.", "a.1", "a.0x1", "a.1a", "1.a", "-a.b", "a-.b", "a.b-", ".a.b", "a.b..", "xn--a.b", "a.xn--p1ai", "a_b.c", "A.b",
		strings.Repeat("a", 63) + ".b", strings.Repeat("a", 64) + ".b", strings.Repeat("a.", 126) + "b", strings.Repeat("a.", 127) + "b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := Parse(s)
		if slow, slowErr := parse(s); slow != d || (slowErr == nil) != (err == nil) {
			t.Fatalf("%q is %q, %v; looked into, it is %q, %v", s, d, err, slow, slowErr)
		}
		if err != nil {
			var e *exit.Error
			if !errors.As(err, &e) || e.Status != exit.Invalid || d != "" {
				t.Fatalf("%q: %q, %v", s, d, err)
			}
			return
		}
		again, err := Parse(d)
		if err != nil || again != d {
			t.Fatalf("%q is %q, which is %q, %v", s, d, again, err)
		}
		name := d
		if len(name) > maxName || !strings.Contains(name, ".") || strings.HasSuffix(name, ".") {
			t.Fatalf("%q", name)
		}
		for label := range strings.SplitSeq(name, ".") {
			if len(label) > maxLabel || !labelWord.MatchString(label) {
				t.Fatalf("%q: label %q", name, label)
			}
		}
	})
}

// A number at the end is one in every script, also as the A-label that it becomes.
func TestNumbersOfOtherScripts(t *testing.T) {
	for _, s := range []string{"๑๒๗.๐.๐.๑", "a.๑", "a.xn--c5c", "a.١٢٧", "a.१२७"} {
		if d, err := Parse(s); err == nil {
			t.Errorf("%q is %q", s, d)
		}
	}
	if _, err := Parse("๑.test"); err != nil {
		t.Error(err)
	}
}

func TestUnicode(t *testing.T) {
	for name, want := range map[string]string{"a.test": "a.test", "xn--bcher-kva.example": "bücher.example", "xn--a.test": "xn--a.test"} {
		if got := Unicode(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
