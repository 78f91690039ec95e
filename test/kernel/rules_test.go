package kernel

import (
	"net"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/netfilter"
)

const golden = "../../internal/netfilter/testdata/"

var goldenFiles = map[netfilter.Family]string{netfilter.IPv4: "ipv4.txt", netfilter.IPv6: "ipv6.txt"}

var listing = map[netfilter.Family]string{netfilter.IPv4: "iptables -S", netfilter.IPv6: "ip6tables -S"}

// pins and anyPort are the sets that the golden rules refer to.
var (
	pins    = netfilter.Set{Name: "corral-pins"}
	anyPort = netfilter.Set{Name: "corral-any", AnyPort: true}
)

// fence lets loopback and the pins out and answers in, and refuses the rest.
func fence(f netfilter.Family, more ...netfilter.Rule) netfilter.Ruleset {
	out := append([]netfilter.Rule{
		{ID: "loopback", Match: "-o lo", Target: "ACCEPT", Reason: "stays in the namespace"},
		{ID: "established", Match: "-p tcp -m conntrack --ctstate ESTABLISHED", Target: "ACCEPT", Reason: "answers"},
	}, more...)
	out = append(out, netfilter.Rule{ID: "unlisted", Match: "-p tcp", Target: "REJECT --reject-with tcp-reset", Reason: "everything else"})
	return netfilter.Ruleset{Family: f, Chains: []netfilter.Chain{
		{Name: "INPUT", Rules: []netfilter.Rule{
			{ID: "in-loopback", Match: "-i lo", Target: "ACCEPT", Reason: "stays in the namespace"},
			{ID: "in-established", Match: "-p tcp -m conntrack --ctstate ESTABLISHED", Target: "ACCEPT", Reason: "answers"},
		}},
		{Name: "OUTPUT", Rules: []netfilter.Rule{{ID: "out", Target: "corral-out", Reason: "everything that leaves"}}},
		{Name: "corral-out", Rules: out},
	}}
}

var pinned = []netfilter.Rule{
	{ID: "pins", Match: "-p tcp -m set --match-set corral-pins dst,dst", Target: "ACCEPT", Reason: "the pins"},
	{ID: "pins-any", Match: "-p tcp -m set --match-set corral-any dst", Target: "ACCEPT", Reason: "the pins for any port"},
}

func TestClose(t *testing.T) { backends(t, closes) }

func closes(t *testing.T) {
	inside, neighbour := newPair(t)
	for _, host := range []string{neighbourV4, neighbourV6} {
		inside.reaches(t, host, port)
	}
	for _, host := range []string{insideV4, insideV6} {
		neighbour.reaches(t, host, port)
	}
	inside.run(t, "iptables -A INPUT -s 203.0.113.1/32 -j DROP")

	k := inside.open(t)
	for range 2 {
		inside.do(func() { check(t, k.Close(t.Context())) })
		const closed = "-P INPUT DROP\n-P FORWARD DROP\n-P OUTPUT DROP\n"
		if got := inside.run(t, "iptables -S"); got != closed+"-A INPUT -s 203.0.113.1/32 -j DROP\n" {
			t.Errorf("iptables -S:\n%s", got)
		}
		if got := inside.run(t, "ip6tables -S"); got != closed {
			t.Errorf("ip6tables -S:\n%s", got)
		}
	}
	var tries sync.WaitGroup
	for _, host := range []string{neighbourV4, neighbourV6, "127.0.0.1", "::1"} {
		tries.Go(func() { inside.dropped(t, host, port) })
	}
	for _, host := range []string{insideV4, insideV6} {
		tries.Go(func() { neighbour.dropped(t, host, port) })
	}
	tries.Wait()
}

// What rules accept still passes a closed policy; Closed shuts that as well.
func TestClosedShutsEstablishedFlows(t *testing.T) { backends(t, closedShutsEstablishedFlows) }

func closedShutsEstablishedFlows(t *testing.T) {
	inside, _ := newPair(t)
	k := inside.open(t)
	inside.apply(t, k, fence(netfilter.IPv4, netfilter.Rule{ID: "all", Target: "ACCEPT", Reason: "wide open"}))
	inside.reaches(t, neighbourV4, port)
	inside.do(func() { check(t, k.Close(t.Context())) })
	inside.reaches(t, neighbourV4, port)
	inside.apply(t, k, netfilter.Closed(netfilter.IPv4))
	inside.dropped(t, neighbourV4, port)
}

// Every kind of rule the gate needs reads back as it was written, from both
// backends, however often it is applied.
func TestApplyReadsBack(t *testing.T) { backends(t, applyReadsBack) }

func applyReadsBack(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	if backend := path.Base(t.Name()); k.Backend() != backend || !k.HasIPv6() {
		t.Fatalf("backend %s, IPv6 %v", k.Backend(), k.HasIPv6())
	}
	n.do(func() { check(t, k.Close(t.Context())) })
	n.applySets(t, k, pins, anyPort)
	for f, file := range goldenFiles {
		text := string(must(os.ReadFile(golden + file)))
		want := must(netfilter.Parse(f, text))
		for range 2 {
			n.apply(t, k, want)
			if got := n.run(t, listing[f]); got != text {
				t.Errorf("%s:\n%s\nwant:\n%s", f, got, text)
			}
			got := n.read(t, k, f)
			if d := netfilter.Diff(want, got); len(d) > 0 {
				t.Errorf("%s", strings.Join(d, "\n"))
			}
			if a, b := netfilter.Digest([]netfilter.Ruleset{want}, nil), netfilter.Digest([]netfilter.Ruleset{got}, nil); a != b {
				t.Errorf("%s: digest %s applied, %s read back", f, a, b)
			}
		}
		// Over other content of the same chains the result is the same.
		n.apply(t, k, fence(f))
		n.apply(t, k, want)
		if got := n.run(t, listing[f]); got != text {
			t.Errorf("%s, after other rules:\n%s\nwant:\n%s", f, got, text)
		}
	}
}

// A transaction that cannot be carried out in full changes nothing.
func TestApplyIsWhole(t *testing.T) { backends(t, applyIsWhole) }

func applyIsWhole(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.apply(t, k, fence(netfilter.IPv4))
	before := n.run(t, "iptables -S")
	n.do(func() {
		if err := k.Apply(t.Context(), fence(netfilter.IPv4, pinned...)); err == nil {
			t.Error("rules about a set that is not there were taken")
		}
	})
	if after := n.run(t, "iptables -S"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Docker's resolver hangs on rules in nat. They stay, and the filter sees the
// resolver's real port, since nat comes first (R006).
func TestNatIsLeftAlone(t *testing.T) { backends(t, natIsLeftAlone) }

func natIsLeftAlone(t *testing.T) {
	n := newNamespace(t)
	n.do(func() { listen(t, "127.0.0.11:35001") })
	n.feed(t, `*nat
:DOCKER_OUTPUT - [0:0]
:DOCKER_POSTROUTING - [0:0]
-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT
-A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING
-A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:35001
-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 35001 -j SNAT --to-source :53
COMMIT
`, "iptables-restore --noflush")
	before := n.run(t, "iptables -t nat -S")
	n.reaches(t, "127.0.0.11", 53)

	k := n.open(t)
	n.do(func() { check(t, k.Close(t.Context())) })
	for range 2 {
		n.apply(t, k, fence(netfilter.IPv4))
	}
	if after := n.run(t, "iptables -t nat -S"); after != before {
		t.Errorf("nat before:\n%s\nafter:\n%s", before, after)
	}
	n.reaches(t, "127.0.0.11", 53)

	reject := netfilter.Rule{ID: "docker-resolver", Match: "-d 127.0.0.11/32 -p tcp", Target: "REJECT --reject-with tcp-reset", Reason: "it forwards"}
	r := fence(netfilter.IPv4)
	r.Chains[2].Rules = append([]netfilter.Rule{reject}, r.Chains[2].Rules...)
	n.apply(t, k, r)
	n.refused(t, "127.0.0.11", 53)

	r.Chains[2].Rules[0].Match += " -m tcp --dport 53"
	n.apply(t, k, r)
	n.reaches(t, "127.0.0.11", 53)
}

// The same address, the same port: only the user who opened the socket counts.
func TestOwner(t *testing.T) { backends(t, owner) }

func owner(t *testing.T) {
	inside, _ := newPair(t)
	k := inside.open(t)
	inside.apply(t, k, fence(netfilter.IPv4, netfilter.Rule{ID: "worker", Match: "-m owner --uid-owner 64999", Target: "ACCEPT", Reason: "by owner"}))
	addr := net.JoinHostPort(neighbourV4, "443")
	if err := inside.as(64999, addr); err != nil {
		t.Errorf("the owner: %v", err)
	}
	for _, uid := range []uint32{0, 1000, 64998} {
		if err := inside.as(uid, addr); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("uid %d: %v, want a reset", uid, err)
		}
	}
}

// IPv6 is closed by a rule, proven by a listener that was reached before, while
// IPv4 goes on working (R012).
func TestIPv6(t *testing.T) { backends(t, iPv6) }

func iPv6(t *testing.T) {
	inside, neighbour := newPair(t)
	var heard net.PacketConn
	neighbour.do(func() { heard = must(net.ListenPacket("udp6", net.JoinHostPort(neighbourV6, "53"))) })
	defer heard.Close()
	say := func(text string) (err error) {
		inside.do(func() {
			var c net.Conn
			if c, err = net.Dial("udp6", heard.LocalAddr().String()); err != nil {
				return
			}
			defer c.Close()
			_, err = c.Write([]byte(text))
		})
		return err
	}
	hear := func(want string) {
		t.Helper()
		b := make([]byte, 64)
		n, _, err := heard.ReadFrom(b)
		if got := string(b[:n]); err != nil || got != want {
			t.Errorf("the neighbour heard %q (%v), want %q", got, err, want)
		}
	}
	inside.reaches(t, neighbourV6, port)
	check(t, say("before"))
	hear("before")

	k := inside.open(t)
	inside.do(func() { check(t, k.Close(t.Context())) })
	inside.applySets(t, k, netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry(neighbourV4, port)}}, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...), fence(netfilter.IPv6))
	inside.reaches(t, neighbourV4, port)
	inside.refused(t, neighbourV6, port)
	if err := say("fenced"); err == nil {
		t.Error("a datagram was let out")
	}
	neighbour.dropped(t, insideV6, port)

	// The neighbour hears everything in order: what it hears next was sent last.
	inside.apply(t, k, fence(netfilter.IPv6, netfilter.Rule{ID: "all", Target: "ACCEPT", Reason: "wide open"}))
	inside.run(t, "ip6tables -P INPUT ACCEPT")
	check(t, say("after"))
	hear("after")
}

func TestTamperingShows(t *testing.T) { backends(t, tamperingShows) }

func tamperingShows(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.applySets(t, k, pins, anyPort)
	want := fence(netfilter.IPv4, pinned...)
	for _, tt := range []struct{ commands, want string }{
		{"iptables -D corral-out -p tcp -m comment --comment unlisted:\x00everything\x00else -j REJECT --reject-with tcp-reset",
			`IPv4: chain corral-out: missing rule: -p tcp -m comment --comment "unlisted: everything else" -j REJECT --reject-with tcp-reset`},
		{"iptables -I OUTPUT -d 192.0.2.9/32 -j ACCEPT",
			"IPv4: chain OUTPUT: foreign rule: -d 192.0.2.9/32 -j ACCEPT"},
		{"iptables -A FORWARD -j ACCEPT",
			"IPv4: chain FORWARD: foreign rule: -j ACCEPT"},
		{"iptables -N elsewhere; iptables -A corral-out -g elsewhere",
			"IPv4: chain corral-out: foreign rule: -g elsewhere"},
		{"iptables -D corral-out 1; iptables -I corral-out 2 -o lo -m comment --comment loopback:\x00stays\x00in\x00the\x00namespace -j ACCEPT",
			`IPv4: chain corral-out: order: rule 1 is: -p tcp -m conntrack --ctstate ESTABLISHED -m comment --comment "established: answers" -j ACCEPT; instead of: -o lo -m comment --comment "loopback: stays in the namespace" -j ACCEPT`},
		{"iptables -I corral-out -o lo -m comment --comment loopback:\x00stays\x00in\x00the\x00namespace -j ACCEPT",
			`IPv4: chain corral-out: foreign rule: -o lo -m comment --comment "loopback: stays in the namespace" -j ACCEPT`},
		{"iptables -P OUTPUT ACCEPT",
			`IPv4: chain OUTPUT: policy "ACCEPT" instead of "DROP"`},
		{"iptables -N elsewhere; iptables -A elsewhere -j ACCEPT",
			"IPv4: chain elsewhere is not ours (1 rules)"},
		{"iptables -F OUTPUT; iptables -F corral-out; iptables -X corral-out",
			"IPv4: chain corral-out is missing"},
	} {
		n.apply(t, k, want)
		if d := netfilter.Diff(want, n.read(t, k, netfilter.IPv4)); len(d) > 0 {
			t.Fatalf("untouched: %s", strings.Join(d, "\n"))
		}
		for line := range strings.SplitSeq(tt.commands, "; ") {
			n.tamper(t, line)
		}
		d := netfilter.Diff(want, n.read(t, k, netfilter.IPv4))
		if !strings.Contains(strings.Join(d, "\n")+"\n", tt.want+"\n") {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.commands, strings.Join(d, "\n"), tt.want)
		}
		n.feed(t, "*filter\nCOMMIT\n", "iptables-restore") // flushes everything, foreign chains too
	}
}

func TestCounters(t *testing.T) { backends(t, counters) }

func counters(t *testing.T) {
	inside, _ := newPair(t)
	k := inside.open(t)
	want := fence(netfilter.IPv4)
	inside.apply(t, k, want)
	inside.refused(t, neighbourV4, port)
	inside.do(func() {
		counters, err := k.Counters(t.Context())
		check(t, err)
		count := map[string]uint64{}
		for _, c := range counters {
			count[c.Chain+"/"+c.ID] = c.Packets
		}
		if count["corral-out/unlisted"] != 1 || count["corral-out/established"] != 0 || len(counters) != 6 {
			t.Errorf("counters: %+v", counters)
		}
	})
	if d := netfilter.Diff(want, inside.read(t, k, netfilter.IPv4)); len(d) > 0 {
		t.Errorf("traffic changed the rules: %s", strings.Join(d, "\n"))
	}
}

// The IPv6 program may be missing only where the kernel has no IPv6, and that
// takes a /proc that is there to say so (R013).
func TestOpenNeedsBothFamilies(t *testing.T) {
	n := newNamespace(t)
	exe := must(os.Executable())
	found := programs(t, map[string]string{"iptables": "iptables", "iptables-restore": "iptables-restore"})
	for _, tt := range []struct{ proc, want, refusal string }{
		{"true", "", "cannot close IPv6: ip6tables missing and net.ipv6.conf.all.disable_ipv6=0"},
		{"sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "", "cannot close IPv6: ip6tables missing and net.ipv6.conf.all.disable_ipv6=1"},
		{"sysctl -qw net.ipv6.conf.all.disable_ipv6=0", "", "disable_ipv6=0"},
		{"mount -t tmpfs none /proc", "", "/proc/thread-self/net/dev"},
		{"mount -t tmpfs none /proc; mkdir -p /proc/thread-self/net; touch /proc/thread-self/net/dev", "IPv6: false\n", ""},
	} {
		n.do(func() {
			t.Setenv(childEnv, "open")
			out, err := command.Run(t.Context(), nil, "unshare", "--mount", "sh", "-ec", tt.proc+"; PATH=$1 exec $0", exe, found)
			if string(out) != tt.want || (err == nil) != (tt.refusal == "") || err != nil && !strings.Contains(err.Error(), tt.refusal) {
				t.Errorf("%s: %q, %v, want %q, %q", tt.proc, out, err, tt.want, tt.refusal)
			}
		})
	}
}

func TestOpenNeedsRights(t *testing.T) {
	if err := newNamespace(t).as(65534, "open"); err == nil {
		t.Error("opened without CAP_NET_ADMIN")
	}
}
