package engine

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// evidence is what can be seen of a gate and of a service from outside. What
// nobody says is nil.
type evidence struct {
	gate, service *container.InspectResponse
	image         map[string]json.RawMessage // the settings of the service's image

	repo string // what the service's images are called
	// swapUncounted is an engine whose kernel counts no swap, so that it takes no limit of it.
	swapUncounted bool
	commanded     bool // the service's command is the plan's, and not what somebody typed
	declared      []spec.Mount
	checks        []spec.Check // all that are made

	// differ is what of the service is not as planned; untold is why that cannot be
	// told.
	differ []difference
	untold error

	// first is the service's first process. Without it, elsewhere says that this
	// machine's kernel shows nothing of the gate either; unseen is why not, if it does.
	first     *process
	elsewhere bool
	unseen    error

	status spec.GateStatus
	pinned map[string][]netip.Addr         // what names had while the checks ran
	owned  func(string) (ownership, error) // whose what lies at a path in the service is

	strangers findings     // containers of somebody else's that are in the service's namespaces, or its gate's
	listed    findings     // processes of the service's that are not confined, by the engine
	lodgers   findings     // and by the kernel, whoever else is in its namespaces among them
	unknown   []difference // what the service was made with that corral knows no name of
	engine    *choices
}

// witness is a side other than the agent's.
type witness struct {
	name spec.Witness
	// judge says what it makes of a check that holds by what was said inside:
	// spec.OK, spec.Failed with its words, or spec.Untold with the reason. spec.Skip
	// is no witness at all.
	judge func(c spec.Check, ev spec.Event, seen evidence) (spec.Result, string)
}

// Sides of the engine's and of the kernel's that several kinds share.
var (
	byCapabilities = []witness{asAsked("HostConfig.CapAdd", "HostConfig.CapDrop", "HostConfig.Privileged"), ofFirst(withoutCapabilities)}
	byProfile      = []witness{asOption("seccomp"), ofFirst(func(p *process, _ spec.Check) string {
		if !p.filtered {
			return "runs without a filter of system calls"
		}
		return ""
	})}
	byMount = []witness{{spec.WitnessEngine, mountsAt}, {spec.WitnessKernel, mountpointsAt}}
	byPath  = []witness{{spec.WitnessEngine, nothingMountedAt}}
	byGate  = []witness{{spec.WitnessGate, probed}}
)

// witnesses are who must say the same as the checker inside, by the kind of check.
// A kind that is not here rests on the agent's side, or is judged on the host.
var witnesses = map[string][]witness{
	"non-root": {asAsked("Config.User"), ofFirst(func(p *process, _ spec.Check) string {
		for _, uid := range []uint32{0, spec.WorkerUID} {
			if slices.Contains(p.uids[:], uid) {
				return fmt.Sprintf("has uids %v", p.uids)
			}
		}
		return ""
	})},
	"uid-matches-host":    {asAsked("Config.User", "HostConfig.GroupAdd"), ofFirst(sameUser)},
	"no-capabilities":     byCapabilities,
	"iptables-refused":    byCapabilities,
	"raw-sockets-refused": byCapabilities,
	"no-new-privs": {asOption(render.NoNewPrivileges), ofFirst(func(p *process, _ spec.Check) string {
		if !p.noNewPrivs {
			return "may gain privileges"
		}
		return ""
	})},
	"seccomp-on":     byProfile,
	"vsock-refused":  byProfile,
	"pids-limited":   {asAsked("HostConfig.PidsLimit")},
	"memory-limited": {asAsked("HostConfig.Memory", "HostConfig.MemorySwap", "HostConfig.OomKillDisable")},
	"cpus-limited":   {asAsked("HostConfig.NanoCpus", "HostConfig.CpuQuota", "HostConfig.CpuPeriod")},

	"mounts-only-declared":  byMount,
	"host-home-only-mounts": byPath,
	"ro-unwritable":         byMount,
	"rw-writable":           byMount,
	"policy-read-only":      byMount,
	"git-shielded":          byMount,
	"env-shadowed":          byMount,
	"no-docker-socket":      byPath,
	"no-credential-dir":     byPath,
	"env-file-not-mounted":  byPath,
	"policy-inputs-absent":  byPath,
	"root-owned":            {{spec.WitnessKernel, rootsOwn}},

	"processes-confined": {{spec.WitnessKernel, confinedToo}},

	"secret-absent-elsewhere": {{spec.WitnessEngine, secretsOnlyInEnv}},

	"same-netns-as-gate": {asAsked("HostConfig.NetworkMode"), {spec.WitnessKernel, sameNamespace}, {spec.WitnessGate, namesItself}},
	"gate-control-unreachable": {asAsked("HostConfig.PidMode", "HostConfig.IpcMode", "HostConfig.VolumesFrom"), {spec.WitnessGate, func(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
		return namesOnly(seen.status)
	}}},

	"unlisted-host-blocked":        byGate,
	"dns-closed":                   byGate,
	"bound-sockets-closed":         byGate,
	"udp-closed":                   byGate,
	"metadata-blocked":             byGate,
	"gateway-closed":               byGate,
	"peer-unreachable":             byGate,
	"port-not-listed-blocked":      byGate,
	"host-port-undeclared-blocked": byGate,
	"host-service":                 byGate,
	"link":                         byGate,
	"link-closed":                  byGate,
	"names-sink":                   byGate,
	"public-only":                  byGate,
	"allowed":                      {{spec.WitnessGate, reachedAPin}},
	"names-only-pinned":            {{spec.WitnessGate, pinsThoseNames}},
	"icmp-closed":                  {{spec.WitnessGate, rulesAsApplied}},
	"ipv6-disabled":                {{spec.WitnessGate, withoutIPv6}},
	"no-ipv6-address":              {{spec.WitnessGate, withoutIPv6Address}},
	"ipv6-blocked":                 {{spec.WitnessGate, ipv6Refused}},
}

// attest joins an event that report.Join has decided with what everybody else
// says of the check. Whoever contradicts is believed; who should speak and says
// nothing leaves it untold.
func (seen evidence) attest(c spec.Check, ev spec.Event) spec.Event {
	all := witnesses[c.Kind()]
	if ev.Result == spec.Failed || ev.Result == spec.Skip {
		return ev
	}
	agreed, silent := []spec.Witness{spec.WitnessAgent}, ""
	_, ours := onHost[c.Kind()]
	if ours {
		agreed = []spec.Witness{soleWitness(c.Kind())}
	}
	for _, w := range all {
		switch result, words := w.judge(c, ev, seen); result {
		case spec.OK:
			agreed = append(agreed, w.name)
		case spec.Skip:
		case spec.Failed:
			ev.Result, ev.Detail = spec.Failed, fmt.Sprintf("the %s says otherwise: %s", w.name, words)
			return ev
		default:
			silent = fmt.Sprintf("the %s does not bear it out: %s", w.name, words)
		}
	}
	if ev.Result != spec.OK {
		return ev
	}
	if len(all) > 0 && len(agreed) == 1 && silent == "" && !ours {
		silent = "nobody outside could be asked"
	}
	if silent != "" {
		ev.Result, ev.Detail = spec.Untold, silent
		return ev
	}
	ev.Witnesses = append(agreed, ev.Witnesses...)
	return ev
}

// soleWitness is whose word a kind of check rests on that is judged on the host.
func soleWitness(kind string) spec.Witness {
	if kind == "rules-as-granted" {
		return spec.WitnessGate
	}
	return spec.WitnessEngine
}

// among are the differences in some fields, whatever of them.
func (seen evidence) among(fields ...string) []difference {
	var all []difference
	for _, d := range seen.differ {
		if slices.Contains(fields, d.field) {
			all = append(all, d)
		}
	}
	return all
}

// verdictOf is a witness's that has found differences, or none.
func verdictOf(found []difference) (spec.Result, string) {
	const most = 3
	if len(found) == 0 {
		return spec.OK, ""
	}
	var words []string
	for _, d := range found[:min(most, len(found))] {
		words = append(words, Plain(d.String()))
	}
	if more := len(found) - most; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return spec.Failed, strings.Join(words, "; ")
}

// asAsked is the engine, of fields of a service that must be as the plan asks.
func asAsked(fields ...string) witness {
	return witness{spec.WitnessEngine, func(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
		if seen.untold != nil {
			return spec.Untold, seen.untold.Error()
		}
		return verdictOf(seen.among(fields...))
	}}
}

// asOption is the engine, of one security option.
func asOption(name string) witness {
	return witness{spec.WitnessEngine, func(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
		if seen.untold != nil {
			return spec.Untold, seen.untold.Error()
		}
		return verdictOf(slices.DeleteFunc(seen.among(fieldOptions), func(d difference) bool { return d.subject != name }))
	}}
}

// ofFirst is the kernel, of a service's first process: complaint is empty if all
// is well.
func ofFirst(complaint func(*process, spec.Check) string) witness {
	return witness{spec.WitnessKernel, func(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
		if result, words := seen.shown(); result != spec.OK {
			return result, words
		}
		if words := complaint(seen.first, c); words != "" {
			return spec.Failed, "the first process " + words
		}
		return spec.OK, ""
	}}
}

// shown says whether the kernel of this machine shows the service's first
// process. Where it does not show the gate's either, it is no witness: the
// engine's may be another.
func (seen evidence) shown() (spec.Result, string) {
	switch {
	case seen.first != nil:
		return spec.OK, ""
	case seen.elsewhere:
		return spec.Skip, ""
	case seen.unseen != nil:
		return spec.Untold, seen.unseen.Error()
	}
	return spec.Untold, "nobody looked"
}

func withoutCapabilities(p *process, _ spec.Check) string {
	for _, set := range capabilitySets {
		if held, there := p.caps[set]; !there || held != 0 {
			return fmt.Sprintf("has capabilities: %s %x", set, held)
		}
	}
	return ""
}

func sameUser(p *process, c spec.Check) string {
	switch {
	case p.uids != [4]uint32{c.UID, c.UID, c.UID, c.UID}:
		return fmt.Sprintf("has uids %v, not %d", p.uids, c.UID)
	case p.gids != [4]uint32{c.GID, c.GID, c.GID, c.GID}:
		return fmt.Sprintf("has gids %v, not %d", p.gids, c.GID)
	}
	for _, g := range p.groups {
		if g != c.GID {
			return fmt.Sprintf("is in group %d", g)
		}
	}
	return ""
}

// concerns says whether a difference of a mount concerns a check: of one path it is
// what is mounted there and below, of several those, of none all.
func concerns(c spec.Check, d difference) bool {
	switch c.Kind() {
	case "ro-unwritable", "rw-writable", "policy-read-only":
		return mountinfo.Within(d.subject, path.Clean(c.Path))
	case "git-shielded", "env-shadowed":
		return slices.ContainsFunc(c.Mount, func(m spec.Mount) bool { return path.Clean(m.Target) == d.subject })
	}
	return true
}

// mountsAt is the engine, of what is mounted: as the plan asks.
func mountsAt(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if seen.untold != nil {
		return spec.Untold, seen.untold.Error()
	}
	fields := []string{fieldAsked, fieldMounts}
	if c.Kind() == "mounts-only-declared" {
		fields = append(fields, "HostConfig.Binds", "HostConfig.Tmpfs", "HostConfig.VolumesFrom", "HostConfig.VolumeDriver")
	}
	return verdictOf(slices.DeleteFunc(seen.among(fields...), func(d difference) bool { return d.subject != "" && !concerns(c, d) }))
}

// mountpointsAt is the kernel, of the same.
func mountpointsAt(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if result, words := seen.shown(); result != spec.OK {
		return result, words
	}
	if seen.first.mounts == nil {
		return spec.Skip, ""
	}
	found := seen.first.undeclared(seen.declared)
	if seen.service != nil {
		found = append(found, seen.first.strayed(seen.service.Mounts)...)
	}
	return verdictOf(slices.DeleteFunc(found, func(d difference) bool { return !concerns(c, d) }))
}

// nothingMountedAt is the engine, of what nobody asked to be mounted: neither it
// nor what it shows of the host has to do with the paths of a check.
func nothingMountedAt(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if seen.untold != nil {
		return spec.Untold, seen.untold.Error()
	}
	if len(seen.service.Mounts) == 0 {
		return spec.Untold, "it names nothing that is mounted"
	}
	paths := c.Paths
	switch _, arg, _ := strings.Cut(c.Name, ":"); c.Kind() {
	case "no-docker-socket":
		paths = []string{c.Path}
	case "no-credential-dir":
		paths = nil
		for _, home := range append([]string{plan.Home}, c.Paths...) {
			paths = append(paths, path.Join(home, arg))
		}
	}
	if len(paths) == 0 {
		return spec.Untold, "the check names no path"
	}
	var found []difference
	for _, d := range seen.among(fieldMounts) {
		for _, m := range seen.service.Mounts {
			if m.Destination != d.subject {
				continue
			}
			for _, p := range paths {
				if p = path.Clean(p); overlap(m.Source, p) || overlap(m.Destination, p) || c.Kind() == "no-docker-socket" && path.Base(m.Source) == path.Base(p) {
					found = append(found, d)
				}
			}
		}
	}
	return verdictOf(found)
}

// overlap says whether one of two paths lies in the other.
func overlap(a, b string) bool {
	return a != "" && (mountinfo.Within(path.Clean(a), b) || mountinfo.Within(b, path.Clean(a)))
}

// rootsOwn is the kernel's word on whose what lies at a path is.
func rootsOwn(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if seen.owned == nil {
		return spec.Untold, "nobody looked"
	}
	switch o, err := seen.owned(c.Path); {
	case err != nil:
		return spec.Untold, err.Error()
	case o.uid != 0:
		return spec.Failed, fmt.Sprintf("%s belongs to %d:%d", c.Path, o.uid, o.gid)
	case o.shared:
		return spec.Failed, c.Path + " can be written by others than root"
	}
	return spec.OK, ""
}

// secretsOnlyInEnv is the engine, of the values of secrets: they are in the
// variables of those names, and in nothing else that it knows of either
// container or of the image. No value is shown.
func secretsOnlyInEnv(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if seen.untold != nil {
		return spec.Untold, seen.untold.Error()
	}
	var values [][2]string
	var rest []string
	for _, v := range seen.service.Config.Env {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case !slices.Contains(c.Names, name):
			rest = append(rest, v)
		case spec.TooPlain(value) == "":
			values = append(values, [2]string{name, value})
		}
	}
	if len(values) == 0 {
		return spec.Untold, "it names no secret that can be looked for"
	}
	service := *seen.service
	config := *service.Config
	config.Env = rest
	service.Config = &config
	for _, place := range []struct {
		what string
		v    any
	}{{"the service", service}, {"the gate", seen.gate}, {"the image", seen.image}} {
		b, err := json.Marshal(place.v)
		var plain any
		if err != nil || json.Unmarshal(b, &plain) != nil {
			return spec.Untold, "what it says cannot be read"
		}
		for _, secret := range values {
			if at := holding(plain, secret[1], ""); at != "" {
				return spec.Failed, fmt.Sprintf("the value of %s is in what it knows of %s (%s)", secret[0], place.what, at)
			}
		}
	}
	return spec.OK, ""
}

// holding says where in decoded JSON a text is, by the names of the fields alone;
// empty if it is nowhere.
func holding(v any, text, at string) string {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, text) {
			return at
		}
	case []any:
		for _, item := range v {
			if found := holding(item, text, at); found != "" {
				return found
			}
		}
	case map[string]any:
		for name, item := range v {
			if strings.Contains(name, text) {
				return at + ", a name"
			}
			if found := holding(item, text, strings.TrimPrefix(at+"."+name, ".")); found != "" {
				return found
			}
		}
	}
	return ""
}

// sameNamespace is the kernel, of the network namespace. One that may not be
// looked at says nothing.
func sameNamespace(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	switch result, words := seen.shown(); {
	case result != spec.OK:
		return result, words
	case seen.first.netns == 0:
		return spec.Skip, ""
	case seen.first.netns != seen.status.NetNS:
		return spec.Failed, fmt.Sprintf("the first process is in net:[%d], the gate in net:[%d]", seen.first.netns, seen.status.NetNS)
	}
	return spec.OK, ""
}

// namesItself is the gate, of what the checker compared with.
func namesItself(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if c.Gate == nil || seen.status.NetNS == 0 || seen.status.Instance == "" || *c.Gate != (spec.Joined{Instance: seen.status.Instance, NetNS: seen.status.NetNS}) {
		return spec.Untold, "it does not say which it is"
	}
	return spec.OK, ""
}

// namesOnly is what a gate makes of its own listeners: names, and the engine's
// resolver.
func namesOnly(status spec.GateStatus) (spec.Result, string) {
	n := status.Namespace
	if n == nil {
		return spec.Untold, "it does not say what it sees of its namespace"
	}
	names := netip.MustParseAddrPort("127.0.0.1:53")
	served := false
	for _, l := range n.Listeners {
		switch {
		case l.Addr == names && l.UID != spec.CarrierUID: // whoever of the two opened it
			served = true
		case l.Addr.Addr() != dockerResolver || l.UID != 0:
			return spec.Failed, fmt.Sprintf("%s %v listens, uid %d", Plain(l.Proto), l.Addr, l.UID)
		}
	}
	if !served {
		return spec.Untold, fmt.Sprintf("it does not say that it listens at %v, so it does not say all", names)
	}
	return spec.OK, ""
}

// dockerResolver is the engine's own, in every namespace on a network with names.
var dockerResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// probed is the gate, of packets: report.Join has seen that it bears each of them out.
func probed(_ spec.Check, ev spec.Event, _ evidence) (spec.Result, string) {
	if len(ev.Probes) == 0 {
		return spec.Untold, "it was asked about nothing"
	}
	return spec.OK, ""
}

// reachedAPin is the gate, of a connection to a name: it let one through to an
// address that it has pinned for that name.
func reachedAPin(c spec.Check, ev spec.Event, seen evidence) (spec.Result, string) {
	for _, p := range ev.Probes {
		if p.Proto == "tcp" && p.Port == c.Port && slices.Contains(seen.pinned[c.Host], p.Addr.Unmap()) {
			return spec.OK, ""
		}
	}
	return spec.Untold, fmt.Sprintf("it let nothing through to an address that it has pinned for %s", Plain(c.Host))
}

// pinsThoseNames is the gate, of the names that it has pinned.
func pinsThoseNames(c spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	for _, name := range c.Names {
		if len(seen.pinned[name]) == 0 && name != spec.HostName && !seen.links(name) {
			return spec.Failed, fmt.Sprintf("%s is not pinned", Plain(name))
		}
	}
	for name := range seen.pinned {
		if !slices.Contains(c.Names, name) {
			return spec.Failed, fmt.Sprintf("%s is pinned, which the policy does not list", Plain(name))
		}
	}
	if seen.status.ReadBack == "" {
		return spec.Untold, "it does not say what is in its sets"
	}
	return spec.OK, ""
}

// links reports whether a name is that of a neighbour, which no policy lists and no gate
// resolves: where it leads is a check of its own.
func (seen evidence) links(name string) bool {
	return slices.ContainsFunc(seen.checks, func(c spec.Check) bool { return c.Kind() == "resolves" && c.Host == name })
}

// rulesAsApplied is the gate, of what needs no record: the rules that refuse it are
// in the kernel, and refuse it on paper.
func rulesAsApplied(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	switch {
	case seen.status.ReadBack == "" || seen.status.Applied == "":
		return spec.Untold, "it does not say which rules are in the kernel"
	case seen.status.ReadBack != seen.status.Applied:
		return spec.Failed, "the rules in the kernel are not those that it applied"
	}
	return rulesAsGranted(seen)
}

func withoutIPv6(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	n := seen.status.Namespace
	if n == nil || n.IPv6 == nil {
		return spec.Untold, "it does not say what it sees of its namespace"
	}
	if len(n.IPv6) > 0 {
		return spec.Failed, "on for " + Plain(strings.Join(n.IPv6, ", "))
	}
	return spec.OK, ""
}

func withoutIPv6Address(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	n := seen.status.Namespace
	if n == nil || n.Addresses == nil {
		return spec.Untold, "it does not say what it sees of its namespace"
	}
	if len(n.Addresses) > 0 {
		return spec.Failed, Plain(strings.Join(n.Addresses, ", "))
	}
	return spec.OK, ""
}

// ipv6Refused is the gate, of a packet by IPv6, or of there being no address to
// send it from.
func ipv6Refused(c spec.Check, ev spec.Event, seen evidence) (spec.Result, string) {
	if len(ev.Probes) > 0 {
		return probed(c, ev, seen)
	}
	return withoutIPv6Address(c, ev, seen)
}

// containerAsPlanned: what the engine says of the service is what its plan asks, in
// every field that no other check of the list looks at.
func containerAsPlanned(seen evidence) (spec.Result, string) {
	if seen.untold != nil {
		return spec.Untold, seen.untold.Error()
	}
	result, words := verdictOf(slices.DeleteFunc(slices.Clone(seen.differ), func(d difference) bool {
		return slices.ContainsFunc(seen.checks, func(c spec.Check) bool { return c.Skip == "" && seen.looksAt(c, d) })
	}))
	if result == spec.OK && seen.engine == nil {
		return spec.Untold, errNoChoices.Error()
	}
	return result, words
}

// looksAt says whether the engine, as a witness of a check, has seen a difference.
func (seen evidence) looksAt(c spec.Check, d difference) bool {
	alone := evidence{differ: []difference{d}, service: seen.service}
	for _, w := range witnesses[c.Kind()] {
		if w.name == spec.WitnessEngine && c.Kind() != "secret-absent-elsewhere" {
			if result, _ := w.judge(c, spec.Event{}, alone); result == spec.Failed {
				return true
			}
		}
	}
	return false
}

// outside adds what else can be seen of a service and its gate to what the engine
// says of them; own are the identities of all containers of the sandbox. Whoever
// asked closes it.
func (e *Engine) outside(ctx context.Context, seen evidence, g *Gate, s plan.Service, status spec.GateStatus, checks []spec.Check, own []string) evidence {
	seen.status, seen.pinned, seen.checks = status, pinnedBy(status.Pins), checks
	seen.repo, seen.commanded = render.Container(g.Plan.ID, s.Name), g.Purpose == PurposeDaemon || g.Purpose == PurposeVerify
	for _, c := range checks {
		if c.Kind() == "mounts-only-declared" {
			seen.declared = c.Mount
		}
	}
	if seen.service != nil {
		if got, err := e.api.ImageInspect(ctx, seen.service.Image); err == nil && got.Config != nil {
			seen.image = settings(got.Config)
		}
		if h := seen.service.HostConfig; h != nil && h.MemorySwap == -1 && s.Memory > 0 {
			said, err := e.api.Info(ctx)
			seen.swapUncounted = err == nil && !said.SwapLimit
		}
	}
	asked, err := e.serviceRequest(g, s, nil, TerminalOf(s, g.Purpose))
	if err != nil {
		seen.untold = err
		return seen
	}
	if seen.differ, seen.untold = deviations(asked, s, seen); seen.untold != nil {
		return seen
	}
	gate, err := look(hostProc, seen.gate.State.Pid, seen.gate.ID)
	gate.close()
	seen.first, seen.unseen = look(hostProc, seen.service.State.Pid, seen.service.ID)
	seen.elsewhere = errors.Is(err, errElsewhere) && errors.Is(seen.unseen, errElsewhere)
	if seen.first != nil {
		seen.lodgers = foundBy(seenOddly(ctx, hostProc, seen.service.State.Pid, seen.service.ID, own, confinedAs(s.UID, s.GID)))
	}
	seen.owned = func(name string) (ownership, error) {
		o, err := seen.first.owns(name)
		if errors.Is(err, fs.ErrPermission) {
			return e.owns(ctx, seen.service.ID, name)
		}
		return o, err
	}
	return seen
}

func (seen evidence) close() { seen.first.close() }

// pinnedBy are the addresses that gates say names have, by name, each of those that
// it had at one of the times when it was asked.
func pinnedBy(all ...[]spec.Pin) map[string][]netip.Addr {
	pinned := map[string][]netip.Addr{}
	for _, pins := range all {
		for _, p := range pins {
			pinned[p.Domain] = append(pinned[p.Domain], p.Addrs...)
			for _, f := range p.Fading {
				pinned[p.Domain] = append(pinned[p.Domain], f.Addr)
			}
		}
	}
	return pinned
}

const hostProc = "/proc"

// owns is whose what lies at a path in a container is, as the engine's archive has it.
func (e *Engine) owns(ctx context.Context, id, name string) (ownership, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	got, _, err := e.api.CopyFromContainer(ctx, id, name)
	if err != nil {
		return ownership{}, err
	}
	defer got.Close()
	const most = 64 << 10 // a header and what may stand before it
	h, err := tar.NewReader(io.LimitReader(got, most)).Next()
	if err != nil {
		return ownership{}, fmt.Errorf("%s: %w", name, err)
	}
	return ownership{uint32(h.Uid), uint32(h.Gid), h.Typeflag != tar.TypeSymlink && h.Mode&0o022 != 0}, nil
}

// inspected asks for several containers at once.
func (e *Engine) inspected(ctx context.Context, ids ...string) (all []*container.InspectResponse, unknown [][]difference) {
	all, unknown = make([]*container.InspectResponse, len(ids)), make([][]difference, len(ids))
	var tasks errgroup.Group
	for i, id := range ids {
		tasks.Go(func() error {
			all[i], unknown[i] = e.inspect(ctx, id)
			return nil
		})
	}
	_ = tasks.Wait() // who did not answer is nil
	return all, unknown
}
