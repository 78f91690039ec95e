package wayback

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// many are n findings of a row.
func many(row string, first bool, n int) []Finding {
	var out []Finding
	for i := range n {
		out = append(out, Finding{Path: fmt.Sprintf("/p/%s/%02d", row, i), What: isNew, Reason: "of " + row, First: first, row: row})
	}
	return out
}

func TestLines(t *testing.T) {
	line := func(row string, i int) string { return fmt.Sprintf("/p/%s/%02d: new: of %s", row, i, row) }
	rest := func(row string, n int) string { return fmt.Sprintf("%s: and %d more like it (of %s)", row, n, row) }
	for what, tt := range map[string]struct {
		findings []Finding
		most     int
		want     []string
		hidden   int
	}{
		"none":                    {nil, 5, nil, 0},
		"one":                     {many("a", false, 1), 5, []string{line("a", 0)}, 0},
		"no room":                 {many("a", false, 2), 0, nil, 2},
		"less than no room":       {many("a", false, 2), -1, nil, 2},
		"as many as have a line":  {many("a", false, 3), 5, []string{line("a", 0), line("a", 1), line("a", 2)}, 0},
		"one more takes no more":  {many("a", false, 4), 5, []string{line("a", 0), line("a", 1), line("a", 2), line("a", 3)}, 0},
		"two more":                {many("a", false, 5), 5, []string{line("a", 0), line("a", 1), line("a", 2), rest("a", 2)}, 2},
		"many":                    {many("a", false, 40), 5, []string{line("a", 0), line("a", 1), line("a", 2), rest("a", 37)}, 37},
		"just room":               {append(many("a", false, 40), many("b", false, 1)...), 5, []string{line("a", 0), line("a", 1), line("a", 2), rest("a", 37), line("b", 0)}, 37},
		"two of each":             {append(many("a", false, 40), many("b", false, 1)...), 4, []string{line("a", 0), line("a", 1), rest("a", 38), line("b", 0)}, 38},
		"one of each":             {append(many("a", false, 40), many("b", false, 1)...), 3, []string{line("a", 0), rest("a", 39), line("b", 0)}, 39},
		"no room for the rest":    {append(many("a", false, 40), many("b", false, 1)...), 2, []string{line("a", 0), line("b", 0)}, 39},
		"not even one of each":    {append(many("a", false, 40), many("b", false, 1)...), 1, []string{line("a", 0)}, 40},
		"first ones are a kind":   {append(many("a", true, 5), many("a", false, 5)...), 8, []string{line("a", 0), line("a", 1), line("a", 2), rest("a", 2), line("a", 0), line("a", 1), line("a", 2), rest("a", 2)}, 4},
		"alike without a row":     {[]Finding{{Path: "/a", What: "w", Reason: "r"}, {Path: "/b", What: "w", Reason: "r"}, {Path: "/c", What: "w", Reason: "r"}}, 2, []string{"/a: w: r", "w: and 2 more like it (r)"}, 2},
		"unlike without a row":    {[]Finding{{Path: "/a", What: "v", Reason: "r"}, {Path: "/b", What: "w", Reason: "r"}}, 2, []string{"/a: v: r", "/b: w: r"}, 0},
		"the order stays":         {slices.Concat(many("b", false, 1), many("a", false, 1), many("c", false, 1)), 9, []string{line("b", 0), line("a", 0), line("c", 0)}, 0},
		"what is not of one kind": {slices.Concat(many("a", false, 9), many("b", false, 9), many("c", false, 9)), 6, []string{line("a", 0), rest("a", 8), line("b", 0), rest("b", 8), line("c", 0), rest("c", 8)}, 24},
	} {
		got, hidden := Lines(tt.findings, tt.most)
		if !slices.Equal(got, tt.want) || hidden != tt.hidden {
			t.Errorf("%s: %d hidden of\n%s\nwant %d of\n%s", what, hidden, strings.Join(got, "\n"), tt.hidden, strings.Join(tt.want, "\n"))
		}
	}
}

// TestLinesOrder: a root's own repository comes before those deeper down, however
// they are called, and nothing that an agent piles up hides it.
func TestLinesOrder(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	before := snapshot(t, dir)
	for i := range 50 {
		write(t, dir, fmt.Sprintf(".a%d/.git", i), "gitdir: x\n")
		write(t, dir, fmt.Sprintf("%d/.envrc", i), "x")
		git(t, dir, "config", fmt.Sprintf("alias.a%d", i), "!x")
	}
	write(t, dir, ".git/commondir", "/x\n")
	write(t, dir, ".zshrc", "x")
	got, hidden := Lines(Compare(before, snapshot(t, dir)), 30)
	text := told(dir, nil)
	for _, l := range got {
		text += strings.ReplaceAll(l, dir+"/", "") + "\n"
	}
	for i, want := range []string{".git/commondir: new", ".a0/.git: new", ".a1/.git: new", ".a10/.git: new", ".git: and 47 more like it", ".git/config: alias.a0 new", ".git/config: alias.a1 new", ".git/config: alias.a10 new", "alias.*: and 47 more like it", ".zshrc: new", "0/.envrc: new", "1/.envrc: new", "10/.envrc: new", ".envrc: and 47 more like it"} {
		if i >= len(got) || !strings.HasPrefix(strings.Split(text, "\n")[i], want) {
			t.Fatalf("line %d is not %s:\n%s", i, want, text)
		}
	}
	if len(got) != 14 || hidden != 3*47 {
		t.Errorf("%d lines, %d hidden", len(got), hidden)
	}
}

// TestLineEnds: nothing that an agent chooses makes a line endless.
func TestLineEnds(t *testing.T) {
	for _, tt := range []struct{ n, value, path int }{{valueShown, valueShown, valueShown}, {valueShown + 1, valueShown, valueShown + 1}, {pathShown, valueShown, pathShown}, {pathShown + 1, valueShown, pathShown}, {1 << 16, valueShown, pathShown}} {
		s := strings.Repeat("é", tt.n)
		if got := utf8.RuneCountInString(start(s)); got != tt.value {
			t.Errorf("a value of %d is %d long", tt.n, got)
		}
		if got := utf8.RuneCountInString(middle(s)); got != tt.path {
			t.Errorf("a path of %d is %d long", tt.n, got)
		}
	}
	if got := middle("/start/" + strings.Repeat("x", 1000) + "/.envrc"); !strings.HasPrefix(got, "/start/") || !strings.HasSuffix(got, "x/.envrc") || strings.Count(got, "…") != 1 {
		t.Errorf("%s", got)
	}
	if got, want := values([]string{"a", "b", "c"}), `"a", "b", "c"`; got != want {
		t.Errorf("%s", got)
	}
	if got, want := values([]string{"a", "b", "c", "d", "e"}), `"a", "b", "c", and 2 more`; got != want {
		t.Errorf("%s", got)
	}
	long := strings.Repeat("\x1b", 1<<16)
	f := Finding{Path: long, Target: long, Key: long, What: isNew, Old: slices.Repeat([]string{long}, 99), New: []string{long}, Reason: "r", row: long}
	all, _ := Lines([]Finding{f, f, f}, 2)
	for _, l := range all {
		if utf8.RuneCountInString(l) > 2*pathShown+6*valueShown || strings.Contains(l, "\x1b") {
			t.Errorf("%d characters", utf8.RuneCountInString(l))
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add("a\x00b\x00a", uint8(2))
	f.Fuzz(func(t *testing.T, rows string, most uint8) {
		var all []Finding
		for i, row := range strings.Split(rows, "\x00") {
			all = append(all, Finding{Path: fmt.Sprint("/", i, row), What: isNew, Reason: row, First: i%3 == 0, row: row})
		}
		got, hidden := Lines(all, int(most))
		own := 0
		for _, f := range all {
			if slices.Contains(got, f.String()) {
				own++
			}
		}
		if len(got) > int(most) || hidden != len(all)-own {
			t.Fatalf("%d lines of %d, %d hidden, %d shown: %q", len(got), most, hidden, own, got)
		}
		for _, l := range got {
			if strings.ContainsAny(l, "\x1b\n\r\x00") {
				t.Fatalf("%q", l)
			}
		}
	})
}
