package gate_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/spec"
)

// ask puts one question to whoever answers on port 53 of the gate's loopback.
func (p *pair) ask(name string, qtype, class uint16) *dns.Msg {
	p.t.Helper()
	var m *dns.Msg
	p.must(p.gate, func() (err error) {
		q := new(dns.Msg).SetQuestion(name, qtype).SetEdns0(1232, false)
		q.Question[0].Qclass = class
		// A flood fills the buffer of the one socket, so that any question may be lost.
		for range 20 {
			c := dns.Client{Timeout: 5 * time.Second}
			if class == dns.ClassCHAOS {
				c.Timeout = 500 * time.Millisecond
			}
			if m, _, err = c.Exchange(q, "127.0.0.1:53"); err == nil {
				break
			}
		}
		return err
	})
	return m
}

// a is what a name leads to, in words.
func (p *pair) a(name string) string {
	p.t.Helper()
	m := p.ask(name+".", dns.TypeA, dns.ClassINET)
	words := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Answer {
		words = append(words, rr.(*dns.A).A.String())
	}
	if o := m.IsEdns0().Option; len(o) == 1 {
		words = append(words, dns.ExtendedErrorCodeToString[o[0].(*dns.EDNS0_EDE).InfoCode])
	}
	return strings.Join(words, " ")
}

// verdict is what the gate tells those inside of a probe: each thing once,
// however many packets it was.
func (p *pair) verdict(probe spec.Probe) string {
	p.t.Helper()
	var texts []string
	for _, rr := range p.ask(spec.VerdictName(probe), dns.TypeTXT, dns.ClassCHAOS).Answer {
		_, said, _ := strings.Cut(strings.Join(rr.(*dns.TXT).Txt, ""), " ")
		if !slices.Contains(texts, said) {
			texts = append(texts, said)
		}
	}
	return strings.Join(texts, ", ")
}

// knock connects, or sends a datagram, from a probe port.
func (p *pair) knock(proto string, source uint16, to netip.AddrPort) (err error) {
	p.must(p.gate, func() error {
		d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{Port: int(source)}}
		if proto == "udp" {
			d.LocalAddr = &net.UDPAddr{Port: int(source)}
		}
		var c net.Conn
		if c, err = d.Dial(proto, to.String()); err != nil {
			return nil
		}
		defer c.Close()
		if proto == "udp" {
			_, err = c.Write([]byte("x"))
		} else {
			c.(*net.TCPConn).SetLinger(0)
		}
		return nil
	})
	return err
}

// everywhere makes the world answer at every address that it has no route to,
// on the given ports.
func (p *pair) everywhere(ports ...uint16) {
	run(p.t, "ip", "-n", p.world, "rule", "add", "pref", "40000", "lookup", "100")
	run(p.t, "ip", "-n", p.world, "route", "add", "local", "default", "dev", "lo", "table", "100")
	for _, port := range ports {
		to := port + 10000 // addresses of the world's own listen on the port itself
		p.listen(netip.AddrPortFrom(netip.IPv4Unspecified(), to))
		run(p.t, "ip", "netns", "exec", p.world, "iptables", "-w", "-t", "nat", "-A", "PREROUTING", "!", "-d", "44.10.0.0/16", "-p", "tcp", "--dport", fmt.Sprint(port),
			"-j", "REDIRECT", "--to-ports", fmt.Sprint(to))
	}
}

func public() spec.Gate {
	g := document()
	g.Class = spec.ClassPublic
	g.Never = prefixes("44.10.7.0/24")
	return g
}

// Every address that is not globally routable, and every one of this host and
// its networks, is refused by the kernel, whatever is beside it is let through,
// on the web's ports and no other.
func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.everywhere(80, 443, 8443)
	run(t, "ip", "-n", p.gate, "-6", "route", "add", "default", "via", canaryIPv6)
	s := p.start(public()).ready()

	source := uint16(spec.ProbePortFirst)
	next := func() uint16 {
		if source++; source > spec.ProbePortLast {
			source = spec.ProbePortFirst
		}
		return source
	}
	// try says what became of a connection and a datagram, by the gate's word.
	type try struct {
		err     error
		verdict string
	}
	try2 := func(proto string, to netip.AddrPort) try {
		probe := spec.Probe{Proto: proto, Source: next(), Addr: to.Addr(), Port: to.Port()}
		err := p.knock(proto, probe.Source, to)
		return try{err, p.verdict(probe)}
	}
	mine := map[string]bool{}
	for _, b := range append(netguard.Special(4), netguard.Block{Prefix: prefixes("44.10.7.0/24")[0]}, netguard.Block{Prefix: prefixes(worldAddr + "/32")[0]}) {
		want := "rejected special-purpose"
		if b.Class == netguard.Unclassified {
			want = "rejected host-or-container"
			if netguard.Classify(b.Prefix.Addr()) != netguard.Public {
				want = "rejected special-purpose"
			}
		}
		for _, a := range []netip.Addr{b.Prefix.Addr(), lastOf(b.Prefix)} {
			if a.IsLoopback() || a.IsUnspecified() { // the namespace's own
				continue
			}
			mine[a.String()] = true
			for _, proto := range []string{"tcp", "udp"} {
				got := try2(proto, netip.AddrPortFrom(a, 443))
				if got.err == nil {
					t.Errorf("%s %s of %s: connected", proto, a, b.Prefix)
				}
				unsent := got.verdict == "" && (errors.Is(got.err, syscall.ENETUNREACH) || errors.Is(got.err, syscall.EACCES) || errors.Is(got.err, syscall.EINVAL))
				if got.verdict != want && !(unsent && (a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || netguard.Classify(a) == netguard.ThisNetwork)) {
					t.Errorf("%s %s of %s: %q (%v), want %q", proto, a, b.Prefix, got.verdict, got.err, want)
				}
			}
		}
	}
	for to := range mine {
		if n := len(p.sent(to)); n != 0 && to != worldAddr {
			t.Errorf("%d packets to %s", n, to)
		}
	}
	for _, b := range append(netguard.Special(4), netguard.Block{Prefix: prefixes("44.10.7.0/24")[0]}) {
		for _, a := range []netip.Addr{b.Prefix.Addr().Prev(), lastOf(b.Prefix).Next()} {
			if !a.IsValid() || !a.Is4() || netguard.Classify(a) != netguard.Public || netip.MustParsePrefix("44.10.0.0/16").Contains(a) {
				continue
			}
			if got := try2("tcp", netip.AddrPortFrom(a, 443)); got.err != nil || got.verdict != "accepted" {
				t.Errorf("%s beside %s: %q (%v)", a, b.Prefix, got.verdict, got.err)
			}
		}
	}
	away := netip.MustParseAddr("45.0.0.1")
	for _, tt := range []struct {
		proto, want string
		port        uint16
	}{{"tcp", "accepted", 80}, {"tcp", "accepted", 443}, {"tcp", "rejected unlisted", 8443}, {"tcp", "rejected unlisted", 53}, {"udp", "rejected unlisted", 443}, {"udp", "rejected unlisted", 53}} {
		if got := try2(tt.proto, netip.AddrPortFrom(away, tt.port)); got.verdict != tt.want || (got.err == nil) != (tt.want == "accepted") {
			t.Errorf("%s %d: %q (%v), want %q", tt.proto, tt.port, got.verdict, got.err, tt.want)
		}
	}
	// The same address in the clothes of the other family, and everything of it.
	for to, want := range map[string]string{
		"::ffff:10.0.0.1": "rejected special-purpose", "::ffff:169.254.169.254": "rejected special-purpose",
		"64:ff9b::a00:1": "rejected ipv6", "2002:a00:1::1": "rejected ipv6", "2001:0:a00:1::1": "rejected ipv6", "fd00::1": "rejected ipv6",
		"2a00:1450::1": "rejected ipv6", "::10.0.0.1": "rejected ipv6",
	} {
		if got := try2("tcp", netip.AddrPortFrom(netip.MustParseAddr(to), 443)); got.err == nil || got.verdict != want {
			t.Errorf("%s: %q (%v)", to, got.verdict, got.err)
		}
	}
	if st := s.status(); st.Applied == "" || st.Applied != st.ReadBack || st.Class != spec.ClassPublic {
		t.Errorf("status %+v", st)
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// A gate of class public looks names up for its service; what leads inward, at
// once or later, leads nowhere, and what no public host can be called leaves
// nothing of itself outside (R020).
func TestPublicNames(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.everywhere(80, 443, 8443)
	p.zone("www.evil.test", "A 45.0.0.1", "AAAA 2a00::1", "TXT x")
	p.zone("rebind.evil.test", "A 45.0.0.2")
	p.zone("mixed.evil.test", "A 45.0.0.3", "A "+worldAddr)
	p.zone("inward.evil.test", "A 169.254.169.254")
	p.zone("host.evil.test", "A 44.10.7.7")
	p.zone("six.evil.test", "AAAA 2a00::1")
	s := p.start(public()).ready()
	if n := p.lookups(); len(n) != 0 {
		t.Errorf("looked up at bring-up: %v", n)
	}
	if text, err := s.exec("cat", "/etc/resolv.conf"); err != nil || text != "nameserver 127.0.0.1\noptions ndots:0 timeout:5 attempts:1\n" {
		t.Errorf("%v: %s", err, text)
	}
	reach := func(name string) (string, []string) {
		said := p.a(name)
		var reached []string
		for _, word := range strings.Fields(said)[1:] {
			if a, err := netip.ParseAddr(word); err == nil {
				for _, port := range []uint16{80, 443, 8443} {
					if _, err := p.agent(t.Context(), "connect", netip.AddrPortFrom(a, port).String()); err == nil {
						reached = append(reached, fmt.Sprint(port))
					}
				}
			}
		}
		return said, reached
	}
	if said, reached := reach("www.evil.test"); said != "NOERROR 45.0.0.1" || !slices.Equal(reached, []string{"80", "443"}) {
		t.Errorf("%s, reached %v", said, reached)
	}
	if said, reached := reach("rebind.evil.test"); said != "NOERROR 45.0.0.2" || len(reached) != 2 {
		t.Errorf("%s, reached %v", said, reached)
	}
	p.zone("rebind.evil.test", "A "+worldAddr) // its owner's next answer
	for name, want := range map[string]string{
		"rebind.evil.test": "NXDOMAIN Filtered",
		"mixed.evil.test":  "NXDOMAIN Filtered",
		"inward.evil.test": "NXDOMAIN Filtered",
		"host.evil.test":   "NXDOMAIN Filtered",
		"six.evil.test":    "NOERROR",
		"none.evil.test":   "NXDOMAIN",
	} {
		if said, reached := reach(name); said != want || len(reached) > 0 {
			t.Errorf("%s: %s, reached %v, want %s", name, said, reached, want)
		}
	}
	// However the old answer is kept, the address is what counts.
	for _, to := range []string{worldAddr + ":443", "169.254.169.254:80", "44.10.7.7:443"} {
		if out, err := p.agent(t.Context(), "connect", to); err == nil {
			t.Errorf("%s: %s", to, out)
		}
	}

	before := len(p.lookups())
	for _, name := range []string{"secret." + spec.ProbeDomain, "c2VjcmV0.local", "secret", "_s.evil.test", "secret.internal", "1.0.0.10.in-addr.arpa", "secret.onion"} {
		if said := p.a(name); said != "NXDOMAIN Blocked" {
			t.Errorf("%s: %s", name, said)
		}
	}
	for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeMX, dns.TypeTXT, dns.TypeNS, dns.TypeANY} {
		if m := p.ask("www.evil.test.", qtype, dns.ClassINET); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
			t.Errorf("%s", m)
		}
	}
	if seen := p.lookups()[before:]; len(seen) != 0 {
		t.Errorf("asked outside: %v", seen)
	}
	for _, name := range p.lookups() {
		if !strings.HasSuffix(name, ".evil.test.") {
			t.Errorf("asked outside: %s", name)
		}
	}
	for network, name := range map[string]string{"tcp": "www.evil.test.", "udp": "www.evil.test."} {
		if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", name, network); err != nil || !strings.HasPrefix(out, "NOERROR") {
			t.Errorf("%s: %s", network, out)
		}
	}
	// Nobody but the worker asks.
	if out, err := p.agent(t.Context(), "lookup", resolverAddr+":53", "secret.evil.test.", "udp"); err == nil {
		t.Error(out)
	}
	s.saw(`"verdict":"looked-up"`)
	s.saw(`"verdict":"refused-name"`)
	st := s.status()
	counted := func(name string) uint64 {
		for _, r := range st.RefusedNames {
			if r.Name == name {
				return r.Count
			}
		}
		return 0
	}
	if counted("www.evil.test") != 0 || counted("secret") != 1 || counted("inward.evil.test") != 1 {
		t.Errorf("refused: %+v", st.RefusedNames)
	}
}

// At a gate that sinks names every stranger is one address, behind which a rule
// refuses everything; nobody outside hears of it.
func TestSinkedNames(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	doc := document(allowed("api.allowed.test"))
	doc.SinkNames = true
	s := p.start(doc).ready()
	s.saw("corral-gate: OK: an unlisted name is answered here, 192.88.99.1, udp and tcp; unlisted address 192.88.99.1:443 refused by rule unlisted")
	for name, want := range map[string]string{
		"api.allowed.test": "NOERROR " + originAddr, "secret.evil.test": "NOERROR 192.88.99.1", "secret": "NOERROR 192.88.99.1",
		"x." + spec.ProbeDomain: "NOERROR 192.88.99.1", "localhost": "NOERROR 127.0.0.1",
	} {
		if said := p.a(name); said != want {
			t.Errorf("%s: %s", name, said)
		}
	}
	probe := spec.Probe{Proto: "tcp", Source: 61001, Addr: spec.SinkAddress, Port: 443}
	if err := p.knock("tcp", probe.Source, netip.AddrPortFrom(probe.Addr, probe.Port)); !errors.Is(err, syscall.ECONNREFUSED) || p.verdict(probe) != "rejected unlisted" {
		t.Errorf("%v, %q", err, p.verdict(probe))
	}
	if out, err := p.agent(t.Context(), "connect", originAddr+":443"); err != nil {
		t.Error(out)
	}
	if n := len(p.sent(spec.SinkAddress.String())); n != 0 {
		t.Errorf("%d packets to the sink", n)
	}
	for _, name := range p.lookups() {
		if name != "api.allowed.test." {
			t.Errorf("asked outside: %s", name)
		}
	}
	s.saw(`"verdict":"refused-name","name":"secret.evil.test"`)
	if st := s.status(); !slices.ContainsFunc(st.RefusedNames, func(r spec.Refused) bool { return r.Name == "secret.evil.test" }) {
		t.Errorf("refused: %+v", st.RefusedNames)
	}
}

// Beside an agent that floods the gate with refused packets and lookups, each
// probe's verdict is told to those inside.
func TestVerdictsInsideBesideAFlood(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.start(document(allowed("api.allowed.test"))).ready()
	stop := p.background("flood", canaryAddr+":9")
	const probes = 40
	began := time.Now()
	for i := range uint16(probes) {
		probe := spec.Probe{Proto: "tcp", Source: spec.ProbePortFirst + i, Addr: netip.MustParseAddr(canaryAddr), Port: 443}
		want := "rejected unlisted"
		if i%2 == 1 {
			probe.Addr, want = netip.MustParseAddr(originAddr), "accepted"
		}
		p.knock("tcp", probe.Source, netip.AddrPortFrom(probe.Addr, probe.Port))
		if got := p.verdict(probe); got != want {
			t.Errorf("source port %d: %q, want %q", probe.Source, got, want)
		}
	}
	t.Logf("%d probes and their verdicts beside a flood in %v", probes, time.Since(began))
	stop()
	if m := p.ask("tcp.40000.443.2c0a0909."+spec.VerdictZone, dns.TypeTXT, dns.ClassCHAOS); m.Rcode != dns.RcodeNameError {
		t.Errorf("a port that is no probe's: %s", m)
	}
}

// Without a document the environment says everything, and every mistake in it
// leaves the gate closed, with status 2.
func TestGateByEnvironment(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.listen(netip.MustParseAddrPort(worldAddr + ":8001"))
	probes := "CORRAL_PROBES=unlisted=" + canaryAddr + ",ipv6=" + canaryIPv6
	s := p.startWith(nil, "0644", "CORRAL_ALLOW=api.allowed.test:443", "CORRAL_RESOLVERS="+resolverAddr, "CORRAL_HOST_PORTS=8001", "CORRAL_REFRESH=manual", probes).ready()
	s.saw("corral-gate: read from the environment, CORRAL_ALLOW, CORRAL_HOST_PORTS, CORRAL_PROBES, CORRAL_REFRESH, CORRAL_RESOLVERS: 1 name, 0 links, 0 clients, 1 host port")
	s.saw("pinned api.allowed.test " + originAddr + ", ports 443, for 1m0s (CORRAL_ALLOW)")
	for to, want := range map[string]bool{originAddr + ":443": true, worldAddr + ":8001": true, canaryAddr + ":443": false} {
		if out, err := p.agent(t.Context(), "connect", to); (err == nil) != want {
			t.Errorf("%s: %s", to, out)
		}
	}
	if said := p.a(spec.HostName); said != "NOERROR "+worldAddr {
		t.Error(said)
	}
	if out, err := s.exec("corral-gate", "settings"); err != nil || !strings.Contains(out, "CORRAL_ALLOW") {
		t.Errorf("%v: %s", err, out)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exit(); code != 0 {
		t.Errorf("status %d", code)
	}
	p.isClosed(t)
}

// A host port where nobody answers is told in words that are true without a relay.
func TestHostPortByEnvironment(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s := p.startWith(nil, "0644", "CORRAL_EGRESS=none", "CORRAL_HOST_PORTS=8009")
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	if text := strings.Join(s.output(), "\n"); !strings.Contains(text, "host service on port 8009: nobody answers at "+worldAddr+":8009: ") || !strings.Contains(text, "CORRAL_HOST_PORTS") {
		t.Error(text)
	}
	p.isClosed(t)
}

func TestEnvironmentIsRefused(t *testing.T) {
	good := spec.Encode(document())
	linked := document()
	linked.Links = []spec.Link{{Name: "db", Addr: netip.MustParseAddr("169.254.169.254"), Port: 80}}
	// One that names no gateway.
	toMachine := document()
	toMachine.Address, toMachine.Gateway = netip.Addr{}, netip.Addr{}
	toMachine.Links = []spec.Link{{Name: "db", Addr: netip.MustParseAddr(worldAddr), Port: 8001}}
	for what, tt := range map[string]struct {
		doc  []byte
		env  []string
		want []string
	}{
		"a document's too":      {spec.Encode(toMachine), nil, []string{"link \"db\": " + worldAddr + " is refused: it is the default gateway, this machine"}},
		"a link past a router":  {nil, []string{"CORRAL_EGRESS=none", "CORRAL_LINKS=db=172.31.0.3:5432"}, []string{"link \"db\": 172.31.0.3 is refused: this gate is on no network"}},
		"a link to itself":      {nil, []string{"CORRAL_EGRESS=none", "CORRAL_LINKS=db=" + gateAddr + ":5432"}, []string{"link \"db\": " + gateAddr + " is refused: it is this gate's own"}},
		"nothing is said":       {nil, nil, []string{"there is no /etc/corral/gate.json, and no variable"}},
		"several mistakes":      {nil, []string{"CORRAL_ALLOW=1.2.3.4,a.test:0", "CORRAL_EGRES=public"}, []string{"CORRAL_ALLOW: \"1.2.3.4\"", "CORRAL_ALLOW: \"a.test:0\"", "CORRAL_EGRES: there is no such setting; did you mean CORRAL_EGRESS?"}},
		"Docker's resolver":     {nil, []string{"CORRAL_ALLOW=a.allowed.test"}, []string{"CORRAL_RESOLVERS: it must name a name server here"}},
		"a link to credentials": {spec.Encode(linked), nil, []string{"/etc/corral/gate.json: gate spec: link \"db\": 169.254.169.254 is refused: metadata"}},
		"a link to the machine": {nil, []string{"CORRAL_EGRESS=none", "CORRAL_LINKS=db=" + worldAddr + ":8001"}, []string{"CORRAL_LINKS: link \"db\": " + worldAddr + " is refused: "}},
		"a document too":        {good, []string{"CORRAL_EGRESS=none"}, []string{"there is /etc/corral/gate.json, and the environment sets CORRAL_EGRESS"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			s := p.startWith(tt.doc, "0644", tt.env...)
			if code := s.exit(); code != 2 {
				t.Errorf("status %d", code)
			}
			text := strings.Join(s.output(), "\n")
			for _, w := range append(tt.want, "everything stays closed") {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in\n%s", w, text)
				}
			}
			p.isClosed(t)
		})
	}
}

// What keeps a gate without a corral closed is told in words of the stack that it
// is in: nothing of policies, of config.yaml, or for corral on the host.
func TestAloneSaysWhatToDo(t *testing.T) {
	t.Parallel()
	resolver := "CORRAL_RESOLVERS=" + resolverAddr
	byDocument := document(spec.Name{Domain: "dead.allowed.test", Ports: []uint16{80, 443}, Liveness: true, Origin: "ours"})
	byDocument.Address, byDocument.Gateway = netip.Addr{}, netip.Addr{}
	for what, tt := range map[string]struct {
		doc  []byte
		env  []string
		want []string
	}{
		"no such name": {nil, []string{"CORRAL_ALLOW=none.allowed.test", resolver},
			[]string{"none.allowed.test (CORRAL_ALLOW): ", "hint: correct the name, or take it out of CORRAL_ALLOW; CORRAL_RESOLVERS says which name servers are asked"}},
		"nobody at the name server": {nil, []string{"CORRAL_ALLOW=a.allowed.test", "CORRAL_RESOLVERS=" + originAddr},
			[]string{"hint: CORRAL_RESOLVERS must list name servers that answer containers of this machine: those of the machine's /etc/resolv.conf"}},
		"a private address": {nil, []string{"CORRAL_ALLOW=inner.allowed.test", resolver},
			[]string{"10.38.0.27 is refused: private", `"private": ["10.38.0.27/32"] for this name`}},
		"nobody at the name": {nil, []string{"CORRAL_ALLOW=dead.allowed.test", resolver},
			[]string{"dead.allowed.test (CORRAL_ALLOW): accepts no connection on any of its ports 80 443: ", `hint: see that what is listed answers there; CORRAL_LIVENESS: "off"`}},
		"nobody at one port": {nil, []string{"CORRAL_ALLOW=dead.allowed.test:22", resolver},
			[]string{"dead.allowed.test (CORRAL_ALLOW): accepts no connection on port 22: "}},
		"by a document": {spec.Encode(byDocument), nil,
			[]string{"dead.allowed.test (ours): accepts no connection on any of its ports 80 443: ", `hint: see that what is listed answers there; without "liveness" in /etc/corral/gate.json`}},
		"no right to end the worker": {nil, []string{"CORRAL_EGRESS=none", "WRAP=setpriv --bounding-set=-kill"},
			[]string{"everything stays closed: the gate lacks KILL", "hint: cap_add: [NET_ADMIN, NET_RAW, SETUID, SETGID, KILL]"}},
		"no right to be another": {nil, []string{"CORRAL_EGRESS=none", "WRAP=setpriv --bounding-set=-setuid,-setgid"},
			[]string{"everything stays closed: the gate lacks SETUID, SETGID"}},
		"no right to records": {nil, []string{"CORRAL_EGRESS=none", "WRAP=setpriv --bounding-set=-net_raw,-kill"},
			[]string{"not all rules can be set, everything stays closed: the gate lacks NET_RAW, KILL"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.zone("inner.allowed.test", "A 10.38.0.27")
			p.zone("dead.allowed.test", "A "+originAddr)
			run(t, "ip", "netns", "exec", p.world, "iptables", "-w", "-A", "INPUT", "-d", originAddr, "-p", "tcp", "-m", "multiport", "--dports", "22,80,443", "-j", "REJECT", "--reject-with", "tcp-reset")
			s := p.startWith(tt.doc, "0644", tt.env...)
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			text := strings.Join(s.output(), "\n")
			for _, w := range tt.want {
				if !strings.Contains(text, w) {
					t.Errorf("no %q", w)
				}
			}
			for _, not := range []string{spec.GateUnanswered, "config.yaml", "the policy", "the kernel lacks", "private: ["} {
				if strings.Contains(text, not) {
					t.Errorf("it says %q", not)
				}
			}
			p.isClosed(t)
		})
	}
}
