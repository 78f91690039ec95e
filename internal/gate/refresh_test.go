package gate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
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
	var r spec.Refreshed
	s.asked(&r, "refresh", "--json", "--spec", otherFile)
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

// trying begins a connection from the gate's namespace, and gives the socket.
func (p *pair) trying(to netip.AddrPort) (fd int) {
	p.t.Helper()
	p.must(p.gate, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); errors.Is(err, unix.EINPROGRESS) {
			return nil
		}
		return fmt.Errorf("somebody answers: %v", err)
	})
	p.t.Cleanup(func() { unix.Close(fd) })
	return fd
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

// Where connections cannot be listed, a refresh says what it could not end, and fails,
// though the new policy is in force; the gate goes on, and says when they have ended.
func TestWhatCouldNotBeEnded(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	pool := p.pool(3)
	p.echo(echoPort)
	p.at("gone.allowed.test", pool[0])
	p.at("kept.allowed.test", pool[1])
	kept, removed := named("kept.allowed.test", echoPort), named("gone.allowed.test", echoPort)
	well := filepath.Join(t.TempDir(), "well") // as soon as it is there
	s := p.start(document(kept, removed), "CORRAL_GATE_FAILPOINT=flows:wait:"+well).ready()
	to := netip.MustParseAddrPort(fmt.Sprintf("%s:%d", pool[0], echoPort))
	theirs := p.connections(to)
	p.at("kept.allowed.test", pool[2])
	s.put(otherFile, spec.Encode(document(kept)), 0o644)
	out, err := s.exec("corral-gate", "refresh", "--spec", otherFile)
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != 1 || !strings.Contains(out, "1 pin, 1 destination added, 1 removed, 0 connections ended") ||
		!strings.Contains(out, "connections to what is granted no longer go on: ") || !strings.Contains(out, "the new policy is in force") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := s.exec("corral-gate", "refresh", "--json"); !errors.As(err, &exited) || exited.ExitCode() != 1 || !strings.Contains(out, `"unended":`) || !strings.Contains(out, "no longer go on: ") {
		t.Errorf("as JSON: %v: %s", err, out)
	}
	if out, err := p.agent(t.Context(), "connect", to.String()); err == nil {
		t.Errorf("it can be reached anew: %s", out)
	}
	st := s.status()
	if st.Unended == "" || st.Uncounted == "" || st.State != spec.GateReady || st.Applied != st.ReadBack || len(st.Pins) != 1 || len(st.Pins[0].Fading) != 1 {
		t.Errorf("status %+v", st)
	}
	if out, err := s.exec("corral-gate", "status"); err != nil || !strings.Contains(out, "CONNECTIONS TO WHAT IS GRANTED NO LONGER GO ON: ") || !strings.Contains(out, "connections could not be counted: ") {
		t.Errorf("%v: %s", err, out)
	}
	if r, err := s.again(); err != nil || r.Unended == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(well, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.await("refresh: 2 connections more ended")
	for _, fd := range theirs {
		if !over(fd, endsWithin) {
			t.Error("a connection goes on")
		}
	}
	if st := s.status(); st.Unended != "" || st.Uncounted != "" {
		t.Errorf("status %+v", st)
	}
	if r, err := s.again(); err != nil || r.Unended != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// What somebody was granted at a name server ends like all else when it is removed: it
// is the worker's only while lookups run.
func TestConnectionsToAResolver(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.at("dns.allowed.test", resolverAddr)
	p.at("kept.allowed.test", originAddr)
	kept := named("kept.allowed.test", echoPort)
	whole := named("dns.allowed.test")
	whole.AnyPort = true
	s := p.start(document(kept, whole)).ready()
	theirs := p.connections(netip.MustParseAddrPort(resolverAddr + ":53"))
	if r := s.refresh(document(kept)); r.Ended != len(theirs) || len(r.Removed) != 1 {
		t.Errorf("%+v", r)
	}
	for _, fd := range theirs {
		if !over(fd, endsWithin) {
			t.Error("a connection goes on")
		}
	}
}

// heldRefresh is a refresh after which old.allowed.test is at canaryAddr in place of
// originAddr and new.allowed.test is there, at origin2Addr. It stands still at a fail
// point until goOn is called. The error is what became of it.
func (p *pair) heldRefresh(at string) (s *gateProc, goOn func(), ended <-chan error) {
	p.t.Helper()
	p.at("old.allowed.test", originAddr)
	p.at("new.allowed.test", origin2Addr)
	fifo := filepath.Join(p.t.TempDir(), "go-on")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		p.t.Fatal(err)
	}
	s = p.start(document(named("old.allowed.test", echoPort)), "CORRAL_GATE_FAILPOINT="+at+":wait:"+fifo).ready()
	s.put(otherFile, spec.Encode(document(named("old.allowed.test", echoPort), named("new.allowed.test", echoPort))), 0o644)
	p.at("old.allowed.test", canaryAddr)
	ended = s.refreshing()
	s.await("fail point " + at)
	return s, func() {
		// It says where it is before it waits, and may be gone by the time.
		for late := time.Now().Add(10 * time.Second); syscall.Kill(s.pid, 0) == nil && time.Now().Before(late); {
			if f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
				f.Close()
				return
			}
		}
	}, ended
}

// A worker that is there and does not take the new table is ended, and the refresh is
// not: the next worker has it from the start.
func TestSilentWorkerDuringARefresh(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s, goOn, ended := p.heldRefresh("refresh-widen")
	if err := syscall.Kill(child(t, s.pid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if st := s.status(); st.State != spec.GateReady || st.WorkerRestarts != 1 || len(st.Pins) != 2 {
		t.Errorf("status %+v", st)
	}
	for _, name := range []string{"old.allowed.test.", "new.allowed.test."} {
		if out, _ := p.agent(t.Context(), "lookup", "127.0.0.1:53", name, "udp"); !strings.HasPrefix(out, "NOERROR") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// A gate that is asked to leave while a refresh changes something closes at once, and
// stays closed when that goes on.
func TestEndDuringARefresh(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	s, goOn, ended := p.heldRefresh("refresh-names")
	s.signal(syscall.SIGTERM)
	closed := time.Now().Add(3 * time.Second) // and it waits for longer
	for out, err := "", error(nil); err == nil; out, err = p.agent(t.Context(), "connect", fmt.Sprintf("%s:%d", origin2Addr, echoPort)) {
		if time.Now().After(closed) {
			t.Fatalf("it is open still: %s", out)
		}
	}
	goOn()
	if code := s.exit(); code != 0 {
		t.Errorf("status %d", code)
	}
	if err := <-ended; err == nil {
		t.Error("the refresh went well")
	}
	p.isClosed(t)
}

// refused insists that a refresh fails with a status and says something.
func (s *gateProc) refused(status int, words string, args ...string) {
	s.t.Helper()
	out, err := s.exec(append([]string{"corral-gate", "refresh"}, args...)...)
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != status || !strings.Contains(out, words) || !strings.Contains(out, "stays in force") {
		s.t.Errorf("%q: %v: %s", words, err, out)
	}
}

// A document that a refresh cannot go by changes nothing, whatever is wrong with it.
func TestRefreshRefusesDocuments(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	p.at("api.allowed.test", originAddr)
	p.at("new.allowed.test", origin2Addr)
	doc := document(named("api.allowed.test", echoPort))
	s := p.start(doc).ready()
	before := s.status()
	next := document(named("api.allowed.test", echoPort), named("new.allowed.test", echoPort))
	good := spec.Encode(next)
	for what, tt := range map[string]struct {
		doc  func(*spec.Gate)
		text []byte
		mode os.FileMode
		want string
	}{
		"another sandbox": {doc: func(g *spec.Gate) { g.Sandbox = "other" }, want: "cannot change sandbox"},
		"host ports":      {doc: func(g *spec.Gate) { g.HostPorts = []uint16{8001} }, want: "cannot change host_ports"},
		"two at once": {doc: func(g *spec.Gate) { g.SinkNames, g.Service = true, "other" },
			want: "cannot change service, sink_names"},
		"probes":       {doc: func(g *spec.Gate) { g.Probes = spec.DefaultProbes() }, want: "cannot change probes"},
		"half written": {text: good[:len(good)/2], want: "gate spec"},
		"empty":        {text: []byte{}, want: "gate spec"},
		"for anybody":  {text: good, mode: 0o666, want: "nobody else can write"},
	} {
		changed := next
		if tt.doc != nil {
			tt.doc(&changed)
			tt.text = spec.Encode(changed)
		}
		if tt.mode == 0 {
			tt.mode = 0o644
		}
		t.Log(what)
		s.put(otherFile, tt.text, tt.mode)
		s.refused(2, tt.want, "--spec", otherFile)
	}
	s.refused(2, "no such file", "--spec", "/etc/corral/nothing")
	if err := os.Remove(s.root(otherFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(spec.GateFile, s.root(otherFile)); err != nil {
		t.Fatal(err)
	}
	s.refused(2, "symbolic link", "--spec", otherFile)
	after := s.status()
	if after.Applied != before.Applied || after.ReadBack != after.Applied || len(after.Pins) != 1 {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if now, err := os.ReadFile(s.root(spec.GateFile)); err != nil || string(now) != string(spec.Encode(doc)) {
		t.Errorf("file: %s, %v", now, err)
	}
}

// R003: a lookup that fails keeps what the name had, and says so; a name that is new
// and fails changes nothing; a soft one stays closed and works once it resolves.
func TestRefreshWithFailingLookups(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	p.at("api.allowed.test", originAddr)
	s := p.start(document(named("api.allowed.test", echoPort))).ready()
	rcode := func(code int) func(dns.ResponseWriter, *dns.Msg) {
		return func(w dns.ResponseWriter, q *dns.Msg) { w.WriteMsg(new(dns.Msg).SetRcode(q, code)) }
	}
	set := func(f func(dns.ResponseWriter, *dns.Msg)) {
		p.mu.Lock()
		p.strange["api.allowed.test."] = f
		p.mu.Unlock()
	}
	origin := fmt.Sprintf("%s:%d", originAddr, echoPort)
	kept := func(what, why string) {
		t.Helper()
		r, err := s.again()
		if err != nil || len(r.Pins) != 1 || !strings.Contains(r.Pins[0].Failed, why) || len(r.Added)+len(r.Removed) != 0 ||
			!slices.Equal(r.Pins[0].Addrs, []netip.Addr{netip.MustParseAddr(originAddr)}) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		s.saw("api.allowed.test (corral.yaml:7) keeps what it had: " + r.Pins[0].Failed)
		if out, err := p.agent(t.Context(), "connect", origin); err != nil {
			t.Errorf("%s: %s", what, out)
		}
	}
	set(rcode(dns.RcodeServerFailure))
	kept("SERVFAIL", "the resolver failed (SERVFAIL)")
	set(rcode(dns.RcodeNameError))
	kept("NXDOMAIN", "NXDOMAIN")
	set(func(dns.ResponseWriter, *dns.Msg) {})
	kept("silence", "no answer")
	set(nil)
	p.at("api.allowed.test", "10.38.0.27", originAddr)
	kept("a private answer", "10.38.0.27 is refused")
	p.at("api.allowed.test", "172.30.0.77") // beside the gate on its own network
	kept("a neighbour", "172.30.0.77 is refused")
	if out, err := s.exec("corral-gate", "status"); err != nil || !strings.Contains(out, "172.30.0.77 is refused") {
		t.Errorf("status: %s", out)
	}
	if out, err := s.exec("corral-gate", "refresh"); err != nil || !strings.Contains(out, "kept     api.allowed.test as it was: 172.30.0.77 is refused") {
		t.Errorf("refresh: %v: %s", err, out)
	}

	before := s.status()
	soft := named("soft.allowed.test", echoPort)
	soft.Soft = true
	s.put(otherFile, spec.Encode(document(named("api.allowed.test", echoPort), soft, named("new.allowed.test", echoPort))), 0o644)
	s.refused(1, "new.allowed.test (corral.yaml:7): no such name", "--spec", otherFile)
	if after := s.status(); after.Applied != before.Applied || len(after.Pins) != 1 || len(after.Unpinned) != 0 || after.ReadBack != after.Applied {
		t.Errorf("after a failure %+v", after)
	}
	r := s.refresh(document(named("api.allowed.test", echoPort), soft))
	if len(r.Pins) != 1 || len(r.Unpinned) != 1 {
		t.Errorf("%+v", r)
	}
	p.at("soft.allowed.test", origin2Addr)
	silent := named("silent.allowed.test", 9)
	silent.Liveness = true
	p.at("silent.allowed.test", origin2Addr)
	r = s.refresh(document(named("api.allowed.test", echoPort), soft, silent))
	if len(r.Pins) != 3 || len(r.Unpinned) != 0 || !slices.Equal(r.Added, []string{origin2Addr + ":9", fmt.Sprintf("%s:%d", origin2Addr, echoPort)}) {
		t.Errorf("%+v", r)
	}
	s.saw("warning: silent.allowed.test (corral.yaml:7) accepts no connection")
}

// hang lets a name's lookups wait until the result is called.
func (p *pair) hang(name string) (asked <-chan struct{}, goOn func()) {
	came, wait := make(chan struct{}, 64), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strange[name+"."] = func(w dns.ResponseWriter, q *dns.Msg) {
		came <- struct{}{}
		<-wait
		p.mu.Lock()
		delete(p.strange, name+".")
		p.mu.Unlock()
		p.answer(w, q)
	}
	return came, sync.OnceFunc(func() { close(wait) })
}

// While a refresh waits for a resolver, the gate answers, the agent cannot use what is
// open for the worker, and what somebody changes behind the gate's back is found.
func TestTamperDuringASlowRefresh(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.at("api.allowed.test", originAddr)
	s := p.start(document(named("api.allowed.test", echoPort))).ready()
	asked, goOn := p.hang("api.allowed.test")
	t.Cleanup(goOn)
	ended := make(chan error, 1)
	go func() {
		_, err := s.again()
		ended <- err
	}()
	<-asked
	st := s.status()
	if st.Applied != st.ReadBack || st.State != spec.GateReady {
		t.Errorf("status %+v", st)
	}
	s.verdicts(0)
	if out, err := p.agent(t.Context(), "lookup", resolverAddr+":53", "secret.evil.test.", "udp"); err == nil {
		t.Errorf("the agent's own lookup: %s", out)
	}
	run(t, "ip", "netns", "exec", p.gate, "iptables", "-w", "-I", "OUTPUT", "-d", canaryAddr, "-j", "ACCEPT")
	began := time.Now()
	s.await("re-check failed against existing rules")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("found after %v", took)
	}
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	if err := <-ended; err == nil {
		t.Error("the refresh went well")
	}
	p.isClosed(t)
}

// A worker that dies over a lookup of a refresh is replaced, and the refresh goes on.
func TestWorkerDiesDuringARefresh(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.at("api.allowed.test", originAddr)
	s := p.start(document(named("api.allowed.test", echoPort))).ready()
	asked, goOn := p.hang("api.allowed.test")
	t.Cleanup(goOn)
	p.at("api.allowed.test", origin2Addr)
	ended := make(chan error, 1)
	var r spec.Refreshed
	go func() {
		var err error
		r, err = s.again()
		ended <- err
	}()
	<-asked
	if err := syscall.Kill(child(t, s.pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.await("starting another")
	goOn()
	if err := <-ended; err != nil || len(r.Added) != 1 || r.Pins[0].Failed != "" {
		t.Errorf("%+v, %v", r, err)
	}
	if st := s.status(); st.WorkerRestarts != 1 || st.Applied != st.ReadBack {
		t.Errorf("status %+v", st)
	}
	if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", "api.allowed.test.", "udp"); err != nil || !strings.HasPrefix(out, "NOERROR") {
		t.Errorf("lookup: %s", out)
	}
}

// Whatever step a refresh fails at, what was before is in force, in every respect.
func TestRefreshFailsAtEachStep(t *testing.T) {
	t.Parallel()
	had, anew := named("api.allowed.test", echoPort), named("new.allowed.test", echoPort)
	for _, tt := range []struct {
		step  string
		names []spec.Name
	}{
		{"open", []spec.Name{had, anew}}, {"widen", []spec.Name{had, anew}}, {"names", []spec.Name{had, anew}},
		{"keep", []spec.Name{had, anew}}, {"narrow", []spec.Name{had, anew}},
		{"names", []spec.Name{anew}}, {"keep", []spec.Name{anew}}, {"narrow", []spec.Name{anew}}, // while something is taken away
	} {
		step := tt.step
		t.Run(fmt.Sprintf("%s of %d", step, len(tt.names)), func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.echo(echoPort)
			p.at("api.allowed.test", originAddr)
			p.at("new.allowed.test", origin2Addr)
			doc := document(had)
			s := p.start(doc, "CORRAL_GATE_FAILPOINT=refresh-"+step+":exit").ready()
			before := s.status()
			hosts, err := os.ReadFile(s.root("/etc/hosts"))
			if err != nil {
				t.Fatal(err)
			}
			stream := p.background("hold", fmt.Sprintf("%s:%d", originAddr, echoPort), "busy")
			s.put(otherFile, spec.Encode(document(tt.names...)), 0o644)
			out, err := s.exec("corral-gate", "refresh", "--spec", otherFile)
			if err == nil || !strings.Contains(out, "fail point refresh-"+step) {
				t.Errorf("%v: %s", err, out)
			}
			after := s.status()
			if after.Applied != before.Applied || after.ReadBack != before.Applied || len(after.Pins) != 1 || after.Pins[0].Domain != "api.allowed.test" {
				t.Errorf("status %+v", after)
			}
			if now, err := os.ReadFile(s.root("/etc/hosts")); err != nil || strings.TrimRight(string(now), "\n") != strings.TrimRight(string(hosts), "\n") {
				t.Errorf("hosts: %s, %v", now, err)
			}
			if now, err := os.ReadFile(s.root(spec.GateFile)); err != nil || string(now) != string(spec.Encode(doc)) {
				t.Errorf("file: %s, %v", now, err)
			}
			for name, want := range map[string]string{"api.allowed.test.": "NOERROR", "new.allowed.test.": "NXDOMAIN"} {
				if out, _ := p.agent(t.Context(), "lookup", "127.0.0.1:53", name, "udp"); !strings.HasPrefix(out, want) {
					t.Errorf("%s: %s", name, out)
				}
			}
			if out, err := p.agent(t.Context(), "connect", fmt.Sprintf("%s:%d", origin2Addr, echoPort)); err == nil {
				t.Errorf("what was refused is open: %s", out)
			}
			if said := stream(); said != "alive" {
				t.Errorf("stream: %s", said)
			}
		})
	}
}

// Where a refresh fails after what it takes away has gone, that stays gone, and
// nothing else has changed: not in the kernel, not in the names, not in the file.
func TestRefreshFailsInItsSecondHalf(t *testing.T) {
	t.Parallel()
	for _, fails := range []string{"open:exit", "widen:exit:2", "names:exit:2", "keep:exit:2", "narrow:exit:2"} {
		t.Run(fails, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.echo(echoPort)
			pool := p.pool(1)
			p.at("stays.allowed.test", originAddr)
			p.at("gone.allowed.test", origin2Addr)
			p.at("new.allowed.test", pool[0])
			stays, gone, anew := named("stays.allowed.test", echoPort), named("gone.allowed.test", echoPort), named("new.allowed.test", echoPort)
			doc, common := document(stays, gone), document(stays)
			doc.Policy, common.Policy = "old", spec.PartOf+"new"
			s := p.start(doc, "CORRAL_GATE_FAILPOINT=refresh-"+fails).ready()
			stream := p.background("hold", fmt.Sprintf("%s:%d", originAddr, echoPort), "busy")
			next := document(stays, anew)
			next.Policy = "new"
			s.put(otherFile, spec.Encode(next), 0o644)
			out, err := s.exec("corral-gate", "refresh", "--spec", otherFile)
			if err == nil || !strings.Contains(out, "fail point refresh-") || !strings.Contains(out, "what the policy takes away is gone (1 destination,") {
				t.Errorf("%v: %s", err, out)
			}
			st := s.status()
			if st.Policy != common.Policy || st.Applied != st.ReadBack || len(st.Pins) != 1 || st.Pins[0].Domain != stays.Domain || len(st.Pins[0].Fading) != 0 {
				t.Errorf("status %+v", st)
			}
			if now, err := os.ReadFile(s.root(spec.GateFile)); err != nil || string(now) != string(spec.Encode(common)) {
				t.Errorf("file: %s, %v", now, err)
			}
			if now, err := os.ReadFile(s.root("/etc/hosts")); err != nil || !strings.Contains(string(now), stays.Domain) || strings.Contains(string(now), gone.Domain) || strings.Contains(string(now), anew.Domain) {
				t.Errorf("hosts: %s, %v", now, err)
			}
			for name, want := range map[string]string{stays.Domain: "NOERROR", gone.Domain: "NXDOMAIN", anew.Domain: "NXDOMAIN"} {
				if out, _ := p.agent(t.Context(), "lookup", "127.0.0.1:53", name+".", "udp"); !strings.HasPrefix(out, want) {
					t.Errorf("%s: %s", name, out)
				}
			}
			for _, closed := range []string{origin2Addr, pool[0]} {
				if out, err := p.agent(t.Context(), "connect", fmt.Sprintf("%s:%d", closed, echoPort)); err == nil {
					t.Errorf("%s is open: %s", closed, out)
				}
			}
			if said := stream(); said != "alive" {
				t.Errorf("stream: %s", said)
			}
		})
	}
}

// An address that a name no longer has leaves when it has been missing for long
// enough and nothing uses it, and not before; a signal refreshes as well.
func TestGrace(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	pool := p.pool(3)
	p.ttl["api.allowed.test."] = 0
	p.at("api.allowed.test", pool[0], pool[1])
	doc := document(named("api.allowed.test", echoPort))
	doc.PinGrace = time.Second
	s := p.start(doc).ready()
	to := func(a string) string { return fmt.Sprintf("%s:%d", a, echoPort) }
	stream := p.background("hold", to(pool[0]), "idle")
	// Nobody answers at the other one any more: trying keeps it no longer.
	run(t, "ip", "netns", "exec", p.world, "iptables", "-w", "-I", "INPUT", "-d", pool[1], "-j", "DROP")
	tried := p.trying(netip.MustParseAddrPort(to(pool[1])))
	p.at("api.allowed.test", pool[2])
	s.signal(syscall.SIGHUP)
	s.await("refresh: api.allowed.test no longer has " + pool[0] + ", which stays pinned for 1s at least, and while it is in use")
	s.await("refresh: 1 name: 1 destination added, 0 removed, 0 connections ended")
	s.await("refresh: removed api.allowed.test " + pool[1] + ", which it has not had since ")
	if !over(tried, 5*time.Second) {
		t.Error("what was tried goes on")
	}
	st := s.status()
	fading := st.Pins[0].Fading
	if len(fading) != 1 || fading[0].Addr != netip.MustParseAddr(pool[0]) || fading[0].Flows != 1 || time.Since(fading[0].Since) < doc.PinGrace {
		t.Errorf("fading %+v", fading)
	}
	if out, err := p.agent(t.Context(), "connect", to(pool[0])); err != nil {
		t.Errorf("what is in use takes no more: %s", out)
	}
	if out, err := p.agent(t.Context(), "connect", to(pool[1])); err == nil {
		t.Errorf("what has left: %s", out)
	}
	if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", "api.allowed.test.", "udp"); err != nil || !strings.HasPrefix(out, "NOERROR") {
		t.Errorf("lookup: %s", out)
	}
	if hosts, err := os.ReadFile(s.root("/etc/hosts")); err != nil || strings.Contains(string(hosts), pool[0]) || !strings.Contains(string(hosts), pool[2]) {
		t.Errorf("hosts: %s, %v", hosts, err)
	}
	if said := stream(); said != "alive" {
		t.Errorf("stream: %s", said)
	}
	s.await("refresh: removed api.allowed.test " + pool[0])
	if st := s.status(); len(st.Pins[0].Fading) != 0 || st.Applied != st.ReadBack {
		t.Errorf("status %+v", st)
	}
}

// A name server and an agent together cannot make a name keep more and more: beyond a
// limit the longest gone leave, whatever uses them, and a line says so.
func TestFadingInUseHasAnEnd(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	run(t, "ip", "-n", p.world, "route", "add", "local", "44.12.0.0/16", "dev", "lo")
	p.echo(echoPort)
	const each, most = 64, 1024
	answer := func(i int) (all []string) {
		for j := range each {
			all = append(all, fmt.Sprintf("44.12.%d.%d", i, j+1))
		}
		return all
	}
	p.at("many.allowed.test", answer(0)...)
	s := p.start(document(named("many.allowed.test", echoPort))).ready()
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	const rounds = most/each + 2
	for i := 1; i <= rounds; i++ {
		p.must(p.gate, func() error {
			for _, a := range answer(i - 1) {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
				if err != nil {
					return err
				}
				fds = append(fds, fd)
				if err := unix.Connect(fd, &unix.SockaddrInet4{Port: echoPort, Addr: netip.MustParseAddr(a).As4()}); err != nil {
					return fmt.Errorf("%s: %w", a, err)
				}
			}
			return nil
		})
		p.at("many.allowed.test", answer(i)...)
		r, err := s.again()
		if err != nil || len(r.Pins) != 1 {
			t.Fatalf("refresh %d: %d pins, %v", i, len(r.Pins), err)
		}
		if len(r.Pins[0].Fading) != min(i*each, most) || len(r.Added) != each || len(r.Removed) != max(0, min(each, i*each-most)) || r.Ended != len(r.Removed) {
			t.Fatalf("refresh %d: %d fading, %d added, %d removed, %d ended", i, len(r.Pins[0].Fading), len(r.Added), len(r.Removed), r.Ended)
		}
	}
	s.saw("refresh: warning: many.allowed.test (corral.yaml:7) had more than 1024 addresses before that are in use still: the 64 longest gone leave")
	for i, fd := range fds {
		within := time.Millisecond
		if i < 2*each {
			within = endsWithin
		}
		if got := over(fd, within); got != (i < 2*each) {
			t.Fatalf("connection %d: over %v", i, got)
		}
	}
}

// R133, R029: a name on one port that is none of the web's; and another name on the
// same address and port, which is told, and can be reached as well.
func TestOtherPortsAndSharedAddresses(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(5432)
	p.at("db.allowed.test", origin2Addr)
	p.at("twin.allowed.test", origin2Addr)
	db, twin := named("db.allowed.test", 5432), named("twin.allowed.test", 5432)
	db.Liveness = true
	s := p.start(document(db)).ready()
	s.saw("OK: db.allowed.test accepts connections at " + origin2Addr + ":5432")
	s.refresh(document(db, twin))
	s.saw("notice: db.allowed.test, twin.allowed.test share " + origin2Addr + ": pins cannot tell them apart")
	if out, err := p.agent(t.Context(), "connect", origin2Addr+":5432"); err != nil {
		t.Error(out)
	}
	if out, err := p.agent(t.Context(), "connect", origin2Addr+":443"); err == nil {
		t.Error(out)
	}
	// Fewer ports for a name end what it had on the others.
	db.Ports = []uint16{5432, 443}
	s.refresh(document(db))
	db.Ports = []uint16{443}
	busy := p.background("hold", origin2Addr+":5432", "busy")
	if r := s.refresh(document(db)); r.Ended < 1 || len(r.Removed) != 1 { // what is being closed counts too
		t.Errorf("%+v", r)
	}
	if said := busy(); !strings.HasPrefix(said, "ended true") {
		t.Errorf("busy: %s", said)
	}
}

// A gate for the web ends what its document excludes from now on, and leaves the rest.
func TestRefreshOfAPublicGate(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(80)
	doc := document()
	doc.Class = spec.ClassPublic
	s := p.start(doc).ready()
	excluded, other := p.background("hold", originAddr+":80", "idle"), p.background("hold", canaryAddr+":80", "busy")
	doc.Never = prefixes("44.10.0.8/29")
	if r := s.refresh(doc); r.Ended != 1 {
		t.Errorf("%+v", r)
	}
	if said := excluded(); !strings.HasPrefix(said, "ended true") {
		t.Errorf("excluded: %s", said)
	}
	if said := other(); said != "alive" {
		t.Errorf("other: %s", said)
	}
	if out, err := p.agent(t.Context(), "connect", originAddr+":80"); err == nil {
		t.Error(out)
	}
	if st := s.status(); st.Applied != st.ReadBack {
		t.Errorf("status %+v", st)
	}
}

// BenchmarkRefresh is the time from the command to a policy in force, with a resolver
// 20 ms away.
func BenchmarkRefresh(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPair(b)
			p.rtt = 20 * time.Millisecond
			var names []spec.Name
			for i := range n {
				names = append(names, named(fmt.Sprintf("n%d.allowed.test", i), 443))
			}
			move := func(round int) {
				for i, name := range names {
					p.at(name.Domain, fmt.Sprintf("44.%d.%d.%d", 20+round%100, i/250, 1+i%250))
				}
			}
			move(0)
			s := p.start(document(names...)).ready()
			for round := 1; b.Loop(); round++ {
				move(round)
				if r, err := s.again(); err != nil || len(r.Pins) != n || len(r.Added) != n {
					b.Fatalf("%d pins, %d added, %v", len(r.Pins), len(r.Added), err)
				}
			}
		})
	}
}

// A name whose answer has grown old is asked for again, by itself, and others are not.
func TestRefreshByTTL(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.ttl["short.allowed.test."], p.ttl["long.allowed.test."] = 1, 3600
	p.at("short.allowed.test", originAddr)
	p.at("long.allowed.test", canaryAddr)
	doc := document(named("short.allowed.test", 443), named("long.allowed.test", 8443))
	doc.Refresh = spec.RefreshAuto
	s := p.start(doc).ready()
	st := s.status()
	if wait := st.NextRefresh.Sub(st.Refreshed); wait < 26*time.Second || wait > 34*time.Second {
		t.Errorf("next after %v", wait)
	}
	before := len(p.lookups())
	p.at("short.allowed.test", origin2Addr)
	s.await("refresh: pinned short.allowed.test " + origin2Addr)
	s.await("refresh: short.allowed.test no longer has " + originAddr)
	if asked := p.lookups()[before:]; slices.Contains(asked, "long.allowed.test.") || !slices.Contains(asked, "short.allowed.test.") {
		t.Errorf("asked: %v", asked)
	}
	if after := s.status(); !after.Refreshed.After(st.Refreshed) || !after.NextRefresh.After(st.NextRefresh) || after.Applied != after.ReadBack {
		t.Errorf("status %+v", after)
	}
}

// R010: while names change, the old and the new addresses are both let through.
func TestOldAndNewTogether(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	_, goOn, ended := p.heldRefresh("refresh-names")
	reached := func() {
		t.Helper()
		for _, a := range []string{originAddr, origin2Addr, canaryAddr} {
			if out, err := p.agent(t.Context(), "connect", fmt.Sprintf("%s:%d", a, echoPort)); err != nil {
				t.Errorf("%s: %s", a, out)
			}
		}
	}
	reached()
	goOn()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	reached()
}

// refreshing has the gate go by otherFile meanwhile. What comes is why that failed.
func (s *gateProc) refreshing() <-chan error {
	ended := make(chan error, 1)
	go func() {
		out, err := s.exec("corral-gate", "refresh", "--spec", otherFile)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		ended <- err
	}()
	return ended
}

// R011: what is taken away waits for nobody's name server: its connections have ended
// while a name that stays, or one that is new, is being looked up, and if that fails it
// stays gone, also after the gate has been started again; nothing else has changed.
func TestRemovalWaitsForNoLookup(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	p.echo(8443)
	pool := p.pool(2)
	p.at("gone.allowed.test", pool[0])
	p.at("kept.allowed.test", pool[1])
	kept, less := named("kept.allowed.test", echoPort, 8443), named("kept.allowed.test", echoPort)
	doc := document(kept, named("gone.allowed.test", echoPort))
	doc.Policy = "old"
	s := p.start(doc).ready()
	to := func(a string, port int) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprintf("%s:%d", a, port)) }
	gone := append(p.connections(to(pool[0], echoPort)), p.connections(to(pool[1], 8443))...)
	stays := p.connections(to(pool[1], echoPort))

	// A refresh is under way, whose lookup hangs.
	asked, goOn := p.hang("kept.allowed.test")
	t.Cleanup(goOn)
	earlier := make(chan error, 1)
	go func() {
		_, err := s.again()
		earlier <- err
	}()
	<-asked

	doc = document(less, named("new.allowed.test", echoPort))
	doc.Policy = "new"
	s.put(otherFile, spec.Encode(doc), 0o644)
	began := time.Now()
	ended := s.refreshing()
	for _, fd := range gone {
		if !over(fd, endsWithin) {
			t.Error("a connection to what was taken away goes on")
		}
	}
	if took := time.Since(began); took > endsWithin {
		t.Errorf("ended after %v", took)
	}
	if err := <-earlier; err == nil || !strings.Contains(err.Error(), "another refresh was asked for meanwhile") {
		t.Errorf("the earlier refresh: %v", err)
	}
	partly := func(what string, st spec.GateStatus) {
		t.Helper()
		if st.Policy != spec.PartOf+"new" || st.Applied != st.ReadBack || st.Unended != "" || len(st.Pins) != 1 ||
			!slices.Equal(st.Pins[0].Ports, less.Ports) || !slices.Equal(st.Pins[0].Addrs, []netip.Addr{netip.MustParseAddr(pool[1])}) {
			t.Errorf("%s: %+v", what, st)
		}
	}
	partly("while it is looked up", s.status())

	// Who asks for a change is put off by nobody.
	if out, err := s.exec("corral-gate", "refresh", "--spec", "/nowhere"); err == nil || !strings.Contains(string(out), "/nowhere") {
		t.Errorf("%v: %s", err, out)
	}
	later := make(chan error, 1)
	go func() {
		_, err := s.again()
		later <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the lookup did not hang: %v", err)
	default:
	}
	goOn()
	err := <-ended
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != 1 || !strings.Contains(err.Error(), "new.allowed.test (corral.yaml:7): no such name") ||
		!strings.Contains(err.Error(), "what the policy takes away is gone (2 destinations, 4 connections ended), what it grants anew is not in force") {
		t.Errorf("%v", err)
	}
	if err := <-later; err != nil {
		t.Errorf("the later refresh: %v", err)
	}
	partly("after the failure", s.status())
	for _, fd := range stays {
		if over(fd, time.Millisecond) {
			t.Error("a connection to what stays has ended")
		}
	}
	if out, _ := p.agent(t.Context(), "lookup", "127.0.0.1:53", "gone.allowed.test.", "udp"); !strings.HasPrefix(out, "NXDOMAIN") {
		t.Errorf("lookup: %s", out)
	}

	// As the gate is when it is started again.
	next, err := os.ReadFile(s.root(spec.GateFile))
	if err != nil {
		t.Fatal(err)
	}
	s.signal(syscall.SIGTERM)
	s.exit()
	s = p.startWith(next, "0644").ready()
	partly("started again", s.status())
	if out, err := p.agent(t.Context(), "connect", to(pool[0], echoPort).String()); err == nil {
		t.Errorf("what was taken away: %s", out)
	}

	// And when all of it can be had.
	p.at("new.allowed.test", originAddr)
	r := s.refresh(doc)
	if len(r.Pins) != 2 || len(r.Removed) != 0 || len(r.Added) != 1 || s.status().Policy != "new" {
		t.Errorf("%+v", r)
	}
}

// An address that may be pinned no longer leaves at once as well, and so does what a
// name may no longer have of private networks; the name is looked up, and has others.
func TestRefreshWithNewLimits(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.echo(echoPort)
	run(t, "ip", "-n", p.world, "addr", "add", "10.77.0.1/32", "dev", "eth0")
	pool := p.pool(2)
	p.at("api.allowed.test", pool[0])
	p.at("db.allowed.test", "10.77.0.1")
	db := named("db.allowed.test", echoPort)
	db.Private = prefixes("10.0.0.0/8")
	s := p.start(document(named("api.allowed.test", echoPort), db)).ready()
	never := p.connections(netip.MustParseAddrPort(fmt.Sprintf("%s:%d", pool[0], echoPort)))
	private := p.connections(netip.MustParseAddrPort(fmt.Sprintf("10.77.0.1:%d", echoPort)))
	db.Private = prefixes("10.0.0.0/16")
	doc := document(named("api.allowed.test", echoPort), db)
	doc.Never = append(doc.Never, prefixes(pool[0]+"/32")...)
	s.put(otherFile, spec.Encode(doc), 0o644)
	if err := <-s.refreshing(); err == nil || !strings.Contains(err.Error(), "is refused") || !strings.Contains(err.Error(), "what the policy takes away is gone (2 destinations, 4 connections ended)") {
		t.Errorf("%v", err)
	}
	for _, fd := range append(never, private...) {
		if !over(fd, endsWithin) {
			t.Error("a connection goes on")
		}
	}
	if st := s.status(); len(st.Pins) != 0 || st.Applied != st.ReadBack {
		t.Errorf("status %+v", st)
	}
	p.at("api.allowed.test", pool[1])
	p.at("db.allowed.test", originAddr)
	if r := s.refresh(doc); len(r.Pins) != 2 || len(r.Added) != 2 {
		t.Errorf("%+v", r)
	}
}
