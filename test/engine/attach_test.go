package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/test/lab"
)

// console is an agent that is talked to: it says what size its terminal has whenever
// that changes, and what it hears.
const console = `[perl, -e, '$|=1; $SIG{WINCH} = sub { print "drawn ", qx(stty size) }; print "up ", qx(stty size); while (<STDIN>) { chomp; exit 3 if $_ eq "end"; s/([^ -~])/sprintf("^%c", 64 + ord $1)/ge; print "heard <$_>\n" }']`

// A person sits down at an always-on agent and leaves it running: by keys that can be
// chosen, by a signal, with the terminal. What it draws is drawn again, several see
// the same, and whoever pipes a question in waits for the answer.
func TestAttach(t *testing.T) {
	t.Parallel()
	s := project(t, always("attach", console))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	if r := s.corral("attach"); r.code != 1 || !strings.Contains(r.err, "hint: corral up starts it") {
		t.Errorf("with nothing up: %v", r)
	}
	s.must("up")
	agent := s.identity(s.agent())
	if r := s.corral("logs"); !strings.HasPrefix(r.out, "up 24 80\n") {
		t.Errorf("a terminal that nobody sits at: %v", r)
	}
	sit := func(args ...string) (*terminal, func() int) {
		t.Helper()
		f, wait := s.onTerminal(append([]string{"attach"}, args...)...)
		f.await(t, "leaves it running")
		f.await(t, "drawn 33 111")
		return f, wait
	}
	left := func(what string, f *terminal, wait func() int) {
		t.Helper()
		f.await(t, "main runs on")
		if code := wait(); code != 0 || s.identity(s.agent()) != agent {
			t.Errorf("%s: status %d, the agent is another or has ended: %q", what, code, f.seen.String())
		}
	}

	first, firstWait := sit()
	first.key(t, "one\r")
	first.await(t, "heard <one>")
	second, secondWait := sit("--detach-keys", "ctrl-],x")
	second.key(t, "two\x10\x11\r") // the usual keys are the agent's here
	second.await(t, "heard <two^P")
	first.key(t, "three\r")
	second.await(t, "heard <three>")
	second.key(t, "\x1dx")
	left("keys of one's own", second, secondWait)
	first.key(t, "\x10\x11")
	left("the usual keys", first, firstWait)

	f, wait := sit()
	f.key(t, "\x1b[112;5u\x1b[112;5:3u\x1b[27;69;113~") // as terminals send them if the agent wants that
	left("the usual keys as sequences", f, wait)

	s.env = append(s.env, "CORRAL_DETACH_KEYS=ctrl-a,d")
	f, wait = sit()
	f.key(t, "\x01d")
	left("keys of the setting", f, wait)
	if r := s.corral("attach", "--detach-keys", "q"); r.code != 2 || !strings.Contains(r.err, "the first with ctrl-") {
		t.Errorf("keys that everybody types: %v", r)
	}

	watcher, watched := s.onTerminal("attach", "--no-stdin")
	watcher.await(t, "drawn 33 111")
	var said bytes.Buffer
	piped := s.cmd("attach")
	piped.Stderr = &said
	piped.Stdin = strings.NewReader("from a pipe\n")
	answer, err := piped.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := piped.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(limit, func() { piped.Process.Kill() }).Stop()
	defer func() {
		if t.Failed() {
			t.Logf("with a pipe: %s", said.String())
		}
	}()
	(&screen{f: answer.(*os.File)}).await(t, "heard <from a pipe>")
	watcher.await(t, "heard <from a pipe>")
	watcher.key(t, "\x03") // it types nothing into the agent
	left("one that only watches", watcher, watched)
	if err := piped.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := piped.Wait(); err != nil || s.identity(s.agent()) != agent {
		t.Errorf("a signal to one with a pipe: %v", err)
	}
	f, wait = sit()
	if err := f.f.Close(); err != nil { // the terminal goes
		t.Fatal(err)
	}
	if code := wait(); code != 0 || s.identity(s.agent()) != agent {
		t.Errorf("without its terminal: status %d", code)
	}

	// The agent's own end is told, with its status (R126), and so is that of the gate.
	f, wait = sit()
	f.key(t, "end\r")
	f.await(t, "main ended: it ended with status 3 (corral up heals it)")
	if code := wait(); code != 3 {
		t.Errorf("status %d: %q", code, f.seen.String())
	}
	if r := s.corral("attach"); r.code != 1 || !strings.Contains(r.err, "main does not run: it ended with status 3") {
		t.Errorf("to one that has ended: %v", r)
	}
	s.must("up")
	f, wait = sit()
	docker(t, "kill", s.gate())
	f.await(t, "the gate ended (it was killed, status 137): the agent has no network any more")
	if r := s.corral("up"); r.code != 0 {
		t.Errorf("a heal asks nobody: %v", r)
	}
	f.await(t, "made anew by a corral up")
	if code := wait(); code != 1 {
		t.Errorf("status %d: %q", code, f.seen.String())
	}
	if r := s.corral("attach", "mian"); r.code != 2 || !strings.Contains(r.err, "hint: did you mean main?") {
		t.Error(r)
	}
	for _, name := range []string{"gate", "nobody"} {
		if r := s.corral("attach", name); r.code != 2 || !strings.Contains(r.err, "hint: there is main") {
			t.Errorf("to %s: %v", name, r)
		}
	}
}

// The one of a corral run is its own corral's.
func TestAttachToARun(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	defer s.up("echo up; read -r _", "up")()
	if r := s.corral("attach"); r.code != 1 || !strings.Contains(r.err, "hint: corral shell") {
		t.Error(r)
	}
}

// R123: what somebody sits at is not ended for a change of the policy before a person
// said yes. What is healed, and what needs no end, asks nobody.
func TestUpAsksBeforeItEndsASession(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"attach", "shell"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := project(t, always("sits", console))
			s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
			s.must("up")
			f, wait := s.onTerminal(how)
			f.key(t, "echo $((40+2))\r")
			f.await(t, map[string]string{"attach": "heard <echo $((40+2))>", "shell": "42"}[how])
			agent := s.identity(s.agent())
			s.write("corral.yaml", always("sits", console)+"resources: {pids: 300}\n")
			if r := s.corral("up"); r.code != 2 || !strings.Contains(r.err, "ends the session of somebody who sits at it") || !strings.Contains(r.err, "hint: say --yes") {
				t.Errorf("without a terminal: %v", r)
			}
			g, no := s.onTerminal("up")
			g.await(t, "main is to be made anew (another is asked for: resources), which ends the session of somebody who sits at it. Go on? [y/N]")
			g.key(t, "n\r")
			if code := no(); code != 2 {
				t.Errorf("a no: status %d: %q", code, g.seen.String())
			}
			if s.identity(s.agent()) != agent {
				t.Fatal("it was ended without a yes")
			}

			// Nobody can be asked by a watch: it says that it waits, and goes on when it can.
			said := &lines{news: make(chan struct{}, 1)}
			c, _ := s.begin(said, "up", "--watch", "--yes")
			mark := said.await(t, 0, "main is made anew (another is asked for: resources)")
			mark = said.await(t, mark, "watching "+s.id)
			f.await(t, map[string]string{"attach": "made anew by a corral up", "shell": "the sandbox ended"}[how])
			if code := wait(); code != 1 {
				t.Errorf("status %d: %q", code, f.seen.String())
			}
			f, wait = s.onTerminal(how)
			f.key(t, "echo $((40+2))\r")
			f.await(t, map[string]string{"attach": "heard <echo $((40+2))>", "shell": "42"}[how])
			agent = s.identity(s.agent())
			s.write("corral.yaml", always("sits", console)+"resources: {pids: 200}\n")
			docker(t, "pause", s.gate()) // so that it looks
			mark = said.await(t, mark, "main is to be made anew (another is asked for: resources): that waits until nobody sits at it any more")
			if s.identity(s.agent()) != agent {
				t.Fatal("the watch ended it")
			}
			f.key(t, map[string]string{"attach": "\x10\x11", "shell": "exit\r"}[how])
			if code := wait(); code != 0 {
				t.Errorf("status %d: %q", code, f.seen.String())
			}
			docker(t, "pause", s.gate())
			mark = said.await(t, mark, "main is made anew (another is asked for: resources)")
			said.await(t, mark, s.id+" is up\n")
			if err := c.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); err != nil {
				t.Error(err)
			}
			s.write("corral.yaml", always("sits", console)+"resources: {pids: 100}\n")
			if r := s.corral("up"); r.code != 0 {
				t.Errorf("nobody sits there: %v", r)
			}
		})
	}
}

// What somebody starts again under who sits there is said to be that, with what to do.
func TestAttachToWhatIsRestarted(t *testing.T) {
	t.Parallel()
	s := project(t, always("restarted", console))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	f, wait := s.onTerminal("attach")
	f.await(t, "drawn 33 111")
	docker(t, "restart", "--time", "5", s.agent())
	f.await(t, "main was ended and started again by somebody, as docker restart does")
	f.await(t, "hint: corral attach comes back to it")
	if code := wait(); code != 1 {
		t.Errorf("the agent: status %d: %q", code, f.seen.String())
	}
	f, wait = s.onTerminal("attach")
	f.await(t, "drawn 33 111")
	docker(t, "restart", "--time", "5", s.gate())
	f.await(t, "the gate ended (")
	f.await(t, "): the agent has no network any more until corral up makes both anew")
	f.key(t, "\x10\x10\x11") // the first is the agent's
	f.await(t, "main runs on")
	if code := wait(); code != 0 {
		t.Errorf("the gate: status %d: %q", code, f.seen.String())
	}
}

// Whoever thinks about a question of corral up holds up nobody: other commands about the
// same sandbox go their way meanwhile.
func TestAnOpenQuestionHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"may it be ended": "resources: {pids: 300}\n",
		"is it accepted":  "host_services: [{name: more, port: 9}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := project(t, always("asked", console))
			s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
			s.must("up")
			f, wait := s.onTerminal("attach")
			f.await(t, "drawn 33 111")
			s.write("corral.yaml", always("asked", console)+more)
			g, answered := s.onTerminal("up")
			g.await(t, "[y/N]")
			unlock, err := state.Lock(filepath.Join(s.home(), ".local/share/corral"), s.id)
			if err != nil {
				t.Fatal(err)
			}
			unlock()
			if r := s.corral("down"); r.code != 0 || strings.Contains(r.err, "waiting for another corral") {
				t.Errorf("beside the question: %v", r)
			}
			f.await(t, "was taken down")
			wait()
			g.key(t, "n\r")
			if code := answered(); code != 2 || len(s.containers()) > 0 {
				t.Errorf("a no: status %d: %q", code, g.seen.String())
			}
		})
	}
}

// Who sits at an agent and takes nothing does not make it stand still: the session is
// left, and somebody else's, and corral down, go their way meanwhile. Nor does a command
// stand still whose words nobody takes.
func TestAttachThatStalls(t *testing.T) {
	t.Parallel()
	s := project(t, always("stalls", `[perl, -e, '$|=1; print "up\n"; while (<STDIN>) { print "x" x 1000, "\n" for 1..8000; print "through ", ++$n, "\n" }']`))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	var errs bytes.Buffer
	c := s.cmd("attach")
	c.Stdin, c.Stderr = strings.NewReader("go\n"), &errs
	out, err := c.StdoutPipe() // which nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(limit, func() { c.Process.Kill() }).Stop()
	f, wait := s.onTerminal("attach")
	f.await(t, "through 1")
	if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != 1 || !strings.Contains(errs.String(), "nobody took what main writes") {
		t.Errorf("%v: %s", err, errs.String())
	}
	unread, unreadWait := s.onTerminal("attach")
	unread.await(t, "leaves it running") // and no more from here on
	unread.key(t, "go\r")
	f.seen.Reset()
	f.await(t, "through 2")
	if code := unreadWait(); code != 1 {
		t.Errorf("a terminal that takes nothing: status %d", code)
	}
	f.key(t, "\x10\x11")
	f.await(t, "main runs on")
	if code := wait(); code != 0 {
		t.Errorf("status %d: %q", code, f.seen.String())
	}

	// Signals end what a terminal keeps from going on.
	for _, command := range [][]string{{"shell", "--", "sh", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"}, {"logs", "-f"}} {
		errs.Reset()
		c := s.cmd(command...)
		ptmx, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer ptmx.Close()
		c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		defer time.AfterFunc(limit, func() { c.Process.Kill() }).Stop()
		(&screen{f: ptmx}).await(t, "xxxx") // and no more from here on
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if code := c.ProcessState.ExitCode(); code <= 0 {
			t.Errorf("%s: status %d", command[0], code)
		}
	}
	s.must("down")
}

// What an agent writes of itself before it ends is told as its word, with its status.
func TestWhatAnAgentSaysOfItsEnd(t *testing.T) {
	t.Parallel()
	s := project(t, always("says", `[sh, -c, "echo corral-verify: run this; read -r _; exit 3"]`))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	f, wait := s.onTerminal("attach")
	f.key(t, "\r")
	f.await(t, `main ended: it ended with status 3, and said: "run this"`)
	if code := wait(); code != 3 {
		t.Errorf("status %d", code)
	}
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, `main: it ended with status 3, and said: "run this"`) {
		t.Error(r)
	}
}

// A policy whose sandbox is up for one project is not taken for another's; one whose
// directory has moved can still be looked at and ended.
func TestPolicyFromElsewhere(t *testing.T) {
	t.Parallel()
	s := project(t, strings.Replace(always("x", forever), "name: x\n", "", 1))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	ids := s.containers()
	other := filepath.Join(filepath.Dir(s.dir), "elsewhere")
	s.own(other)
	policy := filepath.Join(s.dir, "corral.yaml")
	for _, command := range []string{"up", "verify", "refresh", "shell"} {
		c := s.cmd(command, "--policy", policy, "--accept")
		if command == "verify" || command == "refresh" {
			c = s.cmd(command, "--policy", policy)
		}
		c.Dir = other
		if r := s.ended("", c); r.code != 2 || !strings.Contains(r.err, "is up for the project "+s.dir) || !strings.Contains(r.err, "hint: say --project "+s.dir) {
			t.Errorf("%s: %v", command, r)
		}
	}
	if got := s.containers(); strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("%v became %v", ids, got)
	}
	moved := s.dir + "-moved"
	if err := os.Rename(s.dir, moved); err != nil {
		t.Fatal(err)
	}
	defer func() { // where it is cleared up from
		if err := os.Rename(moved, s.dir); err != nil {
			t.Error(err)
		}
	}()
	for _, command := range []string{"status", "logs", "attach nobody", "down"} {
		c := s.cmd(append(strings.Fields(command), "--policy", policy)...)
		c.Dir = moved
		if r := s.ended("", c); strings.Contains(r.err, "no such file") || command == "down" && r.code != 0 || strings.Contains(r.err, "project directory") {
			t.Errorf("%s: %v", command, r)
		}
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A terminal is raw again for whoever was stopped and goes on, and keys that a program
// has had written out leave as well; where the output goes elsewhere nothing is raw, and
// Ctrl-C leaves.
func TestAttachStoppedAndPiped(t *testing.T) {
	t.Parallel()
	s := project(t, always("stopped", console))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	agent := s.identity(s.agent())
	f, wait := s.onTerminal("attach")
	f.await(t, "drawn 33 111")
	group := f.mode(t, unix.ICANON, true)
	if err := syscall.Kill(group, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	f.mode(t, 0, false) // as the shell would
	if err := syscall.Kill(group, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.mode(t, unix.ICANON, true)
	f.key(t, "still\r")
	f.await(t, "heard <still>")
	f.key(t, "\x1b[112;5u\x1b[27;5;113~")
	f.await(t, "main runs on")
	if code := wait(); code != 0 || s.identity(s.agent()) != agent {
		t.Errorf("keys that are written out: status %d: %q", code, f.seen.String())
	}

	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	defer tty.Close()
	keepOutput(t, ptmx)
	piped := s.cmd("attach")
	piped.Stdin, piped.Stderr = tty, tty
	piped.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: piped.SysProcAttr.Credential}
	out, err := piped.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := piped.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(limit, func() { piped.Process.Kill() }).Stop()
	f = &terminal{screen{f: ptmx}}
	f.await(t, "Ctrl-C leaves it running")
	f.key(t, "through a pipe\n")
	(&screen{f: out.(*os.File)}).await(t, "heard <through a pipe>")
	f.key(t, "\x03")
	f.await(t, "main runs on")
	if err := piped.Wait(); err != nil || s.identity(s.agent()) != agent {
		t.Errorf("Ctrl-C of one whose output goes elsewhere: %v", err)
	}
}

// mode waits until a terminal has none of some flags, or gives it those of one that
// nobody has taken; it says which process group is in front there.
func (t *terminal) mode(tb testing.TB, without uint32, waits bool) (group int) {
	tb.Helper()
	raw, err := t.f.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	for until := time.Now().Add(limit); ; {
		done := false
		failed := raw.Control(func(fd uintptr) {
			var mode *unix.Termios
			if mode, err = unix.IoctlGetTermios(int(fd), unix.TCGETS); err != nil {
				return
			}
			if !waits {
				mode.Lflag |= unix.ICANON | unix.ISIG | unix.ECHO
				err, done = unix.IoctlSetTermios(int(fd), unix.TCSETS, mode), true
				return
			}
			if done = mode.Lflag&without == 0; done {
				group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP)
			}
		})
		switch {
		case failed != nil || err != nil:
			tb.Fatal(failed, err)
		case done:
			return group
		case time.Now().After(until):
			tb.Fatal("the terminal is not as it should be")
		}
	}
}
