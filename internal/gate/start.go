package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// step is one of the steps of a start, in the order that is the security
// property of the gate: whichever fails, or is the last one reached, nothing
// is open that should not be.
type step struct {
	name string
	do   func(context.Context) error
}

func (g *gate) steps() []step {
	return []step{
		{"close", g.close},
		{"read", g.read},
		{"own", g.learnOwn},
		{"worker", g.startWorker},
		{"open-resolver", g.openResolver},
		{"resolve", g.resolve},
		{"pin", g.pin},
		{"rules", g.enforce},
		{"names", g.tellNames},
		{"self-check", g.selfCheck},
	}
}

// start goes through the steps. A failure says at which.
func (g *gate) start(ctx context.Context) error {
	if err := failpoint("before-close"); err != nil {
		return err
	}
	for _, s := range g.steps() {
		if err := s.do(ctx); err != nil {
			return err
		}
		if err := failpoint("after-" + s.name); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	g.tellWorker(ctx, g.spec, g.pins, true)
	g.mu.Lock()
	g.state = spec.GateReady
	g.mu.Unlock()
	g.sayf("egress policy applied")
	_, err := fmt.Fprintln(g.out, spec.ReadyLine)
	return err
}

// close comes before anything that can fail for a reason of its own. What an
// earlier gate in the same namespace may have left open goes too.
func (g *gate) close(ctx context.Context) error {
	kernel, err := netfilter.Open(ctx)
	var unusable *netfilter.Unusable
	lacks := lackedRights()
	switch {
	case errors.As(err, &unusable) && len(unusable.Rights) > 0 && len(lacks) > 0:
		return lacking(lacks, unusable.State())
	case errors.As(err, &unusable):
		return exit.Failedf(unusable.Hint(), "%s: %w", unusable.State(), err)
	case err != nil:
		return fmt.Errorf("no rules can be set, nothing is closed: %w", err)
	}
	g.kernel = kernel
	if err := g.shut(ctx); err != nil {
		return err
	}
	if len(lacks) > 0 {
		return lacking(lacks, "everything stays closed")
	}
	families := "IPv4 and IPv6"
	if !kernel.HasIPv6() {
		families = "IPv4; there is no IPv6"
	}
	g.sayf("closed: INPUT, OUTPUT and FORWARD drop everything (%s, %s)", families, kernel.Backend())
	if err := kernel.TryDestroy(ctx); err != nil {
		g.sayf("warning: %v: %s", err, spec.WithoutDestroy)
	}
	return nil
}

// neededRights are what a gate holds: to write rules and read their records, to
// make its worker another user, and to end it.
var neededRights = []struct {
	bit  uint
	name string
}{{unix.CAP_NET_ADMIN, "NET_ADMIN"}, {unix.CAP_NET_RAW, "NET_RAW"}, {unix.CAP_SETUID, "SETUID"}, {unix.CAP_SETGID, "SETGID"}, {unix.CAP_KILL, "KILL"}}

// lackedRights are those that this process does not have. What cannot be told
// shows when it is needed.
func lackedRights() (lacks []string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil
	}
	for _, r := range neededRights {
		if data[0].Effective&(1<<r.bit) == 0 {
			lacks = append(lacks, r.name)
		}
	}
	return lacks
}

func lacking(rights []string, state string) error {
	var all []string
	for _, r := range neededRights {
		all = append(all, r.name)
	}
	return exit.Failedf(fmt.Sprintf("cap_add: [%s]", strings.Join(all, ", ")), "%s: the gate lacks %s", state, strings.Join(rights, ", "))
}

// shut lets nothing pass any more. Both policies come first, in case the rest
// cannot be done.
func (g *gate) shut(ctx context.Context) error {
	if g.kernel == nil {
		return nil
	}
	failures := []error{g.kernel.Close(ctx)}
	for _, r := range g.families(g.spec, closed) {
		failures = append(failures, g.kernel.Apply(ctx, r))
	}
	return errors.Join(failures...)
}

// families are the rules of a stage for the families that there are.
func (g *gate) families(doc spec.Gate, at stage) []netfilter.Ruleset {
	rules := rulesets(doc, at)
	if !g.kernel.HasIPv6() {
		rules = rules[:1]
	}
	return rules
}

// maxSpec bounds the document.
const maxSpec = 16 << 20

func (g *gate) read(context.Context) error {
	s, err := loadSpec(spec.GateFile)
	if e := (*exit.Error)(nil); err != nil && !errors.As(err, &e) {
		err = &exit.Error{Status: exit.Invalid, Err: fmt.Errorf("%s: %w", spec.GateFile, err), Hint: "everything stays closed"}
	}
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.spec, g.state = s, spec.GateStarting
	g.mu.Unlock()
	environ := saying(given(os.Environ()))
	g.sayf("%s", told(s, environ))
	return nil
}

// told is what a document amounts to, and where it is from: the variables that say
// something, or else the file.
func told(doc spec.Gate, environ []string) string {
	from := "read " + spec.GateFile
	if len(environ) > 0 {
		from = "read from the environment, " + strings.Join(environ, ", ")
	}
	for _, w := range []struct{ what, is string }{{"sandbox", doc.Sandbox}, {"service", doc.Service}} {
		if w.is != "" {
			from += fmt.Sprintf(", %s %q", w.what, w.is)
		}
	}
	return fmt.Sprintf("%s: %s, %s, %s, %s", from, printable.Count(len(doc.Names), "name"), printable.Count(len(doc.Links), "link"),
		printable.Count(len(doc.Clients), "client"), printable.Count(len(doc.HostPorts), "host port"))
}

// byItself reports whether a document is that of a gate without a corral.
func byItself(doc spec.Gate) bool { return !doc.Address.IsValid() }

// byVariables reports whether the names of a document are those of a variable.
func byVariables(doc spec.Gate) bool {
	return slices.ContainsFunc(doc.Names, func(n spec.Name) bool { return n.Origin == allowSetting })
}

// learnOwn adds the networks that this namespace is on, and its way out, to what
// may never be pinned: not every stack says so. Links must lead to neighbours.
func (g *gate) learnOwn(context.Context) error {
	around, err := look()
	if err != nil {
		return fmt.Errorf("the namespace's own addresses: %w", err)
	}
	if err := around.holds(g.spec.Links); err != nil {
		return exit.Invalidf("everything stays closed", "%w", err)
	}
	if g.mounts, err = openMounts(); err != nil {
		return fmt.Errorf("what is mounted: %w", err)
	}
	now, err := readMade(g.mounts)
	if err != nil {
		return fmt.Errorf("the namespace cannot be read: %w", err)
	}
	if err := now.strangely(g.spec); err != nil && !byItself(g.spec) {
		return exit.Failedf("everything stays closed; somebody changed it before the gate began: corral down, then corral up, makes it anew", "%w", err)
	}
	g.mu.Lock()
	g.made = now
	g.own = around.own()
	g.spec = g.withOwn(g.spec)
	g.mu.Unlock()
	return nil
}

// withOwn is a document that never pins what is the namespace's own.
func (g *gate) withOwn(doc spec.Gate) spec.Gate {
	doc.Never = slices.Clone(doc.Never)
	for _, p := range g.own {
		if !slices.Contains(doc.Never, p) {
			doc.Never = append(doc.Never, p)
		}
	}
	return doc
}

// surroundings are what a namespace says of where it is.
type surroundings struct {
	addrs    []netip.Prefix // of its interfaces, loopback aside, with their networks
	gateways []netip.Addr   // the default ones
}

func look() (surroundings, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return surroundings{}, err
	}
	var s surroundings
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return surroundings{}, err
		}
		if !p.Addr().IsLoopback() {
			s.addrs = append(s.addrs, p)
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return surroundings{}, err
	}
	for _, r := range routes {
		gw, ok := netip.AddrFromSlice(r.Gw)
		if ok && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
			s.gateways = append(s.gateways, gw.Unmap())
		}
	}
	return s, nil
}

// own are the networks, and the default gateways.
func (s surroundings) own() (own []netip.Prefix) {
	for _, p := range s.addrs {
		own = append(own, p.Masked())
	}
	for _, gw := range s.gateways {
		own = append(own, netip.PrefixFrom(gw, gw.BitLen()))
	}
	return own
}

// loadSpec reads a document that nobody but root can have written. Where there
// is no spec.GateFile the environment takes its place; both are a mistake,
// whatever the path, since the next start would not know which to go by.
// Mistakes in the environment are of type *exit.Error.
func loadSpec(path string) (spec.Gate, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if path == spec.GateFile && errors.Is(err, fs.ErrNotExist) {
		return environment()
	}
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return spec.Gate{}, err
	}
	defer f.Close()
	if told := saying(given(os.Environ())); len(told) > 0 {
		return spec.Gate{}, exit.Invalidf("everything stays closed; leave one of the two out", "there is %s, and the environment sets %s: a gate goes by one of the two", path, strings.Join(told, ", "))
	}
	info, err := f.Stat()
	if err != nil {
		return spec.Gate{}, err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if !info.Mode().IsRegular() || owner != 0 || info.Mode().Perm()&0o022 != 0 {
		return spec.Gate{}, fmt.Errorf("it must be a file of root's that nobody else can write (it is %v, uid %d)", info.Mode(), owner)
	}
	return parseSpec(io.LimitReader(f, maxSpec))
}

func (g *gate) startWorker(ctx context.Context) error {
	var err error
	if g.worker, err = openSupervisor(g.words, g.audit); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	control, err := listenControl(spec.GateSocket)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	g.tasks.Go(func() error { return g.worker.run(ctx) })
	g.tasks.Go(func() error { return serveControl(ctx, control, g.answer) })
	g.tellWorker(ctx, g.spec, g.pins, false)
	there, cancel := context.WithTimeoutCause(ctx, askTimeout, errSilent)
	defer cancel()
	if _, err := g.worker.current(there); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	g.sayf("worker started: uid %d, no capability; it holds %s", spec.WorkerUID, namesServer)
	return nil
}

// tellWorker gives the worker, and all to come, what it may answer lookups with.
func (g *gate) tellWorker(ctx context.Context, doc spec.Gate, pins []spec.Pin, serving bool) {
	p := doc.Probes
	t := table{Instance: g.instance, Document: doc.Digest(), Pins: brief(tableOf(named(doc, pins))), Links: doc.Links, Serving: serving, Alone: byItself(doc),
		Own: []netip.Addr{p.Unlisted, p.Resolver, dockerResolver.Addr(), g.unlisted()}}
	if doc.SinkNames {
		t.Sink = spec.SinkAddress
	}
	if doc.Class == spec.ClassPublic {
		t.Never = never(doc)
		for _, r := range doc.Resolvers {
			t.Forward = append(t.Forward, netip.AddrPortFrom(r, dnsPort))
		}
	}
	g.worker.set(ctx, t)
}

// maxToldFading bounds the fading addresses that the worker is told of, to name the
// connections to them.
const maxToldFading = 4096

// brief has as much of what fades as a message can bear.
func brief(pins []spec.Pin) []spec.Pin {
	pins = slices.Clone(pins)
	left := maxToldFading
	for i := range pins {
		n := min(left, len(pins[i].Fading))
		pins[i].Fading = pins[i].Fading[:n]
		left -= n
	}
	return pins
}

func (g *gate) openResolver(ctx context.Context) error {
	if len(g.spec.Names) == 0 {
		return nil
	}
	if err := g.kernel.Apply(ctx, g.families(g.spec, resolving)...); err != nil {
		return err
	}
	g.sayf("lookups open for the worker alone: %v", g.spec.Resolvers)
	return nil
}

func (g *gate) resolve(ctx context.Context) error {
	g.resolved = resolveNames(ctx, g.spec, domains(g.spec), g.lookUp)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := g.kernel.Apply(ctx, g.families(g.spec, closed)...); err != nil {
		return err
	}
	if len(g.spec.Names) > 0 {
		g.sayf("lookups closed")
	}
	return nil
}

// lookUp is a lookup of the worker's, whose failure is a resolve.Error too.
func (g *gate) lookUp(ctx context.Context, q request) (reply, error) {
	r, err := g.worker.ask(ctx, q)
	if err != nil && ctx.Err() != nil {
		err = &lookupFailed{err, resolve.Timeout}
	}
	return r, err
}

// lookupFailed is a failure of a lookup in the worker's words; of anything else
// that it is asked, kind is zero.
type lookupFailed struct {
	error
	kind resolve.Kind
}

func (e *lookupFailed) Unwrap() []error { return []error{e.error, &resolve.Error{Kind: e.kind}} }

// failed reports whether a name that has to be pinned is not for a reason of
// one of the kinds.
func failed(doc spec.Gate, results map[string]resolution, kinds ...resolve.Kind) bool {
	return slices.ContainsFunc(doc.Names, func(n spec.Name) bool {
		var e *resolve.Error
		return !n.Soft && errors.As(results[n.Domain].err, &e) && slices.Contains(kinds, e.Kind)
	})
}

func (g *gate) pin(context.Context) error {
	now := time.Now()
	pinned, err := decide(g.spec, outcome{}, g.resolved, now)
	if err != nil {
		return unpinnable(g.spec, g.resolved, err)
	}
	for _, u := range pinned.unpinned {
		g.sayf("warning: %s (%s) stays closed: %s", u.Domain, u.Origin, u.Reason)
	}
	for _, p := range pinned.pins {
		for _, a := range p.Addrs {
			g.sayf("pinned %s %s, ports %s, for %v (%s)", p.Domain, a, portsText(p.Ports, p.AnyPort), p.TTL, p.Origin)
		}
	}
	g.notice(nil, pinned.pins)
	g.mu.Lock()
	g.pins, g.unpinned, g.refreshed = pinned.pins, pinned.unpinned, now
	g.mu.Unlock()
	g.schedule(g.resolved, now)
	g.resolved = nil
	return nil
}

// unpinnable is the end of a start or a refresh for names that decide refused.
func unpinnable(doc spec.Gate, results map[string]resolution, err error) error {
	if !byItself(doc) && failed(doc, results, unanswered...) {
		err = errors.Join(err, errors.New(spec.GateUnanswered))
	}
	return &exit.Error{Status: exit.Failed, Err: err, Hint: unresolved(doc, results)}
}

// unanswered are the failures of a lookup that another name server might not have.
var unanswered = []resolve.Kind{resolve.Timeout, resolve.Unreachable, resolve.ServFail, resolve.Refused}

// unresolved is what to do about names that cannot be pinned. Where the name
// server is the host's own and silent, it may be that the firewall is.
func unresolved(doc spec.Gate, results map[string]resolution) string {
	if at := doc.Gateway; slices.Contains(doc.Resolvers, at) && failed(doc, results, resolve.Timeout) {
		to := netip.AddrPortFrom(at, dnsPort)
		return fmt.Sprintf("the name server of this machine is asked at %v, where corral's relay listens: see that it answers on this machine itself, and that no firewall drops what comes in by %s (%s; the same with proto tcp)",
			to, spec.Bridge, letIn(to, "udp"))
	}
	names, servers := "the policy", "resolvers in config.yaml"
	switch {
	case byItself(doc) && byVariables(doc):
		names, servers = allowSetting, resolversSetting
	case byItself(doc):
		names, servers = spec.GateFile, "resolvers there"
	}
	if byItself(doc) && failed(doc, results, unanswered...) {
		return fmt.Sprintf("%s must list name servers that answer containers of this machine: %s", servers, whereResolvers)
	}
	return fmt.Sprintf("correct the name, or take it out of %s; %s says which name servers are asked", names, servers)
}

// notice says which addresses several names share, unless it was so before.
func (g *gate) notice(before, pins []spec.Pin) {
	known := sharedAddrs(before)
	lines := slices.DeleteFunc(sharedAddrs(pins), func(l string) bool { return slices.Contains(known, l) })
	for _, l := range lines[:min(len(lines), noticeShown)] {
		g.sayf("notice: %s", l)
	}
	if n := len(lines) - noticeShown; n > 0 {
		g.sayf("notice: so it is with %d more addresses", n)
	}
}

// enforce fills the sets before the rules that refer to them, and replaces the
// rules of each family at once. Then it sees that the kernel has those and no others,
// and that what they stand on is as it was.
func (g *gate) enforce(ctx context.Context) error {
	if err := g.apply(ctx); err != nil {
		return err
	}
	if err := g.compare(ctx); err != nil {
		return fmt.Errorf("the rules are not as they were set: %w", err)
	}
	return g.unaltered()
}

func (g *gate) apply(ctx context.Context) error {
	g.fence.Lock()
	defer g.fence.Unlock()
	want := applied{rules: g.families(g.spec, serving), sets: sets(g.pins), at: serving}
	if err := g.kernel.ApplySets(ctx, want.sets...); err != nil {
		return err
	}
	if err := g.kernel.Apply(ctx, want.rules...); err != nil {
		return err
	}
	var err error
	if want.nat, err = g.kernel.Rewriting(ctx); err != nil {
		return err
	}
	g.applied = want
	for _, r := range want.rules {
		n := 0
		for _, c := range r.Chains {
			n += len(c.Rules)
		}
		g.sayf("%s: %d rules in place", r.Family, n)
	}
	return nil
}

// tellNames lets services find the pinned names: in the hosts file, and at the
// names server for programs that read no hosts file.
func (g *gate) tellNames(ctx context.Context) error {
	if err := writeNames(g.spec.Class, named(g.spec, g.pins), false); err != nil {
		return fmt.Errorf("names: %w", err)
	}
	g.tellWorker(ctx, g.spec, g.pins, false)
	g.sayf("names written: %s, %s", hostsFile, resolverFile)
	return nil
}
