package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/netfilter"
)

const (
	watchEvery = 2 * time.Second
	// readTimeout is for one reading of the kernel on a very busy machine.
	readTimeout = 3 * time.Second
	// changeShown is how many differences are worth printing.
	changeShown = 5
)

// watch compares the kernel with what was applied until the context ends or
// something differs.
func (g *gate) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := g.recheck(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("re-check failed against existing rules: %w", err)
		}
		g.tidy(ctx)
		reapOrphans()
		unload()
	}
}

// recheck is nil if the kernel has exactly the rules and sets that were
// applied, and an unlisted address is still refused.
func (g *gate) recheck(ctx context.Context) error {
	if err := g.compare(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	to := netip.AddrPortFrom(g.unlisted(), httpsPort)
	g.mu.Unlock()
	return unlistedRefused(ctx, to)
}

// compare is nil if the kernel has exactly what was applied.
func (g *gate) compare(ctx context.Context) error {
	g.fence.Lock()
	defer g.fence.Unlock()
	rules, sets, err := g.readBack(ctx, g.applied)
	if err != nil {
		return err
	}
	var lines []string
	for i, want := range g.applied.rules {
		lines = append(lines, netfilter.Diff(want, rules[i])...)
	}
	lines = append(lines, netfilter.DiffSets(g.applied.sets, sets)...)
	nat, err := g.kernel.Rewriting(ctx)
	if err != nil {
		return err
	}
	if nat != g.applied.nat {
		lines = append(lines, "the nat table is not as it was")
	}
	if len(lines) > changeShown {
		lines = append(lines[:changeShown], fmt.Sprintf("and %d more", len(lines)-changeShown))
	}
	if len(lines) > 0 {
		return errors.New(strings.Join(lines, "; "))
	}
	return nil
}

// readBack reads what the kernel has of everything that was applied. Reading
// twice tells a machine that was out of processes for a moment from one where
// the rules cannot be read.
func (g *gate) readBack(ctx context.Context, a applied) ([]netfilter.Ruleset, []netfilter.Set, error) {
	rules, sets, err := g.readOnce(ctx, a)
	if err != nil && ctx.Err() == nil {
		rules, sets, err = g.readOnce(ctx, a)
	}
	return rules, sets, err
}

func (g *gate) readOnce(ctx context.Context, a applied) ([]netfilter.Ruleset, []netfilter.Set, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rules []netfilter.Ruleset
	for _, r := range a.rules {
		got, err := g.kernel.Read(ctx, r.Family)
		if err != nil {
			return nil, nil, err
		}
		rules = append(rules, got)
	}
	var names []string
	for _, s := range a.sets {
		names = append(names, s.Name)
	}
	sets, err := g.kernel.ReadSets(ctx, names...)
	return rules, sets, err
}

// unlistedRefused connects like any program would. The rules were just read
// and found right, so a refusal is ours; anything else is a hole.
func unlistedRefused(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", to.String())
	switch {
	case err == nil:
		conn.Close()
		return fmt.Errorf("unlisted address %s can be reached", to)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENETUNREACH):
		return nil
	}
	return fmt.Errorf("unlisted address %s was not refused: %w", to, err)
}
