package corral_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

var update = flag.Bool("update", false, "write what is made from tables into documents anew")

// mutant is a fault that was made on purpose, and what noticed it.
type mutant struct {
	id, what string
	by       []string // kinds of checks, or one of others
	excuse   string   // "explained: …", "impossible: …", or empty
}

// others are what may notice a mutant beside checks of verify's, with what they are.
var others = map[string]string{
	"self-check":  "is the gate's or the relay's own: it closes, or serves nobody, before anything starts behind it",
	"handover":    "is the service's, before its harness starts",
	"checks":      "is all checks of a section at once: nothing could be proven, and the reason was told",
	"cannot-tell": "is an error: nothing could be proven",
}

// sections are what comes before the kind of a check of corral's own containers.
var sections = []string{"gate:", "relay:"}

// ofSection are a kind and whether it is one of corral's own containers'.
func ofSection(by string) (kind string, own bool) {
	for _, s := range sections {
		if kind, own := strings.CutPrefix(by, s); own {
			return kind, true
		}
	}
	return by, false
}

const (
	ruleMutants      = "test/kernel/testdata/mutants.tsv"
	containerMutants = "test/engine/testdata/mutants.tsv"
	layersAlone      = "test/engine/testdata/layers.tsv"
)

// table reads a file of lines with tabs between their columns; nothing if there is
// no such file.
func table(t *testing.T, file string, columns int) [][]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		row := strings.Split(line, "\t")
		if len(row) != columns {
			t.Fatalf("%s:%d: %d columns, not %d", file, i+1, len(row), columns)
		}
		rows = append(rows, row)
	}
	return rows
}

func mutants(t *testing.T, file string) (all []mutant) {
	t.Helper()
	known := slices.Collect(maps.Keys(others))
	for _, e := range spec.Catalogue {
		known = append(known, e.Kind)
	}
	for _, s := range sections {
		known = append(known, s+"checks")
		for _, e := range spec.OwnCatalogue {
			known = append(known, s+e.Kind)
		}
	}
	unknown := map[string]string{}
	for _, row := range table(t, file, 3) {
		m := mutant{id: row[0], what: row[1]}
		if strings.Contains(row[2], ": ") {
			m.excuse = row[2]
		} else if row[2] != "" && row[2] != "SURVIVED" {
			m.by = strings.Split(row[2], ",")
		}
		for _, kind := range m.by {
			if !slices.Contains(known, kind) {
				unknown[kind] = m.id
			}
		}
		all = append(all, m)
	}
	for kind, id := range unknown {
		t.Errorf("%s: no check is called %s (%s)", file, kind, id)
	}
	return all
}

// document replaces what stands between marks in a file by what it is made of.
func document(t *testing.T, file string, parts map[string]string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for name, made := range parts {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end: "+name+" -->"
		before, rest, found := strings.Cut(text, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no place for %s", file, name)
		}
		text = before + begin + "\n" + strings.TrimRight(made, "\n") + "\n\n" + end + after
	}
	switch {
	case text == string(b):
	case *update:
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what it is made from (go test . -run TestDocumented -update accepts it)", file)
	}
}

// idle are kinds that may find no mutant, with why they are there.
var idle = map[string]string{
	"user-not-the-gates": "asked in stacks of others alone, where corral makes no container that could be a mutant; tests of `corral-verify alone` run it as those users",
	"gate-answers":       "asked in stacks of others alone; without a gate there are no rules to be mutants of",
	"names-sink":         "a gate that sinks names has the rules of one that blocks them, so that their mutants are tried there; tests of the gate's answers show it",
	"resolves":           "asked in stacks of others alone; it compares what two sides say of a name, which no rule and no container decides",
	"image-as-built":     "another image must be there before the engine can be asked for it; a unit test gives the container another one",
	"rules-as-read":      "a gate whose rules are altered closes within seconds; what it says until then, and that it closes, TestTamper shows",
	"namespace-as-made":  "a gate whose namespace is altered closes within seconds; what it says until then tests of the gate show",
	"config-pinned":      "asked of Hermes alone, and the mutants are of a sandbox that runs in seconds; TestHermes takes shadows away and sees it find each",
	"env-shadowed":       "as config-pinned; a unit test takes a shadow's mount, its content and its firmness away",
	"programs-as-built":  "the programs are in the image, which no request to the engine changes; a unit test gives them other bytes",
}

// docs/checks.md has every kind of check, the mutants that it finds, all mutants,
// and what the layers hold alone; README.md has the guarantees.
func TestDocumentedChecks(t *testing.T) {
	rules, containers := mutants(t, ruleMutants), mutants(t, containerMutants)
	all := slices.Concat(rules, containers)
	found, foundOfOwn := map[string][]string{}, map[string][]string{}
	for _, m := range all {
		for _, by := range m.by {
			kind, own := ofSection(by)
			to := found
			if own {
				to = foundOfOwn
			}
			if !slices.Contains(to[kind], m.id) {
				to[kind] = append(to[kind], m.id)
			}
		}
	}
	document(t, "docs/checks.md", map[string]string{
		"services":  documentEntries(spec.Catalogue, found),
		"own":       documentEntries(spec.OwnCatalogue, foundOfOwn),
		"rates":     documentRates([]string{"of the rules", "of the containers"}, rules, containers),
		"explained": documentExcuses(all),
		"finders":   documentFinders(all),
		"mutants":   documentMutants(all),
		"layers":    documentLayers(table(t, layersAlone, 2)),
		"idle":      documentIdle(t, found, foundOfOwn, len(rules) > 0 && len(containers) > 0),
	})
	document(t, "README.md", map[string]string{"guarantees": documentGuarantees(t, all)})
}

func documentEntries(all []spec.Entry, found map[string][]string) string {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "**`%s`** %s\n", e.Kind, e.Proves)
		fmt.Fprintf(&b, "*How:* %s\n*Control:* %s\n", e.How, e.Control)
		fmt.Fprintf(&b, "*Witnesses:* %s", joined(e.Witnesses))
		if e.Only != "" {
			fmt.Fprintf(&b, " alone: %s", e.Only)
		}
		b.WriteString(". *In:* ")
		for i, form := range e.In {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(string(form))
			if slices.Contains(e.Skipped, form) {
				b.WriteString(" (always skipped)")
			}
		}
		b.WriteString(".")
		if ids := found[e.Kind]; len(ids) > 0 {
			const most = 4
			fmt.Fprintf(&b, "\n*Finds:* `%s`", strings.Join(ids[:min(most, len(ids))], "`, `"))
			if more := len(ids) - most; more > 0 {
				fmt.Fprintf(&b, " and %d more", more)
			}
			b.WriteString(".")
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

func joined[T ~string](words []T) string {
	var out []string
	for _, w := range words {
		out = append(out, string(w))
	}
	return strings.Join(out, ", ")
}

// onPaper is the kind whose finding alone says that the rules, read back, would do
// otherwise with a packet that nobody sent.
const onPaper = "rules-as-granted"

func documentRates(names []string, groups ...[]mutant) string {
	var b strings.Builder
	b.WriteString("| mutants | made | found | of them by what was tried | on paper only | explained | impossible | kill rate | by what was tried |\n|---|---|---|---|---|---|---|---|---|\n")
	row := func(name string, all []mutant) {
		var killed, paper, explained, impossible int
		for _, m := range all {
			switch {
			case len(m.by) > 0:
				killed++
				if slices.Equal(m.by, []string{onPaper}) {
					paper++
				}
			case strings.HasPrefix(m.excuse, "explained: "):
				explained++
			case m.excuse != "":
				impossible++
			}
		}
		rate := func(n int) string {
			if must := len(all) - explained - impossible; must > 0 {
				return fmt.Sprintf("%.4g %%", float64(100*n)/float64(must))
			}
			return "none yet"
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %s | %s |\n", name, len(all), killed, killed-paper, paper, explained, impossible, rate(killed), rate(killed-paper))
	}
	for i, g := range groups {
		row(names[i], g)
	}
	row("all", slices.Concat(groups...))
	return b.String()
}

// documentFinders says what the finders are that are no checks, of those that found
// anything.
func documentFinders(all []mutant) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if slices.ContainsFunc(all, func(m mutant) bool {
			return slices.ContainsFunc(m.by, func(by string) bool { kind, _ := ofSection(by); return kind == name })
		}) {
			fmt.Fprintf(&b, "`%s` %s. ", name, others[name])
		}
	}
	if b.Len() == 0 {
		return "Each is found by checks."
	}
	return b.String()
}

func documentExcuses(all []mutant) string {
	var b strings.Builder
	b.WriteString("| mutant | what it is | why |\n|---|---|---|\n")
	for _, m := range all {
		if m.excuse != "" {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.id, cell(m.what), cell(m.excuse))
		}
	}
	return b.String()
}

func documentMutants(all []mutant) string {
	var b strings.Builder
	b.WriteString("| mutant | what it is | found by |\n|---|---|---|\n")
	for _, m := range all {
		if m.excuse != "" {
			continue
		}
		by := "**nobody**"
		if len(m.by) > 0 {
			by = "`" + strings.Join(m.by, "` `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.id, cell(m.what), by)
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func documentLayers(rows [][]string) string {
	var b strings.Builder
	b.WriteString("| weakened by | what gets through |\n|---|---|\n")
	for _, r := range rows {
		through := "nothing"
		if r[1] != "" {
			through = "`" + strings.ReplaceAll(r[1], ",", "` `") + "`"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", cell(r[0]), through)
	}
	return b.String()
}

func documentIdle(t *testing.T, found, foundOfOwn map[string][]string, whole bool) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| check | why it is there |\n|---|---|\n")
	seen := map[string]bool{}
	for _, e := range slices.Concat(spec.Catalogue, spec.OwnCatalogue) {
		if len(found[e.Kind]) > 0 || len(foundOfOwn[e.Kind]) > 0 || seen[e.Kind] {
			continue
		}
		seen[e.Kind] = true
		why := idle[e.Kind]
		switch {
		case why != "":
		case whole:
			t.Errorf("%s finds no mutant: say in idle why it is there, or make one", e.Kind)
		default:
			why = "it is about a container, of which no mutants are in the table yet"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", e.Kind, why)
	}
	for kind := range idle {
		if !slices.ContainsFunc(slices.Concat(spec.Catalogue, spec.OwnCatalogue), func(e spec.Entry) bool { return e.Kind == kind }) {
			t.Errorf("no check is called %s: it is not idle", kind)
		}
	}
	if len(seen) == 0 {
		return "There is none."
	}
	return b.String()
}

// guarantees are what the README promises: the kind that proves each, and a mutant
// that shows it, with what it is in the words of who never saw a rule. Until that
// mutant is in a table there is none.
var guarantees = []struct{ what, kind, mutant, fault string }{
	{"Only the hosts that the policy lists can be reached", "unlisted-host-blocked", "set/corral-pins/more", "an address is open that no listed name has"},
	{"and only on the ports that it lists", "port-not-listed-blocked", "4/corral-public/public-443/without-dport", "what is open on port 443 is open on every port"},
	{"No lookup leaves but through the gate, and only of listed names", "dns-closed", "4/OUTPUT/docker-resolver(1)/accept", "the engine's own resolver, which asks the world, can be asked"},
	{"Names lead only to what the gate pinned", "names-only-pinned", "4/INPUT/loopback/drop", "lookups do not reach the gate"},
	{"No UDP", "udp-closed", "4/OUTPUT/pins-any/without-p", "an address that is open for TCP is open for UDP as well"},
	{"and no IPv6", "ipv6-blocked", "6/OUTPUT/ipv6/accept", "IPv6 is let out"},
	{"A cloud's metadata service is closed", "metadata-blocked", "4/corral-public/special-purpose(6)/accept", "169.254.0.0/16, where that service is, is let through"},
	{"The host is closed, but for declared ports of its loopback", "gateway-closed", "4/OUTPUT/host-port-8001/without-dport", "one declared port opens all ports of the host"},
	{"Other sandboxes are closed", "peer-unreachable", "4/corral-public/special-purpose(7)/accept", "172.16.0.0/12, where the other sandboxes are, is let through"},
	{"The agent has no capability", "no-capabilities", "service/HostConfig.CapAdd/+NET_RAW", "its container is given a capability, to send packets of any form"},
	{"and gains no right by any program", "no-new-privs", "service/HostConfig.SecurityOpt[no-new-privileges]/drop", "programs of its image may make it root"},
	{"Only declared directories are there, read-only ones cannot be written", "ro-unwritable", "service/HostConfig.Mounts[/notes].ReadOnly/off", "a directory that is granted for reading is mounted for writing"},
	{"No credentials of yours are there", "no-credential-dir", "service/HostConfig.Binds/+the-person's-home,-read-only,-somewhere-else", "your home is mounted, for reading, in another place"},
	{"What git of yours would execute cannot be changed", "git-shielded", "service/HostConfig.Mounts[/project/.git/hooks].ReadOnly/off", "the hooks of your repository can be written"},
	{"The agent can neither see the gate nor talk to it", "gate-control-unreachable", "service/HostConfig.PidMode/+its-gate's", "it sees the processes of its gate"},
}

func documentGuarantees(t *testing.T, all []mutant) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| guarantee | check | a fault that it finds |\n|---|---|---|\n")
	for _, g := range guarantees {
		if !slices.ContainsFunc(spec.Catalogue, func(e spec.Entry) bool { return e.Kind == g.kind }) {
			t.Errorf("no check is called %s", g.kind)
		}
		fault := ""
		if i := slices.IndexFunc(all, func(m mutant) bool { return m.id == g.mutant }); i >= 0 {
			fault = g.fault
			if !slices.Contains(all[i].by, g.kind) {
				t.Errorf("%s does not find %s: another mutant shows it better", g.kind, g.mutant)
			}
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", g.what, g.kind, fault)
	}
	return b.String()
}
