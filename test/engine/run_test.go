package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/corral-sandbox/corral/test/lab"
)

const allowed = `profile: shell
name: allowed
egress:
  allow:
    - api.allowed.test
`

const nothing = `profile: shell
name: nothing
`

// connect is a TCP connection attempt by the shell itself, and how long it took.
const connect = `t() { s=$(date +%s%N); (exec 3<>/dev/tcp/$1/$2) 2>/dev/null; r=$?; e=$(date +%s%N); echo "$1 $r $(( (e-s)/1000000 ))"; }; `

// R001, R050: an allowed name is reached although its address came twice; the
// rest is refused in less than 50 ms, lookups included, and nothing leaves.
func TestRunReachesWhatIsAllowedAndNothingElse(t *testing.T) {
	// Alone: it is about time, nothing may reach the canary meanwhile, and nobody else may ask for a name.
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10", "44.10.0.10"))
	s.lab.Control(t, "corral")
	capture := s.lab.Capture(t, bridge)
	asked := len(s.lab.DNS.Queries())

	r := s.sh(connect + fmt.Sprintf(`t api.allowed.test 443; t %v 443; t %v 80; t unlisted.test 443; getent hosts unlisted.test; echo "lookup $?"`, lab.Canary, lab.Canary))
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, want := range []string{`(?m)^api\.allowed\.test 0 \d+$`, `(?m)^lookup 2$`} {
		if !regexp.MustCompile(want).MatchString(r.out) {
			t.Errorf("no %s in %v", want, r)
		}
	}
	for _, host := range []string{lab.Canary.String(), "unlisted.test"} {
		for _, m := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(host)+` (\d+) (\d+)$`).FindAllStringSubmatch(r.out, -1) {
			if ms, _ := strconv.Atoi(m[2]); m[1] == "0" || ms >= 50 {
				t.Errorf("%s: status %s after %s ms, want a refusal in less than 50", host, m[1], m[2])
			}
		}
	}
	if left := capture.To(lab.Canary); len(left) > 0 {
		t.Errorf("%d packets to an unlisted address: %v", len(left), left[0])
	}
	for _, q := range s.lab.DNS.Queries()[asked:] {
		if !strings.EqualFold(strings.TrimSuffix(q.Name, "."), "api.allowed.test") {
			t.Errorf("the name server was asked for %v", q)
		}
	}
	if !strings.Contains(r.err, "denied: ") || !strings.Contains(r.err, "unlisted.test") {
		t.Errorf("the end of the run does not say what was denied: %s", r.err)
	}
}

func TestRunIsThePersons(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	r := s.sh(`echo made > file; id -u; id -g; pwd; exit 42`)
	if r.code != 42 {
		t.Fatalf("the agent's exit status did not pass through: %v", r)
	}
	if want := fmt.Sprintf("%d\n%d\n%s\n", ownerUID, ownerGID, s.dir); r.out != want {
		t.Errorf("inside: %q, want %q", r.out, want)
	}
	fi, err := os.Stat(filepath.Join(s.dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if st := fi.Sys().(*syscall.Stat_t); st.Uid != ownerUID || st.Gid != ownerGID {
		t.Errorf("the file belongs to %d:%d", st.Uid, st.Gid)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left after the run: %v", left)
	}
}

func TestRunPassesStreams(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	text := strings.Repeat("piped äöü\x00\x1b[31m\n", 20000)
	r := s.corralIn(text, "run", "--", "sh", "-c", "cat; echo to stderr >&2")
	if r.code != 0 || r.out != text || !strings.Contains(r.err, "to stderr") {
		t.Errorf("status %d, %d bytes of %d came back, stderr %q", r.code, len(r.out), len(text), r.err)
	}
}

func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	c := s.cmd("run", "--", "bash", "-c", `trap 'echo interrupted; exit 3' INT; until [ "$(stty size)" = "33 111" ]; do :; done; echo up; until [ "$(stty size)" = "44 99" ]; do :; done; stty size; while read -r -t 1 line || true; do :; done`)
	c.Env = append(c.Env, "TERM=xterm")
	f, err := pty.StartWithAttrs(c, &pty.Winsize{Rows: 33, Cols: 111}, &syscall.SysProcAttr{
		Setsid: true, Setctty: true, Credential: c.SysProcAttr.Credential,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer time.AfterFunc(limit, func() { c.Process.Kill() }).Stop()
	screen := &screen{f: f}
	screen.await(t, "up")
	seen := make(chan struct{})
	go resized(f, seen)
	screen.await(t, "44 99")
	close(seen)
	if _, err := f.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	screen.await(t, "interrupted")
	if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != 3 {
		t.Errorf("ended with %v, want status 3", c.ProcessState)
	}
}

// screen is what a terminal has shown.
// resized makes a window wider and narrower until that was seen: what docker attach is
// told before it listens, it never hears of.
func resized(f *os.File, seen chan struct{}) {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for wide := false; ; wide = !wide {
		size := pty.Winsize{Rows: 44, Cols: 99}
		if wide {
			size.Cols = 100
		}
		_ = pty.Setsize(f, &size) // whoever waits for it says so
		select {
		case <-seen:
			return
		case <-again.C:
		}
	}
}

type screen struct {
	f    *os.File
	seen strings.Builder
}

func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.seen.String(), text) {
		if err := s.read(); err != nil {
			t.Fatalf("the terminal ended without %q: %q", text, s.seen.String())
		}
	}
}

// more waits for more.
func (s *screen) more(t *testing.T) {
	t.Helper()
	if err := s.read(); err != nil {
		t.Fatalf("the terminal ended: %q", s.seen.String())
	}
}

func (s *screen) read() error {
	buf := make([]byte, 4096)
	n, err := s.f.Read(buf)
	s.seen.Write(buf[:n])
	return err
}

func TestInterruptWithoutTerminal(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	c := s.cmd("run", "--", "bash", "-c", `trap 'echo interrupted; exit 4' INT; echo up; while :; do read -r -t 1 line; done`)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(limit, func() { c.Process.Kill() }).Stop()
	f := &screen{f: out.(*os.File)}
	f.await(t, "up")
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	f.await(t, "interrupted")
	if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != 4 {
		t.Errorf("ended with %v, want status 4", c.ProcessState)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left after the run: %v", left)
	}
}

// Input is typed, output goes down a pipe: Ctrl-C is a signal to everybody in
// front of the terminal.
func TestInterruptWithPipedOutput(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	c := s.cmd("run", "--", "bash", "-c", `trap 'echo interrupted; exit 5' INT; read -r line; echo "got $line"; while :; do sleep 0.1; done`)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	c.Stdin = tty
	c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = true, true
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	defer time.AfterFunc(limit, func() { c.Process.Kill() }).Stop()
	f := &screen{f: out.(*os.File)}
	if _, err := ptmx.Write([]byte("typed\n")); err != nil {
		t.Fatal(err)
	}
	f.await(t, "got typed")
	if _, err := ptmx.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	f.await(t, "interrupted")
	if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != 5 {
		t.Errorf("ended with %v, want status 5", c.ProcessState)
	}
}

func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	r := s.sh("true")
	if r.code != 1 || !strings.Contains(r.err, "is up already") {
		t.Errorf("a second run: %v", r)
	}
	end()
	if r := s.sh("true"); r.code != 0 {
		t.Errorf("after the first has ended: %v", r)
	}
}

// R036: pins reach the agent through the gate's hosts file, and it sees its
// own environment only.
func TestPinsReachTheAgent(t *testing.T) {
	t.Parallel()
	s := project(t, strings.ReplaceAll(allowed, "api.allowed.test", "pins.allowed.test"))
	s.lab.DNS.Set("pins.allowed.test", lab.A("44.10.0.10", "44.10.0.11"))
	r := s.sh(`getent ahostsv4 pins.allowed.test | awk '{print $1}' | sort -u; cat /etc/resolv.conf; env | grep CORRAL_; ls /etc/corral`)
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, want := range []string{"44.10.0.10\n44.10.0.11\n", "nameserver 127.0.0.1\n", "CORRAL_SANDBOX=" + s.id, "README"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in %s", want, r.out)
		}
	}
	if strings.Contains(r.out, "CORRAL_SPEC") || strings.Contains(r.out, "gate.json") {
		t.Errorf("the agent sees corral's own documents: %s", r.out)
	}
}

// R055: a name that answers with private, loopback, link-local or host
// addresses stops bring-up, naming itself and the address.
func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	policy := func(name, private string) string {
		return "profile: shell\nname: private\negress:\n  allow:\n    - domain: " + name + "\n      liveness: false\n" + private
	}
	for i, c := range []struct{ addr, private, want string }{
		{"10.38.0.27", "", "10.38.0.27"},
		{"169.254.169.254", "true", "169.254.169.254"},
		{"127.0.0.1", "true", "127.0.0.1"},
		{"172.30.0.1", "true", "172.30.0.1"},
		{"0.0.0.0", "true", "0.0.0.0"},
	} {
		t.Run(c.addr, func(t *testing.T) {
			t.Parallel()
			name, private := fmt.Sprintf("mirror-%d.allowed.test", i), ""
			if c.private != "" {
				private = "      private: " + c.private + "\n"
			}
			s := project(t, policy(name, private))
			s.lab.DNS.Set(name, lab.A(c.addr))
			r := s.sh("echo started")
			if r.code != 1 || strings.Contains(r.out, "started") || !strings.Contains(r.err, name) || !strings.Contains(r.err, c.want) {
				t.Error(r)
			}
		})
	}
	s := project(t, policy("mirror.allowed.test", "      private: [10.38.0.0/16]\n"))
	s.lab.DNS.Set("mirror.allowed.test", lab.A("10.38.0.27"))
	if r := s.sh("getent hosts mirror.allowed.test"); r.code != 0 || !strings.Contains(r.out, "10.38.0.27") {
		t.Error(r)
	}
}
