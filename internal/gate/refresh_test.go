package gate_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// endsWithin is how soon a connection to what was removed has to be over.
const endsWithin = time.Second

// hold keeps a connection to an echo server, busy or idle, until it ends, or
// standard input does and it has gone on for long enough. It prints which.
func hold(to, how string) int {
	c, err := net.DialTimeout("tcp", to, 3*time.Second)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer c.Close()
	ended := make(chan error, 2)
	echoed := make(chan struct{}, 1)
	go func() {
		buf := make([]byte, 1024)
		for {
			if _, err := c.Read(buf); err != nil {
				ended <- err
				return
			}
			select {
			case echoed <- struct{}{}:
			default:
			}
		}
	}()
	if how == "busy" {
		go func() {
			for range time.Tick(time.Millisecond) {
				if _, err := c.Write([]byte("more")); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	fmt.Println("connected")
	io.Copy(io.Discard, os.Stdin)
	asked := time.Now()
	select {
	case err := <-ended:
		fmt.Printf("ended %v: %v\n", time.Since(asked) < endsWithin, err)
		return 0
	case <-time.After(endsWithin):
	}
	for len(echoed) > 0 {
		<-echoed
	}
	c.Write([]byte("still there?"))
	select {
	case err := <-ended:
		fmt.Printf("ended only when it sent: %v\n", err)
	case <-echoed:
		fmt.Println("alive")
	case <-time.After(5 * time.Second):
		fmt.Println("hangs")
	}
	return 0
}

// roam asks the names server for a name and connects to each of its addresses, and
// tries one that is not listed, until standard input ends. It prints how many
// connections of each kind were made, and what went wrong with the first kind.
func roam(name, port, unlisted string) int {
	stop := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(stop) }()
	fmt.Println("roaming")
	made, escaped, lost := 0, 0, []string{}
	pace := time.Tick(5 * time.Millisecond) // the gate needs some of the machine too
	for {
		select {
		case <-stop:
			fmt.Printf("%d made, %d escaped, lost %v\n", made, escaped, lost)
			return 0
		case <-pace:
		}
		c := dns.Client{Timeout: time.Second}
		m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name+".", dns.TypeA), "127.0.0.1:53")
		if err != nil || len(m.Answer) == 0 {
			lost = append(lost, fmt.Sprintf("lookup: %v", err))
			continue
		}
		for _, rr := range m.Answer {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(rr.(*dns.A).A.String(), port), 3*time.Second)
			if err != nil {
				lost = append(lost, err.Error())
				continue
			}
			made++
			c.Close()
		}
		if c, err := net.DialTimeout("tcp", unlisted, 3*time.Second); err == nil {
			escaped++
			c.Close()
		}
	}
}

// echo sends back what comes, at every address of the world.
func (p *pair) echo(port int) {
	p.t.Helper()
	var l net.Listener
	p.must(p.world, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	})
	p.t.Cleanup(func() { l.Close(); wg.Wait() })
}

// pool gives the world n more addresses.
func (p *pair) pool(n int) []string {
	p.t.Helper()
	var all []string
	for i := range n {
		a := fmt.Sprintf("44.10.2.%d", i+1)
		run(p.t, "ip", "-n", p.world, "addr", "add", a+"/32", "dev", "eth0")
		all = append(all, a)
	}
	return all
}

// at gives a name these addresses.
func (p *pair) at(name string, addrs ...string) {
	var records []string
	for _, a := range addrs {
		records = append(records, "A "+a)
	}
	p.zone(name, records...)
}

// named permits the echo servers of a name.
func named(domain string, ports ...uint16) spec.Name {
	return spec.Name{Domain: domain, Ports: ports, Origin: "corral.yaml:7"}
}

const echoPort = 7443

// root is a file of the gate's, as it is seen here.
func (s *gateProc) root(path string) string { return fmt.Sprintf("/proc/%d/root%s", s.pid, path) }

// otherFile is where documents for a refresh are put.
const otherFile = "/etc/corral/gate.json.new"

func (s *gateProc) put(path string, doc []byte, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(s.root(path), doc, mode); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chmod(s.root(path), mode); err != nil {
		s.t.Fatal(err)
	}
}

// refresh has the gate go by another document, by the real command.
func (s *gateProc) refresh(doc spec.Gate) spec.Refreshed {
	s.t.Helper()
	s.put(otherFile, spec.Encode(doc), 0o644)
	out, err := s.exec("corral-gate", "refresh", "--json", "--spec", otherFile)
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	var r spec.Refreshed
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// again refreshes without a program in between.
func (s *gateProc) again() (spec.Refreshed, error) {
	var r spec.Refreshed
	c, err := net.Dial("unix", s.root(spec.GateSocket))
	if err != nil {
		return r, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(90 * time.Second))
	fmt.Fprintf(c, "{\"refresh\": %q}\n", spec.GateFile)
	answer, err := io.ReadAll(c)
	if err != nil {
		return r, err
	}
	var failed struct{ Error string }
	if err := json.Unmarshal(answer, &failed); err != nil || failed.Error != "" {
		return r, fmt.Errorf("%s, %v", failed.Error, err)
	}
	return r, json.Unmarshal(answer, &r)
}

// connections dials from the gate's namespace as root, by an IPv4 socket and by an
// IPv6 one that carries IPv4, and gives the sockets.
func (p *pair) connections(to netip.AddrPort) []int {
	p.t.Helper()
	var fds []int
	p.must(p.gate, func() error {
		four, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		six, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		fds = []int{four, six}
		if err := unix.Connect(four, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
			return err
		}
		return unix.Connect(six, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	})
	p.t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	return fds
}

// over reports whether a socket's connection has ended, without sending anything.
func over(fd int, within time.Duration) bool {
	for limit := time.Now().Add(within); time.Now().Before(limit); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(within.Milliseconds()))
		if err == nil {
			return n == 1
		}
	}
	return false
}

// R010, R028: refreshes while an agent connects all the time. Nothing gets to an
// address that is not listed, every address that the gate has given out works, and a
// stream to one that its name no longer has goes on. Rules and sets do not grow.
func TestRefreshesOpenNoWindow(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	pool := p.pool(12)
	p.echo(echoPort)
	p.at("api.allowed.test", pool[0], pool[1])
	s := p.start(document(named("api.allowed.test", echoPort))).ready()
	rules := func() (n int) {
		for _, program := range []string{"iptables", "ip6tables"} {
			n += strings.Count(run(t, "ip", "netns", "exec", p.gate, program, "-w", "-S"), "\n-A ")
		}
		return n
	}
	before := rules()
	stream := p.background("hold", fmt.Sprintf("%s:%d", pool[0], echoPort), "busy")
	agent := p.background("roam", "api.allowed.test", fmt.Sprint(echoPort), canaryAddr+":443")
	began := time.Now()
	const refreshes = 200
	for i := range refreshes {
		p.at("api.allowed.test", pool[i%len(pool)], pool[(i+1)%len(pool)])
		if r, err := s.again(); err != nil || len(r.Pins) != 1 || len(r.Pins[0].Addrs) != 2 {
			t.Fatalf("refresh %d: %+v, %v", i, r, err)
		}
	}
	t.Logf("%v a refresh", time.Since(began)/refreshes)
	if said := agent(); !strings.Contains(said, "made, 0 escaped, lost []") || strings.HasPrefix(said, "0 made") {
		t.Errorf("agent: %s", said)
	}
	if said := stream(); said != "alive" {
		t.Errorf("stream: %s", said)
	}
	if n := len(p.sent(canaryAddr)); n != 0 {
		t.Errorf("%d packets to the canary", n)
	}
	if after := rules(); after != before {
		t.Errorf("%d rules, %d before", after, before)
	}
	st := s.status()
	if len(st.Pins) != 1 || len(st.Pins[0].Addrs)+len(st.Pins[0].Fading) != len(pool) || st.Applied != st.ReadBack {
		t.Errorf("status %+v", st)
	}
	if set := run(t, "ip", "netns", "exec", p.gate, "ipset", "list", "corral-pins"); strings.Count(set, ",tcp:") != len(pool) || strings.Contains(set, "corral-pins-new") {
		t.Errorf("set:\n%s", set)
	}
	for _, port := range []string{"22", "53", "8443"} {
		if out, err := p.agent(t.Context(), "connect", pool[0]+":"+port); err == nil || !strings.Contains(out, "refused") {
			t.Errorf("port %s: %s", port, out)
		}
	}
}

// R011: a name that is taken out loses its connections, busy and idle, whoever's
// they are; those of other names live on, and what both have is told.
func TestRemovedNameEndsItsConnections(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	pool := p.pool(3)
	p.echo(echoPort)
	p.at("gone.allowed.test", pool[0], pool[1])
	p.at("kept.allowed.test", pool[1], pool[2])
	kept, removed := named("kept.allowed.test", echoPort), named("gone.allowed.test", echoPort)
	doc := document(kept, removed)
	doc.Policy = "old"
	s := p.start(doc).ready()
	s.saw("notice: gone.allowed.test, kept.allowed.test share " + pool[1])
	to := func(a string) string { return fmt.Sprintf("%s:%d", a, echoPort) }
	busy, idle := p.background("hold", to(pool[0]), "busy"), p.background("hold", to(pool[0]), "idle")
	shared, other := p.background("hold", to(pool[1]), "busy"), p.background("hold", to(pool[2]), "idle")
	theirs := p.connections(netip.MustParseAddrPort(to(pool[0])))

	doc = document(kept)
	doc.Policy = "new"
	began := time.Now()
	r := s.refresh(doc)
	t.Logf("in force after %v", time.Since(began))
	for _, fd := range theirs {
		if !over(fd, endsWithin) {
			t.Error("a connection of root's goes on")
		}
	}
	for what, h := range map[string]struct {
		stop func() string
		want string
	}{"busy": {busy, "ended true"}, "idle": {idle, "ended true"}, "shared": {shared, "alive"}, "other": {other, "alive"}} {
		if said := h.stop(); !strings.HasPrefix(said, h.want) {
			t.Errorf("%s: %s", what, said)
		}
	}
	want := []spec.Shared{{Removed: "gone.allowed.test", With: "kept.allowed.test", Addr: netip.MustParseAddr(pool[1]), Port: echoPort, Flows: 1}}
	if r.Ended != 4 || !slices.Equal(r.Shared, want) || !slices.Equal(r.Removed, []string{to(pool[0])}) || len(r.Added) != 0 || len(r.Pins) != 1 {
		t.Errorf("answer %+v", r)
	}
	if out, err := p.agent(t.Context(), "connect", to(pool[0])); err == nil {
		t.Errorf("it can be reached anew: %s", out)
	}
	st := s.status()
	if len(st.Shared) != 0 || st.Policy != "new" { // its connection has ended by now
		t.Errorf("status: shared %+v, policy %q", st.Shared, st.Policy)
	}
	if !slices.ContainsFunc(st.Rules, func(r spec.RuleCount) bool { return r.Rule == "unlisted" && r.Chain == "OUTPUT" && r.Packets > 0 }) {
		t.Errorf("rules %+v", st.Rules)
	}
	s.saw("refresh: removed gone.allowed.test")
	now, err := os.ReadFile(s.root(spec.GateFile))
	if err != nil || string(now) != string(spec.Encode(doc)) {
		t.Errorf("a restart would read %s, %v", now, err)
	}
	if _, err := os.Stat(s.root(otherFile)); err == nil {
		t.Error("the document is there twice")
	}
	if hosts, err := os.ReadFile(s.root("/etc/hosts")); err != nil || strings.Contains(string(hosts), "gone") {
		t.Errorf("hosts: %s, %v", hosts, err)
	}
	if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", "gone.allowed.test.", "udp"); err != nil || !strings.HasPrefix(out, "NXDOMAIN") {
		t.Errorf("lookup: %s", out)
	}
}
