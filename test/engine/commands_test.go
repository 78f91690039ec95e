package engine

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/test/lab"
)

// What was built is not built again, in under a second, and nothing is made
// but images; what run then needs is there.
func TestBuild(t *testing.T) {
	// Alone: it is about time.
	s := project(t, nothing)
	r := s.corral("build")
	if r.code != 0 || !regexp.MustCompile(`(?m)^main  built in \d+(\.\d+)?m?s  corral-`+s.id+`-main:[0-9a-f]{16}$`).MatchString(r.out) {
		t.Fatal(r)
	}
	start := time.Now()
	r = s.corral("build")
	if took := time.Since(start); took > time.Second {
		t.Errorf("the second build took %v", took)
	} else {
		t.Logf("the second build took %v", took)
	}
	if r.code != 0 || !regexp.MustCompile(`(?m)^gate  up to date  corral-gate:[0-9a-f]{16}\nmain  up to date  corral-`+s.id+`-main:[0-9a-f]{16}$`).MatchString(r.out) || r.err != "" {
		t.Error(r)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left after a build: %v", left)
	}
	if r := s.sh("true"); r.code != 0 || strings.Contains(r.err, "building") {
		t.Errorf("a run after it: %v", r)
	}
	s.write("corral.yaml", nothing+"image:\n  run: [\"echo more > /etc/more\"]\n")
	if r := s.corral("build"); r.code != 2 || !strings.Contains(r.err, "grants more than was accepted") {
		t.Errorf("what nobody accepted: %v", r)
	}
	if r := s.corral("build", "--accept"); r.code != 0 || !strings.Contains(r.out, "main  built in ") || !strings.Contains(r.out, "gate  up to date") {
		t.Error(r)
	}
}

// It builds where every address is taken and while the sandbox is up.
func TestBuildBesideARun(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	before := s.containers()
	if r := s.corral("build"); r.code != 0 || !strings.Contains(r.out, "main  up to date") {
		t.Error(r)
	}
	if after := s.containers(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("containers %v became %v", before, after)
	}
}

// Where nothing is up the shell is the agent.
func TestShellAlone(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	r := s.corralIn("echo $0 in $PWD; exit 7\n", "shell")
	if r.code != 7 || r.out != "bash in "+s.dir+"\n" {
		t.Error(r)
	}
	if r := s.corral("shell", "--", "sh", "-c", "exit 9"); r.code != 9 {
		t.Error(r)
	}
	if r := s.corral("shell", "true"); r.code != 2 || !strings.Contains(r.err, "write corral shell -- true") {
		t.Error(r)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Beside a running agent it is the same container, user, directory and fence,
// without corral's own documents; streams and the status pass through.
func TestShellBesideTheAgent(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	before := s.containers()
	r := s.corralIn("id -u; id -g; pwd; hostname; env | grep -c CORRAL_SPEC; tr '\\0' ' ' < /proc/1/cmdline; echo; grep -E 'NoNewPrivs|CapBnd|Seccomp:' /proc/self/status; exit 11\n", "shell")
	want := fmt.Sprintf("%d\n%d\n%s\n%s\n0\n", ownerUID, ownerGID, s.dir, docker(t, "exec", s.agent(), "hostname"))
	if r.code != 11 || !strings.HasPrefix(r.out, want) || !strings.Contains(r.out, "handover -- bash -c echo up") ||
		!strings.Contains(r.out, "CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n") {
		t.Errorf("want %q in %v", want, r)
	}
	text := strings.Repeat("piped äöü\x00\x1b[31m\n", 20000)
	if r := s.corralIn(text, "shell", "--", "sh", "-c", "cat; echo to stderr >&2"); r.code != 0 || r.out != text || r.err != "to stderr\n" {
		t.Errorf("status %d, %d bytes of %d came back, stderr %q", r.code, len(r.out), len(text), r.err)
	}
	if r := s.corral("shell", "--", "no-such-program"); r.code != 127 || !strings.Contains(r.err, "command not found") {
		t.Error(r)
	}
	if r := s.corral("shell", "--", "bash", "-c", "kill -9 $$"); r.code != 137 || r.err != "" {
		t.Error(r)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("after shells: %v", r)
	}
	if after := s.containers(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("containers %v became %v", before, after)
	}
}

// The fence is proven before the shell, so a shell in an open namespace is
// refused. A policy that was edited meanwhile is told, and opens nothing.
func TestShellIsRefused(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end, process := s.start("echo up; exec sleep infinity", "up")
	s.write("corral.yaml", "profile: shell\nname: renamed\n")
	if r := s.corral("shell", "--", "echo", "inside"); r.code != 0 || r.out != "inside\n" || !strings.Contains(r.err, "another version") || !strings.Contains(r.err, "corral down") {
		t.Errorf("with another policy: %v", r)
	}
	s.write("corral.yaml", nothing)
	if err := process.Kill(); err != nil { // who would end the agent
		t.Fatal(err)
	}
	go end()
	docker(t, "kill", s.gate())
	if r := s.corral("shell", "--", "true"); r.code != 1 || !strings.Contains(r.err, "no network (gate is gone)") {
		t.Errorf("without a gate: %v", r)
	}
	out := run(t, "sh", "-c", "docker exec "+s.agent()+" /opt/corral/bin/corral-verify handover -- echo inside 2>&1 || true")
	if strings.Contains(out, "inside\n") || !strings.Contains(out, "handover refused: same-netns-as-gate") {
		t.Errorf("the handover itself: %s", out)
	}
	if r := s.corral("down"); r.code != 0 {
		t.Error(r)
	}
}

// onTerminal starts a command on a terminal of its own.
func (s *sandbox) onTerminal(args ...string) (*terminal, func() int) {
	s.tb.Helper()
	c := s.cmd(args...)
	c.Env = append(c.Env, "TERM=xterm")
	f, tty, err := pty.Open()
	if err != nil {
		s.tb.Fatal(err)
	}
	defer tty.Close()
	keepOutput(s.tb, f)
	if err := pty.Setsize(f, &pty.Winsize{Rows: 33, Cols: 111}); err != nil {
		s.tb.Fatal(err)
	}
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: c.SysProcAttr.Credential}
	if err := c.Start(); err != nil {
		s.tb.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { c.Process.Kill() })
	s.tb.Cleanup(func() { timer.Stop(); f.Close() })
	return &terminal{screen{f: f}}, func() int { _ = c.Wait(); return c.ProcessState.ExitCode() }
}

// keepOutput has a terminal keep what was written when Ctrl-C is typed: the kernel would
// throw it away after the signal, and with it the answer of who is quick.
func keepOutput(tb testing.TB, f *os.File) {
	tb.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	failed := raw.Control(func(fd uintptr) {
		var mode *unix.Termios
		if mode, err = unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			mode.Lflag |= unix.NOFLSH
			err = unix.IoctlSetTermios(int(fd), unix.TCSETS, mode)
		}
	})
	if failed != nil || err != nil {
		tb.Fatal(failed, err)
	}
}

type terminal struct{ screen }

func (t *terminal) key(tb testing.TB, text string) {
	tb.Helper()
	if _, err := t.f.WriteString(text); err != nil {
		tb.Fatal(err)
	}
}

func TestShellOnATerminal(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	f, wait := s.onTerminal("shell", "--", "bash", "-c", `trap 'echo interrupted; exit 3' INT; until [ "$(stty size)" = "33 111" ]; do :; done; echo $TERM ready; until [ "$(stty size)" = "44 99" ]; do :; done; stty size; while read -r -t 1 line || true; do :; done`)
	f.await(t, "xterm ready")
	if err := pty.Setsize(f.f, &pty.Winsize{Rows: 44, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	f.await(t, "44 99")
	f.key(t, "\x03")
	f.await(t, "interrupted")
	if code := wait(); code != 3 {
		t.Errorf("status %d: %q", code, f.seen.String())
	}

	// Without a command it is a bash that reads what is typed.
	f, wait = s.onTerminal("shell")
	f.key(t, "echo $((6*7)) $- $0\r")
	f.await(t, "42 h")
	f.key(t, "exit 5\r")
	if code := wait(); code != 5 || !strings.Contains(f.seen.String(), "bash") {
		t.Errorf("status %d: %q", code, f.seen.String())
	}
}

// R126: whoever loses the sandbox under their shell is told so.
func TestShellWhoseSandboxEnds(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"the agent ends", "it is taken down"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := project(t, nothing)
			end := s.up("echo up; read -r _", "up")
			defer end()
			f, wait := s.onTerminal("shell", "--", "sh", "-c", "echo inside; sleep 300")
			f.await(t, "inside")
			if how == "the agent ends" {
				end()
			} else {
				s.corral("down")
			}
			f.await(t, "the sandbox ended, and with it what ran in it")
			if code := wait(); code != 1 {
				t.Errorf("status %d: %q", code, f.seen.String())
			}
		})
	}
}

// Without a terminal a signal goes to what the shell runs; the third ends it.
// Nothing of it stays in the sandbox.
func TestShellInterrupted(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	var errs bytes.Buffer
	c, f := s.begin(&errs, "shell", "--", "bash", "-c", `trap 'echo interrupted; exit 4' INT; echo ready; while :; do sleep 0.1; done`)
	f.await(t, "ready")
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	f.await(t, "interrupted")
	if _ = c.Wait(); c.ProcessState.ExitCode() != 4 {
		t.Errorf("%v: %s", c.ProcessState, errs.String())
	}

	c, f = s.begin(&errs, "shell", "--", "perl", "-e", `$|=1; $SIG{INT} = sub { print "no\n" }; print "ready\n"; sleep 1 while 1`) // bash loses a signal that comes while it answers one
	f.await(t, "ready")
	for n := range 3 {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if n < 2 {
			f.await(t, strings.Repeat("no\n", n+1))
		}
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != 137 {
		t.Errorf("ended with %v: %s", c.ProcessState, errs.String())
	}
	if left := docker(t, "top", s.agent()); strings.Contains(left, "echo ready") {
		t.Errorf("left in the sandbox: %s", left)
	}
}

// Nothing runs on for somebody who has gone.
func TestShellWhoseReaderLeaves(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	var errs bytes.Buffer
	c, f := s.begin(&errs, "shell", "--", "bash", "-c", "while echo much; do :; done; sleep 300")
	f.await(t, "much")
	if err := f.f.Close(); err != nil {
		t.Fatal(err)
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != 1 || !strings.Contains(errs.String(), "nobody takes the output any more") {
		t.Errorf("%v: %s", c.ProcessState, errs.String())
	}
	if left := docker(t, "top", s.agent()); strings.Contains(left, "echo much") {
		t.Errorf("left in the sandbox: %s", left)
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	if r := s.corral("logs"); r.code != 1 || !strings.Contains(r.err, "nothing of ") || !strings.Contains(r.err, "hint: corral run") || r.out != "" {
		t.Errorf("with nothing up: %v", r)
	}
	end := s.up(`printf 'to stdout \033[31m\n'; echo to stderr >&2; echo up; read -r line; echo more; read -r _`, "up")
	defer end()
	if r := s.corral("logs"); r.code != 0 || r.out != "to stdout \x1b[31m\nup\n" || r.err != "to stderr\n" {
		t.Error(r)
	}
	if r, main := s.corral("logs", "main"), s.corral("logs"); r.out != main.out || r.code != 0 {
		t.Error(r)
	}
	if r := s.corral("logs", "gate"); r.code != 0 || !strings.Contains(r.out, "corral-gate: ready\n") {
		t.Error(r)
	}
	if r := s.corral("logs", "mian"); r.code != 2 || !strings.Contains(r.err, "hint: did you mean main?") {
		t.Errorf("mistyped: %v", r)
	}
	if r := s.corral("logs", "nobody"); r.code != 2 || !strings.Contains(r.err, `no service is called "nobody"`) || !strings.Contains(r.err, "hint: there is gate, main") {
		t.Error(r)
	}
	if r := s.corral("logs", "main", "gate"); r.code != 0 || !strings.Contains(r.out, "gate | corral-gate: ready\n") || !strings.HasSuffix(r.out, "main | to stdout \\x1b[31m\nmain | up\n") || r.err != "main | to stderr\n" {
		t.Error(r)
	}

	var errs bytes.Buffer
	c, f := s.begin(&errs, "logs", "-f")
	f.await(t, "up\n")
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != 130 {
		t.Errorf("interrupted: %v %s", c.ProcessState, errs.String())
	}

	c, f = s.begin(&errs, "logs", "--follow")
	f.await(t, "up\n")
	end() // its input ends: it says one thing more
	f.await(t, "more\n")
	if _ = c.Wait(); c.ProcessState.ExitCode() != 0 {
		t.Errorf("at the end: %v %s", c.ProcessState, errs.String())
	}
}

// The output of an always-on sandbox is followed over all that becomes of its
// services, until it is taken down.
func TestLogsOfWhatIsAlwaysOn(t *testing.T) {
	t.Parallel()
	s := project(t, always("logged", `[sh, -c, "echo first; echo second; read -r _; echo gone; exit 3"]`))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	if r := s.corral("logs", "-n", "0"); r.out != "" || r.code != 0 {
		t.Errorf("nothing of what was kept: %v", r)
	}
	if r := s.corral("logs", "-n", "1"); r.out != "second\n" || r.code != 0 {
		t.Errorf("the last line: %v", r)
	}
	if r := s.corral("logs", "gate", "main"); r.code != 0 || !strings.Contains(r.out, "gate | corral-gate: ready\n") || !strings.Contains(r.out, "\nmain | first\nmain | second\n") {
		t.Errorf("two: %v", r)
	}
	if r := s.corral("logs", "--tail", "-1"); r.code != 2 {
		t.Error(r)
	}
	for _, command := range []string{"logs -f", "logs"} { // whose reader goes
		c := s.cmd(strings.Fields(command)...)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		c.Stdout, c.Stderr = w, &errs
		r.Close()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		timer := time.AfterFunc(limit, func() { c.Process.Kill() })
		_ = c.Wait()
		timer.Stop()
		if code := c.ProcessState.ExitCode(); code != 1 || errs.Len() > 0 {
			t.Errorf("%s without a reader: status %d, %s", command, code, errs.String())
		}
	}
	said := &lines{news: make(chan struct{}, 1)}
	c, out := s.begin(said, "logs", "-f")
	both, all := s.begin(io.Discard, "logs", "-f", "gate", "main")
	out.await(t, "second\n")
	all.await(t, "main | second\n")
	docker(t, "kill", s.agent())
	said.await(t, 0, "main ended (it was killed, status 137): what comes in its place is followed")
	s.must("up")
	out.await(t, "first\nsecond\nfirst\nsecond\n") // not again what was there
	docker(t, "rm", "--force", s.gate())
	if r := s.corral("logs"); r.code != 0 || !strings.Contains(r.err, "main: no network (gate is gone) (corral up heals it)") {
		t.Errorf("without a gate: %v", r)
	}
	s.must("up")
	out.await(t, strings.Repeat("first\nsecond\n", 3))
	for strings.Count(all.seen.String(), "gate | corral-gate: ready\n") < 2 || strings.Count(all.seen.String(), "main | first\n") < 3 {
		all.more(t)
	}
	s.must("down")
	said.await(t, 0, "it was taken down")
	for _, c := range []*exec.Cmd{c, both} {
		if err := c.Wait(); err != nil {
			t.Errorf("once it is down: %v", err)
		}
	}
	if got := out.seen.String(); strings.Count(got, "first") != 3 {
		t.Errorf("what was followed: %q", got)
	}
}

// What is followed is followed on where the engine ends the reading, as it does where it
// rotates what it keeps: nothing is lost by it, and nothing is said twice.
func TestLogsFollowedBeyondTheEnginesEnd(t *testing.T) {
	t.Parallel()
	s := project(t, always("read-on", console))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	var readings atomic.Int64
	address := between(t, filepath.Join(public(t), "engine.sock"), func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/logs") && readings.Add(1) <= 2 {
				q := r.URL.Query()
				q.Del("follow") // the engine gives what it has, and ends it
				r.URL.RawQuery = q.Encode()
			}
			engine.ServeHTTP(w, r)
		})
	})
	o := *s
	o.env = append(slices.Clone(s.env), "DOCKER_HOST="+address)
	c, f := o.begin(io.Discard, "logs", "-f")
	f.await(t, "up 24 80\n")
	for _, line := range []string{"one", "two", "three"} {
		g, wait := s.onTerminal("attach")
		g.key(t, line+"\r")
		g.await(t, "heard <"+line+">")
		g.key(t, "\x10\x11")
		wait()
		f.await(t, "heard <"+line+">")
	}
	if n := readings.Load(); n < 3 {
		t.Errorf("the engine ended %d readings", n)
	}
	s.must("down")
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	for _, line := range []string{"up 24 80\n", "heard <one>", "heard <two>", "heard <three>"} {
		if n := strings.Count(f.seen.String(), line); n != 1 {
			t.Errorf("%q came %d times: %q", line, n, f.seen.String())
		}
	}
}
