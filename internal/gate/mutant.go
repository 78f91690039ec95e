//go:build failpoints

package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/netfilter"
)

// mutantVariable names a file that holds the ID of a mutant, empty for none. A
// refresh then looks nothing up: it puts that mutant of the rules and sets in force,
// which from then on are what the watchdog and the read-back go by. The IDs that
// there are stand in the file of that name with ".all" behind, an ID, what it is, and
// the rule with all that it leads to, or the set, on each line.
const mutantVariable = "CORRAL_GATE_MUTANT"

// mutant is what a gate would have in force if one thing in its rules were otherwise.
type mutant struct {
	id, what, about string
	rules           []netfilter.Ruleset
	sets            []netfilter.Set
}

// mutate puts in force what the mutant file says. It is false where there is none.
func (g *gate) mutate(ctx context.Context) (bool, error) {
	file := os.Getenv(mutantVariable)
	if file == "" {
		return false, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return true, err
	}
	is := mutant{rules: g.families(g.spec, serving), sets: sets(g.pins)}
	all := mutants(is.rules, is.sets, netfilter.Entry{Addr: g.spec.Probes.Unlisted, Port: httpsPort})
	var list strings.Builder
	for _, m := range all {
		fmt.Fprintf(&list, "%s\t%s\t%s\n", m.id, m.what, m.about)
	}
	if err := os.WriteFile(file+".all", []byte(list.String()), 0o644); err != nil {
		return true, err
	}
	if id := strings.TrimSpace(string(b)); id != "" {
		i := slices.IndexFunc(all, func(m mutant) bool { return m.id == id })
		if i < 0 {
			return true, fmt.Errorf("no mutant is called %q", id)
		}
		is = all[i]
	}
	if err := g.become(ctx, is); err != nil {
		return true, err
	}
	if is.id != "" {
		err = g.refusals(ctx)
		g.sayf("mutant %s: self-check: %v", is.id, err)
	}
	return true, nil
}

func (g *gate) become(ctx context.Context, m mutant) error {
	g.fence.Lock()
	defer g.fence.Unlock()
	if g.closing.Load() {
		return errClosing
	}
	g.edition++
	before := g.applied
	err := errors.Join(g.kernel.ApplySets(ctx, m.sets...), g.kernel.Apply(ctx, m.rules...))
	if err == nil {
		g.applied.rules, g.applied.sets = m.rules, m.sets
		return nil
	}
	return errors.Join(err, g.kernel.ApplySets(ctx, before.sets...), g.kernel.Apply(ctx, before.rules...))
}

// refusals is the self-check but for what is granted.
func (g *gate) refusals(ctx context.Context) error {
	for _, check := range []func(context.Context) (string, error){g.checkUnlisted, g.checkDockerResolver, g.checkNames, g.checkIPv6} {
		if _, err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pardoned keeps a mutant in force that the watchdog would end the gate for.
func (g *gate) pardoned(err error) bool {
	if os.Getenv(mutantVariable) == "" {
		return false
	}
	g.sayf("mutant: watchdog: %v", err)
	return true
}

// mutants are all that differ in one thing: a rule that is missing, that has one of
// its conditions less, that accepts, or that changed places with the next one; a chain
// that accepts what comes to its end; a set with an entry more, or less. Pure.
func mutants(rules []netfilter.Ruleset, sets []netfilter.Set, stranger netfilter.Entry) []mutant {
	var all []mutant
	for f, r := range rules {
		for c, chain := range r.Chains {
			names, about := ruleNames(chain), ""
			add := func(id, what string, change func(*netfilter.Chain)) {
				with := slices.Clone(rules)
				with[f].Chains = slices.Clone(r.Chains)
				with[f].Chains[c].Rules = slices.Clone(chain.Rules)
				change(&with[f].Chains[c])
				all = append(all, mutant{fmt.Sprintf("%s/%s/%s", family(r.Family), chain.Name, id), what, about, with, sets})
			}
			for i, rule := range chain.Rules {
				about = rule.Match + " " + rule.Target
				if to := slices.IndexFunc(r.Chains, func(c netfilter.Chain) bool { return c.Name == rule.Target }); to >= 0 {
					about += fmt.Sprint(r.Chains[to].Rules)
				}
				add(names[i]+"/drop", "the rule is missing", func(c *netfilter.Chain) { c.Rules = slices.Delete(c.Rules, i, i+1) })
				for _, w := range conditions(rule.Match) {
					add(names[i]+"/without-"+w.name, "the rule is without "+w.text, func(c *netfilter.Chain) { c.Rules[i].Match = w.rest })
				}
				if rule.Target != "ACCEPT" {
					add(names[i]+"/accept", "the rule accepts instead of "+rule.Target, func(c *netfilter.Chain) { c.Rules[i].Target = "ACCEPT" })
				}
				if i+1 < len(chain.Rules) && rule.Target != chain.Rules[i+1].Target {
					add(names[i]+"/swap", "the rule comes after "+names[i+1], func(c *netfilter.Chain) { c.Rules[i], c.Rules[i+1] = c.Rules[i+1], c.Rules[i] })
				}
			}
			if last := len(chain.Rules) - 1; last < 0 || chain.Rules[last].Match != "" || chain.Name == "INPUT" {
				add("end/accept", "what comes to the end is accepted", func(c *netfilter.Chain) {
					c.Rules = append(c.Rules, netfilter.Rule{ID: "mutant", Target: "ACCEPT", Reason: "a mutant"})
				})
			}
		}
	}
	for s, set := range sets {
		add := func(id, what string, entries []netfilter.Entry) {
			with := slices.Clone(sets)
			with[s].Entries = entries
			all = append(all, mutant{"set/" + set.Name + "/" + id, what, "", rules, with})
		}
		one := stranger
		if set.AnyPort {
			one.Port = 0
		}
		add("more", "an entry that nobody granted: "+endpoint(one.Addr, one.Port), append(slices.Clone(set.Entries), one))
		for i, e := range set.Entries {
			add(endpoint(e.Addr, e.Port)+"/drop", "the entry is missing", slices.Delete(slices.Clone(set.Entries), i, i+1))
		}
	}
	return all
}

func family(f netfilter.Family) string {
	if f == netfilter.IPv6 {
		return "6"
	}
	return "4"
}

// ruleNames are the rules' IDs, numbered where several have the same.
func ruleNames(c netfilter.Chain) []string {
	count, names := map[string]int{}, make([]string, len(c.Rules))
	for _, r := range c.Rules {
		count[r.ID]++
	}
	seen := map[string]int{}
	for i, r := range c.Rules {
		names[i] = r.ID
		if seen[r.ID]++; count[r.ID] > 1 {
			names[i] += fmt.Sprintf("(%d)", seen[r.ID])
		}
	}
	return names
}

// condition is one of those of a match, and the match without it.
type condition struct{ name, text, rest string }

// conditions takes a match apart. A protocol takes with it what is said of its ports
// and flags; each of those stands alone as well.
func conditions(match string) []condition {
	type part struct {
		name   string
		words  []string
		proto  string // of which it speaks
		module string // that it needs, whole
	}
	var parts []part
	words := strings.Fields(match)
	module, proto, not := "", "", ""
	for i := 0; i < len(words); {
		w := words[i]
		if w == "!" {
			not = "! "
			i++
			continue
		}
		j := i + 1
		for j < len(words) && words[j] != "!" && !strings.HasPrefix(words[j], "-") {
			j++
		}
		text := strings.Join(words[i:j], " ")
		p := part{name: strings.TrimLeft(w, "-"), words: []string{not + text}}
		not = ""
		switch {
		case w == "-p":
			proto, module = words[i+1], ""
		case w == "-m":
			module = words[i+1]
			p.name, p.module = module, module
			if module == proto {
				p.name, p.proto = "", proto
			}
		case strings.HasPrefix(w, "--") && module == proto:
			p.proto = proto
		case strings.HasPrefix(w, "--"): // of the module before it
			last := &parts[len(parts)-1]
			last.words = append(last.words, p.words...)
			i = j
			continue
		}
		parts = append(parts, p)
		i = j
	}
	var all []condition
	for i, p := range parts {
		if p.name == "" {
			continue
		}
		var kept []string
		for k, o := range parts {
			if k == i || p.name == "p" && o.proto != "" {
				continue
			}
			kept = append(kept, strings.Join(o.words, " "))
		}
		all = append(all, condition{p.name, strings.Join(p.words, " "), strings.Join(kept, " ")})
	}
	return all
}
