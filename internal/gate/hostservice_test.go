package gate_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

// serveWith accepts connections in the world and leaves each to do.
func (p *pair) serveWith(at string, do func(*net.TCPConn)) {
	p.t.Helper()
	var l net.Listener
	p.must(p.world, func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			do(c.(*net.TCPConn))
		}
	}()
	p.t.Cleanup(func() { l.Close(); <-done })
}

// A relay accepts before it knows whether anybody is behind it. So only a
// connection that is not reset at once counts, and who refuses is told from who
// is silent. R047: the silent one is a firewall of the host's, named with the
// bridge, the address and the port.
func TestHostServices(t *testing.T) {
	t.Parallel()
	const port = 8001
	at := fmt.Sprintf("%s:%d", worldAddr, port)
	var kept []net.Conn
	t.Cleanup(func() {
		for _, c := range kept {
			c.Close()
		}
	})
	for name, tt := range map[string]struct {
		world func(p *pair)
		says  []string // empty: the gate is ready
	}{
		"waits for its client": {func(p *pair) { p.serveWith(at, func(c *net.TCPConn) { kept = append(kept, c) }) }, nil},
		"speaks first": {func(p *pair) {
			p.serveWith(at, func(c *net.TCPConn) { c.Write([]byte("hello")); kept = append(kept, c) })
		}, nil},
		"hangs up in order": {func(p *pair) { p.serveWith(at, func(c *net.TCPConn) { c.Close() }) }, nil},
		"a relay with nobody behind it": {func(p *pair) { p.serveWith(at, func(c *net.TCPConn) { c.SetLinger(0); c.Close() }) },
			[]string{"host service on port 8001: nothing listens on 127.0.0.1:8001 of this machine", "hint: start what listens on port 8001"}},
		"a relay whose service takes no connection": {func(p *pair) {
			p.serveWith(at, func(c *net.TCPConn) { time.AfterFunc(spec.RelayDial, func() { c.SetLinger(0); c.Close() }) })
		}, []string{"host service on port 8001: nothing listens on 127.0.0.1:8001 of this machine"}},
		"nobody": {func(*pair) {},
			[]string{"nothing listens on 127.0.0.1:8001 of this machine", "hint: start what listens on port 8001"}},
		"a firewall that drops": {func(p *pair) {
			p.serveWith(at, func(c *net.TCPConn) { c.Close() })
			run(t, "ip", "netns", "exec", p.world, "iptables", "-w", "-A", "INPUT", "-p", "tcp", "--dport", "8001", "-j", "DROP")
		}, []string{"the relay listens on 172.30.0.1:8001", "a firewall of this machine drops it",
			"ufw allow in on corral0 to 172.30.0.1 port 8001 proto tcp", "firewall-cmd --add-rich-rule=", `destination address="172.30.0.1" port port="8001" protocol="tcp" accept`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			tt.world(p)
			doc := document()
			doc.HostPorts = []uint16{port}
			s := p.start(doc)
			if len(tt.says) == 0 {
				s.ready()
				return
			}
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			text := strings.Join(s.output(), "\n")
			if strings.Contains(text, spec.GateUnanswered) {
				t.Errorf("it lays this on the outside:\n%s", text)
			}
			for _, want := range tt.says {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			p.isClosed(t)
		})
	}
}

// The host has its name inside where services may use a port of it, and only
// there: in the hosts file and from the names server.
func TestTheHostsName(t *testing.T) {
	for _, tt := range []struct {
		ports  []uint16
		rcode  string
		pinned bool
	}{{[]uint16{8001}, "NOERROR", true}, {nil, "NXDOMAIN", false}} {
		p := newPair(t)
		p.listen(netip.MustParseAddrPort(worldAddr + ":8001"))
		doc := document()
		doc.HostPorts = tt.ports
		s := p.start(doc).ready()
		hosts, err := s.exec("cat", "/etc/hosts")
		if line := worldAddr + "\tcorral-host\n"; err != nil || strings.Contains(hosts, line) != tt.pinned || strings.Contains(hosts, "corral-host") != tt.pinned {
			t.Errorf("ports %v: hosts file %v:\n%s", tt.ports, err, hosts)
		}
		for _, network := range []string{"udp", "tcp"} {
			if out, err := p.agent(t.Context(), "lookup", "127.0.0.1:53", "corral-host.", network); err != nil || !strings.HasPrefix(out, tt.rcode) {
				t.Errorf("ports %v: lookup by %s: %s, %v", tt.ports, network, out, err)
			}
		}
		if st := s.status(); len(st.Pins) != 0 {
			t.Errorf("ports %v: pins %v", tt.ports, st.Pins)
		}
		s.signal(syscall.SIGTERM)
		s.exit()
	}
}

// R047, R057: a name server that is asked at the gateway's address and says
// nothing may be behind a firewall of the host's: that is told.
func TestSilentNameServerOfTheHost(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	var pc net.PacketConn
	p.must(p.world, func() (err error) {
		pc, err = net.ListenPacket("udp4", worldAddr+":53")
		return err
	})
	defer pc.Close() // it hears and does not answer
	doc := document(allowed("api.allowed.test"))
	doc.Resolvers = []netip.Addr{netip.MustParseAddr(worldAddr)}
	began := time.Now()
	s := p.start(doc)
	if code := s.exit(); code != 1 {
		t.Errorf("status %d", code)
	}
	t.Logf("after %v", time.Since(began).Round(time.Second))
	text := strings.Join(s.output(), "\n")
	for _, want := range []string{"api.allowed.test (corral.yaml:7): no answer", "asked at 172.30.0.1:53", "ufw allow in on corral0 to 172.30.0.1 port 53 proto udp", "firewall-cmd", spec.GateUnanswered} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	p.isClosed(t)
}
