package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// difference is something of a container that is not what was asked of the
// engine.
type difference struct {
	field   string // of the engine's answer, as it calls it
	subject string // what of it, where it is a list: a mount's target, an option's or a variable's name
	words   string
}

func (d difference) String() string {
	if d.field == fieldState {
		return d.words
	}
	at := d.field
	if plain, has := plainly[d.field]; has {
		at = plain + ", " + d.field
	}
	if d.subject != "" {
		at += " " + d.subject
	}
	return at + ": " + d.words
}

// plainly is what fields are about. The engine's own name is beside it in a line, for
// who looks there.
var plainly = map[string]string{
	"AppArmorProfile":              "its AppArmor profile",
	"Config.Cmd":                   "the command it runs",
	"Config.Entrypoint":            "the program it starts",
	"Config.Env":                   "its environment",
	"Config.Healthcheck":           "what the engine runs in it to see whether it is well",
	"Config.Hostname":              "its host name",
	"Config.Image":                 "its image",
	"Config.Labels":                "what corral wrote on it",
	"Config.User":                  "the user it runs as",
	"Config.WorkingDir":            "the directory it starts in",
	"HostConfig.Annotations":       "what its runtime is told beside all that",
	"HostConfig.Binds":             "what of this machine is mounted",
	"HostConfig.CapAdd":            "capabilities that were added",
	"HostConfig.CapDrop":           "capabilities that were taken away",
	"HostConfig.Cgroup":            "its control group",
	"HostConfig.CgroupParent":      "its control group",
	"HostConfig.CgroupnsMode":      "whose control groups it sees",
	"HostConfig.CpuPeriod":         "how much of the processors it may use",
	"HostConfig.CpuQuota":          "how much of the processors it may use",
	"HostConfig.DeviceCgroupRules": "devices that it may open",
	"HostConfig.DeviceRequests":    "devices that it was given",
	"HostConfig.Devices":           "devices that it was given",
	"HostConfig.Dns":               "name servers that it was given",
	"HostConfig.ExtraHosts":        "names that it was given",
	"HostConfig.GroupAdd":          "further groups that it is in",
	"HostConfig.Init":              "the engine's init in front of it",
	"HostConfig.IpcMode":           "whose shared memory it has",
	"HostConfig.Links":             "containers that it was linked to",
	"HostConfig.LogConfig":         "where its output is kept",
	"HostConfig.MaskedPaths":       "paths that are hidden from it",
	"HostConfig.Memory":            "how much memory it may use",
	"HostConfig.MemorySwap":        "how much memory and swap it may use",
	"HostConfig.Mounts":            "what is mounted",
	"HostConfig.NanoCpus":          "how much of the processors it may use",
	"HostConfig.NetworkMode":       "whose network it has",
	"HostConfig.OomKillDisable":    "whether it is ended for want of memory",
	"HostConfig.PidMode":           "whose processes it sees",
	"HostConfig.PidsLimit":         "how many processes it may have",
	"HostConfig.PortBindings":      "ports of this machine that lead to it",
	"HostConfig.Privileged":        "all rights on this machine",
	"HostConfig.PublishAllPorts":   "ports of this machine that lead to it",
	"HostConfig.ReadonlyPaths":     "paths that it may only read",
	"HostConfig.ReadonlyRootfs":    "whether it may write to its own files",
	"HostConfig.RestartPolicy":     "whether the engine starts it again",
	"HostConfig.Runtime":           "the program that makes its fence",
	"HostConfig.SecurityOpt":       "its security options",
	"HostConfig.Sysctls":           "settings of its kernel",
	"HostConfig.Tmpfs":             "what it has in memory",
	"HostConfig.UTSMode":           "whose host name it has",
	"HostConfig.Ulimits":           "limits of its processes",
	"HostConfig.UsernsMode":        "whose users it has",
	"HostConfig.VolumesFrom":       "volumes of another container",
	"Mounts":                       "what is mounted",
	"NetworkSettings.Networks":     "the networks it is on",
	"RestartCount":                 "how often it was started again",
}

// choices are what an engine does where nobody asks it for anything.
type choices struct {
	runtime string // the one it starts containers with
	// sharesGroups is an engine that shows a container the host's control groups, since
	// those are of the first version.
	sharesGroups bool
}

var errNoChoices = errors.New("the engine does not say what it does where nobody asks for anything")

func (e *Engine) choices(ctx context.Context) *choices {
	said, err := e.said(ctx, "")
	if err != nil || said.info.DefaultRuntime == "" || said.info.CgroupVersion == "" {
		return nil
	}
	return &choices{said.info.DefaultRuntime, said.info.CgroupVersion == "1"}
}

// unlike are the differences of what must be the engine's own choice.
func (c *choices) unlike(got *container.HostConfig) []difference {
	if c == nil {
		return nil // who judges must say that it is not known
	}
	var all []difference
	if got.Runtime != c.runtime {
		all = append(all, difference{"HostConfig.Runtime", "", fmt.Sprintf("%q, and the engine's own is %q", got.Runtime, c.runtime)})
	}
	if m := got.CgroupnsMode; m != "private" && !(c.sharesGroups && (m == "host" || m == "")) {
		all = append(all, difference{"HostConfig.CgroupnsMode", "", fmt.Sprintf("%q, not its own", m)})
	}
	return all
}

// inspect asks how a container is made: nil if the engine does not say, and what it
// was made with under names that corral does not know.
func (e *Engine) inspect(ctx context.Context, id string) (*container.InspectResponse, []difference) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	got, raw, err := e.api.ContainerInspectWithRaw(ctx, id, false)
	if err != nil || got.ContainerJSONBase == nil {
		return nil, nil
	}
	return &got, unknownTo(raw)
}

// unknownTo are the fields of an inspect answer that say something under a name that
// corral does not know, of what the container was made with.
func unknownTo(raw []byte) []difference {
	var said struct{ HostConfig, Config map[string]json.RawMessage }
	if err := json.Unmarshal(raw, &said); err != nil {
		return []difference{{"HostConfig", "", "it cannot be read"}}
	}
	var all []difference
	for _, part := range []struct {
		prefix string
		said   map[string]json.RawMessage
		known  reflect.Type
	}{{"HostConfig.", said.HostConfig, reflect.TypeFor[container.HostConfig]()}, {"Config.", said.Config, reflect.TypeFor[container.Config]()}} {
		known := jsonNames(part.known)
		for _, name := range sortedNames(part.said) {
			if !slices.Contains(known, name) && !none(part.said[name]) {
				all = append(all, difference{part.prefix + name, "", shown(part.said[name]) + ", and this corral does not know what that is"})
			}
		}
	}
	return all
}

// jsonNames are the names by which the fields of a type are written.
func jsonNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, jsonNames(f.Type)...)
		case name == "":
			names = append(names, f.Name)
		default:
			names = append(names, name)
		}
	}
	return names
}

// Fields of an inspect answer that are compared in a way of their own.
const (
	fieldMounts  = "Mounts" // what is mounted, whoever asked for it
	fieldAsked   = "HostConfig.Mounts"
	fieldOptions = "HostConfig.SecurityOpt"
	fieldEnv     = "Config.Env"
	fieldCommand = "Config.Cmd"
	fieldState   = "State" // whose words say what it is
)

// ownWay are the fields that are compared in a way of their own, or that say
// nothing of the fence.
var ownWay = []string{
	fieldAsked, fieldOptions, fieldEnv, fieldCommand, "HostConfig.ConsoleSize", "HostConfig.RestartPolicy", "Config.Image", "Config.Labels",
}

// ofTheTerminal are fields that depend on where somebody sits.
var ofTheTerminal = []string{"Config.Tty", "Config.OpenStdin", "Config.StdinOnce", "Config.AttachStdin"}

// likeTheGate are fields in which the engine has a default of its own. Nothing is
// asked for the gate either, so that it has the same.
var likeTheGate = []string{
	"HostConfig.CgroupnsMode", "HostConfig.Isolation", "HostConfig.MaskedPaths", "HostConfig.MemorySwappiness",
	"HostConfig.OomKillDisable", "HostConfig.ReadonlyPaths", "HostConfig.Runtime", "HostConfig.ShmSize",
	"HostConfig.Ulimits",                   // an engine puts its default-ulimits where a request has none
	"Config.Hostname", "Config.Domainname", // they are the network's, and that is the gate's
}

// likeTheImage are fields that a container has from its image.
var likeTheImage = []string{
	"Config.ExposedPorts", "Config.Healthcheck", "Config.OnBuild", "Config.Shell", "Config.StopSignal", "Config.StopTimeout", "Config.Volumes",
}

// settings are the fields of v as JSON has them, nil if it is none.
func settings(v any) map[string]json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(b, &m) != nil {
		return nil
	}
	return m
}

// none says whether a field says nothing. An engine says so in several ways.
func none(raw json.RawMessage) bool {
	return slices.Contains([]string{"", "null", "[]", "{}", `""`, "0", "false"}, string(raw))
}

func alike(a, b json.RawMessage) bool { return none(a) && none(b) || bytes.Equal(a, b) }

// shown is a field in a line.
func shown(raw json.RawMessage) string {
	const most = 80
	switch {
	case none(raw):
		return "none"
	case len(raw) > most:
		return strings.ToValidUTF8(string(raw[:most]), "") + "…"
	}
	return string(raw)
}

// deviations are what of a service's container is not as its plan asks of the
// engine, sorted. What the engine does not say is an error.
func deviations(asked request, s plan.Service, seen evidence) ([]difference, error) {
	gate, got := seen.gate, seen.service
	for _, c := range []struct {
		what string
		got  *container.InspectResponse
	}{{"the gate", gate}, {"the service", got}} {
		switch {
		case c.got == nil || c.got.ContainerJSONBase == nil || c.got.HostConfig == nil || c.got.Config == nil || c.got.State == nil || c.got.NetworkSettings == nil:
			return nil, fmt.Errorf("the engine does not say how %s is made", c.what)
		case !c.got.State.Running || c.got.State.Pid <= 0 || c.got.ID == "":
			return nil, fmt.Errorf("the engine does not say that %s runs", c.what)
		}
	}
	if seen.image == nil {
		return nil, errors.New("the engine does not say how the service's image is made")
	}
	asked = asked.confined()
	asked.host.NetworkMode = container.NetworkMode("container:" + gate.ID)
	var all []difference
	add := func(field, subject, format string, args ...any) {
		all = append(all, difference{field, subject, fmt.Sprintf(format, args...)})
	}
	for prefix, of := range map[string][3]any{"HostConfig.": {asked.host, got.HostConfig, gate.HostConfig}, "Config.": {asked.config, got.Config, gate.Config}} {
		want, have, gates := settings(of[0]), settings(of[1]), settings(of[2])
		for name := range union(union(want, have), gates) {
			field := prefix + name
			expected := want[name]
			switch {
			case slices.Contains(ownWay, field), slices.Contains(ofTheTerminal, field) && !seen.commanded:
				continue
			case slices.Contains(likeTheGate, field) && none(expected):
				expected = gates[name]
			case slices.Contains(likeTheImage, field) && none(expected):
				expected = seen.image[name]
			case field == "HostConfig.MemorySwap" && seen.swapUncounted:
				expected = have[name]
			}
			if !alike(expected, have[name]) {
				add(field, "", "%s, not %s", shown(have[name]), shown(expected))
			}
		}
	}
	for field, paths := range map[string][]string{"HostConfig.MaskedPaths": got.HostConfig.MaskedPaths, "HostConfig.ReadonlyPaths": got.HostConfig.ReadonlyPaths} {
		switch i := slices.IndexFunc(kept[field], func(must string) bool { return !slices.Contains(paths, must) }); {
		case len(paths) == 0:
			add(field, "", "there are none")
		case i >= 0:
			add(field, kept[field][i], "it is not there")
		}
	}
	if p := got.HostConfig.RestartPolicy; p.Name != "" && p.Name != container.RestartPolicyDisabled {
		add("HostConfig.RestartPolicy", "", "%s, not none", p.Name)
	}
	if got.AppArmorProfile != gate.AppArmorProfile {
		add("AppArmorProfile", "", "%q, and the gate's %q", got.AppArmorProfile, gate.AppArmorProfile)
	}
	if seen.commanded && !slices.Equal(got.Config.Cmd, s.Command) {
		add(fieldCommand, "", "%q, not %q", got.Config.Cmd, s.Command)
	}
	repo, tag, _ := strings.Cut(got.Config.Image, ":")
	// Docker Compose, which builds by the rendered file, gives it no tag.
	if !strings.HasPrefix(seen.repo, "corral-") || repo != seen.repo || tag != "" && !digestTag.MatchString(tag) {
		add("Config.Image", "", "%q is no image of this service's", got.Config.Image)
	}
	all = slices.Concat(all, seen.engine.unlike(got.HostConfig), seen.unknown, labelsUnlike(asked.config.Labels, seen.image["Labels"], got.Config.Labels))
	all = slices.Concat(all, options(asked.host.SecurityOpt, got.HostConfig.SecurityOpt), variables(s, seen.image["Env"], got.Config.Env), mountsAsked(asked.host.Mounts, seen), mounted(asked.host.Mounts, seen))
	slices.SortFunc(all, func(a, b difference) int {
		return cmp.Or(strings.Compare(a.field, b.field), strings.Compare(a.subject, b.subject), strings.Compare(a.words, b.words))
	})
	return slices.Compact(all), nil
}

func union(a, b map[string]json.RawMessage) map[string]json.RawMessage {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	maps.Copy(all, b)
	return all
}

// options compares security options, a profile by its digest.
func options(asked, got []string) []difference {
	var all []difference
	name := func(option string) string {
		if i := strings.IndexAny(option, "=:"); i >= 0 {
			return option[:i]
		}
		return option
	}
	sum := func(option string) string {
		_, profile, _ := strings.Cut(option, "=")
		return fmt.Sprintf("%x", sha256.Sum256([]byte(profile)))[:digestLength]
	}
	wanted := map[string]string{}
	for _, a := range asked {
		wanted[name(a)] = a
	}
	times := map[string]int{}
	for _, g := range got {
		n := name(g)
		times[n]++
		switch a, known := wanted[n]; {
		case !known:
			all = append(all, difference{fieldOptions, n, "nobody asked for it"})
		case times[n] > 1:
			all = append(all, difference{fieldOptions, n, "it is there twice"})
		case a != g:
			all = append(all, difference{fieldOptions, n, fmt.Sprintf("it is another one: sha256 %s…, not %s…", sum(g), sum(a))})
		}
	}
	for n := range wanted {
		if times[n] == 0 {
			all = append(all, difference{fieldOptions, n, "it is not there"})
		}
	}
	return all
}

// corralsOwn begins the names of labels that mean something to corral.
const corralsOwn = "dev.corral."

// labelsUnlike compares what corral writes on a service. Labels of others say nothing.
func labelsUnlike(asked map[string]string, image json.RawMessage, got map[string]string) []difference {
	var brought map[string]string
	_ = json.Unmarshal(image, &brought)                           // none, if it is no map
	atStart := append(slices.Clone(labelsAtStart), labelInstance) // same-netns-as-gate asks which gate it is now
	var all []difference
	for name, want := range asked {
		if has, there := got[name]; (!there || has != want) && !slices.Contains(labelsAtStart, name) {
			all = append(all, difference{"Config.Labels", name, fmt.Sprintf("%q, not %q", shorten(has), shorten(want))})
		}
	}
	for name, has := range got {
		if _, known := asked[name]; !known && strings.HasPrefix(name, corralsOwn) && !slices.Contains(atStart, name) && brought[name] != has {
			all = append(all, difference{"Config.Labels", name, "nobody asked for it"})
		}
	}
	return all
}

// variables compares a service's environment with what it is given and what its
// image brings. No value is shown.
func variables(s plan.Service, image json.RawMessage, got []string) []difference {
	var brought []string
	if json.Unmarshal(image, &brought) != nil {
		brought = nil
	}
	var all []difference
	there := map[string]bool{}
	for _, v := range got {
		name, value, _ := strings.Cut(v, "=")
		planned, known := s.Environment[name]
		switch {
		case there[name]:
			all = append(all, difference{fieldEnv, name, "it is there twice"})
		case slices.Contains(s.Secrets, name), slices.Contains(s.Passed, name), name == spec.HandoverEnv, v == signalTheGroup:
		case known && value != planned:
			all = append(all, difference{fieldEnv, name, "it has another value"})
		case !known && !slices.Contains(brought, v):
			all = append(all, difference{fieldEnv, name, "nobody asked for it"})
		}
		there[name] = true
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(s.Environment)), s.Secrets, []string{spec.HandoverEnv, spec.InitEnv}) {
		if !there[name] && !slices.Contains(s.Passed, name) {
			all = append(all, difference{fieldEnv, name, "it is not there"})
		}
	}
	return all
}

// guestsOf is the volume of guest binaries that a gate holds, empty if it holds none.
func guestsOf(gate *container.InspectResponse) string {
	for _, m := range gate.HostConfig.Mounts {
		if m.Type == mount.TypeVolume && m.Target == render.GateGuestDir && strings.HasPrefix(m.Source, guestVolumes) {
			return m.Source
		}
	}
	return ""
}

// mountsAsked compares the mounts that were asked of the engine.
func mountsAsked(asked []mount.Mount, seen evidence) []difference {
	var all []difference
	got := map[string]mount.Mount{}
	for _, m := range seen.service.HostConfig.Mounts {
		if _, twice := got[m.Target]; twice {
			all = append(all, difference{fieldAsked, m.Target, "it is there twice"})
		}
		got[m.Target] = m
	}
	for _, a := range asked {
		if a.Type == mount.TypeVolume {
			a.Source = guestsOf(seen.gate)
		}
		g, there := got[a.Target]
		delete(got, a.Target)
		want, have := settings(a), settings(g)
		switch {
		case !there:
			all = append(all, difference{fieldAsked, a.Target, "it is not there"})
			continue
		case a.Source == "":
			all = append(all, difference{fieldAsked, a.Target, "the gate holds no volume of guest binaries"})
			continue
		}
		for name := range union(want, have) {
			if !alike(want[name], have[name]) {
				all = append(all, difference{fieldAsked, a.Target, fmt.Sprintf("%s is %s, not %s", name, shown(have[name]), shown(want[name]))})
			}
		}
	}
	for target := range got {
		all = append(all, difference{fieldAsked, target, "nobody asked for it"})
	}
	return all
}

// mounted compares what the engine mounted, whoever asked for it and how.
func mounted(asked []mount.Mount, seen evidence) []difference {
	var all []difference
	add := func(target, format string, args ...any) {
		all = append(all, difference{fieldMounts, target, fmt.Sprintf(format, args...)})
	}
	times := map[string]int{}
	for _, g := range seen.service.Mounts {
		times[g.Destination]++
		i := slices.IndexFunc(asked, func(a mount.Mount) bool { return a.Target == g.Destination })
		if i < 0 {
			add(g.Destination, "nobody asked for it (%s)", cmp.Or(g.Source, g.Name, string(g.Type)))
			continue
		}
		a := asked[i]
		source, has := a.Source, g.Source
		if a.Type == mount.TypeVolume {
			source, has = guestsOf(seen.gate), g.Name
		}
		switch {
		case g.Type != a.Type:
			add(a.Target, "it is a %s, not a %s", g.Type, a.Type)
		case has != source:
			add(a.Target, "it is %s, not %s", has, source)
		case g.RW == a.ReadOnly && g.RW:
			add(a.Target, "it is writable")
		case g.RW == a.ReadOnly:
			add(a.Target, "it is read-only")
		case a.BindOptions != nil && g.Propagation != a.BindOptions.Propagation:
			add(a.Target, "its propagation is %q, not %q", g.Propagation, a.BindOptions.Propagation)
		case times[g.Destination] > 1:
			add(a.Target, "it is there twice")
		}
	}
	for _, a := range asked {
		if times[a.Target] == 0 {
			add(a.Target, "it is not there")
		}
	}
	return all
}
