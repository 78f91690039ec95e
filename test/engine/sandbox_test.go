// Package engine tests whole sandboxes on a real Docker Engine, as a person
// would use them: the real binaries, run by an unprivileged owner of a
// project. What leaves is judged by the lab's captures, never by the agent.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// The person whose projects these are: nobody of this machine's.
const (
	ownerUID = 12345
	ownerGID = 12346
)

// bridge is the corral network's interface on the host, where everything that
// gates send passes before masquerade.
const bridge = "corral0"

func TestMain(m *testing.M) {
	code := lab.Run(m)
	if binaries != "" {
		os.RemoveAll(binaries)
	}
	os.Exit(code)
}

// binaries is the directory of what built has built.
var binaries string

// built holds the binaries under test: the ones people get, and a build whose
// gate can be slowed and killed at each step.
var built = sync.OnceValues(func() (dirs [2]string, err error) {
	root, err := os.MkdirTemp("", "corral-bin-")
	if err != nil {
		return dirs, err
	}
	binaries = root
	if err := os.Chmod(root, 0o755); err != nil {
		return dirs, err
	}
	for i, tags := range []string{"", "failpoints"} {
		dirs[i] = filepath.Join(root, strconv.Itoa(i))
		for out, pkgs := range map[string][]string{
			dirs[i] + "/":                {"../../cmd/corral", "../../cmd/corral-gate", "../../cmd/corral-verify", "../../cmd/corral-fetch", "../../cmd/corral-bridge"},
			dirs[i] + "/corral-prisoner": {"../hostile/prisoner"},
		} {
			build := exec.Command("go", append([]string{"build", "-tags", tags, "-trimpath", "-buildvcs=false", "-o", out}, pkgs...)...)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if b, err := build.CombinedOutput(); err != nil {
				return dirs, fmt.Errorf("%w: %s", err, b)
			}
		}
	}
	return dirs, nil
})

// sandbox is one project of the owner's and the corral that they run.
type sandbox struct {
	tb  testing.TB
	lab *lab.Lab
	bin string // the directory of the binaries
	dir string // the project
	env []string
	id  string

	uid, gid uint32 // of the person
}

// project makes a project with an accepted policy, owned by an unprivileged
// person, on a guarded machine where corral is installed.
func project(t testing.TB, yaml string) *sandbox {
	t.Helper()
	s := cloned(t, 0, yaml)
	s.accept()
	return s
}

// slowed is project with a gate that can be stopped at its steps.
func slowed(t testing.TB, yaml string) *sandbox {
	t.Helper()
	s := cloned(t, 1, yaml)
	s.accept()
	return s
}

// accept says yes to the policy as it is.
func (s *sandbox) accept() {
	s.tb.Helper()
	if r := s.corral("render", "--accept"); r.code != 0 {
		s.tb.Fatalf("corral render --accept: %v", r)
	}
}

// cloned is a project whose policy nobody has accepted yet.
func cloned(t testing.TB, build int, yaml string) *sandbox {
	t.Helper()
	testenv.Require(t, "netns", "engine")
	l := lab.Use(t)
	dirs, err := built()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "corral-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	s := &sandbox{tb: t, lab: l, bin: dirs[build], dir: filepath.Join(root, "project"), uid: ownerUID, gid: ownerGID}
	s.env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + filepath.Join(root, "home"),
		"TERM=dumb",
		"CORRAL_RESOLVERS=" + lab.NameServer.String(),
		probesOfTheLab(),
	}
	s.own(root, s.dir, filepath.Join(root, "home"))
	s.write("corral.yaml", yaml)
	s.id = plan.ID(name(t, yaml), filepath.Join(s.dir, "corral.yaml"))
	s.installed()
	t.Cleanup(func() {
		if r := s.corral("down"); r.code != 0 {
			t.Errorf("corral down: %v", r)
		}
		s.dropImages()
		if left := s.containers(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return s
}

// install is corral install, once for all that do not alter the machine: each
// later one would look at it all again, and drop the gate image of the other
// build from under a test that runs beside.
var install struct {
	once sync.Once
	done bool
	said result
}

// installed is a machine where corral is installed.
func (s *sandbox) installed() {
	s.tb.Helper()
	install.once.Do(func() {
		dirs, _ := built()
		o := *s
		o.bin = dirs[0]
		install.said = o.corral("install")
		install.done = install.said.code == 0
	})
	if !install.done {
		s.tb.Fatalf("corral install: %v", install.said)
	}
}

// probesOfTheLab is the setting for the addresses that corral may dial.
func probesOfTheLab() string {
	p := lab.Probes()
	return fmt.Sprintf("CORRAL_PROBES=unlisted=%v,resolver=%v,metadata=%v,ipv6=%v", p.Unlisted, p.Resolver, p.Metadata, p.IPv6)
}

func name(t testing.TB, yaml string) string {
	p, err := policy.Parse("corral.yaml", []byte(yaml))
	if err != nil || p.Name == "" {
		return "project"
	}
	return p.Name
}

// write puts a file of the owner's into the project.
func (s *sandbox) write(name, content string) {
	s.tb.Helper()
	path := filepath.Join(s.dir, name)
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o644), os.Chown(path, int(s.uid), int(s.gid))); err != nil {
		s.tb.Fatal(err)
	}
}

// result is what became of a command.
type result struct {
	out, err string
	code     int
	pid      int
}

func (r result) String() string {
	return fmt.Sprintf("status %d\nstdout: %s\nstderr: %s", r.code, r.out, r.err)
}

// cmd is a corral command as the owner types it, in the project. It is ended,
// with its sandbox, when the test ends.
func (s *sandbox) cmd(args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(s.bin, "corral"), args...)
	c.Dir, c.Env = s.dir, s.env
	c.WaitDelay = 10 * time.Second // a docker command of its own may outlive it
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.gid, Groups: dockerGroups()}}
	return c
}

// another is a further project of the same machine, with a policy that names it.
func (s *sandbox) another(dir, yaml string) *sandbox {
	s.tb.Helper()
	o := *s
	o.dir = dir
	o.own(dir)
	o.write("corral.yaml", yaml)
	o.id = plan.ID(name(s.tb, yaml), filepath.Join(dir, "corral.yaml"))
	s.tb.Cleanup(o.dropImages)
	return &o
}

// own makes directories of the person's.
func (s *sandbox) own(dirs ...string) {
	s.tb.Helper()
	for _, d := range dirs {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755), os.Chown(d, int(s.uid), int(s.gid))); err != nil {
			s.tb.Fatal(err)
		}
	}
}

// dockerGroups lets the owner use the engine as a member of its group.
func dockerGroups() []uint32 {
	fi, err := os.Stat("/var/run/docker.sock")
	if err != nil {
		return nil
	}
	return []uint32{fi.Sys().(*syscall.Stat_t).Gid}
}

// limit bounds every command of a test.
const limit = 3 * time.Minute

func (s *sandbox) corral(args ...string) result { return s.corralIn("", args...) }

// corralIn runs a command to its end with text on its standard input.
func (s *sandbox) corralIn(stdin string, args ...string) result {
	s.tb.Helper()
	return s.ended(stdin, s.cmd(args...))
}

// asRoot runs a command to its end as root, who may look at what nobody else may.
func (s *sandbox) asRoot(args ...string) result {
	s.tb.Helper()
	c := s.cmd(args...)
	c.SysProcAttr = nil
	return s.ended("", c)
}

func (s *sandbox) ended(stdin string, c *exec.Cmd) result {
	s.tb.Helper()
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	if err := c.Start(); err != nil {
		s.tb.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { c.Process.Kill() })
	defer timer.Stop()
	err := c.Wait()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		s.tb.Fatal(err)
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode(), c.Process.Pid}
}

// begin starts a command whose output is read as it comes.
func (s *sandbox) begin(stderr io.Writer, args ...string) (*exec.Cmd, *screen) {
	s.tb.Helper()
	c := s.cmd(args...)
	c.Stderr = stderr
	out, err := c.StdoutPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.tb.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { c.Process.Kill() })
	s.tb.Cleanup(func() { timer.Stop() })
	return c, &screen{f: out.(*os.File)}
}

// sh runs a shell script as the agent.
func (s *sandbox) sh(script string) result {
	s.tb.Helper()
	return s.corral("run", "--", "bash", "-c", script)
}

// up starts an agent in the background and waits until it has said a line.
// The result ends it.
func (s *sandbox) up(script, line string) (end func()) {
	s.tb.Helper()
	end, _ = s.start(script, line)
	return end
}

// abandoned is up, whose corral is then killed and clears nothing up.
func (s *sandbox) abandoned(script, line string) {
	s.tb.Helper()
	end, process := s.start(script, line)
	fd, err := unix.PidfdOpen(process.Pid, 0)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer unix.Close(fd)
	if err := process.Kill(); err != nil {
		s.tb.Fatal(err)
	}
	for { // until it has ended: who looks before that finds a corral that lives
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); n == 1 {
			break
		} else if err != nil && err != unix.EINTR {
			s.tb.Fatal(err)
		}
	}
	go end()
}

func (s *sandbox) start(script, line string) (end func(), process *os.Process) {
	s.tb.Helper()
	c := s.cmd("run", "--", "bash", "-c", script)
	var errs bytes.Buffer
	c.Stderr = &errs
	in, err := c.StdinPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.tb.Fatal(err)
	}
	ended := make(chan struct{})
	end = sync.OnceFunc(func() {
		in.Close()
		timer := time.AfterFunc(limit, func() { c.Process.Kill() })
		defer timer.Stop()
		<-ended
		c.Wait()
	})
	s.tb.Cleanup(end)
	found := make(chan bool, 1)
	go func() {
		defer close(ended)
		var seen bytes.Buffer
		buf := make([]byte, 4096)
		told := false
		for {
			n, err := out.Read(buf)
			seen.Write(buf[:n])
			if !told && strings.Contains(seen.String(), line) {
				told = true
				found <- true
			}
			if err != nil {
				if !told {
					found <- false
				}
				return
			}
		}
	}()
	select {
	case ok := <-found:
		if !ok {
			end()
			s.tb.Fatalf("the agent ended without saying %q: %s", line, errs.String())
		}
		// The engine may learn later than we do that it has begun.
		run(s.tb, "timeout", "60", "sh", "-c", "until [ $(docker inspect --format '{{.State.Status}}' "+s.agent()+") != created ]; do :; done")
	case <-time.After(limit):
		s.tb.Fatalf("the agent did not say %q within %v", line, limit)
	}
	return end, c.Process
}

// docker runs the docker command and returns what it prints.
func docker(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := command.Run(ctx, nil, append([]string{"docker"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (s *sandbox) gate() string  { return "corral-" + s.id + "-main-gate" }
func (s *sandbox) agent() string { return "corral-" + s.id + "-main" }

// containers lists what exists of the sandbox.
func (s *sandbox) containers() []string {
	return strings.Fields(docker(s.tb, "ps", "--all", "--quiet", "--filter", "label=dev.corral.sandbox="+s.id))
}

func (s *sandbox) dropImages() {
	for _, tag := range strings.Fields(docker(s.tb, "images", "--format", "{{.Repository}}:{{.Tag}}", "corral-"+s.id+"-main")) {
		docker(s.tb, "rmi", "--no-prune", tag) // another test may be building on its layers
	}
}
