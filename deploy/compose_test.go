package deploy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// The stack that the README shows is the example that the tests bring up.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("compose/any-app/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```yml\n"+string(example)+"```\n") {
		t.Error("README.md shows another stack than compose/any-app/compose.yaml")
	}
}

var update = flag.Bool("update", false, "write the seccomp profile anew")

// The examples have the profile that corral gives its own services.
func TestExamplesHaveTheProfile(t *testing.T) {
	const file = "compose/seccomp.json"
	want, err := render.Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not corral's (-update to accept): %v", file, err)
	}
}

// A gate has the same rights in every stack as in corral's own, and nothing that
// stands behind one has any: nothing may be said that is not in these lists.
func TestExamplesGrantNoMore(t *testing.T) {
	for _, name := range examples(t) {
		for _, f := range faults(read(t, name)) {
			t.Errorf("%s: %s", name, f)
		}
	}
}

func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("compose/*/compose.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// key is what a mapping may say under one of its keys.
type key struct {
	needed bool
	fault  func(value any) string // empty if there is none; nil takes anything
}

func only(want any) func(any) string {
	return func(got any) string { return cmp.Diff(want, got) }
}

func each(check func(any) string) func(any) string {
	return func(v any) string {
		list, ok := v.([]any)
		if !ok {
			return "not a list"
		}
		var all []string
		for _, item := range list {
			all = append(all, check(item))
		}
		return strings.Join(all, "")
	}
}

// among says which keys a mapping may have.
func among(keys map[string]key) func(any) string {
	return func(v any) string {
		m, ok := v.(map[string]any)
		if !ok {
			return fmt.Sprintf("%v is not a mapping", v)
		}
		var all []string
		for name, k := range keys {
			if _, there := m[name]; k.needed && !there {
				all = append(all, name+": missing")
			}
		}
		for name, value := range m {
			k, known := keys[name]
			if !known {
				all = append(all, name+": not in the list")
			} else if k.fault != nil {
				if f := k.fault(value); f != "" {
					all = append(all, name+": "+f)
				}
			}
		}
		return strings.Join(all, "\n")
	}
}

const (
	gateImage  = "corral-gate:${CORRAL_VERSION:?make image says it}"
	withoutNet = "none"
)

var (
	logging = only(map[string]any{"driver": render.LogDriver, "options": map[string]any{"max-size": render.LogSize, "max-file": render.LogFiles}})
	noMore  = []any{render.NoNewPrivileges, "seccomp=../seccomp.json"}
	nothing = only([]any{"ALL"})
	// What holds behind any gate is asked for, there being no list of corral's.
	entrypoint = slices.Insert(slices.Clone(render.Entrypoint), len(render.Entrypoint)-1, "--alone")
)

func list(words []string) []any {
	var all []any
	for _, w := range words {
		all = append(all, w)
	}
	return all
}

var asGate = among(map[string]key{
	"image":        {true, only(gateImage)},
	"pull_policy":  {true, only("never")},
	"dns":          {true, only(render.GateResolver)},
	"cap_drop":     {true, nothing},
	"cap_add":      {true, only(list(render.GateCapabilities))},
	"security_opt": {true, only([]any{render.NoNewPrivileges})},
	"sysctls":      {true, only([]any{"net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"})},
	"tmpfs":        {true, only("/run")},
	"pids_limit":   {true, only(render.GatePids)},
	"logging":      {true, logging},
	"volumes":      {true, only([]any{"guest:" + spec.GuestDir + ":ro"})},
	"environment":  {}, "configs": {}, "networks": {}, "depends_on": {}, // it refuses itself what it does not know
})

// asService is what is behind a gate, or has no network, of a stack with these
// named volumes.
func asService(service map[string]any, services, volumes map[string]any) string {
	mode, _ := service["network_mode"].(string)
	keys := map[string]key{
		"network_mode": {true, nil},
		"user":         {true, user(mode == withoutNet)},
		"cap_drop":     {true, nothing},
		"security_opt": {true, only(noMore)},
		"pids_limit":   {true, only(policy.DefaultPids)},
		"logging":      {true, logging},
		"volumes":      {true, each(mount(volumes, mode == withoutNet))},
		"init":         {mode != withoutNet, only(true)}, // it reaps, and takes SIGTERM to what asks for none
		"image":        {needed: true}, "command": {}, "build": {}, "pull_policy": {}, "read_only": {}, "mem_limit": {}, "stop_grace_period": {},
	}
	if mode == withoutNet {
		keys["cap_add"] = key{false, each(func(v any) string {
			if !slices.Contains([]any{"CHOWN", "DAC_OVERRIDE", "SETUID", "SETGID"}, v) {
				return fmt.Sprintf("%v is for nobody", v)
			}
			return ""
		})}
		return among(keys)(service)
	}
	name, joins := strings.CutPrefix(mode, "service:")
	gate, _ := services[name].(map[string]any)
	if !joins || gate["image"] != gateImage {
		return fmt.Sprintf("network_mode: %q is no gate's", mode)
	}
	keys["depends_on"] = key{true, func(v any) string {
		on, _ := v.(map[string]any)
		return cmp.Diff(map[string]any{"condition": "service_healthy", "restart": true}, on[name])
	}}
	keys["entrypoint"] = key{true, func(v any) string {
		argv, _ := v.([]any)
		return cmp.Diff(list(entrypoint), argv[:min(len(argv), len(entrypoint))])
	}}
	return among(keys)(service)
}

// user is a number that is nobody's of the gate's.
func user(root bool) func(any) string {
	return func(v any) string {
		s, _ := v.(string)
		if root && s == "0:0" {
			return ""
		}
		uid, gid, _ := strings.Cut(s, ":")
		for _, word := range []string{uid, gid} {
			id, err := strconv.ParseUint(word, 10, 32)
			if err != nil || id == 0 || id == spec.WorkerUID || id == spec.CarrierUID {
				return fmt.Sprintf("%v may be root or the gate", v)
			}
		}
		return ""
	}
}

// mount is a named volume of the stack's, and the programs only to read.
func mount(volumes map[string]any, apart bool) func(any) string {
	return func(v any) string {
		s, _ := v.(string)
		name, at, _ := strings.Cut(s, ":")
		_, known := volumes[name]
		programs := s == "guest:"+spec.GuestDir+":ro,nocopy"
		if known && (programs && !apart || name != "guest" && at == "/data") {
			return ""
		}
		return fmt.Sprintf("%v is mounted", v)
	}
}

// faults are what a stack says that it may not, and does not say that it must.
func faults(text string) []string {
	var stack map[string]any
	if err := yaml.Unmarshal([]byte(text), &stack); err != nil {
		return []string{err.Error()}
	}
	services, _ := stack["services"].(map[string]any)
	volumes, _ := stack["volumes"].(map[string]any)
	var all []string
	say := func(where, what string) {
		if what != "" {
			all = append(all, where+": "+what)
		}
	}
	gates := 0
	for name, s := range services {
		service, _ := s.(map[string]any)
		if image, _ := service["image"].(string); strings.HasPrefix(image, "corral-gate") {
			gates++
			say(name, asGate(service))
		} else {
			say(name, asService(service, services, volumes))
		}
	}
	if gates == 0 {
		say("services", "no gate")
	}
	for name, v := range volumes {
		want := any(nil)
		if name == "guest" {
			want = map[string]any{"name": "${COMPOSE_PROJECT_NAME}-guest-${CORRAL_VERSION}"} // nobody else's
		}
		say("volumes: "+name, cmp.Diff(want, v))
	}
	networks, _ := stack["networks"].(map[string]any)
	for name, n := range networks {
		say("networks: "+name, among(map[string]key{"internal": {true, only(true)}, "ipam": {}})(n))
	}
	for name := range stack {
		if !slices.Contains([]string{"name", "services", "volumes", "networks", "configs"}, name) && !strings.HasPrefix(name, "x-") {
			say(name, "not in the list")
		}
	}
	return all
}

// Whatever is taken away, altered or added is a fault.
func TestExamplesNotice(t *testing.T) {
	for _, name := range examples(t) {
		text := read(t, name)
		mutate := func(old, by, want string) {
			t.Helper()
			if !strings.Contains(text, old) {
				t.Errorf("%s: no %q", name, old)
			}
			for at := 0; ; at += len(old) {
				next := strings.Index(text[at:], old)
				if next < 0 {
					return
				}
				at += next
				before := text[:at]
				indent := before[len(strings.TrimRight(before, " ")):]
				changed := before + strings.ReplaceAll(by, "\n", "\n"+indent) + text[at+len(old):]
				if got := strings.Join(faults(changed), "\n"); !strings.Contains(got, want) {
					t.Errorf("%s: %q at %d became %q: %q, want %q", name, old, at, by, got, want)
				}
			}
		}
		for _, c := range []struct{ old, by, want string }{
			{"cap_drop: [ALL]", "cap_drop: [NET_RAW]", "cap_drop"},
			{"cap_drop: [ALL]", "tty: false", "cap_drop: missing"},
			{"KILL]", "KILL, SYS_ADMIN]", "cap_add"},
			{"KILL]", "SYS_ADMIN]", "cap_add"},
			{"[no-new-privileges]", "[]", "security_opt"},
			{"[no-new-privileges]", "[no-new-privileges, seccomp=unconfined]", "security_opt"},
			{"[no-new-privileges, seccomp=../seccomp.json]", "[no-new-privileges]", "security_opt"},
			{"[no-new-privileges, seccomp=../seccomp.json]", "[seccomp=../seccomp.json]", "security_opt"},
			{"seccomp=../seccomp.json]", "seccomp=../seccomp.json, apparmor=unconfined]", "security_opt"},
			{"network_mode: service:", "network_mode: container:", "network_mode"},
			{"network_mode: service:", "network_mode: service:un", "network_mode"},
			{"network_mode: service:", "ipc: ", "network_mode"},
			{`user: "1000:1000"`, `user: "0:1000"`, "user"},
			{`user: "1000:1000"`, `user: "1000:0"`, "user"},
			{`user: "1000:1000"`, `user: "64998:1000"`, "user"},
			{`user: "1000:1000"`, `user: "64999:1000"`, "user"},
			{`user: "1000:1000"`, `user: "1000"`, "user"},
			{`user: "1000:1000"`, `user: root`, "user"},
			{`user: "1000:1000"`, `tty: false`, "user: missing"},
			{"pids_limit: 64", "pids_limit: -1", "pids_limit"},
			{"pids_limit: 2048", "pids_limit: -1", "pids_limit"},
			{"pids_limit: 2048", "tty: false", "pids_limit: missing"},
			{"max-size: 10m, ", "", "logging"},
			{"json-file", "journald", "logging"},
			{"logging: *bounded", "tty: false", "logging: missing"},
			{"init: true", "init: false", "init"},
			{"init: true", "tty: false", "init: missing"},
			{"restart: true", "restart: false", "depends_on"},
			{"service_healthy", "service_started", "depends_on"},
			{"corral-verify, handover, --alone, --", "corral-verify, --alone, --", "entrypoint"},
			{"handover, --alone", "handover", "entrypoint"},
			{"entrypoint: [", "labels: [", "entrypoint: missing"},
			{":ro,nocopy", "", "volumes"},
			{":ro,nocopy", ":ro", "volumes"},
			{`"guest:/opt/corral:ro"`, `"guest:/opt/corral"`, "volumes"},
			{`"guest:/opt/corral:ro"`, `"guest:/opt/corral:ro", "/:/host"`, "volumes"},
			{`nocopy"`, `nocopy", "/var/run/docker.sock:/data"`, "volumes"},
			{`nocopy"`, `nocopy", "guest:/data"`, "volumes"},
			{`nocopy"`, `nocopy", {type: bind, source: /, target: /data}`, "volumes"},
			{"${COMPOSE_PROJECT_NAME}", "corral", "volumes: guest"},
			{"-${CORRAL_VERSION}\"", "\"", "volumes: guest"},
			{"\nvolumes:\n", "\nvolumes:\n  disk: {driver_opts: {type: none, o: bind, device: /}}\n", "volumes: disk"},
			{"\nservices:\n", "\nnetworks: {default: {driver: macvlan}}\nservices:\n", "networks"},
			{"\nservices:\n", "\ninclude: [more.yaml]\nservices:\n", "include"},
			{"\nservices:\n", "\nservices:\n  more: {image: debian}\n", "more"},
			{"pull_policy: never  ", "pull_policy: always  ", "pull_policy"},
			{"image: corral-gate:", "image: corral-gateway:", "image"},
			{"dns: 127.0.0.1", "dns: 192.0.2.1", "dns"},
			{"all.disable_ipv6=1", "all.disable_ipv6=0", "sysctls"},
			{"tmpfs: /run", "tmpfs: /tmp", "tmpfs"},
		} {
			mutate(c.old, c.by, c.want)
		}
		for _, more := range []string{"ports: [80]", "expose: [80]", "privileged: true", "pid: host", "ipc: host", "uts: host", "cgroup: host", "userns_mode: host",
			"devices: [/dev/kvm]", "device_cgroup_rules: [a]", "volumes_from: [gate]", "group_add: [0]", "extends: {service: more}", "env_file: more.env",
			"restart: always", "cgroup_parent: more", "runtime: more", "secrets: [more]", "external_links: [more]", "labels: [more]", "deploy: {}"} {
			name, _, _ := strings.Cut(more, ":")
			mutate("cap_drop: [ALL]", "cap_drop: [ALL]\n"+more, name+": not in the list")
		}
	}
	rootStart := read(t, "compose/root-start/compose.yaml")
	for _, c := range []struct{ old, by, want string }{
		{"cap_add: [CHOWN,", "cap_add: [NET_RAW,", "cap_add"},
		{"network_mode: none", "network_mode: host", "network_mode"},
		{"network_mode: none", "network_mode: service:gate", "user"},
		{"network_mode: none", "network_mode: bridge", "network_mode"},
		{"  data:\n", "  data: {driver_opts: {type: none, o: bind, device: /}}\n", "volumes: data"},
		{`["data:/data"]`, `["guest:/opt/corral:ro,nocopy"]`, "volumes"},
	} {
		changed := strings.Replace(rootStart, c.old, c.by, 1)
		if got := strings.Join(faults(changed), "\n"); changed == rootStart || !strings.Contains(got, c.want) {
			t.Errorf("%q became %q: %q, want %q", c.old, c.by, got, c.want)
		}
	}
}
