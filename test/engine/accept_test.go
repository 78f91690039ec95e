package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// private is a file of the owner's in their home.
func (s *sandbox) private(name, content string, mode os.FileMode) string {
	s.tb.Helper()
	path := filepath.Join(filepath.Dir(s.dir), "home", name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		s.tb.Fatal(err)
	}
	if err := os.Chown(path, ownerUID, ownerGID); err != nil {
		s.tb.Fatal(err)
	}
	return path
}

const foreign = `profile: shell
name: foreign
image:
  run: ["touch /built"]
hooks:
  pre_launch: ["touch X"]
secrets:
  env_file: ~/.netrc
`

// R091: of a project that came from somebody else nothing runs, is built or is
// read before a person said yes to each of it; a policy planted further down is
// another first use, and the question says whose work it may be.
func TestNothingBeforeTheYes(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, foreign)
	netrc := s.private(".netrc", "machine example.com\n", 0) // opening it would fail, and say so
	for _, args := range [][]string{{"run", "--", "true"}, {"shell", "--", "true"}, {"build"}, {"verify"}, {"render"}} {
		r := s.corral(args...)
		if r.code != 2 {
			t.Errorf("%v without a yes: %v", args, r)
		}
		for _, want := range []string{"touch /built", "touch X", netrc, s.dir, "nobody has accepted this policy yet", "hint: read it, then say --accept"} {
			if !strings.Contains(r.err, want) {
				t.Errorf("%v: the question does not say %q: %s", args, want, r.err)
			}
		}
		if strings.Contains(r.err, "permission denied") {
			t.Errorf("%v: the secrets were opened: %s", args, r.err)
		}
	}
	s.untouched()

	// With the yes the secrets are read, before anything else.
	if r := s.corral("run", "--accept", "--", "true"); r.code == 0 || !strings.Contains(r.err, netrc) {
		t.Errorf("an unreadable env_file: %v", r)
	}
	s.untouched()

	s.private(".netrc", "TOKEN=abc\n", 0o600)
	if err := os.Chmod(netrc, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := s.corral("run", "--accept", "--", "sh", "-c", `test -e /built && test -e X && test "$TOKEN" = abc`); r.code != 0 {
		t.Errorf("after the yes: %v", r)
	}
	if r := s.corral("run", "--", "true"); r.code != 0 {
		t.Errorf("asked again: %v", r)
	}

	// What the agent plants below.
	r := s.sh("mkdir -p sub && printf 'profile: shell\nhooks:\n  pre_launch: [touch Y]\n' > sub/corral.yaml")
	if r.code != 0 {
		t.Fatal(r)
	}
	sub := s.cmd("run", "--", "true")
	sub.Dir = filepath.Join(s.dir, "sub")
	out, err := sub.CombinedOutput()
	if err == nil || sub.ProcessState.ExitCode() != 2 {
		t.Errorf("a planted policy: %v %s", err, out)
	}
	for _, want := range []string{"touch Y", "the agent of " + s.id + " may write"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the question about a planted policy does not say %q: %s", want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "sub", "Y")); err == nil {
		t.Error("a planted hook ran")
	}
}

// R091 of what is always on: neither up, nor a watch, nor a refresh lets
// anything of it have effect before the yes, and a refresh of what is up lets
// nothing more of it.
func TestNothingBeforeTheYesAlwaysOn(t *testing.T) {
	t.Parallel()
	alwaysForeign := foreign + "mode: daemon\nprofile_options: {shell: {command: [sleep, infinity]}}\n"
	s := cloned(t, 0, alwaysForeign)
	netrc := s.private(".netrc", "machine example.com\n", 0)
	asks := func(args []string, more ...string) {
		t.Helper()
		r := s.corral(args...)
		if r.code != 2 {
			t.Errorf("%v without a yes: %v", args, r)
		}
		for _, want := range append(more, "touch /built", "touch X", netrc, "hint: read it, then say --accept") {
			if !strings.Contains(r.err, want) {
				t.Errorf("%v: the question does not say %q: %s", args, want, r.err)
			}
		}
		if strings.Contains(r.err, "permission denied") {
			t.Errorf("%v: the secrets were opened: %s", args, r.err)
		}
	}
	for _, args := range [][]string{{"up"}, {"up", "--watch"}, {"verify"}} {
		asks(args, s.dir, "nobody has accepted this policy yet")
	}
	if r := s.corral("refresh"); r.code != 1 || !strings.Contains(r.err, "nothing of") || !strings.Contains(r.err, "corral up") {
		t.Errorf("a refresh of nothing: %v", r)
	}
	s.untouched()

	s.write("corral.yaml", "profile: shell\nname: foreign\nmode: daemon\nprofile_options: {shell: {command: [sleep, infinity]}}\n")
	s.must("up", "--accept")
	gate, agent, image := s.identity(s.gate()), s.identity(s.agent()), docker(t, "images", "--quiet", "corral-"+s.id+"-main")
	s.write("corral.yaml", alwaysForeign)
	for _, args := range [][]string{{"up"}, {"up", "--watch"}, {"refresh"}} {
		asks(args, "it grants more than was accepted")
	}
	if _, err := os.Stat(filepath.Join(s.dir, "X")); err == nil {
		t.Error("a hook ran")
	}
	if s.identity(s.gate()) != gate || s.identity(s.agent()) != agent || docker(t, "images", "--quiet", "corral-"+s.id+"-main") != image {
		t.Error("something was built or made anew")
	}
}

// untouched fails the test if a policy that nobody accepted left a trace.
func (s *sandbox) untouched() {
	s.tb.Helper()
	if _, err := os.Stat(filepath.Join(s.dir, "X")); err == nil {
		s.tb.Error("a hook ran")
	}
	if images := docker(s.tb, "images", "--quiet", "corral-"+s.id+"-main"); images != "" {
		s.tb.Errorf("an image was built: %s", images)
	}
	if left := s.containers(); len(left) > 0 {
		s.tb.Errorf("containers: %v", left)
	}
}

// R091: what was accepted is compared with what is there now: narrower goes
// without a word, wider needs a yes again, and what was given up is wider too.
func TestWideningAsksAgain(t *testing.T) {
	t.Parallel()
	s := project(t, "profile: shell\nname: wide\negress:\n  allow: [{domain: api.allowed.test, liveness: false}]\n")
	for _, tt := range []struct {
		policy string
		asks   bool
		says   string
	}{
		{"profile: shell\nname: wide\n# a word\negress:\n  allow: [{liveness: false, domain: API.allowed.test.}]\n", false, ""},
		{"profile: shell\nname: wide\negress:\n  allow: [{domain: api.allowed.test, liveness: false}, {domain: evil.test, liveness: false}]\n", true, "! + egress.allow  evil.test"},
		{"profile: shell\nname: wide\n", false, ""},
		{"profile: shell\nname: wide\negress:\n  allow: [{domain: api.allowed.test, liveness: false}]\n", true, "! + egress.allow  api.allowed.test"},
		{"profile: shell\nname: wide\nhooks:\n  pre_launch: [touch X]\n", true, "! + hooks.pre_launch  on this machine, as you: touch X"},
	} {
		s.write("corral.yaml", tt.policy)
		r := s.corral("render")
		if asks := r.code == 2; asks != tt.asks || !strings.Contains(r.err, tt.says) {
			t.Errorf("asks: %v, want %v, for\n%s%v", asks, tt.asks, tt.policy, r)
		}
	}
	s.untouched()
}

// At a terminal corral asks there, takes nothing but a yes for one, and takes
// nothing of what the agent is to read.
func TestTheQuestion(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	for _, tt := range []struct {
		answer string
		code   int
	}{{"\n", 2}, {"n\n", 2}, {"yeah\n", 2}, {"\x03", 130}, {"y\n", 7}} {
		c := s.cmd("run", "--", "sh", "-c", "read -r line; echo got $line; exit 7")
		f, err := pty.StartWithAttrs(c, nil, &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: c.SysProcAttr.Credential})
		if err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(limit, func() { c.Process.Kill() })
		screen := &screen{f: f}
		screen.await(t, "Accept it?")
		fmt.Fprint(f, tt.answer)
		if tt.code == 7 {
			fmt.Fprint(f, "hello\n")
			screen.await(t, "got hello")
		}
		_ = c.Wait()
		timer.Stop()
		f.Close()
		if got := c.ProcessState.ExitCode(); got != tt.code {
			t.Errorf("%q: status %d, want %d", tt.answer, got, tt.code)
		}
	}
}
