package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

func TestErrorsBecomeStatuses(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{nil, 0, ""},
		{errors.New("plain"), 1, "corral: plain\n"},
		{diag.List{{Pos: diag.Pos{File: "corral.yaml", Line: 1, Col: 1}, Kind: "policy error", Message: "m"}}, 2, "corral.yaml:1:1: policy error: m\n"},
		{plan.ErrNoResolver{Names: 2}, 2, "hint: set CORRAL_RESOLVERS"},
		{&engine.NotUsable{Reason: "r", Hint: "h"}, 1, "corral: r\n  hint: h\n"},
		{fmt.Errorf("wrapped: %w", &engine.WrongNetwork{Differences: []string{"d"}}), 1, "corral install --repair"},
		{&engine.Mislabelled{Container: "corral-x", Label: "l", Err: errors.New("e")}, 1, "corral: container corral-x: label l: e\n  hint: corral did not make it as it is now: docker rm --force corral-x\n"},
		{&engine.Running{ID: "p-1"}, 1, "corral down"},
		{&engine.BuildFailed{What: "it", Output: "  npm ERR! network"}, 1, "corral: building it failed:\n  npm ERR! network\n  hint: see that this machine reaches what the build fetches"},
		{&engine.BuildFailed{What: "it", Asked: []string{"image.base", "image.run"}}, 1, "hint: image.base, image.run of the policy may say it wrongly; else see that this machine"},
		{exit.Status(42), 42, ""},
		{fmt.Errorf("service: No such container: %s", strings.Repeat("0a", 32)), 1, "corral: service: No such container: …\n"}, // R033
		{errors.Join(context.Canceled, fmt.Errorf("not removed: %s", strings.Repeat("0a", 32))), exit.Interrupted, "corral: not removed: …\n"},
	} {
		var b strings.Builder
		a := &app{err: &b}
		if got := a.report(c.err); got != c.status || !strings.Contains(b.String(), c.says) || c.says == "" && b.Len() > 0 {
			t.Errorf("%v: status %d, %q", c.err, got, b.String())
		}
	}
}

func TestSummary(t *testing.T) {
	if got := summary(spec.GateStatus{}); got != "" {
		t.Errorf("nothing was denied: %q", got)
	}
	s := spec.GateStatus{
		RefusedNames: []spec.Refused{{Name: "evil.test\x1b[2J", Count: 3}},
		Denied: []spec.Traffic{
			{Proto: "tcp", Addr: netip.MustParseAddr("44.10.9.9"), Port: 443, Count: 1},
			{Proto: "icmp", Addr: netip.MustParseAddr("44.10.9.9"), Count: 2},
		},
	}
	if got, want := summary(s), `evil.test\x1b[2J (3 times), tcp 44.10.9.9:443, icmp 44.10.9.9 (2 times)`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for range 10 {
		s.Denied = append(s.Denied, s.Denied[0])
	}
	if got := summary(s); strings.Count(got, ",") != mostShown || !strings.HasSuffix(got, "and 8 more") {
		t.Errorf("not bounded: %q", got)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		tally report.Tally
		ok    bool
	}{{report.Tally{Passed: 3}, true}, {report.Tally{Passed: 3, Skipped: 1}, true}, {report.Tally{Passed: 3, Failed: 1}, false}, {report.Tally{}, false}, {report.Tally{Skipped: 5}, false}} {
		if err := verdict(c.tally, nil); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.tally, err)
		}
	}
}

// Every command says what it does and takes --help.
func TestEveryCommandHelps(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s says nothing of itself", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(a.root())
}

// Help is read in terminals of 80 columns, flags and what comes with cobra included.
func TestHelpIsNarrow(t *testing.T) {
	var walk func(*cobra.Command)
	root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
	walk = func(c *cobra.Command) {
		var b strings.Builder
		root.SetOut(&b)
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if line = strings.TrimSuffix(line, "\n"); utf8.RuneCountInString(line) > 80 {
				t.Errorf("%s --help: %d columns: %s", c.CommandPath(), utf8.RuneCountInString(line), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// A flag that takes something else is told in our words, whatever it takes.
func TestFlagErrors(t *testing.T) {
	tried := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Value.Type(), "string") {
				return
			}
			tried++
			err := flagError(c, c.ParseFlags([]string{"--" + f.Name + "=x"}))
			if want := fmt.Sprintf("--%s takes %s, got \"x\"", f.Name, flagValues[f.Value.Type()]); err.Error() != want || flagValues[f.Value.Type()] == "" {
				t.Errorf("%s --%s=x: %v", c.CommandPath(), f.Name, err)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root())
	if tried == 0 {
		t.Error("there is no such flag")
	}
}

// Other tools' words are none of ours, and each leads to a command.
func TestWordsOfOtherTools(t *testing.T) {
	root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
	for name, words := range elsewhere {
		for _, word := range words {
			if c, _, _ := root.Find([]string{word}); c != root {
				t.Errorf("%s is a command", word)
			}
			if got := meant(root, word); got != name {
				t.Errorf("%s: %q is meant, not %s", word, got, name)
			}
		}
	}
}

// Who reads the README sees every command there is.
func TestReadmeHasEveryCommand(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "\n## Commands\n")
	table, _, _ = strings.Cut(table, "\n## ")
	listed := regexp.MustCompile("(?m)^\\| `corral ([a-z]+)\\b[^`\n]*`(?:, `([a-z]+)`)? \\|").FindAllStringSubmatch(table, -1)
	for _, c := range (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root().Commands() {
		if c.Name() != "help" && !slices.ContainsFunc(listed, func(m []string) bool { return slices.Contains(m[1:], c.Name()) }) {
			t.Errorf("the README's table of commands has no corral %s", c.Name())
		}
	}
}
