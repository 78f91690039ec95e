package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

// node is what of a schema the tests look at.
type node struct {
	Ref         string          `json:"$ref"`
	Description string          `json:"description"`
	Properties  map[string]node `json:"properties"`
	Closed      *bool           `json:"additionalProperties"`
	Items       *node           `json:"items"`
	AnyOf       []node          `json:"anyOf"`
	Enum        []string        `json:"enum"`
	Pattern     string          `json:"pattern"`
	Wanted      string          `json:"patternErrorMessage"`
	Default     any             `json:"default"`
	Defs        map[string]node `json:"$defs"`
	MaxItems    int             `json:"maxItems"`
	Minimum     float64         `json:"minimum"`
	Maximum     float64         `json:"maximum"`
}

func schemaRoot(t *testing.T) node {
	t.Helper()
	var root node
	if err := json.Unmarshal(Schema(), &root); err != nil {
		t.Fatal(err)
	}
	return root
}

// walk visits every mapping and every key of the schema by its path, entries of
// lists under [].
func (n node) walk(path string, visit func(path string, n node)) {
	visit(path, n)
	for name, p := range n.Properties {
		p.walk(join(path, name), visit)
	}
	if n.Items != nil {
		n.Items.walk(path+"[]", visit)
	}
	for _, a := range n.AnyOf {
		a.walk(path, visit)
	}
}

// The decoder's tables, met while it reads the policies of testdata, are the
// schema's, at every level.
func TestSchemaHasTheDecodersKeys(t *testing.T) {
	decoded := map[string][]string{}
	index := regexp.MustCompile(`\[[0-9]+\]`)
	for _, file := range okPolicies(t) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := newDecoder(FileName, src)
		d.onTable = func(path string, keys []key) {
			var names []string
			for _, k := range keys {
				if k.read != nil {
					names = append(names, k.name)
				}
			}
			slices.Sort(names)
			decoded[index.ReplaceAllString(path, "[]")] = names
		}
		d.policy(src)
	}
	described := map[string][]string{}
	schemaRoot(t).walk("", func(path string, n node) {
		if n.Properties == nil {
			return
		}
		described[path] = slices.Sorted(maps.Keys(n.Properties))
		if n.Closed == nil || *n.Closed {
			t.Errorf("%q takes keys that nobody knows", path)
		}
	})
	if !reflect.DeepEqual(decoded, described) {
		t.Errorf("the decoder reads\n%v\nthe schema has\n%v", decoded, described)
	}
}

func TestSchemaDescribesEveryKey(t *testing.T) {
	root := schemaRoot(t)
	said := func(path string, n node) { // instead of the pattern itself, by editors that know it
		if (n.Pattern == "") != (n.Wanted == "") {
			t.Errorf("%s: pattern %q, and in words %q", path, n.Pattern, n.Wanted)
		}
	}
	for name, d := range root.Defs {
		said(name, d)
	}
	root.walk("", func(path string, n node) {
		said(path, n)
		for name, p := range n.Properties {
			if p.Description == "" && root.Defs[strings.TrimPrefix(p.Ref, "#/$defs/")].Description == "" {
				t.Errorf("%s has no description", join(path, name))
			}
		}
		if name, ok := strings.CutPrefix(n.Ref, "#/$defs/"); n.Ref != "" && (!ok || root.Defs[name].Description == "") {
			t.Errorf("%s refers to %q", path, n.Ref)
		}
	})
}

// What the schema says of values is what the decoder takes.
func TestSchemaAgreesOnValues(t *testing.T) {
	p, err := Parse(FileName, []byte("profile: shell\n"))
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]any{
		"mode": p.Mode.String(), "egress.defaults": p.Egress.Defaults, "egress.refresh": p.Egress.Refresh,
		"image.base": p.Image.Base, "resources.pids": float64(p.Resources.Pids), "git.config": "ro", "git.dir": "rw",
		"profile_options.hermes.researcher": false, "profile_options.hermes.approvals": ApprovalsManual,
		"egress.allow[].ports": []any{80., 443.}, "egress.allow[].liveness": true, "egress.allow[].private": false,
	}
	patterns := map[string]string{
		"profile": profileName.String(), "name": sandboxName.String(), "host_services[].name": serviceName.String(),
		"resources.memory": strings.NewReplacer("(", "", ")", "").Replace(memorySize.String()),
	}
	sizes := map[string]int{"mounts.rw": maxMounts, "mounts.ro": maxMounts, "egress.allow": maxEntries, "host_services": maxEntries}
	bounds := map[string][2]float64{"profile_options.hermes.model.context_length": {minContext, maxContext}, "resources.pids": {minPids, maxPids}, "resources.cpus": {minNanoCPUs / 1e9, maxCPUs}}
	schemaRoot(t).walk("", func(path string, n node) {
		if want, ok := defaults[path]; ok && n.Default != nil {
			if !reflect.DeepEqual(n.Default, want) {
				t.Errorf("%s: default %v, want %v", path, n.Default, want)
			}
			delete(defaults, path)
		} else if n.Default != nil && !reflect.DeepEqual(n.Default, []any{}) {
			t.Errorf("%s: default %v, which no test knows", path, n.Default)
		}
		if want, ok := patterns[path]; ok && n.Pattern != want {
			t.Errorf("%s: pattern %s, want %s", path, n.Pattern, want)
		}
		if want, ok := sizes[path]; ok && n.MaxItems != want {
			t.Errorf("%s: at most %d, want %d", path, n.MaxItems, want)
		}
		if want, ok := bounds[path]; ok && (n.Minimum != want[0] || n.Maximum != want[1]) {
			t.Errorf("%s: %v to %v, want %v", path, n.Minimum, n.Maximum, want)
		}
		for _, word := range n.Enum {
			key := path
			if slices.Contains(bare, word) {
				word = strconv.Quote(word)
			}
			if strings.HasSuffix(path, "[]") {
				key = strings.TrimSuffix(path, "[]")
				word = "[" + word + "]"
			}
			// Nested as the path is.
			names := strings.Split(key, ".")
			src := "profile: hermes\n" + strings.Join(names, ": {") + ": " + word + strings.Repeat("}", len(names)-1) + "\n"
			if _, err := Parse(FileName, []byte(src)); err != nil {
				t.Errorf("%s: %s is not taken: %v", path, word, err)
			}
		}
	})
	if len(defaults) > 0 {
		t.Errorf("the schema does not tell the defaults of %v", defaults)
	}
}

func okPolicies(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/ok/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	return files
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("corral.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("corral.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON is what an editor makes of a policy.
func asJSON(t *testing.T, src []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(src, &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSchemaTakesEveryGoodPolicy(t *testing.T) {
	s := compiled(t)
	for _, file := range okPolicies(t) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(asJSON(t, src)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Editors offer the profiles that there are, and mark others.
func TestSchemaOffersProfiles(t *testing.T) {
	var root node
	if err := json.Unmarshal(Schema("hermes", "shell"), &root); err != nil {
		t.Fatal(err)
	}
	p := root.Properties["profile"]
	if !reflect.DeepEqual(p.Enum, []string{"hermes", "shell"}) || p.Pattern == "" || p.Description == "" {
		t.Errorf("%+v", p)
	}
	if p := schemaRoot(t).Properties["profile"]; p.Enum != nil {
		t.Errorf("nobody said which there are: %q", p.Enum)
	}
}

func TestSchemaMarksMistakes(t *testing.T) {
	s := compiled(t)
	for _, c := range []struct{ good, bad string }{
		{"name: a", "nmae: a"},
		{"mode: daemon", "mode: demon"},
		{"mounts: {ro: [~/x]}", "mounts: {ro: [x]}"},
		{"mounts: {ro: [/x]}", "mounts: {R0: [/x]}"},
		{"egress: {allow: [a.example]}", "egress: {allow: [a]}"},
		{"egress: {allow: [a.example]}", "egress: {allow: [https://a.example]}"},
		{"egress: {allow: [a.example]}", "egress: {allow: ['*.example.com']}"},
		{"egress: {allow: [{domain: a.example, ports: [443]}]}", "egress: {allow: [{domain: a.example, ports: [0]}]}"},
		{"egress: {allow: [{domain: a.example, ports: any}]}", "egress: {allow: [{domain: a.example, ports: all}]}"},
		{"egress: {allow: [{domain: a.example, private: [10.0.0.0/8]}]}", "egress: {allow: [{domain: a.example, private: [10.0.0.1]}]}"},
		{"host_services: [{name: a, port: 1}]", "host_services: [{name: a}]"},
		{"secrets: {env_file: ~/x}", "secrets: {env_file: x}"},
		{"secrets: {env_file: ~/x}", "secrets: {inject: {}}"},
		{"image: {base: debian}", "image: {base: -debian}"},
		{"image: {packages: [git]}", "image: {packages: [-y]}"},
		{"image: {packages: [git]}", "image: {packages: [git-]}"},
		{"image: {run: [make]}", "image: {run: ['']}"},
		{"resources: {memory: 8g}", "resources: {memory: 8}"},
		{"resources: {cpus: 0.01}", "resources: {cpus: 0.009}"},
		{"resources: {pids: 16}", "resources: {pids: 15}"},
		{"git: {config: writable}", "git: {config: rw}"},
		{"background: [cron]", "background: [at]"},
		{"hooks: {pre_launch: [make]}", "hooks: {post: [make]}"},
		{"profile_options: {shell: {command: [sh]}}", "profile_options: {shell: {command: sh}}"},
	} {
		for src, want := range map[string]bool{c.good: true, c.bad: false} {
			if err := s.Validate(asJSON(t, fmt.Appendf(nil, "profile: hermes\n%s\n", src))); (err == nil) != want {
				t.Errorf("%s: %v", src, err)
			}
		}
	}
}

// A mistake is marked once, in words that say what may stand there: an editor that tries
// one shape after the other shows what is wrong with each.
func TestSchemaSaysWhatMayStandThere(t *testing.T) {
	s := compiled(t)
	for src, want := range map[string]string{
		"egress: {allow: [443]}":                                      "at '/egress/allow/0': got number, want string or object",
		"egress: {allow: [[a.example]]}":                              "at '/egress/allow/0': got array, want string or object",
		"egress: {allow: [a]}":                                        "at '/egress/allow/0': 'a' does not match pattern",
		"egress: {allow: [{ports: [443]}]}":                           "at '/egress/allow/0': missing property 'domain'",
		"egress: {allow: [{domain: a.example, port: 443}]}":           "at '/egress/allow/0': additional properties 'port' not allowed",
		"egress: {allow: [{domain: a}]}":                              "at '/egress/allow/0/domain': 'a' does not match pattern",
		"egress: {allow: [{domain: a.example, ports: 443}]}":          "at '/egress/allow/0/ports': got number, want string or array",
		"egress: {allow: [{domain: a.example, ports: all}]}":          "at '/egress/allow/0/ports': 'all' does not match pattern '^any$'",
		"egress: {allow: [{domain: a.example, ports: []}]}":           "at '/egress/allow/0/ports': minItems: got 0, want 1",
		"egress: {allow: [{domain: a.example, ports: [443, https]}]}": "at '/egress/allow/0/ports/1': got string, want integer",
		"egress: {allow: [{domain: a.example, private: 10.0.0.0/8}]}": "at '/egress/allow/0/private': got string, want boolean or array",
		"egress: {allow: [{domain: a.example, private: [10.0.0.1]}]}": "at '/egress/allow/0/private/0': '10.0.0.1' does not match pattern",
		"host_services: [8081]":                                       "at '/host_services/0': got number, want object",
		"image: {packages: [git-]}":                                   "at '/image/packages/0': 'git-' does not match pattern",
		"mode: demon":                                                 "at '/mode': value must be one of 'run', 'daemon'",
		"mounts: {rw: ~/x}":                                           "at '/mounts/rw': got string, want array",
		"profile_options: {shell: {command: sh}}":                     "at '/profile_options/shell/command': got string, want array",
		"resources: {memory: 8}":                                      "at '/resources/memory': got number, want string",
	} {
		err := s.Validate(asJSON(t, fmt.Appendf(nil, "profile: hermes\n%s\n", src)))
		if err == nil {
			t.Errorf("%s: not marked", src)
			continue
		}
		marks := regexp.MustCompile(`(?m)^\s*- (.*)$`).FindAllStringSubmatch(err.Error(), -1)
		if len(marks) != 1 || !strings.HasPrefix(marks[0][1], want) {
			t.Errorf("%s: %v, want %s", src, err, want)
		}
	}
}
