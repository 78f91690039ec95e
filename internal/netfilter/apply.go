package netfilter

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// ApplyChains makes each of the chains, which are none of the built-in ones, hold
// exactly its rules, all in one transaction. Every other chain is left alone, the
// counters of its rules included.
func (k *Kernel) ApplyChains(ctx context.Context, f Family, chains ...Chain) error {
	if !slices.Contains(k.families(), f) {
		return fmt.Errorf("rules for %s, which this namespace does not have", f)
	}
	if len(chains) == 0 {
		return nil
	}
	return k.write(ctx, f, encodeChains(f, chains), chains)
}

// encodeChains is Encode for some chains of our own.
func encodeChains(f Family, chains []Chain) string {
	for _, c := range chains {
		if slices.Contains(builtin, c.Name) {
			panic(fmt.Sprintf("netfilter: chain %s is built in: it is replaced with its whole table only", c.Name))
		}
	}
	var lines []string
	for line := range strings.Lines(Ruleset{Family: f, Chains: chains}.Encode()) {
		words := strings.Fields(line)
		name := strings.TrimPrefix(words[min(1, len(words)-1)], ":")
		if strings.HasPrefix(words[0], ":") {
			name = words[0][1:]
		}
		if !slices.Contains(builtin, name) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// Changed are the chains of want that differ from those of have, those of our own
// that only want has among them.
func Changed(have, want Ruleset) []Chain {
	have, want = have.withBuiltins(), want.withBuiltins()
	var changed []Chain
	for _, c := range want.Chains {
		i := slices.IndexFunc(have.Chains, func(h Chain) bool { return h.Name == c.Name })
		if i < 0 || have.Chains[i].Policy != c.Policy || !slices.Equal(have.Chains[i].Rules, c.Rules) {
			changed = append(changed, c)
		}
	}
	return changed
}
