package engine

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/test/lab"
)

// The steps of a gate's start, each a place at which it can be slow or die.
var steps = []string{"before-close", "after-close", "after-read", "after-worker", "after-open-resolver", "after-resolve",
	"after-pin", "after-rules", "after-names", "after-self-check"}

// listed are the only addresses that anything of a sandbox may send to.
var listed = map[netip.Addr]bool{netip.MustParseAddr("44.10.0.10"): true, lab.NameServer: true}

func unlisted(p lab.Packet) bool { return !listed[p.Dst] }

// sideBySide prepares cases that run in parallel: the project that theirs are beside,
// on a network from which the canary is reached, and one capture there. Once all
// have ended, nothing of any of them may have gone to an address that is not listed.
func sideBySide(t *testing.T, first *sandbox) *lab.Capture {
	t.Helper()
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	first.lab.Control(t, "corral")
	capture := first.lab.Capture(t, bridge)
	t.Cleanup(func() {
		if left := capture.Match(unlisted); len(left) > 0 {
			t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
		}
	})
	return capture
}

// beside is a project of the same person's, for a case that runs in parallel, with
// more settings in its environment.
func (s *sandbox) beside(t *testing.T, settings ...string) *sandbox {
	t.Helper()
	t.Parallel()
	o := *s
	o.tb, o.env = t, append(slices.Clone(s.env), settings...)
	p := o.another(filepath.Join(filepath.Dir(s.dir), rand.Text()), allowed)
	t.Cleanup(func() {
		if r := p.corral("down"); r.code != 0 {
			t.Errorf("corral down: %v", r)
		}
		if left := p.containers(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	p.accept()
	return p
}

// R004, R030: however slow a gate is, the agent, which connects from its first
// instruction on, sends nothing to an unlisted address before, during or after
// bring-up, because it is not started until the gate has proven its rules.
func TestSlowGate(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	first := slowed(t, allowed)
	capture := sideBySide(t, first)
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			s := first.beside(t, "CORRAL_GATE_FAILPOINT="+step+":sleep:1s")
			began := time.Now()
			r := s.sh(fmt.Sprintf(`for i in $(seq 100); do (exec 3<>/dev/tcp/%v/443) 2>/dev/null && echo OUT; done; hostname -i; (exec 3<>/dev/tcp/api.allowed.test/443) && echo allowed`, lab.Canary))
			own, err := netip.ParseAddr(strings.TrimSuffix(r.out, "\nallowed\n"))
			if r.code != 0 || err != nil {
				t.Fatal(r)
			}
			if got := capture.Match(func(p lab.Packet) bool {
				return p.Src == own && p.Dst == netip.MustParseAddr("44.10.0.10") && p.At.After(began)
			}); len(got) == 0 {
				t.Error("the capture did not see the allowed connection")
			}
		})
	}
}

// R004: a gate that fails or dies at a step leaves nothing open: no agent was
// started, and whatever is started by hand in its place reaches nothing.
func TestGateDiesAtAStep(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	first := slowed(t, allowed)
	sideBySide(t, first)
	for _, step := range steps {
		for _, how := range []string{"exit", "kill"} {
			t.Run(step+" "+how, func(t *testing.T) {
				s := first.beside(t, "CORRAL_GATE_FAILPOINT="+step+":"+how)
				r := s.sh("echo started")
				if r.code != 1 || strings.Contains(r.out, "started") {
					t.Errorf("an agent behind a gate that died: %v", r)
				}
				if left := s.containers(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
}

// After a gate's restart its new namespace is open until PID 1 closes it, and
// not yet proven until it is ready. An agent that is started by hand in that
// time is refused by handover.
func TestAgentStartedByHandWhileTheGateStarts(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	first := slowed(t, allowed)
	sideBySide(t, first)
	for _, step := range []string{"before-close", "after-close", "after-resolve", "after-rules", "after-names"} {
		t.Run(step, func(t *testing.T) {
			s := first.beside(t, "CORRAL_GATE_FAILPOINT="+step+":sleep:3s")
			s.abandoned("echo up; exec sleep infinity", "up")
			docker(t, "kill", s.agent())
			docker(t, "restart", s.gate())
			docker(t, "start", s.agent())
			if code := docker(t, "wait", s.agent()); code != "1" {
				t.Errorf("the agent ended with status %s", code)
			}
			if said := logs(t, s.agent()); !strings.Contains(said, "handover refused") || strings.Count(said, "up\n") != 1 {
				t.Errorf("the agent: %s", said)
			}
		})
	}
}
