package netfilter

import (
	"fmt"
	"slices"
)

// Diff says in one line each how got differs from want: policies, chains and
// rules that are missing or that are not ours, and their order. Nothing means
// equal.
func Diff(want, got Ruleset) []string {
	var lines []string
	say := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%s: ", want.Family)+fmt.Sprintf(format, args...))
	}
	if want.Family != got.Family {
		say("compared with %s", got.Family)
		return lines
	}
	want = want.withBuiltins()
	for _, c := range want.Chains {
		i := slices.IndexFunc(got.Chains, func(g Chain) bool { return g.Name == c.Name })
		if i < 0 {
			say("chain %s is missing", c.Name)
			continue
		}
		g := got.Chains[i]
		if g.Policy != c.Policy {
			say("chain %s: policy %q instead of %q", c.Name, g.Policy, c.Policy)
		}
		wantRules, gotRules := texts(c.Rules), texts(g.Rules)
		missing, extra := subtract(wantRules, gotRules), subtract(gotRules, wantRules)
		for _, r := range missing {
			say("chain %s: missing rule: %s", c.Name, r)
		}
		for _, r := range extra {
			say("chain %s: foreign rule: %s", c.Name, r)
		}
		if len(missing)+len(extra) == 0 && !slices.Equal(wantRules, gotRules) {
			for i, r := range wantRules {
				if gotRules[i] != r {
					say("chain %s: order: rule %d is: %s; instead of: %s", c.Name, i+1, gotRules[i], r)
					break
				}
			}
		}
	}
	for _, g := range got.Chains {
		if !slices.ContainsFunc(want.Chains, func(c Chain) bool { return c.Name == g.Name }) {
			say("chain %s is not ours (%d rules)", g.Name, len(g.Rules))
		}
	}
	return lines
}

// DiffSets does for sets what Diff does for rules.
func DiffSets(want, got []Set) []string {
	var lines []string
	for _, w := range want {
		i := slices.IndexFunc(got, func(g Set) bool { return g.Name == w.Name })
		if i < 0 {
			lines = append(lines, fmt.Sprintf("set %s is missing", w.Name))
			continue
		}
		g := got[i]
		if w.AnyPort != g.AnyPort {
			lines = append(lines, fmt.Sprintf("set %s is of type %s instead of %s", w.Name, g.kind(), w.kind()))
			continue
		}
		wantEntries, gotEntries := w.sorted(), g.sorted()
		for _, e := range subtract(wantEntries, gotEntries) {
			lines = append(lines, fmt.Sprintf("set %s: missing entry: %s", w.Name, e))
		}
		for _, e := range subtract(gotEntries, wantEntries) {
			lines = append(lines, fmt.Sprintf("set %s: foreign entry: %s", w.Name, e))
		}
	}
	for _, g := range got {
		if !slices.ContainsFunc(want, func(w Set) bool { return w.Name == g.Name }) {
			lines = append(lines, fmt.Sprintf("set %s is not ours (%d entries)", g.Name, len(g.Entries)))
		}
	}
	return lines
}

func texts(rules []Rule) []string {
	lines := make([]string, len(rules))
	for i, r := range rules {
		lines[i] = r.String()
	}
	return lines
}

// subtract is a without b, each element as often as it occurs, in a's order.
func subtract[E comparable](a, b []E) []E {
	count := map[E]int{}
	for _, e := range b {
		count[e]++
	}
	var rest []E
	for _, e := range a {
		if count[e] > 0 {
			count[e]--
		} else {
			rest = append(rest, e)
		}
	}
	return rest
}
