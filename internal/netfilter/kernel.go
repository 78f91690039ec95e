package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/command"
)

// Kernel is the filter table of the network namespace that the calling thread
// is in.
type Kernel struct {
	backend string
	ipv6    bool
	suffix  string // of the programs that reach the backend
	legacy  string // of those for legacy tables
	spares  bool   // it destroys no sockets
	made    made
}

// The two kinds of rules a kernel can hold. They are separate: the programs of
// one do not see the rules of the other, and packets pass both.
const (
	nfTables = "nf_tables"
	legacy   = "legacy"
)

func (k *Kernel) families() []Family {
	if k.ipv6 {
		return []Family{IPv4, IPv6}
	}
	return []Family{IPv4}
}

func program(f Family, suffix string) string {
	if f == IPv6 {
		return "ip6tables" + suffix
	}
	return "iptables" + suffix
}

// Backend is "nf_tables" or "legacy".
func (k *Kernel) Backend() string { return k.backend }

// HasIPv6 is false only where the namespace has no IPv6 that could be closed.
func (k *Kernel) HasIPv6() bool { return k.ipv6 }

// Close sets the policies of both families to DROP and touches nothing else:
// what the rules already there accept still passes. Apply(Closed(…)) shuts that
// as well. If one family fails the other is closed nevertheless.
func (k *Kernel) Close(ctx context.Context) error {
	var failures []error
	for _, f := range k.families() {
		failures = append(failures, k.restore(ctx, f, policies("DROP")))
	}
	return errors.Join(failures...)
}

// policies is the text that sets them and changes nothing else.
func policies(to string) string {
	return fmt.Sprintf("*filter\n:INPUT %[1]s [0:0]\n:FORWARD %[1]s [0:0]\n:OUTPUT %[1]s [0:0]\nCOMMIT\n", to)
}

// Apply puts each ruleset in place, in one transaction a family. Chains that
// the ruleset does not name are left alone. Rulesets of a family that the
// namespace does not have are an error.
func (k *Kernel) Apply(ctx context.Context, rulesets ...Ruleset) error {
	for _, r := range rulesets {
		if !slices.Contains(k.families(), r.Family) {
			return fmt.Errorf("rules for %s, which this namespace does not have", r.Family)
		}
		if err := k.write(ctx, r.Family, r.Encode(), r.withBuiltins().Chains); err != nil {
			return err
		}
	}
	return nil
}

// write puts chains in place, and remembers what the kernel made of them.
func (k *Kernel) write(ctx context.Context, f Family, input string, chains []Chain) error {
	if err := k.restore(ctx, f, input); err != nil {
		return err
	}
	return k.note(f, chains)
}

func (k *Kernel) restore(ctx context.Context, f Family, input string) error {
	_, err := command.Run(ctx, strings.NewReader(input), program(f, k.suffix)+"-restore", "--noflush", "--wait")
	return err
}

func list(ctx context.Context, program string, more ...string) (string, error) {
	out, err := command.Run(ctx, nil, append([]string{program, "--wait", "-S"}, more...)...)
	return string(out), err
}

// Read is the filter table as the kernel has it now. Rules of other tables and
// of the other backend are an error, nat's for IPv4 excepted: packets pass them
// too, and nothing here would show them. So is a rule that does more than is
// printed of it.
func (k *Kernel) Read(ctx context.Context, f Family) (Ruleset, error) {
	own, err := k.noOthers(ctx, f)
	if err != nil {
		return Ruleset{}, err
	}
	out, err := list(ctx, program(f, k.suffix))
	if err != nil {
		return Ruleset{}, err
	}
	r, err := Parse(f, out)
	if err == nil && own != nil {
		err = errors.Join(own.printed(r), k.made.compare(own, r))
	}
	return r, err
}

// Counters are those of every rule, in order.
func (k *Kernel) Counters(ctx context.Context) ([]Counter, error) {
	var all []Counter
	for _, f := range k.families() {
		out, err := list(ctx, program(f, k.suffix), "-v")
		if err != nil {
			return nil, err
		}
		_, counters, err := parse(f, out)
		if err != nil {
			return nil, err
		}
		all = append(all, counters...)
	}
	return all, nil
}
