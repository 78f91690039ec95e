package engine

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// floodProgram floods, in ways that are named, until it is ended: refused
// connections from ports of the kernel's choice or from those of probes, UDP,
// lookups, lines on standard output; or holds the ports of probes.
const floodProgram = `
use Socket;
use POSIX ();
my ($unlisted, $first, $last, @ways) = @ARGV;
my $tcp = sub { my ($from, $to, $port) = @_;
  socket(my $s, PF_INET, SOCK_STREAM | 2048, 0) or return;
  if ($from) { bind($s, sockaddr_in($from, INADDR_ANY)) or return }
  connect($s, sockaddr_in($port, inet_aton($to))); close $s };
my $udp = sub { my ($from, $to, $port, $data) = @_;
  socket(my $s, PF_INET, SOCK_DGRAM | 2048, 0) or return;
  if ($from) { bind($s, sockaddr_in($from, INADDR_ANY)) or return }
  send($s, $data, 0, sockaddr_in($port, inet_aton($to))); close $s };
my $q = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x04evil\x04test\x00\x00\x01\x00\x01";
my $n = 0;
my %way = (
  syn => sub { $tcp->(0, $unlisted, 1 + $n % 65535) },
  udp => sub { $udp->(0, $unlisted, 1 + $n % 65535, "x" x 900) },
  dns => sub { $udp->(0, "127.0.0.1", 53, pack("n", $n & 65535) . substr($q, 2)) },
  docker => sub { $udp->(0, "127.0.0.11", 53, $q) },
  ports => sub { my $p = $first + $n % ($last - $first + 1); $tcp->($p, $unlisted, 1 + $n % 65535); $udp->($p, $unlisted, 1 + $n % 65535, "x") },
  same => sub { my $p = $first + $n % ($last - $first + 1); $tcp->($p, $unlisted, 443); $udp->($p, $unlisted, 443, "x") },
  log => sub { syswrite(STDOUT, "flood\n" x 100) },
  hold => sub {
    my @held;
    for my $p ($first .. $last) {
      for my $kind (SOCK_STREAM, SOCK_DGRAM) {
        socket(my $s, PF_INET, $kind, 0) or die;
        bind($s, sockaddr_in($p, INADDR_ANY)) or die "$p: $!";
        push @held, $s;
      }
    }
    syswrite(STDOUT, "held\n");
    sleep 1000000 },
);
for my $w (@ways) { next if fork; while (1) { $n++; $way{$w}->() } }
syswrite(STDOUT, "up\n");
<STDIN>;
kill 9, -getpgrp();
`

// signalProgram finds a checker as soon as it runs, which has the agent's user,
// and sends it a signal.
const signalProgram = `
my ($signal) = @ARGV;
if (my $child = fork) { syswrite(STDOUT, "up\n"); <STDIN>; kill 9, $child; exit }
while (1) {
  for my $p (glob "/proc/[0-9]*") {
    open(my $f, "<", "$p/comm") or next;
    my $comm = <$f>;
    next if $comm ne "corral-verify\n";
    my ($pid) = $p =~ /(\d+)/;
    kill $signal, $pid;
  }
}
`

// crowdProgram fills what a container may have of processes.
const crowdProgram = `
while (1) { my $p = fork; last if !defined $p; if (!$p) { sleep 1000000 } }
syswrite(STDOUT, "up\n");
<STDIN>;
`

// Whatever an agent is busy with, its sandbox can be proven beside it.
func TestVerifyBesideABusyAgent(t *testing.T) {
	t.Parallel()
	s := project(t, allowed+"resources: {pids: 128}\n")
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.up(`
for i in $(seq $(nproc)); do (while :; do :; done) & done
(while :; do dd if=/dev/zero of=fill bs=1M count=16 conv=fsync status=none; done) &
(while :; do (exec 3<>/dev/tcp/44.10.0.10/443) 2>&1; done) > /dev/null &
(while :; do getent hosts api.allowed.test unlisted.test; done) > /dev/null &
for i in $(seq 80); do sleep 1000000 & done # beside room for the rest and for a checker
echo up; read -r _; kill -9 -1`, "up")
	if r := s.corral("verify"); r.code != 0 {
		t.Error(r)
	}
}

// An agent that floods does not come between corral and its proof. One that
// does so from the ports of probes, holds them, or turns on the checker itself
// costs itself the proof, and the reason is told.
func TestVerifyBesideAHostileAgent(t *testing.T) {
	t.Parallel()
	first := project(t, allowed)
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	ports := fmt.Sprintf("%d to %d", spec.ProbePortFirst, spec.ProbePortLast)
	flood := func(ways string) string {
		return fmt.Sprintf("exec perl flood.pl %v %d %d %s", lab.Canary, spec.ProbePortFirst, spec.ProbePortLast, ways)
	}
	for _, tt := range []struct {
		name, script, more string
		up                 string // what it says when it is at it
		passes             bool   // always
		why                string // it does not
	}{
		{name: "connections and lookups", script: flood("syn dns"), passes: true},
		{name: "datagrams", script: flood("udp docker"), passes: true},
		{name: "lines", script: flood("log"), passes: true},
		{name: "from the ports of probes", script: flood("ports"), why: "note probe-ports: .* " + ports},
		{name: "what probes are, from their ports", script: flood("same"), why: "note probe-ports: .* " + ports},
		{name: "the ports of probes are held", script: flood("hold"), up: "held", why: "cannot tell: .*no free source port for a probe: something holds those from " + ports},
		{name: "the checker is stopped", script: "exec perl signal.pl STOP", why: "cannot tell: checker: .*no answer within"},
		{name: "the checker is killed", script: "exec perl signal.pl KILL", why: "cannot tell: checker: .*status 137"},
		{name: "no process more", script: "exec perl crowd.pl", more: "resources: {pids: 64}\n", why: "(?s)cannot tell: checker: .*(resources.pids|runtime exec failed)"}, // by whether the runtime comes to its own first thread
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := first.beside(t)
			s.write("corral.yaml", allowed+tt.more)
			s.accept()
			s.write("flood.pl", floodProgram)
			s.write("signal.pl", signalProgram)
			s.write("crowd.pl", crowdProgram)
			s.up(tt.script, cmp.Or(tt.up, "up"))
			r := s.corral("verify")
			switch {
			case tt.passes && r.code != 0, !tt.passes && tt.up != "" && r.code == 0:
				t.Error(r)
			case r.code != 0 && !regexp.MustCompile(tt.why).MatchString(r.out+r.err):
				t.Errorf("want %q in %v", tt.why, r)
			}
			// What needs nobody inside is told of both containers.
			if n := strings.Count(r.out, "ok   container-as-planned\n"); n != 2 {
				t.Errorf("%d containers are as planned: %v", n, r)
			}
			for line := range strings.Lines(r.out) {
				if strings.HasPrefix(line, "FAIL") && !strings.Contains(line, ": cannot tell: ") {
					t.Errorf("it is called broken: %s", line)
				}
			}
		})
	}
}
