package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// small is a plan with a host service, so with a gate, a relay and a service.
func small(t *testing.T) *plan.Plan {
	t.Helper()
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	p := &policy.Policy{Name: "small", File: "/p/corral.yaml", Dir: "/p", Digest: "sha256:aa", HostServices: []policy.HostService{{Name: "x", Port: 8081}}}
	p.Resources.Pids, p.Image.Base = 100, "debian:bookworm-slim"
	got, err := plan.Build(p, prof, plan.Host{UID: 1000, GID: 1000, Subnet: netip.MustParsePrefix("172.30.0.0/16"), Probes: spec.DefaultProbes()}, plan.At(netip.MustParseAddr("172.30.0.2")), nil)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// answers is how an engine inspects a container that it made as it was asked to.
func answers(t *testing.T, r request) *container.InspectResponse {
	t.Helper()
	r = r.confined()
	b, err := json.Marshal(map[string]any{"Id": strings.Repeat("a", 64), "Image": "sha256:built", "HostConfig": r.host, "Config": r.config,
		"State": map[string]any{"Status": "running", "Running": true, "Pid": 10}, "NetworkSettings": map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	got := &container.InspectResponse{}
	if err := json.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	for _, m := range r.host.Mounts {
		got.Mounts = append(got.Mounts, container.MountPoint{Type: m.Type, Name: m.Source, Source: "/var/lib/docker/volumes", Destination: m.Target, RW: !m.ReadOnly})
	}
	h := got.HostConfig
	h.MaskedPaths, h.ReadonlyPaths = slices.Clone(kept["HostConfig.MaskedPaths"]), slices.Clone(kept["HostConfig.ReadonlyPaths"])
	h.CgroupnsMode, h.ShmSize, h.Runtime = "host", 64<<20, "runc"
	for i, name := range h.CapAdd {
		h.CapAdd[i] = "CAP_" + name
	}
	got.Config.Env = append(got.Config.Env, "PATH=/bin")
	got.Config.Entrypoint = []string{ownProgram}
	return got
}

var imageOfGate = map[string]any{"Env": []string{"PATH=/bin"}, "Entrypoint": []string{ownProgram}, "Cmd": []string{"serve"}}

// soundGate is all that there is to say of a gate with which nothing is wrong.
func soundGate(t *testing.T) *own {
	t.Helper()
	p := small(t)
	g := &Gate{Name: plan.Main, Plan: p, Image: "corral-gate:0123456789abcdef", Guests: "corral-guest-1", Purpose: PurposeRun}
	planned := p.Gates[0].Spec
	o := &own{role: RoleGate, asked: (&Engine{}).gateRequest(g, p.Network, planned.Address), network: p.Network.Name, planned: &planned}
	o.got = answers(t, o.asked)
	o.got.Config.Cmd = []string{"serve"}
	o.got.NetworkSettings.Networks = map[string]*network.EndpointSettings{p.Network.Name: {IPAddress: planned.Address.String(), Gateway: planned.Gateway.String(), MacAddress: "02:42:ac:1e:00:02",
		IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: planned.Address.String()}, Aliases: []string{strings.Repeat("a", 12)}, DNSNames: []string{"small", strings.Repeat("a", 12)}}}
	o.image, o.built = settings(imageOfGate), "sha256:built"
	o.engine, o.strangers = &choices{"runc", true}, foundBy(nil, nil)
	o.compared, o.changes = true, []container.FilesystemChange{{Kind: container.ChangeModify, Path: "/etc"}, {Kind: container.ChangeAdd, Path: "/etc/corral"},
		{Kind: container.ChangeAdd, Path: spec.GateFile}, {Kind: container.ChangeModify, Path: "/opt"}, {Kind: container.ChangeAdd, Path: render.GateGuestDir}}
	o.processes = []task{{10, 1, 0, 0, ownProgram + " serve"}, {11, 10, spec.WorkerUID, spec.WorkerUID, ownProgram + " worker"}}
	const bits = 1<<12 | 1<<13 | 1<<7 | 1<<6 | 1<<5
	o.kernel = &process{caps: map[string]uint64{"CapPrm": bits, "CapEff": bits, "CapBnd": bits}, noNewPrivs: true, filtered: true}
	planned.Never = []netip.Prefix{p.Network.Subnet, netip.MustParsePrefix("192.168.7.7/32")}
	document := planned
	o.document = &document
	o.status = &spec.GateStatus{State: spec.GateReady, Class: planned.Class, Policy: planned.Policy, Applied: "sha256:01", ReadBack: "sha256:01", Document: document.Digest(), Never: planned.Never,
		Namespace: &spec.Namespace{Altered: []string{}, PacketSockets: []string{}, Listeners: []spec.Listener{{Proto: "tcp", Addr: namesServer}, {Proto: "udp", Addr: namesServer}, {Proto: "tcp", Addr: netip.MustParseAddrPort("127.0.0.11:39999")}}}}
	o.neighbour = "02:42:AC:1E:00:02"
	for _, port := range p.Gates[0].Verify[12].Ports {
		o.dialled = append(o.dialled, dialled{proto: "tcp", at: netip.AddrPortFrom(planned.Address, port), answer: noAnswer}, dialled{proto: "udp", at: netip.AddrPortFrom(planned.Address, port), answer: noAnswer})
	}
	return o
}

func soundRelay(t *testing.T) *own {
	t.Helper()
	p := small(t)
	o := &own{role: RoleRelay, asked: relayRequest("corral-gate:0123456789abcdef", p.Relays[0], p.Network.Gateway), network: "host"}
	o.got = answers(t, o.asked)
	o.got.NetworkSettings.Networks = map[string]*network.EndpointSettings{"host": {}}
	o.image, o.built, o.compared = settings(imageOfGate), "sha256:built", true
	o.engine, o.strangers = &choices{"runc", true}, foundBy(nil, nil)
	o.processes = []task{{10, 1, spec.CarrierUID, spec.CarrierUID, ownProgram + " relay 172.30.0.1:8081 127.0.0.1:8081"}}
	o.kernel = &process{caps: map[string]uint64{}, noNewPrivs: true, filtered: true}
	at := netip.AddrPortFrom(p.Network.Gateway, 8081)
	o.listening = []netip.AddrPort{at, netip.AddrPortFrom(p.Network.Gateway, 53)}
	o.dialled = []dialled{{proto: "tcp", at: at, answer: turned}}
	return o
}

// The kernel bears out who is in a container's namespaces where those may be looked at.
func TestOwnWitnesses(t *testing.T) {
	for _, tt := range []struct {
		lodgers findings
		want    string
	}{{findings{}, "[engine]"}, {foundBy(nil, nil), "[engine kernel]"}} {
		o := soundGate(t)
		o.lodgers = tt.lodgers
		if got := fmt.Sprint(o.witnesses("processes-expected")); got != tt.want {
			t.Errorf("%+v: %s", tt.lodgers, got)
		}
	}
}

// reds are the checks of a section that do not hold, as NAME or NAME?, the latter
// if it could not be told.
func reds(s report.Section) []string {
	var all []string
	for _, ev := range s.Events {
		switch ev.Result {
		case spec.OK:
		case spec.Untold:
			all = append(all, ev.Check+"?")
		default:
			all = append(all, ev.Check)
		}
	}
	return all
}

func checksOf(t *testing.T, role string) []spec.Check {
	t.Helper()
	if p := small(t); role == RoleRelay {
		return p.Relays[0].Verify
	} else {
		return p.Gates[0].Verify
	}
}

// Each thing that can be wrong with a gate or a relay makes one check red, and what
// nobody says cannot be told.
func TestOwnContainers(t *testing.T) {
	for _, tt := range []struct {
		role, name string
		change     func(*own)
		want       string // checks that are red
		detail     string
	}{
		{RoleGate, "sound", func(*own) {}, "", ""},
		{RoleRelay, "sound", func(*own) {}, "", ""},
		{RoleGate, "privileged", func(o *own) { o.got.HostConfig.Privileged = true }, "capabilities-exact seccomp-on container-as-planned", "privileged"},
		{RoleGate, "a capability more", func(o *own) { o.got.HostConfig.CapAdd = append(o.got.HostConfig.CapAdd, "CAP_SYS_ADMIN") }, "capabilities-exact", "SYS_ADMIN"},
		{RoleGate, "a capability less", func(o *own) { o.got.HostConfig.CapAdd = o.got.HostConfig.CapAdd[1:] }, "capabilities-exact", ""},
		{RoleRelay, "a capability", func(o *own) { o.got.HostConfig.CapAdd = []string{"KILL"} }, "capabilities-exact", "KILL"},
		{RoleGate, "not dropped", func(o *own) { o.got.HostConfig.CapDrop = nil }, "capabilities-exact", "drop none"},
		{RoleGate, "the kernel gave more", func(o *own) { o.kernel.caps["CapBnd"] |= 1 << 21 }, "capabilities-exact", "CapBnd"},
		{RoleGate, "inherited", func(o *own) { o.kernel.caps["CapInh"] = 1 }, "capabilities-exact", "CapInh"},
		{RoleGate, "the kernel gave less", func(o *own) { o.kernel.caps["CapEff"] = 1 << 12 }, "capabilities-exact", "CapEff"},
		{RoleGate, "the kernel is not seen", func(o *own) { o.kernel = nil }, "", ""},
		{RoleGate, "privileges", func(o *own) { o.got.HostConfig.SecurityOpt = nil }, "no-new-privs container-as-planned", ""},
		{RoleGate, "privileges after all", func(o *own) { o.got.HostConfig.SecurityOpt = []string{"no-new-privileges:false"} }, "no-new-privs container-as-planned", ""},
		{RoleGate, "privileges by the kernel", func(o *own) { o.kernel.noNewPrivs = false }, "no-new-privs", "kernel"},
		{RoleGate, "unfiltered", func(o *own) {
			o.got.HostConfig.SecurityOpt = append(o.got.HostConfig.SecurityOpt, "seccomp=unconfined")
		}, "seccomp-on container-as-planned", "unconfined"},
		{RoleRelay, "unfiltered by the kernel", func(o *own) { o.kernel.filtered = false }, "seccomp-on", "kernel"},
		{RoleGate, "labels off", func(o *own) {
			o.got.HostConfig.SecurityOpt = append(o.got.HostConfig.SecurityOpt, "label=disable")
		}, "container-as-planned", "label"},
		{RoleGate, "AppArmor off", func(o *own) { o.got.AppArmorProfile = "unconfined" }, "container-as-planned", "AppArmor"},
		{RoleGate, "AppArmor on", func(o *own) { o.got.AppArmorProfile = "docker-default" }, "", ""},
		{RoleGate, "a device", func(o *own) {
			o.got.HostConfig.Devices = []container.DeviceMapping{{PathOnHost: "/dev/fuse"}}
		}, "container-as-planned", "Devices"},
		{RoleGate, "the host's processes", func(o *own) { o.got.HostConfig.PidMode = "host" }, "container-as-planned", "PidMode"},
		{RoleGate, "the host's memory", func(o *own) { o.got.HostConfig.IpcMode = "host" }, "container-as-planned", "IpcMode"},
		{RoleGate, "shareable memory", func(o *own) { o.got.HostConfig.IpcMode = "shareable" }, "container-as-planned", "IpcMode"},
		{RoleGate, "nothing masked", func(o *own) { o.got.HostConfig.MaskedPaths = nil }, "container-as-planned", "MaskedPaths"},
		{RoleGate, "more masked", func(o *own) {
			o.got.HostConfig.MaskedPaths = append(o.got.HostConfig.MaskedPaths, "/proc/interrupts")
		}, "", ""},
		{RoleGate, "a path less", func(o *own) { o.got.HostConfig.ReadonlyPaths = o.got.HostConfig.ReadonlyPaths[1:] }, "container-as-planned", "/proc/bus"},
		{RoleGate, "a sysctl", func(o *own) { o.got.HostConfig.Sysctls = nil }, "container-as-planned", "Sysctls"},
		{RoleGate, "starts again", func(o *own) { o.got.HostConfig.RestartPolicy.Name = "always" }, "container-as-planned", "RestartPolicy"},
		{RoleGate, "no restart, in other words", func(o *own) { o.got.HostConfig.RestartPolicy.Name = "no" }, "", ""},
		{RoleGate, "was started again", func(o *own) { o.got.RestartCount = 1 }, "container-as-planned", "RestartCount"},
		{RoleGate, "paused", func(o *own) { o.got.State.Status, o.got.State.Paused = container.StatePaused, true }, "container-as-planned", "it does not run (paused)"},
		{RoleRelay, "killed", func(o *own) {
			o.got.State.Running, o.got.State.Status, o.got.State.ExitCode = false, container.StateExited, killed
		}, "container-as-planned", "it does not run (it was killed, status 137)"},
		{RoleRelay, "ended", func(o *own) {
			o.got.State.Running, o.got.State.Status, o.got.State.ExitCode = false, container.StateExited, 1
		}, "container-as-planned", "it does not run (it ended with status 1)"},
		{RoleRelay, "out of memory", func(o *own) {
			o.got.State.Running, o.got.State.Status, o.got.State.OOMKilled = false, container.StateExited, true
		}, "container-as-planned", "it does not run (the kernel ended it, out of memory)"},
		{RoleGate, "another resolver", func(o *own) { o.got.HostConfig.DNS = []string{"192.0.2.53"} }, "container-as-planned", "Dns"},
		{RoleGate, "no logs", func(o *own) { o.got.HostConfig.LogConfig.Type = "none" }, "container-as-planned", "LogConfig"},
		{RoleGate, "a memory limit", func(o *own) { o.got.HostConfig.Memory = 1 << 20 }, "container-as-planned", "Memory"},
		{RoleGate, "root by name", func(o *own) { o.got.Config.User = "root" }, "container-as-planned", "User"},
		{RoleRelay, "root", func(o *own) { o.got.Config.User = "0:0" }, "container-as-planned", "User"},
		{RoleGate, "another command", func(o *own) { o.got.Config.Cmd = []string{"trial"} }, "container-as-planned", "Cmd"},
		{RoleGate, "another program", func(o *own) { o.got.Config.Entrypoint = []string{"/bin/sh"} }, "container-as-planned", "Entrypoint"},
		{RoleGate, "a variable", func(o *own) {
			o.got.Config.Env = append(o.got.Config.Env, "LD_PRELOAD=/secret")
		}, "container-as-planned", "LD_PRELOAD: nobody"},
		{RoleGate, "a variable twice", func(o *own) { o.got.Config.Env = append(o.got.Config.Env, "PATH=/bin") }, "container-as-planned", "twice"},
		{RoleGate, "a label", func(o *own) { o.got.Config.Labels[labelSandbox] = "another" }, "container-as-planned", labelSandbox},
		{RoleGate, "others wait for it", func(o *own) { o.got.Config.Healthcheck.Test = []string{"CMD", ownProgram, "status"} }, "", ""},
		{RoleGate, "a command beside it", func(o *own) { o.got.Config.Healthcheck.Test = []string{"CMD", "/bin/sh"} }, "container-as-planned", "Healthcheck"},
		{RoleGate, "a network more", func(o *own) { o.got.NetworkSettings.Networks["bridge"] = &network.EndpointSettings{} }, "container-as-planned", "bridge"},
		{RoleGate, "another address", func(o *own) { o.got.NetworkSettings.Networks[o.network].IPAddress = "172.30.0.9" }, "container-as-planned", "172.30.0.9"},
		{RoleGate, "an address by itself", func(o *own) { o.got.NetworkSettings.Networks[o.network].IPAMConfig = nil }, "", ""},
		{RoleGate, "an option of its link", func(o *own) {
			o.got.NetworkSettings.Networks[o.network].DriverOpts = map[string]string{"com.docker.network.endpoint.sysctls": "net.ipv4.conf.IFNAME.accept_source_route=1"}
		}, "container-as-planned", "endpoint.sysctls"},
		{RoleGate, "a link", func(o *own) { o.got.NetworkSettings.Networks[o.network].Links = []string{"other:api.test"} }, "container-as-planned", "other:api.test"},
		{RoleGate, "an address of the link", func(o *own) {
			o.got.NetworkSettings.Networks[o.network].IPAMConfig.LinkLocalIPs = []string{"169.254.66.66"}
		}, "container-as-planned", "169.254.66.66"},
		{RoleGate, "an IPv6 address", func(o *own) { o.got.NetworkSettings.Networks[o.network].IPAMConfig.IPv6Address = "fd00::2" }, "container-as-planned", "fd00::2"},
		{RoleGate, "another gateway", func(o *own) { o.got.NetworkSettings.Networks[o.network].Gateway = "172.30.0.77" }, "container-as-planned", "172.30.0.77"},
		{RoleGate, "no gateway", func(o *own) { o.got.NetworkSettings.Networks[o.network].Gateway = "" }, "container-as-planned", "gateway"},
		{RoleRelay, "a link", func(o *own) { o.got.NetworkSettings.Networks[o.network].Links = []string{"other:api.test"} }, "container-as-planned", "other:api.test"},
		{RoleGate, "an annotation", func(o *own) {
			o.got.HostConfig.Annotations = map[string]string{"run.oci.keep_original_groups": "1"}
		}, "container-as-planned", "keep_original_groups"},
		{RoleRelay, "an annotation", func(o *own) {
			o.got.HostConfig.Annotations = map[string]string{"org.systemd.property.DevicePolicy": "'auto'"}
		}, "container-as-planned", "DevicePolicy"},
		{RoleRelay, "the corral network", func(o *own) {
			o.got.NetworkSettings.Networks = map[string]*network.EndpointSettings{"corral": {}}
		}, "container-as-planned", "corral"},
		{RoleGate, "its network by identity", func(o *own) {
			o.got.NetworkSettings.Networks[o.network].NetworkID, o.got.HostConfig.NetworkMode = "0a", "0a"
		}, "", ""},
		{RoleGate, "another network by identity", func(o *own) {
			o.got.NetworkSettings.Networks[o.network].NetworkID, o.got.HostConfig.NetworkMode = "0a", "0b"
		}, "container-as-planned", "NetworkMode"},
		{RoleGate, "made for an earlier policy", func(o *own) {
			o.got.Config.Labels[labelDigest], o.got.Config.Labels[labelInode] = "sha256:an earlier policy", "1:2"
		}, "", ""},
		{RoleGate, "any address", func(o *own) {
			o.planned.Address, o.document.Address = netip.Addr{}, netip.Addr{}
			o.status.Document = o.document.Digest()
			delete(o.got.Config.Labels, labelAddress)
		}, "", ""},
		{RoleGate, "another image", func(o *own) { o.got.Image = "sha256:other" }, "image-as-built", "other"},
		{RoleGate, "no such image", func(o *own) { o.built = "" }, "image-as-built?", "not there"},
		{RoleGate, "another program's bytes", func(o *own) { o.programs = fmt.Errorf("x: %w", &otherFiles{"./corral-gate"}) }, "programs-as-built", "corral-gate"},
		{RoleRelay, "unread", func(o *own) { o.programs = errors.New("cut") }, "programs-as-built?", "cut"},
		{RoleGate, "a mount", func(o *own) {
			o.got.Mounts = append(o.got.Mounts, container.MountPoint{Type: mount.TypeBind, Source: "/etc", Destination: "/host"})
		}, "mounts-only-declared", "/host"},
		{RoleGate, "a bind", func(o *own) {
			o.got.HostConfig.Mounts = append(o.got.HostConfig.Mounts, mount.Mount{Type: mount.TypeTmpfs, Target: "/x"})
		}, "mounts-only-declared", "/x"},
		{RoleGate, "writable", func(o *own) { o.got.Mounts[0].RW = true }, "mounts-only-declared", "writable"},
		{RoleGate, "another volume", func(o *own) { o.got.Mounts[0].Name = "mine" }, "mounts-only-declared", "mine"},
		{RoleGate, "a directory in its place", func(o *own) { o.got.Mounts[0].Type = mount.TypeBind }, "mounts-only-declared", "another mount"},
		{RoleGate, "copied", func(o *own) { o.got.HostConfig.Mounts[0].VolumeOptions = nil }, "mounts-only-declared", "another way"},
		{RoleGate, "no mount", func(o *own) { o.got.Mounts = nil }, "mounts-only-declared", "not mounted"},
		{RoleGate, "another's volumes", func(o *own) { o.got.HostConfig.VolumesFrom = []string{"c"} }, "mounts-only-declared", "another container"},
		{RoleGate, "programs in memory", func(o *own) { o.got.HostConfig.Tmpfs = map[string]string{"/run": "rw"} }, "mounts-only-declared", "/run"},
		{RoleRelay, "more memory", func(o *own) { o.got.HostConfig.Tmpfs["/x"] = "" }, "mounts-only-declared", ""},
		{RoleRelay, "nothing in memory", func(o *own) { o.got.HostConfig.Tmpfs = nil }, "mounts-only-declared", "/run"},
		{RoleRelay, "writable root", func(o *own) { o.got.HostConfig.ReadonlyRootfs = false }, "container-as-planned read-only-root", ""},
		{RoleGate, "written", func(o *own) {
			o.changes = append(o.changes, container.FilesystemChange{Kind: container.ChangeAdd, Path: "/etc/cron.d/x"})
		}, "diff-expected", "/etc/cron.d/x is new"},
		{RoleGate, "a file like its own", func(o *own) {
			o.changes = append(o.changes, container.FilesystemChange{Kind: container.ChangeAdd, Path: spec.GateFile + "x"})
		}, "diff-expected", ""},
		{RoleGate, "below its own", func(o *own) {
			o.changes = append(o.changes, container.FilesystemChange{Kind: container.ChangeAdd, Path: render.GateGuestDir + "/x"})
		}, "diff-expected", ""},
		{RoleGate, "removed", func(o *own) {
			o.changes = append(o.changes, container.FilesystemChange{Kind: container.ChangeDelete, Path: "/etc"})
		}, "diff-expected", "gone"},
		{RoleGate, "refreshed", func(o *own) {
			o.changes = append(o.changes, container.FilesystemChange{Kind: container.ChangeAdd, Path: refreshDocument})
		}, "", ""},
		{RoleRelay, "written", func(o *own) {
			o.changes = []container.FilesystemChange{{Kind: container.ChangeModify, Path: "/usr/bin/x"}}
		}, "diff-expected", ""},
		{RoleGate, "written deep", func(o *own) {
			for _, p := range []string{"/usr", "/usr/bin", "/usr/bin/a", "/usr/bin/b", "/usr/lib", "/usr/lib/c", "/usr/lib/d"} {
				o.changes = append(o.changes, container.FilesystemChange{Kind: container.ChangeModify, Path: p})
			}
		}, "diff-expected", "/usr/bin/a is changed; /usr/bin/b is changed; /usr/lib/c is changed; and 1 more"},
		{RoleGate, "not compared", func(o *own) { o.compared = false }, "diff-expected?", ""},
		{RoleGate, "a shell", func(o *own) { o.processes = append(o.processes, task{12, 1, 0, 0, "sh"}) }, "processes-expected", "sh"},
		{RoleGate, "a question", func(o *own) {
			o.processes = append(o.processes, task{12, 1, 0, 0, ownProgram + " status --json"}, task{13, 10, 0, 0, "/usr/sbin/iptables-save -c"}, task{14, 10, 0, 0, ownProgram + " serve"})
		}, "processes-expected", "did not go within 5s"},
		{RoleGate, "what calls itself a tool", func(o *own) { o.processes = append(o.processes, task{12, 10, 0, 0, "/bin/notables-but-evil"}) }, "processes-expected", "a process more: "},
		{RoleGate, "what calls itself nothing", func(o *own) { o.processes = append(o.processes, task{12, 10, 0, 0, ""}) }, "processes-expected", `a process more: "" of 0:0`},
		{RoleRelay, "what calls itself nothing", func(o *own) { o.processes = append(o.processes, task{12, 1, 0, 0, ""}) }, "processes-expected", `a process more: "" of 0:0`},
		{RoleGate, "a first that calls itself nothing", func(o *own) { o.processes[0].args = "" }, "processes-expected", "its first process"},
		{RoleGate, "no list", func(o *own) { o.processes, o.listing = nil, listless(errors.New("ps: unrecognized option: e")) }, "processes-expected?", "BusyBox"},
		{RoleGate, "another's container", func(o *own) { o.strangers = foundBy([]string{"the container x has the network of y"}, nil) }, "no-strangers", "the container x"},
		{RoleGate, "a process in its namespaces", func(o *own) { o.lodgers = foundBy([]string{"process 7 is in its pid namespace"}, nil) }, "processes-expected", "process 7"},
		{RoleGate, "a /proc that cannot be read", func(o *own) { o.lodgers = foundBy(nil, errors.New("x")) }, "processes-expected?", "x"},
		{RoleRelay, "nobody looked for others", func(o *own) { o.strangers = findings{} }, "no-strangers?", ""},
		{RoleGate, "another runtime", func(o *own) { o.got.HostConfig.Runtime = "evil" }, "container-as-planned", "HostConfig.Runtime"},
		{RoleGate, "the host's control groups", func(o *own) { o.engine.sharesGroups = false }, "container-as-planned", "CgroupnsMode"},
		{RoleGate, "the engine does not say what is usual", func(o *own) { o.engine = nil }, "container-as-planned?", ""},
		{RoleGate, "a field of tomorrow", func(o *own) { o.unknown = unknownTo([]byte(`{"HostConfig":{"Hole":true}}`)) }, "container-as-planned", "HostConfig.Hole"},
		{RoleGate, "an engine's limits", func(o *own) { o.got.HostConfig.Ulimits = []*container.Ulimit{{Name: "nofile", Soft: 1, Hard: 1}} }, "", ""},
		{RoleGate, "rules by another", func(o *own) { o.processes = append(o.processes, task{12, 1, 0, 0, "iptables -F"}) }, "processes-expected", "iptables"},
		{RoleGate, "another command of its own", func(o *own) { o.processes = append(o.processes, task{12, 1, 0, 0, ownProgram + " relay"}) }, "processes-expected", ""},
		{RoleGate, "no worker", func(o *own) { o.processes = o.processes[:1] }, "processes-expected", "0 workers"},
		{RoleGate, "two workers", func(o *own) { o.processes = append(o.processes, o.processes[1]) }, "processes-expected", "2 workers"},
		{RoleGate, "a worker with rights", func(o *own) { o.processes[1].uid = 0 }, "processes-expected", "worker"},
		{RoleGate, "not its first", func(o *own) { o.processes[0].pid = 9 }, "processes-expected", ""},
		{RoleRelay, "still root", func(o *own) { o.processes[0].uid = 0 }, "processes-expected", ""},
		{RoleRelay, "its list", func(o *own) {
			o.processes = append(o.processes, task{12, 1, spec.CarrierUID, spec.CarrierUID, ownProgram + " relay-sources"})
		}, "processes-expected", "did not go"},
		{RoleGate, "one process more", func(o *own) { *o.got.HostConfig.PidsLimit++ }, "pids-limited", "65"},
		{RoleGate, "no limit", func(o *own) { o.got.HostConfig.PidsLimit = nil }, "pids-limited", ""},
		{RoleRelay, "no memory limit", func(o *own) { o.got.HostConfig.Memory = 0 }, "container-as-planned memory-limited", ""},
		{RoleRelay, "swap", func(o *own) { o.got.HostConfig.MemorySwap = -1 }, "container-as-planned memory-limited", "-1"},
		{RoleGate, "published", func(o *own) {
			publish(&o.got.HostConfig.PortBindings, "80/tcp")
		}, "container-as-planned no-port-published", "80/tcp"},
		{RoleGate, "all published", func(o *own) { o.got.HostConfig.PublishAllPorts = true }, "container-as-planned no-port-published", ""},
		{RoleGate, "a listener", func(o *own) {
			o.status.Namespace.Listeners = append(o.status.Namespace.Listeners, spec.Listener{Proto: "tcp", Addr: netip.MustParseAddrPort("0.0.0.0:22")})
		}, "no-listener-for-outsiders", "0.0.0.0:22"},
		{RoleGate, "names for all", func(o *own) { o.status.Namespace.Listeners[0].Addr = netip.MustParseAddrPort("0.0.0.0:53") }, "no-listener-for-outsiders", "0.0.0.0:53"},
		{RoleGate, "names by IPv6", func(o *own) { o.status.Namespace.Listeners[0].Proto = "tcp6" }, "no-listener-for-outsiders", "tcp6"},
		{RoleGate, "it does not say", func(o *own) { o.status.Namespace = nil }, "no-listener-for-outsiders? namespace-as-made?", ""},
		{RoleGate, "it answers", func(o *own) { o.dialled[3].answer = taken }, "no-listener-for-outsiders", "answered"},
		{RoleGate, "it refuses", func(o *own) { o.dialled[2].answer = refusal }, "no-listener-for-outsiders", "this machine was refused, and should hear nothing"},
		{RoleGate, "not tried", func(o *own) { o.dialled = nil }, "no-listener-for-outsiders?", ""},
		{RoleGate, "one not tried", func(o *own) { o.dialled[0] = dialled{why: errors.New("no route")} }, "no-listener-for-outsiders?", "no route"},
		{RoleGate, "nobody there", func(o *own) { o.neighbour = "" }, "no-listener-for-outsiders?", "got there"},
		{RoleGate, "somebody else there", func(o *own) { o.neighbour = "02:42:ac:1e:00:03" }, "no-listener-for-outsiders?", ""},
		{RoleGate, "no hardware address", func(o *own) { o.got.NetworkSettings.Networks[o.network].MacAddress, o.neighbour = "", "" }, "no-listener-for-outsiders?", ""},
		{RoleRelay, "it serves anybody", func(o *own) { o.dialled[0].answer = taken }, "no-listener-for-outsiders", "answered"},
		{RoleRelay, "it is not there", func(o *own) { o.dialled[0].answer = refusal }, "no-listener-for-outsiders", "nobody listens there, where the relay should"},
		{RoleRelay, "it hangs", func(o *own) { o.dialled[0].answer = noAnswer }, "no-listener-for-outsiders", "silent, where the relay should"},
		{RoleRelay, "names for anybody", func(o *own) { o.dialled = append(o.dialled, dialled{proto: "udp", answer: taken}) }, "no-listener-for-outsiders", "answered"},
		{RoleRelay, "everywhere", func(o *own) { o.listening[0] = netip.MustParseAddrPort("0.0.0.0:8081") }, "no-listener-for-outsiders", "0.0.0.0"},
		{RoleGate, "closed", func(o *own) { o.status.State = spec.GateClosed }, "rules-as-read", "closed"},
		{RoleGate, "another rule", func(o *own) { o.status.ReadBack = "sha256:02" }, "rules-as-read", "02"},
		{RoleGate, "no digests", func(o *own) { o.status.Applied, o.status.ReadBack = "", "" }, "rules-as-read?", ""},
		{RoleGate, "another class", func(o *own) { o.status.Class = spec.ClassPublic }, "rules-as-read", "public"},
		{RoleGate, "another policy", func(o *own) { o.status.Policy = spec.PartOf + "sha256:bb" }, "rules-as-read", "part of"},
		{RoleGate, "no status", func(o *own) { o.status = nil }, "no-listener-for-outsiders? rules-as-read? document-as-planned? namespace-as-made?", ""},
		{RoleGate, "another document in its place", func(o *own) { o.document.HostPorts = nil }, "document-as-planned", "in its place"},
		{RoleGate, "another document", func(o *own) { o.document.HostPorts = []uint16{22}; o.status.Document = o.document.Digest() }, "document-as-planned", "host_ports"},
		{RoleGate, "other name servers", func(o *own) {
			o.document.Resolvers = append(slices.Clone(o.document.Resolvers), netip.MustParseAddr("192.0.2.1"))
			o.status.Document = o.document.Digest()
		}, "document-as-planned", "corral refresh"},
		{RoleGate, "other probes", func(o *own) {
			o.document.Probes.Unlisted = netip.MustParseAddr("192.0.2.1")
			o.status.Document = o.document.Digest()
		}, "document-as-planned", "probes"},
		{RoleGate, "any address for names", func(o *own) {
			o.document.Never = nil
			o.status.Never = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		}, "document-as-planned", "corral refresh"},
		{RoleGate, "it does not say which addresses", func(o *own) { o.status.Never = nil }, "document-as-planned?", ""},
		{RoleGate, "more addresses than planned", func(o *own) {
			o.status.Never = append(slices.Clone(o.status.Never), netip.MustParsePrefix("10.0.0.0/8"))
		}, "", ""},
		{RoleGate, "a private network since", func(o *own) {
			o.planned.Never = append(slices.Clone(o.planned.Never), netip.MustParsePrefix("172.29.0.0/16"))
		}, "", ""},
		{RoleGate, "an IPv6 address since", func(o *own) {
			o.planned.Never = append(slices.Clone(o.planned.Never), netip.MustParsePrefix("2a00::1/128"))
		}, "", ""},
		{RoleGate, "a public address since", func(o *own) {
			o.planned.Never = append(slices.Clone(o.planned.Never), netip.MustParsePrefix("44.1.2.3/32"))
		}, "document-as-planned", "44.1.2.3/32"},
		{RoleGate, "a network that a name may have", func(o *own) {
			p := netip.MustParsePrefix("172.29.0.0/16")
			o.planned.Never = append(slices.Clone(o.planned.Never), p)
			o.planned.Names = []spec.Name{{Domain: "db.test", Ports: []uint16{443}, Private: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}}}
			o.document.Names = o.planned.Names
			o.status.Document = o.document.Digest()
		}, "document-as-planned", "172.29.0.0/16"},
		{RoleGate, "another rule, named", func(o *own) {
			o.status.ReadBack, o.status.Differences = "sha256:02", []string{"IPv4: chain OUTPUT: foreign rule: x"}
		}, "rules-as-read", "foreign rule: x"},
		{RoleGate, "another nat table", func(o *own) { o.status.Differences = []string{"the nat table"} }, "rules-as-read", "the nat table"},
		{RoleGate, "a second link", func(o *own) { o.status.Namespace.Altered = []string{"link eth1 is new"} }, "namespace-as-made", "link eth1 is new"},
		{RoleGate, "a packet socket", func(o *own) { o.status.Namespace.PacketSockets = []string{"a packet socket of user 0"} }, "namespace-as-made", "a packet socket of user 0"},
		{RoleGate, "an older gate", func(o *own) { o.status.Namespace.Altered = nil }, "namespace-as-made?", ""},
		{RoleGate, "an older gate's sockets", func(o *own) { o.status.Namespace.PacketSockets = nil }, "namespace-as-made?", ""},
		{RoleGate, "no document", func(o *own) { o.document = nil }, "document-as-planned?", ""},
		{RoleGate, "it does not say which", func(o *own) { o.status.Document = "" }, "document-as-planned?", ""},
	} {
		o := soundGate(t)
		if tt.role == RoleRelay {
			o = soundRelay(t)
		}
		tt.change(o)
		section := judgeOwn("x", checksOf(t, tt.role), o)
		if got := strings.Join(reds(section), " "); got != tt.want {
			t.Errorf("%s, %s: red are %q, not %q: %+v", tt.role, tt.name, got, tt.want, section.Events)
			continue
		}
		if tt.want != "" && !slices.ContainsFunc(section.Events, func(ev spec.Event) bool { return ev.Result != spec.OK && strings.Contains(ev.Detail, tt.detail) }) {
			t.Errorf("%s, %s: no word of %q: %+v", tt.role, tt.name, tt.detail, section.Events)
		}
	}
}

// Whatever part of what is known is missing, nothing panics, and what it was for is
// not called right.
func TestOwnContainersUnsaid(t *testing.T) {
	for role, sound := range map[string]func(*testing.T) *own{RoleGate: soundGate, RoleRelay: soundRelay} {
		blank := func(what string, of func(*own) reflect.Value) {
			for i := range of(sound(t)).NumField() {
				o := sound(t)
				f := of(o).Field(i)
				if !f.CanSet() || f.Kind() == reflect.Struct {
					continue
				}
				f.SetZero()
				judgeOwn("x", checksOf(t, role), o)
				if name := of(o).Type().Field(i).Name; f.Kind() == reflect.Pointer && slices.Contains([]string{"ContainerJSONBase", "HostConfig", "State", "Config", "NetworkSettings"}, name) {
					if section := judgeOwn("x", checksOf(t, role), o); len(reds(section)) < 8 || section.Holds() {
						t.Errorf("%s without %s.%s: %v", role, what, name, reds(section))
					}
				}
			}
		}
		blank("inspect", func(o *own) reflect.Value { return reflect.ValueOf(o.got).Elem() })
		blank("base", func(o *own) reflect.Value { return reflect.ValueOf(o.got.ContainerJSONBase).Elem() })
		blank("host", func(o *own) reflect.Value { return reflect.ValueOf(o.got.HostConfig).Elem() })
		blank("config", func(o *own) reflect.Value { return reflect.ValueOf(o.got.Config).Elem() })
		blank("settings", func(o *own) reflect.Value { return reflect.ValueOf(o.got.NetworkSettings).Elem() })
		blank("state", func(o *own) reflect.Value { return reflect.ValueOf(o.got.State).Elem() })
		bare := &own{role: role, programs: errNotRead}
		section := judgeOwn("x", checksOf(t, role), bare)
		for _, ev := range section.Events {
			if ev.Result != spec.Untold || ev.Detail == "" {
				t.Errorf("%s of which nothing is known: %+v", role, ev)
			}
		}
	}
	if got := reds(judgeOwn("x", []spec.Check{{Name: "of-tomorrow"}}, soundGate(t))); !slices.Equal(got, []string{"of-tomorrow?"}) {
		t.Errorf("a check that is not known: %v", got)
	}
}

// Every check that is planned of corral's own containers is judged, and no other.
func TestOwnChecksAreThePlans(t *testing.T) {
	planned := map[string]bool{}
	for _, role := range []string{RoleGate, RoleRelay} {
		for _, c := range checksOf(t, role) {
			planned[c.Kind()] = true
		}
	}
	if got, want := sortedNames(ofOwn), sortedNames(planned); !slices.Equal(got, want) {
		t.Errorf("judged are %v, planned %v", got, want)
	}
	p := small(t)
	for _, port := range []uint16{53, plan.PrivilegedPorts - 1, plan.PrivilegedPorts} {
		p.Relays[0].Port = port
		want := relayRequest("i", p.Relays[0], p.Network.Gateway).host.CapAdd
		if root := port < plan.PrivilegedPorts; (len(want) > 0) != root {
			t.Errorf("a relay of port %d has %v", port, want)
		}
	}
	if !slices.Equal(p.Gates[0].Verify[0].Names, render.GateCapabilities) {
		t.Errorf("a gate is planned with %v", p.Gates[0].Verify[0].Names)
	}
}

func TestProcessesOf(t *testing.T) {
	titles := []string{"PID", "PPID", "UID", "GID", "STAT", "COMMAND"}
	for _, tt := range []struct {
		name   string
		titles []string
		rows   [][]string
		want   int // -1: cannot tell
	}{
		{"none", titles, nil, 0},
		{"one", titles, [][]string{{"10", "1", "0", "0", "Ssl", "x y"}}, 1},
		{"in another order", []string{"COMMAND", "STAT", "GID", "UID", "PPID", "PID"}, [][]string{{"x", "R+", "0", "0", "1", "10"}}, 1},
		{"ended", titles, [][]string{{"10", "1", "0", "0", "Z", "[x] <defunct>"}}, 0},
		{"ended before a window", titles, [][]string{{"10", "1", "0", "0", "Z+", "[x] <defunct>"}}, 0},
		{"calls itself ended", titles, [][]string{{"10", "1", "0", "0", "S", "bash -c sleep 333; : <defunct>"}}, 1},
		{"calls itself ended, in full", titles, [][]string{{"10", "1", "0", "0", "S", "[x] <defunct>"}}, 1},
		{"its first thread has ended", titles, [][]string{{"10", "1", "0", "0", "Zl", "[x] <defunct>"}}, 1},
		{"no states", slices.Delete(slices.Clone(titles), 4, 5), [][]string{{"10", "1", "0", "0", "[x] <defunct>"}}, -1},
		{"no state", titles, [][]string{{"10", "1", "0", "0", "", "x"}}, -1},
		{"names for users", titles, [][]string{{"10", "1", "root", "0", "S", "x"}}, -1},
		{"no user", []string{"PID", "PPID", "STAT", "COMMAND"}, [][]string{{"10", "1", "S", "x"}}, -1},
		{"no command", titles[:5], [][]string{{"10", "1", "0", "0", "S"}}, -1},
		{"calls itself nothing", titles, [][]string{{"10", "1", "0", "0", "S", ""}}, 1},
		{"calls itself a blank", titles, [][]string{{"10", "1", "0", "0", "S", " "}}, 1},
		{"calls itself nothing, of no state", titles, [][]string{{"10", "1", "0", "0", "", ""}}, -1},
		{"short", titles, [][]string{{"10"}}, -1},
		{"negative", titles, [][]string{{"-1", "1", "0", "0", "S", "x"}}, -1},
		{"nothing", nil, [][]string{nil}, -1},
	} {
		got, err := processesOf(container.TopResponse{Titles: tt.titles, Processes: tt.rows})
		if (err != nil) != (tt.want < 0) || err == nil && len(got) != tt.want {
			t.Errorf("%s: %v, %v", tt.name, got, err)
		}
	}
}

func TestNeighbour(t *testing.T) {
	file := filepath.Join(t.TempDir(), "arp")
	text := "IP address       HW type     Flags       HW address            Mask     Device\n" +
		"172.30.0.2       0x1         0x2         02:42:ac:1e:00:02     *        corral0\n" +
		"172.30.0.3       0x1         0x0         00:00:00:00:00:00     *        corral0\n" +
		"172.30.0.22      0x1         0x6         02:42:ac:1e:00:22     *        corral0\n172.30.0.4 0x1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{"172.30.0.2": "02:42:ac:1e:00:02", "172.30.0.22": "02:42:ac:1e:00:22", "172.30.0.3": "", "172.30.0.4": "", "172.30.0.5": ""} {
		if got := neighbour(file, netip.MustParseAddr(at)); got != want {
			t.Errorf("%s: %q, not %q", at, got, want)
		}
	}
	if got := neighbour(file+"x", netip.MustParseAddr("172.30.0.2")); got != "" {
		t.Errorf("without a list: %q", got)
	}
}

// How this machine's own ports take what is sent there.
func TestDialledFromHere(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	ends := make(chan bool, 1) // whether the next caller is turned away
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if <-ends {
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			} else {
				_, _ = c.Write([]byte("hello"))
				c.Close()
			}
		}
	}()
	for want, ending := range map[answer]bool{turned: true, taken: false} {
		ends <- ending
		if got, err := turnedAway(t.Context(), at); err != nil || got != want {
			t.Errorf("%v: %q, %v", want, got, err)
		}
	}
	ends <- true
	if got, err := dialOutside(t.Context(), "tcp", at); err != nil || got != taken && got != turned {
		t.Errorf("a listener: %q, %v", got, err)
	}
	l.Close()
	for _, proto := range []string{"tcp", "udp"} {
		if got, err := dialOutside(t.Context(), proto, at); err != nil || got != refusal {
			t.Errorf("nobody, %s: %q, %v", proto, got, err)
		}
	}
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if got, err := dialOutside(t.Context(), "udp", netip.MustParseAddrPort(silent.LocalAddr().String())); err != nil || got != noAnswer {
		t.Errorf("somebody silent: %q, %v", got, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := dialOutside(over, "tcp", at); err == nil && got != refusal {
		t.Errorf("when all is over: %q, %v", got, err)
	}
}

func TestListenersOf(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	for uid, want := range map[uint32]bool{uint32(os.Getuid()): true, spec.CarrierUID + 5: false} {
		got, err := listenersOf(procNet, uid)
		if err != nil || slices.Contains(got, at) != want {
			t.Errorf("uid %d: %v, %v", uid, got, err)
		}
	}
	if _, err := listenersOf(t.TempDir(), 0); err == nil {
		t.Error("no lists, and it can be told")
	}
}

func TestDocumentIn(t *testing.T) {
	archive := func(kind byte, text string) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Typeflag: kind, Name: "gate.json", Size: int64(len(text)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		w.Close()
		return &b
	}
	want := small(t).Gates[0].Spec
	if got := documentIn(archive(tar.TypeReg, string(spec.Encode(want)))); got == nil || got.Digest() != want.Digest() {
		t.Errorf("%v", got)
	}
	for name, b := range map[string]*bytes.Buffer{"nothing": {}, "a link": archive(tar.TypeSymlink, ""), "no document": archive(tar.TypeReg, "{}"), "no archive": bytes.NewBufferString("x")} {
		if got := documentIn(b); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// publish binds a port of a container's to one of the host's.
func publish[M ~map[P][]B, P ~string, B any](bindings *M, port P) {
	*bindings = M{port: make([]B, 1)}
}
