package engine

import (
	"regexp"
	"strings"
	"testing"
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
