package verify

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// In other people's stacks there is no plan and no host that asks the gate.
// What must hold of any service behind any gate is checked all the same, and
// what became of a probe is asked of the gate itself, at its names server.

// unfenced are the capabilities against which no gate can hold a service: of
// frames of its own, of rules, of the gate's identity, of its processes.
var unfenced = []string{"NET_RAW", "NET_ADMIN", "SETUID", "SETGID", "SYS_ADMIN", "SYS_PTRACE"}

// joinHint is how a service comes into a gate's namespace.
const joinHint = "in compose.yaml: `network_mode: service:GATE`, and `depends_on: {GATE: {condition: service_healthy}}`; a service is started anew when its gate was"

// startingHint is for who was started together with its gate, and not after it.
const startingHint = "; or the gate is still starting: docker compose up --detach --wait"

// healHint is what puts a service and its gate together again.
const healHint = "docker compose up --detach --wait --force-recreate"

// hangHint is where to look when a gate is there and says nothing.
const hangHint = "`docker compose ps` says whether the gate is paused or unhealthy, `docker compose logs GATE` what it said last"

// alone are the checks that need no policy, of a service whose gate does with
// names as said: "" if no gate answers. What cannot be planned, for want of what
// the kernel or the gate wrote, is a check that cannot tell.
func (e *env) alone(probes spec.Probes, names string) []spec.Check {
	if names == spec.NamesPublic {
		// Such a gate grants the web's ports of what is public: what it refuses is not.
		ours := spec.DefaultProbes()
		for _, p := range []struct{ is, ours *netip.Addr }{{&probes.Unlisted, &ours.Unlisted}, {&probes.Resolver, &ours.Resolver}, {&probes.Metadata, &ours.Metadata}} {
			if netguard.Classify(*p.is) == netguard.Public {
				*p.is = *p.ours
			}
		}
	}
	checks := []spec.Check{
		{Name: "gate-answers"},
		{Name: "non-root"},
		{Name: "user-not-the-gates"},
		{Name: "no-capabilities", Names: unfenced},
		{Name: "no-new-privs"},
		{Name: "seccomp-on"},
		{Name: "iptables-refused"},
		{Name: "raw-sockets-refused"},
		{Name: "vsock-refused"},
		{Name: "no-docker-socket:/var/run/docker.sock", Path: "/var/run/docker.sock"},
		{Name: "no-docker-socket:/run/docker.sock", Path: "/run/docker.sock"},
	}
	for _, path := range []string{spec.GuestDir + "/bin/corral-verify", "/etc/resolv.conf", "/etc/hosts"} {
		checks = append(checks, spec.Check{Name: "root-owned:" + path, Path: path})
	}
	checks = append(checks,
		spec.Check{Name: "policy-inputs-absent", Paths: []string{spec.GateFile, filepath.Dir(spec.GateSocket)}},
		spec.Check{Name: "gate-control-unreachable"},
		spec.Check{Name: "uid-matches-host", Skip: "no plan says whose files it may own"},
		spec.Check{Name: "mounts-only-declared", Skip: "the stack's own file says what is mounted, and nobody outside compares"},
		spec.Check{Name: "secret-absent-elsewhere", Skip: "no plan says which variables are secrets"},
		spec.Check{Name: "pids-limited", Skip: "no plan says how many processes it may have"})
	hosts, err := e.written()
	if err != nil {
		checks = append(checks, spec.Check{Name: "resolves"}) // it tells why it cannot tell
	}
	gateways, err := e.gateways()
	switch {
	case err != nil, len(gateways) == 0 && names == "":
		checks = append(checks, spec.Check{Name: "gateway-closed"}) // it tells why it cannot tell
	case len(gateways) == 0:
		checks = append(checks, spec.Check{Name: "gateway-closed", Skip: "no network here has a gateway, or an address for one"})
	}
	resolver := probes.Unlisted // as good as any, where there is no gateway
	if len(gateways) > 0 {
		resolver = gateways[0]
	}
	checks = append(checks,
		spec.Check{Name: "unlisted-host-blocked", Probes: &probes},
		spec.Check{Name: "dns-closed", Probes: &probes, Addr: resolver})
	switch names {
	case spec.NamesSink:
		checks = append(checks, spec.Check{Name: "names-sink", Addr: spec.SinkAddress})
	case spec.NamesPublic:
		checks = append(checks, spec.Check{Name: "public-only", Probes: &probes, Addrs: inward(hosts)})
	default:
		checks = append(checks, spec.Check{Name: "names-only-pinned"})
	}
	checks = append(checks,
		spec.Check{Name: "udp-closed", Probes: &probes},
		spec.Check{Name: "icmp-closed", Probes: &probes},
		spec.Check{Name: "metadata-blocked", Probes: &probes},
		spec.Check{Name: "ipv6-blocked", Probes: &probes})
	for i, a := range gateways {
		c := spec.Check{Name: "gateway-closed", Addr: a, Ports: []uint16{22, 80, 443, 2375, 2376}}
		if i > 0 {
			c.Name += ":" + a.String()
		}
		if slices.Contains(hosts[spec.HostName], a) {
			c.Skip = "the gate lets host services through there, and its settings alone say which"
		}
		checks = append(checks, c)
	}
	for _, name := range sortedNames(hosts) {
		checks = append(checks, spec.Check{Name: "resolves:" + name, Host: name, Addrs: hosts[name]})
	}
	return checks
}

// linkChecks are those of the links that the gate tells of: each leads to somebody,
// and nowhere but to its ports. What the gate does not tell is a check that cannot
// tell.
func (e *env) linkChecks(ctx context.Context) (checks []spec.Check) {
	hosts, err := e.written()
	if err != nil {
		return nil // resolves tells why it cannot tell
	}
	for _, name := range sortedNames(hosts) {
		texts, err := e.chaos(ctx, spec.LinkName(name))
		if err != nil {
			return append(checks, spec.Check{Name: "link"}) // it tells that it cannot tell
		}
		ports := map[netip.Addr][]uint16{}
		for _, text := range texts {
			to, err := netip.ParseAddrPort(text)
			if err != nil {
				return append(checks, spec.Check{Name: "link"})
			}
			ports[to.Addr()] = append(ports[to.Addr()], to.Port())
			checks = append(checks, spec.Check{Name: fmt.Sprintf("link:%s:%d", name, to.Port()), Addr: to.Addr(), Port: to.Port()})
		}
		for at, linked := range ports {
			c := spec.Check{Name: "link-closed:" + name, Addr: at, Ports: slices.DeleteFunc([]uint16{22, 53, 80, 443, 2375}, func(p uint16) bool { return slices.Contains(linked, p) })}
			for _, other := range sortedNames(hosts) {
				if other != name && slices.Contains(hosts[other], at) {
					c.Skip = other + " is there too, and the gate's settings alone say on which ports"
				}
			}
			checks = append(checks, c)
		}
	}
	return checks
}

// sends tells the checks that send something beyond loopback, or ask the gate.
func sends(c spec.Check) bool {
	switch c.Kind() {
	case "unlisted-host-blocked", "dns-closed", "names-sink", "public-only", "names-only-pinned", "udp-closed", "icmp-closed",
		"metadata-blocked", "ipv6-blocked", "gateway-closed", "resolves", "link", "link-closed":
		return true
	}
	return false
}

// aloneSection is how events of a service that nobody planned call it.
const aloneSection = "alone"

// verifyAlone runs them all and reports, as lines, of failed ones only too, or as JSON.
func verifyAlone(ctx context.Context, args []string, e *env, stdout io.Writer) error {
	if len(args) == 1 && isHelp(args[0]) {
		_, err := fmt.Fprint(stdout, usage)
		return err
	}
	write := func(w io.Writer, s []report.Section) (report.Tally, error) { return report.Text(w, s, false) }
	switch {
	case len(args) == 2 && slices.Contains(args, "--failed") && slices.Contains(args, "--json"):
		return exit.Invalidf("what does not hold has another result there than ok, skip and note", "--failed is for lines, and --json writes every event")
	case len(args) > 1:
		return exit.Invalidf("corral-verify alone [--failed | --json]", "alone takes no %q", args)
	case slices.Contains(args, "--failed"):
		write = func(w io.Writer, s []report.Section) (report.Tally, error) { return report.Failures(w, s, false) }
	case slices.Contains(args, "--json"):
		write = func(w io.Writer, s []report.Section) (report.Tally, error) {
			h := e.header(ctx)
			h.Sandbox, _ = os.Hostname()
			return report.JSON(w, h, s)
		}
	case len(args) == 1:
		return exit.Invalidf("corral-verify alone [--failed | --json]", "alone takes no %q", args[0])
	}
	probes, err := probesOfEnvironment()
	if err != nil {
		return err
	}
	e.aside = true
	names, err := e.chaos(ctx, spec.NamesName)
	if errors.Is(err, errMute) {
		e.mute = err
	}
	section := e.judge(ctx, append(e.alone(probes, strings.Join(names, "")), e.linkChecks(ctx)...))
	section.Service = aloneSection
	tally, err := write(stdout, []report.Section{section})
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if !tally.OK() {
		return exit.Status(exit.Failed)
	}
	return nil
}

// header says with what a proof was made, as far as the service's side knows: this
// program, the kernel, and the gate by its own account.
func (e *env) header(ctx context.Context) report.Header {
	h := report.Header{Time: time.Now().UTC().Truncate(time.Second), Versions: map[string]string{program: spec.Release()}, Digests: map[string]string{}}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		h.Versions["kernel"] = unix.ByteSliceToString(name.Release[:])
	}
	for name, to := range map[string]func(string){
		spec.ReleaseName:  func(text string) { h.Versions["gate"] = text },
		spec.DocumentName: func(text string) { h.Digests["document"] = text },
	} {
		if texts, err := e.chaos(ctx, name); err == nil && len(texts) == 1 && texts[0] != "" {
			to(texts[0])
		}
	}
	return h
}

func probesOfEnvironment() (spec.Probes, error) {
	probes, err := spec.ParseProbes(os.Getenv(spec.ProbesEnv))
	if err != nil {
		return spec.Probes{}, exit.Invalidf("write it like unlisted=198.51.100.1,ipv6=2001:db8::1", "%s: %w", spec.ProbesEnv, err)
	}
	return probes, nil
}

// proveAlone is what must hold before a program is started behind a gate that
// nobody has planned: a gate is there, the service is one that it can fence, and
// it does. Nothing is sent before the first two are known.
func proveAlone(ctx context.Context, e *env, stderr io.Writer) error {
	probes, err := probesOfEnvironment()
	if err != nil {
		return err
	}
	e.aside = true
	rounds := map[string][]spec.Check{}
	names, _ := e.chaos(ctx, spec.NamesName)
	for _, c := range e.alone(probes, strings.Join(names, "")) {
		switch c.Kind() {
		case "gate-answers":
			rounds["gate"] = append(rounds["gate"], c)
		case "non-root", "user-not-the-gates", "no-capabilities", "no-new-privs":
			rounds["rights"] = append(rounds["rights"], c)
		case "unlisted-host-blocked", "names-only-pinned", "names-sink", "public-only":
			rounds["fence"] = append(rounds["fence"], c)
		}
	}
	for _, round := range []string{"gate", "rights", "fence"} {
		section := e.judge(ctx, rounds[round])
		if refuse(section.Events, stderr) || !section.Holds() || len(section.Events) == 0 {
			return exit.Status(exit.Failed)
		}
	}
	return nil
}

// judge runs checks and joins what they sent with what the gate says became of
// it. Without a gate nothing is sent.
func (e *env) judge(ctx context.Context, checks []spec.Check) report.Section {
	mark, err := e.mark(ctx)
	var run []spec.Check
	var events []spec.Event
	for _, c := range checks {
		if err != nil && sends(c) && c.Skip == "" {
			events = append(events, spec.Event{Version: spec.Version, Check: c.Name, Detail: fmt.Sprintf("no gate tells what becomes of packets here, so none was sent (%v)", err)})
			continue
		}
		run = append(run, c)
	}
	for ev := range runChecks(ctx, "", run, e) {
		events = append(events, ev)
	}
	section := report.Complete("", checks, events)
	for i, ev := range section.Events {
		var verdicts []spec.Verdict
		for _, p := range ev.Probes {
			verdicts = append(verdicts, e.verdicts(ctx, p, mark)...)
		}
		section.Events[i] = report.Join(checks[i], ev, verdicts, nil)
	}
	return section
}

// mark is the newest number among the gate's verdicts.
func (e *env) mark(ctx context.Context) (uint64, error) {
	texts, err := e.chaos(ctx, spec.VerdictZone)
	if err != nil {
		return 0, err
	}
	if len(texts) != 1 {
		return 0, errors.New("who answers is no gate, or an old one")
	}
	return strconv.ParseUint(texts[0], 10, 64)
}

// verdicts are what the gate says became of a probe since the mark. One that the
// kernel itself turned away, for want of a way there, never met a rule; that is
// told as a verdict too.
func (e *env) verdicts(ctx context.Context, p spec.Probe, mark uint64) []spec.Verdict {
	texts, err := e.chaos(ctx, spec.VerdictName(p))
	if err != nil {
		return nil
	}
	var all []spec.Verdict
	for _, text := range texts {
		if v, err := spec.ParseVerdict(p, text); err == nil && v.Seq > mark {
			all = append(all, v)
		}
	}
	if len(all) == 0 && e.ports.hadNoWay(p) && !e.routed(p.Addr) {
		all = append(all, spec.Verdict{Proto: p.Proto, Source: p.Source, Addr: p.Addr, Port: p.Port, Outcome: spec.OutcomeRejected, Rule: "no route"})
	}
	return all
}

// errMute is a gate that took every question, as far as can be told, and answered none.
var errMute = fmt.Errorf("is silent: asked every %v, and no answer within %v", askAgain, answerLimit)

// chaos asks the gate for a text of its own.
func (e *env) chaos(ctx context.Context, name string) ([]string, error) {
	if e.mute != nil {
		return nil, e.mute
	}
	a, err := e.ask(ctx, name, dnsmessage.TypeTXT, dnsmessage.ClassCHAOS)
	switch {
	case err == nil && a.rcode == dnsmessage.RCodeSuccess:
		return a.texts, nil
	case err == nil:
		return nil, fmt.Errorf("%v says %v", e.dns, a.rcode)
	case fateOf(err) == silent && ctx.Err() == nil:
		return nil, fmt.Errorf("%v %w", e.dns, errMute)
	}
	return nil, fmt.Errorf("%v does not answer: %w", e.dns, cause(err))
}

// gateAnswers: a gate tells its instance here.
func gateAnswers(ctx context.Context, _ spec.Check, e *env) finding {
	texts, err := e.chaos(ctx, spec.InstanceName)
	switch {
	case err != nil && nowhere():
		return failed("no gate is here, and no network: the gate was started again, or died, and has another namespace now; or this container never joined it").
			advising(fmt.Sprintf("`%s` brings both back; to join one, %s", healHint, joinHint))
	case errors.Is(err, errMute):
		return failed("a gate, or something in its place, is here and does not answer: %v", err).advising(hangHint)
	case err != nil:
		return failed("no gate is here: %v", err).advising(joinHint + startingHint)
	}
	if len(texts) != 1 || texts[0] == "" {
		return failed("no gate is here: %v has no instance to tell", e.dns)
	}
	return ok()
}

// nowhere reports whether this namespace has loopback and no other interface that
// is up, as one that its gate has left. What cannot be told does not count.
func nowhere() bool {
	all, err := net.Interfaces()
	return err == nil && !slices.ContainsFunc(all, func(i net.Interface) bool { return i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 })
}

// namesSink: a name that nobody can have listed is Addr, says the gate and by the
// ordinary way, and what is sent there is refused.
func namesSink(ctx context.Context, c spec.Check, e *env) finding {
	if !c.Addr.Is4() {
		return untold("no address that names lead to")
	}
	stranger := strings.ToLower(rand.Text()) + "." + spec.ProbeDomain
	a, err := e.ask(ctx, stranger, dnsmessage.TypeA, dnsmessage.ClassINET)
	if err != nil {
		return untold("the gate does not answer: %v", cause(err))
	}
	if a.rcode != dnsmessage.RCodeSuccess || !slices.Equal(a.addrs, []netip.Addr{c.Addr}) {
		return failed("an unlisted name: the gate says %v %v, not %v", a.rcode, a.addrs, c.Addr)
	}
	addrs, err := e.resolver.LookupNetIP(ctx, "ip4", stranger)
	if err != nil {
		return untold("an unlisted name: %v", err)
	}
	for _, a := range addrs {
		if a.Unmap() != c.Addr {
			return failed("an unlisted name resolves to %v", addrs)
		}
	}
	return e.closed(ctx, targets(tcp, []netip.Addr{c.Addr}, 80, 443), nil)
}

// inward is one address of each kind of network that lies behind a machine, and
// one that is nobody's: the last that a host can have, and that no name here and
// no interface has, since those may answer.
func inward(hosts map[string][]netip.Addr) []netip.Addr {
	taken := append(slices.Concat(slices.Collect(maps.Values(hosts))...), ownAddrs()...)
	var all []netip.Addr
	for _, last := range [][4]byte{{10, 255, 255, 254}, {172, 31, 255, 254}, {192, 168, 255, 254}, {100, 127, 255, 254}, {192, 0, 2, 254}} {
		a := netip.AddrFrom4(last)
		for slices.Contains(taken, a) {
			a = a.Prev()
		}
		all = append(all, a)
	}
	return all
}

// publicOnly: behind a gate that looks names up, one that no public host has is
// blocked, and Probes.Metadata and Addrs, which are no public addresses, are
// refused where the web would be: Addrs, which may be somebody's, only once
// Probes.Metadata was. The detail says what was tried.
func publicOnly(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil {
		return untold("no probes")
	}
	if f := namesOnlyPinned(ctx, spec.Check{}, e); f.result != spec.OK {
		return f
	}
	if len(c.Addrs) == 0 || slices.ContainsFunc(c.Addrs, func(a netip.Addr) bool { return netguard.Classify(a) == netguard.Public }) {
		return untold("no addresses that are not public")
	}
	f := e.closed(ctx, targets(tcp, []netip.Addr{c.Probes.Metadata}, webPorts...), nil)
	if f.result != spec.OK {
		return f
	}
	metadata := f.probes
	f = e.closed(ctx, targets(tcp, c.Addrs, webPorts...), nil)
	if f.result != spec.OK {
		return f
	}
	f.probes = append(metadata, f.probes...)
	tried := c.Probes.Metadata.String()
	for _, a := range c.Addrs {
		tried += " " + a.String()
	}
	f.detail = "refused on ports 80 and 443: " + tried
	return f
}

// webPorts are what such a gate grants of public addresses.
var webPorts = []uint16{80, 443}

// resolves: Host is Addrs, says the gate and by the ordinary way.
func resolves(ctx context.Context, c spec.Check, e *env) finding {
	if c.Host == "" || len(c.Addrs) == 0 {
		if _, err := e.written(); err != nil {
			return untold("%v", err)
		}
		return untold("no name and addresses")
	}
	a, err := e.ask(ctx, c.Host, dnsmessage.TypeA, dnsmessage.ClassINET)
	if err != nil {
		return untold("the gate does not answer: %v", cause(err))
	}
	if a.rcode != dnsmessage.RCodeSuccess || !sameAddrs(a.addrs, c.Addrs) {
		return failed("it is %v in /etc/hosts, and %v %v from the gate", c.Addrs, a.rcode, a.addrs)
	}
	addrs, err := e.resolver.LookupNetIP(ctx, "ip4", c.Host)
	if err != nil {
		return failed("%v", err)
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	if !sameAddrs(addrs, c.Addrs) {
		return failed("it is %v in /etc/hosts, and resolves to %v", c.Addrs, addrs)
	}
	return ok()
}

// linked: Addr accepts TCP on Port. That the gate here lets it through is not
// enough: there must be a service, whose gate lets it in.
func linked(ctx context.Context, c spec.Check, e *env) finding {
	if !c.Addr.IsValid() || c.Port == 0 {
		return untold("the gate does not tell where links lead")
	}
	f := e.reach(ctx, []netip.Addr{c.Addr}, c.Port)
	if f.result != spec.OK {
		return f.advising("see that the service there is up, and that its gate lets this one in")
	}
	return f
}

// written are the names of /etc/hosts that a gate wrote: all but loopback's and
// the container's own. A file without loopback's, or whose end is missing, is not
// the whole of what a gate writes.
func (e *env) written() (map[string][]netip.Addr, error) {
	b, err := os.ReadFile(e.path("/etc/hosts"))
	if err != nil {
		return nil, err
	}
	hosts := parseHosts(b)
	if !slices.ContainsFunc(hosts["localhost"], netip.Addr.IsLoopback) || !bytes.HasSuffix(b, []byte("\n")) {
		return nil, errors.New("/etc/hosts is not whole: it has no localhost, or no end")
	}
	own := ownAddrs()
	hostname, _ := os.Hostname()
	for name, addrs := range hosts {
		if name == strings.ToLower(hostname) || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(own, a) }) {
			delete(hosts, name)
		}
	}
	return hosts, nil
}

func sortedNames(hosts map[string][]netip.Addr) []string {
	var names []string
	for name := range hosts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ownAddrs are the addresses of this namespace's interfaces.
func ownAddrs() []netip.Addr {
	var own []netip.Addr
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr())
		}
	}
	return own
}

// route is a line of the kernel's IPv4 routes.
type route struct {
	to      netip.Prefix
	gateway netip.Addr
}

// parseRoutes reads /proc/net/route, which prints addresses as numbers in the
// machine's byte order. Routes that are down or refuse are left out; a file that
// does not begin and end as the kernel's does is an error.
func parseRoutes(b []byte) ([]route, error) {
	const up, reject = 0x1, 0x200 // RTF_UP, RTF_REJECT
	var all []route
	head, lines, found := strings.Cut(string(b), "\n")
	if !found || !strings.HasPrefix(head, "Iface\t") || lines != "" && !strings.HasSuffix(lines, "\n") {
		return nil, errors.New("routes: the list is not whole")
	}
	for line := range strings.Lines(lines) {
		f := strings.Fields(line) // Iface Destination Gateway Flags RefCnt Use Metric Mask
		if len(f) < 8 {
			return nil, fmt.Errorf("routes: %q", strings.TrimSpace(line))
		}
		to, err1 := hexAddr(f[1])
		gateway, err2 := hexAddr(f[2])
		mask, err3 := hexAddr(f[7])
		flags, err4 := strconv.ParseUint(f[3], 16, 32)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		if flags&up == 0 || flags&reject != 0 {
			continue
		}
		m := mask.As4()
		bits, _ := net.IPMask(m[:]).Size()
		all = append(all, route{netip.PrefixFrom(to, bits), gateway})
	}
	return all, nil
}

func hexAddr(s string) (netip.Addr, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 4 {
		return netip.Addr{}, fmt.Errorf("address %q", s)
	}
	var a [4]byte
	binary.NativeEndian.PutUint32(a[:], binary.BigEndian.Uint32(raw))
	return netip.AddrFrom4(a), nil
}

func (e *env) routes() ([]route, error) {
	b, err := os.ReadFile(e.path("/proc/net/route"))
	if err != nil {
		return nil, err
	}
	return parseRoutes(b)
}

// parseRoutes6 reads where /proc/net/ipv6_route leads, IPv6. Routes that refuse
// are left out.
func parseRoutes6(b []byte) ([]netip.Prefix, error) {
	const reject = 0x200 // RTF_REJECT
	var all []netip.Prefix
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // destination, its length, source, its length, next hop, metric, references, use, flags, interface
		if len(f) != 10 {
			return nil, fmt.Errorf("routes: %q", strings.TrimSpace(line))
		}
		raw, err1 := hex.DecodeString(f[0])
		bits, err2 := strconv.ParseUint(f[1], 16, 8)
		flags, err3 := strconv.ParseUint(f[8], 16, 32)
		to, ok := netip.AddrFromSlice(raw)
		if err := errors.Join(err1, err2, err3); err != nil || !ok || !to.Is6() || bits > 128 {
			return nil, fmt.Errorf("routes: %q", strings.TrimSpace(line))
		}
		if flags&reject == 0 {
			all = append(all, netip.PrefixFrom(to, int(bits)))
		}
	}
	return all, nil
}

// routed reports whether the kernel has a way to an address; what cannot be told
// counts as one.
func (e *env) routed(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	if a.Is4() {
		routes, err := e.routes()
		return err != nil || slices.ContainsFunc(routes, func(r route) bool { return r.to.Contains(a) })
	}
	b, err := os.ReadFile(e.path("/proc/net/ipv6_route"))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	routes, err := parseRoutes6(b)
	return err != nil || slices.ContainsFunc(routes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// gateways are where the host is on each network: the default gateway first, and
// the first address of each network that has none, as engines give it to the
// host even where it leads nowhere.
func (e *env) gateways() ([]netip.Addr, error) {
	routes, err := e.routes()
	if err != nil {
		return nil, err
	}
	own := ownAddrs()
	var gateways []netip.Addr
	add := func(a netip.Addr) {
		if !a.IsUnspecified() && !slices.Contains(own, a) && !slices.Contains(gateways, a) {
			gateways = append(gateways, a)
		}
	}
	for _, r := range routes {
		if r.to.Bits() == 0 {
			add(r.gateway)
		}
	}
	for _, r := range routes {
		if r.gateway.IsUnspecified() && r.to.Bits() > 0 && r.to.Bits() < 31 {
			add(r.to.Addr().Next())
		}
	}
	return gateways, nil
}
