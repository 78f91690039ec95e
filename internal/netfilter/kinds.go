package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/corral-sandbox/corral/internal/spec"
)

// trial is the chain in which rules are tried, and the start of the names of
// the sets that they refer to. Nothing jumps to it.
const trial = "corral-trial"

// kind is a match or a target that a gate's rules need. A rule of the kind is
// written and read back; what it says is never met by a packet.
type kind struct {
	feature  string // its name in spec.TrialFeatures
	families []Family
	match    string
	target   map[Family]string // DROP if unset
}

var (
	both   = []Family{IPv4, IPv6}
	onlyV4 = []Family{IPv4}
)

// kinds are all of them, the one that every rule needs first.
var kinds = []kind{
	{spec.TrialComment, both, "", nil},
	{spec.TrialProtocol, both, "-p tcp -m tcp --sport 61000:61099 --tcp-flags FIN,SYN,RST,ACK SYN", nil},
	{spec.TrialProtocol, both, "-p udp -m udp --sport 61000:61099", nil},
	{spec.TrialProtocol, onlyV4, "-p icmp -m icmp --icmp-type 3/4", nil},
	{spec.TrialSetMatch, onlyV4, "-p tcp -m tcp -m set --match-set " + trial + " dst,dst", nil},
	{spec.TrialSetMatch, onlyV4, "-p tcp -m tcp -m set --match-set " + trial + "-any dst", nil},
	{spec.TrialOwner, onlyV4, fmt.Sprintf("-m owner --uid-owner %d", spec.WorkerUID), nil},
	{spec.TrialConntrack, onlyV4, "-m conntrack --ctstate ESTABLISHED", nil},
	{spec.TrialConntrack, onlyV4, "-m conntrack --ctstate RELATED", nil},
	{spec.TrialAddrtype, both, "-o lo -m addrtype --dst-type LOCAL", nil},
	{spec.TrialLimit, both, "-m limit --limit 20/sec --limit-burst 100", nil},
	{spec.TrialHashlimit, both, "-p tcp -m tcp --sport 61000:61099 -m hashlimit --hashlimit-upto 2/sec --hashlimit-burst 10 --hashlimit-mode srcport --hashlimit-name " + trial +
		" --hashlimit-htable-size 128 --hashlimit-htable-max 128 --hashlimit-htable-expire 10000", nil},
	{spec.TrialNFLOG, both, "", map[Family]string{IPv4: "NFLOG --nflog-prefix corral-trial --nflog-group 61", IPv6: "NFLOG --nflog-prefix corral-trial --nflog-group 61"}},
	{spec.TrialReject, both, "", map[Family]string{IPv4: "REJECT --reject-with icmp-admin-prohibited", IPv6: "REJECT --reject-with icmp6-adm-prohibited"}},
	{spec.TrialReset, both, "-p tcp", map[Family]string{IPv4: "REJECT --reject-with tcp-reset", IPv6: "REJECT --reject-with tcp-reset"}},
}

func (k kind) rule(f Family) Rule {
	target := k.target[f]
	if target == "" {
		target = "DROP"
	}
	return Rule{ID: k.feature, Match: k.match, Target: target, Reason: "whether the kernel has it"}
}

// trialSets are one of each type.
var trialSets = []struct {
	feature string
	set     Set
}{
	{spec.TrialSetHashIPPort, Set{Name: trial, Entries: []Entry{{netip.AddrFrom4([4]byte{192, 0, 2, 7}), 443}}}},
	{spec.TrialSetHashIP, Set{Name: trial + "-any", AnyPort: true, Entries: []Entry{{Addr: netip.AddrFrom4([4]byte{192, 0, 2, 7})}}}},
}

// lacking tries everything at once, and only if that fails each kind by itself.
func (k *Kernel) lacking(ctx context.Context) (lacks []Lack) {
	lack := func(feature string, f Family, err error) {
		lacks = append(lacks, Lack{feature, f, err})
	}
	defer func() {
		// Last, when no rule refers to them any more.
		for _, s := range trialSets {
			if err := k.removeSet(s.set.Name); err != nil && len(lacks) == 0 {
				lack(s.feature, IPv4, err)
			}
		}
	}()
	for _, s := range trialSets {
		if err := k.trySet(ctx, s.set); err != nil {
			lack(s.feature, IPv4, fmt.Errorf("%s: %w", s.feature, err))
		}
	}
	for _, f := range k.families() {
		var all []kind
		for _, kd := range kinds {
			if slices.Contains(kd.families, f) {
				all = append(all, kd)
			}
		}
		err := k.try(ctx, f, all...)
		if err == nil {
			continue
		}
		whole := len(lacks)
		for _, kd := range all {
			if slices.ContainsFunc(lacks, func(l Lack) bool { return l.Feature == kd.feature && l.Family == f }) {
				continue
			}
			if err := k.restore(ctx, f, trialText(f, kd)); err != nil {
				lack(kd.feature, f, fmt.Errorf("%s, %s: %w", kd.feature, f, err))
				if kd.feature == spec.TrialComment { // the others have one too
					break
				}
			}
		}
		if len(lacks) == whole {
			lack(spec.TrialRules, f, err)
		}
		if err := k.removeTrial(ctx, f); err != nil {
			lack(spec.TrialRules, f, err)
		}
	}
	// Without it, what is removed could not be ended.
	if err := k.tryFlows(ctx); err != nil {
		lack(spec.TrialFlows, IPv4, fmt.Errorf("%s: %w", spec.TrialFlows, err))
	}
	return lacks
}

func (k *Kernel) trySet(ctx context.Context, want Set) error {
	if err := k.ApplySets(ctx, want); err != nil {
		return err
	}
	got, err := k.ReadSets(ctx, want.Name)
	if err != nil {
		return err
	}
	if Digest(nil, got) != Digest(nil, []Set{want}) {
		return fmt.Errorf("set %s does not hold what it was filled with", want.Name)
	}
	return nil
}

// trialText makes the chain of rules of some kinds, in place of one that may be
// left from a try that was cut short.
func trialText(f Family, some ...kind) string {
	text := "*filter\n:" + trial + " - [0:0]\n"
	for _, kd := range some {
		text += "-A " + trial + " " + kd.rule(f).String() + "\n"
	}
	return text + "COMMIT\n"
}

func (k *Kernel) removeTrial(ctx context.Context, f Family) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return k.restore(ctx, f, "*filter\n:"+trial+" - [0:0]\n-F "+trial+"\n-X "+trial+"\nCOMMIT\n")
}

// try writes rules of some kinds and reads them back.
func (k *Kernel) try(ctx context.Context, f Family, some ...kind) (err error) {
	defer func() { err = errors.Join(err, k.removeTrial(ctx, f)) }()
	if err := k.restore(ctx, f, trialText(f, some...)); err != nil {
		return err
	}
	out, err := list(ctx, program(f, k.suffix))
	if err != nil {
		return err
	}
	got, err := Parse(f, out)
	if err != nil {
		return err
	}
	var want []string
	for _, kd := range some {
		want = append(want, kd.rule(f).String())
	}
	for _, c := range got.Chains {
		if c.Name == trial && slices.Equal(texts(c.Rules), want) {
			return nil
		}
	}
	return fmt.Errorf("%s: rules do not read back as they were written: %s", program(f, k.suffix), out)
}
