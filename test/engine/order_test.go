package engine

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

// The steps of a gate's start, each a place at which it can be slow or die.
var steps = []string{"before-close", "after-close", "after-read", "after-worker", "after-open-resolver", "after-resolve",
	"after-pin", "after-rules", "after-names", "after-self-check"}

// listed are the only addresses that anything of a sandbox may send to.
var listed = map[netip.Addr]bool{netip.MustParseAddr("44.10.0.10"): true, lab.NameServer: true}

func unlisted(p lab.Packet) bool { return !listed[p.Dst] }

// R004, R030: however slow a gate is, the agent, which connects from its first
// instruction on, sends nothing to an unlisted address before, during or after
// bring-up, because it is not started until the gate has proven its rules.
func TestSlowGate(t *testing.T) {
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			s := slowed(t, allowed)
			s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
			s.lab.Control(t, "corral")
			capture := s.lab.Capture(t, bridge)
			s.env = append(s.env, "CORRAL_GATE_FAILPOINT="+step+":sleep:1s")
			r := s.sh(fmt.Sprintf(`for i in $(seq 100); do (exec 3<>/dev/tcp/%v/443) 2>/dev/null && echo OUT; done; (exec 3<>/dev/tcp/api.allowed.test/443) && echo allowed`, lab.Canary))
			if r.code != 0 || r.out != "allowed\n" {
				t.Error(r)
			}
			if left := capture.Match(unlisted); len(left) > 0 {
				t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
			}
			if got := capture.To(netip.MustParseAddr("44.10.0.10")); len(got) == 0 {
				t.Error("the capture did not see the allowed connection")
			}
		})
	}
}

// R004: a gate that fails or dies at a step leaves nothing open: no agent was
// started, and whatever is started by hand in its place reaches nothing.
func TestGateDiesAtAStep(t *testing.T) {
	for _, step := range steps {
		for _, how := range []string{"exit", "kill"} {
			t.Run(step+" "+how, func(t *testing.T) {
				s := slowed(t, allowed)
				s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
				capture := s.lab.Capture(t, bridge)
				s.env = append(s.env, "CORRAL_GATE_FAILPOINT="+step+":"+how)
				r := s.sh("echo started")
				if r.code != 1 || strings.Contains(r.out, "started") {
					t.Errorf("an agent behind a gate that died: %v", r)
				}
				if left := s.containers(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				if left := capture.Match(unlisted); len(left) > 0 {
					t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
				}
			})
		}
	}
}

// After a gate's restart its new namespace is open until PID 1 closes it, and
// not yet proven until it is ready. An agent that is started by hand in that
// time is refused by handover.
func TestAgentStartedByHandWhileTheGateStarts(t *testing.T) {
	for _, step := range []string{"before-close", "after-close", "after-resolve", "after-rules", "after-names"} {
		t.Run(step, func(t *testing.T) {
			s := slowed(t, allowed)
			s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
			s.env = append(s.env, "CORRAL_GATE_FAILPOINT="+step+":sleep:3s")
			s.abandoned("echo up; exec sleep infinity", "up")
			capture := s.lab.Capture(t, bridge)
			docker(t, "kill", s.agent())
			docker(t, "restart", s.gate())
			docker(t, "start", s.agent())
			if code := docker(t, "wait", s.agent()); code != "1" {
				t.Errorf("the agent ended with status %s", code)
			}
			if said := logs(t, s.agent()); !strings.Contains(said, "handover refused") || strings.Count(said, "up\n") != 1 {
				t.Errorf("the agent: %s", said)
			}
			if left := capture.Match(unlisted); len(left) > 0 {
				t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
			}
		})
	}
}
