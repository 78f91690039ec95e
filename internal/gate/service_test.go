package gate_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// become makes this process what an engine makes a service, and then the
// command. rights is a list of what is done differently: uid=N, keep=N (a
// capability in the bounding set), gaining (it may gain privileges).
func become(rights string, command []string) int {
	runtime.LockOSThread()
	uid, keep, gaining := agentUID, map[int]bool{}, false
	for word := range strings.FieldsSeq(strings.ReplaceAll(rights, ",", " ")) {
		name, value, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(value)
		switch name {
		case "uid":
			uid = n
		case "keep":
			keep[n] = true
		case "gaining":
			gaining = true
		}
	}
	check := func(what string, err error) {
		if err != nil {
			fmt.Println(what, err)
			os.Exit(125)
		}
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if !keep[c] {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
				check("bounding set:", err)
			}
		}
	}
	// As the engine's own filter does, it lets no vsock socket be made.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // its first argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_VSOCK, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	check("filter:", unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
	if !gaining {
		check("no_new_privs:", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	check("gid:", syscall.Setgroups(nil))
	check("gid:", syscall.Setresgid(uid, uid, uid))
	check("uid:", syscall.Setresuid(uid, uid, uid))
	check("exec:", syscall.Exec(command[0], command, os.Environ()))
	return 0
}

// beside is the life of a service's container in the gate's network: files and
// processes of its own, and the gate's names.
const beside = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir -p /opt/corral/bin
install -m 711 "$1" /opt/corral/bin/corral-verify
printf %s "$HOSTS" > /opt/hosts
printf %s "$RESOLV" > /opt/resolv.conf
mount --bind /opt/hosts /etc/hosts
mount --bind /opt/resolv.conf /etc/resolv.conf
unset HOSTS RESOLV
shift
exec "$@"
`

// serviceRun runs a command as a service beside the gate, and gives its output
// and status. Without s the names are those of no gate.
func (p *pair) serviceRun(s *gateProc, rights string, env []string, command ...string) (string, int) {
	p.t.Helper()
	binary, err := gateBinary()
	if err != nil {
		p.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	hosts, resolv := "127.0.0.1 localhost\n", "nameserver 127.0.0.1\n"
	if s != nil {
		if hosts, err = s.exec("cat", "/etc/hosts"); err != nil {
			p.t.Fatal(err, hosts)
		}
		if resolv, err = s.exec("cat", "/etc/resolv.conf"); err != nil {
			p.t.Fatal(err, resolv)
		}
	}
	args := append([]string{"--net=/run/netns/" + p.gate, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", beside, "sh",
		filepath.Join(filepath.Dir(binary), "corral-verify"), self, "service", rights}, command...)
	cmd := exec.Command("nsenter", args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOSTS=" + hosts, "RESOLV=" + resolv}, env...)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

const verifyBinary = "/opt/corral/bin/corral-verify"

// probesVar are the lab's probes.
var probesVar = []string{"CORRAL_PROBES=unlisted=" + canaryAddr + ",ipv6=" + canaryIPv6}

// Behind any gate that stands, everything that needs no policy can be proven
// from the service's own side, each refusal by the gate's own word; and the
// service's entry point lets its program run.
func TestAlone(t *testing.T) {
	t.Parallel()
	linked := document()
	linked.Links = []spec.Link{{Name: "db", Addr: netip.MustParseAddr("172.30.0.3"), Port: 5432}}
	sunk := document(allowed("api.allowed.test"))
	sunk.SinkNames = true
	hosted := document()
	hosted.HostPorts = []uint16{8001}
	for what, tt := range map[string]struct {
		doc  spec.Gate
		want []string
	}{
		"pinned": {document(allowed("api.allowed.test")), []string{"ok   names-only-pinned", "ok   resolves:api.allowed.test", "ok   gateway-closed"}},
		"links":  {linked, []string{"ok   names-only-pinned", "ok   resolves:db", "ok   link:db:5432", "ok   link-closed:db"}},
		"sink":   {sunk, []string{"ok   names-sink", "ok   resolves:api.allowed.test"}},
		"public": {public(), []string{"ok   public-only: refused on ports 80 and 443: 169.254.169.254 10.255.255.254 172.31.255.254 192.168.255.254 100.127.255.254 192.0.2.254\n"}},
		"host":   {hosted, []string{"skip gateway-closed: the gate lets host services through", "ok   resolves:corral-host"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			p.listen(netip.MustParseAddrPort(worldAddr + ":8001"))
			run(t, "ip", "-n", p.world, "addr", "add", "172.30.0.3/24", "dev", "eth0")
			p.listen(netip.MustParseAddrPort("172.30.0.3:5432"))
			s := p.start(tt.doc).ready()
			out, status := p.serviceRun(s, "", probesVar, verifyBinary, "alone")
			if status != 0 || strings.Contains(out, "FAIL") || !strings.Contains(out, " 0 failed\n") {
				t.Errorf("status %d:\n%s", status, out)
			}
			for _, w := range append(tt.want, "ok   gate-answers", "ok   no-capabilities", "ok   unlisted-host-blocked", "ok   dns-closed", "ok   metadata-blocked", "ok   ipv6-blocked", "ok   icmp-closed", "ok   udp-closed") {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
			if out, status := p.serviceRun(s, "", probesVar, verifyBinary, "handover", "--alone", "--", "sh", "-c", `echo "pid $$ uid $(id -u)"; exit 7`); status != 7 || out != "pid 1 uid 1000\n" {
				t.Errorf("status %d:\n%s", status, out)
			}
			for _, to := range []string{canaryAddr, "203.0.113.53", spec.SinkAddress.String(), "10.255.255.254", "172.31.255.254", "192.168.255.254", "100.127.255.254", "192.0.2.254"} {
				if n := len(p.sent(to)); n != 0 {
					t.Errorf("%d packets to %s, where nothing may go", n, to)
				}
			}
			if out, status := p.serviceRun(s, "", probesVar, verifyBinary, "alone", "--json"); status != 0 || !strings.HasPrefix(out, `{"version":1,"time":`) || !strings.Contains(out, `"failed":0,"ok":true`) {
				t.Errorf("status %d:\n%s", status, out)
			}
		})
	}
}

// Two gates with links to each other both come up before either service does: a
// gate says that the link is open and dials nobody, and whether somebody answers
// is found by the service.
func TestLinkToNobodyYet(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const peer = "172.30.0.3"
	run(t, "ip", "-n", p.world, "addr", "add", peer+"/24", "dev", "eth0")
	linked := document()
	linked.Links = []spec.Link{{Name: "db", Addr: netip.MustParseAddr(peer), Port: 5432}}
	s := p.start(linked).ready()
	s.saw("OK: link db: rule link-db-5432 lets " + peer + " port 5432 through, on a network of this gate; whether it answers was not tried")
	if n := len(p.sent(peer)); n != 0 {
		t.Errorf("%d packets to the peer at bring-up", n)
	}
	out, status := p.serviceRun(s, "", probesVar, verifyBinary, "alone")
	if status != 1 || strings.Count(out, "FAIL") != 1 || !strings.Contains(out, "FAIL link:db:5432: ") || !strings.Contains(out, "see that the service there is up") || !strings.Contains(out, "ok   link-closed:db") {
		t.Errorf("status %d:\n%s", status, out)
	}
	p.listen(netip.MustParseAddrPort(peer + ":5432"))
	if out, status := p.serviceRun(s, "", probesVar, verifyBinary, "alone"); status != 0 || !strings.Contains(out, "ok   link:db:5432\n") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// A service that no gate can hold is not started and is told why (R019), and so
// is one without a gate, or behind one that does not stand.
func TestNotFenced(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	bare := newPair(t)
	for what, tt := range map[string]struct {
		pair   *pair
		gate   *gateProc
		rights string
		env    []string
		status int
		want   string
		also   string // in what alone says, if it is not want
	}{
		"NET_RAW":         {p, s, "keep=13", probesVar, 1, "no-capabilities: this process (corral-verify) has NET_RAW (CapBnd); in compose.yaml: `cap_drop: [ALL]`", ""},
		"several":         {p, s, "keep=7,keep=12,keep=13,keep=19,keep=0", probesVar, 1, "has NET_RAW (CapBnd), NET_ADMIN (CapBnd), SETUID (CapBnd), SYS_PTRACE (CapBnd); ", ""},
		"privileges":      {p, s, "gaining", probesVar, 1, "no-new-privs: this process (corral-verify) may gain privileges; in compose.yaml: `security_opt: [no-new-privileges]`", ""},
		"root":            {p, s, "uid=0", probesVar, 1, "non-root: this process (corral-verify) runs as root", ""},
		"the worker":      {p, s, "uid=64999", probesVar, 1, "user-not-the-gates: this process (corral-verify) runs as uid 64999, which is the gate's own; choose another", ""},
		"the carrier":     {p, s, "uid=64998", probesVar, 1, "user-not-the-gates: this process (corral-verify) runs as uid 64998, which is the gate's own; choose another", ""},
		"no gate":         {bare, nil, "", probesVar, 1, "gate-answers: no gate is here: 127.0.0.1:53 does not answer: connection refused; in compose.yaml: `network_mode: service:GATE`, and `depends_on: {GATE: {condition: service_healthy}}`; a service is started anew when its gate was; or the gate is still starting: docker compose up --detach --wait", "FAIL unlisted-host-blocked: cannot tell: no gate tells what becomes of packets here, so none was sent"},
		"probes that are": {p, s, "", []string{"CORRAL_PROBES=x"}, 2, "CORRAL_PROBES: \"x\"", ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			out, status := tt.pair.serviceRun(tt.gate, tt.rights, tt.env, verifyBinary, "handover", "--alone", "--", "echo", "it ran")
			if status != tt.status || !strings.Contains(out, tt.want) || strings.Contains(out, "it ran") {
				t.Errorf("handover: status %d:\n%s", status, out)
			}
			out, status = tt.pair.serviceRun(tt.gate, tt.rights, tt.env, verifyBinary, "alone")
			if status != tt.status || !strings.Contains(out, tt.want) || !strings.Contains(out, tt.also) {
				t.Errorf("alone: status %d:\n%s", status, out)
			}
			if tt.pair == bare && len(bare.sent(canaryAddr)) > 0 {
				t.Error("something was sent where no gate is")
			}
		})
	}
}

// What a gate lets through that it should not is told, by its own word: here a
// rule that was slipped in.
func TestAloneSeesAHole(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	syscall.Kill(s.pid, syscall.SIGSTOP) // its watchdog would close everything
	defer syscall.Kill(s.pid, syscall.SIGCONT)
	run(t, "ip", "netns", "exec", p.gate, "iptables", "-w", "-I", "OUTPUT", "2", "-d", canaryAddr, "-j", "ACCEPT")
	out, status := p.serviceRun(nil, "", probesVar, verifyBinary, "alone")
	if status != 1 || !strings.Contains(out, "FAIL unlisted-host-blocked: tcp "+canaryAddr+":443 ") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if out, status := p.serviceRun(nil, "", probesVar, verifyBinary, "handover", "--alone", "--", "echo", "it ran"); status != 1 || strings.Contains(out, "it ran") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// A namespace without a way out needs no refusal; what has a way there still does.
func TestAloneWithoutAWayOut(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	run(t, "ip", "-n", p.gate, "route", "del", "default")
	s := p.start(document()).ready()
	out, status := p.serviceRun(s, "", nil, verifyBinary, "alone")
	if status != 0 || !strings.Contains(out, "ok   gateway-closed\n") || !strings.Contains(out, "ok   unlisted-host-blocked\n") {
		t.Errorf("status %d:\n%s", status, out)
	}
	if out, status := p.serviceRun(s, "", nil, verifyBinary, "handover", "--alone", "--", "sh", "-c", "exit 7"); status != 7 {
		t.Errorf("status %d:\n%s", status, out)
	}
}
