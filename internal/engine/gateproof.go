package engine

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// own is a container of corral's own, a gate or a relay: what was asked of the
// engine, and what the engine, the gate, this machine's kernel and its network say
// of it now. What nobody said is nil.
type own struct {
	role    string // RoleGate or RoleRelay
	asked   request
	network string // the one that it is on, and goes out by
	links   string // that between the gates of its sandbox, if it is on that
	link    netip.Addr

	got       *container.InspectResponse
	unknown   []difference // what it was made with that corral knows no name of
	engine    *choices
	image     map[string]json.RawMessage // what its image brings, by the engine's names
	built     string                     // the ID of the image that this corral builds
	changes   []container.FilesystemChange
	compared  bool // whether changes are told
	processes []task
	listing   error    // why there is no list of processes
	strangers findings // containers of somebody else's that are in its namespaces
	lodgers   findings // processes of anybody's that are, where those may be looked at
	kernel    *process // its first, nil if this machine does not show it
	programs  error    // why the programs in it are not known to be this corral's
	status    *spec.GateStatus
	planned   *spec.Gate // the document that it is planned to have, and has
	document  *spec.Gate
	neighbour string // the hardware address that this machine found at its address
	dialled   []dialled
	listening []netip.AddrPort // where this machine's sockets of its user listen
}

// ofOwn judges the kinds of checks of gates and relays.
var ofOwn = map[string]func(spec.Check, *own) (spec.Result, string){
	"capabilities-exact":        capabilitiesExact,
	"no-new-privs":              noWayToMore,
	"seccomp-on":                callsFiltered,
	"container-as-planned":      asAskedFor,
	"image-as-built":            imageAsBuilt,
	"programs-as-built":         programsAsBuilt,
	"mounts-only-declared":      onlyDeclared,
	"read-only-root":            readOnlyRoot,
	"diff-expected":             diffExpected,
	"processes-expected":        processesExpected,
	"no-strangers":              func(_ spec.Check, o *own) (spec.Result, string) { return o.strangers.judge() },
	"pids-limited":              processesLimited,
	"memory-limited":            memoryLimited,
	"no-port-published":         nothingPublished,
	"no-listener-for-outsiders": noListener,
	"rules-as-read":             rulesAsRead,
	"document-as-planned":       documentAsPlanned,
	"namespace-as-made":         namespaceAsMade,
}

// judgeOwn gives every check of a list its event. A kind that is not known could
// not be told.
func judgeOwn(title string, checks []spec.Check, o *own) report.Section {
	var events []spec.Event
	for _, c := range checks {
		ev := spec.Event{Version: spec.Version, Check: c.Name}
		switch judge, known := ofOwn[c.Kind()]; {
		case c.Skip != "":
			ev.Result, ev.Detail = spec.Skip, c.Skip
		case known:
			ev.Result, ev.Detail = judge(c, o)
		default:
			ev.Detail = "this corral does not know the check"
		}
		events = append(events, ev)
	}
	section := report.Complete(title, checks, events)
	for i, c := range checks {
		if section.Events[i].Result == spec.OK {
			section.Events[i].Witnesses = o.witnesses(c.Kind())
		}
	}
	return section
}

// witnesses are the sides that say that a check holds, by the catalogue: the kernel
// only where it was seen.
func (o *own) witnesses(kind string) []spec.Witness {
	i := slices.IndexFunc(spec.OwnCatalogue, func(e spec.Entry) bool { return e.Kind == kind })
	if i < 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(spec.OwnCatalogue[i].Witnesses), func(w spec.Witness) bool {
		return w == spec.WitnessKernel && (o.kernel == nil || kind == "processes-expected" && !o.lodgers.looked) || w == spec.WitnessGate && o.role != RoleGate
	})
}

func ok() (spec.Result, string) { return spec.OK, "" }

func failed(format string, args ...any) (spec.Result, string) {
	return spec.Failed, fmt.Sprintf(format, args...)
}

func untold(format string, args ...any) (spec.Result, string) {
	return spec.Untold, fmt.Sprintf(format, args...)
}

// silent is what is said where the engine's answer lacks something.
func silent() (spec.Result, string) { return untold("the engine does not say how it is made") }

// said reports whether the engine's answer has all the parts that are judged.
func (o *own) said() bool {
	return o.got != nil && o.got.ContainerJSONBase != nil && o.got.HostConfig != nil && o.got.Config != nil && o.got.State != nil && o.got.NetworkSettings != nil
}

// capabilitiesExact: the engine was asked to drop all and add these, and the kernel
// says that the first process has no others and can get none.
func capabilitiesExact(c spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	h := o.got.HostConfig
	if h.Privileged {
		return failed("it is privileged")
	}
	if !slices.Equal(capabilityNames(h.CapDrop), []string{"ALL"}) {
		return failed("the engine was told to drop %s, not all", list(capabilityNames(h.CapDrop)))
	}
	if got, want := capabilityNames(h.CapAdd), capabilityNames(c.Names); !slices.Equal(got, want) {
		return failed("the engine was told to add %s, not %s", list(got), list(want))
	}
	if o.kernel == nil {
		return ok() // what this person may see of the kernel's account is nothing
	}
	want, known := capabilityBits(c.Names)
	if !known {
		return untold("which capabilities %s are is not known here", list(c.Names))
	}
	for _, set := range capabilitySets {
		if bits := o.kernel.caps[set]; bits&^want != 0 {
			return failed("the kernel says %s %x of it, and no more than %x is its own", set, bits, want)
		}
	}
	if effective := o.kernel.caps["CapEff"]; o.role == RoleGate && effective != want {
		return failed("the kernel says CapEff %x of it, not %x", effective, want)
	}
	return ok()
}

// capabilityNames are names as the engine may write them, sorted and alike.
func capabilityNames(names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, strings.TrimPrefix(strings.ToUpper(n), "CAP_"))
	}
	slices.Sort(out)
	return out
}

// capabilityBit numbers the capabilities that corral gives away.
var capabilityBit = map[string]uint{"KILL": 5, "SETGID": 6, "SETUID": 7, "NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13}

func capabilityBits(names []string) (bits uint64, known bool) {
	for _, n := range capabilityNames(names) {
		b, there := capabilityBit[n]
		if !there {
			return 0, false
		}
		bits |= 1 << b
	}
	return bits, true
}

func list(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return Plain(printable.Escape(strings.Join(words, ", ")))
}

func noWayToMore(_ spec.Check, o *own) (spec.Result, string) {
	switch {
	case !o.said():
		return silent()
	case !slices.ContainsFunc(o.got.HostConfig.SecurityOpt, func(s string) bool { return withoutPrivileges(s) }):
		return failed("the engine was not told no-new-privileges")
	case o.kernel != nil && !o.kernel.noNewPrivs:
		return failed("the kernel says that its programs may gain privileges")
	}
	return ok()
}

// withoutPrivileges reads the three ways of writing the option.
func withoutPrivileges(option string) bool {
	rest, is := strings.CutPrefix(option, render.NoNewPrivileges)
	return is && (rest == "" || rest == ":true" || rest == "=true")
}

// callsFiltered: nobody asked for another profile than the engine's own, which
// corral asks of every engine that it works with, and the kernel applies one.
func callsFiltered(_ spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	if o.got.HostConfig.Privileged {
		return failed("it is privileged, so that no system call is filtered")
	}
	for _, option := range o.got.HostConfig.SecurityOpt {
		if strings.HasPrefix(option, "seccomp") {
			return failed("the engine was told another filter of system calls than its own: %s", printable.Escape(shorten(option)))
		}
	}
	if o.kernel != nil && !o.kernel.filtered {
		return failed("the kernel filters none of its system calls")
	}
	return ok()
}

func shorten(s string) string {
	const most = 80
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// judgedApart are fields of the engine's answer that checks of their own are about.
var judgedApart = []string{
	"HostConfig.CapAdd", "HostConfig.CapDrop", // capabilities-exact
	"HostConfig.Mounts", "HostConfig.Binds", "HostConfig.Tmpfs", "HostConfig.VolumesFrom", "Config.Volumes", // mounts-only-declared
	"HostConfig.PidsLimit",                                                        // pids-limited
	"HostConfig.SecurityOpt", "Config.Env", "Config.Healthcheck", "Config.Labels", // here, in ways of their own
	"Config.Image", // image-as-built
}

// opensNothing are fields that are no part of a fence, with the reason.
var opensNothing = map[string]string{
	"HostConfig.ConsoleSize":     "the size of a window",
	"HostConfig.ContainerIDFile": "where a command of the host writes an identity",
	"HostConfig.ShmSize":         "the engine's choice, of a memory of the container's own",
	"HostConfig.Ulimits":         "an engine has defaults of its own",
	"HostConfig.StorageOpt":      "how large the container's own files may become",
	"Config.ArgsEscaped":         "of another system",
	"Config.AttachStdin":         "for who is there when it starts",
	"Config.AttachStdout":        "for who is there when it starts",
	"Config.AttachStderr":        "for who is there when it starts",
	"Config.MacAddress":          "its own, on the corral network",
	"Config.StopTimeout":         "how long its end may take",
}

// defaults are what engines put in the place of what nobody asked for, as JSON.
var defaults = map[string][]string{
	"HostConfig.Isolation":        {`"default"`},
	"HostConfig.MemorySwappiness": {"-1"},
	"HostConfig.RestartPolicy":    {`{"Name":"","MaximumRetryCount":0}`, `{"Name":"no","MaximumRetryCount":0}`},
}

// kept are the paths that every container is kept from, or may only read: of an
// engine's own lists, which no request of ours replaces, those of every release.
var kept = map[string][]string{
	"HostConfig.MaskedPaths": {"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
		"/proc/timer_list", "/proc/timer_stats", "/sys/firmware"},
	"HostConfig.ReadonlyPaths": {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
}

// asAskedFor: what the engine says of the container is what corral asks
// for, field by field, and what nobody asked for is not there.
func asAskedFor(_ spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	if o.image == nil {
		return untold("the engine does not say what its image brings")
	}
	if o.engine == nil {
		return untold("%v", errNoChoices)
	}
	if all := o.unlike(); len(all) > 0 {
		var words []string
		for _, d := range all {
			words = append(words, Plain(printable.Escape(d.String())))
		}
		return failed("%s", some(words))
	}
	return ok()
}

// unlike are the differences between what is asked for and what there is.
func (o *own) unlike() (all []difference) {
	add := func(field, subject, format string, args ...any) {
		all = append(all, difference{field, subject, fmt.Sprintf(format, args...)})
	}
	asked := o.asked.confined()
	for _, part := range []struct {
		prefix    string
		want, got any
	}{{"HostConfig.", asked.host, o.got.HostConfig}, {"Config.", asked.config, o.got.Config}} {
		want, have := settings(part.want), settings(part.got)
		for _, name := range sortedFields(want, have) {
			field, expected := part.prefix+name, want[name]
			if _, nothing := opensNothing[field]; nothing || slices.Contains(judgedApart, field) {
				continue
			}
			if must, is := kept[field]; is && none(expected) {
				var paths []string
				_ = json.Unmarshal(have[name], &paths) // none, if it is no list
				if i := slices.IndexFunc(must, func(p string) bool { return !slices.Contains(paths, p) }); i >= 0 {
					add(field, must[i], "it is not there")
				}
				continue
			}
			if part.prefix == "Config." && none(expected) {
				expected = o.image[name]
			}
			if part.prefix == "Config." && name == "Hostname" && none(expected) {
				continue // the engine makes one up
			}
			if field == "HostConfig.Runtime" || field == "HostConfig.CgroupnsMode" {
				continue // below
			}
			if field == "HostConfig.NetworkMode" && o.named(o.got.HostConfig.NetworkMode) {
				continue
			}
			if alike(expected, have[name]) || none(want[name]) && slices.Contains(defaults[field], string(have[name])) ||
				field == "HostConfig.RestartPolicy" && slices.Contains(defaults[field], string(have[name])) {
				continue
			}
			add(field, "", "%s, not %s", shown(have[name]), shown(expected))
		}
	}
	all = append(all, o.engine.unlike(o.got.HostConfig)...)
	all = append(all, o.unknown...)
	for _, d := range variablesUnlike(o.image["Env"], asked.config.Env, o.got.Config.Env) {
		add("Config.Env", d.subject, "%s", d.words)
	}
	for name, want := range asked.config.Labels {
		if name == labelAddress && o.planned != nil && !o.planned.Address.IsValid() {
			continue // it was made with whatever address was free
		}
		if got := o.got.Config.Labels[name]; got != want && !slices.Contains(labelsAtStart, name) {
			add("Config.Labels", name, "%q, not %q", shorten(got), shorten(want))
		}
	}
	if h := o.got.Config.Healthcheck; h == nil || !slices.ContainsFunc(healthchecks, func(test []string) bool { return slices.Equal(h.Test, test) }) {
		add("Config.Healthcheck", "", "%s, not none", shown(settings(o.got.Config)["Healthcheck"]))
	}
	all = append(all, options(asked.host.SecurityOpt, o.got.HostConfig.SecurityOpt)...)
	if o.got.AppArmorProfile == "unconfined" {
		add("AppArmorProfile", "", "it is unconfined")
	}
	if o.got.RestartCount > 0 {
		add("RestartCount", "", "it was started again %d times", o.got.RestartCount)
	}
	if !o.got.State.Running || o.got.State.Paused || o.got.State.Restarting {
		add(fieldState, "", "it does not run (%s)", stateWords(o.got.State))
	}
	networks := o.got.NetworkSettings.Networks
	want := []string{o.network}
	if o.links != "" {
		want = append(want, o.links)
		slices.Sort(want)
	}
	if got := sortedNames(networks); !slices.Equal(got, want) {
		add("NetworkSettings.Networks", "", "it is on %s, not on %s alone", list(got), list(want))
	} else if n := networks[o.links]; n != nil && n.IPAddress != o.link.String() {
		add("NetworkSettings.Networks", o.links, "its address is %q, not %v", n.IPAddress, o.link)
	} else if o.planned != nil && o.planned.Address.IsValid() && networks[o.network].IPAddress != o.planned.Address.String() {
		add("NetworkSettings.Networks", o.network, "its address is %q, not %v", networks[o.network].IPAddress, o.planned.Address)
	}
	for _, name := range want {
		gateway := netip.Addr{}
		if name == o.network {
			gateway = o.gateway()
		}
		if n := networks[name]; n != nil {
			for _, words := range endpointUnlike(n, gateway) {
				add("NetworkSettings.Networks", name, "%s", words)
			}
		}
	}
	return all
}

// stateWords is how a container is that does not run.
func stateWords(s *container.State) string {
	switch {
	case s.OOMKilled:
		return "the kernel ended it, out of memory"
	case s.Status == container.StateExited && s.ExitCode == killed:
		return fmt.Sprintf("it was killed, status %d", killed)
	case s.Status == container.StateExited:
		return fmt.Sprintf("it ended with status %d", s.ExitCode)
	}
	return cmp.Or(s.Status, "the engine does not say how it is")
}

// gateway is where a gate's way out begins, zero if that is the engine's to say.
func (o *own) gateway() netip.Addr {
	if o.planned == nil {
		return netip.Addr{}
	}
	return o.planned.Gateway
}

// endpointUnlike is what of the way to a network nobody asked for. Other names of it
// are the engine's to give, and tell a way to the gate alone.
func endpointUnlike(n *network.EndpointSettings, gateway netip.Addr) (all []string) {
	if len(n.DriverOpts) > 0 {
		all = append(all, fmt.Sprintf("it was made with options that nobody asked for: %s", list(sortedNames(n.DriverOpts))))
	}
	if len(n.Links) > 0 {
		all = append(all, fmt.Sprintf("it was linked to %s, which nobody asked for", list(n.Links)))
	}
	if c := n.IPAMConfig; c != nil && (len(c.LinkLocalIPs) > 0 || c.IPv6Address != "") {
		all = append(all, fmt.Sprintf("it has further addresses, which nobody asked for: %s", shown(settings(n)["IPAMConfig"])))
	}
	if gateway.IsValid() && n.Gateway != gateway.String() {
		all = append(all, fmt.Sprintf("its gateway is %q, not %v", shorten(n.Gateway), gateway))
	}
	return all
}

// named reports whether a mode of the network is the one network by its identity.
func (o *own) named(mode container.NetworkMode) bool {
	n := o.got.NetworkSettings.Networks[o.network]
	return n != nil && n.NetworkID != "" && string(mode) == n.NetworkID
}

// at is a gate's address, as planned, or if any was free the one that it has.
func (o *own) at() netip.Addr {
	if o.planned != nil && o.planned.Address.IsValid() {
		return o.planned.Address
	}
	if o.said() && o.got.NetworkSettings.Networks[o.network] != nil {
		if a, err := netip.ParseAddr(o.got.NetworkSettings.Networks[o.network].IPAddress); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// labelsAtStart are labels that say what was at the start: which process looked after
// it, what the policy's file was, and digests that other makers leave out. What a later
// policy leaves as it is is not made anew for it.
var labelsAtStart = []string{labelOwner, labelDigest, labelInode, labelConfig, labelMade, labelSubmounts}

// healthchecks are those that may be there: none, or the one by which others than
// corral wait for a gate.
var healthchecks = [][]string{{"NONE"}, {"CMD", ownProgram, "status"}}

func sortedFields(a, b map[string]json.RawMessage) (names []string) {
	for _, m := range []map[string]json.RawMessage{a, b} {
		for name := range m {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func sortedNames[V any](m map[string]V) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// variablesUnlike compares the environment of a container with what it is given and
// what its image brings. No value is shown.
func variablesUnlike(image json.RawMessage, given, got []string) (all []difference) {
	var brought []string
	_ = json.Unmarshal(image, &brought) // nothing, if it is no list
	seen := map[string]bool{}
	for _, v := range got {
		name, _, _ := strings.Cut(v, "=")
		over := slices.ContainsFunc(given, func(g string) bool { return strings.HasPrefix(g, name+"=") })
		switch {
		case seen[name]:
			all = append(all, difference{subject: name, words: "it is there twice"})
		case !slices.Contains(given, v) && (over || !slices.Contains(brought, v)):
			all = append(all, difference{subject: name, words: "nobody asked for it"})
		}
		seen[name] = true
	}
	for _, v := range given {
		if !slices.Contains(got, v) {
			name, _, _ := strings.Cut(v, "=")
			all = append(all, difference{subject: name, words: "it is not there as asked for"})
		}
	}
	return all
}

// imageAsBuilt: the container is of the image that this corral builds here, by its
// identity.
func imageAsBuilt(_ spec.Check, o *own) (spec.Result, string) {
	switch {
	case !o.said() || o.got.Image == "":
		return silent()
	case o.built == "":
		return untold("the image that this corral builds is not there: it was made by another one, or the base image is another by now (what is made anew has it)")
	case o.got.Image != o.built:
		return failed("it is of the image %s, and this corral builds %s (what is made anew has it)", shortID(o.got.Image), shortID(o.built))
	}
	return ok()
}

// shortID is as much of a digest as tells images apart.
func shortID(id string) string {
	hex, _ := strings.CutPrefix(id, "sha256:")
	return printable.Escape(hex[:min(len(hex), digestLength)])
}

func programsAsBuilt(_ spec.Check, o *own) (spec.Result, string) {
	switch {
	case o.programs == nil:
		return ok()
	case errors.As(o.programs, new(*otherFiles)):
		return failed("%v", printable.Escape(o.programs.Error()))
	}
	return untold("%v", printable.Escape(o.programs.Error()))
}

// errNotRead is that nobody has looked.
var errNotRead = errors.New("the programs in it were not read")

// onlyDeclared: what is mounted, whoever asked for it and how, is what corral asks
// for.
func onlyDeclared(_ spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	h := o.got.HostConfig
	if len(h.VolumesFrom) > 0 {
		return failed("it has the volumes of another container")
	}
	want := map[string]mount.Mount{}
	for _, m := range o.asked.host.Mounts {
		want[m.Target] = m
	}
	for _, m := range o.got.Mounts {
		a, asked := want[m.Destination]
		if !asked {
			return failed("%s is mounted (%s)", printable.Escape(m.Destination), m.Type)
		}
		delete(want, m.Destination)
		switch source := m.Source; {
		case a.Type == mount.TypeVolume && m.Type == mount.TypeVolume:
			if m.Name != a.Source {
				return failed("%s is the volume %s, not %s", a.Target, printable.Escape(m.Name), a.Source)
			}
		case m.Type != a.Type || source != a.Source:
			return failed("%s is another mount than asked for (%s)", a.Target, m.Type)
		}
		if m.RW != !a.ReadOnly {
			return failed("%s is writable: %t", a.Target, m.RW)
		}
	}
	for target := range want {
		return failed("%s is not mounted", target)
	}
	for _, m := range h.Mounts { // also those that are not told where they came to be
		i := slices.IndexFunc(o.asked.host.Mounts, func(a mount.Mount) bool { return a.Target == m.Target })
		if i < 0 || !reflect.DeepEqual(m, o.asked.host.Mounts[i]) {
			return failed("the engine was told to mount %s, or in another way", printable.Escape(m.Target))
		}
	}
	for _, at := range sortedNames(h.Tmpfs) {
		switch want, asked := o.asked.host.Tmpfs[at]; {
		case !asked:
			return failed("%s is in memory", printable.Escape(at))
		case h.Tmpfs[at] != want:
			return failed("%s is in memory as %q, not %q", printable.Escape(at), printable.Escape(h.Tmpfs[at]), want)
		}
	}
	for _, at := range sortedNames(o.asked.host.Tmpfs) {
		if _, there := h.Tmpfs[at]; !there {
			return failed("%s is not in memory", at)
		}
	}
	return ok()
}

func readOnlyRoot(_ spec.Check, o *own) (spec.Result, string) {
	switch {
	case !o.said():
		return silent()
	case !o.got.HostConfig.ReadonlyRootfs:
		return failed("its root file system is writable")
	}
	return ok()
}

// engineMakes are the places that engines make in every container.
var engineMakes = []string{"/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf",
	"/dev/console", "/dev/pts", "/dev/shm", "/proc", "/sys"}

// diffExpected: in the container's own files nothing differs from its image but
// Paths, where something is mounted, what engines make, and the directories on the
// way to those.
func diffExpected(c spec.Check, o *own) (spec.Result, string) {
	if !o.said() || !o.compared {
		return untold("the engine does not say what differs from its image")
	}
	expected := slices.Concat(c.Paths, engineMakes)
	for _, m := range o.asked.host.Mounts {
		expected = append(expected, m.Target)
	}
	expected = append(expected, sortedNames(o.asked.host.Tmpfs)...)
	var unlike []container.FilesystemChange
	for _, change := range o.changes {
		way := slices.ContainsFunc(expected, func(p string) bool {
			return p == change.Path || strings.HasPrefix(p, strings.TrimSuffix(change.Path, "/")+"/")
		})
		if !way || change.Kind == container.ChangeDelete {
			unlike = append(unlike, change)
		}
	}
	if len(unlike) == 0 {
		return ok()
	}
	var words []string
	for _, change := range deepest(unlike) {
		what := map[container.ChangeType]string{container.ChangeModify: "changed", container.ChangeAdd: "new", container.ChangeDelete: "gone"}[change.Kind]
		words = append(words, fmt.Sprintf("%s is %s", printable.Escape(shorten(change.Path)), what))
	}
	return failed("%s", some(words))
}

// deepest leaves out the directories on the way to other changes.
func deepest(changes []container.FilesystemChange) []container.FilesystemChange {
	return slices.DeleteFunc(slices.Clone(changes), func(c container.FilesystemChange) bool {
		return c.Kind != container.ChangeDelete && slices.ContainsFunc(changes, func(other container.FilesystemChange) bool {
			return strings.HasPrefix(other.Path, strings.TrimSuffix(c.Path, "/")+"/")
		})
	})
}

// task is one process of a container, as this machine numbers it.
type task struct {
	pid, parent int
	uid, gid    uint32
	args        string
}

// ownProgram is what gates and relays run.
const ownProgram = spec.GuestDir + "/bin/corral-gate"

// asks are the commands by which corral asks a gate or a relay, as its root or as
// the relay's user.
var asks = []string{"status", "verdicts", "refresh", "relay-sources"}

// ruleTools are the programs that a gate runs to write and read rules.
var ruleTools = regexp.MustCompile(`^ip6?tables(-nft|-legacy)?(-restore)?$`)

// processesExpected: there is the first process and, in a gate, its worker; what
// else was there when they were listed first, to answer corral or to read rules, was
// gone at the last look. By the kernel, nobody else is in its namespaces.
func processesExpected(_ spec.Check, o *own) (spec.Result, string) {
	if o.listing != nil {
		return untold("%s", Plain(printable.Escape(o.listing.Error())))
	}
	if !o.said() || o.processes == nil || o.got.State.Pid <= 0 {
		return untold("the engine does not say which processes are in it")
	}
	first, workers := 0, 0
	for _, p := range o.processes {
		switch {
		case p.pid == o.got.State.Pid:
			first++
			want, uid := ownProgram+" serve", uint32(0)
			if o.role == RoleRelay {
				want, uid = ownProgram+" "+strings.Join(o.asked.config.Cmd, " "), spec.CarrierUID
			}
			if p.args != want || p.uid != uid || p.gid != uid {
				return failed("its first process is %q of %d:%d, not %q of %d:%d", printable.Escape(shorten(p.args)), p.uid, p.gid, want, uid, uid)
			}
		case o.role == RoleGate && p.parent == o.got.State.Pid && p.args == ownProgram+" worker" && p.uid == spec.WorkerUID && p.gid == spec.WorkerUID:
			workers++
		case o.passing(p):
			return failed("there is a process more, which calls itself what comes and goes and did not go within %v: %q of %d:%d", passWithin, printable.Escape(shorten(p.args)), p.uid, p.gid)
		default:
			return failed("there is a process more: %q of %d:%d", printable.Escape(shorten(p.args)), p.uid, p.gid)
		}
	}
	switch {
	case first != 1:
		return failed("its first process is not there")
	case o.role == RoleGate && workers != 1:
		return failed("it has %d workers of %d:%d, not one", workers, spec.WorkerUID, spec.WorkerUID)
	case o.lodgers.looked || o.lodgers.err != nil:
		return o.lodgers.judge()
	}
	return ok()
}

// passing reports whether a process is one that comes and goes: what corral itself
// asks, what the gate runs, and one on its way to become either.
func (o *own) passing(p task) bool {
	uid := uint32(0)
	if o.role == RoleRelay && strings.HasPrefix(o.asked.config.User, fmt.Sprint(spec.CarrierUID)) {
		uid = spec.CarrierUID
	}
	program, rest, _ := strings.Cut(p.args, " ")
	command, _, _ := strings.Cut(rest, " ")
	switch {
	case p.uid != uid && p.uid != 0:
		return false
	case program == ownProgram && slices.Contains(asks, command):
		return p.uid == uid
	case o.role != RoleGate || p.parent != o.got.State.Pid:
		return false
	case p.args == ownProgram+" serve":
		return true // between fork and exec
	}
	return ruleTools.MatchString(path.Base(program))
}

func processesLimited(c spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	switch limit := o.got.HostConfig.PidsLimit; {
	case limit == nil || *limit <= 0:
		return failed("it may have as many processes as it likes")
	case *limit != c.Limit:
		return failed("it may have %d processes, not %d", *limit, c.Limit)
	}
	return ok()
}

func memoryLimited(c spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	switch h := o.got.HostConfig; {
	case h.Memory <= 0:
		return failed("it may use as much memory as it likes")
	case h.Memory != c.Limit || h.MemorySwap != c.Limit:
		return failed("it may use %d bytes of memory, %d with swap, not %d", h.Memory, h.MemorySwap, c.Limit)
	}
	return ok()
}

func nothingPublished(_ spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	if o.got.HostConfig.PublishAllPorts {
		return failed("it publishes every port that its image names")
	}
	for _, ports := range [][]string{bound(o.got.HostConfig.PortBindings), bound(o.got.NetworkSettings.Ports)} {
		if len(ports) > 0 {
			return failed("it publishes port %s", strings.Join(ports, ", "))
		}
	}
	return ok()
}

// dialled is what came of a connection, or a datagram, from this machine to a port.
type dialled struct {
	proto  string
	at     netip.AddrPort
	answer answer
	why    error // of one that could not be tried
}

// answer is how a port took what this machine sent. The zero value is that nothing
// is known.
type answer string

const (
	noAnswer answer = "silent"  // nothing came back
	refusal  answer = "refused" // the namespace said that nobody listens there
	turned   answer = "turned away"
	taken    answer = "answered"
)

// against is what is wrong with an answer that is not what one of a role gives.
func (d dialled) against(role string) string {
	at := fmt.Sprintf("%s %v", d.proto, d.at)
	switch {
	case d.answer == taken:
		return at + " answered this machine, and serves what is no client of its"
	case role == RoleGate:
		return fmt.Sprintf("%s: this machine was %s, and should hear nothing", at, d.answer)
	case d.answer == refusal:
		return at + ": nobody listens there, where the relay should accept and turn this machine away"
	}
	return at + ": silent, where the relay should accept and turn this machine away"
}

// noListener: of a gate, that whoever sends something to its address from the
// outside hears nothing at all, though somebody is there, and that of its own
// sockets none waits for outsiders; of a relay, that it listens where it is told to
// and turns this machine away, whom no list of its has.
func noListener(c spec.Check, o *own) (spec.Result, string) {
	if !o.said() {
		return silent()
	}
	for _, l := range o.listening {
		if l.Addr() != c.Addr {
			return failed("a socket of its user listens at %v", l)
		}
	}
	if o.role == RoleGate {
		if o.status == nil || o.status.Namespace == nil || o.status.Namespace.Listeners == nil {
			return untold("the gate does not say what listens in its namespace")
		}
		for _, l := range o.status.Namespace.Listeners {
			if l.Addr.Addr() == dockersOwn || slices.Contains([]string{"tcp", "udp"}, l.Proto) && l.Addr == namesServer {
				continue
			}
			return failed("%s %v takes what anybody sends (uid %d)", l.Proto, l.Addr, l.UID)
		}
	}
	if len(c.Ports) == 0 || len(o.dialled) == 0 {
		return untold("nothing was sent to it")
	}
	want := noAnswer
	if o.role == RoleRelay {
		want = turned
	}
	for _, d := range o.dialled {
		switch {
		case d.why != nil || d.answer == "":
			return untold("%s %v could not be tried: %v", d.proto, d.at, d.why)
		case d.answer != want && (o.role == RoleGate || d.proto == "tcp" || d.answer == taken):
			return failed("%s", d.against(o.role))
		}
	}
	if o.role != RoleGate {
		return ok()
	}
	n := o.got.NetworkSettings.Networks[o.network]
	switch {
	case n == nil || n.MacAddress == "":
		return untold("the engine does not say which hardware address it has")
	case !strings.EqualFold(o.neighbour, n.MacAddress):
		return untold("nothing came back, and whether it got there is not known: this machine finds %q at %v, not %q", o.neighbour, o.at(), n.MacAddress)
	}
	return ok()
}

var (
	// namesServer is where a gate answers the services of its namespace.
	namesServer = netip.MustParseAddrPort("127.0.0.1:53")
	// dockersOwn is the address of the engine's resolver, which nobody may ask.
	dockersOwn = netip.AddrFrom4([4]byte{127, 0, 0, 11})
)

// rulesAsRead: by the gate's own account it serves, the kernel has the rules and
// sets that it wrote, and it goes by the policy that is proven.
func rulesAsRead(_ spec.Check, o *own) (spec.Result, string) {
	s := o.status
	switch {
	case s == nil || o.planned == nil:
		return untold("the gate does not say how it is")
	case s.State != spec.GateReady:
		return failed("it is closed")
	case s.Applied == "" || s.ReadBack == "":
		return untold("the gate does not say which rules the kernel has")
	case s.Applied != s.ReadBack:
		return failed("the kernel has other rules and sets (%s) than it wrote (%s)%s", shortID(s.ReadBack), shortID(s.Applied), firstOf(s.Differences))
	case len(s.Differences) > 0:
		return failed("the kernel has other rules than it wrote%s", firstOf(s.Differences))
	case s.Class != o.planned.Class:
		return failed("its class of egress is %q, not %q", printable.Escape(string(s.Class)), o.planned.Class)
	case s.Policy != o.planned.Policy:
		return failed("it goes by another policy (%s)", printable.Escape(shorten(s.Policy)))
	}
	return ok()
}

// firstOf is what a gate said first of several things, to go behind what was found.
func firstOf(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return ": " + Plain(printable.Escape(shorten(lines[0])))
}

// namespaceAsMade: by the gate's own account its rules stand on the links, addresses,
// routes and settings that were there when it began, and nobody has a socket that
// passes by them.
func namespaceAsMade(_ spec.Check, o *own) (spec.Result, string) {
	if o.status == nil || o.status.Namespace == nil || o.status.Namespace.Altered == nil || o.status.Namespace.PacketSockets == nil {
		return untold("the gate does not say how its namespace is")
	}
	if n := o.status.Namespace; len(n.Altered) > 0 {
		return failed("it is not as it was when the gate began%s (and %d more)", firstOf(n.Altered), len(n.Altered)-1)
	} else if len(n.PacketSockets) > 0 {
		return failed("somebody passes by the rules%s (and %d more)", firstOf(n.PacketSockets), len(n.PacketSockets)-1)
	}
	return ok()
}

// documentAsPlanned: the document in the container is the one that the gate goes by,
// and says what the plan says; of what no name may have it says enough.
func documentAsPlanned(_ spec.Check, o *own) (spec.Result, string) {
	if o.document == nil || o.planned == nil {
		return untold("the gate's document could not be read")
	}
	if o.status == nil || o.status.Document == "" {
		return untold("the gate does not say which document it goes by")
	}
	if got := o.document.Digest(); got != o.status.Document {
		return failed("it goes by another document (%s) than the one in its place (%s)", shortID(o.status.Document), shortID(got))
	}
	want, got := settings(steadyPart(*o.planned)), settings(steadyPart(*o.document))
	for _, name := range sortedFields(want, got) {
		if !alike(want[name], got[name]) {
			return failed("%s is %s, not %s%s", name, printable.Escape(shown(got[name])), printable.Escape(shown(want[name])), followsMachine[name])
		}
	}
	if len(o.status.Never) == 0 {
		return untold("the gate does not say which addresses no name may have")
	}
	if missing := unkept(*o.planned, o.status.Never); missing.IsValid() {
		return failed("a name may have an address in %v, which is this machine's or one of its networks'%s", missing, refreshHeals)
	}
	return ok()
}

const refreshHeals = "; if nobody but this machine changed, corral refresh brings it up to date"

// followsMachine are fields that follow this machine, and what to do if it changed.
var followsMachine = map[string]string{"resolvers": refreshHeals}

func steadyPart(g spec.Gate) spec.Gate {
	g.Never = nil
	return g
}

// unkept is a prefix that no name may have an address in and that a gate would let
// one have; zero if there is none. The networks of an engine come and go beside a
// sandbox, so of those that a gate refuses all names anyway, being private, the corral
// network alone has to be there. Only IPv4 addresses are pinned.
func unkept(planned spec.Gate, never []netip.Prefix) netip.Prefix {
	for _, p := range planned.Never {
		permitted := slices.ContainsFunc(planned.Names, func(n spec.Name) bool { return slices.ContainsFunc(n.Private, p.Overlaps) })
		own := p.Contains(planned.Gateway) || p.Contains(planned.Address)
		if !p.Addr().Is4() || !own && !permitted && netguard.Classify(p.Addr()) != netguard.Public {
			continue
		}
		if !slices.ContainsFunc(never, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }) {
			return p
		}
	}
	return netip.Prefix{}
}

// see asks everybody about a container of corral's own, all at once. What nobody
// says stays nil.
func (e *Engine) see(whole context.Context, o *own, id, image string, guests host.Guests, beside *company, dial func(context.Context) []dialled) {
	ctx, cancel := context.WithTimeout(whole, answerWithin)
	defer cancel()
	o.programs = errNotRead
	o.got, o.unknown = e.inspect(ctx, id)
	if !o.said() {
		return
	}
	if first, err := look("/proc", o.got.State.Pid, o.got.ID); err == nil {
		defer first.close()
		o.kernel = first
	}
	var all sync.WaitGroup
	all.Go(func() {
		if got, err := e.api.ImageInspect(ctx, o.got.Image); err == nil {
			o.image = settings(got.Config)
		}
		if got, err := e.api.ImageInspect(ctx, image); err == nil && image != "" {
			o.built = got.ID
		}
	})
	all.Go(func() {
		if changes, err := e.api.ContainerDiff(ctx, id); err == nil {
			o.changes, o.compared = changes, true
		}
	})
	all.Go(func() { o.processes, o.listing = e.lasting(ctx, o, id) })
	all.Go(func() { o.engine = beside.choices() })
	all.Go(func() { o.strangers = beside.around(id) })
	all.Go(func() { o.lodgers = lodgers(ctx, o, beside.own) })
	all.Go(func() { o.dialled = dial(ctx) })
	all.Go(func() {
		if o.role == RoleGate {
			if got, err := beside.status(id); err == nil {
				o.status = &got
			}
			o.document = e.documentOf(ctx, id)
		}
		// Last: while the engine reads files out of a container, nobody else gets an
		// answer about it.
		reading, stop := context.WithTimeout(whole, readWithin)
		defer stop()
		o.programs = e.checkPrograms(reading, o, id, guests)
	})
	all.Wait()
}

// lodgers are those of this machine's processes that are in a container's namespaces, and
// in none of the sandbox's containers. Where none may be looked at, nobody has.
func lodgers(ctx context.Context, o *own, sandbox []string) findings {
	if o.kernel == nil {
		return findings{}
	}
	words, err := seenOddly(ctx, hostProc, o.got.State.Pid, o.got.ID, sandbox, nil)
	if errors.Is(err, errNamespaces) {
		return findings{}
	}
	return foundBy(words, err)
}

// readWithin bounds how long the engine may take to read some 30 MB out of a container,
// which is a second beside whatever else runs.
const readWithin = 45 * time.Second

// looks are how often the processes of a container are listed where there is one that
// nothing says will go. One that may is waited for: passWithin.
const looks = 4

// lookEvery is longer than what comes and goes takes.
const lookEvery = 150 * time.Millisecond

// lasting are a container's processes, without those that were not there each time.
func (e *Engine) lasting(ctx context.Context, o *own, id string) ([]task, error) {
	var stay []task
	since := time.Now()
	for i := 0; ; i++ {
		now, err := e.tasks(ctx, id)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			stay = now
		} else {
			// What is new since has had no time to stay.
			stay = slices.DeleteFunc(stay, func(p task) bool { return !slices.Contains(now, p) })
		}
		seen := *o
		seen.processes = stay
		waits := slices.ContainsFunc(stay, func(p task) bool { return p.pid != o.got.State.Pid && seen.passing(p) })
		if result, _ := processesExpected(spec.Check{}, &seen); result == spec.OK || i >= looks-1 && !waits || time.Since(since) > passWithin {
			return stay, nil
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// processesOf reads the engine's list. A process that has ended and waits to be
// noticed is none, by its state: its words are its own to choose.
func processesOf(top container.TopResponse) ([]task, error) {
	at := map[string]int{}
	for i, title := range top.Titles {
		at[strings.ToUpper(title)] = i
	}
	column := func(row []string, names ...string) (string, bool) {
		for _, n := range names {
			if i, there := at[n]; there && i < len(row) {
				return strings.TrimSpace(row[i]), true
			}
		}
		return "", false
	}
	all := []task{}
	for _, row := range top.Processes {
		var p task
		var there bool
		if p.args, there = column(row, "COMMAND", "ARGS", "CMD"); !there { // an empty one is a process's own word, as any
			return nil, errors.New("the list of processes has no commands")
		}
		for name, to := range map[string]*int{"PID": &p.pid, "PPID": &p.parent} {
			word, _ := column(row, name)
			n, err := strconv.Atoi(word)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("the list of processes has %s %q", name, word)
			}
			*to = n
		}
		for name, to := range map[string]*uint32{"UID": &p.uid, "GID": &p.gid} {
			word, _ := column(row, name)
			n, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("the list of processes has %s %q", name, word)
			}
			*to = uint32(n)
		}
		state, _ := column(row, "STAT")
		if state == "" {
			return nil, errors.New("the list of processes has no states")
		}
		if !ended(state) {
			all = append(all, p)
		}
	}
	return all, nil
}

// ended reads a state as ps writes it: Z is a zombie. One with more than one thread, an
// l, has ended its first alone, and the others run.
func ended(state string) bool {
	return strings.HasPrefix(state, "Z") && !strings.Contains(state, "l")
}

// checkPrograms compares what a container runs, and what a gate holds for services,
// with this corral's own programs, byte for byte.
func (e *Engine) checkPrograms(ctx context.Context, o *own, id string, guests host.Guests) error {
	if len(guests) == 0 {
		return errNotRead
	}
	places := []string{spec.GuestDir + "/bin"}
	if o.role == RoleGate {
		places = append(places, render.GateGuestDir+"/bin")
	}
	for _, dir := range places {
		got, _, err := e.api.CopyFromContainer(ctx, id, dir+"/.")
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		tree := render.Tree{}
		for name, b := range guests {
			tree[name] = b
		}
		err = sameFiles(tree, got)
		got.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// maxDocument is far above the longest document of a gate.
const maxDocument = 16 << 20

// documentOf reads the document in a gate's container, nil if it could not be read.
func (e *Engine) documentOf(ctx context.Context, id string) *spec.Gate {
	got, _, err := e.api.CopyFromContainer(ctx, id, spec.GateFile)
	if err != nil {
		return nil
	}
	defer got.Close()
	return documentIn(io.LimitReader(got, maxDocument))
}

// outsideWithin is how long this machine waits for an answer that must not come.
const outsideWithin = 500 * time.Millisecond

// dialGate sends something to ports of a gate's address, as an outsider.
func dialGate(ctx context.Context, address netip.Addr, ports []uint16) []dialled {
	all := make([]dialled, 2*len(ports))
	var each sync.WaitGroup
	for i, port := range ports {
		for j, proto := range []string{"tcp", "udp"} {
			each.Go(func() {
				d := &all[2*i+j]
				*d = dialled{proto: proto, at: netip.AddrPortFrom(address, port)}
				d.answer, d.why = dialOutside(ctx, proto, d.at)
			})
		}
	}
	each.Wait()
	return all
}

// dialOutside tells how a port takes a connection, or one datagram.
func dialOutside(ctx context.Context, proto string, at netip.AddrPort) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, outsideWithin)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, proto, at.String())
	if err == nil && proto == "tcp" {
		conn.Close()
		return taken, nil
	}
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(outsideWithin))
		if _, err = conn.Write([]byte{0}); err == nil {
			if _, err = conn.Read(make([]byte, 1)); err == nil {
				return taken, nil
			}
		}
	}
	return refusalOf(err)
}

// refusalOf is what an error says of who sent it.
func refusalOf(err error) (answer, error) {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refusal, nil
	case errors.Is(err, syscall.ECONNRESET): // it was there, and is no more
		return turned, nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return noAnswer, nil
	}
	return "", err
}

// dialRelay asks a relay for its service, as one whom no list of its has.
func dialRelay(ctx context.Context, at netip.AddrPort, lookups bool) []dialled {
	d := dialled{proto: "tcp", at: at}
	d.answer, d.why = turnedAway(ctx, at)
	all := []dialled{d}
	if lookups {
		u := dialled{proto: "udp", at: at, answer: turned}
		if looksUp(ctx, at) {
			u.answer = taken
		}
		all = append(all, u)
	}
	return all
}

// turnedAway tells whether a connection is ended at once, before a byte.
func turnedAway(ctx context.Context, at netip.AddrPort) (answer, error) {
	conn, err := (&net.Dialer{Timeout: acceptWithin}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return refusalOf(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(acceptWithin))
	switch n, err := conn.Read(make([]byte, 1)); {
	case n > 0:
		return taken, nil
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return turned, nil
	default:
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return taken, nil // it waits for what we have to say
		}
		return "", err
	}
}

// neighbour is the hardware address that this machine's kernel found at an address
// of a network that it is on, empty if it found none. The file is /proc/net/arp.
func neighbour(file string, at netip.Addr) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // IP address, HW type, Flags, HW address, Mask, Device
		if len(f) < 4 || f[0] != at.String() {
			continue
		}
		const complete = 2
		if flags, err := strconv.ParseUint(strings.TrimPrefix(f[2], "0x"), 16, 32); err == nil && flags&complete != 0 {
			return f[3]
		}
	}
	return ""
}

// listenersOf are where this machine's sockets of a user take what anybody sends.
func listenersOf(dir string, uid uint32) ([]netip.AddrPort, error) {
	const columnUID = 7
	var all []netip.AddrPort
	for _, list := range []struct{ file, state string }{{"tcp", tcpListens}, {"tcp6", tcpListens}, {"udp", udpListens}, {"udp6", udpListens}} {
		b, err := os.ReadFile(filepath.Join(dir, list.file))
		if errors.Is(err, os.ErrNotExist) && strings.HasSuffix(list.file, "6") {
			continue // no IPv6 in this kernel
		}
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
			f := strings.Fields(line)
			if i == 0 {
				continue // the names of the columns
			}
			if len(f) <= columnUID {
				return nil, fmt.Errorf("%s: %q", list.file, strings.TrimSpace(line))
			}
			if f[columnState] != list.state || f[columnUID] != fmt.Sprint(uid) {
				continue
			}
			at, err := parseSocket(f[columnLocal])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list.file, err)
			}
			all = append(all, at)
		}
	}
	return all, nil
}

// proveGate proves a gate's own container.
func (e *Engine) proveGate(ctx context.Context, title string, g *Gate, planned plan.Gate, id, image string, guests host.Guests, beside *company) (report.Section, *own) {
	asking := *g
	asking.Name, asking.Image = planned.Name, image
	o := &own{role: RoleGate, asked: e.gateRequest(&asking, g.Plan.Network, planned.Spec.Address), network: g.Plan.Network.Name, planned: &planned.Spec}
	if planned.Link.IsValid() {
		o.links, o.link = render.LinksNetwork(g.Plan.ID), planned.Link
	}
	e.see(ctx, o, id, image, guests, beside, func(ctx context.Context) []dialled {
		i := slices.IndexFunc(planned.Verify, func(c spec.Check) bool { return c.Kind() == "no-listener-for-outsiders" })
		if i < 0 || !o.at().IsValid() {
			return nil
		}
		all := dialGate(ctx, o.at(), planned.Verify[i].Ports)
		if o.link.IsValid() { // where others may call it, this machine may not
			ports := slices.Clone(planned.Verify[i].Ports)
			for _, c := range planned.Spec.Clients {
				ports = append(ports, c.Port)
			}
			slices.Sort(ports)
			all = append(all, dialGate(ctx, o.link, slices.Compact(ports))...)
		}
		return all
	})
	o.neighbour = neighbour("/proc/net/arp", o.at())
	return judgeOwn(title, planned.Verify, o), o
}

// proveRelay proves a relay's container, or says why there is none.
func (e *Engine) proveRelay(ctx context.Context, title string, p *plan.Plan, r plan.Relay, have []container.Summary, image string, guests host.Guests, beside *company) (report.Section, *own) {
	at := netip.AddrPortFrom(p.Network.Gateway, r.Port)
	i := slices.IndexFunc(have, func(c container.Summary) bool { return c.Labels[labelCarry] == carried(r) })
	if i < 0 {
		checks := slices.Clone(r.Verify)
		none := byItself(ctx, at, len(r.DNS) > 0)
		for i := range checks {
			checks[i].Skip = fmt.Sprintf("there is no relay: a program of this machine listens on %v by itself", at)
		}
		if none == nil {
			return judgeOwn(title, checks, &own{role: RoleRelay}), nil
		}
		return report.Section{Service: title, Events: []spec.Event{{Version: spec.Version, Service: title, Check: "checks", Result: spec.Failed,
			Detail: fmt.Sprintf("there is no relay of port %d: %v", r.Port, none)}}}, nil
	}
	o := &own{role: RoleRelay, asked: relayRequest(image, r, p.Network.Gateway), network: "host"}
	listening, err := listenersOf(procNet, spec.CarrierUID)
	if err == nil {
		o.listening = listening
	}
	e.see(ctx, o, have[i].ID, image, guests, beside, func(ctx context.Context) []dialled { return dialRelay(ctx, at, len(r.DNS) > 0) })
	if err != nil {
		o.dialled = []dialled{{proto: "tcp", at: at, why: err}}
	}
	return judgeOwn(title, r.Verify, o), o
}

// documentIn is the gate's document in an archive of nothing else, nil if it holds
// none.
func documentIn(archive io.Reader) *spec.Gate {
	files := tar.NewReader(archive)
	if h, err := files.Next(); err != nil || h.Typeflag != tar.TypeReg {
		return nil
	}
	g, err := spec.ParseGate(files)
	if err != nil {
		return nil
	}
	return &g
}
