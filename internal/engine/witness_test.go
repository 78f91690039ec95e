package engine

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

var (
	gateID    = strings.Repeat("a", 64)
	serviceID = strings.Repeat("b", 64)
)

// wellMade is a service, its checks, and all that is seen of it when all is well.
func wellMade(t *testing.T) (request, plan.Service, evidence) {
	t.Helper()
	const uid, gid, pids = 1000, 1001, 300
	s := plan.Service{
		Name: "main", UID: uid, GID: gid, Command: []string{"sleep", "infinity"}, WorkDir: "/p", Pids: pids, Memory: 256 << 20, NanoCPUs: 1e9,
		Environment: map[string]string{"HOME": plan.Home, "TERM": "dumb"}, Passed: []string{"TERM", "LANG"}, Secrets: []string{"TOKEN", "DRIVER"},
		Mounts: []plan.Mount{{Path: "/p"}, {Path: "/r", ReadOnly: true}, {Path: "/p/.git/hooks", ReadOnly: true}, {Path: "/p/corral.yaml", ReadOnly: true}},
	}
	e := &Engine{}
	e.api = answered(t, nil).api
	g := &Gate{Name: plan.Main, Plan: &plan.Plan{ID: "x-1"}, Tree: render.Tree{"seccomp.json": []byte(`{"defaultAction": "SCMP_ACT_ERRNO"}`)}, Purpose: PurposeVerify}
	asked, err := e.serviceRequest(g, s, nil, Terminal{})
	if err != nil {
		t.Fatal(err)
	}
	made := asked.confined()
	host, config := *made.host, *made.config
	host.NetworkMode = container.NetworkMode("container:" + gateID)
	host.Runtime, host.ShmSize, host.CgroupnsMode = "runc", 64<<20, "private"
	host.MaskedPaths, host.ReadonlyPaths = slices.Clone(kept["HostConfig.MaskedPaths"]), slices.Clone(kept["HostConfig.ReadonlyPaths"])
	host.Mounts = slices.Clone(host.Mounts)
	host.Mounts[0].Source = "corral-guest-1-2"
	config.Env = append(config.Env, "TOKEN=a-Secret-value", "DRIVER=json-file", "LANG=C", spec.HandoverEnv+"={}", "PATH=/bin")
	config.Image, config.Hostname = "corral-x-1-main:0123456789abcdef", "x"
	state := container.State{Status: "running", Running: true, Pid: 42}
	var mounts []container.MountPoint
	for _, m := range host.Mounts {
		p := container.MountPoint{Type: m.Type, Source: m.Source, Destination: m.Target, RW: !m.ReadOnly}
		if m.BindOptions != nil {
			p.Propagation = m.BindOptions.Propagation
		} else {
			p.Name, p.Source, p.Driver = m.Source, "/var/lib/docker/volumes/"+m.Source+"/_data", "local"
		}
		mounts = append(mounts, p)
	}
	service := &container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{ID: serviceID, HostConfig: &host, State: &state},
		Config:            &config, Mounts: mounts,
		NetworkSettings: &container.NetworkSettings{},
	}
	gate := &container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{ID: gateID, State: &container.State{Running: true, Pid: 41}, HostConfig: &container.HostConfig{
			NetworkMode: "corral", Runtime: host.Runtime, ShmSize: host.ShmSize, CgroupnsMode: host.CgroupnsMode, MaskedPaths: host.MaskedPaths, ReadonlyPaths: host.ReadonlyPaths,
			Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: "corral-guest-1-2", Target: render.GateGuestDir, ReadOnly: true}},
		}},
		Config: &container.Config{Hostname: "x"}, NetworkSettings: &container.NetworkSettings{},
	}
	service, gate = copied(t, service), copied(t, gate) // nothing of what was asked is in them
	status := spec.GateStatus{Instance: "i", NetNS: 7, Applied: "d", ReadBack: "d", Walked: 1,
		Pins:      []spec.Pin{{Domain: "a.test", Addrs: []netip.Addr{netip.MustParseAddr("44.10.0.1")}}},
		Namespace: &spec.Namespace{IPv6: []string{}, Addresses: []string{}, Listeners: []spec.Listener{{Proto: "tcp", Addr: netip.MustParseAddrPort("127.0.0.1:53")}, {Proto: "udp", Addr: netip.MustParseAddrPort("127.0.0.11:40000")}}}}
	declared := []spec.Mount{{Target: spec.GuestDir, ReadOnly: true}, {Target: "/tmp"}, {Target: "/p"}, {Target: "/r", ReadOnly: true}, {Target: "/p/.git/hooks", ReadOnly: true}, {Target: "/p/corral.yaml", ReadOnly: true}}
	first := &process{uids: [4]uint32{uid, uid, uid, uid}, gids: [4]uint32{gid, gid, gid, gid}, groups: []uint32{gid}, caps: map[string]uint64{}, noNewPrivs: true, filtered: true, netns: 7, root: -1,
		mounts: mountsOf(t, engineMounts)}
	for _, name := range capabilitySets {
		first.caps[name] = 0
	}
	for _, d := range declared {
		root := d.Target
		if d.Target == spec.GuestDir {
			root = "/var/lib/docker/volumes/corral-guest-1-2/_data"
		}
		first.mounts = append(first.mounts, mountOf(d.Target, d.ReadOnly, "ext4", "254:0", root))
	}
	seen := evidence{gate: gate, service: service, image: settings(map[string]any{"Env": []string{"PATH=/bin"}}), repo: "corral-x-1-main", commanded: true, declared: declared,
		first: first, status: status, pinned: pinnedBy(status.Pins), owned: func(string) (ownership, error) { return ownership{}, nil },
		engine: &choices{runtime: "runc"}, strangers: foundBy(nil, nil), listed: foundBy(nil, nil), lodgers: foundBy(nil, nil)}
	return asked, s, seen
}

func mountOf(target string, readOnly bool, fstype, device, root string) mountinfo.Mount {
	m := mountinfo.Mount{Target: target, Options: []string{"rw"}, FSType: fstype, Device: device, Root: root}
	if readOnly {
		m.Options[0] = "ro"
	}
	return m
}

// mount mounts a file system over whatever there is at a path.
func (seen *evidence) mount(target string, readOnly bool, fstype string) {
	seen.first.mounts = append(seen.first.mounts, mountOf(target, readOnly, fstype, "0:99", "/"))
}

func copied(t *testing.T, c *container.InspectResponse) *container.InspectResponse {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return inspected(t, string(b))
}

// listed is a check of every kind that somebody outside bears witness to, each with
// an event that holds by what was said inside.
func listed() ([]spec.Check, []spec.Event) {
	refused := []spec.Probe{{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("44.10.9.9"), Port: 443}}
	accepted := []spec.Probe{{Proto: "tcp", Source: 61001, Addr: netip.MustParseAddr("44.10.0.1"), Port: 443}}
	checks := []spec.Check{
		{Name: "non-root"}, {Name: "uid-matches-host", UID: 1000, GID: 1001}, {Name: "no-capabilities"}, {Name: "iptables-refused"}, {Name: "raw-sockets-refused"},
		{Name: "no-new-privs"}, {Name: "seccomp-on"}, {Name: "vsock-refused"}, {Name: "pids-limited"}, {Name: "memory-limited"}, {Name: "cpus-limited"},
		{Name: "mounts-only-declared"}, {Name: "host-home-only-mounts", Paths: []string{"/home/u"}}, {Name: "ro-unwritable:/r", Path: "/r"}, {Name: "rw-writable:/p", Path: "/p"},
		{Name: "policy-read-only", Path: "/p/corral.yaml"}, {Name: "git-shielded", Mount: []spec.Mount{{Target: "/p/.git/hooks", ReadOnly: true}}},
		{Name: "env-shadowed", Mount: []spec.Mount{{Target: "/r", ReadOnly: true}}},
		{Name: "no-docker-socket:/run/docker.sock", Path: "/run/docker.sock"}, {Name: "no-credential-dir:.ssh", Paths: []string{"/home/u"}},
		{Name: "env-file-not-mounted", Paths: []string{"/home/u/env"}}, {Name: "policy-inputs-absent", Paths: []string{"/etc/corral/gate.json"}}, {Name: "root-owned:/etc/hosts", Path: "/etc/hosts"},
		{Name: "secret-absent-elsewhere", Names: []string{"TOKEN", "DRIVER"}}, {Name: "same-netns-as-gate", Gate: &spec.Joined{Instance: "i", NetNS: 7}}, {Name: "gate-control-unreachable"},
		{Name: "allowed:a.test:443", Host: "a.test", Port: 443}, {Name: "host-service:80", Port: 80}, {Name: "link:b:80", Port: 80}, {Name: "names-only-pinned", Names: []string{"a.test", spec.HostName}},
		{Name: "icmp-closed"}, {Name: "ipv6-disabled"}, {Name: "no-ipv6-address"}, {Name: "ipv6-blocked"},
	}
	for _, kind := range []string{"unlisted-host-blocked", "dns-closed", "bound-sockets-closed", "udp-closed", "metadata-blocked", "gateway-closed", "peer-unreachable", "port-not-listed-blocked", "host-port-undeclared-blocked", "link-closed", "names-sink", "public-only"} {
		checks = append(checks, spec.Check{Name: kind})
	}
	checks = append(checks, spec.Check{Name: "container-as-planned"}, spec.Check{Name: "rules-as-granted"}, spec.Check{Name: "no-strangers"}, spec.Check{Name: "processes-confined"})
	var events []spec.Event
	for _, c := range checks {
		ev := spec.Event{Check: c.Name, Result: spec.OK, Probes: refused}
		switch c.Kind() {
		case "allowed", "host-service", "link":
			ev.Probes = accepted
		}
		if w := witnesses[c.Kind()]; len(w) > 0 && !slices.ContainsFunc(w, func(w witness) bool { return w.name == spec.WitnessGate }) || c.Kind() == "ipv6-blocked" {
			ev.Probes = nil
		}
		events = append(events, ev)
	}
	return checks, events
}

// decide is what becomes of each event.
func decide(asked request, s plan.Service, seen evidence) map[string]spec.Event {
	checks, events := listed()
	seen.checks = checks
	seen.differ, seen.untold = deviations(asked, s, seen)
	out := map[string]spec.Event{}
	for i, c := range checks {
		ev := events[i]
		if judge, ours := onHost[c.Kind()]; ours {
			ev.Result, ev.Detail = judge(seen)
		}
		out[c.Name] = seen.attest(c, ev)
	}
	return out
}

// red are the checks that do not hold.
func red(events map[string]spec.Event) []string {
	var out []string
	for name, ev := range events {
		if ev.Result != spec.OK {
			out = append(out, fmt.Sprintf("%s: %q %s", name, ev.Result, ev.Detail))
		}
	}
	slices.Sort(out)
	return out
}

// With everybody of one mind all hold, and it is said who agreed; every kind that
// has witnesses is in the list.
func TestAllWitnessesAgree(t *testing.T) {
	asked, s, seen := wellMade(t)
	events := decide(asked, s, seen)
	if bad := red(events); len(bad) > 0 {
		t.Fatalf("%d do not hold: %s", len(bad), strings.Join(bad, "\n"))
	}
	kinds := map[string]bool{}
	for name, ev := range events {
		kind := spec.Check{Name: name}.Kind()
		kinds[kind] = true
		if n := len(witnesses[kind]); len(ev.Witnesses) != n+1 {
			t.Errorf("%s: %v agreed, of %d", name, ev.Witnesses, n+1)
		}
	}
	for kind := range witnesses {
		if !kinds[kind] {
			t.Errorf("no check of kind %s is tried", kind)
		}
	}
}

// leaves calls f with every field and element of v in turn, set to its zero value
// and back.
func leaves(v reflect.Value, at string, f func(at string)) {
	try := func(v reflect.Value, at string) {
		if !v.CanSet() || v.IsZero() {
			return
		}
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.SetZero()
		f(at)
		v.Set(was)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			leaves(v.Elem(), at, f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := at + "." + v.Type().Field(i).Name
			try(v.Field(i), name)
			leaves(v.Field(i), name, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			name := fmt.Sprintf("%s[%d]", at, i)
			try(v.Index(i), name)
			leaves(v.Index(i), name, f)
		}
	}
}

// Whatever of what the engine and the gate say is missing, nothing panics, and
// something does not hold, but where what is missing says nothing of the fence.
func TestWhateverIsMissing(t *testing.T) {
	asked, s, seen := wellMade(t)
	harmless := []string{ // some of them other checks look at
		"service.ContainerJSONBase.State.Status",
		"gate.ContainerJSONBase.HostConfig.NetworkMode", "gate.ContainerJSONBase.HostConfig.Mounts[0].ReadOnly",
		"service.Mounts[0].Source", // a volume goes by its name
		"status.Namespace.Listeners[0].Proto", "status.Namespace.Listeners[1].Proto", "status.Namespace.Listeners[1]",
	}
	tried := 0
	f := func(at string) {
		tried++
		now := seen
		now.pinned = pinnedBy(now.status.Pins)
		bad := red(decide(asked, s, now))
		if len(bad) == 0 && !slices.Contains(harmless, at) {
			t.Errorf("without %s everything holds", at)
		}
	}
	leaves(reflect.ValueOf(seen.service), "service", f)
	leaves(reflect.ValueOf(seen.gate), "gate", f)
	leaves(reflect.ValueOf(&seen.status), "status", f)
	if tried < 100 {
		t.Errorf("only %d fields were tried", tried)
	}
	for name, now := range map[string]func(*evidence){
		"service": func(e *evidence) { e.service = nil }, "gate": func(e *evidence) { e.gate = nil }, "image": func(e *evidence) { e.image = nil },
		"first": func(e *evidence) { e.first = nil }, "owned": func(e *evidence) { e.owned = nil }, "status": func(e *evidence) { e.status = spec.GateStatus{} },
		"pinned": func(e *evidence) { e.pinned = nil }, "engine": func(e *evidence) { e.engine = nil }, "strangers": func(e *evidence) { e.strangers = findings{} },
		"listed": func(e *evidence) { e.listed = findings{} }, "lodgers": func(e *evidence) { e.lodgers = findings{} },
	} {
		without := seen
		now(&without)
		if bad := red(decide(asked, s, without)); len(bad) == 0 {
			t.Errorf("without %s everything holds", name)
		}
	}
}

// odd are JSON values of every kind.
var odd = []string{`null`, `"x"`, `-1`, `1`, `true`, `["x"]`, `[null]`, `{"x":"y"}`, `{"x":null}`}

// However odd an inspect answer is that the engine's client takes, nothing panics,
// and a field that differs from what is asked for is told by its name.
func TestOddAnswers(t *testing.T) {
	asked, s, seen := wellMade(t)
	for _, part := range []struct {
		name string
		of   func(*container.InspectResponse) any
	}{
		{"HostConfig", func(c *container.InspectResponse) any { return c.HostConfig }},
		{"Config", func(c *container.InspectResponse) any { return c.Config }},
		{"State", func(c *container.InspectResponse) any { return c.State }},
	} {
		fields := settings(part.of(seen.service))
		for _, name := range slices.Sorted(reflectNames(part.of(seen.service))) {
			for _, value := range odd {
				service := copied(t, seen.service)
				if json.Unmarshal([]byte(fmt.Sprintf("{%q: %s}", name, value)), part.of(service)) != nil {
					continue // the client does not take it
				}
				now := seen
				now.service = service
				bad := red(decide(asked, s, now))
				changed := !alike(settings(part.of(service))[name], fields[name])
				if name == "Labels" && strings.HasPrefix(value, "{") {
					continue // it comes to the others, and says nothing to corral
				}
				if part.name != "State" && changed && len(bad) == 0 && !slices.Contains([]string{"ConsoleSize", "RestartPolicy"}, name) {
					t.Errorf("%s.%s %s: everything holds", part.name, name, value)
				}
			}
		}
	}
}

func reflectNames(v any) func(func(string) bool) {
	return func(yield func(string) bool) {
		var walk func(reflect.Type) bool
		walk = func(typ reflect.Type) bool {
			for i := range typ.NumField() {
				f := typ.Field(i)
				if f.Anonymous {
					if !walk(f.Type) {
						return false
					}
					continue
				}
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if name == "" {
					name = f.Name
				}
				if !yield(name) {
					return false
				}
			}
			return true
		}
		walk(reflect.TypeOf(v).Elem())
	}
}

// What is altered is told by the check that is about it, in the words of who saw
// it; what no check is about, by container-as-planned.
func TestWhoContradicts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		alter func(*evidence)
		check string
		want  spec.Result
		words string
	}{
		{"another user", func(e *evidence) { e.service.Config.User = "0:0" }, "non-root", spec.Failed, `the engine says otherwise: the user it runs as, Config.User: "0:0", not "1000:1001"`},
		{"one group more", func(e *evidence) { e.service.HostConfig.GroupAdd = []string{"docker"} }, "uid-matches-host", spec.Failed, "HostConfig.GroupAdd"},
		{"a capability", func(e *evidence) { e.service.HostConfig.CapAdd = []string{"NET_ADMIN"} }, "no-capabilities", spec.Failed, "HostConfig.CapAdd"},
		{"privileged", func(e *evidence) { e.service.HostConfig.Privileged = true }, "raw-sockets-refused", spec.Failed, "HostConfig.Privileged"},
		{"no filter", func(e *evidence) { e.service.HostConfig.SecurityOpt[1] = "seccomp=unconfined" }, "seccomp-on", spec.Failed, "HostConfig.SecurityOpt seccomp: it is another one: sha256"},
		{"no filter, for vsock", func(e *evidence) { e.service.HostConfig.SecurityOpt[1] = "seccomp=unconfined" }, "vsock-refused", spec.Failed, "seccomp"},
		{"privileges may be gained", func(e *evidence) { e.service.HostConfig.SecurityOpt = e.service.HostConfig.SecurityOpt[1:] }, "no-new-privs", spec.Failed, "it is not there"},
		{"one more option", func(e *evidence) {
			e.service.HostConfig.SecurityOpt = append(e.service.HostConfig.SecurityOpt, "apparmor=unconfined")
		}, "container-as-planned", spec.Failed, "HostConfig.SecurityOpt apparmor: nobody asked for it"},
		{"no bound of processes", func(e *evidence) { e.service.HostConfig.PidsLimit = nil }, "pids-limited", spec.Failed, "HostConfig.PidsLimit: none, not 300"},
		{"swap", func(e *evidence) { e.service.HostConfig.MemorySwap = -1 }, "memory-limited", spec.Failed, "HostConfig.MemorySwap"},
		{"a device", func(e *evidence) {
			e.service.HostConfig.Devices = []container.DeviceMapping{{PathOnHost: "/dev/fuse"}}
		}, "container-as-planned", spec.Failed, "HostConfig.Devices"},
		{"the host's processes", func(e *evidence) { e.service.HostConfig.PidMode = "host" }, "gate-control-unreachable", spec.Failed, "HostConfig.PidMode"},
		{"the host's names", func(e *evidence) { e.service.HostConfig.UTSMode = "host" }, "container-as-planned", spec.Failed, "HostConfig.UTSMode"},
		{"nothing masked", func(e *evidence) { e.service.HostConfig.MaskedPaths = nil }, "container-as-planned", spec.Failed, "HostConfig.MaskedPaths"},
		{"both by another runtime", func(e *evidence) { e.service.HostConfig.Runtime, e.gate.HostConfig.Runtime = "evil", "evil" }, "container-as-planned", spec.Failed, "HostConfig.Runtime"},
		{"both with the host's control groups", func(e *evidence) { e.service.HostConfig.CgroupnsMode, e.gate.HostConfig.CgroupnsMode = "host", "host" }, "container-as-planned", spec.Failed, "CgroupnsMode"},
		{"both with a path less hidden", func(e *evidence) {
			less := e.service.HostConfig.MaskedPaths[1:]
			e.service.HostConfig.MaskedPaths, e.gate.HostConfig.MaskedPaths = less, less
		}, "container-as-planned", spec.Failed, "/proc/acpi"},
		{"a label", func(e *evidence) { e.service.Config.Labels[labelPurpose] = PurposeDaemon }, "container-as-planned", spec.Failed, labelPurpose},
		{"a label more", func(e *evidence) { e.service.Config.Labels[labelRelays] = "53" }, "container-as-planned", spec.Failed, "nobody asked"},
		{"what is told at the start", func(e *evidence) {
			e.service.Config.Labels[labelOwner], e.service.Config.Labels[labelInstance] = "1", "i"
			e.service.Config.Labels[labelDigest], e.service.Config.Labels[labelInode] = "sha256:an earlier policy", "1:2"
		}, "container-as-planned", spec.OK, ""},
		{"an engine's default limits", func(e *evidence) {
			limits := []*container.Ulimit{{Name: "nofile", Soft: 1, Hard: 2}}
			e.service.HostConfig.Ulimits, e.gate.HostConfig.Ulimits = limits, limits
		}, "container-as-planned", spec.OK, ""},
		{"limits of its own", func(e *evidence) {
			e.service.HostConfig.Ulimits = []*container.Ulimit{{Name: "core", Soft: -1, Hard: -1}}
		}, "container-as-planned", spec.Failed, "Ulimits"},
		{"a field of tomorrow", func(e *evidence) { e.unknown = unknownTo([]byte(`{"HostConfig":{"Hole":1,"Closed":0}}`)) }, "container-as-planned", spec.Failed, "HostConfig.Hole: 1"},
		{"a stranger", func(e *evidence) { e.strangers = foundBy([]string{"x"}, nil) }, "no-strangers", spec.Failed, "x"},
		{"a process of root's", func(e *evidence) { e.listed = foundBy([]string{"x"}, nil) }, "processes-confined", spec.Failed, "x"},
		{"one by the kernel", func(e *evidence) { e.lodgers = foundBy([]string{"x"}, nil) }, "processes-confined", spec.Failed, "the kernel says otherwise: x"},
		{"processes that this machine does not show", func(e *evidence) { e.first, e.elsewhere = nil, true }, "processes-confined", spec.OK, ""},
		{"nothing masked anywhere", func(e *evidence) { e.service.HostConfig.MaskedPaths, e.gate.HostConfig.MaskedPaths = nil, nil }, "container-as-planned", spec.Failed, "HostConfig.MaskedPaths: there are none"},
		{"another entry point", func(e *evidence) { e.service.Config.Entrypoint = []string{"sleep"} }, "container-as-planned", spec.Failed, "Config.Entrypoint"},
		{"another command", func(e *evidence) { e.service.Config.Cmd = []string{"sh"} }, "container-as-planned", spec.Failed, "Config.Cmd"},
		{"a variable more", func(e *evidence) { e.service.Config.Env = append(e.service.Config.Env, "LD_PRELOAD=/p/x") }, "container-as-planned", spec.Failed, "Config.Env LD_PRELOAD: nobody asked for it"},
		{"a variable of another value", func(e *evidence) { e.service.Config.Env[0] = "HOME=/root" }, "container-as-planned", spec.Failed, "Config.Env HOME: it has another value"},
		{"another image", func(e *evidence) { e.service.Config.Image = "debian:latest" }, "container-as-planned", spec.Failed, "Config.Image"},
		{"a writable mount", func(e *evidence) { e.service.HostConfig.Mounts[2].ReadOnly = false }, "ro-unwritable:/r", spec.Failed, "HostConfig.Mounts /r: ReadOnly is none, not true"},
		{"a mount that became writable", func(e *evidence) { e.service.Mounts[2].RW = true }, "ro-unwritable:/r", spec.Failed, "Mounts /r: it is writable"},
		{"a shadow that became writable", func(e *evidence) { e.service.Mounts[2].RW = true }, "env-shadowed", spec.Failed, "it is writable"},
		{"a policy that became writable", func(e *evidence) { e.service.Mounts[4].RW = true }, "policy-read-only", spec.Failed, "it is writable"},
		{"a shield that became writable", func(e *evidence) { e.service.Mounts[3].RW = true }, "git-shielded", spec.Failed, "it is writable"},
		{"another source", func(e *evidence) { e.service.Mounts[1].Source = "/home/u" }, "host-home-only-mounts", spec.Failed, "it is /home/u, not /p"},
		{"another propagation", func(e *evidence) {
			e.service.HostConfig.Mounts[1].BindOptions = &mount.BindOptions{Propagation: "rshared"}
		}, "mounts-only-declared", spec.Failed, "rshared"},
		{"the home", func(e *evidence) {
			e.service.Mounts = append(e.service.Mounts, container.MountPoint{Type: mount.TypeBind, Source: "/home/u", Destination: "/x"})
		}, "no-credential-dir:.ssh", spec.Failed, "Mounts /x: nobody asked for it (/home/u)"},
		{"the engine's socket elsewhere", func(e *evidence) {
			e.service.Mounts = append(e.service.Mounts, container.MountPoint{Type: mount.TypeBind, Source: "/run/docker.sock", Destination: "/x"})
		}, "no-docker-socket:/run/docker.sock", spec.Failed, "Mounts /x"},
		{"something else", func(e *evidence) {
			e.service.Mounts = append(e.service.Mounts, container.MountPoint{Type: mount.TypeBind, Source: "/opt/u", Destination: "/x"})
		}, "no-credential-dir:.ssh", spec.OK, ""},
		{"an old-style bind", func(e *evidence) { e.service.HostConfig.Binds = []string{"/:/host"} }, "mounts-only-declared", spec.Failed, "HostConfig.Binds"},
		{"another network", func(e *evidence) { e.service.HostConfig.NetworkMode = "bridge" }, "same-netns-as-gate", spec.Failed, "HostConfig.NetworkMode"},
		{"a secret as a label", func(e *evidence) { e.service.Config.Labels = map[string]string{"x": "is a-Secret-value"} }, "secret-absent-elsewhere", spec.Failed, "the value of TOKEN is in what it knows of the service (Config.Labels.x)"},
		{"a plain word as a label", func(e *evidence) { e.service.Config.Labels = map[string]string{"x": "json-file"} }, "secret-absent-elsewhere", spec.OK, ""},
		{"a secret in the gate", func(e *evidence) { e.gate.Config.Env = []string{"X=a-Secret-value"} }, "secret-absent-elsewhere", spec.Failed, "of the gate"},
		{"a secret under another name", func(e *evidence) { e.service.Config.Env = append(e.service.Config.Env, "X=a-Secret-value") }, "secret-absent-elsewhere", spec.Failed, "of the service"},
		{"a secret in the image", func(e *evidence) { e.image["Cmd"] = json.RawMessage(`["a-Secret-value"]`) }, "secret-absent-elsewhere", spec.Failed, "of the image"},

		{"root, by the kernel", func(e *evidence) { e.first.uids[1] = 0 }, "non-root", spec.Failed, "the kernel says otherwise: the first process has uids"},
		{"a group, by the kernel", func(e *evidence) { e.first.groups = append(e.first.groups, 4) }, "uid-matches-host", spec.Failed, "is in group 4"},
		{"a capability, by the kernel", func(e *evidence) { e.first.caps["CapAmb"] = 1 }, "no-capabilities", spec.Failed, "CapAmb"},
		{"a set that is not told", func(e *evidence) { delete(e.first.caps, "CapBnd") }, "no-capabilities", spec.Failed, "CapBnd"},
		{"privileges, by the kernel", func(e *evidence) { e.first.noNewPrivs = false }, "no-new-privs", spec.Failed, "may gain"},
		{"no filter, by the kernel", func(e *evidence) { e.first.filtered = false }, "seccomp-on", spec.Failed, "without a filter"},
		{"another namespace, by the kernel", func(e *evidence) { e.first.netns = 8 }, "same-netns-as-gate", spec.Failed, "net:[8]"},
		{"a namespace that may not be looked at", func(e *evidence) { e.first.netns = 0 }, "same-netns-as-gate", spec.OK, ""},
		{"a mount more, by the kernel", func(e *evidence) { e.mount("/x", true, "ext4") }, "mounts-only-declared", spec.Failed, "mountinfo /x: it is not declared"},
		{"a mount over another", func(e *evidence) { e.mount("/r", false, "ext4") }, "ro-unwritable:/r", spec.Failed, "it is writable"},
		{"a mount over another, as read-only", func(e *evidence) { e.mount("/r", true, "ext4") }, "ro-unwritable:/r", spec.Failed, "it is mounted over"},
		{"a mount over what can be written", func(e *evidence) { e.mount("/p", false, "ext4") }, "rw-writable:/p", spec.Failed, "it is mounted over"},
		{"a mount over the guests", func(e *evidence) { e.mount(spec.GuestDir, true, "tmpfs") }, "mounts-only-declared", spec.Failed, "it is mounted over"},
		{"another directory for the guests", func(e *evidence) {
			e.first.mounts = slices.DeleteFunc(e.first.mounts, func(m mountinfo.Mount) bool { return m.Target == spec.GuestDir })
			e.mount(spec.GuestDir, true, "ext4")
		}, "mounts-only-declared", spec.Failed, "it is not of the volume corral-guest-1-2"},
		{"a mount below /proc", func(e *evidence) { e.mount("/proc/x", true, "ext4") }, "mounts-only-declared", spec.Failed, "/proc/x"},
		{"settings of the kernel's that can be written", func(e *evidence) {
			i := slices.IndexFunc(e.first.mounts, func(m mountinfo.Mount) bool { return m.Target == "/proc/sys" })
			e.first.mounts[i].Options = []string{"rw"}
		}, "mounts-only-declared", spec.Failed, "/proc/sys"},
		{"mounts that may not be looked at", func(e *evidence) { e.first.mounts = nil }, "mounts-only-declared", spec.OK, ""},
		{"an engine of another machine", func(e *evidence) { e.first, e.elsewhere = nil, true }, "no-capabilities", spec.OK, ""},
		{"a first process that is not to be seen, and the gate's is", func(e *evidence) { e.first, e.unseen = nil, errElsewhere }, "no-capabilities", spec.Untold, "is not to be seen"},
		{"a file of somebody else's", func(e *evidence) {
			e.owned = func(string) (ownership, error) { return ownership{uid: 5}, nil }
		}, "root-owned:/etc/hosts", spec.Failed, "belongs to 5:0"},
		{"a file that others may write", func(e *evidence) {
			e.owned = func(string) (ownership, error) { return ownership{shared: true}, nil }
		}, "root-owned:/etc/hosts", spec.Failed, "can be written"},
		{"a file that is not there", func(e *evidence) {
			e.owned = func(string) (ownership, error) { return ownership{}, os.ErrNotExist }
		}, "root-owned:/etc/hosts", spec.Untold, "does not exist"},

		{"another listener of the gate's", func(e *evidence) {
			e.status.Namespace.Listeners = append(e.status.Namespace.Listeners, spec.Listener{Proto: "tcp", Addr: netip.MustParseAddrPort("127.0.0.1:9")})
		}, "gate-control-unreachable", spec.Failed, "the gate says otherwise: tcp 127.0.0.1:9 listens"},
		{"no listener at all", func(e *evidence) { e.status.Namespace.Listeners = nil }, "gate-control-unreachable", spec.Untold, "does not say all"},
		{"a name that is not pinned", func(e *evidence) { e.pinned = nil }, "names-only-pinned", spec.Failed, "a.test is not pinned"},
		{"a name that is not listed", func(e *evidence) { e.pinned["b.test"] = e.pinned["a.test"] }, "names-only-pinned", spec.Failed, "b.test is pinned"},
		{"a connection to somewhere else", func(e *evidence) { e.pinned["a.test"] = []netip.Addr{netip.MustParseAddr("44.10.0.2")} }, "allowed:a.test:443", spec.Untold, "let nothing through"},
		{"IPv6", func(e *evidence) { e.status.Namespace.IPv6 = []string{"eth0"} }, "ipv6-disabled", spec.Failed, "on for eth0"},
		{"an address", func(e *evidence) { e.status.Namespace.Addresses = []string{"fd00::1 on eth0"} }, "no-ipv6-address", spec.Failed, "fd00::1"},
		{"an address, for packets", func(e *evidence) { e.status.Namespace.Addresses = []string{"fd00::1 on eth0"} }, "ipv6-blocked", spec.Failed, "fd00::1"},
		{"other rules", func(e *evidence) { e.status.ReadBack = "e" }, "icmp-closed", spec.Failed, "not those that it applied"},
		{"another gate", func(e *evidence) { e.status.Instance = "j" }, "same-netns-as-gate", spec.Untold, "which it is"},
	} {
		asked, s, seen := wellMade(t)
		tt.alter(&seen)
		if got := decide(asked, s, seen)[tt.check]; got.Result != tt.want || !strings.Contains(got.Detail, tt.words) || (got.Result == spec.OK) != (len(got.Witnesses) > 0) {
			t.Errorf("%s: %s: %+v", tt.name, tt.check, got)
		}
	}
}

// What was decided before stays, unless somebody outside knows worse.
func TestAttestKeepsWhatIsWorse(t *testing.T) {
	asked, s, seen := wellMade(t)
	seen.differ, seen.untold = deviations(asked, s, seen)
	worse := seen
	worse.differ = []difference{{field: "Config.User", words: "x"}}
	c := spec.Check{Name: "non-root"}
	for _, tt := range []struct {
		seen evidence
		ev   spec.Event
		want spec.Result
		said string
	}{
		{seen, spec.Event{Result: spec.Failed, Detail: "a"}, spec.Failed, "a"},
		{seen, spec.Event{Result: spec.Untold, Detail: "a"}, spec.Untold, "a"},
		{seen, spec.Event{Result: spec.Skip, Detail: "a"}, spec.Skip, "a"},
		{worse, spec.Event{Result: spec.Failed, Detail: "a"}, spec.Failed, "a"},
		{worse, spec.Event{Result: spec.Skip, Detail: "a"}, spec.Skip, "a"},
		{worse, spec.Event{Result: spec.Untold, Detail: "a"}, spec.Failed, "the engine says otherwise: the user it runs as, Config.User: x"},
		{evidence{}, spec.Event{Result: spec.OK}, spec.Untold, "nobody looked"},
	} {
		if got := tt.seen.attest(c, tt.ev); got.Result != tt.want || !strings.Contains(got.Detail, tt.said) || len(got.Witnesses) > 0 {
			t.Errorf("%+v: %+v", tt.ev, got)
		}
	}
}

const aStatus = "Name:\tsleep\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t5 9 \nCapInh:\t0000000000000000\nCapPrm:\t0000000000000001\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"

func TestParseStatus(t *testing.T) {
	p, err := parseStatus(aStatus)
	if err != nil || p.uids != [4]uint32{1, 2, 3, 4} || p.gids != [4]uint32{5, 6, 7, 8} || !slices.Equal(p.groups, []uint32{5, 9}) || p.caps["CapBnd"] != 1<<41-1 || p.caps["CapPrm"] != 1 || !p.noNewPrivs || !p.filtered {
		t.Errorf("%+v, %v", p, err)
	}
	for line := range strings.Lines(aStatus) {
		name, _, _ := strings.Cut(line, ":")
		if name == "Name" || name == "Seccomp_filters" {
			continue
		}
		for _, broken := range []string{"", name + ":\n", name + ":\tx\n", line + line} {
			if name == "Groups" && broken == "Groups:\n" { // in none
				continue
			}
			if strings.HasPrefix(name, "NoNew") && broken == name+":\n" || name == "Seccomp" && broken == name+":\n" {
				if p, err := parseStatus(strings.Replace(aStatus, line, broken, 1)); err == nil && (p.noNewPrivs && p.filtered) {
					t.Errorf("%q is as good", broken)
				}
				continue
			}
			if _, err := parseStatus(strings.Replace(aStatus, line, broken, 1)); err == nil {
				t.Errorf("%q in place of %q is taken", broken, line)
			}
		}
	}
	if p, err := parseStatus(strings.Replace(aStatus, "Seccomp:\t2", "Seccomp:\t1", 1)); err != nil || p.filtered {
		t.Errorf("strict mode is no filter: %v", err)
	}
}

// A process is looked at if its control group names the container, and not
// otherwise.
func TestLook(t *testing.T) {
	id := strings.Repeat("c", 64)
	write := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	proc := t.TempDir()
	dir := filepath.Join(proc, "7")
	if err := os.MkdirAll(filepath.Join(dir, "ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "root", "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("net:[4026531840]", filepath.Join(dir, "ns", "net")); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"abs": "/etc/x", "out": "../../../../../../etc/x"} {
		if err := os.Symlink(to, filepath.Join(dir, "root", link)); err != nil {
			t.Fatal(err)
		}
	}
	write(dir, "root/etc/x", "")
	write(dir, "status", aStatus)
	write(dir, "mountinfo", "1 2 3:4 / / rw - overlay overlay rw\n1 2 3:4 / /a\\040b ro,relatime shared:1 - ext4 /dev/x rw\n")
	for _, tt := range []struct {
		cgroup, id string
		pid        int
		seen       bool
	}{
		{"0::/system.slice/docker-" + id + ".scope\n", id, 7, true},
		{"9:pids:/docker/" + id + "\n", id, 7, true},
		{"0::/docker/" + strings.Repeat("d", 64) + "\n", id, 7, false},
		{"0::/\n", id, 7, false},
		{"0::/docker/" + id + "\n", id, 8, false},
		{"0::/docker/" + id + "\n", id, 0, false},
		{"0::/docker/" + id + "\n", "", 7, false},
	} {
		write(dir, "cgroup", tt.cgroup)
		p, err := look(proc, tt.pid, tt.id)
		if (err == nil) != tt.seen {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		if err != nil {
			continue
		}
		if p.netns != 4026531840 || len(p.mounts) != 2 || !reflect.DeepEqual(p.mounts[1], mountinfo.Mount{ID: 1, Parent: 2, Target: "/a b", Options: []string{"ro", "relatime"}, FSType: "ext4", Device: "3:4", Root: "/"}) {
			t.Errorf("%+v", p)
		}
		for _, name := range []string{"/etc/x", "/abs", "/out"} {
			if o, err := p.owns(name); err != nil || o.uid != uint32(os.Getuid()) || o.shared {
				t.Errorf("%s: %+v, %v", name, o, err)
			}
		}
		if _, err := p.owns("/etc/hosts"); err == nil {
			t.Error("a file of the host's was found")
		}
		p.close()
	}
	write(dir, "cgroup", id)
	for name, text := range map[string]string{"status": "Uid:\t1\n", "mountinfo": "1 2 3\n"} {
		was, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		write(dir, name, text)
		if _, err := look(proc, 7, id); err == nil || err == errElsewhere {
			t.Errorf("a broken %s: %v", name, err)
		}
		write(dir, name, string(was))
	}
}

// A neighbour's name is no pin: a check of its own proves where it leads.
func TestNamesOfNeighbours(t *testing.T) {
	c := spec.Check{Name: "names-only-pinned", Names: []string{"researcher"}}
	seen := evidence{status: spec.GateStatus{ReadBack: "sha256:1"}}
	if got, why := pinsThoseNames(c, spec.Event{}, seen); got != spec.Failed || !strings.Contains(why, "researcher is not pinned") {
		t.Errorf("a name that is nothing: %s, %s", got, why)
	}
	seen.checks = []spec.Check{c, {Name: "resolves:researcher", Host: "researcher"}}
	if got, why := pinsThoseNames(c, spec.Event{}, seen); got != spec.OK {
		t.Errorf("a neighbour: %s, %s", got, why)
	}
}
