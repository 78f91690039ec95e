package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
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
		var err error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err = <-g.found:
		case <-tick.C:
			err = g.recheck(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if g.pardoned(err) {
				continue
			}
			if errors.Is(err, errNoPort) || errors.Is(err, errAltered) {
				return fmt.Errorf("re-check: %w", err)
			}
			return fmt.Errorf("re-check failed against existing rules: %w", err)
		}
		g.tidy(ctx)
		reapOrphans()
		unload()
	}
}

// recheck is nil if the kernel has exactly the rules and sets that were
// applied, what they stand on is as it was, and an unlisted address is still refused.
func (g *gate) recheck(ctx context.Context) error {
	if err := g.unaltered(); err != nil { // first, for it tells whose programs read the rules
		return err
	}
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
	var lines []string
	err := g.steady(func(want applied) error {
		now, err := g.readBack(ctx, want)
		if err != nil {
			return err
		}
		lines = want.diff(now)
		return nil
	})
	if err != nil {
		return err
	}
	if len(lines) > 0 {
		return errors.New(strings.Join(brieflyShown(lines), "; "))
	}
	return nil
}

// diff says in one line each how what the kernel has differs from what was applied.
func (a applied) diff(now applied) (lines []string) {
	for i, r := range a.rules {
		lines = append(lines, netfilter.Diff(r, now.rules[i])...)
	}
	lines = append(lines, netfilter.DiffSets(a.sets, now.sets)...)
	if now.nat != a.nat {
		lines = append(lines, "the nat table is not as it was")
	}
	return lines
}

// brieflyShown are as many differences as are worth printing.
func brieflyShown(lines []string) []string {
	if len(lines) <= changeShown {
		return lines
	}
	return append(slices.Clone(lines[:changeShown]), fmt.Sprintf("and %d more", len(lines)-changeShown))
}

// steadyTries is how often a reading is begun anew that a refresh came in between of.
// Only when there is one after the other does the last reading keep them waiting.
const steadyTries = 5

// steady has what was applied read while nothing of it changes. Nobody waits for the
// kernel meanwhile: if there was a change after all, it is read again.
func (g *gate) steady(read func(applied) error) error {
	for range steadyTries - 1 {
		g.fence.Lock()
		a, edition := g.applied, g.edition
		g.fence.Unlock()
		err := read(a)
		g.fence.Lock()
		same := edition == g.edition
		g.fence.Unlock()
		if same {
			return err
		}
	}
	g.fence.Lock()
	defer g.fence.Unlock()
	return read(g.applied)
}

// readBack reads what the kernel has of everything that was applied. Reading
// twice tells a machine that was out of processes for a moment from one where
// the rules cannot be read.
func (g *gate) readBack(ctx context.Context, a applied) (applied, error) {
	now, err := g.readOnce(ctx, a)
	if err != nil && ctx.Err() == nil {
		now, err = g.readOnce(ctx, a)
	}
	return now, err
}

func (g *gate) readOnce(ctx context.Context, a applied) (now applied, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, r := range a.rules {
		got, err := g.kernel.Read(ctx, r.Family)
		if err != nil {
			return now, err
		}
		now.rules = append(now.rules, got)
	}
	var names []string
	for _, s := range a.sets {
		names = append(names, s.Name)
	}
	if now.sets, err = g.kernel.ReadSets(ctx, names...); err != nil {
		return now, err
	}
	now.nat, err = g.kernel.Rewriting(ctx)
	return now, err
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
	case errors.Is(err, syscall.EADDRNOTAVAIL): // nothing was sent, so nothing is wrong with the rules
		return fmt.Errorf("cannot tell whether unlisted address %s is refused: %w (%w)", to, errNoPort, err)
	}
	return fmt.Errorf("unlisted address %s was not refused: %w", to, err)
}

var errNoPort = errors.New("every local port is taken")
