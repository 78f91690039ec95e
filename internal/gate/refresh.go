package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Names are resolved again when their answer has grown old, within bounds, and not
// all gates' at the same time.
const (
	minAge       = 30 * time.Second
	maxAge       = time.Hour
	failureDelay = 5 * time.Minute // at most, after failures; and for names that stay closed
	jitter       = 0.1
	// together are names that fall due so soon after one another that one opening
	// of the lookups does for them.
	together = 2 * time.Second
	// changesShown is how many changes of one refresh are worth a line.
	changesShown = 20
)

// renewable are the fields of a document that a refresh may change. Everything else
// is in rules that stay, or belongs to the sandbox.
var renewable = []string{"policy", "resolvers", "names", "refresh", "pin_grace", "never"}

// fixed are the fields in which two documents differ and may not.
func fixed(a, b spec.Gate) []string {
	var differ []string
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		name, _, _ := strings.Cut(x.Type().Field(i).Tag.Get("json"), ",")
		f, h := x.Field(i), y.Field(i)
		empty := f.Kind() == reflect.Slice && f.Len() == 0 && h.Len() == 0
		if !slices.Contains(renewable, name) && !empty && !bytes.Equal(spec.Encode(f.Interface()), spec.Encode(h.Interface())) {
			differ = append(differ, name)
		}
	}
	return differ
}

const stays = "what was in force stays in force"

// refresh resolves all names of a document and goes by it from then on. What it takes
// away is gone before anything is looked up, whatever becomes of the rest. One that
// cannot be read, or that asks for more than a refresh can do, changes nothing.
func (g *gate) refresh(ctx context.Context, path string) (spec.Refreshed, error) {
	if _, err := loadSpec(path); err != nil { // nobody gives way to what is refused
		return spec.Refreshed{}, unreadable(path, err)
	}
	if err := g.takeTurnFirst(ctx); err != nil {
		return spec.Refreshed{}, err
	}
	defer g.endTurn()
	g.mu.Lock()
	was, pins, state := g.spec, g.pins, g.state
	g.mu.Unlock()
	if state != spec.GateReady {
		return spec.Refreshed{}, exit.Failedf("try again once it says that it is ready", "the gate is not ready")
	}
	doc, err := loadSpec(path) // again: who had the turn may have written it
	if err != nil {
		return spec.Refreshed{}, unreadable(path, err)
	}
	if differ := fixed(was, doc); len(differ) > 0 {
		return spec.Refreshed{}, exit.Invalidf(stays+"; what else a document says takes a new gate",
			"%s: a refresh cannot change %s", path, strings.Join(differ, ", "))
	}
	file := path
	if path == spec.GateFile {
		file = ""
	}
	so := stays
	var first spec.Refreshed
	if common, less := narrowed(was, doc, pins); less && len(doc.Names) > 0 {
		common.Never = slices.DeleteFunc(common.Never, func(p netip.Prefix) bool { return slices.Contains(g.own, p) }) // the file's own
		if first, err = g.renew(ctx, common, nil, file); err != nil {
			return first, unrefreshed(err, stays)
		}
		so = goneAlready(doc, first)
		g.sayf("refresh: %s", so)
	}
	r, err := g.renew(ctx, doc, domains(doc), file)
	if err != nil {
		return r, unrefreshed(err, so)
	}
	r.Added, r.Removed = gone(sets(r.Pins), sets(pins)), gone(sets(pins), sets(r.Pins))
	r.Ended += first.Ended
	settle()
	g.sayf("refresh: %s: %s added, %d removed, %s ended", printable.Count(len(domains(doc)), "name"), printable.Count(len(r.Added), "destination"), len(r.Removed), printable.Count(r.Ended, "connection"))
	return r, nil
}

func unreadable(path string, err error) error { return exit.Invalidf(stays, "%s: %w", path, err) }

// goneAlready is what is in force between the two steps of a refresh.
func goneAlready(doc spec.Gate, first spec.Refreshed) string {
	it := "the policy"
	if byItself(doc) {
		it = "the document"
	}
	words := fmt.Sprintf("what %s takes away is gone (%s, %s ended), what it grants anew is not in force", it, printable.Count(len(first.Removed), "destination"), printable.Count(first.Ended, "connection"))
	if first.Unended != "" {
		words += "; connections to what is granted no longer go on, and are tried to be ended again: " + first.Unended
	}
	return words
}

// unrefreshed is the failure of a refresh, with what is in force now.
func unrefreshed(err error, so string) error {
	if lost := (*lostError)(nil); errors.As(err, &lost) {
		return exit.Failedf("the gate closes everything and ends", "%w", err)
	}
	return hinted(err, so)
}

// narrowed is the document in force as far as another one grants the same, and
// whether that is less. A name that has to be pinned and that none of its addresses is
// left of is in it no more, since no lookup is made for it. Pure.
func narrowed(was, doc spec.Gate, pins []spec.Pin) (common spec.Gate, less bool) {
	common = was
	common.Policy = spec.PartOf + doc.Policy
	common.Never = slices.Clone(was.Never)
	for _, p := range doc.Never {
		if slices.Contains(common.Never, p) {
			continue
		}
		common.Never = append(common.Never, p)
		less = less || slices.ContainsFunc(pins, func(pin spec.Pin) bool { return slices.ContainsFunc(addresses(pin), p.Contains) })
	}
	other := map[string][]spec.Name{}
	for _, n := range doc.Names {
		other[n.Domain] = append(other[n.Domain], n)
	}
	common.Names = nil
	for _, n := range was.Names {
		both := inBoth(n, other[n.Domain])
		less = less || !covered(n, both)
		common.Names = append(common.Names, both...)
	}
	never := never(common)
	common.Names = slices.DeleteFunc(common.Names, func(n spec.Name) bool {
		old, _ := lately(pins, n, never)
		return !n.Soft && len(old.Addrs) == 0
	})
	return common, less
}

// covered reports whether some names of one domain together are granted all that n is.
func covered(n spec.Name, some []spec.Name) bool {
	within := func(port uint16) bool {
		return slices.ContainsFunc(some, func(s spec.Name) bool {
			return (s.AnyPort || !n.AnyPort && slices.Contains(s.Ports, port)) && !slices.ContainsFunc(n.Private, func(p netip.Prefix) bool {
				return !slices.ContainsFunc(s.Private, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Overlaps(p) })
			})
		})
	}
	if n.AnyPort {
		return within(0)
	}
	return !slices.ContainsFunc(n.Ports, func(p uint16) bool { return !within(p) })
}

// inBoth is what a name is granted by n and by one of others too: n itself if that is
// all of it.
func inBoth(n spec.Name, others []spec.Name) []spec.Name {
	var both []spec.Name
	for _, o := range others {
		c := n
		switch {
		case n.AnyPort && !o.AnyPort:
			c.AnyPort, c.Ports = false, sorted(o.Ports)
		case !n.AnyPort && !o.AnyPort:
			c.Ports = slices.DeleteFunc(slices.Clone(n.Ports), func(p uint16) bool { return !slices.Contains(o.Ports, p) })
		}
		c.Private = overlap(n.Private, o.Private)
		switch {
		case reflect.DeepEqual(c, n):
			return []spec.Name{n}
		case c.AnyPort || len(c.Ports) > 0:
			both = append(both, c)
		}
	}
	return both
}

// overlap are the prefixes that are in one of a and in one of b.
func overlap(a, b []netip.Prefix) []netip.Prefix {
	var both []netip.Prefix
	for _, p := range a {
		if slices.ContainsFunc(b, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Overlaps(p) }) {
			both = append(both, p)
			continue
		}
		for _, q := range b {
			if q.Overlaps(p) {
				both = append(both, q)
			}
		}
	}
	return both
}

// hinted puts words before an error's own hint.
func hinted(err error, words string) error {
	e := &exit.Error{Status: exit.Failed, Err: err, Hint: words}
	if own := (*exit.Error)(nil); errors.As(err, &own) {
		e.Status = own.Status
		if own.Hint != "" {
			e.Hint = words + "; " + own.Hint
		}
	}
	return e
}

func (g *gate) takeTurn(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another refresh is under way: %w", context.Cause(ctx))
	}
}

func (g *gate) endTurn() { <-g.turn }

// takeTurnFirst is takeTurn for who must not wait for somebody's name server: if the
// one who has the turn only looks up again what is in force, that is given up.
func (g *gate) takeTurnFirst(ctx context.Context) error {
	g.mu.Lock()
	g.wanted++
	if g.giveWay != nil {
		g.giveWay(errAnother)
	}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.wanted--
		g.mu.Unlock()
	}()
	return g.takeTurn(ctx)
}

var errAnother = errors.New("another refresh was asked for meanwhile, and looks it up instead")

// untilWanted is ctx until somebody calls takeTurnFirst or end is called.
func (g *gate) untilWanted(ctx context.Context) (asking context.Context, end func()) {
	asking, giveWay := context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.giveWay = giveWay
	if g.wanted > 0 {
		giveWay(errAnother)
	}
	return asking, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.giveWay = nil
		giveWay(nil)
	}
}

// renew resolves some names of a document and puts it in force: what is new is let
// through before anything else changes, what is gone is let through until
// everything else has changed. If a step fails, what was before is put back; if that
// fails too, the gate closes. Names are nil if this is no refresh but a step of one.
// The document replaces the gate's file if it came from another one.
func (g *gate) renew(ctx context.Context, doc spec.Gate, names []string, file string) (spec.Refreshed, error) {
	read := doc
	doc = g.withOwn(doc)
	g.mu.Lock()
	was, before := g.spec, outcome{g.pins, g.unpinned}
	g.mu.Unlock()
	results, err := g.lookUpAgain(ctx, was, doc, names)
	if err != nil {
		return spec.Refreshed{}, err
	}
	now := time.Now()
	next, err := decide(doc, before, results, now)
	if err != nil {
		return spec.Refreshed{}, unpinnable(doc, results, err)
	}
	var crowded []string
	if slices.ContainsFunc(next.pins, func(p spec.Pin) bool { return len(p.Fading) > maxFading }) {
		counted, err := g.countFlows(ctx, next.pins)
		if err != nil {
			g.sayf("refresh: warning: %v", err) // as counted before: the limit holds all the same
		}
		next.pins, crowded = crop(thin(doc, counted, time.Time{})) // retire does the rest
	}
	had, has := sets(before.pins), sets(next.pins)
	added, removed := gone(has, had), gone(had, has)
	if err := g.take(ctx, g.passage(was, doc, read, before, next, file)); err != nil {
		return spec.Refreshed{}, err
	}
	g.mu.Lock()
	g.spec, g.pins, g.unpinned = doc, next.pins, next.unpinned
	if names != nil {
		g.refreshed = now
	}
	g.unended = g.unended || len(removed) > 0 || !reflect.DeepEqual(was, doc)
	unended := g.unended
	g.mu.Unlock()
	g.schedule(results, now)

	r := spec.Refreshed{Version: spec.Version, Pins: next.pins, Unpinned: next.unpinned, Added: added, Removed: removed, Shared: []spec.Shared{}}
	if unended {
		if r.Ended, err = g.endUnlisted(ctx, before.pins); err != nil {
			r.Unended = err.Error()
			g.sayf("refresh: warning: not every connection to what is granted no longer could be ended, it is tried again: %v", err)
		}
		if r.Shared, err = g.stillShared(ctx); err != nil {
			g.sayf("refresh: warning: connections that several names may have: %v", err)
		}
	}
	g.tellChanges(doc, before, next)
	for _, c := range crowded {
		g.sayf("refresh: warning: %s", c)
	}
	g.notice(before.pins, next.pins)
	r.Silent = g.tellSilent(ctx, doc, before.pins, next.pins)
	return r, nil
}

// lookUpAgain resolves names while everything else stays in force.
func (g *gate) lookUpAgain(ctx context.Context, was, doc spec.Gate, names []string) (map[string]resolution, error) {
	if len(names) == 0 {
		return nil, nil
	}
	if err := g.putChains(ctx, doc, refreshing); err != nil {
		return nil, fmt.Errorf("open lookups: %w", err)
	}
	failed := failpoint("refresh-open")
	var results map[string]resolution
	if failed == nil {
		asking, end := ctx, func() {}
		if reflect.DeepEqual(was, doc) {
			asking, end = g.untilWanted(ctx)
		}
		results = resolveNames(asking, doc, names, g.lookUp)
		failed = context.Cause(asking)
		end()
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
	defer cancel()
	if err := g.putChains(last, was, serving); err != nil {
		return nil, g.giveUp(fmt.Errorf("refresh: lookups cannot be closed again: %w", err))
	}
	return results, failed
}

// change is one step of a refresh and the way back.
type change struct {
	name     string
	do, undo func(context.Context) error
}

// passage are the steps from one document and its pins to the next.
func (g *gate) passage(was, doc, read spec.Gate, before, next outcome, file string) []change {
	had, has := sets(before.pins), sets(next.pins)
	put := func(s []netfilter.Set) func(context.Context) error {
		return func(ctx context.Context) error { return g.putSets(ctx, s) }
	}
	tell := func(doc spec.Gate, pins []spec.Pin) func(context.Context) error {
		return func(ctx context.Context) error {
			if reflect.DeepEqual(was, doc) && sameAddrs(before.pins, next.pins) {
				return nil
			}
			g.tellWorker(ctx, doc, pins, true)
			return writeNames(doc.Class, named(doc, pins), true)
		}
	}
	var old []byte
	return []change{
		{"widen", put(union(had, has)), put(had)},
		{"names", tell(doc, next.pins), tell(was, before.pins)},
		{"keep", func(context.Context) error {
			if file == "" {
				return nil
			}
			var err error
			if old, err = os.ReadFile(spec.GateFile); err != nil {
				return err
			}
			return keep(spec.Encode(read))
		}, func(context.Context) error {
			if old == nil {
				return nil
			}
			return keep(old)
		}},
		{"narrow", func(ctx context.Context) error {
			return errors.Join(g.putChains(ctx, doc, serving), g.putSets(ctx, has))
		}, func(ctx context.Context) error {
			return errors.Join(g.putChains(ctx, was, serving), g.putSets(ctx, had))
		}},
		{"done", func(context.Context) error {
			if file != "" {
				discard(file, read)
			}
			return nil
		}, func(context.Context) error { return nil }},
	}
}

// sameAddrs reports whether lookups are answered alike.
func sameAddrs(a, b []spec.Pin) bool {
	return slices.EqualFunc(tableOf(a), tableOf(b), func(a, b spec.Pin) bool {
		return a.Domain == b.Domain && slices.Equal(a.Addrs, b.Addrs)
	})
}

// take takes the steps. After a failure everything is as it was, or the gate ends.
func (g *gate) take(ctx context.Context, steps []change) error {
	for i, s := range steps {
		err := s.do(ctx)
		if err == nil {
			err = failpoint("refresh-" + s.name)
		}
		if err == nil {
			continue
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
		defer cancel()
		var back []error
		for _, s := range slices.Backward(steps[:i+1]) {
			back = append(back, s.undo(last))
		}
		if failed := errors.Join(back...); failed != nil {
			return g.giveUp(fmt.Errorf("refresh: %w; what was before cannot be put back: %w", err, failed))
		}
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// lostError is a refresh after which nobody knows what is in force.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// giveUp ends the gate, closed.
func (g *gate) giveUp(err error) error {
	err = &lostError{err}
	g.tasks.Go(func() error { return err })
	return err
}

var errClosing = errors.New("the gate closes")

// putSets changes the sets, for the watchdog in one step. If it cannot, they are as
// they were.
func (g *gate) putSets(ctx context.Context, s []netfilter.Set) error {
	g.fence.Lock()
	defer g.fence.Unlock()
	if g.closing.Load() {
		return errClosing
	}
	if netfilter.Digest(nil, s) == netfilter.Digest(nil, g.applied.sets) {
		return nil
	}
	g.edition++
	if err := g.kernel.ApplySets(ctx, s...); err != nil {
		return g.putBack(ctx, err, func(ctx context.Context) error { return g.kernel.ApplySets(ctx, g.applied.sets...) })
	}
	g.applied.sets = s
	return nil
}

// putChains does for chains of our own, all that a refresh ever changes of the
// rules, what putSets does for sets.
func (g *gate) putChains(ctx context.Context, doc spec.Gate, at stage) error {
	g.fence.Lock()
	defer g.fence.Unlock()
	if g.closing.Load() {
		return errClosing
	}
	g.edition++
	rules := slices.Clone(g.applied.rules)
	for i, want := range g.families(doc, at) {
		changed := netfilter.Changed(rules[i], want)
		if err := g.kernel.ApplyChains(ctx, want.Family, changed...); err != nil {
			back := netfilter.Changed(want, g.applied.rules[i])
			return g.putBack(ctx, err, func(ctx context.Context) error { return g.kernel.ApplyChains(ctx, want.Family, back...) })
		}
		g.applied.rules = slices.Clone(rules)
		g.applied.rules[i] = want
		rules = g.applied.rules
	}
	g.applied.at = at
	return nil
}

func (g *gate) putBack(ctx context.Context, err error, back func(context.Context) error) error {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
	defer cancel()
	if failed := back(last); failed != nil {
		return g.giveUp(fmt.Errorf("refresh: %w; what was before cannot be put back: %w", err, failed))
	}
	return err
}

// union has the entries of both, set by set.
func union(a, b []netfilter.Set) []netfilter.Set {
	both := slices.Clone(a)
	for i := range both {
		both[i].Entries = slices.Concat(a[i].Entries, b[i].Entries)
	}
	return both
}

// gone are the destinations that are in old and not in now, sorted by address.
func gone(old, now []netfilter.Set) []string {
	had, has := entries(old), entries(now)
	lost := []netip.AddrPort{}
	for e := range had {
		if !has[e] {
			lost = append(lost, netip.AddrPortFrom(e.Addr, e.Port))
		}
	}
	slices.SortFunc(lost, netip.AddrPort.Compare)
	words := []string{}
	for _, l := range lost {
		words = append(words, endpoint(l.Addr(), l.Port()))
	}
	return words
}

// keep makes text the gate's file: by a rename, or where the file is a mount of its
// own, in place.
func keep(text []byte) error {
	next := spec.GateFile + ".next"
	err := os.WriteFile(next, text, 0o644)
	if err == nil {
		if err = os.Rename(next, spec.GateFile); err == nil {
			return nil
		}
		os.Remove(next)
	}
	if !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EXDEV) && !errors.Is(err, syscall.EROFS) {
		return err
	}
	old, err := os.ReadFile(spec.GateFile)
	if err != nil {
		return err
	}
	return writeInPlace(spec.GateFile, old, string(text))
}

// discard removes the file that a document came from, unless another one has been
// put there since. It is an economy; that it fails is no matter.
func discard(file string, doc spec.Gate) {
	if now, err := loadSpec(file); err == nil && bytes.Equal(spec.Encode(now), spec.Encode(doc)) {
		os.Remove(file)
	}
}

// tellChanges prints a line for each change, as many as are worth it.
func (g *gate) tellChanges(doc spec.Gate, before, next outcome) {
	lines, more := changes(doc, before, next)
	for _, l := range lines {
		g.sayf("refresh: %s", l)
	}
	if more > 0 {
		g.sayf("refresh: and %s more", printable.Count(more, "change"))
	}
}

// changes are the first changesShown lines on what differs, and how many there are
// beside them. It costs no more than what there is to compare.
func changes(doc spec.Gate, before, next outcome) (lines []string, more int) {
	say := func(format string, args ...any) {
		if len(lines) == changesShown {
			more++
			return
		}
		lines = append(lines, fmt.Sprintf(format, args...))
	}
	were, are := byDomain(before.pins), byDomain(next.pins)
	for _, p := range next.pins {
		var old spec.Pin
		if o := were[p.Domain]; len(o) > 0 {
			old = o[0]
		}
		had, has := holdings(old), holdings(p)
		for _, a := range p.Addrs {
			if _, known := had[a]; !known {
				say("pinned %s %s, ports %s, for %v (%s)", p.Domain, a, portsText(p.Ports, p.AnyPort), p.TTL, p.Origin)
			}
		}
		for _, f := range p.Fading {
			if had[f.Addr] {
				say("%s no longer has %s, which stays pinned for %v at least, and while it is in use (%s)", p.Domain, f.Addr, grace(doc, p), p.Origin)
			}
		}
		for _, a := range addresses(old) {
			if _, known := has[a]; !known {
				say("removed %s %s (%s)", p.Domain, a, p.Origin)
			}
		}
		if p.Failed != "" && p.Failed != old.Failed {
			say("warning: %s (%s) keeps what it had: %s", p.Domain, p.Origin, p.Failed)
		}
	}
	for _, p := range before.pins {
		now := are[p.Domain]
		switch {
		case len(now) == 0:
			say("removed %s and its %s", p.Domain, printable.Count(len(addresses(p)), "address"))
		case !slices.ContainsFunc(now, func(n spec.Pin) bool { return n.AnyPort == p.AnyPort && slices.Equal(n.Ports, p.Ports) }):
			say("%s had ports %s, and has ports %s (%s)", p.Domain, portsText(p.Ports, p.AnyPort),
				portsText(now[0].Ports, now[0].AnyPort), now[0].Origin)
		}
	}
	for _, u := range next.unpinned {
		if !slices.Contains(before.unpinned, u) {
			say("warning: %s (%s) stays closed: %s", u.Domain, u.Origin, u.Reason)
		}
	}
	return lines, more
}

// byDomain has the pins of each name, in their order.
func byDomain(pins []spec.Pin) map[string][]spec.Pin {
	all := make(map[string][]spec.Pin, len(pins))
	for _, p := range pins {
		all[p.Domain] = append(all[p.Domain], p)
	}
	return all
}

// holdings are the addresses of a pin, to look them up in: true for those that the
// name has, false for those that fade.
func holdings(p spec.Pin) map[netip.Addr]bool {
	all := make(map[netip.Addr]bool, len(p.Addrs)+len(p.Fading))
	for _, f := range p.Fading {
		all[f.Addr] = false
	}
	for _, a := range p.Addrs {
		all[a] = true
	}
	return all
}

// tellSilent warns of names that are new, have to be alive and accept nothing, and
// returns them.
func (g *gate) tellSilent(ctx context.Context, doc spec.Gate, before, pins []spec.Pin) (silent []spec.Silent) {
	ctx, cancel := context.WithTimeout(ctx, livenessTimeout)
	defer cancel()
	slots := make(chan struct{}, maxDials)
	warnings := make([]chan error, len(doc.Names))
	for i, n := range doc.Names {
		known := slices.ContainsFunc(before, func(p spec.Pin) bool { return p.Domain == n.Domain })
		if !n.Liveness || n.Soft || known {
			continue
		}
		var to []netip.AddrPort
		for _, p := range pins {
			if p.Domain == n.Domain && p.Origin == n.Origin {
				for _, port := range p.Ports {
					for _, a := range p.Addrs {
						to = append(to, netip.AddrPortFrom(a, port))
					}
				}
			}
		}
		if len(to) > 0 {
			warnings[i] = make(chan error, 1)
			go func() {
				_, err := connectAny(ctx, slots, to)
				warnings[i] <- err
			}()
		}
	}
	for i, w := range warnings {
		if w == nil {
			continue
		}
		if err := <-w; err != nil {
			n := doc.Names[i]
			g.sayf("refresh: warning: %s (%s) accepts no connection: %v", n.Domain, n.Origin, err)
			silent = append(silent, spec.Silent{Domain: n.Domain, Ports: n.Ports, Origin: n.Origin, Why: plain(err.Error())})
		}
	}
	return silent
}

// due is when a name is resolved again.
type due struct {
	at       time.Time
	failures int // in a row
}

// schedule says when the names that were just asked for are next.
func (g *gate) schedule(asked map[string]resolution, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := map[string]due{}
	for _, n := range g.spec.Names {
		if d, known := g.due[n.Domain]; known {
			next[n.Domain] = d
		}
	}
	for name := range asked {
		i := slices.IndexFunc(g.pins, func(p spec.Pin) bool { return p.Domain == name })
		switch {
		case i < 0:
			next[name] = due{at: now.Add(blur(failureDelay))}
		case g.pins[i].Failed != "":
			n := next[name].failures
			next[name] = due{at: now.Add(blur(backOff(n))), failures: n + 1}
		default:
			next[name] = due{at: now.Add(blur(min(max(g.pins[i].TTL, minAge), maxAge)))}
		}
	}
	maps.DeleteFunc(next, func(name string, _ due) bool {
		return !slices.ContainsFunc(g.spec.Names, func(n spec.Name) bool { return n.Domain == name })
	})
	g.due = next
	select {
	case g.dated <- struct{}{}:
	default:
	}
}

// backOff is the delay after n failures before the last one.
func backOff(n int) time.Duration { return min(minAge<<min(n, 8), failureDelay) }

// blur is roughly d.
func blur(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - jitter + 2*jitter*rand.Float64()))
}

// nextRefresh is when the first name is due; zero if none ever is. mu is held.
func (g *gate) nextRefresh() time.Time {
	var first time.Time
	if g.spec.Refresh != spec.RefreshAuto {
		return first
	}
	for _, d := range g.due {
		if first.IsZero() || d.at.Before(first) {
			first = d.at
		}
	}
	return first
}

// keepFresh refreshes on a signal, and the names whose time has come, until the
// context ends.
func (g *gate) keepFresh(ctx context.Context, hangup <-chan os.Signal) error {
	for {
		g.mu.Lock()
		next := g.nextRefresh()
		g.mu.Unlock()
		var ripe <-chan time.Time
		if !next.IsZero() {
			ripe = time.After(time.Until(next))
		}
		hungUp := false
		select {
		case <-ctx.Done():
			return nil
		case <-g.dated:
			continue
		case <-ripe:
		case <-hangup:
			hungUp = true
		}
		limited, cancel := context.WithTimeout(ctx, refreshTimeout)
		so := stays
		var err error
		if hungUp {
			_, err = g.refresh(limited, spec.GateFile)
			if e := (*exit.Error)(nil); errors.As(err, &e) {
				so = e.Hint
			}
		} else {
			err = g.refreshDue(limited)
		}
		cancel()
		if lost := (*lostError)(nil); err != nil && ctx.Err() == nil && !errors.As(err, &lost) && !errors.Is(err, errAnother) {
			g.sayf("refresh: failed: %v; %s", err, so)
		}
	}
}

// refreshDue resolves the names again whose time has come.
func (g *gate) refreshDue(ctx context.Context) error {
	if err := g.takeTurn(ctx); err != nil {
		return err
	}
	defer g.endTurn()
	now := time.Now()
	var names []string
	g.mu.Lock()
	doc := g.spec
	for name, d := range g.due {
		if d.at.Before(now.Add(together)) {
			names = append(names, name)
			d.failures++ // unless it goes well
			d.at = now.Add(blur(backOff(d.failures - 1)))
			g.due[name] = d
		}
	}
	g.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	_, err := g.renew(ctx, doc, names, "")
	return err
}
