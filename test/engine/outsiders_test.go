package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/test/lab"
)

// lodge leaves a program of this machine's in the namespaces and the control groups of
// a container, by its first process: where docker exec leaves one of the container's.
func lodge(first int, args ...string) (end func(), err error) {
	enter := exec.Command("nsenter", append([]string{"--target", fmt.Sprint(first), "--net", "--ipc", "--uts", "--pid"}, args...)...)
	if err := enter.Start(); err != nil {
		return nil, err
	}
	end = func() { enter.Process.Kill(); enter.Wait() }
	child := ""
	for late := time.Now().Add(limit); child == "" && err == nil && time.Now().Before(late); { // nsenter is outside, and waits for it
		var b []byte
		b, err = os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", enter.Process.Pid))
		child = strings.TrimSpace(string(b))
	}
	n, convErr := strconv.Atoi(child)
	if err = errors.Join(err, convErr); err != nil {
		return end, err
	}
	end = func() { syscall.Kill(n, syscall.SIGKILL); enter.Wait() }
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
	if r := s.corral("verify"); r.code != 0 {
		t.Fatalf("as it was made: %v", r)
	}
	for _, tt := range []struct {
		name string
		make func(*testing.T) func()
		want string // a line that begins so
		in   string // and has this
	}{
		{"its processes, on the host's network", stranger("--network", "host", "--pid", "container:"+s.agent(), "--user", user, "--cap-drop", "ALL", "--security-opt", "seccomp=unconfined", "--volume", "/etc:/hostetc:ro"), "FAIL no-strangers: ", "has the processes of"},
		{"its gate's network, as its user", stranger("--network", "container:"+s.gate(), "--user", user, "--cap-drop", "ALL"), "FAIL no-strangers: ", "has the network of"},
		{"its gate's network, as root", stranger("--network", "container:"+s.gate(), "--user", "0"), "FAIL no-strangers: ", "has the network of"},
		{"a process of root's", inside(s.agent(), "exec sleep 333", "--user", "0"), "FAIL processes-confined: ", "of 0:0"},
		{"in the gate, as a question", func(t *testing.T) func() {
			end, err := lodge(pid(t, s.gate()), "bash", "-c", `exec -a "/opt/corral/bin/corral-gate status" sleep 333`)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}, "FAIL processes-expected: ", "did not go"},
	} {
		undo := tt.make(t)
		r := s.corral("verify")
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
