package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Unusable says why no backend takes the rules that are needed, and what is
// closed nevertheless.
type Unusable struct {
	Backend string   // the one that the rest is about, "" if the programs are missing
	Closed  []Family // whose policies were set to DROP and stay so
	Open    []Family // whose policies could not be
	Lacks   []Lack   // what it cannot do, where rules can be set at all
	Rights  []string // capabilities that this process lacks and needs
	Err     error    // of each backend
}

// Lack is a feature that a backend does not have, by its name in
// spec.TrialFeatures.
type Lack struct {
	Feature string
	Family  Family
	Err     error
}

func (u *Unusable) Error() string {
	var b strings.Builder
	if len(u.Rights) > 0 {
		fmt.Fprintf(&b, "%s %s: ", spec.WithoutRights, strings.Join(u.Rights, " and "))
	}
	if len(u.Lacks) > 0 {
		fmt.Fprintf(&b, "the kernel lacks %s (rules by %s): ", strings.Join(u.features(), ", "), u.Backend)
	}
	b.WriteString(strings.ReplaceAll(u.Err.Error(), "\n", "; "))
	return b.String()
}

func (u *Unusable) Unwrap() error { return u.Err }

// State is what the namespace is like, in words.
func (u *Unusable) State() string {
	switch {
	case len(u.Closed) == 0:
		return "no rules can be set, nothing is closed"
	case len(u.Open) > 0:
		return fmt.Sprintf("no rules can be set for %v, only %v is closed", u.Open[0], u.Closed[0])
	}
	return "not all rules can be set, everything stays closed"
}

// Hint is what to do about it, exactly.
func (u *Unusable) Hint() string {
	var foreign *Foreign
	switch {
	case len(u.Rights) > 0:
		return spec.HintRights
	case errors.As(u.Err, &foreign):
		return "give the gate a network namespace of its own, or take those rules out of it (nsenter --net on the machine that the engine runs on)"
	case len(u.Lacks) > 0:
		return spec.HintLacked(u.features())
	case errors.Is(u.Err, exec.ErrNotFound):
		return spec.HintPrograms
	case strings.HasPrefix(u.Err.Error(), spec.CannotCloseIPv6):
		return spec.HintIPv6
	}
	return spec.HintBackend
}

func (u *Unusable) features() []string {
	var names []string
	for _, l := range u.Lacks {
		if !slices.Contains(names, l.Feature) {
			names = append(names, l.Feature)
		}
	}
	return names
}

// Open finds a backend that takes every kind of rule that a gate needs:
// nf_tables if it does, or else legacy. The policies of a backend are set to
// DROP before anything is tried with it; the trying is done in a chain that
// nothing jumps to and that is removed, as are the sets it refers to. Rules
// that are there stay as they are. Where there is IPv6 at all, both families
// must work.
//
// Rules in other tables or in the other backend are refused, nat's for IPv4
// excepted. A failure is an *Unusable. One backend stays closed then, as far as it could
// be; what was found open and empty in the other one is open again.
func Open(ctx context.Context) (*Kernel, error) {
	ipv6, err := hasIPv6()
	if err != nil {
		return nil, err
	}
	found, err := backends(ctx, ipv6)
	if err != nil {
		return nil, unusable(nil, err)
	}
	var tried []*attempt
	for _, k := range found {
		a := &attempt{Kernel: k}
		tried = append(tried, a)
		a.err = a.run(ctx)
		if a.err == nil {
			k.legacy = legacySuffix(found)
			err := reopen(ctx, tried, a)
			for _, f := range k.families() {
				_, others := k.noOthers(ctx, f)
				err = errors.Join(err, others)
			}
			if err != nil {
				return nil, unusable(tried, err)
			}
			return k, nil
		}
		if ctx.Err() != nil || a.used { // its rules would stay beside those of another
			break
		}
	}
	return nil, unusable(tried, reopen(ctx, tried, closedOf(tried)))
}

// hasIPv6 is false only where the kernel has no IPv6 that could be closed.
func hasIPv6() (bool, error) {
	// What is missing there means something only where the rest is there.
	if _, err := os.Stat("/proc/thread-self/net/dev"); err != nil {
		return false, err
	}
	// A namespace whose IPv6 is only switched off still has this file.
	_, err := os.Stat("/proc/thread-self/net/if_inet6")
	return !errors.Is(err, fs.ErrNotExist), nil
}

// backends are the kinds of programs that there are, those for nf_tables first.
func backends(ctx context.Context, ipv6 bool) ([]*Kernel, error) {
	byBackend := map[string][]*Kernel{}
	known := map[string]bool{}
	for _, suffix := range []string{"", "-nft", "-legacy"} {
		path, err := exec.LookPath(program(IPv4, suffix))
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if known[real] {
				continue
			}
			known[real] = true
		}
		k := &Kernel{ipv6: ipv6, suffix: suffix}
		if k.backend, err = backendOf(ctx, path); err != nil {
			return nil, err
		}
		byBackend[k.backend] = append(byBackend[k.backend], k)
	}
	all := append(byBackend[nfTables], byBackend[legacy]...)
	if len(all) == 0 {
		return nil, fmt.Errorf("iptables missing: %w", exec.ErrNotFound)
	}
	return all, nil
}

// legacySuffix is that of the programs for legacy tables.
func legacySuffix(found []*Kernel) string {
	for _, k := range found {
		if k.backend == legacy {
			return k.suffix
		}
	}
	return "-legacy" // reading such a table will say that they are missing
}

func backendOf(ctx context.Context, program string) (string, error) {
	version, err := command.Run(ctx, nil, program, "--version")
	if err != nil {
		return "", err
	}
	if strings.Contains(string(version), "("+nfTables+")") {
		return nfTables, nil
	}
	return legacy, nil
}

// attempt is one backend being tried.
type attempt struct {
	*Kernel
	used   bool     // it had rules, chains or policies of somebody's
	closed []Family // whose policies are DROP now
	err    error
	lacks  []Lack
}

func (a *attempt) run(ctx context.Context) error {
	var failures []error
	for _, f := range a.families() {
		if err := a.close(ctx, f); err != nil {
			failures = append(failures, err)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	a.lacks = a.lacking(ctx)
	var reasons []error
	for _, l := range a.lacks {
		reasons = append(reasons, l.Err)
	}
	if len(reasons) > 0 {
		return reasons[0]
	}
	return nil
}

// close reads the table and sets its policies to DROP.
func (a *attempt) close(ctx context.Context, f Family) error {
	name := program(f, a.suffix)
	if _, err := exec.LookPath(name + "-restore"); err != nil {
		if f == IPv6 {
			return fmt.Errorf("%s: %s missing and net.ipv6.conf.all.disable_ipv6=%s: %w", spec.CannotCloseIPv6, name, disabledIPv6(), exec.ErrNotFound)
		}
		return fmt.Errorf("%s missing: %w", name+"-restore", exec.ErrNotFound)
	}
	err := a.shut(ctx, f, name)
	if err != nil && f == IPv6 {
		return fmt.Errorf("%s: %w", spec.CannotCloseIPv6, err)
	}
	return err
}

func (a *attempt) shut(ctx context.Context, f Family, name string) error {
	switch backend, err := backendOf(ctx, name); {
	case err != nil:
		return err
	case backend != a.backend:
		return fmt.Errorf("%s is for %s, but for IPv4 it is %s", name, backend, a.backend)
	}
	text, err := list(ctx, name)
	if err != nil {
		return err
	}
	before, err := Parse(f, text)
	a.used = a.used || err != nil || !before.empty()
	if err := a.restore(ctx, f, policies("DROP")); err != nil {
		return err
	}
	a.closed = append(a.closed, f)
	return nil
}

// disabledIPv6 is the kernel's own word, for a message.
func disabledIPv6() string {
	b, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(b))
}

// empty says that a table is as the kernel makes it.
func (r Ruleset) empty() bool {
	return !slices.ContainsFunc(r.Chains, func(c Chain) bool { return c.Policy != "ACCEPT" || len(c.Rules) > 0 })
}

// closedOf is the first attempt that closed all families, or else the one that
// closed most of them.
func closedOf(tried []*attempt) *attempt {
	var best *attempt
	for _, a := range tried {
		if best == nil || len(a.closed) > len(best.closed) {
			best = a
		}
	}
	return best
}

// undoTimeout is for what must be done although the context has ended.
const undoTimeout = 5 * time.Second

// reopen puts policies of all attempts but one back to ACCEPT, where that is
// what they were and there was nothing else. The one must be closed.
func reopen(ctx context.Context, tried []*attempt, but *attempt) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var failures []error
	for _, a := range tried {
		if a == but || a.used {
			continue
		}
		for _, f := range a.closed {
			if slices.Contains(but.closed, f) {
				failures = append(failures, a.restore(ctx, f, policies("ACCEPT")))
			}
		}
	}
	return errors.Join(failures...)
}

// unusable joins what became of each attempt.
func unusable(tried []*attempt, err error) *Unusable {
	u := &Unusable{Rights: missingRights()}
	var failures []error
	for _, a := range tried {
		if a.err == nil {
			continue
		}
		if len(failures) == 0 {
			u.Backend = a.backend
		}
		// What can be set by one backend at least is more to the point.
		if len(u.Lacks) == 0 && len(a.lacks) > 0 {
			u.Backend, u.Lacks = a.backend, a.lacks
			failures = slices.Insert(failures, 0, a.err)
		} else {
			failures = append(failures, a.err)
		}
	}
	if a := closedOf(tried); a != nil {
		u.Closed, u.Open = a.closed, subtract(a.families(), a.closed)
	}
	u.Err = errors.Join(append(failures, err)...)
	return u
}

// neededRights are for rules, and for the socket by which the programs ask for
// sets and for legacy tables.
var neededRights = []struct {
	bit  uint
	name string
}{{unix.CAP_NET_ADMIN, "NET_ADMIN"}, {unix.CAP_NET_RAW, "NET_RAW"}}

func missingRights() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil // a message less
	}
	var names []string
	for _, r := range neededRights {
		if data[0].Effective&(1<<r.bit) == 0 {
			names = append(names, r.name)
		}
	}
	return names
}
