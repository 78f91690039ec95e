package engine

import (
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/corral-sandbox/corral/test/lab"
)

// moved matches what moves a cursor or paints.
var moved = regexp.MustCompile(`\x1b|\r[^\n]`)

// On a terminal a line says what takes long, is written over, and is gone at the
// end; where nobody wants that, and in a pipe, it is a plain line that stays.
func TestProgress(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	for i, c := range []struct {
		env   []string
		moves bool
	}{{[]string{"TERM=xterm"}, true}, {[]string{"TERM=xterm", "NO_COLOR=1"}, false}, {[]string{"TERM=dumb"}, false}} {
		s.write("corral.yaml", nothing+"image:\n  run: [\"sleep 2; echo "+strings.Repeat("x", i+1)+" > /etc/built\"]\n")
		said := s.onTerminalWith(t, c.env, "build", "--accept")
		if !strings.Contains(said, "corral: building the image of service main") || !strings.Contains(said, "main  built in ") {
			t.Errorf("%q: %q", c.env, said)
		}
		if got := moved.MatchString(said); got != c.moves {
			t.Errorf("%q: %q", c.env, said)
		}
		if c.moves && (!regexp.MustCompile(`\r\x1b\[Kcorral: building the image of service main \(\d+ s\)`).MatchString(said) || !regexp.MustCompile(`\r\x1b\[Kgate `).MatchString(said)) {
			t.Errorf("the line has no time, or stays: %q", said)
		}
		if said := s.onTerminalWith(t, c.env, "verify"); !strings.Contains(said, ", 0 failed") || moved.MatchString(said) != c.moves {
			t.Errorf("verify with %q: %q", c.env, said)
		}
	}
	s.write("corral.yaml", nothing+"image:\n  run: [\"echo more > /etc/built\"]\n")
	if r := s.corral("build", "--accept"); r.code != 0 || !strings.HasSuffix(r.err, "corral: building the image of service main\n") || moved.MatchString(r.out+r.err) {
		t.Error(r)
	}
}

// onTerminalWith is all that a command says on a terminal.
func (s *sandbox) onTerminalWith(t *testing.T, env []string, args ...string) string {
	t.Helper()
	c := s.cmd(args...)
	c.Env = append(append([]string{}, c.Env...), env...)
	f, err := pty.StartWithAttrs(c, &pty.Winsize{Rows: 33, Cols: 111}, &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: c.SysProcAttr.Credential})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer time.AfterFunc(limit, func() { c.Process.Kill() }).Stop()
	said, _ := io.ReadAll(f) // it ends with an error where the terminal does
	if err := c.Wait(); err != nil {
		t.Errorf("corral %q: %v: %s", args, err, said)
	}
	return string(said)
}

// Where the time went: each step, and nothing of it unless somebody asks.
func TestTimings(t *testing.T) {
	t.Parallel()
	s := project(t, always("timed", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	steps := []string{"policy read", "engine found", "policy accepted; secrets, hooks, state, shields", "plan; images that were missing", "image of the gate", "gate created",
		"gate started and closed", "names resolved", "pins and rules in force", "self-check of the gate", "image of service main", "service main created",
		"service started", "handover, to the harness's start", "in all"}
	if got := lapsOf(s.must("up", "--timings")); strings.Join(got, "|") != strings.Join(steps, "|") {
		t.Errorf("corral up --timings: %q", got)
	}
	if got := lapsOf(s.must("up")); len(got) != 0 {
		t.Errorf("corral up: %q", got)
	}
	r := s.must("status")
	if !regexp.MustCompile(`(?m)^  up +for \d+s +since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$`).MatchString(r.out) {
		t.Errorf("since when it is up: %v", r)
	}
	if r := s.must("__complete", "logs", ""); !strings.HasPrefix(r.out, "gate\nmain\n:4\n") {
		t.Errorf("what logs can show: %v", r)
	}
	s.must("down")
	s.write("corral.yaml", nothing)
	steps = []string{"policy read", "engine found", "policy accepted; secrets, hooks, state, shields", "image of the gate", "gate created", "gate started and closed",
		"pins and rules in force", "self-check of the gate", "image of service main", "service main created", "first look at the repositories",
		"handover, to the harness's start", "agent, to its end", "all of it removed", "in all"}
	if got := lapsOf(s.must("run", "--accept", "--timings", "--", "sleep", "2")); strings.Join(got, "|") != strings.Join(steps, "|") {
		t.Errorf("corral run --timings: %q", got)
	}
}

// How often an always-on service was mended is said, and why at last, until it is taken
// down.
func TestStatusSaysWhatWasMended(t *testing.T) {
	t.Parallel()
	s := project(t, always("mended", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	says := func(what, want string) {
		t.Helper()
		r := s.must("status")
		got := ""
		if m := regexp.MustCompile(`(?m)^  mended +(.*)$`).FindStringSubmatch(r.out); m != nil {
			got = regexp.MustCompile(` +last \d+s ago`).ReplaceAllString(m[1], "")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	s.must("up")
	s.must("up")
	says("as it came up", "")
	s.write("corral.yaml", always("mended", forever)+"resources: {pids: 500}\n")
	s.must("up", "--accept")
	says("as the policy asks for it now", "")
	docker(t, "kill", s.agent())
	s.must("up")
	says("killed", "started again once: main: it was killed, status 137")
	docker(t, "kill", s.agent())
	s.must("up")
	docker(t, "rm", "--force", s.gate())
	s.must("up")
	says("without its gate", "made anew once, started again 2 times: the gate: it is gone")
	docker(t, "rm", "--force", s.gate(), s.agent())
	s.must("up")
	says("without either", "made anew 2 times, started again 2 times: all of it was gone")
	if r := s.must("status", "--json"); !regexp.MustCompile(`"healed": \{\s+"made_anew": 2,\s+"started_again": 2,\s+"last": "20`).MatchString(r.out) {
		t.Error(r)
	}
	s.must("down")
	s.must("up")
	says("after a corral down", "")
}

// lapsOf are the steps of which a command says how long they took.
func lapsOf(r result) (steps []string) {
	for _, m := range regexp.MustCompile(`(?m)^corral: time +\d+ ms  (.+)$`).FindAllStringSubmatch(r.err, -1) {
		steps = append(steps, m[1])
	}
	return steps
}
