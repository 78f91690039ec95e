package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// always is a policy of an always-on sandbox that may talk to api.allowed.test.
func always(name, command string) string {
	return fmt.Sprintf("profile: shell\nname: %s\nmode: daemon\nprofile_options: {shell: {command: %s}}\negress: {allow: [{domain: api.allowed.test, ports: [443]}]}\n", name, command)
}

const forever = `[sh, -c, "echo up; exec sleep infinity"]`

// identity is what tells one life of a container from another.
func (s *sandbox) identity(container string) string {
	s.tb.Helper()
	return docker(s.tb, "inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container)
}

// must runs a command that has to succeed.
func (s *sandbox) must(args ...string) result {
	s.tb.Helper()
	r := s.corral(args...)
	if r.code != 0 {
		s.tb.Fatalf("corral %v: %v", args, r)
	}
	return r
}

// hexID is a container's identity, which no person is told.
var hexID = regexp.MustCompile(`[0-9a-f]{12,}`)

// A second up changes nothing; what is missing or wrong is brought up, and
// nothing else is touched; every heal says why in one line, without an ID
// (R031, R033). No container restarts by itself (R034).
func TestUp(t *testing.T) {
	t.Parallel()
	s := project(t, always("up", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	if r := s.corral("run"); r.code != 2 || !strings.Contains(r.err, "corral up") {
		t.Errorf("corral run of an always-on policy: %v", r)
	}
	if r := s.corral("shell", "--", "true"); r.code != 1 || !strings.Contains(r.err, "corral up") {
		t.Errorf("corral shell before up: %v", r)
	}
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, "not up") {
		t.Errorf("status before up: %v", r)
	}
	for _, command := range []string{"logs", "traffic"} {
		if r := s.corral(command); r.code != 1 || !strings.Contains(r.err, "hint: corral up starts it") {
			t.Errorf("%s before up: %v", command, r)
		}
	}
	if r := s.corral("up", "--wait"); r.code != 0 || !strings.HasSuffix(r.err, s.id+" is up\n") {
		t.Fatal(r)
	}
	gate, agent := s.identity(s.gate()), s.identity(s.agent())
	for _, c := range []string{s.gate(), s.agent()} {
		if got := docker(t, "inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", c); got != "no" && got != "" {
			t.Errorf("%s has restart policy %s", c, got)
		}
	}
	if r := s.corral("up"); r.code != 0 || !strings.HasSuffix(r.err, s.id+" is up already\n") || strings.Contains(r.err, "anew") {
		t.Error(r)
	}
	if s.identity(s.gate()) != gate || s.identity(s.agent()) != agent {
		t.Error("a second up touched what was well")
	}
	for _, c := range []struct {
		args []string
		said string
	}{{[]string{"status"}, "main: running"}, {[]string{"logs"}, "up"}, {[]string{"logs", "gate"}, spec.ReadyLine}, {[]string{"shell", "--", "echo", "beside"}, "beside\n"}, {[]string{"verify"}, ", 0 failed"}} {
		if r := s.corral(c.args...); r.code != 0 || !strings.Contains(r.out+r.err, c.said) {
			t.Errorf("corral %v: %v", c.args, r)
		}
	}
	// R027: whose network a service has, and of which class.
	if r := s.corral("status"); !regexp.MustCompile(`network +of ` + s.gate() + ` +egress pinned +namespace \d+`).MatchString(r.out) {
		t.Errorf("status: %v", r)
	}
	for _, c := range []struct {
		name   string
		break_ []string
		said   string // by up
		kept   string // a container that is not touched
	}{
		{"service killed", []string{"kill", s.agent()}, "main is started again (it was killed, status 137)", s.gate()},
		{"service removed", []string{"rm", "--force", s.agent()}, "main is made anew (it is gone)", s.gate()},
		{"service paused", []string{"pause", s.agent()}, "main was paused: it goes on", s.gate()},
		{"gate paused", []string{"pause", s.gate()}, "gate was paused: it goes on", s.agent()},
		{"gate removed", []string{"rm", "--force", s.gate()}, "the gate is made anew (it is gone), and main with it: what ran there was ended", ""},
		{"gate killed", []string{"kill", s.gate()}, "the gate is made anew (it is gone: it was killed, status 137)", ""},
		{"gate restarted", []string{"restart", "--time", "2", s.gate()}, "main is made anew (its gate was started again)", ""},
	} {
		before := ""
		if c.kept != "" {
			before = s.identity(c.kept)
		}
		docker(t, c.break_...)
		r := s.corral("up")
		if r.code != 0 || !strings.Contains(r.err, c.said) || hexID.MatchString(r.err) {
			t.Errorf("%s: up: %v", c.name, r)
		}
		if c.kept != "" && s.identity(c.kept) != before {
			t.Errorf("%s: %s was touched", c.name, c.kept)
		}
		if r := s.corral("status"); r.code != 0 {
			t.Errorf("%s: healed: %v", c.name, r)
		}
		noCapability(t, s)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Error(r)
	}
	if r := s.corral("down"); r.code != 0 || !strings.Contains(r.err, "is down") {
		t.Error(r)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// noCapability: the agent's container has no capability and no way to one,
// however it came up (R023).
func noCapability(t testing.TB, s *sandbox) {
	t.Helper()
	got := docker(t, "inspect", "--format", "{{json .HostConfig.CapAdd}} {{json .HostConfig.CapDrop}} {{.HostConfig.Privileged}} {{.Config.User}}", s.agent())
	if want := fmt.Sprintf(`null ["ALL"] false %d:%d`, s.uid, s.gid); got != want {
		t.Errorf("the agent's container: %s, want %s", got, want)
	}
}

// A changed policy makes anew what differs and nothing else; where only names
// differ nothing is made anew.
func TestUpAfterAChange(t *testing.T) {
	t.Parallel()
	s := project(t, always("change", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.lab.DNS.Set("new.allowed.test", lab.A("44.10.0.11"))
	s.must("up")
	gate, agent := s.identity(s.gate()), s.identity(s.agent())

	changed := strings.Replace(always("change", forever), "allow: [", "allow: [{domain: new.allowed.test, ports: [443]}, ", 1)
	s.write("corral.yaml", changed)
	if r := s.corral("up"); r.code != 2 || !strings.Contains(r.err, "--accept") {
		t.Errorf("a policy that grants more: %v", r)
	}
	if r := s.corral("up", "--accept"); r.code != 0 || !strings.Contains(r.err, "added    44.10.0.11:443") {
		t.Errorf("another name: %v", r)
	}
	if s.identity(s.gate()) != gate || s.identity(s.agent()) != agent {
		t.Error("another name made something anew")
	}
	if r := s.corral("status"); r.code != 0 || strings.Contains(r.out, "was changed") || !strings.Contains(r.out, "new.allowed.test") {
		t.Errorf("status: %v", r)
	}
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, "allowed:new.allowed.test:443") {
		t.Errorf("verify: %v", r)
	}

	changed += "resources: {pids: 333}\n"
	s.write("corral.yaml", changed)
	if r := s.corral("refresh", "--accept"); r.code != 2 || !strings.Contains(r.err, "differs from what is up: resources\n") || !strings.Contains(r.err, "corral up") {
		t.Errorf("a refresh for another limit: %v", r)
	}
	if r := s.corral("up", "--accept"); r.code != 0 || !strings.Contains(r.err, "main is made anew (another is asked for: resources): what ran there was ended") {
		t.Errorf("another limit: %v", r)
	}
	if s.identity(s.gate()) != gate {
		t.Error("another limit of the service made the gate anew")
	}
	if s.identity(s.agent()) == agent {
		t.Error("another limit of the service was ignored")
	}

	changed += fmt.Sprintf("host_services: [{name: x, port: %d}]\n", greet(t, "127.0.0.1:0").port)
	s.write("corral.yaml", changed)
	if r := s.corral("up", "--accept"); r.code != 0 || !strings.Contains(r.err, "the gate is made anew (another is asked for: host services), and main with it") {
		t.Errorf("a host service: %v", r)
	}
	if r := s.corral("status"); r.code != 0 {
		t.Error(r)
	}
	s.must("down")

	// A policy for one run is no policy for up.
	s.write("corral.yaml", "profile: shell\nname: change\n")
	if r := s.corral("up", "--accept"); r.code != 2 || !strings.Contains(r.err, "corral run") {
		t.Errorf("corral up of a run policy: %v", r)
	}
}

// Another terminal, another locale: nothing that the policy asks for.
func TestUpFromElsewhere(t *testing.T) {
	t.Parallel()
	s := project(t, always("elsewhere", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	agent := s.identity(s.agent())
	s.env = append(s.env, "TERM=xterm-256color", "LANG=de_CH.UTF-8", "COLORTERM=truecolor")
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "is up already") {
		t.Error(r)
	}
	if s.identity(s.agent()) != agent {
		t.Error("a service was made anew for another terminal")
	}
	// From another home it is somebody else's: it ends, and may come back.
	home := filepath.Join(filepath.Dir(s.dir), "elsewhere")
	if err := errors.Join(os.Mkdir(home, 0o700), os.Chown(home, ownerUID, ownerGID)); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "HOME="+home)
	if r := s.corral("down"); r.code != 0 || !strings.Contains(r.err, "it was not brought up from this home directory") || !strings.Contains(r.err, " is down\n") {
		t.Error(r)
	}
}

// What ends at once is told, with what it said of it.
func TestUpOfWhatEnds(t *testing.T) {
	t.Parallel()
	s := project(t, always("ends", `[sh, -c, "exit 3"]`))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	r := s.corral("up")
	if r.code == 0 { // it may have been seen to run
		docker(t, "wait", s.agent())
		r = s.corral("status")
	}
	if r.code != 1 || !strings.Contains(r.out+r.err, "it ended with status 3") {
		t.Error(r)
	}
	if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.err, "it ended with status 3") {
		t.Errorf("verify: %v", r)
	}
	// Perhaps for want of a name: that keeps no name closed.
	s.lab.DNS.Set("new.allowed.test", lab.A("44.10.0.11"))
	s.write("corral.yaml", strings.Replace(always("ends", `[sh, -c, "exit 3"]`), "allow: [", "allow: [{domain: new.allowed.test, ports: [443]}, ", 1))
	if r := s.corral("up", "--accept"); !strings.Contains(r.err, "added    44.10.0.11:443") {
		t.Errorf("another name: %v", r)
	}
}

// lines are what a command says as it comes.
type lines struct {
	mu   sync.Mutex
	all  bytes.Buffer
	news chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
	return l.all.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// await waits until a text has been said since mark, and returns the new mark.
func (l *lines) await(t testing.TB, mark int, text string) int {
	t.Helper()
	late := time.After(time.Minute)
	for {
		if i := strings.Index(l.String()[mark:], text); i >= 0 {
			return mark + i + len(text)
		}
		select {
		case <-l.news:
		case <-late:
			t.Fatalf("not said: %q after %q", text, l.String())
		}
	}
}

// What is started again needs what it was made with: a repository that needs
// other shields now is another. An editor that replaces the policy file ends
// nothing, and the next time that the service is made brings its bind back.
func TestUpOfARepository(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, always("repository", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.host("git init -q")
	const file = "corral.yaml"
	text := always("repository", forever) + "mounts: {rw: [" + s.dir + "]}\n"
	s.write(file, text)
	s.must("up", "--accept")
	docker(t, "kill", s.gate())
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "the gate is made anew (it is gone: it was killed, status 137), and main with it") {
		t.Errorf("all of it anew: %v", r)
	}
	docker(t, "rm", "--force", s.agent())
	s.must("up")
	agent := s.identity(s.agent())

	replace := func() { s.write("new.yaml", text); s.host("mv new.yaml " + file) }
	replace()
	for range 2 {
		if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "read-only bind in the sandbox is gone") || !strings.Contains(r.err, "is up already") || s.identity(s.agent()) != agent {
			t.Errorf("the policy file was replaced: %v", r)
		}
	}
	docker(t, "kill", s.agent())
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "main is made anew (the policy file was replaced") {
		t.Errorf("the service has ended: %v", r)
	}
	if r := s.corral("status"); r.code != 0 {
		t.Errorf("the bind is back: %v", r)
	}
	if r := s.corral("shell", "--", "sh", "-c", "test -e "+file+" && ! echo x >> "+file); r.code != 0 {
		t.Errorf("the policy file is writable: %v", r)
	}

	docker(t, "kill", s.agent())
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "main is started again (it was killed, status 137)") {
		t.Errorf("as it was: %v", r)
	}
	docker(t, "kill", s.agent())
	s.host("git init -q --bare .git/modules/lib")
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "main is made anew (other files are bound now: mounts)") {
		t.Errorf("another submodule: %v", r)
	}
	if r := s.corral("shell", "--", "sh", "-c", "test -e .git/modules/lib/config && ! echo x >> .git/modules/lib/config"); r.code != 0 {
		t.Errorf("the new submodule is not shielded: %v", r)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Error(r)
	}
}

// What cannot be made ends nothing that is up: a build that fails, and a host
// service that is not there, come before the end of the old ones, and no name of a policy that did not come to be is
// opened. A refresh that fails keeps nothing down.
func TestUpThatFails(t *testing.T) {
	t.Parallel()
	s := project(t, always("fails", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	s.lab.DNS.Set("new.allowed.test", lab.A("44.10.0.11"))
	gate, agent := s.identity(s.gate()), s.identity(s.agent())
	base := always("fails", forever)
	for _, c := range []struct{ more, said string }{
		{"image: {run: [\"false\"]}\nhost_services: [{name: x, port: 8098}]\n", "the gate is to be made anew (another is asked for: host services): "},
		{"host_services: [{name: x, port: 8098}]\n", "host service on port 8098: nothing listens on 127.0.0.1:8098 of this machine\n  hint: start what listens"},
		{"image: {run: [\"false\"]}\n", "building the image of service main failed"},
	} {
		s.write("corral.yaml", strings.Replace(base, "allow: [", "allow: [{domain: new.allowed.test, ports: [443]}, ", 1)+c.more)
		if r := s.corral("up", "--accept"); r.code != 1 || !strings.Contains(r.err, c.said) {
			t.Errorf("%s: %v", c.more, r)
		}
		if s.identity(s.gate()) != gate || s.identity(s.agent()) != agent {
			t.Fatalf("%s: something was made anew or ended", c.more)
		}
		if r := s.corral("status"); !strings.Contains(r.out, "was changed") || strings.Contains(r.out, "new.allowed.test") {
			t.Errorf("%s: an agent with its old rights gets new names: %v", c.more, r)
		}
	}

	// The gate does not take the new names, since one of them does not resolve.
	docker(t, "kill", s.agent())
	s.write("corral.yaml", strings.Replace(base, "allow: [", "allow: [{domain: none.allowed.test, ports: [443]}, ", 1))
	if r := s.corral("up", "--accept"); r.code == 0 || !strings.Contains(r.err, "main is started again") || !strings.Contains(r.err, "what was in force stays in force") {
		t.Errorf("a refresh that fails: %v", r)
	}
	if r := s.corral("status"); !strings.Contains(r.out, "main: running") || !strings.Contains(r.out, "was changed") {
		t.Errorf("status: %v", r)
	}
}

// A service that has not begun does not count as up: one that was made and
// never started is made anew, and one whose handover hangs is waited for.
func TestUpOfWhatWasNeverStarted(t *testing.T) {
	t.Parallel()
	s := project(t, always("never", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	// The same container, as a corral that was killed in between leaves it.
	labels := docker(t, "inspect", "--format", "{{range $k, $v := .Config.Labels}}--label={{$k}}={{$v}}\n{{end}}", s.agent())
	image := docker(t, "inspect", "--format", "{{.Config.Image}}", s.agent())
	docker(t, "rm", "--force", s.agent())
	args := append([]string{"create", "--name", s.agent(), "--network", "container:" + s.gate()}, strings.FieldsFunc(labels, func(r rune) bool { return r == '\n' })...)
	docker(t, append(args, image)...)
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "main is made anew (it was never started)") {
		t.Error(r)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Error(r)
	}
}

// What is always on is asked to end before it is taken away, by an up that makes
// it anew and by a down, which Ctrl-C cuts short.
func TestServicesAreAsked(t *testing.T) {
	t.Parallel()
	const script = `trap 'sleep 0.3; echo asked >> said; test -p heard || exit; echo > heard' TERM; echo up; while :; do sleep 0.1; done`
	s := cloned(t, 0, nothing)
	s.host("mkdir data")
	data := filepath.Join(s.dir, "data")
	policy := "profile: shell\nname: nothing\nmode: daemon\nmounts: {rw: [" + data + "]}\n" +
		fmt.Sprintf("profile_options: {shell: {command: [bash, -c, %q]}}\n", "cd "+data+"; "+script)
	asked := func() string {
		b, _ := os.ReadFile(filepath.Join(data, "said"))
		return string(b)
	}
	s.write("corral.yaml", policy)
	s.accept()
	s.must("up")
	s.write("corral.yaml", policy+"resources: {pids: 500}\n")
	if s.must("up"); asked() != "asked\n" {
		t.Errorf("made anew: %q", asked())
	}
	s.host("mkfifo data/heard")
	begun := time.Now()
	down, _ := s.begin(nil, "down")
	s.host("timeout 30 cat data/heard")
	if err := down.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	down.Wait()
	if took := time.Since(begun); took >= engine.Grace || asked() != "asked\nasked\n" || len(s.containers()) > 0 {
		t.Errorf("down: %v after %v: %q, left %v", down.ProcessState, took, asked(), s.containers())
	}
}

// A down does not come between an up and what that makes: it waits, and takes
// all of it.
func TestDownWaits(t *testing.T) {
	t.Parallel()
	s := project(t, always("waits", forever)+"hooks: {pre_launch: [cat fifo]}\n")
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.host("mkfifo fifo")
	upSaid, downSaid := &lines{news: make(chan struct{}, 1)}, &lines{news: make(chan struct{}, 1)}
	up, _ := s.begin(upSaid, "up")
	upSaid.await(t, 0, "hook: cat fifo")
	down, _ := s.begin(downSaid, "down")
	downSaid.await(t, 0, "waiting for another corral that is busy with "+s.id)
	s.host("echo > fifo")
	if err := up.Wait(); err != nil {
		t.Errorf("up: %v: %v", err, upSaid)
	}
	if err := down.Wait(); err != nil || !strings.Contains(downSaid.String(), s.id+" is down") {
		t.Errorf("down: %v: %v", err, downSaid)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// up --watch heals what ends, leaves the sandbox up when it is ended, and ends
// when somebody takes the sandbox down.
func TestUpWatch(t *testing.T) {
	t.Parallel()
	s := project(t, always("watch", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	said := &lines{news: make(chan struct{}, 1)}
	c, _ := s.begin(said, "up", "--watch")
	mark := said.await(t, 0, "watching "+s.id)
	docker(t, "kill", s.gate())
	mark = said.await(t, mark, "the gate is made anew (it is gone: it was killed, status 137)")
	mark = said.await(t, mark, s.id+" is up\n")
	docker(t, "rm", "--force", s.agent())
	mark = said.await(t, mark, "main is made anew (it is gone)")
	mark = said.await(t, mark, s.id+" is up\n")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said.await(t, mark, "not watched any more")
	if err := c.Wait(); err != nil {
		t.Errorf("a watch that was asked to end: %v", err)
	}
	if r := s.corral("status"); r.code != 0 {
		t.Errorf("after the watch: %v", r)
	}

	// Whoever began it said yes to the policy of then, and to no other.
	said = &lines{news: make(chan struct{}, 1)}
	c, _ = s.begin(said, "up", "--watch", "--accept")
	mark = said.await(t, 0, "watching "+s.id)
	s.write("corral.yaml", always("watch", forever)+"hooks: {pre_launch: [touch X]}\n")
	docker(t, "rm", "--force", s.agent())
	mark = said.await(t, mark, "it grants more than was accepted")
	if _, err := os.Stat(filepath.Join(s.dir, "X")); err == nil {
		t.Error("a hook that nobody accepted ran")
	}
	// What cannot be healed was not taken down: it is tried again, also where
	// nothing is left.
	s.write("corral.yaml", "nonsense\n")
	docker(t, "rm", "--force", s.gate())
	mark = said.await(t, mark, "corral.yaml:1:1")
	s.write("corral.yaml", always("watch", forever))
	mark = said.await(t, mark, s.id+" is up\n")
	// Where nothing is up nobody says that it stays up.
	docker(t, "rm", "--force", s.agent(), s.gate())
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said.await(t, mark, "is not watched any more, and is not well: nothing of it is up")
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 1 {
		t.Errorf("a watch of what is not well ends with %d", code)
	}

	said = &lines{news: make(chan struct{}, 1)}
	c, _ = s.begin(said, "up", "--watch")
	mark = said.await(t, 0, "watching "+s.id)
	s.must("down")
	said.await(t, mark, "was taken down")
	if err := c.Wait(); err != nil {
		t.Errorf("a watch of what was taken down: %v", err)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("the watch brought it up again: %v", left)
	}
}

// Until all of it was up once a watch waits for names, with the hooks behind it; a
// down ends the wait, and what takes a person does, with its status (R124).
func TestUpWatchWaits(t *testing.T) {
	t.Parallel()
	// A name of its own: tests share the name server.
	yaml := strings.ReplaceAll(always("late", forever), "api.allowed.test", "late.allowed.test") + "hooks: {pre_launch: [echo ran >> ran]}\n"
	s := project(t, yaml)
	begin := func() (*exec.Cmd, *lines, int) {
		t.Helper()
		said := &lines{news: make(chan struct{}, 1)}
		c, _ := s.begin(said, "up", "--watch")
		mark := said.await(t, 0, "the gate stayed closed: late.allowed.test")
		return c, said, said.await(t, mark, s.id+" is not up: it is tried again until it is")
	}
	c, said, mark := begin()
	mark = said.await(t, mark, "the next try is in") // more than once by then
	if left := docker(t, "ps", "--quiet", "--filter", "name="+s.agent()); left != "" {
		t.Errorf("an agent runs behind a gate that is closed: %s", left)
	}
	s.lab.DNS.Set("late.allowed.test", lab.A("44.10.0.10"))
	mark = said.await(t, mark, s.id+" is up\n")
	said.await(t, mark, "watching "+s.id)
	if ran, err := os.ReadFile(filepath.Join(s.dir, "ran")); string(ran) != "ran\n" {
		t.Errorf("hooks ran %q: %v", ran, err)
	}
	if n := strings.Count(said.String(), "the gate stayed closed"); n != 1 {
		t.Errorf("told %d times: %s", n, said)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Error(r)
	}
	s.must("down")
	if err := c.Wait(); err != nil {
		t.Errorf("taken down: %v: %s", err, said)
	}

	s.lab.DNS.Set("late.allowed.test", lab.Rcode(dns.RcodeServerFailure))
	c, said, mark = begin()
	if r := s.must("down"); !strings.Contains(r.err, "nothing of") {
		t.Error(r)
	}
	said.await(t, mark, "was taken down")
	if err := c.Wait(); err != nil {
		t.Errorf("taken down while it waited: %v", err)
	}
	c, said, mark = begin() // as systemctl stop ends it: the unit has not failed
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said.await(t, mark, s.id+" is not tried any more, and is not up: ")
	if err := c.Wait(); err != nil {
		t.Errorf("asked to end while it waited: %v: %s", err, said)
	}
	c, said, mark = begin()
	s.write("corral.yaml", yaml+"resources: {pids: 4000}\n")
	said.await(t, mark, "it grants more than was accepted")
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 2 || len(s.containers()) > 0 {
		t.Errorf("a policy that grants more: status %d, up %v", code, s.containers())
	}
}

// A machine that has no name server yet, as one that boots, is waited for: what is
// invalid on another day passes by itself here (R124).
func TestUpWatchBeforeThereIsANameServer(t *testing.T) {
	t.Parallel()
	s := project(t, always("boots", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	file := filepath.Join(filepath.Dir(s.dir), "resolv.conf")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.env = slices.DeleteFunc(s.env, func(v string) bool { return strings.HasPrefix(v, "CORRAL_RESOLVERS=") })
	booting := func(args ...string) *exec.Cmd {
		c := s.cmd()
		c.Path, c.SysProcAttr = "/bin/sh", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		groups := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(dockerGroups())), ","), "[]")
		c.Args = append([]string{"sh", "-c", `mount --make-rprivate / && mount --bind "$0" /etc/resolv.conf && { ! test -e /run/systemd/resolve || mount -t tmpfs none /run/systemd/resolve; } &&
			exec setpriv --reuid "$1" --regid "$2" --groups "$3" "$4" up "$5"`,
			file, fmt.Sprint(s.uid), fmt.Sprint(s.gid), groups, filepath.Join(s.bin, "corral")}, args...)
		return c
	}
	if r := s.ended("", booting("--wait")); r.code != 2 || !strings.Contains(r.err, "name server") {
		t.Errorf("without a watch: %v", r)
	}
	said := &lines{news: make(chan struct{}, 1)}
	c := booting("--watch")
	c.Stderr = said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
	mark := said.await(t, 0, s.id+" is not up: it is tried again until it is")
	if err := os.WriteFile(file, []byte("nameserver "+lab.NameServer.String()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mark = said.await(t, mark, "watching "+s.id)
	signal(t, c.Process.Pid, syscall.SIGTERM)
	said.await(t, mark, "stays up")
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// Hooks run when an always-on sandbox starts from nothing and all was told, and never
// otherwise: whatever heals it, what the agent changed stays to be told.
func TestUpHooks(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, always("hooks", forever))
	yaml := always("hooks", forever) + "mounts: {rw: [" + s.dir + "/work]}\nhooks: {pre_launch: [sh work/backup.sh]}\n"
	s.write("corral.yaml", yaml)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.own(filepath.Join(s.dir, "work"))
	script, witness := filepath.Join(s.dir, "work", "backup.sh"), filepath.Join(s.dir, "WITNESS")
	s.write("work/backup.sh", "true\n")
	const hook, untold = "hook: sh work/backup.sh", "hooks.pre_launch did not run: an earlier start was not ended by corral down"
	up := func(want string) {
		t.Helper()
		if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, want) || strings.Contains(r.err, hook) || strings.Contains(r.err, untold) != (want == untold) {
			t.Errorf("want %s: %v", want, r)
		}
		if _, err := os.Stat(witness); err == nil {
			t.Fatalf("%s: a hook ran", want)
		}
	}

	said := &lines{news: make(chan struct{}, 1)}
	c, _ := s.begin(said, "up", "--watch", "--accept")
	mark := said.await(t, 0, "watching "+s.id)
	for _, want := range []string{"the agent may rewrite what a command on this machine names, which runs as you: work/backup.sh", hook} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("not said: %s in %s", want, said)
		}
	}
	docker(t, "exec", s.agent(), "sh", "-c", "echo 'touch WITNESS; exit 3' > "+script+"")
	docker(t, "kill", s.agent())
	mark = said.await(t, mark, "main is started again")
	said.await(t, mark, s.id+" is up\n")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if strings.Count(said.String(), "hook:") != 1 {
		t.Errorf("a watch runs hooks: %s", said)
	}
	up("is up already")
	docker(t, "kill", s.agent())
	up("main is started again")
	docker(t, "rm", "--force", s.agent())
	up("work/backup.sh: changed")
	s.write("corral.yaml", strings.Replace(yaml, "name: hooks", "name: renamed", 1))
	if r := s.corral("up", "--accept"); r.code != 0 || !strings.Contains(r.err, s.id+" ends: the policy has another name now") || !strings.Contains(r.err, "work/backup.sh: changed") || strings.Contains(r.err, hook) {
		t.Errorf("another name: %v", r)
	}
	s.dropImages()
	s.id = strings.Replace(s.id, "hooks", "renamed", 1)
	docker(t, "rm", "--force", s.agent(), s.gate())
	up(untold)
	if r := s.must("down"); !strings.Contains(r.err, "work/backup.sh: changed") {
		t.Errorf("down does not tell it: %v", r)
	}
	// All was told. And where a hook fails nothing was begun: the next up runs them.
	for range 2 {
		if r := s.corral("up"); r.code != 1 || !strings.Contains(r.err, hook) || len(s.containers()) > 0 {
			t.Errorf("after a down: %v", r)
		}
	}
	if _, err := os.Stat(witness); err != nil {
		t.Error(err)
	}
}

// A run that was cut short has told nothing: the next one does, and with hooks does
// nothing else.
func TestHooksAfterARunThatWasCutShort(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, "profile: shell\nname: cut\nhooks: {pre_launch: [sh ./backup.sh]}\n")
	s.write("backup.sh", "true\n")
	s.accept()
	s.abandoned("echo 'touch WITNESS; exit 3' > backup.sh; echo x > .envrc; echo up", "up")
	docker(t, "wait", s.agent())
	r := s.corral("run", "--", "true")
	if r.code != 1 || !strings.Contains(r.err, "an earlier run was cut short") || !strings.Contains(r.err, ".envrc") || !strings.Contains(r.err, "the commands of hooks.pre_launch did not run") || strings.Contains(r.err, "hook:") {
		t.Errorf("the next run: %v", r)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "WITNESS")); err == nil {
		t.Error("it ran the hook")
	}
	if r := s.corral("run", "--", "true"); r.code != 1 || !strings.Contains(r.err, "hook: sh ./backup.sh\n") || !strings.Contains(r.err, "exit status 3") {
		t.Errorf("the one after it: %v", r)
	}
}
