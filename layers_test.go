package corral_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/corral-sandbox/corral/"

// The blocks of internal, each in its own order: a package may import those
// that stand before it.
var blocks = map[string][]string{
	"shared": {"spec", "report"},
	"host":   {"diag", "policy", "profile", "plan", "render", "engine", "cli"},
	"inside": {"gate", "fetch", "bridge", "verify"},
	"leaf":   {"exit", "command", "domain", "spelling", "netguard", "resolve", "netfilter", "mountinfo", "mountinfo/mountinfotest", "printable", "host", "state", "secret", "wayback", "daemon", "relay", "testenv"},
}

// layers is who may not import whom. Paths are without the module's prefix.
var layers = []struct {
	reason string
	broken func(from, to string) bool
}{
	{"every package has its place in the table, or nothing holds it", func(from, to string) bool {
		return block(from) == "internal" || block(to) == "internal"
	}},
	{"the host believes nothing that the inside links, and the inside carries nothing that knows policies, engines or YAML: only spec crosses the wall", func(from, to string) bool {
		return block(from) == "host" && block(to) == "inside" || block(from) == "inside" && block(to) == "host"
	}},
	{"data flows one way, so each step can be read without the later ones", func(from, to string) bool {
		return block(from) == block(to) && slices.Contains([]string{"shared", "host", "inside"}, block(from)) && rank(from) < rank(to)
	}},
	{"the shared words are data: they know neither side", func(from, to string) bool {
		return block(from) == "shared" && (block(to) == "host" || block(to) == "inside")
	}},
	{"a leaf does one thing for anybody, so it knows nobody", func(from, to string) bool {
		return block(from) == "leaf" && ours(to) && block(to) != "leaf" && to != "internal/spec"
	}},
	{"a main hands over and does nothing else", func(from, to string) bool {
		if block(from) != "cmd" || !ours(to) || to == "internal/exit" {
			return false
		}
		name := strings.TrimPrefix(path.Base(from), "corral-")
		if name == "corral" {
			name = "cli"
		}
		return to != "internal/"+name
	}},
	{"no binary carries what only tests need", func(from, to string) bool {
		only := []string{"internal/testenv", "internal/mountinfo/mountinfotest"}
		return (block(to) == "test" || slices.Contains(only, to)) && block(from) != "test" && !slices.Contains(only, from)
	}},
	{"what is embedded has one way in", func(from, to string) bool {
		return to == "profiles" && from != "internal/profile" || to == "deploy" && from != "internal/engine" && from != "internal/render"
	}},
	{"only one package can make a container, so one package has to be read to know what is asked of the engine", func(from, to string) bool {
		return under(to, "github.com/docker/docker") && from != "internal/engine"
	}},
	{"rules are a value, applied in one place", func(from, to string) bool {
		return under(to, "github.com/coreos/go-iptables") && from != "internal/netfilter"
	}},
	{"what a person wrote is read in one place, with its position; a compose file and what governs a harness are written in one place each; nothing inside the wall parses YAML", func(from, to string) bool {
		return regexp.MustCompile(`(^|/)(go-)?yaml([./]|$)`).MatchString(to) && !slices.Contains([]string{"internal/policy", "internal/profile", "internal/plan", "internal/render"}, from)
	}},
	{"pages of strangers are read in one place, in a process that holds nothing: no other binary links what parses them", func(from, to string) bool {
		return from != "internal/fetch" && slices.ContainsFunc([]string{"codeberg.org/readeck", "github.com/JohannesKaufmann", "golang.org/x/net/html"}, func(tree string) bool { return under(to, tree) })
	}},
	{"corral-fetch asks for pages and runs nothing: what may be talked into anything has no program, no rule and no secret at hand", func(from, to string) bool {
		return from == "internal/fetch" && (to == "os/exec" || slices.Contains([]string{"internal/command", "internal/netfilter", "internal/secret", "internal/gate", "internal/state", "internal/host"}, to))
	}},
	{"who speaks to an agent's model by MCP is the bridge, which believes neither side", func(from, to string) bool {
		return under(to, "github.com/modelcontextprotocol") && from != "internal/bridge"
	}},
	{"flags and help are the command line's", func(from, to string) bool {
		return under(to, "github.com/spf13/cobra") && from != "internal/cli"
	}},
}

func ours(p string) bool { return block(p) != "" }

func under(p, tree string) bool { return p == tree || strings.HasPrefix(p, tree+"/") }

// block is where a package stands: a block of internal, "internal" if it is in
// none, the top folder for the rest of the module, empty for others'.
func block(p string) string {
	top, rest, _ := strings.Cut(p, "/")
	switch top {
	case "internal":
		for name, members := range blocks {
			if slices.Contains(members, rest) {
				return name
			}
		}
		return top
	case "cmd", "test", "profiles", "deploy":
		return top
	}
	return ""
}

func rank(p string) int { return slices.Index(blocks[block(p)], path.Base(p)) }

// violations says which of a package's imports break a rule, and why it is one.
func violations(from string, imports []string) []string {
	var all []string
	for _, to := range imports {
		for _, l := range layers {
			if l.broken(from, to) {
				all = append(all, fmt.Sprintf("%s imports %s: %s", from, to, l.reason))
			}
		}
	}
	return all
}

func TestLayers(t *testing.T) {
	for _, line := range goList(t, `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		words := strings.Fields(strings.ReplaceAll(line, module, ""))
		for _, v := range violations(words[0], words[1:]) {
			t.Error(v)
		}
	}
}

// TestLayersNotice breaks each rule on paper.
func TestLayersNotice(t *testing.T) {
	noticed := map[string]bool{}
	for _, tt := range []struct {
		from, to string
		bad      bool
	}{
		{"internal/cli", "internal/gate", true},
		{"internal/gate", "internal/policy", true},
		{"internal/verify", "internal/plan", true},
		{"internal/verify", "internal/spec", false},
		{"internal/policy", "internal/plan", true},
		{"internal/plan", "internal/policy", false},
		{"internal/spec", "internal/report", true},
		{"internal/report", "internal/engine", true},
		{"internal/report", "internal/spec", false},
		{"internal/netfilter", "internal/report", true},
		{"internal/netfilter", "internal/command", false},
		{"internal/host", "internal/spec", false},
		{"internal/util", "fmt", true},
		{"internal/cli", "internal/helpers", true},
		{"cmd/corral", "internal/cli", false},
		{"cmd/corral", "internal/gate", true},
		{"cmd/corral-gate", "internal/gate", false},
		{"cmd/corral-gate", "internal/exit", false},
		{"cmd/corral-verify", "internal/report", true},
		{"internal/gate", "internal/testenv", true},
		{"internal/engine", "test/lab", true},
		{"test/engine", "test/lab", false},
		{"internal/cli", "profiles", true},
		{"internal/profile", "profiles", false},
		{"internal/cli", "deploy", true},
		{"internal/cli", "github.com/docker/docker/client", true},
		{"internal/gate", "github.com/docker/docker/api/types", true},
		{"internal/engine", "github.com/docker/docker/client", false},
		{"internal/gate", "github.com/coreos/go-iptables/iptables", true},
		{"internal/netfilter", "github.com/coreos/go-iptables/iptables", false},
		{"internal/cli", "go.yaml.in/yaml/v4", true},
		{"internal/gate", "gopkg.in/yaml.v3", true},
		{"internal/engine", "github.com/goccy/go-yaml", true},
		{"internal/render", "go.yaml.in/yaml/v4", false},
		{"internal/policy", "go.yaml.in/yaml/v4", false},
		{"internal/gate", "golang.org/x/net/html", true},
		{"internal/verify", "codeberg.org/readeck/go-readability/v2", true},
		{"internal/gate", "golang.org/x/net/dns/dnsmessage", false},
		{"internal/fetch", "golang.org/x/net/html/charset", false},
		{"internal/fetch", "internal/netguard", false},
		{"internal/fetch", "internal/command", true},
		{"internal/fetch", "os/exec", true},
		{"internal/fetch", "internal/policy", true},
		{"cmd/corral-fetch", "internal/fetch", false},
		{"cmd/corral-fetch", "internal/gate", true},
		{"internal/gate", "github.com/modelcontextprotocol/go-sdk/mcp", true},
		{"internal/bridge", "github.com/modelcontextprotocol/go-sdk/mcp", false},
		{"internal/bridge", "golang.org/x/net/html", true},
		{"internal/bridge", "internal/plan", true},
		{"cmd/corral-bridge", "internal/bridge", false},
		{"cmd/corral-bridge", "internal/spec", true},
		{"internal/gate", "github.com/spf13/cobra", true},
		{"internal/cli", "github.com/spf13/cobra", false},
	} {
		got := violations(tt.from, []string{tt.to})
		if (len(got) > 0) != tt.bad {
			t.Errorf("%s imports %s: %q, want a complaint: %v", tt.from, tt.to, got, tt.bad)
		}
		for _, v := range got {
			_, reason, _ := strings.Cut(v, ": ")
			noticed[reason] = true
		}
	}
	for _, l := range layers {
		if !noticed[l.reason] {
			t.Errorf("no case breaks the rule %q", l.reason)
		}
	}
}

// verifyLinks is all that the checker, which runs beside the agent, may be
// made of.
var verifyLinks = regexp.MustCompile(`^(` + module + `(cmd/corral-verify|internal/(verify|spec|report|exit|command|state|mountinfo|netguard|printable))|golang\.org/x/(sys|net/dns)/.*)$`)

func TestVerifyLinksLittle(t *testing.T) {
	for _, p := range goList(t, `{{if not .Standard}}{{.ImportPath}}{{end}}`, "-deps", "./cmd/corral-verify") {
		if !verifyLinks.MatchString(p) {
			t.Errorf("corral-verify links %s: the standard library and our own leaves only", p)
		}
	}
}

// TestOnlyNetfilterRunsIptables looks for the programs' names as they would be
// passed to exec.
func TestOnlyNetfilterRunsIptables(t *testing.T) {
	program := regexp.MustCompile(`^(/usr/s?bin/|/s?bin/)?(ip6?tables(-(save|restore|nft|legacy)(-save|-restore)?)?|xtables-(nft|legacy)-multi|nft|ipset)$`)
	others := []string{"internal/netfilter/", "internal/testenv/", "test/"} // the prisoner tries them all
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
			slices.ContainsFunc(others, func(dir string) bool { return strings.HasPrefix(name, dir) }) {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil && program.MatchString(s) {
					t.Errorf("%v: %q: only internal/netfilter runs it", fset.Position(lit.Pos()), s)
				}
			}
			return true
		})
	}
}

func goList(t *testing.T, format string, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-f", format}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}
