package verify

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	inetHeader = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	gateNames  = "   0: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 100 2 0 0\n"
	docker     = "   1: 0B00007F:A3D1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0 100 0 0 10 0\n"
	agents     = "   2: 0100007F:1000 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 102 1 0 100 0 0 10 0\n"
	stranger   = "   3: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 103 1 0 100 0 0 10 0\n"
	connected  = "   4: 0500A8C0:9C40 0100000A:0035 01 00000000:00000000 00:00000000 00000000 64999        0 104 2 0 0\n"
)

func TestParseInet(t *testing.T) {
	v6 := "   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     5        0 9 1 0\n"
	all, err := parseInet([]byte(inetHeader + gateNames + docker + v6))
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	for i, want := range []inetSocket{
		{netip.MustParseAddrPort("127.0.0.1:53"), udpUnbound, 0, "100"},
		{netip.MustParseAddrPort("127.0.0.11:41937"), tcpListen, 0, "101"},
		{netip.MustParseAddrPort("[::1]:22"), tcpListen, 5, "9"},
	} {
		if all[i] != want {
			t.Errorf("%+v, want %+v", all[i], want)
		}
	}
	for _, bad := range []string{"0: 0100007F:0035\n", "0: 0100007:0035 a 07 b c d 0 e\n", "0: 0100007F:10035 a 07 b c d 0 e\n", "0: 0100007F:0035 a xx b c d 0 e\n", "0: 0100007F:0035 a 07 b c d -1 e\n"} {
		if all, err := parseInet([]byte(inetHeader + bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, all)
		}
	}
}

func FuzzParseInet(f *testing.F) {
	f.Add([]byte(inetHeader + gateNames + docker + connected))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseInet(b) })
}

func TestParseUnix(t *testing.T) {
	all, err := parseUnix([]byte(unixHeader +
		"0000000000000000: 00000002 00000000 00010000 0001 01 123 @abstract name\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 124\n" +
		"0000000000000000: 00000002 00000000 00000000 0002 01 125 /dev/log\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 126 /run/x.sock\n" +
		// Names hold what they like.
		"0000000000000000: 00000002 00000000 00010000 0001 01 127 @x\n1: 2 3 zz 5 6 7 8\n\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 128 \n/docker.sock\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 129  a\r\n"))
	if err != nil || len(all) != 6 {
		t.Fatal(all, err)
	}
	for i, want := range []unixSocket{{"@abstract name", true, "123"}, {"/dev/log", true, "125"}, {"/run/x.sock", false, "126"},
		{"@x\n1: 2 3 zz 5 6 7 8\n", true, "127"}, {"\n/docker.sock", true, "128"}, {" a\r", true, "129"}} {
		if all[i] != want {
			t.Errorf("%+v, want %+v", all[i], want)
		}
	}
}

func TestParseUnixRefuses(t *testing.T) {
	for _, bad := range []string{"", "x\n", unixHeader + "x\n", unixHeader + "0: 00000003 00000000 00000000 0001 03 124\nx\n", unixHeader + "\n"} {
		if all, err := parseUnix([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, all)
		}
	}
}

func FuzzParseUnix(f *testing.F) {
	f.Add([]byte(unixHeader + "0: 00000002 00000000 00010000 0001 01 123 @a b\n"))
	f.Add([]byte(unixHeader + "0: 00000002 00000000 00010000 0001 01 123 \n0: 00000002 00000000 00010000 0001 01 124 \n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, _ := parseUnix(b)
		for _, s := range all {
			if s.path == "" {
				t.Error("a socket without a name")
			}
		}
	})
}

func TestGateControlUnreachable(t *testing.T) {
	c := spec.Check{Name: "gate-control-unreachable"}
	me := statusFile(1000, 1000, "", noCaps, 1, 2)
	base := func(more map[string]string) *env {
		files := map[string]string{
			"/proc/self/status": me,
			"/proc/1/status":    me,
			"/proc/1/fd/":       "",
			"/proc/net/tcp":     inetHeader + docker + agents,
			"/proc/net/udp":     inetHeader + gateNames + connected,
			"/proc/net/unix":    unixHeader + "0: 00000002 00000000 00010000 0001 01 123 /run/corral/gate.sock\n0: 00000002 00000000 00010000 0001 01 124 @held\n",
		}
		for name, content := range more {
			files[name] = content
		}
		e := tree(t, files)
		for _, inode := range []string{"102", "124"} {
			if err := os.Symlink("socket:["+inode+"]", e.path("/proc/1/fd/"+inode)); err != nil {
				t.Fatal(err)
			}
		}
		return e
	}
	want(t, base(nil), c, spec.OK, "")
	want(t, base(map[string]string{"/run/corral/": ""}), c, spec.Failed, "/run/corral exists")
	want(t, base(map[string]string{"/proc/net/tcp": inetHeader + stranger}), c, spec.Failed, "0.0.0.0:8080 listens, uid 0")
	want(t, base(map[string]string{"/proc/net/udp6": inetHeader + stranger}), c, spec.Failed, "udp6 0.0.0.0:8080")
	want(t, base(map[string]string{"/proc/net/unix": unixHeader + "0: 00000002 00000000 00010000 0001 01 123 @gate\n"}), c, spec.Failed, "abstract socket @gate")
	want(t, base(map[string]string{"/proc/7/status": statusFile(spec.WorkerUID, 0, "", noCaps, 1, 2)}), c, spec.Failed, "is the gate's")
	want(t, base(map[string]string{"/proc/net/tcp": "x\ny\n"}), c, spec.Untold, "socket table")

	// Somebody outside, of the agent's uid, in its network namespace: his listener is no
	// process's here, on the engine's resolver's address either.
	sidecar := "   5: 0100007F:1389 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 999 1 0 100 0 0 10 0\n"
	bridged := strings.Replace(sidecar, "0100007F", "0B00007F", 1)
	want(t, base(map[string]string{"/proc/net/tcp": inetHeader + agents + sidecar}), c, spec.Failed, "tcp 127.0.0.1:5001 listens as this user and is somebody else's: no process here holds it")
	want(t, base(map[string]string{"/proc/net/tcp": inetHeader + bridged}), c, spec.Failed, "tcp 127.0.0.11:5001")
	want(t, base(map[string]string{"/proc/net/udp": inetHeader + strings.Replace(sidecar, " 0A ", " 07 ", 1)}), c, spec.Failed, "udp 127.0.0.1:5001")
	want(t, base(map[string]string{"/proc/net/tcp": inetHeader + strings.Replace(sidecar, " 0A ", " 01 ", 1)}), c, spec.OK, "")
	aside := base(map[string]string{"/proc/net/tcp": inetHeader + sidecar})
	aside.aside = true
	want(t, aside, c, spec.OK, "")

	// A server whose first thread has ended holds what it held.
	two := strings.Replace(me, "Threads:\t1", "Threads:\t2", 1)
	headless := base(map[string]string{"/proc/net/tcp": inetHeader + sidecar, "/proc/9/status": "State:\tZ (zombie)\n" + two, "/proc/9/fd/": "",
		"/proc/9/task/9/status": "State:\tZ (zombie)\n" + two, "/proc/9/task/10/status": "State:\tS (sleeping)\n" + two, "/proc/9/task/10/fd/": ""})
	if err := os.Symlink("socket:[999]", headless.path("/proc/9/task/10/fd/3")); err != nil {
		t.Fatal(err)
	}
	want(t, headless, c, spec.OK, "")

	// What was there in one look and is not in the next is nobody's fault.
	for table, line := range map[string]string{"tcp": sidecar, "unix": "0: 00000002 00000000 00010000 0001 01 125 @passing\n"} {
		e := base(nil)
		e.settle = time.Second
		before, err := os.ReadFile(e.path("/proc/net/" + table))
		if err != nil {
			t.Fatal(err)
		}
		looks := 0
		f := e.lasting(t.Context(), func() (map[string]finding, error) {
			text := string(before)
			if looks++; looks == 1 {
				text += line
			}
			if err := os.WriteFile(e.path("/proc/net/"+table), []byte(text), 0o644); err != nil {
				return nil, err
			}
			wrong, err := e.foreignSockets(1000, 0)
			if looks == 1 && len(wrong) != 1 {
				t.Errorf("%s: %v", table, wrong)
			}
			return wrong, err
		})
		if f.result != spec.OK || looks != 2 {
			t.Errorf("%s: %+v after %d looks", table, f, looks)
		}
	}
}

// Of a process that lets nobody look, nobody can tell what it holds; where all that
// listens is accounted for it does not matter.
func TestHeldByTheUnseen(t *testing.T) {
	holder := exec.Command("setpriv", "--reuid", "12399", "--clear-groups", os.Args[0])
	holder.Env = append(os.Environ(), asHolder+"=1")
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	holder.Stderr = os.Stderr
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer in.Close()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		t.Error(lines.Text())
	}
}

// unseen runs as an ordinary user, with a child that is not dumpable and holds what
// no table of descriptors shows: it prints what is wrong.
func unseen() {
	complain := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	e := newEnv()
	e.settle = 10 * time.Millisecond
	uid := uint32(os.Getuid())
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), asHolder+"=child")
	out, _ := child.StdoutPipe()
	in, _ := child.StdinPipe()
	if err := child.Start(); err != nil {
		complain("%v", err)
		return
	}
	defer child.Wait()
	defer in.Close()
	name, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		complain("%v", err)
		return
	}
	name, at, _ := strings.Cut(strings.TrimSpace(name), " ")
	tell := func(serves uint16, name string) finding {
		return e.lasting(context.Background(), func() (map[string]finding, error) {
			all, err := e.foreignSockets(uid, serves)
			for key, f := range all {
				if !strings.Contains(f.detail, name) {
					delete(all, key)
				}
			}
			return all, err
		})
	}
	server, err := netip.ParseAddrPort(at)
	if err != nil {
		complain("%v", err)
		return
	}
	for _, tt := range []struct {
		name   string
		serves uint16
	}{{name, 0}, {name, server.Port()}, {at, 0}, {at, server.Port() + 1}} {
		told := tell(tt.serves, tt.name)
		if told.result != spec.Untold || !strings.Contains(told.detail, fmt.Sprintf("process %d (", child.Process.Pid)) || !strings.Contains(told.detail, "which lets nobody look") {
			complain("%s: %+v", tt.name, told)
		}
	}
	// A service that others call may be such a program: its port is planned.
	if told := tell(server.Port(), at); told.result != spec.OK {
		complain("%s, which is planned: %+v", at, told)
	}
}

// unseenChild holds an abstract socket and a TCP one until its standard input ends.
func unseenChild() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		panic(err)
	}
	name := fmt.Sprintf("@corral-test-%d", os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer server.Close()
	fmt.Println(name, server.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}
