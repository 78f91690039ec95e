package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

// mutant is one thing that is not as corral asks the engine for it.
type mutant struct {
	id   string // ROLE/PLACE/CHANGE
	role string // whose container: service, gate, relay
	what string // in plain words

	// alter changes what the engine is asked for: the decoded body of a create.
	alter func(body any) any
	// touch changes what was created, before it is started.
	touch func(p *pen, id string) error
	// tamper changes something once it runs.
	tamper func(p *pen) (undo func(), err error)
}

// walk yields a mutant for each element of each list and for each value that
// is not zero: without it. places are the ways to the containers of the body.
func walk(role string, body any) []mutant {
	var out []mutant
	add := func(at []any, name, change, what string, do func(any) (any, bool)) {
		at = slices.Clone(at)
		out = append(out, mutant{id: role + "/" + name + "/" + change, role: role, what: what,
			alter: func(body any) any { b, _ := altered(body, at, do); return b }})
	}
	drop := func(any) (any, bool) { return nil, false }
	var visit func(v any, at []any, name string)
	visit = func(v any, at []any, name string) {
		switch v := v.(type) {
		case map[string]any:
			_, isMount := v["Target"]
			for _, k := range slices.Sorted(maps.Keys(v)) {
				if isMount && slices.Contains(identity, k) {
					continue
				}
				below := name + "." + k
				switch {
				case name == "":
					below = k
				case free(name):
					below = name + "[" + k + "]"
				}
				visit(v[k], append(slices.Clone(at), k), below)
			}
			if isMount && v["ReadOnly"] == nil {
				add(append(slices.Clone(at), "ReadOnly"), name+".ReadOnly", "on", name+" is read-only", func(any) (any, bool) { return true, true })
			}
			if isMount && v["Type"] == "bind" && !strings.Contains(name, "/.git/") {
				add(append(slices.Clone(at), "Source"), name+".Source", "other", name+" is another directory", func(any) (any, bool) { return "$home", true })
				add(append(slices.Clone(at), "BindOptions", "Propagation"), name+".BindOptions.Propagation", "slave", name+" shows what is mounted later", func(any) (any, bool) { return "rslave", true })
			}
		case []any:
			for i, e := range v {
				below := name + "[" + element(e, i) + "]"
				if n, isNumber := e.(json.Number); isNumber && n == "0" {
					continue
				}
				add(append(slices.Clone(at), i), below, "drop", name+" without "+element(e, i), drop)
				if _, isMap := e.(map[string]any); isMap {
					visit(e, append(slices.Clone(at), i), below)
				}
			}
		case string:
			if v == "" {
				return
			}
			add(at, name, "zero", name+" is not set", drop)
			if strings.HasPrefix(name, "HostConfig.Tmpfs[") {
				for option := range strings.SplitSeq(v, ",") {
					add(at, name, "without-"+option, name+" without "+option, func(v any) (any, bool) {
						return strings.Join(slices.DeleteFunc(strings.Split(v.(string), ","), func(o string) bool { return o == option }), ","), true
					})
				}
			}
		case json.Number:
			if v != "0" {
				add(at, name, "zero", name+" is not set", drop)
			}
		case bool:
			if v {
				add(at, name, "off", name+" is off", drop)
			}
		}
	}
	visit(body, nil, "")
	return out
}

// identity is what a mount is not one without: the engine refuses it.
var identity = []string{"Type", "Source", "Target"}

// free says that the keys of a map are not the engine's words.
func free(name string) bool {
	return slices.Contains([]string{"Labels", "HostConfig.Tmpfs", "HostConfig.Sysctls", "HostConfig.LogConfig.Config", "NetworkingConfig.EndpointsConfig"}, name)
}

// place is a path of a project of the test.
var place = regexp.MustCompile(`/tmp/corral-test-[0-9]+`)

// element is a short name of one of a list that is the same on each machine.
func element(v any, i int) string {
	switch v := v.(type) {
	case map[string]any:
		if target, is := v["Target"].(string); is {
			return place.ReplaceAllString(target, "")
		}
	case string:
		name, _, _ := strings.Cut(v, "=")
		if !strings.Contains(name, ":") { // a port
			return place.ReplaceAllString(name, "")
		}
	}
	return strconv.Itoa(i)
}

// altered is v with what is at a place changed, and a copy on the way there.
func altered(v any, at []any, do func(any) (value any, keep bool)) (any, bool) {
	if len(at) == 0 {
		return do(v)
	}
	switch step := at[0].(type) {
	case string:
		m, _ := v.(map[string]any)
		m = maps.Clone(m)
		if m == nil {
			m = map[string]any{}
		}
		if value, keep := altered(m[step], at[1:], do); keep {
			m[step] = value
		} else {
			delete(m, step)
		}
		return m, true
	case int:
		l := slices.Clone(v.([]any))
		value, keep := altered(l[step], at[1:], do)
		if !keep {
			return slices.Delete(l, step, step+1), true
		}
		l[step] = value
		return l, true
	}
	panic(fmt.Sprintf("no step: %v", at[0]))
}

// addition is what a container does not have and somebody might give it.
type addition struct {
	place string // of the body, by dots
	what  string
	value string // JSON; lists and objects are added to what is there. $NAMES are the pen's
}

// additions by role; those of "" are given to all three.
var additions = map[string][]addition{
	"": {
		{"User", "root", `"0:0"`},
		{"User", "another person", `"12399:12399"`},
		{"Volumes", "a volume of its own", `{"/extra":{}}`},
		{"Env", "a variable more", `["LD_PRELOAD=/tmp/x.so"]`},
		{"HostConfig.Privileged", "privileged", `true`},
		{"HostConfig.CapAdd", "SYS_ADMIN", `["SYS_ADMIN"]`},
		{"HostConfig.CapAdd", "NET_BIND_SERVICE", `["NET_BIND_SERVICE"]`},
		{"HostConfig.CapAdd", "ALL", `["ALL"]`},
		{"HostConfig.Binds", "the engine's socket", `["/var/run/docker.sock:/var/run/docker.sock"]`},
		{"HostConfig.Binds", "the person's home", `["$home:$home"]`},
		{"HostConfig.Mounts", "a volume", `[{"Type":"volume","Target":"/srv/data"}]`},
		{"HostConfig.Tmpfs", "another", `{"/srv/t":"rw"}`},
		{"HostConfig.Devices", "/dev/fuse", `[{"PathOnHost":"/dev/fuse","PathInContainer":"/dev/fuse","CgroupPermissions":"rwm"}]`},
		{"HostConfig.GroupAdd", "root", `["0"]`},
		{"HostConfig.SecurityOpt", "no filter", `["seccomp=unconfined"]`},
		{"HostConfig.SecurityOpt", "privileges may be gained", `["no-new-privileges:false"]`},
		{"HostConfig.MaskedPaths", "none", `["-"]`},
		{"HostConfig.ReadonlyPaths", "none", `["-"]`},
		{"HostConfig.IpcMode", "the host's", `"host"`},
		{"HostConfig.IpcMode", "anybody may share it", `"shareable"`},
		{"HostConfig.PidMode", "the host's", `"host"`},
		{"HostConfig.UTSMode", "the host's", `"host"`},
		{"HostConfig.CgroupnsMode", "the host's", `"host"`},
		{"HostConfig.PidsLimit", "none", `-1`},
		{"HostConfig.RestartPolicy", "it starts by itself", `{"Name":"always"}`},
		{"HostConfig.VolumesFrom", "another container's", `["$neighbour"]`},
		{"Healthcheck", "a command beside it", `{"Test":["CMD-SHELL","true"],"Interval":1000000000}`},
	},
	"service": {
		{"HostConfig.CapAdd", "SYS_PTRACE", `["SYS_PTRACE"]`},
		{"HostConfig.CapAdd", "DAC_OVERRIDE", `["DAC_OVERRIDE"]`},
		{"HostConfig.Binds", "the engine's socket under another name", `["/var/run/docker.sock:/srv/s"]`},
		{"HostConfig.Binds", "the person's home, read-only, somewhere else", `["$home:/srv/home:ro"]`},
		{"HostConfig.Mounts", "a tmpfs", `[{"Type":"tmpfs","Target":"/srv/data"}]`},
		{"HostConfig.Mounts", "the host's /etc", `[{"Type":"bind","Source":"/etc","Target":"/srv/etc","ReadOnly":true}]`},
		{"HostConfig.Devices", "/dev/net/tun", `[{"PathOnHost":"/dev/net/tun","PathInContainer":"/dev/net/tun","CgroupPermissions":"rwm"}]`},
		{"HostConfig.Devices", "/dev/kmsg", `[{"PathOnHost":"/dev/kmsg","PathInContainer":"/dev/kmsg","CgroupPermissions":"rwm"}]`},
		{"HostConfig.DeviceCgroupRules", "every device", `["a *:* rwm"]`},
		{"HostConfig.DeviceRequests", "a device by its driver", `[{"Count":-1,"Capabilities":[["gpu"]]}]`},
		{"HostConfig.GroupAdd", "the engine's", `["$docker"]`},
		{"HostConfig.SecurityOpt", "AppArmor off", `["apparmor=unconfined"]`},
		{"HostConfig.SecurityOpt", "labels off", `["label=disable"]`},
		{"HostConfig.UsernsMode", "the host's", `"host"`},
		{"HostConfig.CgroupParent", "another", `"/elsewhere"`},
		{"HostConfig.OomScoreAdj", "it is killed last", `-900`},
		{"HostConfig.OomKillDisable", "it is never killed for memory", `true`},
		{"HostConfig.PidsLimit", "more", `4096`},
		{"HostConfig.Ulimits", "cores and locked memory", `[{"Name":"memlock","Soft":-1,"Hard":-1},{"Name":"core","Soft":-1,"Hard":-1}]`},
		{"HostConfig.CpuShares", "more than others", `8192`},
		{"HostConfig.AutoRemove", "on", `true`},
		{"HostConfig.LogConfig.Type", "no logs", `"none"`},
		{"HostConfig.LogConfig.Config", "larger", `{"max-size":"100g"}`},
		{"HostConfig.ShmSize", "larger", `8589934592`},
		{"HostConfig.Sysctls", "of message queues", `{"kernel.msgmax":"65536"}`},
		{"User", "the gate's worker", `"64999:64999"`},
		{"User", "the right person, root's group", `"$uid:0"`},
		{"HostConfig.CapAdd", "NET_ADMIN", `["NET_ADMIN"]`},
		{"HostConfig.CapAdd", "NET_RAW", `["NET_RAW"]`},
		{"HostConfig.ReadonlyRootfs", "on", `true`},
		{"HostConfig.NetworkMode", "the corral network, without a gate", `"corral"`},
		{"HostConfig.NetworkMode", "the engine's own bridge", `"bridge"`},
		{"HostConfig.NetworkMode", "the host's", `"host"`},
		{"HostConfig.NetworkMode", "none", `"none"`},
		{"HostConfig.NetworkMode", "another gate's", `"container:$neighbour"`},
		{"HostConfig.PidMode", "its gate's", `"container:$gate"`},
		{"HostConfig.IpcMode", "its gate's", `"container:$gate"`},
		{"HostConfig.VolumesFrom", "its gate's", `["$gate"]`},
		{"HostConfig.PortBindings", "a port", `{"8080/tcp":[{"HostPort":"0"}]}`},
		{"HostConfig.PublishAllPorts", "on", `true`},
		{"ExposedPorts", "a port", `{"8080/tcp":{}}`},
		{"HostConfig.ExtraHosts", "a name", `["evil.test:44.10.9.9"]`},
		{"HostConfig.Dns", "another name server", `["44.10.0.66"]`},
		{"HostConfig.DnsSearch", "a domain", `["evil.test"]`},
		{"HostConfig.DnsOptions", "an option", `["use-vc"]`},
		{"HostConfig.Links", "another container", `["$neighbour:other"]`},
		{"HostConfig.Sysctls", "of the network", `{"net.ipv4.ip_unprivileged_port_start":"0"}`},
		{"HostConfig.Memory", "more", `1073741824`},
		{"HostConfig.MemorySwap", "without bound", `-1`},
		{"HostConfig.NanoCpus", "more", `2000000000`},
		{"HostConfig.Binds", "what the policy's secrets come from", `["$secrets:/srv/env:ro"]`},
		{"HostConfig.Binds", "a directory over the state of a repository's hooks", `["$work:$project/.git/hooks/x"]`},
		{"HostConfig.Binds", "the policy's directory a second time", `["$project:/srv/again"]`},
		{"Env", "the secret a second time", `["COPY=$secret"]`},
		{"Cmd", "the secret as an argument", `["$secret"]`},
		{"Labels", "the secret as a label", `{"x":"$secret"}`},
		{"Entrypoint", "handover of another stack", `["--alone"]`},
		{"Tty", "a terminal that was not asked for", `true`},
		{"OpenStdin", "an input that was not asked for", `true`},
		{"Hostname", "a name", `"elsewhere"`},
		{"Domainname", "a domain", `"evil.test"`},
	},
	"gate": {
		{"User", "its worker", `"64999:64999"`},
		{"HostConfig.CapAdd", "SYS_MODULE", `["SYS_MODULE"]`},
		{"HostConfig.CapAdd", "BPF", `["BPF"]`},
		{"HostConfig.CapAdd", "CHOWN", `["CHOWN"]`},
		{"HostConfig.NetworkMode", "the engine's own bridge", `"bridge"`},
		{"HostConfig.NetworkMode", "the host's", `"host"`},
		{"HostConfig.NetworkMode", "none", `"none"`},
		{"NetworkingConfig.EndpointsConfig", "a network more", `{"bridge":{}}`},
		{"HostConfig.PortBindings", "a port", `{"8080/tcp":[{"HostPort":"0"}]}`},
		{"ExposedPorts", "a port", `{"8080/tcp":{}}`},
		{"HostConfig.PublishAllPorts", "on, and a port that is named", `true`},
		{"HostConfig.ExtraHosts", "a name", `["evil.test:44.10.9.9"]`},
		{"HostConfig.Dns", "another name server", `["44.10.0.66"]`},
		{"HostConfig.DnsSearch", "a domain", `["evil.test"]`},
		{"HostConfig.DnsOptions", "an option", `["use-vc"]`},
		{"HostConfig.Links", "another container", `["$neighbour:other"]`},
		{"HostConfig.Sysctls", "IPv6", `{"net.ipv6.conf.all.disable_ipv6":"0","net.ipv6.conf.default.disable_ipv6":"0"}`},
		{"HostConfig.Sysctls", "local addresses may be routed", `{"net.ipv4.conf.all.route_localnet":"1"}`},
		{"HostConfig.Sysctls", "everybody may send ICMP", `{"net.ipv4.ping_group_range":"0 2147483647"}`},
		{"HostConfig.Sysctls", "any port for anybody", `{"net.ipv4.ip_unprivileged_port_start":"0"}`},
		{"HostConfig.Sysctls", "packets are forwarded", `{"net.ipv4.ip_forward":"1"}`},
		{"HostConfig.Memory", "a limit", `67108864`},
		{"HostConfig.NanoCpus", "a limit", `500000000`},
		{"HostConfig.Binds", "the policy's directory", `["$project:/srv/p"]`},
		{"Entrypoint", "the other program", `["/opt/corral/bin/corral-verify"]`},
		{"Cmd", "an argument", `["--lenient"]`},
		{"Tty", "a terminal", `true`},
		{"OpenStdin", "an input", `true`},
		{"Domainname", "a domain", `"evil.test"`},
		{"WorkingDir", "elsewhere", `"/srv"`},
	},
	"relay": {
		{"HostConfig.CapAdd", "NET_ADMIN", `["NET_ADMIN"]`},
		{"HostConfig.Memory", "more", `2147483648`},
		{"HostConfig.MemorySwap", "without bound", `-1`},
		{"HostConfig.Binds", "the person's project", `["$project:/srv/p"]`},
		{"WorkingDir", "elsewhere", `"/srv"`},
		{"Tty", "a terminal", `true`},
		{"OpenStdin", "an input", `true`},
		{"Hostname", "a name", `"elsewhere"`},
		{"Domainname", "a domain", `"evil.test"`},
		{"Entrypoint", "the other program", `["/opt/corral/bin/corral-verify"]`},
	},
}

// emptied are the lists whose default is the engine's and whose empty list is
// none: an addition of "-" there.
var emptied = []string{"HostConfig.MaskedPaths", "HostConfig.ReadonlyPaths"}

// added are the mutants by addition.
func added(role string, body any) []mutant {
	var out []mutant
	for _, a := range slices.Concat(additions[""], additions[role]) {
		at := dots(a.place)
		have, _ := json.Marshal(get(body, at))
		if string(have) == a.value {
			continue // it is so
		}
		out = append(out, mutant{id: role + "/" + a.place + "/+" + strings.ReplaceAll(a.what, " ", "-"), role: role, what: a.place + ": " + a.what,
			alter: func(body any) any {
				b, _ := altered(body, at, func(v any) (any, bool) {
					if slices.Contains(emptied, a.place) {
						return []any{}, true
					}
					return joined(v, decoded([]byte(a.value))), true
				})
				return b
			}})
	}
	return out
}

func dots(place string) []any {
	var out []any
	for s := range strings.SplitSeq(place, ".") {
		out = append(out, s)
	}
	return out
}

func get(v any, at []any) any {
	for _, s := range at {
		m, _ := v.(map[string]any)
		v = m[s.(string)]
	}
	return v
}

// joined adds to a list or an object, and replaces anything else.
func joined(have, more any) any {
	switch more := more.(type) {
	case []any:
		list, _ := have.([]any)
		return append(slices.Clone(list), more...)
	case map[string]any:
		m := map[string]any{}
		if h, is := have.(map[string]any); is {
			maps.Copy(m, h)
		}
		maps.Copy(m, more)
		return m
	}
	return more
}

// set is v with a value at a place.
func set(v, value any, at ...any) any {
	out, _ := altered(v, at, func(any) (any, bool) { return value, true })
	return out
}

func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it was decoded, or is a string
	}
	return b
}

func decoded(b []byte) any {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		panic(fmt.Sprintf("%s: %v", b, err))
	}
	return v
}

// without are the fields of the engine's requests that no mutant is about.
var without = map[string]string{
	"AttachStdin":                     "how a caller is attached is no property of what runs",
	"StdinOnce":                       "means something with OpenStdin only, which has a mutant",
	"ArgsEscaped":                     "of Windows",
	"MacAddress":                      "a gate that has another one has the same rules",
	"NetworkDisabled":                 "less network than asked for",
	"OnBuild":                         "nothing is built from a container",
	"StopSignal":                      "how it ends",
	"StopTimeout":                     "how it ends",
	"Shell":                           "for builds only",
	"HostConfig.ContainerIDFile":      "the command writes it, not the engine",
	"HostConfig.VolumeDriver":         "means something with volumes only, each of which is a mutant",
	"HostConfig.ConsoleSize":          "a terminal's size",
	"HostConfig.Annotations":          "words for a runtime",
	"HostConfig.Cgroup":               "the engine ignores it",
	"HostConfig.StorageOpt":           "this storage driver has none",
	"HostConfig.Runtime":              "there is one runtime here",
	"HostConfig.Isolation":            "of Windows",
	"HostConfig.BlkioWeight":          "a share of the disk's time",
	"HostConfig.BlkioWeightDevice":    "a share of the disk's time",
	"HostConfig.BlkioDeviceReadBps":   "a bound, and none is asked for",
	"HostConfig.BlkioDeviceWriteBps":  "a bound, and none is asked for",
	"HostConfig.BlkioDeviceReadIOps":  "a bound, and none is asked for",
	"HostConfig.BlkioDeviceWriteIOps": "a bound, and none is asked for",
	"HostConfig.CpuPeriod":            "the engine refuses it beside NanoCpus",
	"HostConfig.CpuQuota":             "the engine refuses it beside NanoCpus",
	"HostConfig.CpuRealtimePeriod":    "needs a kernel and an engine set up for it",
	"HostConfig.CpuRealtimeRuntime":   "needs a kernel and an engine set up for it",
	"HostConfig.CpusetCpus":           "fewer processors than asked for",
	"HostConfig.CpusetMems":           "less memory than asked for",
	"HostConfig.KernelMemory":         "a bound, and none is asked for",
	"HostConfig.KernelMemoryTCP":      "a bound, and none is asked for",
	"HostConfig.MemoryReservation":    "a bound, and none is asked for",
	"HostConfig.MemorySwappiness":     "when the kernel swaps",
	"HostConfig.CpuCount":             "of Windows",
	"HostConfig.CpuPercent":           "of Windows",
	"HostConfig.IOMaximumIOps":        "of Windows",
	"HostConfig.IOMaximumBandwidth":   "of Windows",
}

// TestMutantsAreComplete: every field of a request to the engine has a mutant,
// or a reason.
func TestMutantsAreComplete(t *testing.T) {
	t.Parallel()
	has := map[string]bool{}
	for _, list := range additions {
		for _, a := range list {
			has[strings.TrimSuffix(strings.TrimSuffix(a.place, ".Type"), ".Config")] = true
		}
	}
	walked := []string{"AttachStdout", "AttachStderr", "Image", "Labels", "HostConfig.CapDrop", "HostConfig.Init"}
	var visit func(typ reflect.Type, prefix string)
	visit = func(typ reflect.Type, prefix string) {
		for f := range fields(typ) {
			name := prefix + f.Name
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
				name = prefix + tag
			}
			switch reason, left := without[name]; {
			case f.Anonymous:
				visit(f.Type, prefix)
			case left == (has[name] || slices.Contains(walked, name)):
				t.Errorf("%s: a mutant: %t, a reason to have none: %q", name, !left, reason)
			}
		}
	}
	visit(reflect.TypeFor[container.Config](), "")
	visit(reflect.TypeFor[container.HostConfig](), "HostConfig.")
}

func fields(typ reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range typ.NumField() {
			if !yield(typ.Field(i)) {
				return
			}
		}
	}
}
