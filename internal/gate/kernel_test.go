package gate_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// A container's memory, processes and files are not tested here: the gate runs
// as PID 1 of namespaces of its own, beside a neighbour that is all of the
// world to it.

var update = os.Getenv("UPDATE") != ""

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (UPDATE=1 accepts):\n%s", path, got)
	}
}

func TestStartOrder(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr, "A "+originAddr) // the same address twice
	p.zone("new.allowed.test", "AAAA 2001:db8:10::9")
	soft := allowed("new.allowed.test")
	soft.Soft = true
	soft.Origin = "profile opencode"
	s := p.start(document(allowed("api.allowed.test"), soft)).ready()
	var policy []string
	for _, line := range s.output() {
		if strings.HasPrefix(line, "corral-gate: ") {
			policy = append(policy, line)
		}
	}
	text := regexp.MustCompile(`\((.*), (nf_tables|legacy)\)`).ReplaceAllString(strings.Join(policy, "\n"), "($1, BACKEND)")
	golden(t, "start.txt", text+"\n")

	st := s.status()
	if st.State != spec.GateReady || st.Applied == "" || st.Applied != st.ReadBack || len(st.Pins) != 1 || len(st.Unpinned) != 1 || st.Instance == "" || st.NetNS == 0 {
		t.Errorf("status %+v", st)
	}
	if out, err := s.exec("corral-gate", "status"); err != nil || !strings.Contains(out, "ready") {
		t.Errorf("status: %v, %s", err, out)
	}
	hosts, err := s.exec("cat", "/etc/hosts", "/etc/resolv.conf")
	hostname, _ := os.Hostname()
	want := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + gateAddr + "\t" + hostname + "\n" +
		originAddr + "\tapi.allowed.test\n" + "nameserver 127.0.0.1\noptions ndots:0 timeout:1 attempts:1\n"
	if err != nil || hosts != want {
		t.Errorf("names %v:\n%s", err, hosts)
	}
	if n := len(p.sent(canaryAddr)); n != 0 {
		t.Errorf("%d packets to the canary", n)
	}

	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("status %d after SIGTERM", code)
	}
	p.isClosed(t)
}

// isClosed insists that nothing leaves the namespace of a gate that is gone.
func (p *pair) isClosed(t *testing.T) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		out, err := exec.Command("ip", "netns", "exec", p.gate, program, "-w", "-S").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
			if !strings.Contains(string(out), "-P "+chain+" DROP\n") || strings.Contains(string(out), "-A "+chain) {
				t.Errorf("%s: %s is not closed:\n%s", program, chain, out)
			}
		}
	}
	before := len(p.sent(canaryAddr)) + len(p.sent(originAddr))
	for _, to := range []string{canaryAddr, originAddr} {
		if out, err := p.agent(t.Context(), "send", to+":9"); err == nil {
			t.Errorf("a datagram to %s left: %s", to, out)
		}
	}
	if n := len(p.sent(canaryAddr)) + len(p.sent(originAddr)); n != before {
		t.Errorf("%d packets left a closed namespace", n-before)
	}
}

// Whatever step a start fails at, and however, nothing is open afterwards, and
// before it ends the gate has not said that it is ready.
func TestFailureAtEachStep(t *testing.T) {
	for _, step := range []string{"close", "read", "own", "worker", "open-resolver", "resolve", "pin", "rules", "names", "self-check"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			s := p.start(document(allowed("api.allowed.test")), "CORRAL_GATE_FAILPOINT=after-"+step+":exit")
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if slices.Contains(s.output(), spec.ReadyLine) {
				t.Error("it was ready")
			}
			p.isClosed(t)
		})
	}
}

// A gate that is gone at once leaves what was in force: its rules, which let
// out nothing that the policy does not grant.
func TestKilledAtEachStep(t *testing.T) {
	for _, step := range []string{"close", "open-resolver", "resolve", "rules", "self-check"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			s := p.start(document(allowed("api.allowed.test")), "CORRAL_GATE_FAILPOINT=after-"+step+":kill")
			if code := s.exit(); code != 137 {
				t.Errorf("status %d", code)
			}
			for _, to := range []string{canaryAddr + ":443", resolverAddr + ":53"} {
				p.agent(t.Context(), "connect", to)
				p.agent(t.Context(), "send", to)
			}
			if n := len(p.sent(canaryAddr)); n != 0 {
				t.Errorf("%d packets to the canary", n)
			}
			if slices.Contains(p.lookups(), "secret.") {
				t.Error("a lookup left")
			}
		})
	}
}

func TestSpecIsRefused(t *testing.T) {
	good := string(spec.Encode(document()))
	for what, tt := range map[string]struct{ doc, mode, want string }{
		"not JSON":      {"{", "0644", "gate spec"},
		"unknown field": {strings.Replace(good, "{", `{"extra": 1,`, 1), "0644", "extra"},
		"version":       {strings.Replace(good, `"version": 1`, `"version": 2`, 1), "0644", "version 2"},
		"writable":      {good, "0666", "nobody else can write"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			s := p.startWith([]byte(tt.doc), tt.mode)
			if code := s.exit(); code != 2 {
				t.Errorf("status %d", code)
			}
			if text := strings.Join(s.output(), "\n"); !strings.Contains(text, tt.want) || !strings.Contains(text, "everything stays closed") {
				t.Errorf("%s", text)
			}
			p.isClosed(t)
		})
	}
}

// A container that was given too few rights never serves.
func TestMissingRights(t *testing.T) {
	for _, right := range []string{"net_admin", "net_raw", "setuid", "setgid"} {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			s := p.start(document(allowed("api.allowed.test")), "WRAP=setpriv --bounding-set -"+right)
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if slices.Contains(s.output(), spec.ReadyLine) {
				t.Error("it was ready")
			}
			if right != "net_admin" { // without it nothing can be closed, nor opened
				p.isClosed(t)
			}
		})
	}
}

// Every reason for a name to have no usable address stops the start with the
// name, its place in the policy and the reason.
func TestNamesThatCannotBePinned(t *testing.T) {
	for what, tt := range map[string]struct {
		records []string
		private []netip.Prefix
		want    string
	}{
		"NXDOMAIN":         {nil, nil, "NXDOMAIN"},
		"AAAA only":        {[]string{"AAAA 2001:db8:10::9"}, nil, "AAAA"},
		"private":          {[]string{"A 10.38.0.27"}, nil, "10.38.0.27"},
		"metadata":         {[]string{"A 169.254.169.254"}, prefixes("0.0.0.0/0"), "169.254.169.254"},
		"loopback":         {[]string{"A 127.0.0.1"}, prefixes("0.0.0.0/0"), "127.0.0.1"},
		"one bad of two":   {[]string{"A " + originAddr, "A 10.38.0.27"}, nil, "10.38.0.27"},
		"the gateway":      {[]string{"A " + worldAddr}, prefixes("172.16.0.0/12"), worldAddr},
		"another's prefix": {[]string{"A 10.38.0.27"}, prefixes("192.168.0.0/16"), "10.38.0.27"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			if tt.records != nil {
				p.zone("api.allowed.test", tt.records...)
			}
			n := allowed("api.allowed.test")
			n.Private = tt.private
			s := p.start(document(n))
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			last := s.output()
			line := last[slices.IndexFunc(last, func(l string) bool { return strings.Contains(l, "corral.yaml:7") })]
			for _, w := range []string{"api.allowed.test", tt.want} {
				if !strings.Contains(line, w) {
					t.Errorf("%q does not name %q", line, w)
				}
			}
			p.isClosed(t)
		})
	}
}

func prefixes(s ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, p := range s {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	return ps
}

// A name on a private address works where the policy names the prefix for it.
func TestPrivateOptIn(t *testing.T) {
	p := newPair(t)
	run(t, "ip", "-n", p.world, "addr", "add", "10.38.0.27/32", "dev", "eth0")
	p.listen(netip.MustParseAddrPort("10.38.0.27:443"))
	p.zone("mirror.allowed.test", "A 10.38.0.27")
	n := allowed("mirror.allowed.test")
	n.Private = prefixes("10.38.0.0/24")
	p.start(document(n)).ready()
	if out, err := p.agent(t.Context(), "connect", "10.38.0.27:443"); err != nil {
		t.Error(out)
	}
}

func TestSilentNameStopsTheStart(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A 44.10.0.12") // nobody is there: the world refuses
	run(t, "ip", "-n", p.world, "addr", "add", "44.10.0.12/16", "dev", "eth0")
	s := p.start(document(allowed("api.allowed.test")))
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	if text := strings.Join(s.output(), "\n"); !strings.Contains(text, "api.allowed.test (corral.yaml:7): accepts no connection") || !strings.Contains(text, "hint: see that what is listed answers there; liveness: false in its entry") {
		t.Error(text)
	}
	p.isClosed(t)
}

func TestWhatAServiceCanReach(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.zone("any.allowed.test", "A "+origin2Addr)
	p.listen(netip.MustParseAddrPort(origin2Addr + ":8080"))
	p.listen(netip.MustParseAddrPort(originAddr + ":8080"))
	p.listen(netip.MustParseAddrPort(worldAddr + ":8001"))
	p.listen(netip.MustParseAddrPort(worldAddr + ":8002"))
	any := spec.Name{Domain: "any.allowed.test", AnyPort: true}
	doc := document(allowed("api.allowed.test"), any)
	doc.HostPorts = []uint16{8001}
	s := p.start(doc).ready()

	for _, to := range []string{originAddr + ":443", origin2Addr + ":443", origin2Addr + ":8080", worldAddr + ":8001"} {
		if out, err := p.agent(t.Context(), "connect", to); err != nil {
			t.Errorf("%s: %s", to, out)
		}
	}
	before := len(p.lookups())
	for _, what := range []string{
		"connect " + canaryAddr + ":443", "connect " + originAddr + ":8080", "connect " + worldAddr + ":8002", "connect " + resolverAddr + ":53",
		"send " + canaryAddr + ":443", "send " + originAddr + ":443", "send " + worldAddr + ":8001",
		"send " + resolverAddr + ":53", "send " + resolverAddr + ":853", "send 224.0.0.251:5353", "send 172.30.0.255:53",
		"connect 127.0.0.11:53", "send 127.0.0.11:53", "connect [" + canaryIPv6 + "]:443", "send [" + canaryIPv6 + "]:53",
	} {
		out, err := p.agent(t.Context(), strings.Fields(what)...)
		if err == nil {
			t.Errorf("%s: %s", what, out)
			continue
		}
		_, took, _ := strings.Cut(out, " after ")
		if d, err := time.ParseDuration(took); err != nil || d > 50*time.Millisecond {
			t.Errorf("%s: refused only after %s", what, took)
		}
	}
	if n := len(p.sent(canaryAddr)); n != 0 {
		t.Errorf("%d packets to the canary", n)
	}
	if n := len(p.lookups()); n != before {
		t.Errorf("lookups left: %v", p.lookups()[before:])
	}

	for name, want := range map[string]string{"api.allowed.test.": "NOERROR", "leak.evil.test.": "NXDOMAIN", "left.evil.test.": "NXDOMAIN", "localhost.": "NOERROR"} {
		for _, network := range []string{"udp", "tcp"} {
			if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", name, network); err != nil || !strings.HasPrefix(out, want) {
				t.Errorf("lookup of %s by %s: %s, %v", name, network, out, err)
			}
		}
	}

	st := s.status()
	if !slices.ContainsFunc(st.Denied, func(d spec.Traffic) bool {
		return d.Proto == "tcp" && d.Addr == netip.MustParseAddr(canaryAddr) && d.Port == 443 && d.Rule == "unlisted" && d.Count == 1
	}) {
		t.Errorf("denied: %+v", st.Denied)
	}
	if !slices.ContainsFunc(st.RefusedNames, func(r spec.Refused) bool { return r.Name == "leak.evil.test" && r.Count == 2 }) || len(st.RefusedNames) != 2 {
		t.Errorf("refused names: %+v", st.RefusedNames)
	}
	for _, want := range []string{`"verdict":"allowed","proto":"tcp","addr":"` + originAddr + `","port":443,"name":"api.allowed.test"`, `"verdict":"denied"`, `"verdict":"refused-name"`} {
		s.saw(want)
	}
}

// saw insists that a line with text was printed, or is soon.
func (s *gateProc) saw(text string) {
	s.t.Helper()
	for _, line := range s.output() {
		if strings.Contains(line, text) {
			return
		}
	}
	s.await(text)
}

func TestVerdicts(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	mark := s.verdicts(0).Mark
	p.must(p.gate, func() error {
		for port, to := range map[int]string{61001: canaryAddr, 61002: originAddr} {
			d := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}
			if c, err := d.Dial("tcp4", to+":443"); err == nil {
				c.Close()
			}
			u := net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}
			if c, err := u.Dial("udp4", to+":443"); err == nil {
				c.Write([]byte("x"))
				c.Close()
			}
		}
		return nil
	})
	type result struct {
		outcome spec.Outcome
		rule    string
	}
	got := map[string]result{}
	for _, v := range s.verdicts(mark).Verdicts {
		got[fmt.Sprintf("%s %d %s:%d", v.Proto, v.Source, v.Addr, v.Port)] = result{v.Outcome, v.Rule}
	}
	for probe, want := range map[string]result{
		"tcp 61001 44.10.9.9:443":  {spec.OutcomeRejected, "unlisted"},
		"udp 61001 44.10.9.9:443":  {spec.OutcomeRejected, "unlisted"},
		"tcp 61002 44.10.0.10:443": {spec.OutcomeAccepted, ""},
		"udp 61002 44.10.0.10:443": {spec.OutcomeRejected, "unlisted"},
	} {
		if got[probe] != want {
			t.Errorf("%s: %v, want %v", probe, got[probe], want)
		}
	}
}

// Beside an agent that floods, every probe still gets its verdict, and what is
// kept and printed of the flood is bounded.
func TestVerdictsBesideAFlood(t *testing.T) {
	p := newPair(t)
	s := p.start(document()).ready()
	stop := p.background("flood", canaryAddr+":9")
	mark := s.verdicts(0).Mark
	const probes = 50
	p.probe(probes)
	proven := 0
	for _, v := range s.verdicts(mark).Verdicts {
		if v.Outcome == spec.OutcomeRejected && v.Rule == "unlisted" && v.Proto == "tcp" {
			proven++
		}
	}
	if proven != probes {
		t.Errorf("%d of %d probes proven", proven, probes)
	}
	st := s.status()
	t.Logf("flood of %s: %d denied destinations, %d names and %d more, %d lines", stop(), len(st.Denied), len(st.RefusedNames), st.RefusedMore, len(s.output()))
	if n := len(s.output()); n > 200 {
		t.Errorf("%d lines", n)
	}
	if n := len(p.sent(canaryAddr)); n != 0 {
		t.Errorf("%d packets to the canary", n)
	}
}

// The other backend of iptables does the same.
func TestLegacyBackend(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	dir := t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-restore", "-save"} {
			path, err := exec.LookPath(family + "-legacy" + verb)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, family+verb)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := p.start(document(allowed("api.allowed.test")), "WRAP=env PATH="+dir).ready()
	if st := s.status(); st.Backend != "legacy" || st.Applied != st.ReadBack {
		t.Errorf("status %+v", st)
	}
	if out, err := p.agent(t.Context(), "connect", originAddr+":443"); err != nil {
		t.Error(out)
	}
	if out, err := p.agent(t.Context(), "connect", canaryAddr+":443"); err == nil {
		t.Error(out)
	}
	run(t, "ip", "netns", "exec", p.gate, "iptables-legacy", "-I", "OUTPUT", "-j", "ACCEPT")
	s.await("re-check failed against existing rules")
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	if out, err := p.agent(t.Context(), "connect", canaryAddr+":443"); err == nil {
		t.Error(out)
	}
}

// What an answer has told of the rules ends the gate, though it is undone at once.
func TestWhatWasToldEndsTheGate(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	alter := func(how string) {
		run(t, "ip", "netns", "exec", p.gate, "iptables", "-w", how, "OUTPUT", "-d", "192.0.2.7", "-j", "ACCEPT")
	}
	alter("-I")
	st := s.status()
	alter("-D")
	if len(st.Differences) == 0 {
		t.Fatalf("it says nothing of a rule more: %+v", st)
	}
	s.await("re-check failed against existing rules")
	if code := s.exit(); code == 0 {
		t.Error("it ended well")
	}
}

func (s *gateProc) verdicts(after uint64) spec.Verdicts {
	s.t.Helper()
	var v spec.Verdicts
	s.asked(&v, "verdicts", "--after", fmt.Sprint(after))
	return v
}

// R008: a name with a rotating pool: every address in the hosts file is in the set,
// and the other way round, and the pin is wider than one answer.
func TestRotatingPool(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	var pool []string
	for i := range 64 {
		a := fmt.Sprintf("44.10.1.%d", i+1)
		run(t, "ip", "-n", p.world, "addr", "add", a+"/32", "dev", "eth0")
		pool = append(pool, "A "+a)
	}
	p.listen(netip.MustParseAddrPort("0.0.0.0:8443"))
	p.rotate("api.allowed.test", 4, pool...)
	n := allowed("api.allowed.test")
	n.Ports = []uint16{8443}
	s := p.start(document(n)).ready()
	st := s.status()
	if len(st.Pins) != 1 || len(st.Pins[0].Addrs) <= 8 {
		t.Fatalf("pins %+v", st.Pins)
	}
	hosts, err := s.exec("cat", "/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(hosts) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "api.allowed.test" {
			listed = append(listed, f[0])
		}
	}
	if len(listed) != len(st.Pins[0].Addrs) {
		t.Errorf("%d in the hosts file, %d pinned", len(listed), len(st.Pins[0].Addrs))
	}
	for _, a := range listed {
		if out, err := p.agent(t.Context(), "connect", a+":8443"); err != nil {
			t.Errorf("%s: %s", a, out)
		}
	}
}

// R018: while the worker resolves, a service that asks the same resolver as fast as
// it can gets no answer, and none of its packets leaves.
func TestLookupsAreTheWorkersAlone(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	fifo := filepath.Join(t.TempDir(), "go-on")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := p.start(document(allowed("api.allowed.test")), "CORRAL_GATE_FAILPOINT=after-open-resolver:wait:"+fifo)
	s.await("fail point after-open-resolver")
	stop := p.background("loop", resolverAddr+":53")
	if err := os.WriteFile(fifo, nil, 0); err != nil {
		t.Fatal(err)
	}
	s.ready()
	if said := stop(); !strings.HasPrefix(said, "0 answers of ") || strings.HasSuffix(said, " of 0") {
		t.Errorf("agent: %s", said)
	}
	if slices.Contains(p.lookups(), "secret.evil.test.") {
		t.Error("a lookup of the agent's left")
	}
	if !slices.Contains(p.lookups(), "api.allowed.test.") {
		t.Errorf("the worker's lookup did not arrive: %v", p.lookups())
	}
}

// An upload over a link with a smaller MTU further on needs the one ICMP error
// that is let in.
func TestUploadOverASmallerMTU(t *testing.T) {
	const farAddr = "44.11.0.10"
	p := newPair(t)
	far := "cf" + strings.TrimPrefix(p.world, "cw")
	run(t, "ip", "netns", "add", far)
	t.Cleanup(func() { run(t, "ip", "netns", "del", far) })
	run(t, "ip", "-n", p.world, "link", "add", "far0", "mtu", "1280", "type", "veth", "peer", "name", "eth0", "netns", far)
	run(t, "ip", "-n", p.world, "addr", "add", "44.11.0.1/24", "dev", "far0")
	run(t, "ip", "-n", p.world, "link", "set", "far0", "up")
	run(t, "ip", "-n", far, "addr", "add", farAddr+"/24", "dev", "eth0")
	run(t, "ip", "-n", far, "link", "set", "eth0", "up")
	run(t, "ip", "-n", far, "route", "add", "default", "via", "44.11.0.1")
	run(t, "ip", "netns", "exec", p.world, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
	var l net.Listener
	p.must(far, func() (err error) {
		l, err = net.Listen("tcp", farAddr+":443")
		return err
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if n, _ := io.Copy(io.Discard, c); n == 1<<20 {
				c.Write([]byte("ok"))
			}
			c.Close()
		}
	})
	p.zone("far.allowed.test", "A "+farAddr)
	p.start(document(allowed("far.allowed.test"))).ready()
	if out, err := p.agent(t.Context(), "upload", farAddr+":443"); err != nil {
		t.Error(out)
	}
}

// Rules of the nat table, the engine's, are not touched, nor saved and put back, which
// would forget what they counted (R007).
func TestNatIsLeftAlone(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	list := func(how string) string {
		return run(t, "ip", "netns", "exec", p.gate, "iptables", "-w", "-t", "nat", how)
	}
	const counted = 1000
	for _, rule := range []string{
		"-N DOCKER_OUTPUT", fmt.Sprintf("-A OUTPUT -d 127.0.0.11/32 -c %d %d -j DOCKER_OUTPUT", counted, counted),
		"-A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:40001",
		"-A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:40002",
	} {
		run(t, append([]string{"ip", "netns", "exec", p.gate, "iptables", "-w", "-t", "nat"}, strings.Fields(rule)...)...)
	}
	before := list("-S")
	s := p.start(document(allowed("api.allowed.test"))).ready()
	s.signal(syscall.SIGTERM)
	s.exit()
	if after := list("-S"); after != before {
		t.Errorf("nat before:\n%safter:\n%s", before, after)
	}
	m := regexp.MustCompile(`-c (\d+) \d+ -j DOCKER_OUTPUT`).FindStringSubmatch(list("-vS"))
	if m == nil {
		t.Fatalf("no count in %s", list("-vS"))
	}
	if n, err := strconv.Atoi(m[1]); err != nil || n < counted {
		t.Errorf("%d packets were counted, and now %s: %v", counted, m[1], err)
	}
}

// Whatever is changed behind the gate's back, it closes everything and says
// what was changed.
func TestTamper(t *testing.T) {
	for what, tt := range map[string]struct {
		program, command string
		want             string
	}{
		"an accept":      {"iptables", "-I OUTPUT -d 44.10.9.9/32 -j ACCEPT", "foreign rule"},
		"a rule less":    {"iptables", "-D OUTPUT 1", "missing rule"},
		"a policy":       {"iptables", "-P OUTPUT ACCEPT", "policy"},
		"a flush":        {"iptables", "-F", "missing rule"},
		"an IPv6 accept": {"ip6tables", "-I OUTPUT -j ACCEPT", "foreign rule"},
		"a chain":        {"iptables", "-N extra", "extra"},
		"a set entry":    {"ipset", "add corral-pins 44.10.9.9,tcp:443", "44.10.9.9:443"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			s := p.start(document(allowed("api.allowed.test"))).ready()
			run(t, append([]string{"ip", "netns", "exec", p.gate, tt.program}, strings.Fields(tt.command)...)...)
			began := time.Now()
			line := s.await("re-check failed against existing rules")
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("after %v", took)
			}
			if !strings.Contains(line, tt.want) {
				t.Errorf("%q does not say %q", line, tt.want)
			}
			p.isClosed(t)
		})
	}
}

// So it does when a set that lists the same entries and matches more takes the place of
// one of its own.
func TestTamperWithASetsOptions(t *testing.T) {
	for _, option := range []string{"bitmask " + originAddr, "netmask 31"} {
		name, _, _ := strings.Cut(option, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			s := p.start(document(allowed("api.allowed.test"))).ready()
			for _, command := range []string{"create other hash:ip,port " + option, "add other " + originAddr + ",tcp:443", "swap other corral-pins"} {
				run(t, append([]string{"ip", "netns", "exec", p.gate, "ipset"}, strings.Fields(command)...)...)
			}
			line := s.await("re-check failed against existing rules")
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if !strings.Contains(line, "set corral-pins: foreign option "+name) {
				t.Errorf("%q", line)
			}
			p.isClosed(t)
		})
	}
}

// So it does when what its rules stand on is changed: where packets go, what is the
// namespace's own, and what they pass at a link.
func TestTamperBelowTheRules(t *testing.T) {
	for what, tt := range map[string]struct{ command, want string }{
		"a second link":            {"ip link add eth1 up type veth peer name eth2", "link eth1 is new"},
		"a link less":              {"ip link set eth0 down", "link eth0 is gone"},
		"an address on loopback":   {"ip addr add 44.66.66.66/32 dev lo", "address 44.66.66.66/32 on lo is new"},
		"an IPv6 one":              {"ip addr add 2001:db8:66::1/128 dev lo", "address 2001:db8:66::1/128 on lo is new"},
		"a range of its own":       {"ip route add local 44.66.0.0/16 dev lo", "route local 44.66.0.0/16 dev lo"},
		"an IPv6 one of its own":   {"ip -6 route add local 2001:db8:66::/64 dev lo", "route local 2001:db8:66::/64"},
		"an address":               {"ip addr add 44.10.77.2/24 dev eth0", "address 44.10.77.2/24 on eth0 is new"},
		"another way out":          {"ip route replace default via 44.10.0.77 dev eth0 onlink", "route to 0.0.0.0/0 via 44.10.0.77 dev eth0 is new"},
		"a route of another table": {"ip route add default via " + worldAddr + " table 77", "table 77 is new"},
		"a rule for routes":        {"ip rule add fwmark 7 lookup 77", "fwmark 0x7/0xffffffff table 77 is new"},
		"an IPv6 one for routes":   {"ip -6 rule add from 2001:db8::/32 lookup 77", "IPv6 rule"},
		"a queue":                  {"tc qdisc add dev eth0 clsact", "queue clsact at eth0"},
		"another queue":            {"tc qdisc replace dev eth0 root pfifo", "queue pfifo at eth0"},
		"forwarding":               {"sysctl -qw net.ipv4.ip_forward=1", "net.ipv4.conf.all.forwarding is 1, not 0"},
		"loopback for others":      {"sysctl -qw net.ipv4.conf.eth0.route_localnet=1", "net.ipv4.conf.eth0.route_localnet is 1, not 0"},
		"routes of the sender's":   {"sysctl -qw net.ipv4.conf.all.accept_source_route=1", "net.ipv4.conf.all.accept_source_route is 1, not 0"},
		"anybody's address":        {"sysctl -qw net.ipv4.ip_nonlocal_bind=1", "net.ipv4.ip_nonlocal_bind is 1, not 0"},
		"anybody's IPv6 address":   {"sysctl -qw net.ipv6.ip_nonlocal_bind=1", "net.ipv6.ip_nonlocal_bind is 1, not 0"},
		"ports of root's":          {"sysctl -qw net.ipv4.ip_unprivileged_port_start=7", "net.ipv4.ip_unprivileged_port_start is 7"},
		"a neighbour":              {"ip neigh replace " + worldAddr + " lladdr 02:00:00:00:00:77 dev eth0 nud permanent", "neighbour " + worldAddr + " on eth0 that was told is new"},
		"one without questions":    {"ip neigh replace " + worldAddr + " lladdr 02:00:00:00:00:77 dev eth0 nud noarp", "neighbour " + worldAddr + " on eth0 that was told is new"},
		"an IPv6 one of these":     {"ip -6 neigh replace 2001:db8:10::9 lladdr 02:00:00:00:00:77 dev eth0 nud permanent", "neighbour 2001:db8:10::9 on eth0 that was told is new"},
		"a learned one":            {"ip neigh replace " + worldAddr + " lladdr 02:00:00:00:00:77 dev eth0 nud reachable extern_learn", "neighbour " + worldAddr + " on eth0 that was told is new"},
		"one to answer for":        {"ip neigh add proxy 172.30.0.77 dev eth0", "neighbour 172.30.0.77 that is answered for is new"},
		"no questions":             {"ip link set eth0 arp off", "link eth0 is veth, number"},
		"ports of its proofs":      {"sysctl -qw net.ipv4.ip_local_port_range=32768\t61000", "net.ipv4.ip_local_port_range is 32768 61000, not 32768 60999"},
		"connections out of order": {"sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1", "net.netfilter.nf_conntrack_tcp_be_liberal is 1, not 0"},
		"connections seen late":    {"sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0", "net.netfilter.nf_conntrack_tcp_loose is 0, not 1"},
		"everybody's packets":      {"sysctl -qw net.ipv4.conf.eth0.bc_forwarding=1", "net.ipv4.conf.eth0.bc_forwarding is 1, not 0"},
		"answers for others":       {"sysctl -qw net.ipv4.conf.all.proxy_arp_pvlan=1", "net.ipv4.conf.all.proxy_arp_pvlan is 1, not 0"},
		"answers to others":        {"sysctl -qw net.ipv4.conf.eth0.arp_ignore=8", "net.ipv4.conf.eth0.arp_ignore is 8, not 0"},
		"pings by everybody":       {"sysctl -qw net.ipv4.ping_group_range=0\t77", "net.ipv4.ping_group_range is 0 77"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("api.allowed.test", "A "+originAddr)
			run(t, "ip", "netns", "exec", p.gate, "sysctl", "-qw", "net.ipv4.ip_forward=0")
			run(t, "ip", "netns", "exec", p.gate, "sysctl", "-qw", "net.ipv4.conf.all.accept_source_route=0")
			run(t, "ip", "-n", p.gate, "link", "add", "tunl8", "type", "veth", "peer", "name", "tunl9") // what is down is nobody's way
			s := p.start(document(allowed("api.allowed.test"))).ready()
			run(t, append([]string{"ip", "netns", "exec", p.gate}, strings.Split(tt.command, " ")...)...)
			line := s.await("the namespace is not as it was when the gate began")
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if !strings.Contains(line, tt.want) {
				t.Errorf("%q does not say %q", line, tt.want)
			}
			p.isClosed(t)
		})
	}
}

// A namespace that was prepared before the gate began is not opened, where corral
// asked an engine for one.
func TestPreparedNamespace(t *testing.T) {
	for what, tt := range map[string]struct{ command, want string }{
		"a second link":          {"ip link add eth1 up type veth peer name eth2", "2 links that lead out"},
		"an address on loopback": {"ip addr add 44.66.66.66/32 dev lo", "address 44.66.66.66/32 on lo"},
		"a rule for routes":      {"ip rule add fwmark 7 lookup 77", "fwmark"},
		"a queue":                {"tc qdisc add dev eth0 clsact", "queue clsact at eth0"},
		"anybody's address":      {"sysctl -qw net.ipv4.ip_nonlocal_bind=1", "net.ipv4.ip_nonlocal_bind 1"},
		"a neighbour":            {"ip neigh replace " + worldAddr + " lladdr {world} dev eth0 nud permanent", "neighbour " + worldAddr + " on eth0 that was told"},
		"one without questions":  {"ip neigh replace " + worldAddr + " lladdr {world} dev eth0 nud noarp", "neighbour " + worldAddr + " on eth0 that was told"},
		"one to answer for":      {"ip neigh add proxy 172.30.0.77 dev eth0", "neighbour 172.30.0.77 that is answered for"},
		"ports of its proofs":    {"sysctl -qw net.ipv4.ip_local_port_range=32768\t61000", "net.ipv4.ip_local_port_range 32768 61000, in which ports 61000 to 61099 are"},
		"loopback for others":    {"sysctl -qw net.ipv4.conf.eth0.route_localnet=1", "net.ipv4.conf.eth0.route_localnet 1"},
		"routes of the sender's": {"sysctl -qw net.ipv4.conf.default.accept_source_route=0 net.ipv4.conf.eth0.accept_source_route=1", "net.ipv4.conf.eth0.accept_source_route 1"},
		"addresses of its own":   {"sysctl -qw net.ipv4.conf.eth0.accept_local=1", "net.ipv4.conf.eth0.accept_local 1"},
		"marks for routes":       {"sysctl -qw net.ipv4.conf.lo.src_valid_mark=1", "net.ipv4.conf.lo.src_valid_mark 1"},
		"answers for others":     {"sysctl -qw net.ipv4.conf.eth0.proxy_arp=1", "net.ipv4.conf.eth0.proxy_arp 1"},
		"of those behind one":    {"sysctl -qw net.ipv4.conf.eth0.proxy_arp_pvlan=1", "net.ipv4.conf.eth0.proxy_arp_pvlan 1"},
		"everybody's packets":    {"sysctl -qw net.ipv4.conf.eth0.bc_forwarding=1", "net.ipv4.conf.eth0.bc_forwarding 1"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			command := strings.ReplaceAll(tt.command, "{world}", p.worldLink())
			run(t, append([]string{"ip", "netns", "exec", p.gate}, strings.Split(command, " ")...)...)
			s := p.start(document())
			line := s.await("the namespace has what no engine makes")
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if !strings.Contains(line, tt.want) {
				t.Errorf("%q does not say %q", line, tt.want)
			}
			p.isClosed(t)
			alone := document()
			alone.Address, alone.Gateway, alone.Sandbox = netip.Addr{}, netip.Addr{}, ""
			p.start(alone).ready() // others' stacks may have more
		})
	}
}

// worldLink is the hardware address of the world.
func (p *pair) worldLink() string {
	p.t.Helper()
	return strings.TrimSpace(run(p.t, "ip", "netns", "exec", p.world, "cat", "/sys/class/net/eth0/address"))
}

// What a namespace has of its machine, and what a kernel notes by itself when it
// speaks with everybody and with many, is no reason to stay closed.
func TestHonestNamespace(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	gate := func(args ...string) { run(t, append([]string{"ip", "netns", "exec", p.gate}, args...)...) }
	for _, name := range []string{"route_localnet", "accept_source_route", "accept_local", "src_valid_mark", "proxy_arp", "proxy_arp_pvlan", "bc_forwarding"} {
		for _, of := range []string{"all", "default", "lo", "eth0"} { // as the machine has it
			gate("sysctl", "-qw", "net.ipv4.conf."+of+"."+name+"=1")
		}
	}
	crowds := []string{"172.30.0.255", "255.255.255.255", "224.0.0.1"}
	speak := func() {
		p.must(p.gate, func() error {
			for _, to := range crowds {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.BindToDevice(fd, "eth0")); err != nil {
					return err
				}
				_ = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 9, Addr: netip.MustParseAddr(to).As4()}) // refused, once there are rules
			}
			return nil
		})
	}
	speak()
	told := run(t, "ip", "-n", p.gate, "neigh", "show", "nud", "noarp")
	for _, to := range crowds {
		if !strings.Contains(told, to+" ") {
			t.Errorf("no %s in %q", to, told)
		}
	}
	s := p.start(document()).ready()
	speak()
	if n := s.status().Namespace; n == nil || n.Altered == nil || len(n.Altered) > 0 {
		t.Errorf("%+v", n)
	}
}

// What is mounted in a gate's view while it runs is found, whatever is said of it by
// what was mounted over /proc; and it is not opened where something was mounted over
// the programs before.
func TestMountedOver(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const tool = "/usr/sbin/xtables-nft-multi"
	other := filepath.Join(dir, "other")
	run(t, "cp", tool, other)
	extensions, err := filepath.Glob("/usr/lib/*/xtables/libxt_u32.so")
	if err != nil || len(extensions) != 1 {
		t.Fatalf("%q, %v", extensions, err)
	}
	for what, tt := range map[string]struct{ command, want string }{
		"the tool for rules":      {"mount --bind " + other + " " + tool, "mount at " + tool + " is new"},
		"an extension of it":      {"mount --bind " + other + " " + extensions[0], "mount at " + extensions[0] + " is new"},
		"a directory":             {"mount -t tmpfs x /opt", "mount at /opt is new"},
		"settings of the kernel":  {"mount -t tmpfs x /proc/sys", "mount at /proc/sys is new"},
		"all of the kernel":       {"mount -t tmpfs x /proc", "mount at /proc is tmpfs"},
		"over what is mounted":    {"mount -t tmpfs x /run", "mount at /run is tmpfs"},
		"a mount of other rights": {"mount -o remount,bind,ro /run", "mount at /run is tmpfs"},
		"a mount less":            {"umount -l /run", "mount at /run is gone"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			s := p.start(document()).ready()
			if out, err := s.exec(strings.Split(tt.command, " ")...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			line := s.await("the namespace is not as it was when the gate began")
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			if !strings.Contains(line, tt.want) {
				t.Errorf("%q does not say %q", line, tt.want)
			}
			p.isClosed(t)
		})
	}
	before := func(p *pair, target string, doc spec.Gate) *gateProc {
		script := filepath.Join(p.t.TempDir(), "before")
		if err := os.WriteFile(script, []byte("#!/bin/sh\nset -e\nmount --bind "+other+" "+target+"\nexec \"$@\"\n"), 0o755); err != nil {
			p.t.Fatal(err)
		}
		return p.start(doc, "WRAP="+script)
	}
	for what, target := range map[string]string{"the tool before": tool, "an extension before": extensions[0]} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			s := before(p, target, document())
			line := s.await("the namespace has what no engine makes")
			if code := s.exit(); code != 1 || !strings.Contains(line, "a mount at "+target) {
				t.Errorf("status %d: %s", code, line)
			}
			p.isClosed(t)
			alone := document()
			alone.Address, alone.Gateway, alone.Sandbox = netip.Addr{}, netip.Addr{}, ""
			before(p, target, alone).ready() // others' stacks may have more
		})
	}
	t.Run("what engines mount", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		s := before(p, "/etc/hostname", document()).ready()
		if n := s.status().Namespace; n == nil || n.Altered == nil || len(n.Altered) > 0 {
			t.Errorf("%+v", n)
		}
	})
}

// Sockets that pass by the rules are told while they are there; those by which the
// gate's own programs read its rules are not.
func TestPacketSocketsInTheNamespace(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	for range 5 {
		if n := s.status().Namespace; n == nil || n.PacketSockets == nil || len(n.PacketSockets) > 0 || n.Altered == nil || len(n.Altered) > 0 {
			t.Fatalf("%+v", n)
		}
	}
	for _, kind := range []struct {
		family, typ, protocol int
		want                  string
	}{{unix.AF_PACKET, unix.SOCK_RAW, 0, "a packet socket of user 0"}, {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP, "a raw socket of user 0"}, {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_UDP, "a raw6 socket of user 0"}} {
		p.must(p.gate, func() error {
			fd, err := unix.Socket(kind.family, kind.typ|unix.SOCK_CLOEXEC, kind.protocol)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if got := s.status().Namespace.PacketSockets; !slices.Equal(got, []string{kind.want}) {
				t.Errorf("%q, not %q", got, kind.want)
			}
			return nil
		})
	}
	if st := s.status(); len(st.Namespace.PacketSockets) > 0 || st.State != spec.GateReady {
		t.Errorf("%+v", st)
	}
}

// A worker that is killed is replaced. Meanwhile nothing opens, and its port
// is nobody else's.
func TestWorkerKilled(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	mark := s.verdicts(0).Mark
	worker := child(t, s.pid)
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.must(p.gate, func() error {
		if pc, err := net.ListenPacket("udp4", "127.0.0.1:53"); err == nil {
			pc.Close()
			t.Error("the port of a dead worker could be taken")
		}
		return nil
	})
	if out, err := p.agent(t.Context(), "connect", canaryAddr+":443"); err == nil {
		t.Error(out)
	}
	s.await("starting another")
	st := s.status()
	if st.WorkerRestarts != 1 || st.State != spec.GateReady {
		t.Errorf("status %+v", st)
	}
	if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", "api.allowed.test.", "udp"); err != nil || !strings.HasPrefix(out, "NOERROR") {
		t.Errorf("lookup: %s", out)
	}
	if m := s.verdicts(0).Mark; m <= mark {
		t.Errorf("mark %d after %d", m, mark)
	}
	if n := len(p.sent(canaryAddr)); n != 0 {
		t.Errorf("%d packets to the canary", n)
	}
}

func TestWorkerHasNoRights(t *testing.T) {
	p := newPair(t)
	s := p.start(document()).ready()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child(t, s.pid)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapAmb:\t0000000000000000",
		"NoNewPrivs:\t1", "Uid:\t64999\t64999\t64999\t64999", "Gid:\t64999\t64999\t64999\t64999", "Groups:\t \n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in:\n%s", want, b)
		}
	}
}

// Processes whose parents died under an exec are collected.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.start(document()).ready()
	out, err := s.exec("setsid", "--wait", "sh", "-c", "true & exec sh -c 'kill -9 $$'")
	if err == nil {
		t.Fatalf("the shell survived: %s", out)
	}
	limit := time.Now().Add(20 * time.Second)
	for {
		out, err := s.exec("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null; true")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out, ") Z 1 ") {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("zombies:\n%s", out)
		}
	}
}

// A gate that starts in a namespace in which another one left its rules closes
// it first, and serves again.
func TestStartsAgain(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	first := s.status().Instance
	s.signal(syscall.SIGKILL)
	s.exit()
	s = p.start(document(allowed("api.allowed.test"))).ready()
	if second := s.status().Instance; second == first {
		t.Error("the same instance twice")
	}
	if out, err := p.agent(t.Context(), "connect", originAddr+":443"); err != nil {
		t.Error(out)
	}
}

func TestServeElsewhereIsRefused(t *testing.T) {
	p := newPair(t)
	binary, err := gateBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ip", "netns", "exec", p.gate, binary, "serve").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "PID 1") {
		t.Errorf("%v: %s", err, out)
	}
	if rules := run(t, "ip", "netns", "exec", p.gate, "iptables", "-w", "-S"); strings.Contains(rules, "DROP") {
		t.Errorf("it closed the namespace:\n%s", rules)
	}
}

// The local ports of a gate's namespace for who names none, where a test takes all.
const fewPortsFirst, fewPortsLast = 50000, 50031

// fewPorts leaves the gate's namespace no others, and none to a connection that has
// ended.
func (p *pair) fewPorts() {
	p.t.Helper()
	run(p.t, "ip", "netns", "exec", p.gate, "sysctl", "-qw", "net.ipv4.tcp_max_tw_buckets=0")
	run(p.t, "ip", "netns", "exec", p.gate, "sysctl", "-qw", fmt.Sprintf("net.ipv4.ip_local_port_range=%d %d", fewPortsFirst, fewPortsLast))
}

// takePorts takes all of a kind, until the test ends.
func (p *pair) takePorts(kind int) {
	p.t.Helper()
	p.must(p.gate, func() error {
		for port := fewPortsFirst; port <= fewPortsLast; port++ {
			fd, err := unix.Socket(unix.AF_INET, kind, 0)
			if err != nil {
				return err
			}
			p.t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
				return err
			}
		}
		return nil
	})
}

// A watchdog without a port to try from cannot tell: the gate closes, and does not say
// that the rules are wrong.
func TestEveryTCPPortIsTaken(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.fewPorts()
	s := p.start(document(allowed("api.allowed.test"))).ready()
	p.takePorts(unix.SOCK_STREAM)
	said := s.await("re-check: cannot tell whether unlisted address ")
	if !strings.Contains(said, "every local port is taken") {
		t.Errorf("%s", said)
	}
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	p.isClosed(t)
}

// Nor is a resolver late that was not asked.
func TestEveryUDPPortIsTaken(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.fewPorts()
	s := p.start(document(allowed("api.allowed.test"))).ready()
	p.takePorts(unix.SOCK_DGRAM)
	r, err := s.again()
	if err != nil || len(r.Pins) != 1 || !strings.Contains(r.Pins[0].Failed, "the resolver cannot be reached: every local port to ask it from is taken (udp)") {
		t.Errorf("%+v, %v", r, err)
	}
}

// What the gate tries by itself, at its start and for a name that is new, and what a
// checker connects to while it runs, is no traffic of a service's. What a service
// connects to is, from whichever port.
func TestOwnConnectionsAreNoTraffic(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.zone("dead.allowed.test", "A 44.10.0.12", "A 44.10.0.13") // nobody is there
	run(t, "ip", "-n", p.world, "addr", "add", "44.10.0.12/16", "dev", "eth0")
	api := allowed("api.allowed.test")
	api.Ports = append(api.Ports, 9) // refused there
	s := p.start(document(api)).ready()
	idle := func(when string) {
		t.Helper()
		if st := s.status(); len(st.Allowed) != 0 || st.AllowedMore != 0 {
			t.Errorf("%s: %+v", when, st.Allowed)
		}
	}
	idle("after the start")
	dead := allowed("dead.allowed.test")
	r := s.refresh(document(api, dead))
	if len(r.Silent) != 1 || r.Silent[0].Domain != dead.Domain || !slices.Equal(r.Silent[0].Ports, dead.Ports) || r.Silent[0].Why == "" || r.Silent[0].Origin != "corral.yaml:7" {
		t.Errorf("silent: %+v", r.Silent)
	}
	idle("after a refresh with a name that is dead")
	if r := s.refresh(document(api, dead)); len(r.Silent) != 0 || len(r.Added) != 0 {
		t.Errorf("the same again: %+v", r)
	}

	connect := func(from int) {
		t.Helper()
		p.must(p.gate, func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{Port: from}}
			c, err := d.Dial("tcp4", net.JoinHostPort(originAddr, fmt.Sprint(servicePort)))
			if err == nil {
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
			return err
		})
	}
	before := s.status().Probed
	mark := s.verdicts(0).Mark
	connect(spec.ProbePortFirst)
	connect(spec.ProbePortLast)
	idle("while a checker runs")
	if got := s.status().Probed - before; got != 2 {
		t.Errorf("%d probed", got)
	}
	connect(spec.ProbePortFirst - 1)
	connect(spec.ProbePortLast + 1)
	s.verdicts(max(mark, 1))
	connect(spec.ProbePortFirst)
	if st := s.status(); len(st.Allowed) != 1 || st.Allowed[0].Count != 3 || st.Allowed[0].Name != "api.allowed.test" {
		t.Errorf("a service's own: %+v", st.Allowed)
	}
}
