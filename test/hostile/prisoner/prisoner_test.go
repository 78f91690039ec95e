package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// asMain makes this test binary the prisoner.
const asMain = "PRISONER_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) == "hang" {
		if err := endAfter(10 * time.Millisecond); err != nil {
			panic(err)
		}
		<-time.After(time.Minute)
		os.Exit(0)
	}
	if os.Getenv(asMain) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestAttemptsAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attempts {
		name := a.group + "/" + a.name
		if seen[name] || a.group == "" || a.name == "" || a.proves == "" || a.try == nil {
			t.Errorf("%s: twice or incomplete", name)
		}
		seen[name] = true
	}
	if len(seen) < 40 {
		t.Errorf("only %d attempts", len(seen))
	}
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		err            error
		judge, refusal outcome
	}{
		{nil, escaped, escaped},
		{unix.EPERM, blocked, blocked},
		{unix.EACCES, blocked, blocked},
		{unix.ENOSYS, missing, missing},
		{unix.EAFNOSUPPORT, missing, missing},
		{unix.EINVAL, blocked, escaped}, // it looked at the arguments: the right was there
		{unix.EBUSY, blocked, escaped},
		{errors.New("unheard of"), blocked, escaped},
	} {
		if got := judge(tt.err); got.outcome != tt.judge {
			t.Errorf("judge %v: %v", tt.err, got)
		}
		if got := refusal(tt.err); got.outcome != tt.refusal {
			t.Errorf("refusal %v: %v", tt.err, got)
		}
	}
	if got := worst(held("a"), out("b"), absent("c")); got.detail != "b" {
		t.Errorf("worst: %v", got)
	}
	if got := worst(absent("a"), held("b"), absent("c")); got.detail != "b" {
		t.Errorf("worst: %v", got)
	}
	if got := worst(); got != noTarget {
		t.Errorf("worst of nothing: %v", got)
	}
}

func TestChoose(t *testing.T) {
	all := []attempt{{group: "a", name: "x"}, {group: "b", name: "y"}, {group: "a", name: "z"}}
	if got := grouped(all); got[0].name != "x" || got[1].name != "z" || got[2].name != "y" {
		t.Errorf("grouped: %v", got)
	}
	if got, err := choose(all, ""); err != nil || len(got) != 3 {
		t.Errorf("all: %v %v", got, err)
	}
	if got, err := choose(all, "b/y,a/x"); err != nil || len(got) != 2 || got[0].name != "y" {
		t.Errorf("two: %v %v", got, err)
	}
	for _, bad := range []string{"a/y", "a", "a/x,"} {
		if _, err := choose(all, bad); err == nil {
			t.Errorf("%q is one", bad)
		}
	}
}

// A known limit is neither an escape nor blocked, and does not hide an escape.
func TestKnown(t *testing.T) {
	if got := worst(held("a"), limit("b"), absent("c"), held("d")); got.detail != "b" {
		t.Errorf("worst: %v", got)
	}
	if got := worst(limit("a"), out("b")); got.detail != "b" {
		t.Errorf("worst: %v", got)
	}
}

func TestStrayed(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	link := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	if got := strayed(link, dir); got.outcome != blocked {
		t.Errorf("a directory under its name: %v", got)
	}
	for _, to := range []string{dir + " (deleted)", "/", t.TempDir()} {
		if got := strayed(link, to); got.outcome != escaped {
			t.Errorf("a directory that is called %s: %v", to, got)
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if got := strayed("/proc/self/fd/"+strconv.Itoa(pair[0]), "socket:[1]"); got.outcome != escaped {
		t.Errorf("a socket: %v", got)
	}
}

func TestSharedMounts(t *testing.T) {
	const private = "36 35 98:0 / /a rw,noatime - ext3 /dev/root rw\n"
	for in, want := range map[string]string{
		private: "",
		private + "37 35 98:0 / /b rw shared:1 - ext3 /dev/root rw\n":          "/b",
		"37 35 98:0 / /b rw unbindable master:1 - ext3 /dev/root rw\n":         "",
		"37 35 98:0 / /b rw master:1 shared:2 - ext3 /dev/root rw\n":           "/b",
		"38 35 98:0 / /c rw - ext3 shared:1 rw\n" + private + "39 rubbish\n\n": "",
	} {
		if _, got := sharedMounts(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The smallest program runs where nothing keeps it from it, so that its end in
// a sandbox tells something.
func TestThirtyTwoBit(t *testing.T) {
	if got := thirtyTwoBit(t.Context(), &cell{}); got.outcome == blocked {
		t.Errorf("%v", got)
	}
}

// The kernel ends what does not end by itself.
func TestEndAfter(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "hang")
	cmd.Env = append(os.Environ(), asMain+"=hang")
	err = cmd.Run()
	exited := (*exec.ExitError)(nil)
	if !errors.As(err, &exited) || exited.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("%v", err)
	}
}

func TestChecksum(t *testing.T) {
	b := []byte{0x45, 0, 0, 0x3c, 0x1c, 0x46, 0x40, 0, 0x40, 6, 0, 0, 0xac, 0x10, 0x0a, 0x63, 0xac, 0x10, 0x0a, 0x0c}
	if got := checksum(b); got != 0xb1e6 {
		t.Errorf("%#x", got)
	}
}

// A datagram that finds a socket is told from one that finds none.
func TestDelivered(t *testing.T) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(conn.LocalAddr().String())
	if !delivered(to) {
		t.Error("somebody: not delivered")
	}
	conn.Close()
	if delivered(to) {
		t.Error("nobody: delivered")
	}
}

func TestDialCountsAnswersAndListeners(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(l.Addr().String())
	if got := tcp(t.Context(), to); got.outcome != escaped {
		t.Errorf("a listener: %v", got)
	}
	l.Close()
	if got := tcp(t.Context(), to); got.outcome != blocked || !strings.Contains(got.detail, "refused") {
		t.Errorf("nobody: %v", got)
	}
	if got := tcp(t.Context(), netip.AddrPort{}); got != noTarget {
		t.Errorf("no target: %v", got)
	}
	if got := udp(t.Context(), to, "x"); got.outcome != blocked {
		t.Errorf("a datagram that goes nowhere: %v", got)
	}
}

func TestRun(t *testing.T) {
	defer func(saved []attempt) { attempts = saved }(attempts)
	attempts = []attempt{
		{"a", "slow", "order is kept", func(ctx context.Context, _ *cell) result { return held("no") }},
		{"a", "gone", "nothing", func(context.Context, *cell) result { return absent("no such thing") }},
		{"a", "idle", "nothing", func(context.Context, *cell) result { return noTarget }},
	}
	const targets = `{"unlisted":"198.51.100.1","names":["x.test"]}`
	var stdout, stderr bytes.Buffer
	if status := run(nil, strings.NewReader(targets), &stdout, &stderr); status != 0 ||
		stdout.String() != "blocked a/slow: no\nabsent  a/gone: no such thing\n1 blocked, 0 escaped, 0 known, 1 absent\n" {
		t.Errorf("status %d, %s%s", status, &stdout, &stderr)
	}
	attempts = append(attempts, attempt{"b", "out", "a hole", func(_ context.Context, c *cell) result { return out("to %v", c.Unlisted) }})
	stdout.Reset()
	if status := run([]string{"--json"}, strings.NewReader(targets), &stdout, &stderr); status != 1 ||
		!strings.HasSuffix(stdout.String(), `{"group":"b","name":"out","proves":"a hole","outcome":"escaped","detail":"to 198.51.100.1"}`+"\n") {
		t.Errorf("status %d, %s", status, &stdout)
	}
	for _, bad := range []string{"", `{"unlisted":"x"}`, `{"unlistd":""}`} {
		if status := run(nil, strings.NewReader(bad), &stdout, &stderr); status != 2 {
			t.Errorf("%q: status %d", bad, status)
		}
	}
}

func TestParseInet(t *testing.T) {
	got := parseInet("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n" +
		"   1: 0B00007F:A3D1 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 101\n" +
		"   2: rubbish\n" +
		"   3: 0000000000000000FFFF00000100007F:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102\n")
	if len(got) != 2 || got[1] != (inetSocket{netip.MustParseAddrPort("127.0.0.1:22"), true, 0}) || got[0] != (inetSocket{netip.MustParseAddrPort("127.0.0.11:41937"), true, 1000}) {
		t.Errorf("%+v", got)
	}
}

func TestQuestion(t *testing.T) {
	if got := question("a.bc.", typeA); got != "pr\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x02bc\x00\x00\x01\x00\x01" {
		t.Errorf("%q", got)
	}
}

func TestParsePacket(t *testing.T) {
	v4 := func(proto byte, fragment byte, payload ...byte) []byte {
		b := make([]byte, 20, 40)
		b[0], b[7], b[9] = 0x45, fragment, proto
		copy(b[16:], []byte{198, 51, 100, 1})
		return append(b, payload...)
	}
	a := netip.MustParseAddr("198.51.100.1")
	v6 := make([]byte, 44)
	v6[6] = unix.IPPROTO_UDP
	b := netip.MustParseAddr("2001:db8::1").As16()
	copy(v6[24:], b[:])
	v6[43] = 53
	for _, tt := range []struct {
		ethertype uint16
		packet    []byte
		want      destination
	}{
		{unix.ETH_P_IP, v4(unix.IPPROTO_TCP, 0, 0, 1, 1, 187), destination{Proto: "tcp", Addr: a, Port: 443}},
		{unix.ETH_P_IP, v4(unix.IPPROTO_TCP, 1, 0, 1, 1, 187), destination{Proto: "tcp", Addr: a}},
		{unix.ETH_P_IP, v4(unix.IPPROTO_TCP, 0), destination{Proto: "tcp", Addr: a}},
		{unix.ETH_P_IP, v4(unix.IPPROTO_ICMP, 0, 8, 0, 1, 187), destination{Proto: "icmp", Addr: a}},
		{unix.ETH_P_IP, v4(132, 0), destination{Proto: "132", Addr: a}},
		{unix.ETH_P_IPV6, v6, destination{Proto: "udp", Addr: netip.MustParseAddr("2001:db8::1"), Port: 53}},
		{unix.ETH_P_IP, []byte{0x45}, destination{Proto: "frame 0x0800"}},
		{0x88cc, nil, destination{Proto: "frame 0x88cc"}},
	} {
		if got := parsePacket(tt.ethertype, tt.packet); got != tt.want {
			t.Errorf("%x: %+v, want %+v", tt.packet, got, tt.want)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add(uint16(unix.ETH_P_IP), []byte("\x4f"+strings.Repeat("\x06", 30)))
	f.Fuzz(func(t *testing.T, ethertype uint16, b []byte) { parsePacket(ethertype, b) })
}

func TestReach(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if status := run([]string{"reach", l.Addr().String()}, nil, &stdout, &stderr); status != 0 || stdout.String() != "reached "+l.Addr().String()+"\n" {
		t.Errorf("status %d, %s", status, &stdout)
	}
	l.Close()
	stdout.Reset()
	if status := run([]string{"reach", l.Addr().String()}, nil, &stdout, &stderr); status != 1 || !strings.HasPrefix(stdout.String(), "not reached ") {
		t.Errorf("status %d, %s", status, &stdout)
	}
}

// TestWitness watches what leaves a namespace towards a neighbour that is only
// an entry in a table.
func TestWitness(t *testing.T) {
	testenv.Require(t, "netns")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const script = `set -e
sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
ip link set lo up
ip link add d0 type veth peer name d1; ip link set d1 up
ip addr add 172.30.0.5/24 dev d0; ip link set d0 up
ip neigh add 172.30.0.1 lladdr 02:00:00:00:00:01 dev d0
exec "$0" witness`
	cmd := exec.Command("sh", "-c", script, self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	cmd.Env = append(os.Environ(), asMain+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "witness: watching" {
		t.Fatalf("%q %v", lines.Text(), lines.Err())
	}
	// nsenter keeps the test's own threads where they are.
	ns := "--net=/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net"
	for _, to := range []string{"172.30.0.1:443", "172.30.0.9:80", "127.0.0.1:1"} {
		probe := exec.Command("nsenter", ns, self, "reach", to)
		probe.Env = append(os.Environ(), asMain+"=1")
		if err := probe.Run(); err == nil {
			t.Errorf("%s was reached", to)
		}
	}
	stdin.Close()
	if !lines.Scan() {
		t.Fatal("no summary")
	}
	var s summary
	if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if len(s.Destinations) != 1 || s.Packets != s.Destinations[0].Count || s.Packets == 0 || s.ARP == 0 || s.Dropped != 0 {
		t.Fatalf("%s", lines.Bytes())
	}
	if d := s.Destinations[0]; d.Proto != "tcp" || d.Addr.String() != "172.30.0.1" || d.Port != 443 {
		t.Errorf("%+v", d)
	}
}
