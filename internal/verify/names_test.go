package verify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/corral-sandbox/corral/internal/spec"
)

// gateDNS answers as a gate does: from pins, everything else does not exist.
type gateDNS struct {
	instance string
	pins     map[string][]string // with a trailing dot
	noEDE    bool
	wildcard string // answers every other name

	silentChaos bool                // knows no verdict
	said        string              // the verdict on every probe
	links       map[string][]string // by spec.LinkName
	deaf        bool                // to questions about links
	loses       int                 // of so many datagrams it takes the last one
}

// serve starts g on loopback and points e's two ways to it.
func (g gateDNS) serve(t *testing.T, e *env) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go g.answer(conn)
	e.dns = netip.MustParseAddrPort(conn.LocalAddr().String())
	e.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return insist(ctx, "udp", e.dns.String())
	}}
}

// answer serves until conn is closed.
func (g gateDNS) answer(conn net.PacketConn) {
	b := make([]byte, 4096)
	for came := 1; ; came++ {
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		if g.loses > 0 && came%g.loses != 0 {
			continue
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		if out, err := g.reply(m); err == nil {
			_, _ = conn.WriteTo(out, from)
		}
	}
}

func (g gateDNS) reply(m dnsmessage.Message) ([]byte, error) {
	q := m.Questions[0]
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type}
	r := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true}, Questions: m.Questions}
	addrs := g.pins[q.Name.String()]
	if len(addrs) == 0 && g.wildcard != "" {
		addrs = []string{g.wildcard}
	}
	opt := &dnsmessage.OPTResource{}
	switch {
	case q.Class == dnsmessage.ClassCHAOS && q.Name.String() == spec.InstanceName:
		r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.TXTResource{TXT: []string{g.instance}}})
	case q.Class == dnsmessage.ClassCHAOS && strings.HasSuffix(q.Name.String(), "."+spec.LinkZone):
		if g.deaf {
			r.RCode = dnsmessage.RCodeServerFailure
		}
		for _, text := range g.links[q.Name.String()] {
			r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.TXTResource{TXT: []string{text}}})
		}
	case q.Class == dnsmessage.ClassCHAOS && g.said != "":
		r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.TXTResource{TXT: []string{g.said}}})
	case q.Class == dnsmessage.ClassCHAOS && g.silentChaos:
	case len(addrs) > 0 && q.Type == dnsmessage.TypeA:
		for _, a := range addrs {
			r.Answers = append(r.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}})
		}
	case len(addrs) > 0:
	default:
		r.RCode = dnsmessage.RCodeNameError
		if !g.noEDE {
			opt.Options = []dnsmessage.Option{{Code: 15, Data: []byte{0, edeBlocked}}}
		}
	}
	r.Additionals = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: 1232}, Body: opt}}
	return r.Pack()
}

func TestNamesOnlyPinned(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	pins := map[string][]string{"api.allowed.test.": {"192.0.2.1", "192.0.2.2"}}
	const hosts = "127.0.0.1 localhost\n192.0.2.2 api.allowed.test # pinned\n192.0.2.1 API.allowed.test\n"
	for _, tt := range []struct {
		name   string
		dns    gateDNS
		hosts  string
		names  []string
		result spec.Result
		detail string
	}{
		{"as pinned", gateDNS{pins: pins}, hosts, []string{"api.allowed.test"}, spec.OK, ""},
		{"no names", gateDNS{}, "", nil, spec.OK, ""},
		{"flooded by somebody else", gateDNS{pins: pins, loses: 6}, hosts, []string{"api.allowed.test"}, spec.OK, ""},
		{"not in hosts", gateDNS{pins: pins}, "", []string{"api.allowed.test"}, spec.Failed, "in /etc/hosts"},
		{"hosts has more", gateDNS{pins: pins}, hosts + "192.0.2.3 api.allowed.test\n", []string{"api.allowed.test"}, spec.Failed, "192.0.2.3"},
		{"a name more", gateDNS{pins: pins}, hosts + "44.10.0.66 evil.test\n", []string{"api.allowed.test"}, spec.Failed, "/etc/hosts has a line of nobody's: 44.10.0.66 evil.test"},
		{"a name more in a line", gateDNS{pins: pins}, strings.Replace(hosts, "API.allowed.test", "API.allowed.test evil.test", 1), []string{"api.allowed.test"}, spec.Failed, "evil.test"},
		{"a name more, by IPv6", gateDNS{pins: pins}, hosts + "2001:db8::1 evil.test\n", []string{"api.allowed.test"}, spec.Failed, "evil.test"},
		{"a name of loopback's elsewhere", gateDNS{pins: pins}, hosts + "44.10.0.66 localhost\n", []string{"api.allowed.test"}, spec.Failed, "44.10.0.66 localhost"},
		{"a name more at loopback", gateDNS{pins: pins}, hosts + "127.0.0.2 evil.test\n", []string{"api.allowed.test"}, spec.Failed, "evil.test"},
		{"the container's own line", gateDNS{pins: pins}, hosts + "127.0.0.1 " + hostname + ".test " + hostname + "\n\n# done\n", []string{"api.allowed.test"}, spec.OK, ""},
		{"the container's name elsewhere", gateDNS{pins: pins}, hosts + "44.10.0.66 " + hostname + "\n", []string{"api.allowed.test"}, spec.Failed, "44.10.0.66"},
		{"unknown to the gate", gateDNS{}, hosts, []string{"api.allowed.test"}, spec.Failed, "NameError"},
		{"a resolver that knows everything", gateDNS{wildcard: "192.0.2.9"}, "", nil, spec.Failed, "an unlisted name"},
		{"a resolver that is not ours", gateDNS{noEDE: true}, "", nil, spec.Failed, "does not say that it is blocked"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, map[string]string{"/etc/hosts": tt.hosts})
			tt.dns.serve(t, e)
			want(t, e, spec.Check{Name: "names-only-pinned", Names: tt.names}, tt.result, tt.detail)
		})
	}
}

// The host's own name resolves wherever a host service is declared, and leads
// to the gateway and nowhere else.
func TestNameOfTheHost(t *testing.T) {
	const gateway = "172.30.0.1"
	at := func(addrs ...string) map[string][]string { return map[string][]string{spec.HostName + ".": addrs} }
	line := func(addr string) string { return addr + " " + spec.HostName + "\n" }
	for _, tt := range []struct {
		name   string
		pins   map[string][]string
		hosts  string
		addr   string
		result spec.Result
		detail string
	}{
		{"as it should be", at(gateway), line(gateway), gateway, spec.OK, ""},
		{"the gate does not write it", at(gateway), "", gateway, spec.Failed, "corral-host is [] in /etc/hosts"},
		{"the gate does not answer it", nil, line(gateway), gateway, spec.Failed, "corral-host: the gate says"},
		{"neither", nil, "", gateway, spec.Failed, "corral-host"},
		{"elsewhere", at("172.30.0.2"), line("172.30.0.2"), gateway, spec.Failed, "not the gateway's address 172.30.0.1"},
		{"there and elsewhere", at(gateway, "192.0.2.1"), line(gateway) + line("192.0.2.1"), gateway, spec.Failed, "not the gateway's address"},
		{"the two differ", at(gateway), line("172.30.0.2"), gateway, spec.Failed, "in /etc/hosts and"},
		{"nobody says where it is", at(gateway), line(gateway), "", spec.Untold, "which address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, map[string]string{"/etc/hosts": tt.hosts})
			gateDNS{pins: tt.pins}.serve(t, e)
			c := spec.Check{Name: "names-only-pinned", Names: []string{spec.HostName}}
			if tt.addr != "" {
				c.Addr = netip.MustParseAddr(tt.addr)
			}
			want(t, e, c, tt.result, tt.detail)
		})
	}
}

func TestNamesOnlyPinnedTriesTheOrdinaryWayToo(t *testing.T) {
	e, other := tree(t, map[string]string{"/etc/hosts": ""}), newEnv()
	gateDNS{}.serve(t, e)
	gateDNS{wildcard: "192.0.2.9"}.serve(t, other)
	e.resolver = other.resolver
	want(t, e, spec.Check{Name: "names-only-pinned"}, spec.Failed, "resolves to [192.0.2.9]")
}

func TestSameNetNSAsGate(t *testing.T) {
	agent := statusFile(1000, 1000, "", noCaps, 1, 2)
	e := tree(t, map[string]string{"/proc/self/ns/": "", "/proc/self/status": agent, "/proc/1/status": agent, "/proc/31/status": agent, "/proc/31/ns/": ""})
	if err := os.Symlink("net:[4026532000]", e.path("/proc/self/ns/net")); err != nil {
		t.Fatal(err)
	}
	gateDNS{instance: "abc"}.serve(t, e)
	check := func(instance string, ns uint64) spec.Check {
		return spec.Check{Name: "same-netns-as-gate", Gate: &spec.Joined{Instance: instance, NetNS: ns}}
	}
	want(t, e, check("abc", 4026532000), spec.OK, "")
	want(t, e, check("abc", 4026532001), spec.Failed, "net:[4026532001]")
	want(t, e, check("abd", 4026532000), spec.Failed, "another run")
	want(t, e, check("", 4026532000), spec.Untold, "no gate")
	want(t, e, spec.Check{Name: "same-netns-as-gate"}, spec.Untold, "no gate")
	// Somebody joined the processes, from the host's network.
	if err := os.Symlink("net:[4026531840]", e.path("/proc/31/ns/net")); err != nil {
		t.Fatal(err)
	}
	want(t, e, check("abc", 4026532000), spec.Failed, "process 31 (agent) is in another network namespace: net:[4026531840]")
	// So did one thread of a process.
	if err := os.Remove(e.path("/proc/31/ns/net")); err != nil {
		t.Fatal(err)
	}
	two := strings.Replace(agent, "Threads:\t1", "Threads:\t2", 1)
	for name, text := range map[string]string{"status": two, "task/31/status": two, "task/32/status": two} {
		p := e.path("/proc/31/" + name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p)+"/ns", 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("net:[4026531840]", e.path("/proc/31/task/32/ns/net")); err != nil {
		t.Fatal(err)
	}
	want(t, e, check("abc", 4026532000), spec.Failed, "thread 32 of process 31 (agent) is in another network namespace: net:[4026531840]")
	e.dns = netip.MustParseAddrPort("127.0.0.1:1")
	want(t, e, check("abc", 4026532000), spec.Untold, "does not answer: connection refused")
}

func TestDNSClosedReadsResolvConf(t *testing.T) {
	probes := spec.DefaultProbes()
	c := spec.Check{Name: "dns-closed", Probes: &probes, Addr: netip.MustParseAddr("127.0.0.2")}
	want(t, tree(t, map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.11\n"}), c, spec.Failed, "resolv.conf names 127.0.0.11")
	want(t, tree(t, map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.1\nnameserver 192.0.2.1\n"}), c, spec.Failed, "192.0.2.1")
	want(t, tree(t, map[string]string{"/etc/resolv.conf": ""}), c, spec.Failed, "resolv.conf")
}

func TestAllowed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	e := tree(t, nil)
	gateDNS{pins: map[string][]string{"api.allowed.test.": {"127.0.0.3", "127.0.0.1"}}}.serve(t, e)
	want(t, e, spec.Check{Name: "allowed:a", Host: "api.allowed.test", Port: port}, spec.OK, "")
	want(t, e, spec.Check{Name: "allowed:b", Host: "other.test", Port: port}, spec.Failed, "no such host")
	want(t, e, spec.Check{Name: "allowed:c", Host: "api.allowed.test"}, spec.Untold, "no host and port")
	want(t, e, spec.Check{Name: "host-service:1", Addr: netip.MustParseAddr("127.0.0.1"), Port: port}, spec.OK, "")
	l.Close()
	want(t, e, spec.Check{Name: "allowed:a", Host: "api.allowed.test", Port: port}, spec.Failed, "refused")
}

func FuzzParseAnswer(f *testing.F) {
	q, _ := query(7, "x.test", dnsmessage.TypeA, dnsmessage.ClassINET)
	var m dnsmessage.Message
	_ = m.Unpack(q)
	r, _ := gateDNS{}.reply(m)
	f.Add(r)
	f.Add(q)
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseAnswer(b, 7) })
}

func FuzzParseHosts(f *testing.F) {
	f.Add([]byte("127.0.0.1 localhost # x\n::1 y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for name := range parseHosts(b) {
			if name != strings.ToLower(name) {
				t.Errorf("%q", name)
			}
		}
	})
}

func TestParseIPv6(t *testing.T) {
	lo := "00000000000000000000000000000001 01 80 10 80       lo\n"
	got, err := parseIPv6([]byte(lo + "fe80000000000000004200fffe000001 02 40 20 80     eth0\n"))
	if err != nil || len(got) != 1 || got[0] != "fe80::42:ff:fe00:1 on eth0" {
		t.Errorf("%q %v", got, err)
	}
	for _, bad := range []string{"x\n", "zz000000000000000000000000000001 01 80 10 80 lo\n"} {
		if got, err := parseIPv6([]byte(bad)); err == nil {
			t.Errorf("%q is read as %q", bad, got)
		}
	}
}

func FuzzParseIPv6(f *testing.F) {
	f.Add([]byte("00000000000000000000000000000001 01 80 10 80       lo\n"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseIPv6(b) })
}

func TestIPv6Disabled(t *testing.T) {
	c := spec.Check{Name: "ipv6-disabled"}
	conf := func(values map[string]string) *env {
		files := map[string]string{"/proc/net/if_inet6": ""}
		for name, v := range values {
			files["/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6"] = v + "\n"
		}
		return tree(t, files)
	}
	want(t, conf(map[string]string{"all": "1", "default": "1", "lo": "0", "eth0": "1"}), c, spec.OK, "")
	want(t, conf(map[string]string{"all": "1", "default": "1", "eth0": "0"}), c, spec.Failed, "on for eth0")
	want(t, conf(map[string]string{"all": "1", "default": "0"}), c, spec.Failed, "on for default")
	want(t, conf(nil), c, spec.Untold, "settings are not")
	want(t, tree(t, nil), c, spec.OK, "")
}
