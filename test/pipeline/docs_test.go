package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/wayback"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// settingsPage shows settings of the machine, no policy.
const settingsPage = "../../docs/machine.md"

// Every policy that a document shows is one that corral accepts.
func TestDocumentedPolicies(t *testing.T) {
	found := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../profiles/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file == settingsPage {
				continue
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range yamlBlock.FindAllSubmatch(b, -1) {
				found++
				if _, err := policy.Parse(filepath.Base(file), m[1]); err != nil {
					t.Errorf("%s shows a policy that is refused:\n%v", file, err)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no policy is documented")
	}
}

// The settings file that is shown decodes and has every key, with the default
// probes, and the page names each key's variable.
func TestDocumentedSettings(t *testing.T) {
	b, err := os.ReadFile(settingsPage)
	if err != nil {
		t.Fatal(err)
	}
	blocks := yamlBlock.FindAllSubmatch(b, -1)
	if len(blocks) != 1 {
		t.Fatalf("%d settings files are shown", len(blocks))
	}
	s, _, err := policy.ParseSettings("config.yaml", blocks[0][1], "/home/dev")
	if err != nil {
		t.Fatalf("the settings file that is shown is refused:\n%v", err)
	}
	if s.Probes != spec.DefaultProbes() {
		t.Errorf("the probes that are shown are not the default: %v", s.Probes)
	}
	every := host.Settings{Subnet: plan.DefaultSubnet, Resolvers: s.Resolvers, CABundle: "/x", DetachKeys: "ctrl-]", Probes: spec.DefaultProbes()}.Keys()
	if shown := s.Keys(); !slices.Equal(shown, every) {
		t.Errorf("shown are %v, there is %v", shown, every)
	}
	if _, err := plan.Divide(s.Subnet); err != nil {
		t.Error(err)
	}
	for _, key := range every {
		row := fmt.Sprintf("| `%s` | `%s", strings.Split(key, ".")[0], host.Variable(key))
		if !strings.Contains(string(b), row) {
			t.Errorf("no row %s", row)
		}
	}
}

// generated replaces what stands between the marks of that name in a document.
func generated(t *testing.T, file, name string, text string) {
	t.Helper()
	file = filepath.Join("../..", file)
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
	before, rest, found := strings.Cut(string(old), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for %s", file, name)
	}
	now := before + begin + text + end + after
	if now == string(old) {
		return
	}
	if !*update {
		t.Errorf("%s is not what it is made from (run with -update to accept)", file)
		return
	}
	if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}

// property is what of a JSON Schema is told to people.
type property struct {
	Description string          `json:"description"`
	Default     json.RawMessage `json:"default"`
	Properties  ordered         `json:"properties"`
	Items       *property       `json:"items"`
	AnyOf       []property      `json:"anyOf"`
}

// ordered keeps properties in the order of the file.
type ordered []struct {
	key string
	property
}

func (o *ordered) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var p property
		if err := dec.Decode(&p); err != nil {
			return err
		}
		*o = append(*o, struct {
			key string
			property
		}{key.(string), p})
	}
	return nil
}

func (p property) rows(path string, b *strings.Builder) {
	if path != "" && p.Description != "" {
		fallback := ""
		if p.Default != nil {
			fallback = "`" + string(p.Default) + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", path, strings.ReplaceAll(p.Description, "|", `\|`), fallback)
	}
	for _, c := range p.Properties {
		c.rows(strings.TrimPrefix(path+"."+c.key, "."), b)
	}
	if p.Items != nil {
		p.Items.entries(path+"[]", b)
	}
}

// entries are the keys of a list's entries; what an entry is, the list says.
func (p property) entries(path string, b *strings.Builder) {
	for _, c := range p.Properties {
		c.rows(path+"."+c.key, b)
	}
	for _, one := range p.AnyOf {
		one.entries(path, b)
	}
}

func TestDocumentedKeys(t *testing.T) {
	var schema property
	if err := json.Unmarshal(policy.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("\n| key | what it says | default |\n|---|---|---|\n")
	schema.rows("", &b)
	b.WriteString("\n")
	if n := strings.Count(b.String(), "\n"); n < 30 {
		t.Fatalf("%d keys of the schema were understood", n)
	}
	generated(t, "docs/policy.md", "keys", b.String())
}

func TestDocumentedWatch(t *testing.T) {
	var b strings.Builder
	group := ""
	for _, e := range wayback.Table() {
		if e.Group != group {
			group = e.Group
			fmt.Fprintf(&b, "\n| %s | why |\n|---|---|\n", group)
		}
		value := ""
		if e.Value != "" {
			value = " " + e.Value
		}
		fmt.Fprintf(&b, "| `%s`%s | %s |\n", e.Pattern, value, strings.ReplaceAll(e.Reason, "|", `\|`))
	}
	b.WriteString("\n")
	generated(t, "docs/way-back.md", "watched", b.String())
}
