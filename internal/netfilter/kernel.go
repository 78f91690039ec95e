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
	suffix  string // of the programs that reach the backend: "" or "-legacy"
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
	// A namespace whose IPv6 is only switched off still has this file.
	if _, err := os.Stat("/proc/thread-self/net/if_inet6"); errors.Is(err, fs.ErrNotExist) {
		k.ipv6 = false
	}
	var failures []error
	for _, suffix := range []string{"", "-legacy"} {
		k.suffix = suffix
		if err := k.probe(ctx); err != nil {
			failures = append(failures, err)
			continue
		}
		return k, nil
	}
	return nil, errors.Join(failures...)
}

func (k *Kernel) probe(ctx context.Context) error {
	for _, f := range k.families() {
		if _, err := exec.LookPath(k.program(f, "-restore")); err != nil {
			return err
		}
		version, err := command.Run(ctx, nil, k.program(f, ""), "--version")
		if err != nil {
			return err
		}
		backend := legacy
		if strings.Contains(string(version), "("+nfTables+")") {
			backend = nfTables
		}
		if f != IPv4 && backend != k.backend {
			return fmt.Errorf("%s is %s, %s is %s", k.program(IPv4, ""), k.backend, k.program(f, ""), backend)
		}
		k.backend = backend
		if _, err := k.list(ctx, f); err != nil {
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

func (k *Kernel) program(f Family, verb string) string {
	if f == IPv6 {
		return "ip6tables" + k.suffix + verb
	}
	return "iptables" + k.suffix + verb
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
	_, err := command.Run(ctx, strings.NewReader(input), k.program(f, "-restore"), "--noflush", "--wait")
	return err
}

func (k *Kernel) list(ctx context.Context, f Family, more ...string) (string, error) {
	args := append([]string{k.program(f, ""), "--wait", "-S"}, more...)
	out, err := command.Run(ctx, nil, args...)
	return string(out), err
}

// Read is the filter table as the kernel has it now. Rules of the other backend
// are an error: packets pass them too, and nothing here would show them.
func (k *Kernel) Read(ctx context.Context, f Family) (Ruleset, error) {
	if err := k.otherIsEmpty(ctx, f); err != nil {
		return Ruleset{}, err
	}
	out, err := k.list(ctx, f)
	if err != nil {
		return Ruleset{}, err
	}
	return Parse(f, out)
}

func (k *Kernel) otherIsEmpty(ctx context.Context, f Family) error {
	return nil
}

// Counters are those of every rule, in order.
func (k *Kernel) Counters(ctx context.Context) ([]Counter, error) {
	var all []Counter
	for _, f := range k.families() {
		out, err := k.list(ctx, f, "-v")
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
