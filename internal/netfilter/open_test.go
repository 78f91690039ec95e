package netfilter

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// R013, R038, R040: what is missing has a name, and what to do about it is exact.
func TestUnusable(t *testing.T) {
	nft, old := &Kernel{backend: nfTables, ipv6: true}, &Kernel{backend: legacy, ipv6: true}
	no := errors.New("no chain/target/match by that name")
	for _, tt := range []struct {
		name                string
		tried               []*attempt
		err                 error
		state, said, remedy string
	}{
		{"no programs", nil, fmt.Errorf("iptables missing: %w", exec.ErrNotFound), "nothing is closed", "iptables missing", "package iptables"},
		{"a match", []*attempt{{Kernel: nft, closed: both, err: no, lacks: []Lack{{spec.TrialSetMatch, IPv4, no}}}, {Kernel: old, err: errors.New("cannot list")}}, nil,
			"everything stays closed", "the kernel lacks set-match (rules by nf_tables): no chain/target/match by that name; cannot list", "sudo modprobe -a xt_set; "},
		{"the other's match", []*attempt{{Kernel: nft, err: errors.New("cannot list")}, {Kernel: old, closed: both, err: no, lacks: []Lack{{spec.TrialOwner, IPv4, no}, {spec.TrialOwner, IPv6, no}}}}, nil,
			"everything stays closed", "the kernel lacks owner-match (rules by legacy): no chain/target/match by that name; cannot list", "CONFIG_NETFILTER_XT_MATCH_OWNER"},
		{"half closed", []*attempt{{Kernel: nft, closed: onlyV4, err: fmt.Errorf("%s: ip6tables: no", spec.CannotCloseIPv6)}}, nil,
			"no rules can be set for IPv6, only IPv4 is closed", "cannot close IPv6: ip6tables: no", "ipv6.disable=1"},
		{"nothing works", []*attempt{{Kernel: nft, err: no}}, nil, "nothing is closed", "no chain", "sudo modprobe -a nf_tables"},
		{"somebody's rules", []*attempt{{Kernel: nft, closed: both}}, &Foreign{"they are there"}, "everything stays closed", "they are there", "namespace of its own"},
	} {
		u := unusable(tt.tried, tt.err)
		u.Rights = nil // whoever runs this
		if !strings.Contains(u.State(), tt.state) || !strings.Contains(u.Error(), tt.said) || !strings.Contains(u.Hint(), tt.remedy) {
			t.Errorf("%s: %q, %q, %q", tt.name, u.State(), u.Error(), u.Hint())
		}
	}
	u := &Unusable{Rights: []string{"NET_ADMIN", "NET_RAW"}, Err: no}
	if u.Error() != "without the capability NET_ADMIN and NET_RAW: no chain/target/match by that name" || !strings.Contains(u.Hint(), "NET_ADMIN") {
		t.Errorf("%q, %q", u, u.Hint())
	}
}

// Every kind that is tried is a feature that has a remedy, and what a kernel
// lacks of each can be said.
func TestKindsHaveRemedies(t *testing.T) {
	tried := map[string]bool{spec.TrialBackend: true, spec.TrialPolicies: true, spec.TrialNFLOGSocket: true, spec.TrialFlows: true, spec.TrialDestroy: true, spec.TrialRules: true}
	for _, s := range trialSets {
		tried[s.feature] = true
	}
	for _, k := range kinds {
		tried[k.feature] = true
		for _, f := range k.families {
			k.rule(f).check(trial)
		}
	}
	for _, f := range spec.TrialFeatures {
		if !tried[f.Name] {
			t.Errorf("nothing tries %s", f.Name)
		}
		delete(tried, f.Name)
		if hint := spec.HintLacked([]string{f.Name}); len(f.Modules) > 0 && !strings.HasPrefix(hint, "sudo modprobe -a "+f.Modules[0]) {
			t.Errorf("%s: %q", f.Name, hint)
		}
	}
	for name := range tried {
		t.Errorf("%s is no feature", name)
	}
}

// Packets meet a chain with a hook. What is empty, or rewrites before the filter
// looks, is no offence (R041).
func TestForeignTables(t *testing.T) {
	hooked := func(kind string, hook uint32, priority int32, policy uint32, rules ...uint64) nfChain {
		return nfChain{name: "x", hooked: true, hook: hook, priority: priority, policy: policy, kind: kind, rules: rules}
	}
	named := func(c nfChain, name string) nfChain { c.name = name; return c }
	for _, tt := range []struct {
		name    string
		t       nfTable
		own     bool
		foreign bool
	}{
		{"iptables' own, empty", nfTable{family: nfIPv4, name: "mangle", chains: []nfChain{hooked("route", hookOutput, -150, nfAllow)}}, false, false},
		{"with a rule", nfTable{family: nfIPv4, name: "mangle", chains: []nfChain{hooked("route", hookOutput, -150, nfAllow, 4)}}, false, true},
		{"with a rule elsewhere", nfTable{family: nfIPv4, name: "mangle", chains: []nfChain{hooked("route", hookOutput, -150, nfAllow), {name: "y", rules: []uint64{1}}}}, false, true},
		{"a policy", nfTable{family: nfIPv6, name: "raw", chains: []nfChain{hooked("filter", hookOutput, -300, 0)}}, false, true},
		{"somebody's", nfTable{family: nfIPv4, name: "evil", chains: []nfChain{hooked("filter", hookOutput, 5, nfAllow)}}, false, true},
		{"in no family of ours", nfTable{family: 5, name: "filter", chains: []nfChain{hooked("filter", 0, 0, nfAllow)}}, false, true},
		{"that nothing reaches", nfTable{family: nfINet, name: "evil", chains: []nfChain{{name: "y", rules: []uint64{1}}}}, false, false},
		{"a hook in ours", nfTable{family: nfIPv4, name: "filter", chains: []nfChain{hooked("filter", hookOutput, -1, nfAllow)}}, true, true},
		{"ours", nfTable{family: nfIPv4, name: "filter", chains: []nfChain{named(hooked("filter", hookOutput, 0, 0, 1, 2), "OUTPUT"), {name: "y", rules: []uint64{1}}}}, true, false},
		{"ours in another place", nfTable{family: nfIPv4, name: "filter", chains: []nfChain{named(hooked("filter", hookInput, 0, 0, 1, 2), "OUTPUT")}}, true, true},
	} {
		if got := tt.t.foreign(tt.own); (got != "") != tt.foreign {
			t.Errorf("%s: %q", tt.name, got)
		}
		if tt.t.rewrites() {
			t.Errorf("%s: taken for nat", tt.name)
		}
	}
	for _, tt := range []struct {
		t    nfTable
		want bool
	}{
		{nfTable{family: nfIPv4, use: 1, chains: []nfChain{hooked("nat", hookOutput, -100, nfAllow, 1)}}, true},
		{nfTable{family: nfIPv4, use: 2, chains: []nfChain{hooked("nat", hookOutput, -1, nfAllow), hooked("nat", 4, 100, nfAllow)}}, true},
		{nfTable{family: nfIPv4, use: 1, chains: []nfChain{hooked("nat", hookOutput, 0, nfAllow)}}, false},    // beside the filter or after it
		{nfTable{family: nfIPv4, use: 2, chains: []nfChain{hooked("nat", hookOutput, -100, nfAllow)}}, false}, // and a set that can change
		{nfTable{family: nfIPv6, use: 1, chains: []nfChain{hooked("nat", hookOutput, -100, nfAllow)}}, false},
		{nfTable{family: nfINet, use: 1, chains: []nfChain{hooked("nat", hookOutput, -100, nfAllow)}}, false},
	} {
		if got := tt.t.rewrites(); got != tt.want {
			t.Errorf("%+v: %v", tt.t, got)
		}
	}
}
