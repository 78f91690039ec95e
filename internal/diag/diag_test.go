package diag

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func at(line, col int) Pos { return Pos{File: "corral.yaml", Line: line, Col: col} }

func TestPrint(t *testing.T) {
	for _, c := range []struct {
		name string
		d    Diagnostic
		want string
	}{
		{"whole", Diagnostic{at(7, 1), "policy error", `unknown key "egres"`, `did you mean "egress"?`, "egres: {}"},
			"corral.yaml:7:1: policy error: unknown key \"egres\"\n  egres: {}\n  ^\n  hint: did you mean \"egress\"?\n"},
		{"file only", Diagnostic{Pos: Pos{File: "a"}, Kind: "k", Message: "m"}, "a: k: m\n"},
		{"line only", Diagnostic{Pos: at(3, 0), Kind: "k", Message: "m", Source: "x"}, "corral.yaml:3: k: m\n  x\n"},
		{"runes and tabs", Diagnostic{Pos: at(1, 6), Kind: "k", Message: "m", Source: "\tö: \tx"},
			"corral.yaml:1:6: k: m\n  \tö: \tx\n  \t   \t^\n"},
		{"past the end", Diagnostic{Pos: at(1, 4), Kind: "k", Message: "m", Source: "ab:"}, "corral.yaml:1:4: k: m\n  ab:\n     ^\n"},
		{"escapes before the place", Diagnostic{Pos: at(1, 3), Kind: "k", Message: "m", Source: "\x1b\u202ex"},
			"corral.yaml:1:3: k: m\n  \\x1b\\u202ex\n            ^\n"},
		{"escapes everywhere", Diagnostic{Pos{"a\x1b", 1, 1}, "k", "m\r\u2028", "h\u200b\xff", "\xfe"},
			"a\\x1b:1:1: k: m\\r\\u2028\n  \\xfe\n  ^\n  hint: h\\u200b\\xff\n"},
		{"long line, place near the start", Diagnostic{Pos: at(1, 2), Kind: "k", Message: "m", Source: strings.Repeat("x", maxWidth+1)},
			"corral.yaml:1:2: k: m\n  " + strings.Repeat("x", maxWidth) + "...\n   ^\n"},
		{"just not long", Diagnostic{Pos: at(1, 2), Kind: "k", Message: "m", Source: strings.Repeat("x", maxWidth)},
			"corral.yaml:1:2: k: m\n  " + strings.Repeat("x", maxWidth) + "\n   ^\n"},
		{"long line, place far in", Diagnostic{Pos: at(1, 201), Kind: "k", Message: "m", Source: strings.Repeat("x", 200) + "y"},
			"corral.yaml:1:201: k: m\n  ..." + strings.Repeat("x", 59) + "y\n  " + strings.Repeat(" ", 62) + "^\n"},
	} {
		var b strings.Builder
		c.d.Print(&b)
		if b.String() != c.want {
			t.Errorf("%s\n--- got\n%s--- want\n%s", c.name, b.String(), c.want)
		}
	}
}

func TestListIsAnErrorInOrder(t *testing.T) {
	if err := (List{}).Err(); err != nil {
		t.Errorf("an empty list is an error: %v", err)
	}
	l := List{{Pos: at(9, 1), Message: "c"}, {Pos: at(2, 5), Message: "b"}, {Pos: at(2, 5), Message: "b2"}, {Pos: at(2, 1), Message: "a"}}
	var got List
	if !errors.As(fmt.Errorf("wrapped: %w", l.Err()), &got) {
		t.Fatal("not a List")
	}
	var order []string
	for _, d := range got {
		order = append(order, d.Message)
	}
	if s := strings.Join(order, " "); s != "a b b2 c" {
		t.Error(s)
	}
	if l[0].Message != "c" {
		t.Error("the list itself was changed")
	}
	if got.Error() != "corral.yaml:2:1: : a\ncorral.yaml:2:5: : b\ncorral.yaml:2:5: : b2\ncorral.yaml:9:1: : c" {
		t.Error(got.Error())
	}
}

func TestTooManyToRead(t *testing.T) {
	l := make(List, maxPrinted+7)
	if s := l.Error(); strings.Count(s, "\n") != maxPrinted || !strings.HasSuffix(s, "\nand 7 more") {
		t.Error(s)
	}
	if s := l[:maxPrinted].Error(); strings.Contains(s, "more") {
		t.Error(s)
	}
}
