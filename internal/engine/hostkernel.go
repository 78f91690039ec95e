package engine

import (
	"context"
	"strings"

	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
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
		switch {
		case strings.HasPrefix(why, spec.WithoutRights):
			return fails(spec.HintRights, "%s", why)
		case strings.HasPrefix(why, spec.CannotCloseIPv6):
			return fails(spec.HintIPv6, "%s", why)
		}
		return fails(spec.HintBackend, "neither nf_tables nor legacy iptables takes rules: %s", why)
	}
	var checks []spec.Check
	for _, f := range spec.TrialFeatures {
		checks = append(checks, spec.Check{Name: f.Name})
	}
	var lacks []string
	var first, backend string
	for _, ev := range report.Complete("", checks, events).Events {
		if ev.Check == spec.TrialBackend {
			backend = ev.Detail
		}
		if ev.Result == spec.OK || ev.Result == spec.Note || ev.Check == spec.TrialRules && len(lacks) > 0 { // rules need all the others
			continue
		}
		if first == "" {
			first = ev.Detail
		}
		lacks = append(lacks, ev.Check)
	}
	hint := spec.HintLacked(lacks)
	switch {
	case len(lacks) == 0:
		return holds("rules by " + backend)
	case hint == "":
		return fails("use the kernel and the engine of a distribution; corral-gate trial in a container of the gate image says more",
			"a gate's rules do not hold in the engine's kernel (%s by %s): %s", strings.Join(lacks, ", "), backend, first)
	}
	return fails(hint, "the engine's kernel lacks %s (modules %s; rules by %s): %s",
		strings.Join(lacks, ", "), strings.Join(spec.LackedModules(lacks), ", "), backend, first)
}
