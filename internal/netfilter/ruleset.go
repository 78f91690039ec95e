// Package netfilter holds firewall rules as a value. In go Rulesets and Sets;
// out come the text for iptables-restore, the kernel's own rules read back,
// and the differences between the two. It is the only place that runs
// iptables. It writes the filter table and named IPv4 sets; it never writes
// nat, never appends to rules it did not make, and deletes no chain but the one
// that Open tries rules in.
package netfilter

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Family is an address family.
type Family int

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", int(f))
}

// Rule is one rule. Match and Target are in the words that `iptables -S` of
// iptables 1.8.9 prints, so that they read back equal: addresses with their
// prefix length, --syn spelt out as --tcp-flags FIN,SYN,RST,ACK SYN, icmp types
// as numbers, NFLOG's options in the order prefix, group, size (quoting is evened
// out). Target starts with the word after -j; a rule that has none only counts.
//
// ID and Reason travel as the rule's comment, `ID: Reason`. Encode insists on
// both; a rule read back that somebody else wrote may have neither.
type Rule struct {
	ID     string
	Match  string
	Target string
	Reason string
}

// Chain is a chain and its rules in order. Policy is for the built-in chains
// only; there the empty string means DROP.
type Chain struct {
	Name   string
	Policy string
	Rules  []Rule
}

// Ruleset is the filter table of one family.
type Ruleset struct {
	Family Family
	Chains []Chain
}

// Limits of the kernel's structures, without the final NUL.
const (
	maxComment   = 255
	maxChainName = 28
)

var builtin = []string{"INPUT", "FORWARD", "OUTPUT"}

// Closed is the table that lets nothing pass, established flows included.
func Closed(f Family) Ruleset {
	return Ruleset{Family: f}.withBuiltins()
}

// withBuiltins has the three built-in chains first, whether r names them or
// not, and the others sorted by name.
func (r Ruleset) withBuiltins() Ruleset {
	chains := slices.Clone(r.Chains)
	for _, name := range builtin {
		if i := slices.IndexFunc(chains, func(c Chain) bool { return c.Name == name }); i < 0 {
			chains = append(chains, Chain{Name: name, Policy: "DROP"})
		} else if chains[i].Policy == "" {
			chains[i].Policy = "DROP"
		}
	}
	rank := func(c Chain) int {
		if i := slices.Index(builtin, c.Name); i >= 0 {
			return i
		}
		return len(builtin)
	}
	slices.SortStableFunc(chains, func(a, b Chain) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
	return Ruleset{Family: r.Family, Chains: chains}
}

// Encode is the input for `iptables-restore --noflush` that makes the kernel
// hold exactly r in the built-in chains and in the chains r names, in one
// transaction. It panics on a table that breaks this package's own rules: a
// policy other than DROP, a rule without ID or reason, a comment or name that
// the kernel would cut or refuse.
func (r Ruleset) Encode() string {
	r = r.withBuiltins()
	var b strings.Builder
	b.WriteString("*filter\n")
	for i, c := range r.Chains {
		policy := "-"
		if slices.Contains(builtin, c.Name) {
			policy = "DROP"
		}
		if c.Policy != "" && c.Policy != policy {
			panic(fmt.Sprintf("netfilter: chain %s: policy %q", c.Name, c.Policy))
		}
		if c.Name == "" || len(c.Name) > maxChainName || strings.ContainsAny(c.Name, " \t\n\"") {
			panic(fmt.Sprintf("netfilter: chain name %q", c.Name))
		}
		if i > 0 && c.Name == r.Chains[i-1].Name {
			panic(fmt.Sprintf("netfilter: chain %s is there twice", c.Name))
		}
		fmt.Fprintf(&b, ":%s %s [0:0]\n", c.Name, policy)
	}
	// With --noflush the declaration empties a chain of our own, but not a
	// built-in one.
	for _, name := range builtin {
		fmt.Fprintf(&b, "-F %s\n", name)
	}
	for _, c := range r.Chains {
		for _, rule := range c.Rules {
			rule.check(c.Name)
			fmt.Fprintf(&b, "-A %s %s\n", c.Name, rule)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

func (r Rule) check(chain string) {
	_, err := split(r.Match + " " + r.Target)
	switch comment := r.comment(); {
	case err != nil:
		panic(fmt.Sprintf("netfilter: rule %s: %v", r.ID, err))
	case r.ID == "" || r.Reason == "":
		panic(fmt.Sprintf("netfilter: a rule of %s without ID or reason: %s", chain, r))
	case strings.ContainsAny(r.ID, " :"):
		panic(fmt.Sprintf("netfilter: rule ID %q", r.ID))
	case len(comment) > maxComment:
		panic(fmt.Sprintf("netfilter: rule %s: comment of %d bytes, the kernel holds %d", r.ID, len(comment), maxComment))
	case strings.ContainsFunc(r.String(), func(c rune) bool { return c < ' ' || c == 0x7f }):
		panic(fmt.Sprintf("netfilter: rule %s: control character", r.ID))
	}
}

func (r Rule) comment() string {
	if r.ID == "" {
		return r.Reason
	}
	return r.ID + ": " + r.Reason
}

// String is the rule as `iptables -S` prints it, without -A and the chain.
func (r Rule) String() string {
	var parts []string
	if r.Match != "" {
		parts = append(parts, canonical(r.Match))
	}
	if c := r.comment(); c != "" {
		parts = append(parts, "-m comment --comment "+quote(c))
	}
	if r.Target != "" {
		parts = append(parts, "-j "+canonical(r.Target))
	}
	return strings.Join(parts, " ")
}

// String is the ruleset as `iptables -S` prints it, chains sorted.
func (r Ruleset) String() string {
	r = r.withBuiltins()
	var b strings.Builder
	for _, c := range r.Chains {
		if slices.Contains(builtin, c.Name) {
			fmt.Fprintf(&b, "-P %s %s\n", c.Name, c.Policy)
		} else {
			fmt.Fprintf(&b, "-N %s\n", c.Name)
		}
	}
	for _, c := range r.Chains {
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "-A %s %s\n", c.Name, rule)
		}
	}
	return b.String()
}

// Digest identifies rules and sets, in whatever order chains, families, sets
// and entries are given. The order of rules counts.
func Digest(rs []Ruleset, sets []Set) string {
	h := sha256.New()
	rs = slices.SortedFunc(slices.Values(rs), func(a, b Ruleset) int { return cmp.Compare(a.Family, b.Family) })
	for _, r := range rs {
		fmt.Fprintf(h, "%s\n%s", r.Family, r)
	}
	sets = slices.SortedFunc(slices.Values(sets), func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range sets {
		fmt.Fprintf(h, "%s\n", s)
	}
	return hex.EncodeToString(h.Sum(nil))
}
