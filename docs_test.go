package corral_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/spec"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	quoted  = regexp.MustCompile("`([^`]+)`")
)

// Every link of a document to another one, or to a chapter, leads there.
func TestDocumentsLinks(t *testing.T) {
	n := 0
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		text := read(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.Contains(m[1], "…") {
				continue
			}
			n++
			file, chapter, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", name, m[1])
				continue
			}
			if chapter != "" && !slices.Contains(chapters(read(t, to)), chapter) {
				t.Errorf("%s: %s has no such chapter", name, m[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("%d links: the search is broken", n)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// chapters are the anchors that a page makes of its headings.
func chapters(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(m[1])))
	}
	return all
}

// column is what stands in quotes in one column of the tables of a document.
func column(text string, n int) (all []string) {
	for line := range strings.Lines(text) {
		if cells := strings.Split(strings.ReplaceAll(line, `\|`, ""), "|"); strings.HasPrefix(line, "| ") && len(cells) > n+1 {
			for _, m := range quoted.FindAllStringSubmatch(cells[n], -1) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// The threat model names checks that there are, and each that the README promises by.
func TestThreatModelNamesChecks(t *testing.T) {
	kinds := map[string]bool{}
	for _, e := range slices.Concat(spec.Catalogue, spec.OwnCatalogue) {
		kinds[e.Kind] = true
	}
	protects, _, _ := strings.Cut(read(t, "docs/threat-model.md"), "## What it does not")
	named := column(protects, 3)
	for _, kind := range named {
		if !kinds[kind] {
			t.Errorf("docs/threat-model.md: no check is called %s", kind)
		}
	}
	for _, g := range guarantees {
		if !slices.Contains(named, g.kind) {
			t.Errorf("docs/threat-model.md does not say what %s proves", g.kind)
		}
	}
}

// The table of engines names conditions that there are, and each of those for which
// corral refuses an engine.
func TestEnginesNameConditions(t *testing.T) {
	named := column(read(t, "docs/engines.md"), 3)
	for _, c := range engine.Conditions {
		if c.Unmet == engine.Refused && c.Name != "docker-command" && !slices.Contains(named, c.Name) {
			t.Errorf("docs/engines.md does not say which engine %s refuses", c.Name)
		}
	}
	for _, name := range named {
		if !slices.ContainsFunc(engine.Conditions, func(c engine.Condition) bool { return c.Name == name }) {
			t.Errorf("docs/engines.md: no condition is called %s", name)
		}
	}
	if len(named) < 10 {
		t.Errorf("%d conditions: the search is broken", len(named))
	}
}

// moving are the files whose strings make a terminal do something, with what sees to
// it that only a terminal gets them whose person wants that.
var moving = map[string]string{
	"internal/cli/progress.go":  "the line that is written over: moving asks for the terminal, NO_COLOR and TERM",
	"internal/cli/demo.go":      "paint asks colour, which is moving",
	"internal/cli/run.go":       "before asks for the terminal and TERM; it paints nothing",
	"internal/report/text.go":   "its caller says whether it may paint",
	"internal/engine/leaver.go": "what a terminal sends, to be known",
	"internal/engine/image.go":  "a pattern that takes colours out of what a builder said",
}

// Nothing else does.
func TestWhatMovesATerminal(t *testing.T) {
	found := map[string]bool{}
	for name, all := range stringsOf(t) {
		for _, s := range all {
			if !strings.Contains(s, "\x1b") {
				continue
			}
			found[name] = true
			if moving[name] == "" {
				t.Errorf("%s: %q makes a terminal do something: who asked whether it may?", name, s)
			}
		}
	}
	for name := range moving {
		if !found[name] {
			t.Errorf("%s does no such thing any more", name)
		}
	}
}
