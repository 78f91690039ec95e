package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/test/lab"
)

// headless, in its environment, makes this program end its first thread and run on.
const headless = "CORRAL_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) == "" {
		return
	}
	another := make(chan bool)
	go func() {
		another <- true
		unix.Pause()
	}()
	<-another
	unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // this thread is the first while packages are initialised
}

// enter runs a program of this machine's in namespaces of a container, the processes'
// among them, by the container's first process.
func enter(first int, namespaces []string, args ...string) (child string, end func(), err error) {
	enter := exec.Command("nsenter", slices.Concat([]string{"--target", fmt.Sprint(first)}, namespaces, args)...)
	enter.Env = append(os.Environ(), headless+"=1") // for this program alone
	if err := enter.Start(); err != nil {
		return "", nil, err
	}
	end = func() { enter.Process.Kill(); enter.Wait() }
	for late := time.Now().Add(limit); child == "" && err == nil && time.Now().Before(late); { // nsenter is outside, and waits for it
		var b []byte
		b, err = os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", enter.Process.Pid))
		child = strings.TrimSpace(string(b))
	}
	n, convErr := strconv.Atoi(child)
	if err = errors.Join(err, convErr); err != nil {
		return "", end, err
	}
	return child, func() { syscall.Kill(n, syscall.SIGKILL); enter.Wait() }, nil
}

// visit runs a thread of this program in the network namespace of a process.
func visit(first int) (end func(), err error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", first))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	entered, leave := make(chan error), make(chan bool)
	var thread func()
	thread = func() {
		runtime.LockOSThread() // for good: the thread ends with its goroutine
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			go thread() // another one: this holds the first
			<-leave
			return
		}
		entered <- unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		<-leave
	}
	go thread()
	err = <-entered
	return func() { close(leave) }, err
}

// lodge leaves a program of this machine's in the namespaces and the control groups of
// a container, by its first process: where docker exec leaves one of the container's.
func lodge(first int, args ...string) (end func(), err error) {
	child, end, err := enter(first, []string{"--net", "--ipc", "--uts", "--pid"}, args...)
	if err != nil {
		return end, err
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", first))
	if err != nil {
		return end, err
	}
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		in := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(f[1], "name="), f[2], "cgroup.procs")
		if _, err := os.Stat(in); errors.Is(err, fs.ErrNotExist) { // a hierarchy that is mounted nowhere
			continue
		}
		if err := os.WriteFile(in, []byte(child), 0); err != nil {
			return end, err
		}
	}
	return end, nil
}

// Containers and processes that somebody puts beside a sandbox after it was made are
// found from outside: the checker inside sees nothing of most. What corral itself
// does in a sandbox is none of them, and what is gone leaves nothing.
func TestOutsiders(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	end := s.up("echo up; read -r _", "up")
	defer end()
	image := docker(t, "inspect", "--format", "{{.Image}}", s.agent())
	user := docker(t, "inspect", "--format", "{{.Config.User}}", s.agent())
	stranger := func(args ...string) func(*testing.T) func() {
		return func(t *testing.T) func() {
			id := docker(t, append(append([]string{"run", "--detach", "--rm", "--label", "dev.corral.role=service", "--entrypoint", "sleep"}, args...), image, "infinity")...)
			return func() { docker(t, "rm", "--force", id) }
		}
	}
	inside := func(container, script string, args ...string) func(*testing.T) func() {
		return func(t *testing.T) func() {
			docker(t, append(append([]string{"exec", "--detach"}, args...), container, "bash", "-c", script)...)
			pid := ""
			run(t, "sh", "-c", "until docker top "+container+" -eo pid,args | grep -q '333 *$'; do :; done")
			for _, line := range strings.Split(docker(t, "top", container, "-eo", "pid,args"), "\n") {
				if strings.HasSuffix(strings.TrimSpace(line), "333") {
					pid, _, _ = strings.Cut(strings.TrimSpace(line), " ")
				}
			}
			return func() {
				run(t, "kill", pid)
				run(t, "sh", "-c", "while kill -0 "+pid+" 2>/dev/null; do :; done")
			}
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	guest := func(container func() string, namespaces []string, args ...string) func(*testing.T) func() {
		return func(t *testing.T) func() {
			_, end, err := enter(pid(t, container()), namespaces, args...)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Fatalf("as it was made: %v", r)
	}
	for _, tt := range []struct {
		name string
		make func(*testing.T) func()
		want string // a line that begins so
		in   string // and has this
		root bool   // whoever else proves may not look at it
	}{
		{"its processes, on the host's network", stranger("--network", "host", "--pid", "container:"+s.agent(), "--user", user, "--cap-drop", "ALL", "--security-opt", "seccomp=unconfined", "--volume", "/etc:/hostetc:ro"), "FAIL no-strangers: ", "has the processes of", false},
		{"its gate's network, as its user", stranger("--network", "container:"+s.gate(), "--user", user, "--cap-drop", "ALL"), "FAIL no-strangers: ", "has the network of", false},
		{"its gate's network, as root", stranger("--network", "container:"+s.gate(), "--user", "0"), "FAIL no-strangers: ", "has the network of", false},
		{"a process of root's", inside(s.agent(), "exec sleep 333", "--user", "0"), "FAIL processes-confined: ", "of 0:0", false},
		{"in the gate, as a question", func(t *testing.T) func() {
			end, err := lodge(pid(t, s.gate()), "bash", "-c", `exec -a "/opt/corral/bin/corral-gate status" sleep 333`)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}, "FAIL processes-expected: ", "did not go", false},
		{"in the gate's processes and memory", guest(s.gate, []string{"--pid", "--ipc"}, "sleep", "333"), "FAIL processes-expected: ", "namespace", true},
		{"root's without its first thread, to those inside", guest(s.agent, []string{"--net", "--ipc", "--uts", "--pid"}, program), "FAIL no-capabilities: ", "thread ", false},
		{"root's without its first thread", guest(s.agent, []string{"--net", "--ipc", "--uts", "--pid"}, program), "FAIL processes-confined: ", "thread ", true},
		{"one thread in its network", func(t *testing.T) func() {
			end, err := visit(pid(t, s.agent()))
			if err != nil {
				t.Fatal(err)
			}
			return end
		}, "FAIL processes-confined: ", "thread ", true},
	} {
		undo := tt.make(t)
		verify := s.corral
		if tt.root {
			verify = s.asRoot
		}
		r := verify("verify")
		undo()
		found := false
		for _, line := range strings.Split(r.out, "\n") {
			found = found || strings.HasPrefix(line, tt.want) && strings.Contains(line, tt.in)
		}
		if r.code != 1 || !found {
			t.Errorf("%s: %v", tt.name, r)
		}
	}
	undo := inside(s.agent(), "exec sleep 333")(t) // as corral shell does
	defer undo()
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("with another process of its user: %v", r)
	}
}
