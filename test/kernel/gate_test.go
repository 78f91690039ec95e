package kernel

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

// gateRules are those of a gate for a kind of document, as internal/gate has
// proven them to be, by the kind's name there.
func gateRules(t *testing.T, shape string) []netfilter.Ruleset {
	t.Helper()
	text := string(must(os.ReadFile("../../internal/gate/testdata/rules.txt")))
	var all []netfilter.Ruleset
	for _, f := range []netfilter.Family{netfilter.IPv4, netfilter.IPv6} {
		_, rest, found := strings.Cut("\n"+text, "\n# "+shape+", "+f.String()+"\n")
		if !found {
			t.Fatalf("no rules for %q", shape)
		}
		rules, _, _ := strings.Cut(rest, "\n# ")
		all = append(all, must(netfilter.Parse(f, rules)))
	}
	return all
}

// The sets that a gate's rules refer to.
const gatePins, gatePinsAny = "corral-pins", "corral-pins-any"

// fenceIn puts a gate's rules in place, with some destinations pinned.
func (n namespace) fenceIn(t *testing.T, rules []netfilter.Ruleset, pins ...netfilter.Entry) *netfilter.Kernel {
	t.Helper()
	k := n.open(t)
	n.applySets(t, k, netfilter.Set{Name: gatePins, Entries: pins}, netfilter.Set{Name: gatePinsAny, AnyPort: true})
	n.apply(t, k, rules...)
	return k
}

var update = flag.Bool("update", false, "write testdata and docs/firewall.md anew")

// shapes are kinds of documents, by their names in the gate's own tests, and
// where what the kernel makes of their rules is kept.
var shapes = []struct{ name, file string }{
	{"resolving", "resolving"},
	{"serving", "pinned"},
	{"refreshing", "refreshing"},
	{"class none with links, serving", "none"},
	{"class public, serving", "public"},
}

// What the kernel gives back of a gate's rules, the same from each backend. The
// golden files are as iptables-save prints them, less what is different each
// time.
func TestGateRulesInTheKernel(t *testing.T) { backends(t, gateRulesInTheKernel) }

func gateRulesInTheKernel(t *testing.T) {
	for _, s := range shapes {
		n := newNamespace(t)
		k := n.fenceIn(t, gateRules(t, s.name))
		var got strings.Builder
		for _, want := range gateRules(t, s.name) {
			if d := netfilter.Diff(want, n.read(t, k, want.Family)); len(d) > 0 {
				t.Errorf("%s: %v", s.name, d)
			}
			program := "iptables-save"
			if want.Family == netfilter.IPv6 {
				program = "ip6tables-save"
			}
			for line := range strings.Lines(n.run(t, program+" -t filter")) {
				if !strings.HasPrefix(line, "#") { // the time, the version, other tables
					got.WriteString(counted.ReplaceAllString(line, ""))
				}
			}
		}
		kept(t, "testdata/"+s.file+".save", got.String())
	}
}

var counted = regexp.MustCompile(` \[\d+:\d+\]`)

func kept(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		check(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got {
		t.Errorf("%s is not what there is now (run with -update to accept): %v\n%s", file, err, got)
	}
}

// docs/firewall.md has every rule with its reason, and every feature of a
// kernel with what to do where it is missing.
func TestDocumentedFirewall(t *testing.T) {
	const file = "../../docs/firewall.md"
	text := string(must(os.ReadFile(file)))
	for name, made := range map[string]string{
		"pinned": documentRules(t, "serving", ""), "links": documentRules(t, "class none with links, serving", "serving"),
		"public": documentRules(t, "class public, serving", "serving"), "lookups": documentRules(t, "refreshing", "serving"),
		"features": documentFeatures(),
	} {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end: "+name+" -->"
		before, rest, found := strings.Cut(text, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no place for %s", file, name)
		}
		text = before + begin + "\n" + made + "\n" + end + after
	}
	kept(t, file, text)
}

// documentRules is a table for each chain that packets of a document meet, less
// the chains that another document has in the same words.
func documentRules(t *testing.T, shape, known string) string {
	var other []netfilter.Ruleset
	if known != "" {
		other = gateRules(t, known)
	}
	var b strings.Builder
	for i, r := range gateRules(t, shape) {
		for _, c := range r.Chains {
			if other != nil && slices.ContainsFunc(other[i].Chains, func(o netfilter.Chain) bool { return reflect.DeepEqual(o, c) }) {
				continue
			}
			fmt.Fprintf(&b, "**%s, %s**", r.Family, c.Name)
			if c.Policy != "" {
				fmt.Fprintf(&b, ", policy %s", c.Policy)
			}
			b.WriteString("\n\n")
			if len(c.Rules) == 0 {
				b.WriteString("(no rules)\n\n")
				continue
			}
			b.WriteString("| rule | packets | what becomes of them | why |\n|---|---|---|---|\n")
			for _, rule := range c.Rules {
				match := "all"
				if rule.Match != "" {
					match = "`" + rule.Match + "`"
				}
				fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", rule.ID, match, rule.Target, strings.ReplaceAll(rule.Reason, "|", `\|`))
			}
			b.WriteString("\n")
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func documentFeatures() string {
	var b strings.Builder
	b.WriteString("| feature | modules | kernel options |\n|---|---|---|\n")
	for _, f := range spec.TrialFeatures {
		if len(f.Modules)+len(f.Options) > 0 {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, strings.Join(f.Modules, ", "), strings.Join(f.Options, ", "))
		}
	}
	return b.String()
}
