package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// kernelFeatures are what a gate's trial must have said, and the modules that
// have each.
var kernelFeatures = []struct {
	name    string
	modules []string
}{
	{spec.TrialBackend, nil},
	{spec.TrialPolicies, []string{"iptable_filter", "ip6table_filter"}},
	{spec.TrialSetHashIP, []string{"ip_set", "ip_set_hash_ip"}},
	{spec.TrialSetHashIPPort, []string{"ip_set", "ip_set_hash_ipport"}},
	{spec.TrialSetMatch, []string{"xt_set"}},
	{spec.TrialOwner, []string{"xt_owner"}},
	{spec.TrialConntrack, []string{"nf_conntrack", "xt_conntrack"}},
	{spec.TrialAddrtype, []string{"xt_addrtype"}},
	{spec.TrialLimit, []string{"xt_limit"}},
	{spec.TrialNFLOG, []string{"xt_NFLOG"}},
	{spec.TrialNFLOGSocket, []string{"nfnetlink_log"}},
	{spec.TrialReject, []string{"ipt_REJECT"}},
	{spec.TrialReset, []string{"ipt_REJECT"}},
	{spec.TrialRules, nil},
}

// Remedies of a kernel in which no rule can be set at all.
const (
	hintBackend = "sudo modprobe nf_tables nft_compat; or for legacy: sudo modprobe ip_tables iptable_filter ip6_tables ip6table_filter"
	hintIPv6    = "sudo modprobe nf_tables nft_compat ip6_tables ip6table_filter; or start this machine without IPv6 (ipv6.disable=1)"
)

func lookKernel(ctx context.Context, s *survey) Finding {
	t := s.tried(ctx)
	if t.err != nil {
		return found(t.err)
	}
	return judgeKernel(t.events)
}

// judgeKernel goes by what a gate's trial said. What it did not say is missing.
func judgeKernel(events []spec.Event) Finding {
	if len(events) == 1 && events[0].Check == spec.TrialBackend && events[0].Result != spec.OK {
		why := strings.ReplaceAll(events[0].Detail, "\n", "; ")
		if strings.HasPrefix(why, "ip6") {
			return fails(hintIPv6, "IPv6 cannot be closed: ip6tables does not work, and the kernel has IPv6: %s", why)
		}
		return fails(hintBackend, "neither nf_tables nor legacy iptables takes rules: %s", why)
	}
	var checks []spec.Check
	for _, f := range kernelFeatures {
		checks = append(checks, spec.Check{Name: f.name})
	}
	var lacks, modules []string
	var first, backend string
	for i, ev := range report.Complete("", checks, events).Events {
		if ev.Check == spec.TrialBackend {
			backend = ev.Detail
		}
		if ev.Result == spec.OK || ev.Check == spec.TrialRules && len(lacks) > 0 { // rules need all the others
			continue
		}
		if first == "" {
			first = ev.Detail
		}
		lacks = append(lacks, ev.Check)
		if i < len(kernelFeatures) {
			for _, m := range kernelFeatures[i].modules {
				if !slices.Contains(modules, m) {
					modules = append(modules, m)
				}
			}
		}
	}
	switch {
	case len(lacks) == 0:
		return holds("rules by " + backend)
	case len(modules) == 0:
		return fails("use the kernel and the engine of a distribution; corral-gate trial in a container of the gate image says more",
			"a gate's rules do not hold in the engine's kernel (%s by %s): %s", strings.Join(lacks, ", "), backend, first)
	}
	line := "sudo modprobe " + strings.Join(modules, " ")
	return fails(fmt.Sprintf("%s; to keep it: echo %s | tr ' ' '\\n' | sudo tee /etc/modules-load.d/corral.conf", line, strings.Join(modules, " ")),
		"the engine's kernel lacks %s (modules %s; rules by %s): %s", strings.Join(lacks, ", "), strings.Join(modules, ", "), backend, first)
}
