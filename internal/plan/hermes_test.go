package plan

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

func hermesPolicy(change func(*policy.Policy)) *policy.Policy {
	p := &policy.Policy{File: "/p/corral.yaml", Hermes: &policy.Hermes{
		Model:     policy.Model{BaseURL: "http://corral-host:8081/v1", Host: spec.HostName, Port: 8081, Name: "qwen", Context: 65536},
		Approvals: policy.ApprovalsManual,
	}}
	if change != nil {
		change(p)
	}
	return p
}

// What Hermes reads: the words that YAML 1.1 takes for something else are in quotes.
func TestHermesFiles(t *testing.T) {
	files, err := hermesFiles(hermesPolicy(func(p *policy.Policy) {
		p.Hermes.Model.Name, p.Hermes.Approvals = "0x1f", policy.ApprovalsOff
		p.Hermes.Deny = []policy.Line{{Text: "*rm -rf /*"}, {Text: "a \"b\" \\ # 'c': \x7f\u2028é"}, {Text: "12:30:00"}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	config := string(files["managed/config.yaml"])
	for _, want := range []string{
		`default: "0x1f"`, `mode: "off"`, `- "*rm -rf /*"`, `- "12:30:00"`, `\x7F`, "context_length: 65536\n", `base_url: "http://corral-host:8081/v1"`,
		"fallback_providers: []\n", "command_allowlist: []\n", `cron_mode: "deny"`, `- "cronjob"`, `- "no_mcp"`, `backend: "local"`,
	} {
		if !strings.Contains(config, want) {
			t.Errorf("no %s in\n%s", want, config)
		}
	}
	if env := string(files["managed/.env"]); env != "CUSTOM_BASE_URL='http://corral-host:8081/v1'\nHERMES_YOLO_MODE='0'\n" {
		t.Errorf("the environment: %q", env)
	}
	for _, url := range []string{"http://a.test/'", "http://a.test/$HOME", "http://a.test/ x", "http://a.test/\nA=1", "http://a.test/\\"} {
		if files, err := hermesFiles(hermesPolicy(func(p *policy.Policy) { p.Hermes.Model.BaseURL = url })); err == nil {
			t.Errorf("%q was written: %s", url, files["managed/.env"])
		}
	}
}

// A string that cannot be read back is nothing that could govern anybody.
func TestPinnedYAML(t *testing.T) {
	for _, v := range []any{"a\xffb", 1.5, nil, []any{"x"}} {
		if b, err := pinnedYAML(map[string]any{"a": v}); err == nil {
			t.Errorf("%#v was written: %s", v, b)
		}
	}
}

// With a scheduler the agent may make jobs, and nothing else changes.
func TestHermesWithCron(t *testing.T) {
	plain, cron := map[string]any{}, map[string]any{}
	leaves("", hermesConfig(hermesPolicy(nil)), plain)
	leaves("", hermesConfig(hermesPolicy(func(p *policy.Policy) { p.Background = []string{"cron"} })), cron)
	for name, v := range plain {
		if same := cmp.Equal(v, cron[name]); same == (name == "agent.disabled_toolsets") {
			t.Errorf("%s: %v, %v", name, v, cron[name])
		}
	}
	without := cron["agent.disabled_toolsets"].([]string)
	if slices.Contains(without, "cronjob") || !slices.Contains(without, "web") || !slices.Contains(without, "browser") {
		t.Errorf("switched off: %v", without)
	}
	for _, tool := range hermesTools {
		if slices.Contains(without, tool) {
			t.Errorf("%s is given and switched off", tool)
		}
	}
}

// Each leaf that is pinned is asked for, in a home whose shadows are those that are
// mounted; those are one check and not one each.
func TestHermesChecks(t *testing.T) {
	p := hermesPolicy(nil)
	s := Service{Name: Main, Mounts: []Mount{{Path: "/state", Inside: hermesHome}}}
	for i, sh := range Shadows(p) {
		s.Mounts = append(s.Mounts, Mount{Path: "/shadows/" + sh.Name, Inside: sh.Inside(), ReadOnly: true, Dev: 1, Ino: uint64(i + 1)})
	}
	found := map[string]spec.Check{}
	for _, c := range verify(p, Host{}, Gate{Spec: spec.Gate{}}, s, nil) {
		found[c.Kind()] = c
		if strings.HasPrefix(c.Name, "ro-unwritable:") {
			t.Errorf("%s beside env-shadowed", c.Name)
		}
	}
	shadowed, pinned := found["env-shadowed"], found["config-pinned"]
	if d := cmp.Diff(declared(s.Mounts[1:]), shadowed.Mount); d != "" {
		t.Errorf("the mounts that are proven (+) are not those that are there (-):\n%s", d)
	}
	var names []string
	for _, f := range shadowed.Files {
		names = append(names, strings.TrimPrefix(f.Path, hermesHome+"/"))
	}
	if want := []string{".env", ".op.env", "active_profile", "config.yaml", "hooks", "profiles"}; !slices.Equal(names, want) {
		t.Errorf("%v are shadowed", names)
	}
	if d := cmp.Diff(shadowed.Files, pinned.Files); d != "" {
		t.Errorf("other shadows:\n%s", d)
	}
	for _, name := range []string{
		"model.provider", "model.base_url", "model.default", "model.context_length", "fallback_providers", "platform_toolsets.cli", "platform_toolsets.cron",
		"agent.disabled_toolsets", "approvals.mode", "approvals.deny", "approvals.cron_mode", "approvals.single_query_mode", "command_allowlist",
		"plugins.enabled", "auxiliary.title_generation.enabled", "memory.nudge_interval", "skills.creation_nudge_interval", "curator.enabled",
		"kanban.dispatch_in_gateway", "security.tirith_enabled", "security.allow_lazy_installs", "model_catalog.enabled", "cron.max_parallel_jobs",
		"delegation.orchestrator_enabled", "terminal.backend", "$CUSTOM_BASE_URL", "$HERMES_YOLO_MODE", "$HERMES_MANAGED_DIR", "tools of cli", "tools of cron",
		"in force: provider", "in force: base_url", "in force: approvals", "in force: approvals bypassed", "in force: hooks",
	} {
		if _, asked := pinned.Values[name]; !asked {
			t.Errorf("%s is not asked for: %v", name, slices.Sorted(maps.Keys(pinned.Values)))
		}
	}
	// A shadow that nobody mounted is missed.
	for _, m := range hermesChecks(p, Service{})[0].Mount {
		if !m.ReadOnly || !strings.HasPrefix(m.Target, hermesHome+"/") {
			t.Errorf("%+v", m)
		}
	}
	if got := hermesChecks(&policy.Policy{}, s); got != nil {
		t.Errorf("another profile: %v", got)
	}
}
