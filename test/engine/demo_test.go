package engine

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/test/screenshot"
)

// The demo needs no root: everything that it claims, as the owner of nothing.
func TestDemo(t *testing.T) {
	// Alone: what others build on may go with its images.
	s := project(t, nothing)
	r := s.corral("demo")
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, want := range []string{
		`(?m)^  reached 172\.30\.0\.1:\d+$`,
		`(?m)^  nothing no packet$`,
		`(?m)^\d+ passed, 1 skipped, 0 failed$`, `(?m)^skip secret-absent-elsewhere: the policy has no secrets$`,
		`(?m)^\d+ attempts: \d+ blocked, \d+ not there to try, 0 escaped; 0 packets left$`,
	} {
		if !regexp.MustCompile(want).MatchString(r.out) {
			t.Errorf("no %s in %s", want, r.out)
		}
	}
	if n := strings.Count(r.out, "    blocked  "); n < 40 {
		t.Errorf("%d attempts were blocked, want at least 40", n)
	}
	if left := docker(t, "ps", "--all", "--quiet", "--filter", "label=dev.corral.purpose=demo"); left != "" {
		t.Errorf("left behind: %s", left)
	}
	if left := docker(t, "images", "--quiet", "corral-demo-*"); left != "" {
		t.Errorf("images left behind: %s", left)
	}
}

// On a terminal it is as the documents picture it: the recorded run has what a run
// has now, each heading and each attempt, in colours.
func TestDemoAsRecorded(t *testing.T) {
	// Alone, as TestDemo.
	const file = "../screenshot/testdata/demo.txt"
	s := project(t, nothing)
	said := s.onTerminalWith(t, []string{"TERM=xterm"}, "demo")
	now, err := screenshot.Parse(said)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, []byte(screenshot.Quote(said)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	then, err := screenshot.Parse(screenshot.Unquote(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(substance(then), substance(now)); d != "" {
		t.Errorf("a run (+) says otherwise than the recorded one (-); go test ./test/engine -run TestDemoAsRecorded -update records it:\n%s", d)
	}
}

// substance is what of a run of the demo is the same each time: its headings, groups
// and attempts, checks but for those of other sandboxes, and colours. Of an attempt it
// may be found either way that it is not there to try.
func substance(lines []screenshot.Line) (all []string) {
	attempt := regexp.MustCompile(`^    (?:blocked|absent |ESCAPED)  ([a-zA-Z0-9_-]+)`)
	check := regexp.MustCompile(`^(?:ok  |skip|FAIL) [a-z-]+`)
	for _, l := range lines {
		text, look := l.String(), ""
		for _, span := range l {
			look += span.Class
		}
		switch {
		case attempt.MatchString(text):
			all = append(all, "    "+attempt.FindStringSubmatch(text)[1])
		case check.MatchString(text) && !strings.Contains(text, "peer-unreachable"):
			all = append(all, look+":"+check.FindString(text))
		case look == "b", strings.HasPrefix(text, "  ") && !strings.Contains(text[2:], " "):
			all = append(all, look+":"+text)
		}
	}
	return all
}
