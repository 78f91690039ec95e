package gate_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// A worker that is there and does not answer is ended and replaced. Meanwhile
// nothing opens, and its port is nobody else's.
func TestWorkerStopped(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	worker := child(t, s.pid)
	if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if out, err := p.agent(t.Context(), "connect", canaryAddr+":443"); err == nil {
		t.Error(out)
	}
	s.await("it did not answer and was killed")
	st := s.status()
	if st.WorkerRestarts != 1 || st.State != spec.GateReady {
		t.Errorf("status %+v", st)
	}
	if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", "api.allowed.test.", "udp"); err != nil || !strings.HasPrefix(out, "NOERROR") {
		t.Errorf("lookup: %s", out)
	}
	if err := syscall.Kill(worker, 0); err == nil {
		t.Error("the stopped worker is there still")
	}
	if n := len(p.sent(canaryAddr)); n != 0 {
		t.Errorf("%d packets to the canary", n)
	}
}

// When memory is short the kernel ends the worker, not PID 1.
func TestWorkerIsFirstToGo(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	score := func(pid int) int {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if worker, first := score(child(t, s.pid)), score(s.pid); worker != 1000 || first >= worker {
		t.Errorf("the worker has %d, PID 1 %d", worker, first)
	}
}

// Nobody takes what the gate says: it watches on, closes when something
// differs, and ends.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	fill(t, s.pid)
	run(t, "ip", "netns", "exec", p.gate, "iptables", "-w", "-D", "OUTPUT", "1")
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	p.isClosed(t)
}

// fill writes to the standard output of a process until nobody takes anything
// any more.
func fill(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/1", pid), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lines := bytes.Repeat([]byte("nobody reads this\n"), 200)
	const stuck = 500 // milliseconds
	for {
		_, err := unix.Write(fd, lines)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, stuck)
		if err == nil && ready == 0 {
			return
		}
	}
}
