package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// What there is of Hermes in a service.
const (
	hermesState   = "~/.hermes"
	hermesHome    = Home + "/.hermes"
	hermesManaged = "/etc/hermes" // root's, and read on top of all that Hermes can write
	hermesPython  = "/opt/hermes/bin/python"

	// hermesConfigVersion is that of DEFAULT_CONFIG in 0.19.0: with an older one a start
	// rewrites the file, which it cannot.
	hermesConfigVersion = 33
)

// Shadow is a place in a profile's state that an agent could redirect its harness from.
// What stands there instead cannot be written.
type Shadow struct {
	State   string // of the profile, as ~/…
	Name    string // in it
	Dir     bool   // an empty directory
	Content string // of a file
}

// Inside is where it is in the service.
func (s Shadow) Inside() string { return path.Join(inHome(s.State), s.Name) }

func inHome(p string) string { return path.Join(Home, p[len("~/"):]) }

// Shadows are those that a policy's profile needs. Hermes reads each of these places
// before its managed layer, or instead of it:
//
//   - .env and .op.env set its environment, HERMES_MANAGED_DIR among it;
//   - config.yaml can name programs that set it (secrets), and its scalars at the top
//     become environment. It must be there: without it jobs of cron skip the managed
//     layer, and the console looks for no MCP server;
//   - active_profile leads to another home, profiles has such homes;
//   - hooks are programs that the gateway loads.
func Shadows(p *policy.Policy) []Shadow {
	if p.Hermes == nil {
		return nil
	}
	stub := map[string]any{"_config_version": hermesConfigVersion, "mcp_servers": hermesServers(p.Hermes)}
	config, err := pinnedYAML(stub)
	if err != nil {
		panic(err) // numbers and words of ours
	}
	return []Shadow{
		{State: hermesState, Name: ".env"},
		{State: hermesState, Name: ".op.env"},
		{State: hermesState, Name: "active_profile", Content: "default\n"},
		{State: hermesState, Name: "config.yaml", Content: string(config)},
		{State: hermesState, Name: "hooks", Dir: true},
		{State: hermesState, Name: "profiles", Dir: true},
	}
}

// hermesPatience is how long Hermes waits for the answer of a tool, in seconds: longer
// than a bridge lets a researcher take, since one who gives up leaves it running.
const hermesPatience = 660

// hermesServers are the MCP servers that main may call.
func hermesServers(h *policy.Hermes) map[string]any {
	if !h.Researcher {
		return map[string]any{}
	}
	return map[string]any{Researcher: map[string]any{
		"url":     fmt.Sprintf("http://%s:%d/mcp", Researcher, researcherPort),
		"timeout": hermesPatience,
	}}
}

// hermesModel is whom Hermes asks.
func hermesModel(h *policy.Hermes) map[string]any {
	return map[string]any{
		"provider":       "custom",
		"base_url":       h.Model.BaseURL,
		"default":        h.Model.Name, // "name" is none of its keys
		"context_length": h.Model.Context,
	}
}

// hermesTools is what main does: on its own machine, in its own state.
var hermesTools = []string{"terminal", "file", "code_execution", "skills", "todo", "memory", "session_search", "clarify"}

// hermesWithout is every other set of tools that 0.19.0 has: a set that is not listed
// may come along with the one of a platform.
var hermesWithout = []string{
	"web", "search", "x_search", "browser", "vision", "video", "image_gen", "video_gen", "tts", "computer_use",
	"delegation", "kanban", "homeassistant", "spotify", "project",
	"discord", "discord_admin", "yuanbao", "feishu_doc", "feishu_drive",
}

// hermesConfig is the managed config.yaml. Hermes merges mappings, so that each leaf is
// here; lists and scalars win whole. The keys are those of 0.19.0.
func hermesConfig(p *policy.Policy) map[string]any {
	h := p.Hermes
	deny := []string{}
	for _, l := range h.Deny {
		deny = append(deny, l.Text)
	}
	tools := append(slices.Clone(hermesTools), "no_mcp")
	if servers := slices.Sorted(maps.Keys(hermesServers(h))); len(servers) > 0 {
		tools = slices.Concat(hermesTools, servers)
	}
	without := slices.Clone(hermesWithout)
	if !slices.Contains(p.Background, "cron") {
		without = append(without, "cronjob")
	}
	return map[string]any{
		"model":              hermesModel(h),
		"fallback_providers": []string{},
		"platform_toolsets":  map[string]any{"cli": tools, "cron": tools},
		"agent":              map[string]any{"disabled_toolsets": without},
		"approvals": map[string]any{
			"mode":      h.Approvals,
			"deny":      deny,
			"cron_mode": "deny", // with mode off it has no effect: the deny list has
			// No key of 0.19.0; 0.21 reads it.
			"single_query_mode": "deny",
		},
		"command_allowlist": []string{},
		"hooks_auto_accept": false,
		"plugins":           map[string]any{"enabled": []string{}},
		// Every command runs where Hermes runs, behind this gate.
		"terminal": map[string]any{"backend": "local"},
		"auxiliary": map[string]any{
			"title_generation": map[string]any{"enabled": false},
		},
		"delegation": map[string]any{"orchestrator_enabled": false, "subagent_auto_approve": false},
		// Questions that it would ask the model by itself; of the local ones there is
		// often one slot.
		"memory":  map[string]any{"nudge_interval": 0, "provider": ""},
		"skills":  map[string]any{"creation_nudge_interval": 0, "external_dirs": []string{}, "inline_shell": false},
		"curator": map[string]any{"enabled": false},
		"kanban":  map[string]any{"dispatch_in_gateway": false, "auto_decompose": false},
		"security": map[string]any{
			"tirith_enabled":      false, // a program that is fetched
			"allow_lazy_installs": false,
		},
		"model_catalog": map[string]any{"enabled": false},
		// Updates have no key that switches the look for them off: the stamp
		// .install_method in the image does, and the program is root's.
		"updates": map[string]any{"pre_update_backup": "off"},
		"cron":    map[string]any{"max_parallel_jobs": 1, "provider": ""},
		"secrets": map[string]any{
			"bitwarden":   map[string]any{"enabled": false, "auto_install": false},
			"onepassword": map[string]any{"enabled": false},
		},
	}
}

// hermesEnv is the managed .env, which wins over any other environment.
// CUSTOM_BASE_URL outranks model.base_url.
func hermesEnv(p *policy.Policy) map[string]string {
	return map[string]string{"CUSTOM_BASE_URL": p.Hermes.Model.BaseURL, "HERMES_YOLO_MODE": "0"}
}

// hermesFiles are what the image bakes as root's, in the build context: Hermes ignores a
// managed file that it cannot read, so that each is read back first.
func hermesFiles(p *policy.Policy) (map[string][]byte, error) {
	config, err := pinnedYAML(hermesConfig(p))
	if err != nil {
		return nil, fmt.Errorf("the configuration of Hermes: %w", err)
	}
	var env bytes.Buffer
	for _, name := range sortedKeys(hermesEnv(p)) {
		value := hermesEnv(p)[name]
		if err := plainValue(value); err != nil {
			return nil, fmt.Errorf("the environment of Hermes: %s: %w", name, err)
		}
		fmt.Fprintf(&env, "%s='%s'\n", name, value)
	}
	return map[string][]byte{"managed/config.yaml": config, "managed/.env": env.Bytes()}, nil
}

// plainValue refuses what a reader of .env files would not read as it is: it is in
// single quotes, and Hermes has two readers.
func plainValue(s string) error {
	for _, r := range s {
		if r <= ' ' || r > '~' || r == '\'' || r == '"' || r == '\\' || r == '$' || r == '`' {
			return fmt.Errorf("%q has %q, which readers of such files take for something else", s, r)
		}
	}
	return nil
}

// hermesChecks prove that all that governs Hermes is in force.
func hermesChecks(p *policy.Policy, s Service) []spec.Check {
	if p.Hermes == nil {
		return nil
	}
	shadowed := spec.Check{Name: "env-shadowed"}
	for _, sh := range Shadows(p) {
		m := spec.Mount{Target: sh.Inside(), ReadOnly: true}
		for _, d := range declared(s.Mounts) {
			if d.Target == m.Target {
				m = d
			}
		}
		m.ReadOnly = true
		shadowed.Mount = append(shadowed.Mount, m)
		shadowed.Files = append(shadowed.Files, spec.File{Path: sh.Inside(), Dir: sh.Dir, Content: sh.Content})
	}
	values := map[string]any{}
	leaves("", hermesConfig(p), values)
	for name, value := range hermesEnv(p) {
		values["$"+name] = value
	}
	values["$HERMES_MANAGED_DIR"] = hermesManaged
	tools := slices.Sorted(slices.Values(slices.Concat(hermesTools, slices.Collect(maps.Keys(hermesServers(p.Hermes))))))
	values["tools of cli"], values["tools of cron"] = tools, tools
	for name, value := range map[string]any{
		"provider": "custom", "base_url": strings.TrimRight(p.Hermes.Model.BaseURL, "/"), "hooks": []string{},
		"approvals": p.Hermes.Approvals, "approvals bypassed": p.Hermes.Approvals == policy.ApprovalsOff,
	} {
		values["in force: "+name] = value
	}
	return []spec.Check{shadowed, {Name: "config-pinned", Path: hermesPython, Paths: []string{hermesHome}, Files: shadowed.Files, Values: values}}
}

// leaves flattens a mapping: its keys with dots between them.
func leaves(prefix string, in, out map[string]any) {
	for k, v := range in {
		if below, is := v.(map[string]any); is {
			leaves(prefix+k+".", below, out)
			continue
		}
		out[prefix+k] = v
	}
}

// pinnedYAML writes a value for a reader of YAML 1.1, which takes more words for
// something else than that of 1.2 does: every string is in quotes. It is read back.
func pinnedYAML(v map[string]any) ([]byte, error) {
	n, err := yamlNode(v)
	if err != nil {
		return nil, err
	}
	b, err := yaml.Dump(n, yaml.WithV4Defaults(), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, err
	}
	var back any
	if err := yaml.Unmarshal(b, &back); err != nil {
		return nil, err
	}
	want, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if got, err := json.Marshal(back); err != nil || !bytes.Equal(got, want) {
		return nil, fmt.Errorf("it reads back as something else: %s, not %s (%v)", got, want, err)
	}
	return b, nil
}

func yamlNode(v any) (*yaml.Node, error) {
	n := &yaml.Node{}
	switch v := v.(type) {
	case map[string]any:
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
		if len(v) == 0 {
			n.Style = yaml.FlowStyle
		}
		for _, k := range sortedKeys(v) {
			below, err := yamlNode(v[k])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k}, below)
		}
	case []string:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if len(v) == 0 {
			n.Style = yaml.FlowStyle
		}
		for _, s := range v {
			below, err := yamlNode(s)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, below)
		}
	case string:
		if !utf8.ValidString(v) {
			return nil, fmt.Errorf("%q is not UTF-8", v)
		}
		n.Kind, n.Tag, n.Style, n.Value = yaml.ScalarNode, "!!str", yaml.DoubleQuotedStyle, v
	case bool:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!bool", fmt.Sprint(v)
	case int:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!int", fmt.Sprint(v)
	default:
		return nil, fmt.Errorf("%T is no value of a configuration", v)
	}
	return n, nil
}
