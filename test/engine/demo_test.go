package engine

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

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
	if was, is := substance(then), substance(now); !slices.Equal(was, is) {
		t.Errorf("a run says otherwise than the recorded one (go test ./test/engine -run TestDemoAsRecorded -update records it):\n%s", strings.Join(is, "\n"))
	}
}

// substance is what of a run of the demo is the same each time: its headings, groups,
// attempts with what became of them, checks but for those of other sandboxes, and
// colours.
func substance(lines []screenshot.Line) (all []string) {
	listed := regexp.MustCompile(`^(    (blocked|absent |ESCAPED)  [a-zA-Z0-9_-]+|(ok  |skip|FAIL) [a-z-]+)`)
	for _, l := range lines {
		text := l.String()
		look := ""
		for _, span := range l {
			look += span.Class
		}
		switch m := listed.FindString(text); {
		case m != "" && !strings.Contains(m, "peer-unreachable"):
			all = append(all, look+":"+m)
		case look == "b", strings.HasPrefix(text, "  ") && !strings.Contains(text[2:], " "):
			all = append(all, look+":"+text)
		}
	}
	return all
}
