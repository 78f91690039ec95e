package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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
	other   string // of those that reach the other one, "" if this kernel has none
}

// The two kinds of rules a kernel can hold. They are separate: the programs of
// one do not see the rules of the other, and packets pass both.
const (
	nfTables = "nf_tables"
	legacy   = "legacy"
)

// Open finds the programs and the backend that the kernel supports. Where there
// is IPv6 at all, both families must work.
func Open(ctx context.Context) (*Kernel, error) {
	k := &Kernel{ipv6: true}
	// What is missing there means something only where the rest is there.
	if _, err := os.Stat("/proc/thread-self/net/dev"); err != nil {
		return nil, err
	}
	// A namespace whose IPv6 is only switched off still has this file.
	if _, err := os.Stat("/proc/thread-self/net/if_inet6"); errors.Is(err, fs.ErrNotExist) {
		k.ipv6 = false
	}
	var failures []error
	for _, suffix := range []string{"", "-nft", "-legacy"} {
		k.suffix = suffix
		if err := k.probe(ctx); err != nil {
			failures = append(failures, err)
			continue
		}
		if k.backend == nfTables {
			k.other = "-legacy"
		} else if _, err := list(ctx, "iptables-nft"); err == nil {
			k.other = "-nft"
		}
		return k, nil
	}
	return nil, errors.Join(failures...)
}

func (k *Kernel) probe(ctx context.Context) error {
	for _, f := range k.families() {
		program := program(f, k.suffix)
		if _, err := exec.LookPath(program + "-restore"); err != nil {
			return err
		}
		version, err := command.Run(ctx, nil, program, "--version")
		if err != nil {
			return err
		}
		backend := legacy
		if strings.Contains(string(version), "("+nfTables+")") {
			backend = nfTables
		}
		if f != IPv4 && backend != k.backend {
			return fmt.Errorf("%s is for %s, but for IPv4 it is %s", program, backend, k.backend)
		}
		k.backend = backend
		if _, err := list(ctx, program); err != nil {
			return err
		}
	}
	return nil
}

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
	const policies = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT DROP [0:0]\nCOMMIT\n"
	var failures []error
	for _, f := range k.families() {
		failures = append(failures, k.restore(ctx, f, policies))
	}
	return errors.Join(failures...)
}

// Apply puts each ruleset in place, in one transaction a family. Chains that
// the ruleset does not name are left alone. Rulesets of a family that the
// namespace does not have are an error.
func (k *Kernel) Apply(ctx context.Context, rulesets ...Ruleset) error {
	for _, r := range rulesets {
		if !slices.Contains(k.families(), r.Family) {
			return fmt.Errorf("rules for %s, which this namespace does not have", r.Family)
		}
		if err := k.restore(ctx, r.Family, r.Encode()); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) restore(ctx context.Context, f Family, input string) error {
	_, err := command.Run(ctx, strings.NewReader(input), program(f, k.suffix)+"-restore", "--noflush", "--wait")
	return err
}

func list(ctx context.Context, program string, more ...string) (string, error) {
	out, err := command.Run(ctx, nil, append([]string{program, "--wait", "-S"}, more...)...)
	return string(out), err
}

// Read is the filter table as the kernel has it now. Rules of the other backend
// are an error: packets pass them too, and nothing here would show them.
func (k *Kernel) Read(ctx context.Context, f Family) (Ruleset, error) {
	if err := k.otherIsEmpty(ctx, f); err != nil {
		return Ruleset{}, err
	}
	out, err := list(ctx, program(f, k.suffix))
	if err != nil {
		return Ruleset{}, err
	}
	return Parse(f, out)
}

// Rewriting is the table that can send a packet elsewhere before the filter
// sees it, as text to compare: the engine's own rules are in it, and it is
// never written here.
func (k *Kernel) Rewriting(ctx context.Context) (string, error) {
	return list(ctx, program(IPv4, k.suffix), "-t", "nat")
}

func (k *Kernel) otherIsEmpty(ctx context.Context, f Family) error {
	switch k.other {
	case "":
		return nil
	case "-legacy":
		// Asking the legacy programs would make the table that they look for.
		names, err := os.ReadFile("/proc/thread-self/net/" + map[Family]string{IPv4: "ip_tables_names", IPv6: "ip6_tables_names"}[f])
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !slices.Contains(strings.Fields(string(names)), "filter") {
			return nil
		}
	}
	out, err := list(ctx, program(f, k.other))
	if err != nil {
		return err
	}
	r, err := Parse(f, out)
	if err != nil {
		return err
	}
	for _, c := range r.Chains {
		if c.Policy != "ACCEPT" || len(c.Rules) > 0 {
			return fmt.Errorf("%s has rules beside those of %s: chain %s", program(f, k.other), k.backend, c.Name)
		}
	}
	return nil
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
