package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// run runs a program of the host's and returns what it prints.
func run(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := command.Run(ctx, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Somebody with root on the host opens the fence behind the gate's back: the
// gate closes everything and ends, and says why.
func TestTamper(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	first := project(t, allowed)
	sideBySide(t, first)
	for name, tamper := range map[string][]string{
		"address added to the set": {"ipset", "add", "corral-pins", lab.Canary.String() + ",tcp:443"},
		"rule deleted":             {"iptables", "-D", "OUTPUT", "1"},
		"rule inserted":            {"iptables", "-I", "OUTPUT", "-d", lab.Canary.String(), "-j", "ACCEPT"},
		"policy opened":            {"iptables", "-P", "FORWARD", "ACCEPT"},
		"nat rule inserted":        {"iptables", "-t", "nat", "-I", "OUTPUT", "-p", "tcp", "--dport", "9999", "-j", "DNAT", "--to-destination", lab.Canary.String() + ":443"},
		"IPv6 opened":              {"ip6tables", "-P", "OUTPUT", "ACCEPT"},
	} {
		t.Run(name, func(t *testing.T) {
			s := first.beside(t)
			s.abandoned("echo up; exec sleep infinity", "up") // nobody ends the agent
			inNamespace(t, s.gate(), tamper...)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			status, err := command.Run(ctx, nil, "docker", "wait", s.gate())
			if err != nil {
				t.Fatalf("the gate did not end within 10 s: %v", err)
			}
			if strings.TrimSpace(string(status)) == "0" {
				t.Error("the gate ended with status 0")
			}
			if said := logs(t, s.gate()); !strings.Contains(said, "re-check failed against existing rules") {
				t.Errorf("the gate did not say why: %s", said)
			}
			out := docker(t, "exec", s.agent(), "bash", "-c", connect+fmt.Sprintf("t %v 443; t 44.10.0.10 443", lab.Canary))
			if strings.Contains(out, " 0 ") {
				t.Errorf("open after the gate has ended: %s", out)
			}
			if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, "main: no network (gate is gone)") {
				t.Errorf("status: %v", r)
			}
			if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.err, "no network (gate is gone)") {
				t.Errorf("verify: %v", r)
			}
			if r := s.corral("down"); r.code != 0 {
				t.Error(r)
			}
		})
	}
}

// R032: a gate that was restarted has a new namespace. The agent in the old
// one is reported, and cannot be started into the new one by hand.
func TestGateRestarted(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.abandoned("echo up; exec sleep infinity", "up") // nobody clears up behind it
	docker(t, "restart", s.gate())
	run(t, "sh", "-c", "until [ $(docker logs "+s.gate()+" 2>&1 | grep -c '"+spec.ReadyLine+"') = 2 ]; do :; done")
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, "main: no network (gate was replaced)") {
		t.Errorf("status: %v", r)
	}
	if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.err, "no network (gate was replaced)") {
		t.Errorf("verify: %v", r)
	}
	docker(t, "stop", "--time", "1", s.agent())
	docker(t, "start", s.agent())
	if code := docker(t, "wait", s.agent()); code == "0" {
		t.Error("the agent ran behind a gate that it was not made for")
	}
	if said := logs(t, s.agent()); !strings.Contains(said, "handover refused: same-netns-as-gate") || strings.Count(said, "up\n") > 1 {
		t.Errorf("the agent: %s", said)
	}
}

// logs is what a container has said on both its streams.
func logs(t *testing.T, container string) string {
	t.Helper()
	return run(t, "sh", "-c", "docker logs "+container+" 2>&1")
}

// R135: a corral network that is missing or altered is an error with the
// difference, never another network.
func TestAlteredNetwork(t *testing.T) {
	// Alone: it alters the corral network.
	s := project(t, nothing)
	restore := func() {
		if r := s.corral("install", "--repair"); r.code != 0 {
			t.Fatalf("corral install --repair: %v", r)
		}
	}
	t.Cleanup(restore)
	for _, c := range []struct {
		name, want string
		create     []string
	}{
		{"missing", "it does not exist", nil},
		{"containers may talk", "inter-container communication", []string{"--subnet", "172.30.0.0/17", "--ip-range", "172.30.127.0/24", "--gateway", "172.30.0.1", "-o", "com.docker.network.bridge.name=corral0"}},
		{"another subnet", "subnet", []string{"--subnet", "172.30.64.0/18", "-o", "com.docker.network.bridge.enable_icc=false", "-o", "com.docker.network.bridge.name=corral0"}},
		{"internal", "internal", []string{"--internal", "--subnet", "172.30.0.0/17", "--ip-range", "172.30.127.0/24", "--gateway", "172.30.0.1", "-o", "com.docker.network.bridge.enable_icc=false", "-o", "com.docker.network.bridge.name=corral0"}},
		{"IPv6", "IPv6", []string{"--ipv6", "--subnet", "fd00:c0::/64", "--subnet", "172.30.0.0/17", "--ip-range", "172.30.127.0/24", "--gateway", "172.30.0.1", "-o", "com.docker.network.bridge.enable_icc=false", "-o", "com.docker.network.bridge.name=corral0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			docker(t, "network", "rm", "corral")
			if c.create != nil {
				docker(t, append(append([]string{"network", "create"}, c.create...), "corral")...)
			}
			r := s.sh("echo started")
			if r.code != 1 || strings.Contains(r.out, "started") || !strings.Contains(r.err, c.want) || !strings.Contains(r.err, "corral install --repair") {
				t.Error(r)
			}
			restore()
			if r := s.sh("echo started"); r.code != 0 {
				t.Error(r)
			}
		})
	}
}
