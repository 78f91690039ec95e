package gate_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// Addresses of the two namespaces: the gate's, and its neighbour, which is all
// of the world to it.
const (
	gateAddr     = "172.30.0.9"
	worldAddr    = "172.30.0.1"
	resolverAddr = "44.10.0.53"
	originAddr   = "44.10.0.10"
	origin2Addr  = "44.10.0.11"
	canaryAddr   = "44.10.9.9"
	canaryIPv6   = "2001:db8:10::9"
	servicePort  = 443
	agentUID     = 1000 // of a service
)

// binaryDir holds the binary once a test has asked for it.
var binaryDir string

var gateBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "corral-gate-test-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "corral-gate")
	for _, main := range []string{"corral-gate", "corral-verify"} {
		cmd := exec.Command("go", "build", "-tags", "failpoints", "-o", filepath.Join(dir, main), "github.com/corral-sandbox/corral/cmd/"+main)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	return path, os.Chmod(dir, 0o755)
})

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(act(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "service" {
		os.Exit(become(os.Args[2], os.Args[3:]))
	}
	status := m.Run()
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	os.Exit(status)
}

// pair is a namespace for a gate and one for the rest of the world, with one
// wire between them.
type pair struct {
	t           testing.TB
	gate, world string // names of the namespaces

	mu      sync.Mutex
	records map[string][]string // what the resolver knows: owner -> records
	subset  map[string]int      // how many of them it gives at a time, if not all
	ttl     map[string]int      // of a name's records, if not 60
	strange map[string]func(dns.ResponseWriter, *dns.Msg)
	rtt     time.Duration // how far away the resolver is
	asked   []string
	packets []packet
}

// packet is what the world saw on the wire from the gate's namespace.
type packet struct {
	proto int
	dst   netip.AddrPort
}

func newPair(t testing.TB) *pair {
	t.Helper()
	testenv.Require(t, "netns")
	suffix := fmt.Sprintf("%d-%d", os.Getpid(), pairs.next())
	p := &pair{t: t, gate: "cg" + suffix, world: "cw" + suffix, records: map[string][]string{}, subset: map[string]int{},
		ttl: map[string]int{}, strange: map[string]func(dns.ResponseWriter, *dns.Msg){}}
	for _, ns := range []string{p.gate, p.world} {
		run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() { run(t, "ip", "netns", "del", ns) })
		run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	run(t, "ip", "-n", p.gate, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", p.world)
	run(t, "ip", "-n", p.gate, "addr", "add", gateAddr+"/24", "dev", "eth0")
	run(t, "ip", "-n", p.gate, "addr", "add", "2001:db8:10::2/64", "dev", "eth0", "nodad")
	for _, a := range []string{worldAddr + "/24", resolverAddr + "/16", originAddr + "/16", origin2Addr + "/16", canaryAddr + "/16"} {
		run(t, "ip", "-n", p.world, "addr", "add", a, "dev", "eth0")
	}
	run(t, "ip", "-n", p.world, "addr", "add", canaryIPv6+"/64", "dev", "eth0", "nodad")
	run(t, "ip", "-n", p.world, "link", "set", "eth0", "up")
	run(t, "ip", "-n", p.gate, "link", "set", "eth0", "up")
	run(t, "ip", "-n", p.gate, "route", "add", "default", "via", worldAddr)
	p.capture()
	p.serveDNS()
	for _, a := range []string{originAddr, origin2Addr, canaryAddr} {
		p.listen(netip.AddrPortFrom(netip.MustParseAddr(a), servicePort))
	}
	p.listen(netip.AddrPortFrom(netip.MustParseAddr(canaryIPv6), servicePort))
	return p
}

var pairs counter

type counter struct {
	sync.Mutex
	n int
}

func (c *counter) next() int {
	c.Lock()
	defer c.Unlock()
	c.n++
	return c.n
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	testenv.Require(t, "netns") // what is run is what that need brings
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// in runs do on a thread inside a namespace, which ends with it.
func in(ns string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		f, err := os.Open("/run/netns/" + ns)
		if err != nil {
			done <- err
			return
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

func (p *pair) must(ns string, do func() error) {
	p.t.Helper()
	if err := in(ns, do); err != nil {
		p.t.Fatal(err)
	}
}

// listen accepts and closes connections in the world.
func (p *pair) listen(at netip.AddrPort) {
	p.t.Helper()
	var l net.Listener
	p.must(p.world, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	})
	p.t.Cleanup(func() { l.Close(); wg.Wait() })
}

// serveDNS answers from p.records at the resolver's address.
func (p *pair) serveDNS() {
	p.t.Helper()
	var pc net.PacketConn
	var l net.Listener
	p.must(p.world, func() (err error) {
		if pc, err = net.ListenPacket("udp4", resolverAddr+":53"); err != nil {
			return err
		}
		l, err = net.Listen("tcp4", resolverAddr+":53")
		return err
	})
	for _, s := range []*dns.Server{{PacketConn: pc}, {Listener: l}} {
		s.Handler = dns.HandlerFunc(p.answer)
		started, ended := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		p.t.Cleanup(func() { s.Shutdown(); <-ended })
	}
}

func (p *pair) answer(w dns.ResponseWriter, q *dns.Msg) {
	name := strings.ToLower(q.Question[0].Name)
	if p.rtt > 0 {
		<-time.After(p.rtt)
	}
	p.mu.Lock()
	p.asked = append(p.asked, name)
	strange := p.strange[name]
	p.mu.Unlock()
	if strange != nil {
		strange(w, q)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	records, known := p.records[name]
	if !known {
		m.Rcode = dns.RcodeNameError
	}
	if n := p.subset[name]; n > 0 && q.Question[0].Qtype == dns.TypeA {
		p.records[name] = slices.Concat(records[n:], records[:n])
		records = records[:n]
	}
	ttl, set := p.ttl[name]
	if !set {
		ttl = 60
	}
	for _, s := range records {
		rr, err := dns.NewRR(fmt.Sprintf("%s %d IN %s", name, ttl, s))
		if err != nil {
			p.t.Error(err)
			return
		}
		if rr.Header().Rrtype == q.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	w.WriteMsg(m)
}

func (p *pair) zone(name string, records ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records[name+"."] = records
}

// rotate gives n of the records at a time, and then the next n.
func (p *pair) rotate(name string, n int, records ...string) {
	p.zone(name, records...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subset[name+"."] = n
}

// capture notes every IP packet that comes out of the gate's namespace.
func (p *pair) capture() {
	p.t.Helper()
	fd := -1
	p.must(p.world, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return err
	})
	f := os.NewFile(uintptr(fd), "capture")
	raw, err := f.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n := 0
			var from unix.Sockaddr
			if err := raw.Read(func(fd uintptr) bool {
				var err error
				n, from, err = unix.Recvfrom(int(fd), buf, 0)
				return !errors.Is(err, unix.EAGAIN)
			}); err != nil {
				return
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 24 || buf[0]>>4 != 4 {
				continue
			}
			head := int(buf[0]&15) * 4
			pk := packet{proto: int(buf[9])}
			port := uint16(0)
			if n >= head+4 {
				port = uint16(buf[head+2])<<8 | uint16(buf[head+3])
			}
			pk.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(buf[16:20])), port)
			p.mu.Lock()
			p.packets = append(p.packets, pk)
			p.mu.Unlock()
		}
	}()
	p.t.Cleanup(func() { f.Close(); <-done })
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// sent is what left the gate's namespace for an address so far.
func (p *pair) sent(to string) []packet {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(func(yield func(packet) bool) {
		for _, pk := range p.packets {
			if pk.dst.Addr() == netip.MustParseAddr(to) && !yield(pk) {
				return
			}
		}
	})
}

// lookups are the names that the resolver was asked for.
func (p *pair) lookups() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func document(names ...spec.Name) spec.Gate {
	for i := range names {
		if names[i].Origin == "" {
			names[i].Origin = "corral.yaml:7"
		}
	}
	g := spec.Gate{Version: spec.Version, Sandbox: "test", Service: "main", Class: spec.ClassPinned,
		Address: netip.MustParseAddr(gateAddr), Gateway: netip.MustParseAddr(worldAddr),
		Resolvers: []netip.Addr{netip.MustParseAddr(resolverAddr)}, Names: names, Probes: spec.DefaultProbes()}
	g.Probes.Unlisted = netip.MustParseAddr(canaryAddr)
	g.Probes.IPv6 = netip.MustParseAddr(canaryIPv6)
	if len(names) == 0 {
		g.Class = spec.ClassNone
	}
	return g
}

func allowed(domain string) spec.Name {
	return spec.Name{Domain: domain, Ports: []uint16{servicePort}, Liveness: true}
}

// gateProc is a running corral-gate.
type gateProc struct {
	t     testing.TB
	pair  *pair
	cmd   *exec.Cmd
	pid   int // of the gate, as seen here
	lines chan string
	ended chan struct{}
	code  int

	mu  sync.Mutex
	all []string
}

// The files that a container's engine would give a gate are in an overlay that
// ends with its mount namespace: nothing of this machine is written. What others
// mount on this machine is taken from its view, as it comes and goes with them.
const launch = `set -e
mount --make-rprivate /
while read -r _ _ _ _ at _; do
	case $at in /run/*|/var/*|/tmp/*) umount -l "$at" 2>/dev/null || : ;; esac
done < /proc/self/mountinfo
mount -t tmpfs tmpfs "$1"
mkdir "$1/up" "$1/work"
mount -t overlay -o lowerdir=/etc,upperdir="$1/up",workdir="$1/work" overlay /etc
mount -t tmpfs tmpfs /run
mkdir /etc/corral
cat > /etc/corral/gate.json
chmod "$3" /etc/corral/gate.json
[ -s /etc/corral/gate.json ] || rm /etc/corral/gate.json
printf '127.0.0.1\tlocalhost\n%s\t%s\n10.9.8.7\tleft.evil.test\n' "$4" "$(hostname)" > /etc/hosts
echo 'nameserver 127.0.0.11' > /etc/resolv.conf
exec $WRAP "$2" serve
`

// start runs a gate as PID 1 of namespaces of its own, in the pair's network.
func (p *pair) start(g spec.Gate, env ...string) *gateProc {
	p.t.Helper()
	return p.startWith(spec.Encode(g), "0644", env...)
}

func (p *pair) startWith(doc []byte, mode string, env ...string) *gateProc {
	p.t.Helper()
	binary, err := gateBinary()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+p.gate, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", launch, "sh", p.t.TempDir(), binary, mode, gateAddr)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CORRAL_") }), env...)
	cmd.Stdin = bytes.NewReader(doc)
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	w.Close()
	s := &gateProc{t: p.t, pair: p, cmd: cmd, lines: make(chan string, 4096), ended: make(chan struct{})}
	gone, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		defer close(s.lines)
		for sc := bufio.NewScanner(r); sc.Scan(); {
			s.mu.Lock()
			s.all = append(s.all, sc.Text())
			s.mu.Unlock()
			select {
			case s.lines <- sc.Text():
			default: // nobody takes so many
				select {
				case s.lines <- sc.Text():
				case <-gone:
				}
			}
		}
	}()
	go func() {
		cmd.Wait()
		s.code = cmd.ProcessState.ExitCode()
		close(gone)
		<-read // all that it said
		close(s.ended)
	}()
	p.t.Cleanup(func() {
		select {
		case <-s.ended:
		default:
			cmd.Process.Kill() // and with it its child
			<-s.ended
		}
		if p.t.Failed() {
			p.t.Logf("gate:\n%s", strings.Join(s.output(), "\n"))
		}
	})
	return s
}

func (s *gateProc) output() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// await reads lines until one contains text.
func (s *gateProc) await(text string) string {
	s.t.Helper()
	limit := time.After(40 * time.Second)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("the gate ended without %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-limit:
			s.t.Fatalf("no line with %q", text)
		}
	}
}

func (s *gateProc) ready() *gateProc {
	s.t.Helper()
	s.await(spec.ReadyLine)
	s.pid = child(s.t, s.cmd.Process.Pid)
	return s
}

// child is the one child that a process has.
func child(t testing.TB, pid int) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a thread may end
			t.Fatal(err)
		}
		children = append(children, strings.Fields(string(b))...)
	}
	if len(children) != 1 {
		t.Fatalf("children of %d: %v", pid, children)
	}
	n, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *gateProc) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(s.pid, sig); err != nil {
		s.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit status.
func (s *gateProc) exit() int {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		s.t.Fatal("the gate does not end")
	}
	return s.code
}

// exec runs a program beside the gate, as an engine would.
func (s *gateProc) exec(args ...string) (string, error) {
	binary, err := gateBinary()
	if err != nil {
		s.t.Fatal(err)
	}
	if args[0] == "corral-gate" {
		args[0] = binary
	}
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(s.pid), "-m", "-n", "-p", "--"}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *gateProc) status() spec.GateStatus {
	s.t.Helper()
	var st spec.GateStatus
	s.asked(&st, "status", "--json")
	return st
}

// asked reads what a command of the gate's says.
func (s *gateProc) asked(into any, args ...string) {
	s.t.Helper()
	out, err := s.exec(append([]string{"corral-gate"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// probe dials the canary from the first n source ports of probes.
func (p *pair) probe(n int) {
	p.t.Helper()
	p.must(p.gate, func() error {
		for i := range n {
			d := net.Dialer{LocalAddr: &net.TCPAddr{Port: spec.ProbePortFirst + i}}
			if c, err := d.Dial("tcp4", canaryAddr+":443"); err == nil {
				c.Close()
			}
		}
		return nil
	})
}

// agent runs this program again in the gate's network, to do one thing as a
// service's user would: see act.
func (p *pair) agent(ctx context.Context, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + p.gate, self, "agent"}, args...)...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// act is the agent's side: connect ADDR, send ADDR, upload ADDR, lookup SERVER
// NAME NETWORK, loop SERVER, flood ADDR, storm N, hold ADDR HOW or roam NAME PORT
// UNLISTED. It prints what came of it and how long it took.
func act(args []string) int {
	if err := syscall.Setresgid(agentUID, agentUID, agentUID); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := syscall.Setresuid(agentUID, agentUID, agentUID); err != nil {
		fmt.Println(err)
		return 1
	}
	began := time.Now()
	var err error
	switch args[0] {
	case "connect":
		var c net.Conn
		if c, err = net.DialTimeout("tcp", args[1], 3*time.Second); err == nil {
			c.Close()
		}
	case "send":
		var c net.Conn
		if c, err = net.Dial("udp", args[1]); err == nil {
			_, err = c.Write([]byte("secret"))
		}
	case "lookup":
		c := dns.Client{Timeout: 200 * time.Millisecond, Net: args[3]}
		var m *dns.Msg
		if m, _, err = c.Exchange(new(dns.Msg).SetQuestion(args[2], dns.TypeA), args[1]); err == nil {
			fmt.Print(dns.RcodeToString[m.Rcode], " ")
		}
	case "upload":
		var c net.Conn
		if c, err = net.DialTimeout("tcp", args[1], 3*time.Second); err == nil {
			c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err = c.Write(make([]byte, 1<<20)); err == nil {
				c.(*net.TCPConn).CloseWrite()
				_, err = io.ReadFull(c, make([]byte, 2))
			}
		}
	case "loop":
		return loop(args[1])
	case "flood":
		return flood(args[1])
	case "storm":
		return storm(args[1])
	case "hold":
		return hold(args[1], args[2])
	case "roam":
		return roam(args[1], args[2], args[3])
	}
	fmt.Printf("%v after %v\n", err, time.Since(began))
	if err != nil {
		return 1
	}
	return 0
}

// loop asks a resolver as fast as it can, from one socket and from fresh ones,
// until standard input ends, and prints how many answers came.
func loop(server string) int {
	stop := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(stop) }()
	fmt.Println("looping")
	answers, tries := 0, 0
	for {
		select {
		case <-stop:
			fmt.Printf("%d answers of %d\n", answers, tries)
			return 0
		default:
		}
		tries++
		c := dns.Client{Timeout: 20 * time.Millisecond}
		if tries%2 == 0 {
			c.Net = "tcp"
		}
		if _, _, err := c.Exchange(new(dns.Msg).SetQuestion("secret.evil.test.", dns.TypeA), server); err == nil {
			answers++
		}
	}
}

// flood sends datagrams and looks names up as fast as it can until standard
// input ends.
func flood(to string) int {
	stop := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(stop) }()
	sink, err := net.Dial("udp", to)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	names, err := net.Dial("udp", "127.0.0.1:53")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("flooding")
	for i := 0; ; i++ {
		select {
		case <-stop:
			fmt.Println(i)
			return 0
		default:
		}
		sink.Write([]byte("secret"))
		if q, err := new(dns.Msg).SetQuestion(fmt.Sprintf("x%d.evil.test.", i), dns.TypeA).Pack(); err == nil {
			names.Write(q)
		}
	}
}

// background starts an agent that goes on until the returned function is
// called, which gives what it printed after its first line.
func (p *pair) background(args ...string) (stop func() string) {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), "nsenter", append([]string{"--net=/run/netns/" + p.gate, self, "agent"}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil {
		p.t.Fatalf("%q, %v", line, err)
	}
	return func() string {
		p.t.Helper()
		stdin.Close()
		rest, err := io.ReadAll(lines)
		if err != nil {
			p.t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			p.t.Error(err)
		}
		return strings.TrimSpace(string(rest))
	}
}
