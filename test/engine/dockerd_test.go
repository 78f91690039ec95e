package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// ownEngine is a Docker Engine that a test may break: with its own data, socket
// and network namespace, from which nothing leads anywhere.
type ownEngine struct {
	t      *testing.T
	dir    string
	ns     string
	socket string
	log    string
	daemon *exec.Cmd
}

// startEngine starts one and gives it the images of the shared engine that
// corral needs.
func startEngine(t *testing.T) *ownEngine {
	t.Helper()
	testenv.Require(t, "netns", "engine")
	dir, err := os.MkdirTemp("", "corral-dockerd-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o := &ownEngine{t: t, dir: dir, ns: filepath.Base(dir), socket: filepath.Join(dir, "docker.sock"), log: filepath.Join(dir, "log")}
	run(t, "ip", "netns", "add", o.ns)
	t.Cleanup(func() {
		o.stop()
		run(t, "sh", "-c", "awk -v d="+dir+" '$5 ~ \"^\" d {print $5}' /proc/self/mountinfo | sort -r | xargs -r umount -l")
		run(t, "ip", "netns", "del", o.ns)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	run(t, "ip", "-n", o.ns, "link", "set", "lo", "up")
	if err := os.Mkdir(o.data(), 0o711); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-t", "tmpfs", "-o", "size=2g,mode=711", "tmpfs", o.data()) // a disk that a test may fill
	o.start()
	return o
}

func (o *ownEngine) start() {
	o.t.Helper()
	log, err := os.OpenFile(o.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		o.t.Fatal(err)
	}
	defer log.Close()
	o.daemon = exec.Command("nsenter", "--net=/run/netns/"+o.ns, "dockerd", "--data-root", o.data(), "--exec-root", o.dir+"/exec",
		"--pidfile", o.dir+"/pid", "--host", "unix://"+o.socket, "--group", "docker", "--bridge", "none", "--cgroup-parent", filepath.Base(o.dir))
	o.daemon.Stdout, o.daemon.Stderr = log, log
	o.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := o.daemon.Start(); err != nil {
		o.t.Fatal(err)
	}
	if err := exec.Command("timeout", "60", "sh", "-c", "until docker --host unix://"+o.socket+" info >/dev/null 2>&1; do kill -0 "+fmt.Sprint(o.daemon.Process.Pid)+" || exit 1; done").Run(); err != nil {
		said, _ := os.ReadFile(o.log)
		o.t.Fatalf("dockerd: %v: %s", err, said)
	}
}

// stop ends it in order, and with it every container.
func (o *ownEngine) stop() {
	o.t.Helper()
	if o.daemon == nil {
		return
	}
	// nsenter has become dockerd.
	if err := o.daemon.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		o.t.Error(err)
	}
	_ = o.daemon.Wait()
	o.daemon = nil
}

func (o *ownEngine) data() string { return filepath.Join(o.dir, "data") }

// fill leaves no byte where the engine keeps images, containers and their logs.
func (o *ownEngine) fill() (free func()) {
	o.t.Helper()
	f, err := os.Create(filepath.Join(o.data(), "full"))
	if err != nil {
		o.t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for size := len(b); size > 0; {
		switch _, err = f.Write(b[:size]); {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			o.t.Fatal(err)
		}
	}
	return func() {
		o.t.Helper()
		if err := os.Remove(f.Name()); err != nil {
			o.t.Fatal(err)
		}
	}
}

// docker runs the docker command against it.
func (o *ownEngine) docker(args ...string) string {
	o.t.Helper()
	return strings.TrimSpace(run(o.t, append([]string{"docker", "--host", "unix://" + o.socket}, args...)...))
}

// inside runs f on a thread in its network namespace; programs that f starts and
// sockets that it opens are in it too.
func (o *ownEngine) inside(f func() error) error { return insideOf(o.ns, f) }

func insideOf(netns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := os.Open("/run/netns/" + netns)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// corral runs a command of a sandbox on this engine.
func (o *ownEngine) corral(s *sandbox, args ...string) (r result) {
	o.t.Helper()
	if err := o.inside(func() error { r = s.corral(args...); return nil }); err != nil {
		o.t.Fatal(err)
	}
	return r
}

// left is how many packets came from the corral bridge for elsewhere.
func (o *ownEngine) left() int {
	o.t.Helper()
	out := run(o.t, "ip", "netns", "exec", o.ns, "iptables", "-w", "-t", "raw", "-nvxL", "PREROUTING")
	m := regexp.MustCompile(`(?m)^\s*(\d+)\s+\d+\s.*\scorral0\s`).FindStringSubmatch(out)
	if m == nil {
		o.t.Fatalf("no counter in %s", out)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		o.t.Fatal(err)
	}
	return n
}

// restless is a project on this engine, where corral is installed, whose agent tries
// to get out all the time.
func (o *ownEngine) restless(shared *sandbox, name, more string) *sandbox {
	o.t.Helper()
	s := &sandbox{tb: o.t, bin: shared.bin, dir: filepath.Join(o.dir, "project"), uid: ownerUID, gid: ownerGID}
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(o.dir, "home"), "TERM=dumb", "DOCKER_HOST=unix://" + o.socket, probesOfTheLab(), "CORRAL_RESOLVERS=" + lab.NameServer.String()}
	s.own(s.dir, filepath.Join(o.dir, "home"))
	s.write("restless.pl", restless)
	s.write("corral.yaml", fmt.Sprintf("profile: shell\nname: %s\nmode: daemon\nprofile_options: {shell: {command: [perl, %s/restless.pl]}}\nmounts: {ro: [%s/restless.pl]}\n%s", name, s.dir, s.dir, more))
	s.id = plan.ID(name, filepath.Join(s.dir, "corral.yaml"))
	images := strings.Fields(docker(o.t, "images", "--format", "{{.Repository}}:{{.Tag}}", "corral-gate"))
	run(o.t, "sh", "-c", fmt.Sprintf("docker save %s %s | docker --host unix://%s load", testenv.BaseImage, strings.Join(images, " "), o.socket))
	if r := o.corral(s, "install"); r.code != 0 {
		o.t.Fatal(r)
	}
	return s
}

// An engine that is restarted leaves nothing behind that corral up does not
// bring right, in order, and no agent gets out meanwhile; a watch does it by
// itself, when the engine is back (R034).
func TestEngineRestart(t *testing.T) {
	t.Parallel()
	shared := project(t, nothing) // its engine has the images that these binaries make
	o := startEngine(t)
	s := o.restless(shared, "restart", "")
	run(t, "ip", "netns", "exec", o.ns, "iptables", "-w", "-t", "raw", "-I", "PREROUTING", "-i", "corral0", "-j", "DROP")
	o.docker("run", "--rm", "--network", "corral", testenv.BaseImage, "bash", "-c", "echo > /dev/udp/44.10.9.9/9")
	if o.left() == 0 {
		t.Fatal("positive control: a packet of nobody's was not counted, so nothing can be told")
	}
	before := o.left()
	if r := o.corral(s, "up", "--accept"); r.code != 0 {
		t.Fatal(r)
	}
	gate, agent := s.gate(), s.agent()

	o.stop()
	o.start()
	for _, c := range []string{gate, agent} {
		if state := o.docker("inspect", "--format", "{{.State.Status}}", c); state != "exited" {
			t.Errorf("%s is %s after the engine was restarted", c, state)
		}
	}
	if r := o.corral(s, "status"); r.code != 1 || !strings.Contains(r.out, "no network (gate is gone)") {
		t.Errorf("status: %v", r)
	}
	if r := o.corral(s, "verify"); r.code != 1 || !strings.Contains(r.err, "no network (gate is gone)") {
		t.Errorf("verify: %v", r)
	}
	if r := o.corral(s, "up"); r.code != 0 || !strings.Contains(r.err, "the gate is made anew (it is gone") {
		t.Errorf("up: %v", r)
	}
	if r := o.corral(s, "status"); r.code != 0 {
		t.Errorf("status after up: %v", r)
	}

	said := &lines{news: make(chan struct{}, 1)}
	var watch *exec.Cmd
	if err := o.inside(func() error { watch, _ = s.begin(said, "up", "--watch"); return nil }); err != nil {
		t.Fatal(err)
	}
	mark := said.await(t, 0, "watching")
	o.stop()
	o.start()
	mark = said.await(t, mark, "the gate is made anew")
	mark = said.await(t, mark, "is up\n")
	signal(t, watch.Process.Pid, syscall.SIGTERM)
	said.await(t, mark, "not watched any more")
	if err := watch.Wait(); err != nil {
		t.Error(err)
	}
	if r := o.corral(s, "status"); r.code != 0 {
		t.Errorf("status after the watch: %v", r)
	}

	// Nothing can be logged: the gate goes on, says how it is, and lets nothing out.
	free := o.fill()
	tries := tried(t, o, gate)
	if r := o.corral(s, "status"); r.code != 0 {
		t.Errorf("status with a full disk: %v", r)
	}
	deadline := time.Now().Add(30 * time.Second)
	for tried(t, o, gate) <= tries {
		if time.Now().After(deadline) {
			t.Fatal("no refusal was counted while the disk was full")
		}
	}
	free()
	if r := o.corral(s, "verify"); r.code != 0 {
		t.Errorf("verify after a full disk: %v", r)
	}
	if n := o.left() - before; n > 0 {
		t.Errorf("%d packets left", n)
	}
	o.wiped(s)
	if said := o.docker("logs", gate); !strings.Contains(said, spec.ReadyLine) {
		t.Errorf("the gate said %s", said)
	}
	if r := o.corral(s, "down"); r.code != 0 {
		t.Error(r)
	}
}

// tried is how often a gate has refused something.
func tried(t *testing.T, o *ownEngine, gate string) (n uint64) {
	t.Helper()
	var status spec.GateStatus
	if err := json.Unmarshal([]byte(o.docker("exec", gate, spec.GuestDir+"/bin/corral-gate", "status", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	for _, d := range status.Denied {
		n += d.Count
	}
	return n
}

// wiped is what a reload of the machine's firewall does to the engine's rules
// (R043): install says so, with what to do, and a sandbox reaches nobody all the
// same. Somebody without a gate does.
func (o *ownEngine) wiped(s *sandbox) {
	o.t.Helper()
	in := func(args ...string) {
		run(o.t, append([]string{"ip", "netns", "exec", o.ns, "iptables", "-w"}, args...)...)
	}
	in("-t", "raw", "-F", "PREROUTING") // neighbours may answer
	if r := o.corral(s, "install", "--check"); !strings.Contains(r.out, "ok   isolation") {
		o.t.Errorf("before: %v", r)
	}
	in("-P", "FORWARD", "ACCEPT")
	in("-F", "FORWARD")
	r := o.corral(s, "install", "--check")
	if r.code != 0 || !strings.Contains(r.out, "note isolation: a container on the corral network reached another one") || !strings.Contains(r.out, "sudo systemctl restart docker") {
		o.t.Errorf("after: %v", r)
	}
	neighbour := o.docker("run", "--detach", "--network", "corral", testenv.BaseImage, "perl", "-MSocket", "-e",
		`$|=1; socket(S,AF_INET,SOCK_STREAM,0); bind(S,sockaddr_in(8080,INADDR_ANY)); listen(S,8); print "up\n"; while(accept(C,S)){print "CALLED\n"; close C}`)
	defer o.docker("rm", "--force", neighbour)
	at := o.docker("inspect", "--format", "{{.NetworkSettings.Networks.corral.IPAddress}}", neighbour)
	call := "timeout 5 bash -c 'echo > /dev/tcp/" + at + "/8080'"
	o.docker("run", "--rm", "--network", "corral", testenv.BaseImage, "sh", "-c", "until "+call+"; do :; done") // the control
	heard := strings.Count(o.docker("logs", neighbour), "CALLED")
	if r := o.corral(s, "shell", "--", "sh", "-c", call); r.code == 0 || !strings.Contains(r.err, "refused") {
		o.t.Errorf("a neighbour was called: %v", r)
	}
	if now := strings.Count(o.docker("logs", neighbour), "CALLED"); now != heard || heard == 0 {
		o.t.Errorf("called %d times, %d of them by the control", now, heard)
	}
}
