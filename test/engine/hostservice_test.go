package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// gateway is the host's address on the corral network.
const gateway = "172.30.0.1"

// greeting is what a service of the host says first.
const greeting = "hello from the host"

// greeter is a service of this machine that says its greeting to everybody and
// counts them.
type greeter struct {
	port uint16
	met  atomic.Int64
	stop func()
}

// greet listens at an address of this machine, on port 0 for a free one, until
// the test ends.
func greet(t testing.TB, at string) *greeter {
	t.Helper()
	l, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	g := &greeter{port: netip.MustParseAddrPort(l.Addr().String()).Port()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.met.Add(1)
			fmt.Fprintln(c, greeting)
			c.Close()
		}
	}()
	g.stop = sync.OnceFunc(func() { l.Close(); <-ended })
	t.Cleanup(g.stop)
	return g
}

// serviced is a policy that opens ports of the host.
func serviced(name string, ports ...uint16) string {
	y := "profile: shell\nname: " + name + "\nhost_services:\n"
	for _, p := range ports {
		y += fmt.Sprintf("  - {name: service-%d, port: %d}\n", p, p)
	}
	return y
}

// hear connects to a host and a port in the shell and says the first line of
// the answer, or that there was none, and how many milliseconds it took.
const hear = `h() { s=$(date +%s%N); l=$(timeout 5 bash -c "exec 3<>/dev/tcp/$1/$2 && read -r l <&3 && echo \"\$l\"" 2>/dev/null || echo nothing); e=$(date +%s%N); echo "$1:$2 $l $(( (e-s)/1000000 ))"; }; `

// heard is what hear said of a place, and after how long.
func heard(t *testing.T, out, place string) (said string, after time.Duration) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(place) + ` (.*) (\d+)$`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("nothing about %s in %q", place, out)
	}
	ms, _ := strconv.Atoi(m[2])
	return m[1], time.Duration(ms) * time.Millisecond
}

// inside runs a script in the agent's container.
func (s *sandbox) inside(script string) string {
	s.tb.Helper()
	return docker(s.tb, "exec", s.agent(), "bash", "-c", script)
}

// hears reports whether the agent is answered by a host service.
func (s *sandbox) hears(t *testing.T, port uint16) bool {
	t.Helper()
	place := fmt.Sprintf("corral-host:%d", port)
	said, _ := heard(t, s.inside(hear+fmt.Sprintf("h corral-host %d", port)), place)
	return said == greeting
}

// relays are the containers that carry a port, whoever uses them.
func relays(t testing.TB, port uint16) []string {
	t.Helper()
	return strings.Fields(docker(t, "ps", "--all", "--format", "{{.Names}}", "--filter", fmt.Sprintf("name=^/?corral-relay-%d$", port)))
}

// outsider runs a script in a container without a fence.
func outsider(t *testing.T, script string, args ...string) string {
	t.Helper()
	return docker(t, append(append([]string{"run", "--rm"}, args...), testenv.BaseImage, "bash", "-c", script)...)
}

// R024, R026, R046: two sandboxes that declare a port share its relay, and nobody
// else gets anything of it, by whatever way; the host's other ports are closed
// to them as to everybody.
func TestHostServiceIsForWhoDeclaredIt(t *testing.T) {
	// Alone: one of its networks is in the way of every corral command.
	served := greet(t, "127.0.0.1:0")
	one := project(t, serviced("one", served.port))
	two := one.another(filepath.Join(filepath.Dir(one.dir), "two"), serviced("two", served.port))
	three := one.another(filepath.Join(filepath.Dir(one.dir), "three"), nothing)
	two.accept()
	three.accept()
	place := fmt.Sprintf("corral-host:%d", served.port)
	script := hear + fmt.Sprintf("h corral-host %d; cat /etc/corral/README; echo up; read -r _", served.port)
	endOne, endTwo := one.up(script, "up"), two.up(script, "up")
	for _, s := range []*sandbox{one, two} {
		out := docker(t, "logs", s.agent())
		if said, _ := heard(t, out, place); said != greeting {
			t.Errorf("%s heard %q", s.id, said)
		}
		if !strings.Contains(out, place) || !strings.Contains(out, fmt.Sprintf("service-%d", served.port)) {
			t.Errorf("the README does not name the service: %s", out)
		}
	}
	names := relays(t, served.port)
	if len(names) != 1 {
		t.Fatalf("relays %v, want one", names)
	}
	checkRelay(t, names[0], "64998:64998", nil)

	// Who did not declare it.
	endThree := three.up("echo up; read -r _", "up")
	met := served.met.Load()
	if said, after := heard(t, three.inside(hear+fmt.Sprintf("h %s %d", gateway, served.port)), fmt.Sprintf("%s:%d", gateway, served.port)); said != "nothing" || after > 50*time.Millisecond {
		t.Errorf("undeclared: %q after %v", said, after)
	}
	if d := denials(t, three, gateway, served.port); d == 0 {
		t.Error("the gate says nothing of what it refused")
	}
	endThree()
	// Nor who is beside the sandboxes, on their bridge or on another one, which the
	// guard lets hear the gateway. The listeners there are the control.
	closed, everywhere := greet(t, gateway+":5432"), greet(t, "0.0.0.0:8888")
	const beside = "corral-test-beside"
	docker(t, "network", "create", "--subnet", "172.30.200.0/28", beside)
	dropBeside := sync.OnceFunc(func() { docker(t, "network", "rm", beside) })
	t.Cleanup(dropBeside)
	for _, network := range []string{beside, "corral"} {
		out := outsider(t, hear+fmt.Sprintf("h %s 5432; h %s 8888; h %s %d", gateway, gateway, gateway, served.port), "--network", network)
		for port, want := range map[uint16]string{5432: greeting, 8888: greeting, served.port: "nothing"} {
			if said, _ := heard(t, out, fmt.Sprintf("%s:%d", gateway, port)); said != want {
				t.Errorf("a container on %s hears %q on port %d, want %q", network, said, port, want)
			}
		}
	}
	dropBeside() // it is in the way of every corral command
	if now := served.met.Load(); now != met {
		t.Errorf("the service met %d more", now-met)
	}

	// The whole of the gateway, beside the same listeners.
	one.write("scan.pl", scan)
	if got, want := one.inside("perl scan.pl "+gateway), fmt.Sprint(served.port); got != want {
		t.Errorf("open ports of the gateway: %q, want %s", got, want)
	}
	closed.stop()
	everywhere.stop()

	if r := one.corral("verify"); r.code != 0 ||
		!regexp.MustCompile(fmt.Sprintf(`(?m)^ok +host-service:%d$`, served.port)).MatchString(r.out) || !regexp.MustCompile(`(?m)^ok +gateway-closed$`).MatchString(r.out) {
		t.Error(r)
	}
	status := one.corral("status")
	if status.code != 0 || !strings.Contains(status.out, fmt.Sprintf("host port %d: relay running", served.port)) {
		t.Error(status)
	}

	// The first one ends: its address is nobody's, and is not served.
	own := address(t, one)
	endOne()
	if !two.hears(t, served.port) || len(relays(t, served.port)) != 1 {
		t.Error("the relay did not outlive the first of its users")
	}
	if said, _ := heard(t, outsider(t, hear+fmt.Sprintf("h %s %d", gateway, served.port), "--network", "corral", "--ip", own), fmt.Sprintf("%s:%d", gateway, served.port)); said != "nothing" {
		t.Errorf("at the address of a sandbox that has ended: %q", said)
	}
	// A relay that still accepts proves nothing of the service.
	served.stop()
	if r := two.corral("verify"); r.code != 1 || !strings.Contains(r.out, fmt.Sprintf("FAIL host-service:%d: nothing listens on 127.0.0.1:%d of the host\n", served.port, served.port)) {
		t.Errorf("verify of a service that has ended: %v", r)
	}
	endTwo()
	if left := relays(t, served.port); len(left) > 0 {
		t.Errorf("left with nobody to serve: %v", left)
	}
}

// scan is a perl program that says which TCP ports of an address accept.
const scan = `
use Socket;
my $to = inet_aton($ARGV[0]); my @open;
for my $port (1 .. 65535) {
  socket(my $s, PF_INET, SOCK_STREAM, 0) or die "$port: $!";
  push @open, $port if connect($s, sockaddr_in($port, $to));
  close $s;
}
print "@open\n";
`

// denials is how often a sandbox's gate refused a destination by the rule that
// refuses what is not listed.
func denials(t *testing.T, s *sandbox, to string, port uint16) uint64 {
	t.Helper()
	var status spec.GateStatus
	if err := spec.Decode(strings.NewReader(docker(t, "exec", s.gate(), spec.GuestDir+"/bin/corral-gate", "status", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	for _, d := range status.Denied {
		if d.Addr.String() == to && d.Port == port && d.Proto == "tcp" && d.Rule == "unlisted" {
			return d.Count
		}
	}
	return 0
}

// checkRelay looks at what a relay's container may do, as the engine has it.
func checkRelay(t *testing.T, name, user string, capabilities []string) {
	t.Helper()
	var got struct {
		Config     struct{ User string }
		HostConfig struct {
			NetworkMode    string
			CapAdd         []string
			CapDrop        []string
			SecurityOpt    []string
			ReadonlyRootfs bool
			Privileged     bool
			PidsLimit      int64
			Memory         int64
			Binds          []string
			RestartPolicy  struct{ Name string }
			LogConfig      struct{ Config map[string]string }
		}
		Mounts []any
	}
	if err := json.Unmarshal([]byte(docker(t, "inspect", "--format", "{{json .}}", name)), &got); err != nil {
		t.Fatal(err)
	}
	h := got.HostConfig
	if got.Config.User != user || fmt.Sprint(h.CapAdd) != fmt.Sprint(capabilities) || fmt.Sprint(h.CapDrop) != "[ALL]" || h.NetworkMode != "host" ||
		!h.ReadonlyRootfs || h.Privileged || h.PidsLimit <= 0 || h.Memory != 256<<20 || len(h.Binds)+len(got.Mounts) > 0 ||
		h.RestartPolicy.Name != "no" && h.RestartPolicy.Name != "" || h.LogConfig.Config["max-size"] == "" || fmt.Sprint(h.SecurityOpt) != "[no-new-privileges]" {
		t.Errorf("%s: %+v", name, got)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	status := string(b)
	for _, want := range []string{`Uid:\s+64998\s+64998\s+64998\s+64998`, `CapEff:\s+0+`, `CapPrm:\s+0+`, `NoNewPrivs:\s+1`, `Seccomp:\s+2`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(status) {
			t.Errorf("%s: no %s in %s", name, want, status)
		}
	}
}

// Whatever ends a relay or a corral, nothing is left that one command does not
// end, what does not run is told, and the next run mends it for all.
func TestRelayIsMended(t *testing.T) {
	// Alone: any other corral would mend the relay.
	served := greet(t, "127.0.0.1:0")
	one := project(t, serviced("mended", served.port))
	two := one.another(filepath.Join(filepath.Dir(one.dir), "two"), serviced("two", served.port))
	two.accept()
	one.abandoned("echo up; exec sleep infinity", "up")
	if len(relays(t, served.port)) != 1 || !one.hears(t, served.port) {
		t.Error("no relay")
	}

	// By hand.
	docker(t, "kill", relays(t, served.port)[0])
	if one.hears(t, served.port) {
		t.Error("answered by a relay that is gone")
	}
	for _, state := range []string{"exited", "is gone"} {
		r := one.corral("status")
		if r.code != 1 || !strings.Contains(r.out, fmt.Sprintf("host port %d: relay %s", served.port, state)) {
			t.Errorf("status without a relay: %v", r)
		}
		var report struct {
			Well   bool
			Relays []struct {
				Carries string
				OK      bool
			}
		}
		if err := json.Unmarshal([]byte(one.corral("status", "--json").out), &report); err != nil || report.Well || len(report.Relays) != 1 ||
			report.Relays[0].OK || report.Relays[0].Carries != fmt.Sprint(served.port) {
			t.Errorf("%v, %+v", err, report)
		}
		if state == "exited" {
			docker(t, "rm", relays(t, served.port)[0])
		}
	}
	if r := two.sh(hear + fmt.Sprintf("h corral-host %d", served.port)); r.code != 0 || !strings.Contains(r.out, greeting) {
		t.Errorf("the next run: %v", r)
	}
	if !one.hears(t, served.port) {
		t.Error("the relay was not mended for who was there before")
	}

	// A service that ends meanwhile.
	served.stop()
	if r := two.sh("echo ran"); r.code != 1 || strings.Contains(r.out, "ran") ||
		!strings.Contains(r.err, fmt.Sprintf("nothing listens on 127.0.0.1:%d of this machine", served.port)) || !strings.Contains(r.err, "hint: start what listens") {
		t.Errorf("a run without the service: %v", r)
	}
	if len(relays(t, served.port)) != 1 {
		t.Error("a gate that stayed closed took the relay of another one along")
	}

	if r := one.corral("down"); r.code != 0 {
		t.Error(r)
	}
	if left := relays(t, served.port); len(left) > 0 {
		t.Errorf("left after corral down: %v", left)
	}
	// A gate that somebody took away by hand leaves a relay for nobody.
	again := greet(t, fmt.Sprintf("127.0.0.1:%d", served.port))
	one.abandoned("echo up; exec sleep infinity", "up")
	docker(t, "rm", "--force", one.agent(), one.gate())
	if len(relays(t, again.port)) != 1 {
		t.Error("no relay")
	}
	if r := one.corral("down"); r.code != 0 || len(relays(t, again.port)) > 0 {
		t.Errorf("%v, left %v", r, relays(t, again.port))
	}
}

// Gates that go without the knowledge of their relay leave it a list with their
// addresses. The next gate at one of them may be of a policy without host
// services: before it starts, nobody at that address is served any more.
func TestNobodyInheritsAHostService(t *testing.T) {
	// Alone: any other corral would renew the list, or take the address.
	served := greet(t, "127.0.0.1:0")
	one := project(t, serviced("one", served.port))
	two := one.another(filepath.Join(filepath.Dir(one.dir), "two"), serviced("two", served.port))
	three := one.another(filepath.Join(filepath.Dir(one.dir), "three"), nothing)
	two.accept()
	three.accept()
	one.abandoned("echo up; exec sleep infinity", "up")
	own := address(t, one)
	endTwo := two.up("echo up; read -r _", "up")
	docker(t, "rm", "--force", one.agent(), one.gate())
	at := fmt.Sprintf("%s:%d", gateway, served.port)
	ask := func() string {
		said, _ := heard(t, outsider(t, hear+fmt.Sprintf("h %s %d", gateway, served.port), "--network", "corral", "--ip", own), at)
		return said
	}
	if got := ask(); got != greeting {
		t.Fatalf("the relay's list was renewed already, this test proves nothing: %q", got)
	}
	endThree := three.up("echo up; read -r _", "up")
	if got := address(t, three); got != own {
		t.Errorf("the next gate is at %s, not at %s", got, own)
	}
	endThree()
	if got := ask(); got != "nothing" {
		t.Errorf("at the address of a sandbox without host services: %q", got)
	}
	if !two.hears(t, served.port) {
		t.Error("who declared the port is not answered")
	}
	endTwo()
	if left := relays(t, served.port); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A relay that another corral made is not taken for one of ours, and whom it
// served is served on.
func TestRelayOfAnotherCorral(t *testing.T) {
	// Alone: any other corral would look after the relay.
	served := greet(t, "127.0.0.1:0")
	one := project(t, serviced("one", served.port))
	two := one.another(filepath.Join(filepath.Dir(one.dir), "two"), serviced("two", served.port))
	two.accept()
	end := one.up("echo up; read -r _", "up")
	name := relays(t, served.port)[0]
	if r := two.sh("true"); r.code != 0 || strings.Contains(r.err, "made anew") {
		t.Errorf("a relay of this corral: %v", r)
	}
	image := docker(t, "inspect", "--format", "{{.Config.Image}}", name)
	docker(t, "rm", "--force", name)
	command := fmt.Sprintf("relay %s:%d 127.0.0.1:%d", gateway, served.port, served.port)
	docker(t, append([]string{"run", "--detach", "--name", name, "--network", "host", "--user", "64998:64998", "--cap-drop", "ALL",
		"--tmpfs", "/run:uid=64998,gid=64998", "--label", "dev.corral.role=relay", "--label", fmt.Sprintf("dev.corral.relay=%d", served.port),
		"--label", "dev.corral.relay-for=" + command, image}, strings.Fields(command)...)...)
	if r := two.sh(hear + fmt.Sprintf("h corral-host %d", served.port)); r.code != 0 || !strings.Contains(r.out, greeting) ||
		!strings.Contains(r.err, fmt.Sprintf("the relay of port %d is made anew", served.port)) || !strings.Contains(r.err, "what other sandboxes have open through it ends") {
		t.Errorf("beside a relay of another corral: %v", r)
	}
	checkRelay(t, name, "64998:64998", nil)
	if !one.hears(t, served.port) {
		t.Error("who was there before is not served")
	}
	end()
}

// R047: a firewall between the bridge and the relay is named, with what to do.
func TestFirewallBeforeTheRelay(t *testing.T) {
	t.Parallel()
	served := greet(t, "127.0.0.1:0")
	s := project(t, serviced("walled", served.port))
	rule := []string{"INPUT", "-i", bridge, "-p", "tcp", "--dport", fmt.Sprint(served.port), "-j", "DROP"}
	run(t, append([]string{"iptables", "-w", "-I"}, rule...)...)
	remove := sync.OnceFunc(func() { run(t, append([]string{"iptables", "-w", "-D"}, rule...)...) })
	t.Cleanup(remove)
	r := s.sh("echo ran")
	if r.code != 1 || strings.Contains(r.out, "ran") {
		t.Error(r)
	}
	for _, want := range []string{
		fmt.Sprintf("the relay listens on %s:%d", gateway, served.port), "a firewall of this machine drops it",
		fmt.Sprintf("ufw allow in on %s to %s port %d proto tcp", bridge, gateway, served.port), "firewall-cmd --add-rich-rule=",
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in %v", want, r)
		}
	}
	if left := relays(t, served.port); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	remove()
	if r := s.sh(hear + fmt.Sprintf("h corral-host %d", served.port)); r.code != 0 || !strings.Contains(r.out, greeting) {
		t.Errorf("without the firewall: %v", r)
	}
}

// A service that listens on every address needs no relay, and that is told; an
// address that is held by somebody who accepts nothing is an error with a way
// to find out who.
func TestServiceAtTheGatewayItself(t *testing.T) {
	// Alone: the port that it gives up and takes again is anybody's meanwhile.
	served := greet(t, "0.0.0.0:0")
	s := project(t, serviced("everywhere", served.port))
	if end := s.up(hear+fmt.Sprintf("h corral-host %d; echo up; read -r _", served.port), "up"); end != nil {
		if !s.hears(t, served.port) {
			t.Error("not answered")
		}
		if r := s.corral("status"); r.code != 0 || !strings.Contains(r.out, fmt.Sprintf("host port %d: needs no relay", served.port)) {
			t.Error(r)
		}
		if left := relays(t, served.port); len(left) > 0 {
			t.Errorf("relays %v", left)
		}
		end()
	}
	if r := s.sh("true"); r.code != 0 || !strings.Contains(r.err, "needs no relay") || !strings.Contains(r.err, "other containers reach it there too") {
		t.Error(r)
	}
	served.stop()

	// Whoever is first may listen on the gateway's address alone.
	squatter := greet(t, fmt.Sprintf("%s:%d", gateway, served.port))
	if r := s.sh("echo ran"); r.code != 1 || strings.Contains(r.out, "ran") || !strings.Contains(r.err, "listens there alone (tcp)") || !strings.Contains(r.err, "hint: ss -ltnup") {
		t.Errorf("beside a listener on the gateway's address: %v", r)
	}
	if n := squatter.met.Load(); n > 0 {
		t.Errorf("it met %d", n)
	}
	squatter.stop()

	mute, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4zero, Port: int(served.port)})
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	drop := []string{"INPUT", "-i", "lo", "-d", gateway, "-p", "tcp", "--dport", fmt.Sprint(served.port), "-j", "REJECT"}
	run(t, append([]string{"iptables", "-w", "-I"}, drop...)...)
	t.Cleanup(func() { run(t, append([]string{"iptables", "-w", "-D"}, drop...)...) })
	r := s.sh("echo ran")
	if r.code != 1 || !strings.Contains(r.err, fmt.Sprintf("the relay of port %d cannot listen on %s:%d", served.port, gateway, served.port)) || !strings.Contains(r.err, "accepts no connection") || !strings.Contains(r.err, "hint: ss -ltnup") {
		t.Error(r)
	}
	if left := append(relays(t, served.port), s.containers()...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// loopbackDNS is a name server on an address of the host's loopback.
func loopbackDNS(t *testing.T, at string, zone map[string]string) *atomic.Int64 {
	t.Helper()
	var asked atomic.Int64
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg).SetReply(q)
		addr, known := zone[strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))]
		if !known {
			m.Rcode = dns.RcodeNameError
		} else if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(addr)}}
		}
		w.WriteMsg(m)
	})
	pc, err := net.ListenPacket("udp4", at)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: handler}, {Listener: l, Handler: handler}} {
		started, ended := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { s.Shutdown(); <-ended })
	}
	return &asked
}

// R057: where the machine's own name server is on loopback, names are pinned by
// way of a relay, split zones included. The agent cannot ask it, and its lookups
// of anything else fail at once.
func TestNameServerOnLoopback(t *testing.T) {
	// Alone: this machine has one relay of port 53, and nobody else may ask for a name.
	const stub = "127.0.0.57"
	asked := loopbackDNS(t, stub+":53", map[string]string{"git.corp.test": "44.10.0.10"})
	s := project(t, "profile: shell\nname: split\negress:\n  allow: [git.corp.test]\n")
	for i, v := range s.env {
		if strings.HasPrefix(v, "CORRAL_RESOLVERS=") {
			s.env[i] = "CORRAL_RESOLVERS=" + stub
		}
	}
	s.write("ask.pl", ask)
	labAsked := len(s.lab.DNS.Queries())
	end := s.up("echo up; read -r _", "up")
	if got := s.inside(connect + "t git.corp.test 443"); !strings.Contains(got, "git.corp.test 0 ") {
		t.Errorf("a name of the split zone: %s", got)
	}
	if asked.Load() == 0 || len(s.lab.DNS.Queries()) != labAsked {
		t.Errorf("the stub was asked %d times, the lab's name server for %v", asked.Load(), s.lab.DNS.Queries()[labAsked:])
	}
	names := relays(t, 53)
	if len(names) != 1 {
		t.Fatalf("relays %v", names)
	}
	checkRelay(t, names[0], "0:0", []string{"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID"})

	before := asked.Load()
	for _, kind := range []string{"udp", "tcp"} {
		if got := s.inside("perl ask.pl " + gateway + " 53 " + kind); got != "refused" {
			t.Errorf("the agent asked the relay by %s: %s", kind, got)
		}
		if got := outsider(t, "perl "+s.dir+"/ask.pl "+gateway+" 53 "+kind, "--network", "corral", "--volume", s.dir+":"+s.dir+":ro"); got != "refused" {
			t.Errorf("a container beside asked the relay by %s: %s", kind, got)
		}
	}
	for _, name := range []string{"x.test", "unlisted.corp.test"} {
		out := s.inside(fmt.Sprintf(`s=$(date +%%s%%N); getent hosts %s; r=$?; e=$(date +%%s%%N); echo "$r $(( (e-s)/1000000 ))"`, name))
		code, ms, _ := strings.Cut(out, " ")
		if n, err := strconv.Atoi(ms); err != nil || code != "2" || n >= 100 {
			t.Errorf("%s: status and milliseconds %s", name, out)
		}
	}
	if now := asked.Load(); now != before {
		t.Errorf("the host's name server was asked %d times by the agent", now-before)
	}
	if r := s.corral("verify"); r.code != 0 || !regexp.MustCompile(`(?m)^ok +dns-closed$`).MatchString(r.out) || !regexp.MustCompile(`(?m)^ok +allowed:git\.corp\.test:443$`).MatchString(r.out) {
		t.Error(r)
	}
	if r := s.corral("status"); r.code != 0 || !strings.Contains(r.out, "host port 53/dns: relay running") {
		t.Error(r)
	}
	end()
	if left := relays(t, 53); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Two people with different name servers on loopback: the second does not lead
// the names of the first elsewhere.
func TestNameServersOfTwo(t *testing.T) {
	// Alone: this machine has one relay of port 53.
	zone := map[string]string{"git.corp.test": "44.10.0.10"}
	loopbackDNS(t, "127.0.0.57:53", zone)
	other := loopbackDNS(t, "127.0.0.58:53", zone)
	policy := func(name string) string {
		return "profile: shell\nname: " + name + "\negress:\n  allow: [git.corp.test]\n"
	}
	one := project(t, policy("one"))
	two := one.another(filepath.Join(filepath.Dir(one.dir), "two"), policy("two"))
	two.accept()
	resolvers := func(s *sandbox, server string) {
		env := slices.Clone(s.env)
		for i, v := range env {
			if strings.HasPrefix(v, "CORRAL_RESOLVERS=") {
				env[i] = "CORRAL_RESOLVERS=" + server
			}
		}
		s.env = env
	}
	resolvers(one, "127.0.0.57")
	end := one.up("echo up; read -r _", "up")
	resolvers(two, "127.0.0.58")
	r := two.sh("echo ran")
	if r.code != 1 || strings.Contains(r.out, "ran") || other.Load() > 0 {
		t.Errorf("asked %d times; %v", other.Load(), r)
	}
	for _, want := range []string{"ask the name servers 127.0.0.57:53", "is to ask 127.0.0.58:53", "hint: use the same `resolvers`"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in %v", want, r)
		}
	}
	resolvers(two, "127.0.0.57")
	if r := two.sh("echo ran"); r.code != 0 {
		t.Errorf("with the same: %v", r)
	}
	end()
	resolvers(two, "127.0.0.58")
	if r := two.sh("echo ran"); r.code != 0 || other.Load() == 0 {
		t.Errorf("alone: %v, asked %d times", r, other.Load())
	}
	if left := relays(t, 53); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
