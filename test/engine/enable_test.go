package engine

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/test/lab"
)

// outskirts are what an engine of a test's own has for an internet: a network
// namespace with an origin, a name server once it is started, and a canary.
type outskirts struct {
	t  *testing.T
	ns string
}

// outskirts connects it. Nothing leads on from there.
func (o *ownEngine) outskirts() *outskirts {
	o.t.Helper()
	x := &outskirts{o.t, o.ns + "-out"}
	run(o.t, "ip", "netns", "add", x.ns)
	o.t.Cleanup(func() { run(o.t, "ip", "netns", "del", x.ns) })
	run(o.t, "ip", "-n", o.ns, "link", "add", "out", "type", "veth", "peer", "name", "in", "netns", x.ns)
	run(o.t, "ip", "-n", o.ns, "addr", "add", "44.10.1.1/16", "dev", "out")
	run(o.t, "ip", "-n", o.ns, "link", "set", "out", "up")
	for _, a := range []fmt.Stringer{lab.NameServer, lab.OriginFirst, lab.Canary, lab.Authority} {
		run(o.t, "ip", "-n", x.ns, "addr", "add", a.String()+"/16", "dev", "in")
	}
	run(o.t, "ip", "-n", x.ns, "link", "set", "in", "up")
	for _, a := range []fmt.Stringer{lab.Canary, lab.Authority} {
		run(o.t, "ip", "netns", "exec", x.ns, "iptables", "-w", "-A", "INPUT", "-d", a.String(), "-j", "DROP")
	}
	origin := opened(o.t, x.ns, func() (net.Listener, error) { return net.Listen("tcp", lab.OriginFirst.String()+":443") })
	go func() {
		for {
			c, err := origin.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return x
}

// opened opens a socket in a namespace, until the test ends.
func opened[S interface{ Close() error }](t *testing.T, ns string, open func() (S, error)) (s S) {
	t.Helper()
	if err := insideOf(ns, func() (err error) { s, err = open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// names starts the name server, which knows one address for every name, until stop
// is called.
func (x *outskirts) names() (stop func()) {
	x.t.Helper()
	pc := opened(x.t, x.ns, func() (net.PacketConn, error) { return net.ListenPacket("udp", lab.NameServer.String()+":53") })
	server := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: lab.OriginFirst.AsSlice()}}
		}
		_ = w.WriteMsg(m)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.ActivateAndServe() }()
	return func() { pc.Close(); <-done }
}

// arrived is how many packets came for the canary and the authority.
func (x *outskirts) arrived() (n int) {
	x.t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^\s*(\d+)\s+\d+\s+DROP\s`).FindAllStringSubmatch(run(x.t, "ip", "netns", "exec", x.ns, "iptables", "-w", "-nvxL", "INPUT"), -1) {
		packets, err := strconv.Atoi(m[1])
		if err != nil {
			x.t.Fatal(err)
		}
		n += packets
	}
	return n
}

// unitOf is what systemd would run by a unit, and with which environment beside the
// home that it gives everybody.
func unitOf(t *testing.T, home, text string) (args, env []string) {
	t.Helper()
	word := regexp.MustCompile(`"([^"]*)"|\S+`)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		var words []string
		for _, w := range word.FindAllString(value, -1) {
			words = append(words, strings.Trim(w, `"`))
		}
		switch key {
		case "ExecStart":
			args = words
		case "Environment":
			env = append(env, words...)
		}
	}
	if len(args) == 0 || strings.ContainsAny(strings.Join(append(args, env...), ""), `%$\`) {
		t.Fatalf("not a unit that a test can read: %s", text)
	}
	return args, append(env, "HOME="+home)
}

// What a unit of corral enable runs, begun before the engine and long before there is
// a name server, brings the sandbox up in order when both are there, fenced from its
// first moment; a policy that grants more than was accepted ends it with 2, and
// nothing is up (R124, R034, R030).
func TestEnable(t *testing.T) {
	t.Parallel()
	shared := project(t, nothing) // its engine has the images that these binaries make
	o := startEngine(t)
	x := o.outskirts()
	s := o.restless(shared, "enable", "egress: {allow: [{domain: api.allowed.test, ports: [443]}]}\n")
	o.docker("run", "--rm", "--network", "corral", "debian:bookworm-slim", "bash", "-c", "echo > /dev/udp/"+lab.Canary.String()+"/9")
	if x.arrived() == 0 {
		t.Fatal("positive control: a packet of nobody's did not arrive, so nothing can be told")
	}
	before := x.arrived()
	stop := x.names()
	if r := o.corral(s, "up", "--accept"); r.code != 0 {
		t.Fatal(r)
	}
	r := o.corral(s, "enable", "--print")
	if r.code != 0 {
		t.Fatal(r)
	}
	args, env := unitOf(t, filepath.Join(o.dir, "home"), r.out)
	begin := func() (*exec.Cmd, *lines) {
		t.Helper()
		said := &lines{news: make(chan struct{}, 1)}
		by := *s
		by.env, by.dir, by.bin = env, "/", filepath.Dir(args[0])
		var c *exec.Cmd
		if err := o.inside(func() error { c, _ = by.begin(said, args[1:]...); return nil }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		return c, said
	}

	stop()
	o.stop()
	watch, said := begin()
	mark := said.await(t, 0, "no Docker engine answers at "+o.socket)
	mark = said.await(t, mark, s.id+" is not up: it is tried again until it is")
	o.start()
	mark = said.await(t, mark, "the gate stayed closed: api.allowed.test")
	if r := o.corral(s, "status"); r.code != 1 || strings.Contains(r.out, "main: running") {
		t.Errorf("without names: %v", r)
	}
	x.names()
	mark = said.await(t, mark, s.id+" is up\n")
	mark = said.await(t, mark, "watching "+s.id)
	if n := strings.Count(said.String(), "the gate stayed closed"); n != 1 {
		t.Errorf("told %d times why: %s", n, said)
	}
	if r := o.corral(s, "verify"); r.code != 0 || !strings.Contains(r.out, "ok   allowed:api.allowed.test:443") {
		t.Errorf("verify: %v", r)
	}
	// The stop of a unit ends the watch, and nothing else.
	signal(t, watch.Process.Pid, syscall.SIGTERM)
	said.await(t, mark, "not watched any more, and stays up")
	if err := watch.Wait(); err != nil {
		t.Error(err)
	}
	if r := o.corral(s, "status"); r.code != 0 {
		t.Errorf("after the watch: %v", r)
	}
	if n := x.arrived() - before; n > 0 {
		t.Errorf("%d packets arrived that no policy lists", n)
	}

	// What was taken down comes up again at the next boot: that is what enabled means.
	down := func() {
		t.Helper()
		if r := o.corral(s, "down"); r.code != 0 {
			t.Error(r)
		}
	}
	down()
	o.stop()
	watch, said = begin()
	mark = said.await(t, 0, s.id+" is not up: it is tried again until it is")
	o.start()
	said.await(t, mark, "watching "+s.id)
	down()
	if err := watch.Wait(); err != nil {
		t.Errorf("taken down: %v: %s", err, said)
	}
	s.write("corral.yaml", "profile: shell\nname: enable\nmode: daemon\negress: {allow: [other.allowed.test]}\n")
	watch, said = begin()
	_ = watch.Wait()
	if code := watch.ProcessState.ExitCode(); code != 2 || !strings.Contains(said.String(), "it grants more than was accepted") {
		t.Errorf("a policy that grants more: status %d: %s", code, said)
	}
	if left := o.docker("ps", "--all", "--quiet", "--filter", "label=dev.corral.sandbox="+s.id); left != "" {
		t.Errorf("up all the same: %s", left)
	}
}

// What is enabled is said by those who look, and by the down that it outlives.
func TestEnabled(t *testing.T) {
	t.Parallel()
	s := project(t, always("enabled", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	root := filepath.Dir(s.dir)
	// The part of systemctl that is needed: its link, and what it was asked.
	const systemctl = `#!/bin/sh
echo "$*" >> ROOT/asked
wants=ROOT/home/.config/systemd/user/default.target.wants
case $2 in
enable) mkdir -p $wants && ln -sf ../$3 $wants/$3 ;;
is-active) echo active ;;
esac
`
	s.own(filepath.Join(root, "fake"))
	run(t, "sh", "-c", `printf %s "$0" | sed "s,ROOT,$1,g" > "$1/fake/systemctl" && chmod 755 "$1/fake/systemctl"`, systemctl, root)
	s.env = append(s.env, "PATH="+filepath.Join(root, "fake")+":"+os.Getenv("PATH"), "XDG_RUNTIME_DIR="+root)
	unit := "corral-" + s.id + ".service"
	s.must("enable")
	if fi, err := os.Stat(filepath.Join(root, "home", ".config", "systemd", "user", unit)); err != nil || fi.Sys().(*syscall.Stat_t).Uid != s.uid {
		t.Fatalf("the unit: %v", err)
	}
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, unit+": enabled, and active\n") {
		t.Errorf("status before anything is up: %v", r)
	}
	s.must("up")
	for _, c := range []struct {
		args []string
		said string
	}{
		{[]string{"status"}, unit + ": enabled, and active\n"},
		{[]string{"status", "--json"}, `"unit": { "name": "` + unit + `", "enabled": true, "state": "active" }`},
		{[]string{"ps"}, "always on, enabled"},
	} {
		if r := s.corral(c.args...); r.code != 0 || !strings.Contains(strings.Join(strings.Fields(r.out), " "), strings.TrimSpace(c.said)) {
			t.Errorf("corral %v: %v", c.args, r)
		}
	}
	if r := s.must("down"); !strings.Contains(r.err, unit+" brings it up again at the next boot or login; corral disable ends that") || !strings.Contains(r.err, s.id+" is down") {
		t.Errorf("down: %v", r)
	}
	if b, err := os.ReadFile(filepath.Join(root, "asked")); err != nil || !strings.Contains(string(b), "--user stop --no-block "+unit+"\n") {
		t.Errorf("systemd was asked %s: %v", b, err)
	}
	s.must("up")
	if r := s.must("disable"); !strings.Contains(r.err, s.id+" stays as it is") {
		t.Errorf("disable: %v", r)
	}
	if r := s.corral("status"); r.code != 0 || strings.Contains(r.out, unit) {
		t.Errorf("status after disable: %v", r)
	}
	if r := s.must("down"); strings.Contains(r.err, "boot") {
		t.Errorf("down after disable: %v", r)
	}
	s.must("enable")
	if r := s.corral("down", "--purge"); r.code != 2 || !strings.Contains(r.err, unit+"\n") {
		t.Errorf("what a purge removes: %v", r)
	}
	if r := s.must("down", "--purge", "--yes"); !strings.Contains(r.err, unit+" is removed: what it goes by is purged") || strings.Contains(r.err, "boot") {
		t.Errorf("purged: %v", r)
	}
	if r := s.must("disable"); !strings.Contains(r.err, "is not enabled") {
		t.Errorf("disable after a purge: %v", r)
	}
}
