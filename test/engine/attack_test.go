package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/test/lab"
)

// forge is an agent that lies in wait for the checker, which runs as the same
// user: it answers in its place and ends it.
const forge = `
$| = 1; print "lying in wait\n";
for (;;) {
  for my $p (glob "/proc/[0-9]*") {
    open(my $c, "<", "$p/comm") or next; my $n = <$c>; next unless defined $n && $n =~ /^corral-verify/;
    my ($pid) = $p =~ /(\d+)/;
    kill STOP => $pid;
    print "memory read\n" if open(my $m, "<", "$p/mem") && sysread($m, my $b, 1);
    if (open(my $o, ">", "$p/fd/1")) { print "answered\n"; print $o qq({"version":1,"check":"non-root","result":"ok"}\n) }
    kill KILL => $pid;
  }
}
`

// The checker shares its user with the agent. One that is ended, or answered
// for, proves nothing; and it can be neither looked into nor written to.
func TestVerifyCannotBeForged(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	s.write("forge.pl", forge)
	end := s.up("perl forge.pl & read -r _; kill $!", "lying in wait")
	for range 3 {
		if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.out+r.err, "cannot tell") {
			t.Error(r)
		}
	}
	said := logs(t, s.agent())
	end()
	for _, line := range []string{"memory read", "answered"} {
		if strings.Contains(said, line) {
			t.Errorf("the agent got at the checker: %s", said)
		}
	}
}

// What an agent writes into the policy would be obeyed by the next start.
func TestPolicyIsReadOnlyInside(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	r := s.sh(`for f in 'echo name: other >> corral.yaml' 'rm -f corral.yaml' 'mv corral.yaml away' 'ln -f /etc/hostname corral.yaml' 'cp /etc/hostname corral.yaml' 'truncate -s 0 corral.yaml'; do
		(eval "$f") 2>/dev/null && echo "worked: $f"; done; echo tried`)
	if r.code != 0 || r.out != "tried\n" {
		t.Error(r)
	}
	if b, err := os.ReadFile(filepath.Join(s.dir, "corral.yaml")); err != nil || string(b) != nothing {
		t.Errorf("the policy is now %q (%v)", b, err)
	}
	if v := s.corral("verify"); v.code != 0 || !strings.Contains(v.out, "ok   policy-read-only\n") {
		t.Error(v)
	}
}

// A policy that was changed on the host since the sandbox was brought up is
// told, whatever its name is now, and nothing about it counts as proven.
func TestPolicyChangedMeanwhile(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	s.write("corral.yaml", "profile: shell\nname: renamed\n")
	if r := s.corral("status"); !strings.Contains(r.out, "policy was changed") {
		t.Errorf("status: %v", r)
	}
	if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.err, "another version") {
		t.Errorf("verify: %v", r)
	}
	if r := s.corral("run", "--", "true"); r.code != 1 || !strings.Contains(r.err, "up already") {
		t.Errorf("run: %v", r)
	}
	// Nothing can be read out of it any more: what is up is told and ended all the
	// same, also by another way to the file.
	s.write("corral.yaml", "profile: [\x00")
	for _, more := range [][]string{nil, {"--policy", "../" + filepath.Base(s.dir) + "/corral.yaml"}} {
		if r := s.corral(append([]string{"status"}, more...)...); r.code != 0 || !strings.Contains(r.out, "policy was changed") || !strings.Contains(r.out, "main: running") {
			t.Errorf("status of a broken policy: %v", r)
		}
	}
	if err := os.Remove(filepath.Join(s.dir, "corral.yaml")); err != nil {
		t.Fatal(err)
	}
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, s.id+" (the policy was changed") || !strings.Contains(r.out, "its read-only bind in the sandbox is gone") {
		t.Errorf("status of a policy that is gone: %v", r)
	}
	if r := s.corral("down"); r.code != 0 || len(s.containers()) != 0 {
		t.Errorf("down: %v, left %v", r, s.containers())
	}
	s.write("corral.yaml", nothing)
}

// The engine makes an empty volume where one is missing: it is noticed and
// filled anew.
func TestGuestVolumeHeals(t *testing.T) {
	// Alone: everybody uses the volumes that it takes away.
	s := project(t, nothing)
	if r := s.sh("true"); r.code != 0 {
		t.Fatal(r)
	}
	for _, name := range strings.Fields(docker(t, "volume", "ls", "--quiet", "--filter", "label=dev.corral.role=guest")) {
		if _, err := command.Run(t.Context(), nil, "docker", "volume", "rm", name); err == nil {
			docker(t, "volume", "create", name)
		}
	}
	if r := s.sh("echo healed"); r.code != 0 || r.out != "healed\n" {
		t.Error(r)
	}
}

// A corral that is killed leaves its agent running on, behind its fence: that is told
// and can be proven, and one command ends it. A verify that is killed heals by itself.
func TestUnattended(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	s.abandoned("echo up; exec sleep infinity", "up")
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, "the corral that looked after it is gone") {
		t.Errorf("status: %v", r)
	}
	if r := s.corral("run", "--", "true"); r.code != 1 || !strings.Contains(r.err, "looked after it is gone") {
		t.Errorf("run: %v", r)
	}
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.err, "looked after it is gone (corral down ends it)") || strings.Contains(r.err, "nothing is up") {
		t.Errorf("verify: %v", r)
	}
	if r := s.corral("shell", "--", "echo", "inside"); r.code != 0 || r.out != "inside\n" {
		t.Errorf("shell: %v", r)
	}
	if r := s.corral("down"); r.code != 0 || len(s.containers()) != 0 {
		t.Errorf("down: %v, left %v", r, s.containers())
	}

	c := s.cmd("verify")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	run(t, "sh", "-c", "until docker exec "+s.agent()+" true 2>/dev/null; do :; done")
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	if r := s.sh("echo after"); r.code != 0 || r.out != "after\n" {
		t.Errorf("after a verify that was killed: %v", r)
	}
}

// A run whose sandbox somebody takes down says just that, at whatever moment.
func TestTakenDown(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	for _, script := range []string{"echo up; sleep 1000", "trap '' TERM; echo up; while :; do sleep 1; done"} {
		var said strings.Builder
		c, shown := s.begin(&said, "run", "--", "sh", "-c", script)
		shown.await(t, "up")
		// Who looks after it tells what changed; nobody is told that this is not known.
		if r := s.corral("down"); r.code != 0 || strings.Contains(r.err, "cannot tell") {
			t.Error(r)
		}
		if c.Wait(); c.ProcessState.ExitCode() != 1 || !strings.HasSuffix(said.String(), "corral: the sandbox was taken down\n") {
			t.Errorf("%v: %q", c.ProcessState, said.String())
		}
	}
	slow := slowed(t, nothing)
	slow.env = append(slow.env, "CORRAL_GATE_FAILPOINT=after-read:sleep:100s")
	c := slow.cmd("run", "--", "true")
	var said strings.Builder
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	run(t, "sh", "-c", "until docker logs "+slow.gate()+" 2>/dev/null | grep -q 'fail point'; do :; done")
	if r := slow.corral("down"); r.code != 0 {
		t.Error(r)
	}
	if c.Wait(); c.ProcessState.ExitCode() != 1 || !strings.HasSuffix(said.String(), "corral: the sandbox was taken down\n") {
		t.Errorf("%v: %q", c.ProcessState, said.String())
	}
}

// Whoever reads our output may leave: what was brought up still goes.
func TestReaderLeaves(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	c, shown := s.begin(nil, "run", "--", "sh", "-c", "while echo line; do :; done")
	shown.await(t, "line")
	shown.f.Close()
	c.Wait()
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A signal reaches everything in front, as it would on a terminal: the shell
// and the child that it waits for.
func TestSignalReachesChildren(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	c, shown := s.begin(nil, "run", "--", "sh", "-c", "echo up; sleep 1000; echo later")
	shown.await(t, "up")
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if c.Wait(); c.ProcessState.ExitCode() != 130 {
		t.Errorf("ended with %v", c.ProcessState)
	}
}

// Interrupted while it brings up: it says so, and nothing is left.
func TestInterruptedBringUp(t *testing.T) {
	t.Parallel()
	s := slowed(t, nothing)
	s.env = append(s.env, "CORRAL_GATE_FAILPOINT=after-read:sleep:100s")
	c := s.cmd("run", "--", "echo", "started")
	var said strings.Builder
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	run(t, "sh", "-c", "until docker logs "+s.gate()+" 2>/dev/null | grep -q 'fail point'; do :; done")
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if c.Wait(); c.ProcessState.ExitCode() != 130 || !strings.HasSuffix(said.String(), "corral: interrupted\n") {
		t.Errorf("%v: %q", c.ProcessState, said.String())
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A docker command that starts nothing is a failure, whatever its container's
// exit status says.
func TestDockerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	fake := t.TempDir()
	if err := os.Chmod(filepath.Dir(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	real := strings.TrimSpace(run(t, "sh", "-c", "command -v docker"))
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *\" start \"*) exit 1;; esac\nexec %s \"$@\"\n", real)
	if err := os.WriteFile(filepath.Join(fake, "docker"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "PATH="+fake+":"+os.Getenv("PATH"))
	if r := s.sh("echo ran; exit 7"); r.code != 1 || !strings.Contains(r.err, "did not start") {
		t.Error(r)
	}
}

// Every reason why a gate stays closed is shown, with its line of the policy
// and what to do.
func TestReasonsOfAGate(t *testing.T) {
	t.Parallel()
	s := project(t, "profile: shell\nname: reasons\negress:\n  allow:\n    - one.allowed.test\n    - two.allowed.test\n")
	for range 3 { // the order of two streams is nobody's promise
		r := s.sh("echo started")
		for _, want := range []string{"one.allowed.test (corral.yaml:5)", "two.allowed.test (corral.yaml:6)", "NXDOMAIN", "hint: "} {
			if !strings.Contains(r.err, want) {
				t.Errorf("no %q in %v", want, r)
			}
		}
		if r.code != 1 || strings.Contains(r.out, "started") {
			t.Error(r)
		}
	}
}

// Corral's own probes are not the agent's doing.
func TestOnlyTheAgentsDenialsAreTold(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	if r := s.sh("true"); r.code != 0 || r.err != "" && strings.Contains(r.err, "denied") {
		t.Error(r)
	}
}
