package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// restless is an agent that never stops trying: connections and datagrams to
// addresses that nobody listed, lookups by way of whoever may answer, and the
// port of the names server.
const restless = `
use Socket;
$| = 1; $SIG{CHLD} = "IGNORE"; $SIG{PIPE} = "IGNORE";
print "up\n";
my $q = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x04evil\x04test\x00\x00\x01\x00\x01";
if (!fork) { while (1) { gethostbyname("secret.evil.test") and print "RESOLVED\n"; select(undef, undef, undef, 0.01) } }
while (1) {
	for my $to (["44.10.9.9", 443], ["44.10.9.9", 80], ["44.10.0.66", 53], ["172.30.0.1", 22]) {
		socket(my $t, PF_INET, SOCK_STREAM, 0); setsockopt($t, SOL_SOCKET, SO_SNDTIMEO, pack("l!l!", 0, 50000));
		connect($t, sockaddr_in($to->[1], inet_aton($to->[0]))) and print "CONNECTED\n";
		socket(my $u, PF_INET, SOCK_DGRAM, 0);
		send($u, $q, 0, sockaddr_in($to->[1], inet_aton($to->[0])));
	}
	for my $kind (SOCK_DGRAM, SOCK_STREAM) {
		socket(my $s, PF_INET, $kind, 0);
		bind($s, sockaddr_in(53, inet_aton("127.0.0.1"))) and print "BOUND\n";
	}
	select(undef, undef, undef, 0.01);
}
`

// pid is the first process of a container, as this machine counts.
func pid(t testing.TB, container string) int {
	t.Helper()
	n, err := strconv.Atoi(docker(t, "inspect", "--format", "{{.State.Pid}}", container))
	if err != nil || n <= 1 {
		t.Fatalf("process %d: %v", n, err)
	}
	return n
}

// worker is the one child of a gate's first process.
func worker(t testing.TB, gate string) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid(t, gate)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, field := range strings.Fields(string(b)) {
			n, _ := strconv.Atoi(field)
			if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n)); err == nil && strings.Contains(string(status), fmt.Sprintf("Uid:\t%d", spec.WorkerUID)) {
				return n
			}
		}
	}
	t.Fatal("there is no worker")
	return 0
}

// memoryLimit is the file that says how much memory a container may use, and what it
// has where that is any.
func memoryLimit(t testing.TB, container string) (file, none string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid(t, container)))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		switch f := strings.SplitN(strings.TrimSpace(line), ":", 3); {
		case f[1] == "memory":
			return filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes"), "-1"
		case f[1] == "":
			file, none = filepath.Join("/sys/fs/cgroup", f[2], "memory.max"), "max"
		}
	}
	return file, none
}

// starve leaves a gate hardly more memory than it has until the kernel has ended one of
// its processes, and not a moment longer: the worker is the first, PID 1 would be another
// one. Past the engine, which cannot take a limit back.
func starve(t testing.TB, gate string) {
	t.Helper()
	file, none := memoryLimit(t, gate)
	ended := func() (n int) {
		for _, events := range []string{"memory.oom_control", "memory.events"} { // of the first and the second version
			b, _ := os.ReadFile(filepath.Join(filepath.Dir(file), events))
			for line := range strings.Lines(string(b)) {
				if count, is := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); is {
					n, _ = strconv.Atoi(count)
				}
			}
		}
		return n
	}
	set := func(limit string) error { return os.WriteFile(file, []byte(limit), 0) }
	before := ended()
	for late := time.Now().Add(time.Minute); ended() == before; {
		if time.Now().After(late) {
			t.Fatal("the kernel ended nothing of it")
		}
		for mib := 7; mib < 15 && set(fmt.Sprintf("%dM", mib)) != nil; mib++ {
		}
		asks := exec.Command("docker", "exec", gate, spec.GuestDir+"/bin/corral-gate", "status")
		if err := asks.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { _ = asks.Wait(); close(done) }() // it may be ended, too
		for over := false; !over && ended() == before; {
			select {
			case <-done:
				over = true
			case <-time.After(time.Millisecond):
			}
		}
		if err := set(none); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

func signal(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// awaitLog waits until a container has said a line n times.
func awaitLog(t testing.TB, container, line string, n int) {
	t.Helper()
	run(t, "timeout", "60", "sh", "-c", fmt.Sprintf("until [ $(docker logs %s 2>&1 | grep -c '%s') -ge %d ]; do :; done", container, line, n))
}

// awaitTries waits until a gate has refused what restless tries: a connection
// and a lookup.
func awaitTries(t testing.TB, gate string) {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; {
		var s spec.GateStatus
		if err := spec.Decode(strings.NewReader(docker(t, "exec", gate, spec.GuestDir+"/bin/corral-gate", "status", "--json")), &s); err != nil {
			t.Fatal(err)
		}
		denied := slices.ContainsFunc(s.Denied, func(d spec.Traffic) bool { return d.Addr.String() == "44.10.9.9" && d.Port == 443 })
		if denied && slices.ContainsFunc(s.RefusedNames, func(n spec.Refused) bool { return n.Name == "secret.evil.test" }) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("the agent does not try: denied %v, refused %v", s.Denied, s.RefusedNames)
		}
	}
}

// Whatever ends a gate, and however: an agent that never stops trying sends not
// one packet to an address that is not listed, status and verify say what is
// wrong, and corral up heals it without anybody touching Docker (R031, R023).
func TestDeath(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	first := project(t, always("death", "[sh]"))
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	first.lab.Control(t, "corral")
	capture := first.lab.Capture(t, bridge)
	asked, heard := len(first.lab.DNS.Queries("secret.evil.test")), len(first.lab.Authority.Queries())
	t.Cleanup(func() {
		if left := capture.Match(unlisted); len(left) > 0 {
			t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
		}
		if n := len(first.lab.DNS.Queries("secret.evil.test")) - asked + len(first.lab.Authority.Queries()) - heard; n > 0 {
			t.Errorf("%d lookups left", n)
		}
	})
	for name, c := range map[string]struct {
		die    func(t *testing.T, s *sandbox)
		status string // what status says; where it heals itself, a row of it
		itself bool   // it heals itself
		slow   bool   // every question waits as long as it may
		healed string // what corral up says
	}{
		"worker killed": {func(t *testing.T, s *sandbox) {
			signal(t, worker(t, s.gate()), syscall.SIGKILL)
			awaitLog(t, s.gate(), "starting another", 1)
		}, "its worker was replaced", true, false, "is up already"},
		"worker stopped": {func(t *testing.T, s *sandbox) {
			signal(t, worker(t, s.gate()), syscall.SIGSTOP)
			awaitLog(t, s.gate(), "did not answer and was killed", 1)
		}, "its worker was replaced", true, false, "is up already"},
		"out of memory": {func(t *testing.T, s *sandbox) {
			starve(t, s.gate())
			awaitLog(t, s.gate(), "starting another", 1)
			run(t, "timeout", "30", "sh", "-c", fmt.Sprintf("until docker exec %s %s/bin/corral-gate status >/dev/null; do :; done", s.gate(), spec.GuestDir))
		}, "its worker was replaced", true, false, "is up already"},
		"PID 1 killed": {func(t *testing.T, s *sandbox) {
			signal(t, pid(t, s.gate()), syscall.SIGKILL)
			docker(t, "wait", s.gate())
		}, "no network (gate is gone): it was killed, status 137", false, false, "the gate is made anew (it is gone: it was killed, status 137), and main with it"},
		"PID 1 stopped": {func(t *testing.T, s *sandbox) {
			signal(t, pid(t, s.gate()), syscall.SIGSTOP)
		}, "gate does not answer", false, true, "the gate is made anew (it does not answer)"},
		"killed": {func(t *testing.T, s *sandbox) {
			docker(t, "kill", s.gate())
		}, "no network (gate is gone): it was killed, status 137", false, false, "the gate is made anew"},
		"asked to end": {func(t *testing.T, s *sandbox) {
			docker(t, "stop", s.gate())
		}, "no network (gate is gone)", false, false, "the gate is made anew"},
		"restarted": {func(t *testing.T, s *sandbox) {
			docker(t, "restart", s.gate())
			awaitLog(t, s.gate(), spec.ReadyLine, 2)
		}, "no network (gate was replaced)", false, false, "main is made anew (its gate was started again)"},
		"paused": {func(t *testing.T, s *sandbox) {
			docker(t, "pause", s.gate())
		}, "the gate is paused", false, false, "gate was paused: it goes on"},
		"removed": {func(t *testing.T, s *sandbox) {
			docker(t, "rm", "--force", s.gate())
		}, "no network (gate is gone)", false, false, "the gate is made anew (it is gone)"},
		"rules differ": {func(t *testing.T, s *sandbox) {
			inNamespace(t, s.gate(), "iptables", "-w", "-I", "OUTPUT", "-d", "44.10.0.11", "-j", "ACCEPT")
			docker(t, "wait", s.gate())
		}, "no network (gate is gone): re-check failed against existing rules", false, false, "the gate is made anew (it is gone: re-check failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := project(t, always("death", forever))
			s.write("restless.pl", restless)
			s.write("corral.yaml", strings.Replace(always("death", "[perl, "+s.dir+"/restless.pl]"), "egress:", "mounts: {ro: ["+s.dir+"/restless.pl]}\negress:", 1))
			if r := s.corral("up", "--accept"); r.code != 0 {
				t.Fatal(r)
			}
			awaitTries(t, s.gate())
			c.die(t, s)
			r := s.corral("status")
			if !strings.Contains(r.out, c.status) || (r.code == 0) != c.itself {
				t.Errorf("status: %v", r)
			}
			if u := psRow(t, s); u.Purpose != "daemon" || len(u.Services) != 1 || u.Well != c.itself || !c.itself && !strings.Contains(u.Services[0].State, c.status) {
				t.Errorf("ps: %+v", u)
			}
			if !c.slow {
				if r := s.corral("verify"); (r.code == 0) != c.itself || !c.itself && !strings.Contains(r.err, strings.Split(c.status, ":")[0]) {
					t.Errorf("verify: %v", r)
				}
			}
			noCapability(t, s)
			if c.itself {
				if said := docker(t, "logs", s.agent()); strings.Contains(said, "BOUND") {
					t.Error("the agent took the port of the names server")
				}
			}
			if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, c.healed) || hexID.MatchString(strings.ReplaceAll(r.err, s.id, "")) {
				t.Errorf("up: %v", r)
			}
			if r := s.corral("status"); r.code != 0 {
				t.Errorf("status after up: %v", r)
			}
			noCapability(t, s)
			if said := docker(t, "logs", s.agent()); regexp.MustCompile("CONNECTED|RESOLVED").MatchString(said) {
				t.Errorf("the agent got out: %s", said)
			}
		})
	}
}

// A run says at once that its gate has ended, ends the agent, removes both, and
// the next run works.
func TestRunLosesItsGate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		die  []string
		said string
	}{
		"killed":    {[]string{"kill"}, "the gate ended (it was killed, status 137)"},
		"stopped":   {[]string{"stop"}, "the gate ended (it was stopped)"},
		"removed":   {[]string{"rm", "--force"}, "the gate ended (it was"},
		"restarted": {[]string{"restart", "--time", "1"}, "the gate ended (it was"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := project(t, nothing)
			said := &lines{news: make(chan struct{}, 1)}
			run, screen := s.begin(said, "run", "--", "bash", "-c", "trap 'echo asked; exit 7' TERM; echo up; sleep infinity & wait")
			screen.await(t, "up\n")
			docker(t, append(c.die, s.gate())...)
			said.await(t, 0, c.said)
			screen.await(t, "asked\n") // it is ended in order
			_ = run.Wait()
			if code := run.ProcessState.ExitCode(); code != 1 {
				t.Errorf("status %d", code)
			}
			if text := said.String(); !strings.Contains(text, "hint: corral run starts both anew") || hexID.MatchString(text) {
				t.Errorf("said: %s", text)
			}
			if left := s.containers(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if r := s.sh("echo well"); r.code != 0 || r.out != "well\n" {
				t.Errorf("the next run: %v", r)
			}
		})
	}
}

// On a terminal in raw mode the message is on a line of its own.
func TestRunLosesItsGateOnATerminal(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	term, wait := s.onTerminal("run", "--", "bash", "-c", "echo up; exec sleep infinity")
	term.await(t, "up\r\n")
	docker(t, "kill", s.gate())
	term.await(t, "\r\ncorral: the gate ended (it was killed, status 137): the agent has no network any more and is ended\r\n")
	term.await(t, "hint: corral run starts both anew")
	if code := wait(); code != 1 {
		t.Errorf("status %d", code)
	}
}

// A run whose corral was killed, and whose gate ended then, is nobody's: the
// next run clears it away (R031).
func TestRunAfterBothWereLost(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	s.abandoned("echo up; exec sleep infinity", "up")
	docker(t, "kill", s.gate())
	if r := s.sh("echo well"); r.code != 0 || r.out != "well\n" {
		t.Error(r)
	}
}

// psSandbox is a sandbox as corral ps lists it.
type psSandbox struct {
	Sandbox, Purpose, Policy string
	Created                  time.Time
	Well                     bool
	Services                 []struct {
		Service, State string
		OK             bool
	}
}

// psRow is the row of a sandbox among those of the whole machine.
func psRow(t *testing.T, s *sandbox) (row psSandbox) {
	t.Helper()
	r := s.corral("ps", "--json")
	var all struct{ Sandboxes []psSandbox }
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || r.code != 0 {
		t.Fatalf("ps: %v, %v", r, err)
	}
	rows := slices.DeleteFunc(all.Sandboxes, func(u psSandbox) bool { return u.Sandbox != s.id })
	if len(rows) != 1 || rows[0].Policy != filepath.Join(s.dir, "corral.yaml") || time.Since(rows[0].Created) > time.Hour {
		t.Fatalf("%d rows: %s", len(rows), r.out)
	}
	return rows[0]
}
