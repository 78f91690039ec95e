package verify

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

func TestPortsNeverRepeatADestination(t *testing.T) {
	p := newPorts()
	to := target{"tcp", netip.MustParseAddrPort("192.0.2.1:80")}
	seen := map[uint16]bool{}
	for range 100 {
		port, err := p.take(to, nil)
		if err != nil || seen[port] || port < spec.ProbePortFirst || port > spec.ProbePortLast {
			t.Fatal(port, err, seen[port])
		}
		seen[port] = true
		p.release(port)
	}
	if port, err := p.take(to, nil); err == nil {
		t.Errorf("port %d serves it twice", port)
	}
	if _, err := p.take(target{"udp", to.addr}, nil); err != nil {
		t.Errorf("another protocol: %v", err)
	}
	// Docker rewrites the port: two of its ports are one destination.
	a, _ := p.take(target{"tcp", netip.MustParseAddrPort("127.0.0.11:53")}, nil)
	p.release(a)
	all := map[uint16]bool{}
	for port := range uint16(100) {
		if port += spec.ProbePortFirst; port != a {
			all[port] = true
		}
	}
	if b, err := p.take(target{"tcp", netip.MustParseAddrPort("127.0.0.11:40000")}, all); err == nil {
		t.Errorf("port %d serves the engine's resolver twice", b)
	}
}

func TestClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	quiet, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	chatty, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer chatty.Close()
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := chatty.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = chatty.WriteTo(b[:n], from)
		}
	}()
	at := func(proto string, a net.Addr) target {
		return target{proto, netip.MustParseAddrPort(a.String())}
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()

	for _, tt := range []struct {
		name     string
		to       target
		handover bool
		result   spec.Result
		detail   string
		probes   int
	}{
		{"a listener", at("tcp", l.Addr()), false, spec.Failed, "answers", 0},
		{"an answer", at("udp", chatty.LocalAddr()), false, spec.Failed, "answers", 0},
		{"refused", at("tcp", nobody.Addr()), false, spec.OK, "", 1},
		{"refused, at handover", at("tcp", nobody.Addr()), true, spec.OK, "", 0},
		{"silent", at("udp", quiet.LocalAddr()), false, spec.Untold, "not refused at once", 1},
		{"port unreachable", at("udp", nobody.Addr()), false, spec.Untold, "not refused at once", 1},
		{"silent, at handover", at("udp", quiet.LocalAddr()), true, spec.Untold, "not refused at once", 0},
		{"port unreachable, at handover", at("udp", nobody.Addr()), true, spec.Untold, "not refused at once", 0},
		{"no address", target{"tcp", netip.AddrPort{}}, false, spec.Untold, "no address", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv()
			e.handover = tt.handover
			got := e.closed(t.Context(), []target{tt.to}, somePayload)
			if got.result != tt.result || !strings.Contains(got.detail, tt.detail) || len(got.probes) != tt.probes {
				t.Errorf("%+v", got)
			}
			for _, p := range got.probes {
				if p.Source < spec.ProbePortFirst || p.Source > spec.ProbePortLast || p.Proto != tt.to.proto || p.Port != tt.to.addr.Port() {
					t.Errorf("probe %+v", p)
				}
			}
		})
	}
	if got := newEnv().closed(t.Context(), nil, nil); got.result != spec.Untold {
		t.Errorf("no targets: %+v", got)
	}
}

func TestAPortInUseIsPassedOver(t *testing.T) {
	held, err := net.Listen("tcp4", fmt.Sprintf(":%d", spec.ProbePortFirst))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	e := newEnv()
	probe, got, err := e.send(t.Context(), target{"tcp", netip.MustParseAddrPort("127.0.0.1:1")}, nil)
	if probe.Source == spec.ProbePortFirst || got != turned {
		t.Errorf("%+v %v %v", probe, got, err)
	}
}

// TestBehindReject runs the whole checker in a namespace that refuses as a gate
// does, with addresses that exist nowhere else.
func TestBehindReject(t *testing.T) {
	testenv.Require(t, "netns")
	const setup = `set -e
ip link set lo up
ip link add d0 type veth peer name d1; ip link set d1 up
ip addr add 172.30.0.5/24 dev d0; ip link set d0 up; ip route add default via 172.30.0.1
sysctl -qw net.ipv4.ping_group_range="0 2147483647"
iptables -w -P OUTPUT DROP
iptables -w -A OUTPUT -o lo -j ACCEPT
iptables -w -A OUTPUT -p tcp -j REJECT --reject-with tcp-reset
iptables -w -A OUTPUT -j REJECT --reject-with icmp-admin-prohibited
`
	probes := spec.DefaultProbes()
	gateway := netip.MustParseAddr("172.30.0.1")
	v := spec.Verify{Version: spec.Version, Service: "main", Checks: []spec.Check{
		{Name: "unlisted-host-blocked", Probes: &probes},
		{Name: "udp-closed", Probes: &probes},
		{Name: "icmp-closed", Probes: &probes},
		{Name: "metadata-blocked", Probes: &probes},
		{Name: "gateway-closed", Addr: gateway, Ports: []uint16{22, 2375}},
		{Name: "port-not-listed-blocked:h", Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.7")}, Port: 22},
	}}
	run := func(script string) map[string]spec.Event {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", script+`exec "$0"`, self)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		cmd.Env = append(os.Environ(), asMain+"=1")
		cmd.Stdin = strings.NewReader(string(spec.Encode(v)))
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil && cmd.ProcessState.ExitCode() != 1 {
			t.Fatal(err)
		}
		return decode(t, out)
	}
	fenced := run(setup)
	for name, probes := range map[string]int{"unlisted-host-blocked": 6, "udp-closed": 3, "icmp-closed": 0, "metadata-blocked": 1, "gateway-closed": 4, "port-not-listed-blocked:h": 1} {
		ev := fenced[name]
		if ev.Result != spec.OK || ev.Detail != "" || len(ev.Probes) != probes {
			t.Errorf("fenced: %+v", ev)
		}
	}
	open := run(strings.Split(setup, "iptables")[0])
	if ev := open["icmp-closed"]; ev.Result != spec.Failed {
		t.Errorf("open: %+v", ev)
	}
	if ev := open["udp-closed"]; ev.Detail == "" {
		t.Errorf("open: %+v", ev)
	}
	// Without a route nothing is sent, and nothing proven.
	for name, ev := range run("ip link set lo up; sysctl -qw net.ipv4.ping_group_range='0 2147483647'\n") {
		if ev.Result != spec.Untold {
			t.Errorf("%s without a route: %+v", name, ev)
		}
	}
}
