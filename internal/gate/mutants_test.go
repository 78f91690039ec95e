package gate_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// mutantsFile has a line for each mutant: its ID, what it is, and the kinds of checks
// that it fails every time, or why nobody has to miss what it lacks.
const mutantsFile = "../../test/kernel/testdata/mutants.tsv"

// unmissed are mutants that no check fails, and why that is right. A key that ends
// in * is a beginning.
var unmissed = map[string]string{
	"4/INPUT/established/swap":                         bothAccept,
	"4/INPUT/resolve-in/swap":                          bothAccept,
	"4/OUTPUT/loopback/swap":                           bothAccept,
	"4/OUTPUT/resolve/swap":                            bothAccept,
	"4/OUTPUT/docker-resolver-refusal/swap":            apart,
	"4/corral-public/special-purpose(19)/swap":         apart,
	"4/OUTPUT/established/swap":                        apart,
	"4/corral-resolve-in/resolve-in-tcp/drop":          answered,
	"4/corral-resolve-in/resolve-in-tcp/without-s":     answered,
	"4/corral-resolve-in/resolve-in-tcp/without-sport": answered,
	"4/OUTPUT/public/swap":                             "a gate of class public has no pins, so the rule that it changes places with takes nothing",
}

const (
	bothAccept = "both rules accept, so that their order decides nothing"
	apart      = "no packet is what both rules are about, so that their order decides nothing"
	answered   = "while the gate serves, the rule for established connections has let it in already; this one is for when names are resolved at the start, where there is no other"
)

// someMutants has only those judged whose ID has its text in it, and tells what found
// each.
const someMutants = "CORRAL_MUTANT"

// labs is how many gates take mutants of one document side by side.
const labs = 4

// between are two proofs of one gate: it records two packets a second from each port
// of a checker's (limitSeen), and a fast machine asks for more.
const between = 600 * time.Millisecond

// What a policy of every kind of grant is, and where its names lead.
const (
	mutantPolicy = `profile: shell
name: mutants
egress:
  allow:
    - {domain: api.allowed.test, ports: [443, 8443]}
    - {domain: other.allowed.test, ports: [443]}
    - {domain: any.allowed.test, ports: any}
host_services:
  - {name: model, port: 8001}
`
	linkAddr, clientAddr, peerAddr = "172.30.0.3", "172.30.0.4", "172.30.0.5"
	linkPort, clientPort           = 5432, 8080
	anyAddr                        = "44.10.0.12"
	publicName                     = "web.public.test"
)

// mutantCase is a document with the checks of its service that a gate's rules decide.
type mutantCase struct {
	name   string
	doc    spec.Gate
	checks []spec.Check
}

func mutantCases(t *testing.T) []mutantCase {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, policy.FileName)
	if err := os.WriteFile(file, []byte(mutantPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.Load(file, policy.Env{Home: "/home/dev", UID: os.Getuid(), Profiles: profile.Names()})
	if err != nil {
		t.Fatal(err)
	}
	host := plan.Host{UID: agentUID, GID: agentUID, Homes: []string{"/home/dev"}, Resolvers: []netip.Addr{netip.MustParseAddr(resolverAddr)},
		Probes: spec.DefaultProbes(), Subnet: plan.DefaultSubnet}
	pl, err := plan.Build(pol, prof, host, plan.At(netip.MustParseAddr(gateAddr)), nil)
	if err != nil {
		t.Fatal(err)
	}
	pinned := pl.Gates[0].Spec
	pinned.Links = []spec.Link{{Name: "db", Addr: netip.MustParseAddr(linkAddr), Port: linkPort}}
	pinned.Clients = []spec.Client{{Addr: netip.MustParseAddr(clientAddr), Port: clientPort}}
	pinned.Refresh = spec.RefreshManual // one in between would look names up through a mutant's rules
	pinned.Never = prefixes("44.10.7.0/24")
	for i, c := range pl.Services[0].Verify {
		switch c.Kind() {
		case "unlisted-host-blocked":
			pl.Services[0].Verify[i].Ports = append(c.Ports, linkPort)
		case "names-only-pinned":
			pl.Services[0].Verify[i].Names = append(c.Names, pinned.Links[0].Name)
		}
	}
	checks := slices.DeleteFunc(plan.Peers(pl.Services[0].Verify, map[string]netip.Addr{"other/main": netip.MustParseAddr(peerAddr)}), func(c spec.Check) bool { return !ofRules(c) })
	linked := append(slices.Clone(checks),
		spec.Check{Name: fmt.Sprintf("link:db:%d", linkPort), Addr: pinned.Links[0].Addr, Port: linkPort},
		spec.Check{Name: "link-closed:db", Addr: pinned.Links[0].Addr, Ports: []uint16{22, 443}})

	public := pinned
	public.Class, public.Names, public.Links, public.Clients, public.HostPorts = spec.ClassPublic, nil, nil, nil, nil
	probes := spec.DefaultProbes()
	var open []spec.Check
	for _, c := range checks {
		switch c.Kind() {
		case "names-only-pinned":
			c = spec.Check{Name: "public-only", Probes: &probes, Addrs: []netip.Addr{netip.MustParseAddr("10.255.255.254"), netip.MustParseAddr("44.10.7.9")}[:1]}
		case "udp-closed":
			c.Names = []string{publicName}
		case "unlisted-host-blocked":
			c.Ports = nil
		case "allowed", "host-service", "port-not-listed-blocked":
			continue
		}
		open = append(open, c)
	}
	for _, port := range []uint16{80, 443} {
		open = append(open, spec.Check{Name: fmt.Sprintf("allowed:%s:%d", publicName, port), Host: publicName, Port: port})
	}
	open = append(open, spec.Check{Name: "port-not-listed-blocked:" + publicName, Host: publicName, Port: 8445})

	sunk := pinned
	sunk.SinkNames = true
	var sink []spec.Check
	for _, c := range linked {
		if c.Kind() == "names-only-pinned" {
			c = spec.Check{Name: "names-sink", Addr: spec.SinkAddress}
		}
		sink = append(sink, c)
	}
	return []mutantCase{{"pinned", pinned, linked}, {"public", public, open}, {"sink", sunk, sink}}
}

// ofRules reports whether a gate's rules have a say in a check. The others are about
// a container, which is not here; and IPv6 is on here, so that it is refused by rule.
func ofRules(c spec.Check) bool {
	switch c.Kind() {
	case "same-netns-as-gate", "unlisted-host-blocked", "dns-closed", "names-only-pinned", "udp-closed", "bound-sockets-closed", "icmp-closed", "metadata-blocked", "ipv6-blocked",
		"gateway-closed", "host-port-undeclared-blocked", "host-service", "allowed", "port-not-listed-blocked", "peer-unreachable":
		return true
	}
	return false
}

// Whatever is missing from a gate's rules and sets, or is too much in them, verify
// finds it, with the kernel and the gate's own read-back agreeing that all is as it
// should be.
func TestMutants(t *testing.T) {
	t.Parallel()
	testenv.Require(t, "netns")
	known := knownMutants(t)
	var mu sync.Mutex
	table := map[string]mutantResult{}
	began := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		reportMutants(t, table, known, time.Since(began))
	})
	judged := map[string]bool{}
	for _, c := range mutantCases(t) {
		first := newMutantLab(t, c)
		var mine []string
		for _, m := range first.list() {
			if only := os.Getenv(someMutants); !judged[m[0]+m[2]] && strings.Contains(m[0], only) {
				judged[m[0]+m[2]] = true
				table[m[0]] = mutantResult{what: m[1]}
				mine = append(mine, m[0])
			}
		}
		if len(mine) == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			work := make(chan string, len(mine))
			for _, id := range mine {
				work <- id
			}
			close(work)
			var wg sync.WaitGroup
			for i := range min(labs, len(mine)) {
				l := first
				if i > 0 {
					l = newMutantLab(t, c)
				}
				wg.Go(func() {
					for id := range work {
						r := l.judge(id)
						if slices.ContainsFunc(r.kinds, func(kind string) bool { return !slices.Contains(known[id].kinds, kind) }) {
							r = l.judge(id) // an open verdict of a mutant before may have had this one's record
						}
						mu.Lock()
						table[id] = table[id].with(r)
						mu.Unlock()
					}
				})
			}
			wg.Wait()
		})
	}
}

// mutantResult is what became of a mutant.
type mutantResult struct {
	what       string
	kinds      []string // of checks that failed
	details    []string
	selfCheck  bool   // the gate's own refused it
	impossible string // the kernel takes no such rule
}

// with is what one document and another say of a mutant together.
func (r mutantResult) with(other mutantResult) mutantResult {
	r.kinds = append(r.kinds, other.kinds...)
	slices.Sort(r.kinds)
	r.kinds = slices.Compact(r.kinds)
	r.details = append(r.details, other.details...)
	r.selfCheck = r.selfCheck || other.selfCheck
	r.impossible = cmp.Or(r.impossible, other.impossible)
	return r
}

func reportMutants(t *testing.T, table map[string]mutantResult, known map[string]mutantResult, took time.Duration) {
	killed, survived, explained, impossible, own := 0, 0, 0, 0, 0
	var lines []string
	for _, id := range slices.Sorted(maps.Keys(table)) {
		r := table[id]
		said := ""
		why := unmissedBecause(id)
		switch {
		case r.impossible != "":
			impossible++
			said = "impossible: the kernel takes no such rule"
		case len(r.kinds) > 0:
			killed++
			said = strings.Join(r.kinds, ",")
			for _, kind := range known[id].kinds {
				if !update && !slices.Contains(r.kinds, kind) {
					t.Errorf("%s: %s did not find it, as it should; what did: %s", id, kind, strings.Join(r.details, "\n\t"))
				}
			}
			if why != "" {
				t.Errorf("%s needs no reason: %s", id, strings.Join(r.details, "\n\t"))
			}
		case why != "":
			explained++
			said = "explained: " + why
		default:
			survived++
			t.Errorf("%s (%s): nothing finds it", id, r.what)
			said = "SURVIVED"
		}
		if os.Getenv(someMutants) != "" {
			t.Logf("%s: %s", id, strings.Join(r.details, "\n\t"))
		}
		if r.selfCheck {
			own++
		}
		if _, is := known[id]; !is && !update {
			t.Errorf("%s is not in %s (run with UPDATE=1 to accept)", id, mutantsFile)
		}
		lines = append(lines, id+"\t"+r.what+"\t"+said)
		fmt.Printf("mutant %-60s %s\n", id, said)
	}
	for id := range known {
		if _, is := table[id]; !is && !update && os.Getenv(someMutants) == "" {
			t.Errorf("%s is in %s and no mutant (run with UPDATE=1 to accept)", id, mutantsFile)
		}
	}
	if update {
		if err := os.WriteFile(mutantsFile, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	rate := 100.0
	if n := killed + survived; n > 0 {
		rate = 100 * float64(killed) / float64(n)
	}
	fmt.Printf("rule mutants: %d mutants, %d killed, %d survived, %d explained, %d impossible: kill rate %.4g %% (%d by the gate's own self-check too; %v)\n",
		len(table), killed, survived, explained, impossible, rate, own, took.Round(time.Second))
}

func unmissedBecause(id string) string {
	if why, is := unmissed[id]; is {
		return why
	}
	for k, why := range unmissed {
		if p, is := strings.CutSuffix(k, "*"); is && strings.HasPrefix(id, p) {
			return why
		}
	}
	return ""
}

func knownMutants(t *testing.T) map[string]mutantResult {
	t.Helper()
	b, err := os.ReadFile(mutantsFile)
	if err != nil && !update {
		t.Fatal(err)
	}
	known := map[string]mutantResult{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			t.Fatalf("%s: %q", mutantsFile, line)
		}
		r := mutantResult{what: f[1]}
		if !strings.Contains(f[2], ": ") {
			r.kinds = strings.Split(f[2], ",")
		}
		known[f[0]] = r
	}
	return known
}

// mutantLab is a gate that becomes one mutant after the other, what is around it, and
// a service beside it.
type mutantLab struct {
	*pair
	t       testing.TB
	gate    *gateProc
	file    string // says which mutant
	service int    // a process in the service's namespaces
	checks  []spec.Check
	bait    *bait
	pace    *time.Ticker
}

// dockerNAT is what an engine writes for its resolver.
const dockerNAT = `*nat
:DOCKER_OUTPUT - [0:0]
:DOCKER_POSTROUTING - [0:0]
-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT
-A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING
-A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:35001
-A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:35002
-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 35001 -j SNAT --to-source :53
-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport 35002 -j SNAT --to-source :53
COMMIT
`

func newMutantLab(t *testing.T, c mutantCase) *mutantLab {
	t.Helper()
	p := newPair(t)
	for _, a := range []string{linkAddr, clientAddr, peerAddr} {
		run(t, "ip", "-n", p.world, "addr", "add", a+"/24", "dev", "eth0")
	}
	run(t, "ip", "-n", p.world, "addr", "add", anyAddr+"/16", "dev", "eth0")
	run(t, "ip", "-n", p.gate, "-6", "route", "add", "default", "via", canaryIPv6)
	for _, a := range []string{worldAddr + ":8001", originAddr + ":80", originAddr + ":8443", linkAddr + ":5432"} {
		p.listen(netip.MustParseAddrPort(a))
	}
	p.zone("api.allowed.test", "A "+originAddr)
	p.zone("other.allowed.test", "A "+origin2Addr)
	p.zone("any.allowed.test", "A "+anyAddr)
	p.zone(publicName, "A "+originAddr)
	l := &mutantLab{pair: p, t: t, file: filepath.Join(t.TempDir(), "mutant"), bait: p.openBait(), pace: time.NewTicker(between)}
	t.Cleanup(l.pace.Stop)
	l.engineResolver()
	p.must(p.gate, func() error { // as an engine's namespaces have it
		return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644)
	})
	if err := os.WriteFile(l.file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l.gate = p.start(c.doc, "CORRAL_GATE_MUTANT="+l.file).ready()
	l.checks = plan.Join(c.checks, l.gate.status())
	for i, c := range l.checks {
		if c.Kind() == "host-port-undeclared-blocked" {
			l.checks[i].Port = baitPort
		}
	}
	l.joinService()
	if r := l.judge(""); len(r.kinds) > 0 {
		t.Fatalf("%s: without a mutant: %s", c.name, strings.Join(r.details, "\n"))
	}
	return l
}

// engineResolver answers at 127.0.0.11 as an engine's own does.
func (l *mutantLab) engineResolver() {
	l.t.Helper()
	var pc net.PacketConn
	var tcp net.Listener
	l.must(l.pair.gate, func() (err error) {
		cmd := exec.Command("iptables-restore", "-w")
		cmd.Stdin = strings.NewReader(dockerNAT)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if tcp, err = net.Listen("tcp4", "127.0.0.11:35001"); err != nil {
			return err
		}
		pc, err = net.ListenPacket("udp4", "127.0.0.11:35002")
		return err
	})
	for _, s := range []*dns.Server{{PacketConn: pc}, {Listener: tcp}} {
		s.Handler = dns.HandlerFunc(l.answer)
		started, ended := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- s.ActivateAndServe() }()
		<-started
		l.t.Cleanup(func() { s.Shutdown(); <-ended })
	}
}

// bait is what corral's canary is: it answers on a port of the gateway's that is
// not granted, and notes who comes.
type bait struct {
	mu      sync.Mutex
	callers []netip.Addr
}

const baitPort = 8445

func (p *pair) openBait() *bait {
	p.t.Helper()
	b := &bait{}
	note := func(a net.Addr) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.callers = append(b.callers, netip.MustParseAddrPort(a.String()).Addr())
	}
	var tcp net.Listener
	var udp net.PacketConn
	p.must(p.world, func() (err error) {
		if tcp, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", worldAddr, baitPort)); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp4", fmt.Sprintf("%s:%d", worldAddr, baitPort))
		return err
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			note(c.RemoteAddr())
			c.Close()
		}
	})
	wg.Go(func() {
		buf := make([]byte, 1)
		for {
			_, from, err := udp.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				note(from)
				udp.WriteTo(buf, from)
			}
		}
	})
	p.t.Cleanup(func() { tcp.Close(); udp.Close(); wg.Wait() })
	return b
}

// caught is whether somebody came from the gate's address since the last call.
func (b *bait) caught() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := slices.Contains(b.callers, netip.MustParseAddr(gateAddr))
	b.callers = nil
	return was
}

// joinService starts a process that holds a service's namespaces beside the gate.
func (l *mutantLab) joinService() {
	l.t.Helper()
	binary, err := gateBinary()
	if err != nil {
		l.t.Fatal(err)
	}
	read := func(file string) string {
		text, err := l.gate.exec("cat", file)
		if err != nil {
			l.t.Fatal(err, text)
		}
		return text
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+l.pair.gate, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", beside, "sh",
		filepath.Join(filepath.Dir(binary), "corral-verify"), "sh", "-c", "echo here; exec sleep infinity")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOSTS=" + read("/etc/hosts"), "RESOLV=" + read("/etc/resolv.conf")}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "here\n" {
		l.t.Fatalf("%q, %v", line, err)
	}
	l.service = child(l.t, cmd.Process.Pid)
}

// ask puts one question to the gate, as its own commands do.
func (l *mutantLab) ask(question string, into any) error {
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/%d/root%s", l.gate.pid, spec.GateSocket))
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(40 * time.Second))
	if _, err := fmt.Fprintln(conn, question); err != nil {
		return err
	}
	var raw json.RawMessage
	if err := json.NewDecoder(conn).Decode(&raw); err != nil {
		return err
	}
	var refused struct{ Error string }
	if err := json.Unmarshal(raw, &refused); err == nil && refused.Error != "" {
		return errors.New(refused.Error)
	}
	return json.Unmarshal(raw, into)
}

// list are the mutants of the lab's document: an ID, what it is, and what of the rules
// it is about.
func (l *mutantLab) list() (all [][3]string) {
	l.t.Helper()
	b, err := os.ReadFile(l.file + ".all")
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			l.t.Fatalf("%q", line)
		}
		all = append(all, [3]string(f))
	}
	return all
}

// judge has the gate become a mutant and verifies it as the engine's side does.
func (l *mutantLab) judge(id string) (r mutantResult) {
	if err := os.WriteFile(l.file, []byte(id), 0o644); err != nil {
		l.t.Error(err)
		return r
	}
	var refreshed spec.Refreshed
	if err := l.ask(`{"refresh":"mutant"}`, &refreshed); err != nil {
		if r.impossible = err.Error(); !strings.Contains(r.impossible, "iptables") && !strings.Contains(r.impossible, "ip6tables") {
			l.t.Errorf("%s: %v", id, err)
		}
		return r
	}
	r.selfCheck = slices.ContainsFunc(l.gate.output(), func(line string) bool {
		said, is := strings.CutPrefix(line, "corral-gate: mutant "+id+": self-check: ")
		return is && said != "<nil>"
	})
	<-l.pace.C
	l.bait.caught()
	var before, after spec.Verdicts
	if err := l.ask(`{"verdicts":0}`, &before); err != nil {
		l.t.Error(err)
		return r
	}
	events, out := l.verify(id)
	if err := l.ask(fmt.Sprintf(`{"verdicts":%d}`, before.Mark), &after); err != nil {
		l.t.Error(err)
		return r
	}
	section := report.Complete("main", l.checks, events)
	caught := l.bait.caught()
	for i, c := range l.checks {
		ev := report.Join(c, section.Events[i], after.Verdicts, nil)
		if caught && c.Kind() == "host-port-undeclared-blocked" {
			ev.Result, ev.Detail = spec.Failed, "reached"
		}
		if ev.Result != spec.OK && ev.Result != spec.Skip {
			r.kinds = append(r.kinds, c.Kind())
			r.details = append(r.details, fmt.Sprintf("%s: %s %s", c.Name, ev.Result, ev.Detail))
		}
	}
	if len(events) == 0 {
		r.details = append(r.details, out)
	}
	slices.Sort(r.kinds)
	if r.kinds = slices.Compact(r.kinds); len(r.kinds) > 0 {
		return r // what a packet shows needs no paper
	}
	var status spec.GateStatus
	if err := l.ask(`{"status":true}`, &status); err != nil {
		l.t.Error(err)
		return r
	}
	if len(status.Astray) > 0 {
		r.kinds = append(r.kinds, "rules-as-granted")
		r.details = append(r.details, status.Astray...)
	}
	return r
}

// verify runs the checker as the service's user.
func (l *mutantLab) verify(id string) (events []spec.Event, out string) {
	cmd := exec.Command("nsenter", "-t", fmt.Sprint(l.service), "-m", "-n", "-p", "-S", fmt.Sprint(agentUID), "-G", fmt.Sprint(agentUID), "--", verifyBinary)
	cmd.Env = []string{"HOME=/"}
	cmd.Stdin = bytes.NewReader(spec.Encode(spec.Verify{Version: spec.Version, Service: "main", Checks: l.checks}))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exited) && exited.ExitCode() == 1) {
		l.t.Errorf("%s: checker: %v: %s", id, err, stderr.String())
	}
	events, err = report.Read(&stdout)
	if err != nil {
		l.t.Errorf("%s: checker's answer: %v", id, err)
	}
	return events, stdout.String() + stderr.String()
}
