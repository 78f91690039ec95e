package render

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

var update = flag.Bool("update", false, "write the golden file anew")

// full is a plan that has everything.
func full() *plan.Plan {
	probes := spec.DefaultProbes()
	gate := spec.Gate{
		Version: spec.Version, Sandbox: "demo-0a1b2c3d", Service: "main", Class: spec.ClassPinned,
		Address: netip.MustParseAddr("172.30.0.2"), Gateway: netip.MustParseAddr("172.30.0.1"),
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.53")},
		Names:     []spec.Name{{Domain: "a.example.com", Ports: []uint16{443}, Liveness: true, Origin: "corral.yaml:4"}},
		Never:     []netip.Prefix{netip.MustParsePrefix("172.30.0.0/17")},
		Probes:    probes,
	}
	return &plan.Plan{
		ID: "demo-0a1b2c3d", Name: "demo", Profile: "shell",
		PolicyFile: "/home/dev/a b/corral.yaml", Digest: "sha256:0f", PolicyInode: "1:5",
		Network: plan.Network{Name: plan.NetworkName},
		Gates:   []plan.Gate{{Name: "main", Spec: gate}},
		Services: []plan.Service{{
			Name: "main", Gate: "main", UID: 1000, GID: 1001,
			Command:     []string{"agent", "--say", "it costs $5", ""},
			Environment: map[string]string{"HOME": "/home/agent", "USER": "agent", "LANG": "C.UTF-8", "CORRAL_SANDBOX": "demo-0a1b2c3d"},
			Secrets:     []string{"API_KEY", "OTHER_KEY"},
			WorkDir:     "/home/dev/a b",
			Mounts: []plan.Mount{
				{Path: "/home/dev/a b", Dev: 1, Ino: 2},
				{Path: "/home/dev/a b/.git/hooks", ReadOnly: true, Dev: 1, Ino: 3},
				{Path: "/home/dev/notes: old, #1", ReadOnly: true, Dev: 1, Ino: 4},
			},
			Shields: []plan.Mount{{Path: "/home/dev/a b/.git/hooks", ReadOnly: true, Dev: 1, Ino: 3}},
			Memory:  8 << 30, NanoCPUs: 2_350_000_000, Pids: 2048,
			Base: "debian:bookworm-slim", Dockerfile: []byte("FROM debian:bookworm-slim\n"),
			Handover: []spec.Check{
				{Name: "same-netns-as-gate"},
				{Name: "unlisted-host-blocked", Probes: &probes},
				{Name: "mounts-only-declared", Mount: []spec.Mount{{Target: "/home/dev/a b", Dev: 1, Ino: 2}}},
			},
		}},
	}
}

// stack is what Compose makes of a file with an environment: its own reading
// of YAML, and the variables filled in.
func stack(t *testing.T, b []byte, environment map[string]string) map[string]any {
	t.Helper()
	var f map[string]any
	if err := yaml.Unmarshal(b, &f); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return interpolated(t, f, environment).(map[string]any)
}

// variable is how the Compose Specification writes one.
var variable = regexp.MustCompile(`\$(\$|\{([A-Za-z_][A-Za-z0-9_]*)(:[?-]([^}]*))?\}|.|$)`)

func interpolated(t *testing.T, v any, environment map[string]string) any {
	t.Helper()
	switch v := v.(type) {
	case string:
		return variable.ReplaceAllStringFunc(v, func(s string) string {
			m := variable.FindStringSubmatch(s)
			value, found := environment[m[2]]
			switch {
			case s == "$$":
				return "$"
			case m[2] == "":
				t.Errorf("a $ stands alone in %q", v)
			case found && value != "":
				return value
			case strings.HasPrefix(m[3], ":?"):
				t.Errorf("%s is needed: %s", m[2], m[4])
			}
			return m[4]
		})
	case []any:
		for i := range v {
			v[i] = interpolated(t, v[i], environment)
		}
	case map[string]any:
		for k := range v {
			v[k] = interpolated(t, v[k], environment)
		}
	}
	return v
}

var machine = map[string]string{
	GateImageVariable:   "corral-gate:0123456789abcdef",
	GuestVolumeVariable: "corral-guest-dev-01234567",
}

// at is what is at a path of keys and indices.
func at(t *testing.T, v any, keys ...any) any {
	t.Helper()
	for _, k := range keys {
		switch k := k.(type) {
		case string:
			m, ok := v.(map[string]any)
			if _, found := m[k]; !ok || !found {
				t.Fatalf("%v: there is no %q in %v", keys, k, v)
			}
			v = m[k]
		case int:
			l, ok := v.([]any)
			if !ok || k >= len(l) {
				t.Fatalf("%v: there is no %d in %v", keys, k, v)
			}
			v = l[k]
		}
	}
	return v
}

// known are the labels of a container of full, by which corral knows it.
func known(role string, more map[string]any) map[string]any {
	all := map[string]any{"dev.corral.sandbox": "demo-0a1b2c3d", "dev.corral.service": "main", "dev.corral.role": role,
		"dev.corral.policy-path": "/home/dev/a b/corral.yaml", "dev.corral.policy-digest": "sha256:0f", "dev.corral.policy-inode": "1:5",
		"dev.corral.purpose": "run"}
	maps.Copy(all, more)
	return all
}

func compose(t *testing.T, p *plan.Plan) []byte {
	t.Helper()
	b, err := Compose(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestComposeGolden(t *testing.T) {
	const golden = "testdata/compose.golden"
	got := compose(t, full())
	for range 5 {
		if again := compose(t, full()); !bytes.Equal(again, got) {
			t.Fatal("the same plan gave two files")
		}
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-update to accept)\n%s", diff)
	}
}

func TestComposeIsInTheTree(t *testing.T) {
	tree, err := Render(full())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(tree["compose.yaml"], compose(t, full())) {
		t.Error("the tree has another compose file")
	}
	main := at(t, stack(t, tree["compose.yaml"], machine), "services", "main")
	context := strings.TrimPrefix(at(t, main, "build", "context").(string), "./")
	for _, file := range []string{path.Join(context, "Dockerfile"), path.Join(context, "corral/README"), "seccomp.json"} {
		if _, found := tree[file]; !found {
			t.Errorf("the compose file needs %s", file)
		}
	}
}

// What keeps an agent in, whatever else is in the file.
func TestComposeFence(t *testing.T) {
	services := at(t, stack(t, compose(t, full()), machine), "services").(map[string]any)
	if got := slices.Sorted(maps.Keys(services)); !slices.Equal(got, []string{"main", "main-gate"}) {
		t.Fatalf("services %v", got)
	}
	bounded := map[string]any{"driver": "json-file", "options": map[string]any{"max-size": "10m", "max-file": "3"}}
	for name, want := range map[string]map[string]any{
		"main-gate": {
			"container_name": "corral-demo-0a1b2c3d-main-gate",
			"labels":         known("gate", map[string]any{LabelAddress: "172.30.0.2"}),
			"image":          "corral-gate:0123456789abcdef",
			"pull_policy":    "never",
			"hostname":       "demo",
			"networks":       map[string]any{"corral": map[string]any{"ipv4_address": "172.30.0.2"}},
			"dns":            []any{"127.0.0.1"},
			"ipc":            "private",
			"cap_drop":       []any{"ALL"},
			"cap_add":        []any{"NET_ADMIN", "NET_RAW", "SETUID", "SETGID", "KILL"},
			"security_opt":   []any{"no-new-privileges"},
			"pids_limit":     64,
			"sysctls":        map[string]any{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"},
			"tmpfs":          []any{"/run:rw,nosuid,nodev,noexec,size=1m,mode=0755"},
			"volumes": []any{map[string]any{"type": "volume", "source": "guest", "target": "/opt/corral-guest", "read_only": true,
				"volume": map[string]any{"nocopy": true}}},
			"configs": []any{map[string]any{"source": "main-gate", "target": "/etc/corral/gate.json"}},
			"logging": bounded,
			"healthcheck": map[string]any{"test": []any{"CMD", "/opt/corral/bin/corral-gate", "status"},
				"interval": "5s", "timeout": "10s", "retries": 3, "start_period": "1m0s"},
		},
		"main": {
			"container_name": "corral-demo-0a1b2c3d-main",
			"labels":         known("service", map[string]any{LabelGate: "main", LabelInstance: "", LabelShields: MountsLabel(full().Services[0].Shields), LabelFurniture: "null"}),
			"build":          map[string]any{"context": "./main/image"},
			"pull_policy":    "build",
			"network_mode":   "service:main-gate",
			"depends_on":     map[string]any{"main-gate": map[string]any{"condition": "service_healthy"}},
			"user":           "1000:1001",
			"entrypoint":     []any{"/opt/corral/bin/corral-verify", "handover", "--"},
			"command":        []any{"agent", "--say", "it costs $5", ""},
			"working_dir":    "/home/dev/a b",
			"init":           true,
			"ipc":            "private",
			"cap_drop":       []any{"ALL"},
			"security_opt":   []any{"no-new-privileges", "seccomp=./seccomp.json"},
			"pids_limit":     2048,
			"mem_limit":      8 << 30,
			"memswap_limit":  8 << 30,
			"cpus":           2.35,
			"tmpfs":          []any{"/tmp:rw,exec,nosuid,nodev,mode=1777"},
			"logging":        bounded,
		},
	} {
		got := services[name].(map[string]any)
		for key, value := range want {
			if diff := cmp.Diff(value, got[key]); diff != "" {
				t.Errorf("%s: %s: %s", name, key, diff)
			}
		}
		for key := range got {
			if _, known := want[key]; !known && !slices.Contains([]string{"volumes", "environment"}, key) {
				t.Errorf("%s also asks for %s", name, key)
			}
		}
	}
}

func TestComposeBounds(t *testing.T) {
	p := full()
	p.Gates[0].Spec.Address = netip.Addr{}
	p.Services[0].Memory, p.Services[0].NanoCPUs = 0, 0
	f := stack(t, compose(t, p), machine)
	for _, key := range []string{"mem_limit", "memswap_limit", "cpus"} {
		if v, found := at(t, f, "services", "main").(map[string]any)[key]; found {
			t.Errorf("no bound is %s: %v", key, v)
		}
	}
	if got := at(t, f, "services", "main-gate", "networks"); !cmp.Equal(got, map[string]any{"corral": map[string]any{}}) {
		t.Errorf("a gate without an address is on %v", got)
	}
	for nano, want := range map[int64]any{1: 1e-9, 10_000_000: 0.01, 500_000_000: 0.5, 1_000_000_000: 1, 1_234_567_891: 1.234567891, 64_000_000_000: 64} {
		p.Services[0].NanoCPUs = nano
		got := at(t, stack(t, compose(t, p), machine), "services", "main", "cpus")
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d thousand-millionths are %v processors, want %v", nano, got, want)
		}
	}
}

// R094: strings that YAML, Compose or both read as something else.
var hostile = []string{
	"plain", "a b", "a:b", "a: b", "a,b", "a$HOME", "a${HOME}", "$", "$$", "a$", "${", "${GATE:-x}", "a#b", "a #b", "# a", "naïve", "日本/🔑", "-x", "- x", "--",
	" leading", "trailing ", "a\ttab", `quo"te`, `it's`, "`id`", `back\slash`, `\n`, `a\`, "{a: b}", "[a]", "{{.ID}}", "*", "&a", "!!int 1", "|", ">", "%", "@",
	"~", "null", "true", "no", "on", "y", "0x10", "010", "1e3", ".inf", "1_000", "12:30", "2026-01-01", "=", "<<", "?", ": ", "...", "---", "a\u00a0b", "a\u0085b", "a\u2028b", "\ufeffa", "a\u200bb",
	"two\nlines", "\n", "end\n", "a\r\nb", "\x01\x1b\x7f", strings.Repeat("long ", 300), "file:ro", "x:/y:rw", "&lt;<>&",
	`"gate":{"instance":"","netns":0}`, "${CORRAL_MAIN_GATE_INSTANCE:-}",
}

func TestComposeTakesStringsAsTheyAre(t *testing.T) {
	for _, evil := range hostile {
		p := full()
		s := &p.Services[0]
		s.Command = []string{evil, "x" + evil, ""}
		s.WorkDir = "/home/" + evil
		s.Environment = map[string]string{"A": evil, "EMPTY": "", "HOME": "/" + evil}
		s.Mounts = []plan.Mount{{Path: "/home/" + evil, Dev: 1, Ino: 2}, {Path: "/home/" + evil + "/" + evil, ReadOnly: true}}
		s.Handover[2].Mount = []spec.Mount{{Target: "/home/" + evil}}
		p.Gates[0].Spec.Names[0].Origin = evil
		p.Name, p.PolicyFile = evil, "/home/"+evil
		s.Shields = s.Mounts[:1]

		f := stack(t, compose(t, p), machine)
		main := at(t, f, "services", "main")
		for what, pair := range map[string][2]any{
			"command":     {at(t, main, "command"), []any{evil, "x" + evil, ""}},
			"working_dir": {at(t, main, "working_dir"), s.WorkDir},
			"variable":    {at(t, main, "environment", "A"), evil},
			"home":        {at(t, main, "environment", "HOME"), "/" + evil},
			"nothing":     {at(t, main, "environment", "EMPTY"), ""},
			"hostname":    {at(t, f, "services", "main-gate", "hostname"), evil},
			"policy":      {at(t, main, "labels", LabelPolicy), p.PolicyFile},
			"shields":     {at(t, main, "labels", LabelShields), MountsLabel(s.Shields)},
		} {
			if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
				t.Errorf("%q: %s: %s", evil, what, diff)
			}
		}
		volumes := at(t, main, "volumes").([]any)
		if len(volumes) != 1+len(s.Mounts) {
			t.Fatalf("%q: %d volumes", evil, len(volumes))
		}
		for i, m := range s.Mounts {
			bind := map[string]any{"propagation": "rprivate", "create_host_path": false}
			if m.ReadOnly {
				bind["recursive"] = "readonly"
			}
			want := map[string]any{"type": "bind", "source": m.Path, "target": m.Path, "read_only": m.ReadOnly, "bind": bind}
			if diff := cmp.Diff(want, volumes[i+1]); diff != "" {
				t.Errorf("%q: mount %d: %s", evil, i, diff)
			}
		}
		if gate, err := spec.ParseGate(strings.NewReader(at(t, f, "configs", "main-gate", "content").(string))); err != nil || gate.Names[0].Origin != evil {
			t.Errorf("%q: the gate is told %v, %v", evil, gate, err)
		}
		told, err := spec.ParseHandover(strings.NewReader(at(t, main, "environment", spec.HandoverEnv).(string)))
		if err != nil || told.Checks[2].Mount[0].Target != "/home/"+evil {
			t.Errorf("%q: handover is told %v, %v", evil, told, err)
		}
	}
}

func TestComposeRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*plan.Plan){
		"not UTF-8":           func(p *plan.Plan) { p.Services[0].Mounts[0].Path = "/a\xff" },
		"NUL":                 func(p *plan.Plan) { p.Services[0].Command[0] = "a\x00b" },
		"a gate twice":        func(p *plan.Plan) { p.Gates = append(p.Gates, p.Gates[0]) },
		"a service twice":     func(p *plan.Plan) { p.Services = append(p.Services, p.Services[0]) },
		"called like a gate":  func(p *plan.Plan) { p.Services[0].Name = "main-gate" },
		"no such gate":        func(p *plan.Plan) { p.Services[0].Gate = "other" },
		"no gate":             func(p *plan.Plan) { p.Services[0].Gate = "" },
		"our own variable":    func(p *plan.Plan) { p.Services[0].Environment[spec.HandoverEnv] = "{}" },
		"secret of our own":   func(p *plan.Plan) { p.Services[0].Secrets = []string{spec.HandoverEnv} },
		"the init's variable": func(p *plan.Plan) { p.Services[0].Environment[spec.InitEnv] = "0" },
	} {
		p := full()
		spoil(p)
		if b, err := Compose(p); err == nil {
			t.Errorf("%s: accepted\n%s", name, b)
		} else if !strings.HasPrefix(err.Error(), "compose.yaml: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// R117: a secret is a name without a value, also where a variable of that name
// is planned.
func TestComposeSecrets(t *testing.T) {
	p := full()
	p.Services[0].Secrets = []string{"API_KEY", "LANG"}
	environment := at(t, stack(t, compose(t, p), machine), "services", "main", "environment").(map[string]any)
	for _, name := range p.Services[0].Secrets {
		if v, found := environment[name]; !found || v != nil {
			t.Errorf("%s is %v, want a name alone", name, v)
		}
	}
	if got, want := len(environment), 4+1+2; got != want { // planned, secret, ours
		t.Errorf("%d variables, want %d: %v", got, want, environment)
	}
}

// A service that is not told which run of the gate it joins refuses to start;
// one that is told has the very document that the engine hands over.
func TestComposeJoins(t *testing.T) {
	p := full()
	instance, netns := JoinVariables("main")
	if instance != "CORRAL_MAIN_GATE_INSTANCE" || netns != "CORRAL_MAIN_GATE_NETNS" {
		t.Errorf("variables %s and %s", instance, netns)
	}
	b := compose(t, p)
	for _, joined := range []spec.Joined{{}, {Instance: "5f1c", NetNS: 4026532231}} {
		environment := maps.Clone(machine)
		if joined.NetNS != 0 {
			environment[instance], environment[netns] = joined.Instance, strconv.FormatUint(joined.NetNS, 10)
		}
		want, err := json.Marshal(spec.Handover{Version: spec.Version, Service: "main",
			Checks: plan.Join(p.Services[0].Handover, spec.GateStatus{Instance: joined.Instance, NetNS: joined.NetNS})})
		if err != nil {
			t.Fatal(err)
		}
		main := at(t, stack(t, b, environment), "services", "main")
		if got := at(t, main, "labels", LabelInstance); got != joined.Instance {
			t.Errorf("%v: the label names %v", joined, got)
		}
		got := at(t, main, "environment", spec.HandoverEnv)
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%v: %s", joined, diff)
		}
	}
}
