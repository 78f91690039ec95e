package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// lookEvery is how often connections are counted that keep a fading address.
	lookEvery = 10 * time.Second
	// flowTimeout is for a listing of connections and for ending some.
	flowTimeout = 5 * time.Second
	// maxSharing bounds the connections that are remembered for having been a removed
	// name's.
	maxSharing = 1024
	// leftShown is how many addresses that leave are worth a line of their own.
	leftShown = 5
)

// flows are the kernel's.
func (g *gate) flows(ctx context.Context, begin func() func(netfilter.Flow) bool) ([]netfilter.Flow, error) {
	if err := failpoint("flows"); err != nil {
		return nil, err
	}
	return g.kernel.Flows(ctx, begin)
}

// countFlows counts the connections to each fading address that have been
// established. One that is only tried keeps no address.
func (g *gate) countFlows(ctx context.Context, pins []spec.Pin) ([]spec.Pin, error) {
	fading := map[netip.Addr]bool{}
	for _, p := range pins {
		for _, f := range p.Fading {
			fading[f.Addr] = true
		}
	}
	if len(fading) == 0 {
		return pins, nil
	}
	var count map[netip.AddrPort]int
	var ports map[netip.Addr]int
	_, err := g.flows(ctx, func() func(netfilter.Flow) bool {
		count, ports = map[netip.AddrPort]int{}, map[netip.Addr]int{}
		return func(f netfilter.Flow) bool {
			if to := f.Destination; f.Established() && fading[to.Addr()] {
				count[to]++
				ports[to.Addr()]++
			}
			return false
		}
	})
	if err != nil {
		return pins, err
	}
	pins = slices.Clone(pins)
	for i, p := range pins {
		pins[i].Fading = slices.Clone(p.Fading)
		for j := range p.Fading {
			f := &pins[i].Fading[j]
			f.Flows = 0
			if f.AnyPort {
				f.Flows = ports[f.Addr]
			}
			for _, port := range f.Ports {
				if !f.AnyPort {
					f.Flows += count[netip.AddrPortFrom(f.Addr, port)]
				}
			}
		}
	}
	return pins, nil
}

// tidy does what a refresh left for later, unless one is at it.
func (g *gate) tidy(ctx context.Context) {
	select {
	case g.turn <- struct{}{}:
		defer g.endTurn()
	default:
		return
	}
	g.mu.Lock()
	unended := g.unended
	g.mu.Unlock()
	if unended {
		ended, err := g.endUnlisted(ctx, nil)
		if ended > 0 {
			g.sayf("refresh: %s more ended", printable.Count(ended, "connection"))
		}
		if err != nil && !g.warned {
			g.sayf("warning: connections to what is granted no longer: %v", err)
		}
		g.warned = err != nil
	}
	if err := g.retire(ctx); err != nil && ctx.Err() == nil {
		g.sayf("warning: what names no longer have stays pinned: %v", err)
	}
}

// retire lets go of addresses that names have not had for long enough and that no
// connection uses.
func (g *gate) retire(ctx context.Context) error {
	now := time.Now()
	g.mu.Lock()
	doc, pins, wait := g.spec, g.pins, now.Before(g.lookAgain)
	g.mu.Unlock()
	due := func(p spec.Pin) bool {
		return slices.ContainsFunc(p.Fading, func(f spec.Fading) bool { return !now.Before(f.Since.Add(grace(doc, p))) })
	}
	if wait || !slices.ContainsFunc(pins, due) {
		return nil
	}
	every := lookEvery
	if doc.PinGrace > 0 {
		every = min(every, doc.PinGrace)
	}
	g.mu.Lock()
	g.lookAgain = now.Add(every)
	g.mu.Unlock()
	first, cancel := context.WithTimeout(ctx, flowTimeout)
	defer cancel()
	counted, err := g.countFlows(first, pins)
	if err != nil {
		return err
	}
	kept := thin(doc, counted, now)
	if err := g.putSets(first, sets(kept)); err != nil {
		return err
	}
	// A connection that began just before the set shrank keeps its address; one that
	// is not established yet is ended. Whatever happens, the sets go with the pins.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flowTimeout)
	defer cancel()
	counted, err = g.countFlows(last, pins)
	if err == nil {
		kept = thin(doc, counted, now)
	} else {
		kept = pins
	}
	if err := errors.Join(err, g.putSets(last, sets(kept))); err != nil {
		return err
	}
	g.mu.Lock()
	g.pins = kept
	g.unended = true
	g.mu.Unlock()
	var lines []string
	for i, p := range pins {
		for _, f := range p.Fading {
			if !slices.ContainsFunc(kept[i].Fading, func(k spec.Fading) bool { return k.Addr == f.Addr }) {
				lines = append(lines, fmt.Sprintf("removed %s %s, which it has not had since %s and nothing uses (%s)",
					p.Domain, f.Addr, f.Since.UTC().Format(time.RFC3339), p.Origin))
			}
		}
	}
	for _, l := range lines[:min(len(lines), leftShown)] {
		g.sayf("refresh: %s", l)
	}
	if n := len(lines) - leftShown; n > 0 {
		g.sayf("refresh: and %s more", printable.Count(n, "address"))
	}
	return nil
}

// endUnlisted ends every connection from here to what nothing grants any more, and
// returns how many those were. It has to be called again while unended is set: a
// connection may have begun while the sets changed. What remains of the names that
// before had and are gone is remembered as shared. The caller has the turn, so no
// lookup of a refresh runs.
func (g *gate) endUnlisted(ctx context.Context, before []spec.Pin) (ended int, err error) {
	ctx, cancel := context.WithTimeout(ctx, flowTimeout)
	defer cancel()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.why = ""; err != nil {
			g.why = err.Error()
		}
	}()
	local, err := localAddrs()
	if err != nil {
		return 0, err
	}
	g.fence.Lock()
	pinned := entries(g.applied.sets)
	g.fence.Unlock()
	g.mu.Lock()
	doc, pins := g.spec, g.pins
	g.mu.Unlock()
	workers := func(to netip.AddrPort) bool { // whose lookups for the service may run
		return doc.Class == spec.ClassPublic && to.Port() == dnsPort && slices.Contains(doc.Resolvers, to.Addr())
	}
	var shared []sharing
	unlisted, err := g.flows(ctx, func() func(netfilter.Flow) bool {
		shared = nil
		return func(f netfilter.Flow) bool {
			to := f.Destination
			switch {
			case local[to.Addr()]: // it came in
			case workers(to):
			case !grants(doc, pinned, to):
				return true
			case before != nil && f.Live() && len(shared) < maxSharing:
				with := namesOf(pins, to)
				for _, n := range namesOf(before, to) {
					if len(with) > 0 && !slices.Contains(with, n) {
						shared = append(shared, sharing{f.Source, to, n, with[0]})
					}
				}
			}
			return false
		}
	})
	if err != nil {
		return 0, err
	}
	ended, err = g.kernel.End(ctx, unlisted...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unended = len(unlisted) > 0
	for _, s := range shared {
		if len(g.sharing) < maxSharing && !slices.Contains(g.sharing, s) {
			g.sharing = append(slices.Clip(g.sharing), s)
		}
	}
	return ended, err
}

// localAddrs are this namespace's own addresses.
func localAddrs() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, err
		}
		local[p.Addr().Unmap()] = true
	}
	return local, nil
}

// namesOf are the names that have a destination, each once.
func namesOf(pins []spec.Pin, to netip.AddrPort) []string {
	var names []string
	for _, p := range pins {
		has := (p.AnyPort || slices.Contains(p.Ports, to.Port())) && slices.Contains(p.Addrs, to.Addr()) ||
			slices.ContainsFunc(p.Fading, func(f spec.Fading) bool {
				return f.Addr == to.Addr() && (f.AnyPort || slices.Contains(f.Ports, to.Port()))
			})
		if has && !slices.Contains(names, p.Domain) {
			names = append(names, p.Domain)
		}
	}
	return names
}

// sharing is a connection that was a removed name's as well as with's.
type sharing struct {
	source, to    netip.AddrPort
	removed, with string
}

// stillShared counts those connections that are still there, and forgets the rest.
func (g *gate) stillShared(ctx context.Context) ([]spec.Shared, error) {
	shared := []spec.Shared{}
	g.mu.Lock()
	known := len(g.sharing)
	g.mu.Unlock()
	if known == 0 {
		return shared, nil
	}
	type pair struct{ source, to netip.AddrPort }
	live := map[pair]bool{} // those that are remembered
	g.mu.Lock()
	for _, s := range g.sharing {
		live[pair{s.source, s.to}] = false
	}
	g.mu.Unlock()
	look := func(f netfilter.Flow) bool {
		p := pair{f.Source, f.Destination}
		if _, known := live[p]; known {
			live[p] = f.Live()
		}
		return false
	}
	if _, err := g.flows(ctx, func() func(netfilter.Flow) bool { return look }); err != nil {
		return shared, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sharing = slices.DeleteFunc(slices.Clone(g.sharing), func(s sharing) bool { return !live[pair{s.source, s.to}] })
	for _, s := range g.sharing {
		if slices.Contains(namesOf(g.pins, s.to), s.removed) {
			continue // the name is back
		}
		i := slices.IndexFunc(shared, func(o spec.Shared) bool {
			return o.Removed == s.removed && o.Addr == s.to.Addr() && o.Port == s.to.Port()
		})
		if i < 0 {
			i = len(shared)
			shared = append(shared, spec.Shared{Removed: s.removed, With: s.with, Addr: s.to.Addr(), Port: s.to.Port()})
		}
		shared[i].Flows++
	}
	return shared, nil
}
