package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

func (a *app) up() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Bring up what is missing of an always-on sandbox",
		Long: `Brings up a sandbox of mode: daemon. What is up and well is left alone, so a
second corral up changes nothing. What is missing, wrong, or asked for otherwise
by the policy now is made anew, in order: what joins a gate ends before the gate
does and starts after the gate has proven its rules. Where only names differ the
gate is refreshed in place. It returns when all of it runs.

What somebody sits at (corral attach, corral shell) is not ended for a change of the
policy without a yes, at the terminal or by --yes.

The hooks of the policy run when it starts from nothing: the first time, and after
a corral down, which tells what the agent changed. Whatever else it does runs none.

With --watch it stays, follows the engine, and heals what ends. It waits for an
engine that does not answer yet, for names that do not resolve yet, and for
services of this machine that do not listen yet. A signal ends the watch and
leaves the sandbox up. corral enable has systemd start one at every boot.`,
		Example: `  corral up
  corral up --watch`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch {
				return a.upAndWatch(c.Context())
			}
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				_, err := a.bringUp(c.Context(), e, p)
				return err
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "stay, wait for what is not there yet, and heal what ends")
	c.Flags().BoolVarP(&a.sure, "yes", "y", false, "end what somebody sits at, where the policy asks for another, without a question")
	c.Flags().Bool("wait", false, "return when all of it runs; corral up does so anyway")
	a.acceptFlag(c)
	a.timed(c)
	return c
}

// watchable reports whether what bringUp gave is no reason to go: all of it is up,
// or was, and the gate has to try again.
func watchable(err error) bool { return err == nil || errors.Is(err, errUnended) }

// upAndWatch brings it up, as soon as that can be, and keeps it so. The yes comes
// first: it is to the policy of now, however long the rest takes.
func (a *app) upAndWatch(ctx context.Context) error {
	p, err := a.load()
	if err != nil {
		return err
	}
	err = a.lasting(ctx, p)
	if unresolvable(err) {
		err = a.accept(ctx, p)
	}
	if err != nil {
		return err
	}
	var notes []string
	e, err := a.connect(ctx)
	if err == nil {
		notes, err = a.bringUp(ctx, e, p)
	}
	if !watchable(err) && !passing(ctx, e, err) {
		return err
	}
	if err != nil {
		a.report(err)
	}
	if !p.wanted {
		home, err := state.Home()
		if err == nil {
			err = state.SetWanted(home, p.id(), true)
		}
		if err != nil {
			return err
		}
	}
	a.timings.tell(a.err) // the watch goes on for as long as it may
	return a.keepUp(ctx, e, p, notes, err)
}

// unresolvable reports whether a plan failed for want of a name server: at boot
// this machine may learn of one late.
func unresolvable(err error) bool { return errors.As(err, new(plan.ErrNoResolver)) }

// passing reports whether what kept a sandbox down is of the kind that ends without
// the person: an engine that is away, a gate that stays closed for want of names, a
// service of this machine that does not listen. What is invalid stays so.
func passing(ctx context.Context, e *engine.Engine, err error) bool {
	var unusable *engine.NotUsable
	switch {
	case err == nil || ctx.Err() != nil:
		return false
	case errors.As(err, &unusable):
		return unusable.Away
	case unresolvable(err), errors.As(err, new(*engine.GateFailed)), errors.Is(err, engine.ErrUnserved):
		return true
	case invalid(err):
		return false
	}
	return e != nil && e.Away(ctx)
}

// bringUp brings up an always-on sandbox and says what it did. Notes are what
// it left as it is.
func (a *app) bringUp(ctx context.Context, e *engine.Engine, p *project) ([]string, error) {
	for {
		notes, err := a.bringUpNow(ctx, e, p)
		u := new(undecided)
		if !errors.As(err, &u) {
			return notes, err
		}
		if err := a.decide(ctx, u); err != nil {
			return nil, err
		}
		a.sure = true
	}
}

// bringUpNow is bringUp, whose error is undecided where a person has to be asked.
func (a *app) bringUpNow(ctx context.Context, e *engine.Engine, p *project) (notes []string, err error) {
	if up, err := e.Members(ctx, p.policy.File); err != nil {
		return nil, err
	} else if err := forAnother(up, p); err != nil {
		return nil, err
	}
	if err := a.lasting(ctx, p); err != nil {
		return nil, err
	}
	// A run holds the lock for as long as it lives: it is told, and not waited for.
	members, err := e.Members(ctx, p.policy.File)
	if err != nil {
		return nil, err
	}
	if onlyLasting(members) != nil {
		if err := e.Clear(ctx, p.policy.File); err != nil {
			return nil, err
		}
	}
	members, unlock, err := a.alone(ctx, e, p.policy.File, p.id())
	if err != nil {
		return nil, err
	}
	defer unlock()
	switch d, err := a.pending(p); { // once more: perhaps it was purged while this waited
	case err != nil:
		return nil, err
	case d.asks():
		return nil, exit.Invalidf("corral up once more", "%s: %s, by now", p.policy.File, d.reason())
	}
	if err := e.SweepTools(ctx); err != nil {
		return nil, err
	}
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	was, err := wanted(p.policy.File)
	if err == nil {
		err = state.SetWanted(home, p.id(), true)
	}
	if err != nil {
		return nil, err
	}
	p.wanted = true
	to, err := a.fromNothing(p, members)
	if err != nil {
		return nil, err
	}
	h, err := a.heal(ctx, e, p, members, to, was)
	for _, note := range h.notes {
		a.sayf("%s", note)
	}
	switch {
	case err != nil:
	case h.did:
		a.sayf("%s is up", p.id())
	default:
		a.sayf("%s is up already", p.id())
	}
	return h.notes, err
}

// fromNothing is toStart, for the hooks, if nothing is there of an always-on sandbox
// and all that changed under an earlier one was told: corral down does that. It is so
// once for each start, however often that is tried.
func (a *app) fromNothing(p *project, members []engine.Member) (purpose, error) {
	if a.hooked || len(members) > 0 || len(p.policy.PreLaunch) == 0 {
		a.hooked = true
		return toHeal, nil
	}
	switch open, err := untold(p.policy.File); {
	case err != nil:
		return toHeal, err
	case open:
		a.hooked = true
		a.sayf("hooks.pre_launch did not run: an earlier start was not ended by corral down, which tells what changed")
		return toHeal, nil
	}
	return toStart, nil
}

// lasting takes a project to where its always-on sandbox may be brought up.
func (a *app) lasting(ctx context.Context, p *project) error {
	if err := stays(p); err != nil {
		return err
	}
	return a.agreed(ctx, p)
}

// stays refuses a policy that is not of an always-on sandbox.
func stays(p *project) error {
	if p.policy.Mode != policy.Daemon {
		return exit.Invalidf("corral run runs it; mode: daemon in the policy makes it always on", "%s: mode: run ends with who runs it, and this is for mode: daemon", p.policy.File)
	}
	return nil
}

// heal brings up what is missing or wrong of an always-on sandbox, and touches
// nothing else. The caller holds its lock since before members were listed. Hooks
// run only toStart, which is from nothing. What was to be up before stood on a machine
// that is prepared: what is gone of that comes back, too.
func (a *app) heal(ctx context.Context, e *engine.Engine, p *project, members []engine.Member, to purpose, was bool) (*healing, error) {
	h := &healing{app: a, engine: e, project: p, to: to, was: was}
	done, err := making(p.id())
	if err != nil {
		return h, err
	}
	defer done()
	if h.guests, err = host.FindGuests(); err == nil {
		err = h.heal(ctx, members)
	}
	if err == nil { // from now on it counts
		h.keepCount(func(done *state.Heals) bool { return done == nil })
	}
	return h, err
}

// healing is one look at a sandbox and what is done about it.
type healing struct {
	*app
	engine  *engine.Engine
	project *project
	to      purpose
	was     bool // it was to be up before
	guests  host.Guests
	did     bool
	notes   []string // what stays as it is and should be known

	gates, services map[string]engine.Member // as they are, by name
	many            bool                     // the sandbox has several gates
	readied         bool                     // ready was, so that hooks run once
}

// part is a gate and what joins it.
type part struct {
	name     string
	gate     engine.Member   // as it is, zero if there is none
	planned  []plan.Service  // what is to join it, in the order in which they are started
	services []engine.Member // as they are, those that are there
}

// main reports whether it is where the agent is.
func (p part) main() bool { return p.name == plan.Main }

// part is how a planned gate and what joins it are now.
func (h *healing) part(p *plan.Plan, g plan.Gate) part {
	out := part{name: g.Name, gate: h.gates[g.Name]}
	for _, s := range p.Services {
		if s.Gate == g.Name {
			out.planned = append(out.planned, s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.services)) {
		if m := h.services[name]; m.Gate == g.Name {
			out.services = append(out.services, m)
		}
	}
	return out
}

// gateOf is what a person calls the gate of a part.
func (h *healing) gateOf(p part) string {
	if h.many {
		return "the gate of " + p.name
	}
	return "the gate"
}

func (h *healing) sayf(format string, args ...any) {
	h.did = true
	h.app.sayf(format, args...)
}

func (h *healing) heal(ctx context.Context, members []engine.Member) error {
	if err := h.look(ctx, members); err != nil {
		return h.later(err)
	}
	shape, err := h.project.shape()
	if err != nil {
		return err
	}
	h.many = len(shape.Gates) > 1
	if len(h.gates)+len(h.services) == 0 && h.many {
		// What could keep the agent down keeps down what only it has a use for.
		if err := h.getReady(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, g := range shape.Gates {
		if u := new(undecided); errors.As(errors.Join(errs...), &u) {
			break // a person is asked before anything else is done
		}
		errs = append(errs, h.mend(ctx, h.part(shape, g)))
	}
	if err := errors.Join(errs...); err != nil {
		if len(errs) == 1 {
			return errs[0]
		}
		return err
	}
	return h.surplus(ctx, shape)
}

// surplus ends what the policy asks for no more.
func (h *healing) surplus(ctx context.Context, shape *plan.Plan) error {
	var over []engine.Member
	for _, m := range h.gates {
		if !slices.ContainsFunc(shape.Gates, func(g plan.Gate) bool { return g.Name == m.Service }) {
			over = append(over, m)
		}
	}
	for _, m := range h.services {
		if !slices.ContainsFunc(shape.Services, func(s plan.Service) bool { return s.Name == m.Service }) {
			h.sayf("%s ends: the policy asks for it no more", m.Service)
			over = append(over, m)
		}
	}
	if len(over) == 0 {
		return nil
	}
	h.did = true
	return h.engine.Down(ctx, over)
}

// mend brings up what is missing or wrong of one part.
func (h *healing) mend(ctx context.Context, p part) error {
	if p.gate.ID == "" && len(p.services) == 0 {
		return h.anew(ctx, p, "")
	}
	status, why, err := spec.GateStatus{}, "it is gone", error(nil)
	if p.gate.ID != "" {
		status, why, err = h.engine.GateWrong(ctx, p.gate)
	}
	if err != nil {
		return err
	}
	if why != "" {
		return h.anew(ctx, p, why)
	}
	if why, err = h.named(ctx, p); err != nil || why != "" {
		if err == nil {
			err = h.anew(ctx, p, why)
		}
		return err
	}
	if err := h.project.asUp(ctx, h.engine, h.services[plan.Main]); err != nil {
		return err
	}
	now, err := h.sketch(ctx, p)
	if err != nil {
		return err
	}
	differs, err := h.engine.Differs(now, h.project.secrets, p.gate)
	if err != nil {
		return err
	}
	if len(differs) > 0 {
		why := otherWanted + strings.Join(differs, ", ")
		if err := h.mayEnd(ctx, h.services[p.name], why); err != nil {
			return h.later(err)
		}
		return h.anew(ctx, p, why)
	}
	if err := h.carried(ctx, p, now); err != nil {
		return err
	}
	// The refresh comes last: a gate that goes by the policy as it is now says
	// that all else does too. And a service does not wait for names. One that
	// keeps its old rights gets no new ones; one that ended has none, and perhaps
	// for want of a name.
	for _, s := range p.planned {
		one := h.serve(ctx, p, s, now, status)
		if one != nil && !errors.As(one, new(*engine.Ended)) {
			return h.later(one)
		}
		err = errors.Join(err, one)
	}
	if status.Policy != h.project.policy.Digest {
		h.sayf("the policy was changed: %s is refreshed", h.gateOf(p))
		return errors.Join(err, h.refresh(ctx, now))
	}
	return errors.Join(err, unended(status.Unended)) // the gate itself tries again
}

// sketch is a part as it would be made now.
func (h *healing) sketch(ctx context.Context, p part) (*engine.Gate, error) {
	return h.project.sketch(ctx, h.engine, h.guests, slices.Collect(maps.Values(h.gates)), p.gate)
}

// getReady lets the policy take hold of this machine, hooks once.
func (h *healing) getReady(ctx context.Context) error {
	to := h.to
	if h.readied {
		to = toHeal
	}
	err := h.ready(ctx, h.project, to)
	h.readied = h.readied || err == nil
	return err
}

// occupied is a service that somebody sits at, and that a watch does not end for a
// change of the policy.
type occupied struct{ service, why string }

func (o *occupied) Error() string {
	return fmt.Sprintf("%s is to be made anew (%s): that waits until nobody sits at it any more (corral attach, corral shell); corral up --yes does it now", o.service, o.why)
}

// mayEnd is nil if a service may be ended because another one is asked for: nobody
// sits at it, or a person says yes.
func (h *healing) mayEnd(ctx context.Context, service engine.Member, why string) error {
	if !service.Running || h.sure {
		return nil
	}
	home, err := state.Home()
	if err != nil {
		return err
	}
	switch sits, err := state.Attached(home, service.Sandbox); {
	case err != nil:
		return fmt.Errorf("whether somebody sits at %s cannot be told: %w", service.Service, err)
	case !sits:
		return nil
	case h.unasked:
		return &occupied{service.Service, why}
	case terminal(h.in) && terminal(h.err):
		return &undecided{service.Service, why}
	default:
		return exit.Invalidf("say --yes, or leave the session first (corral attach, corral shell)", "%s is to be made anew (%s), which ends the session of somebody who sits at it", service.Service, why)
	}
}

// undecided is a change that a person has to say yes to, who can be asked.
type undecided struct{ service, why string }

func (u *undecided) Error() string {
	return fmt.Sprintf("%s is to be made anew (%s), which ends the session of somebody who sits at it", u.service, u.why)
}

// decide asks. Nobody waits meanwhile: the caller holds no lock.
func (a *app) decide(ctx context.Context, u *undecided) error {
	yes, err := a.ask(ctx, printable.Escape("corral: "+u.Error()+". Go on? [y/N] "))
	if err == nil && !yes {
		err = exit.Invalidf("corral up asks again; a watch makes the change when nobody sits there", "%s stays as it is for now", u.service)
	}
	return err
}

// later is nil for what waits, which is noted.
func (h *healing) later(err error) error {
	var waits *occupied
	if errors.As(err, &waits) {
		h.notes = append(h.notes, waits.Error())
		return nil
	}
	return err
}

// onlyLasting is nil if all members are of an always-on sandbox, else the first
// that is not.
func onlyLasting(members []engine.Member) *engine.Member {
	for i := range members {
		if members[i].Purpose != engine.PurposeDaemon {
			return &members[i]
		}
	}
	return nil
}

// look finds out what there is. What another policy of the same file left, and
// what is of another kind, is in the way and goes.
func (h *healing) look(ctx context.Context, members []engine.Member) error {
	if onlyLasting(members) != nil {
		if err := h.engine.Clear(ctx, h.project.policy.File); err != nil {
			return err
		}
		members = nil
	}
	old := slices.DeleteFunc(slices.Clone(members), func(m engine.Member) bool { return m.Sandbox == h.project.id() })
	for _, m := range old {
		if m.Role != engine.RoleService {
			continue
		}
		if err := h.mayEnd(ctx, m, "the policy has another name now"); err != nil {
			return err
		}
	}
	if len(old) > 0 {
		h.sayf("%s ends: the policy has another name now", old[0].Sandbox)
		if err := h.engine.Down(ctx, old); err != nil {
			return err
		}
		for _, id := range sandboxes(old) { // it stays to be told, as do its later changes
			if findings, err := changedSince(ctx, id); !errors.Is(err, errNoBaseline) {
				showFindings(h.err, id, findings, err)
			}
		}
	}
	members, err := h.renamed(ctx, slices.DeleteFunc(members, func(m engine.Member) bool { return m.Sandbox != h.project.id() }))
	if err != nil {
		return err
	}
	h.gates, h.services = map[string]engine.Member{}, map[string]engine.Member{}
	var paused []engine.Member
	for i, m := range members {
		if m.State == "paused" {
			h.sayf("%s was paused: it goes on", spoken(m))
			paused = append(paused, m)
			members[i].Running, members[i].State = true, "running"
		}
		switch m.Role {
		case engine.RoleGate:
			h.gates[m.Service] = members[i]
		case engine.RoleService:
			h.services[m.Service] = members[i]
		}
	}
	return h.engine.Resume(ctx, paused)
}

// renamed gives what somebody renamed its name again, without which it would be lost
// once its other half is gone. Where another of the sandbox has that name by now, that
// one stays.
func (h *healing) renamed(ctx context.Context, members []engine.Member) ([]engine.Member, error) {
	var out []engine.Member
	for _, m := range members {
		if m.Name == m.MadeAs() {
			out = append(out, m)
			continue
		}
		taken, err := h.engine.Rename(ctx, m)
		switch {
		case err != nil:
			return nil, err
		case !taken:
			h.sayf("%s had another name (%s): it has its own again", spoken(m), m.Name)
			m.Name = m.MadeAs()
			out = append(out, m)
			continue
		case !slices.ContainsFunc(members, func(other engine.Member) bool { return other.Name == m.MadeAs() }):
			return nil, exit.Failedf("docker rename "+m.MadeAs()+" NAME gives that one another", "%s has another name (%s), and what is not of this sandbox has its own", spoken(m), m.Name)
		}
		if err := h.mayEnd(ctx, m, "it is a second one"); err != nil {
			return nil, err
		}
		h.sayf("%s is a second %s: it ends", m.Name, spoken(m))
		if err := h.engine.Down(ctx, []engine.Member{m}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// anew replaces a gate, with everything that is behind it, for a reason that
// is empty if there is nothing yet. What can fail comes before the old ones end.
func (h *healing) anew(ctx context.Context, p part, why string) error {
	h.did = true
	err := h.getReady(ctx)
	if err == nil {
		err = h.connected(ctx)
	}
	if err == nil {
		err = h.prepare(ctx)
	}
	for _, s := range h.project.policy.HostServices {
		if err == nil && p.main() {
			err = engine.Unserved(ctx, s.Port)
		}
	}
	if err != nil && why != "" {
		return fmt.Errorf("%s is to be made anew (%s): %w", h.gateOf(p), why, err)
	}
	if err != nil {
		return err
	}
	if why != "" {
		h.sayf("%s is made anew (%s)%s", h.gateOf(p), why, ends(p.services))
	}
	if h.was && !strings.HasPrefix(why, otherWanted) {
		h.count(false, cmp.Or(of(h.gateOf(p), why), "all of it was gone"))
	}
	older := h.onRecord(p)
	there := p.services
	if p.gate.ID != "" {
		there = append(slices.Clone(there), p.gate)
	}
	if err := h.engine.Down(ctx, there); err != nil {
		return err
	}
	delete(h.gates, p.name)
	for _, m := range p.services {
		delete(h.services, m.Service)
	}
	w := h.anotherLook(ctx, p, older)
	up, err := h.bringPart(ctx, h.engine, h.project, p.name, engine.AddressesOf(slices.Collect(maps.Values(h.gates))), engine.PurposeDaemon, nil, nil)
	if err != nil {
		w.abandon(h.project)
		return err
	}
	h.gates[p.name] = up.gate.Member()
	if err := w.begun(ctx); err != nil {
		if h.endPart(ctx, h.engine, up) {
			w.abandon(h.project)
		}
		return err
	}
	w.leave() // what was there at the start is on record, for status and down
	var errs []error
	for _, s := range up.services {
		errs = append(errs, h.started(ctx, s.id, h.engine.Begin(ctx, s.id, up.gate.Service(s.name))))
	}
	return errors.Join(errs...)
}

// connected brings back the network of a sandbox that was on it.
func (h *healing) connected(ctx context.Context) error {
	if !h.was {
		return nil // corral install makes it, once it has looked at the machine
	}
	set, err := wished()
	if err != nil {
		return err
	}
	h.engine.Trusted = h.project.host.Certificates
	_, err = h.engine.MendNetwork(ctx, h.guests, set.Subnet)
	return err
}

// named builds images anew that are gone, by their names, under what is up: it goes
// on with what it has of them, and nothing could be proven or made beside it. It says
// why all is made anew, if what comes of the same files is another image now.
func (h *healing) named(ctx context.Context, p part) (why string, err error) {
	lost := unnamed(append([]engine.Member{p.gate}, p.services...))
	if len(lost) == 0 {
		return "", nil
	}
	h.did = true
	if err := h.ready(ctx, h.project, toHeal); err != nil {
		return "", err
	}
	if err := h.prepare(ctx); err != nil {
		return "", err
	}
	members, err := h.engine.Members(ctx, h.project.policy.File)
	if err != nil {
		return "", err
	}
	if still := unnamed(members); len(still) > 0 {
		return "the image of " + strings.Join(still, " and of ") + " was gone, and is another one now", nil
	}
	return "", nil
}

// unnamed are the containers whose images have lost their names, as people call them.
func unnamed(members []engine.Member) []string {
	var out []string
	for _, m := range members {
		if m.Unnamed {
			out = append(out, spoken(m))
		}
	}
	return out
}

// prepare makes the images of what is asked for, and looks whether the rest of
// it can be made.
func (h *healing) prepare(ctx context.Context) (err error) {
	p := h.project
	if p.network, p.host.Subnet, err = inForce(ctx, h.engine); err != nil {
		return err
	}
	planned, err := p.draft(ctx, h.engine, plan.Addresses{}, nil)(plan.Addresses{})
	if err != nil {
		return err
	}
	h.engine.Trusted = p.host.Certificates
	return h.engine.Prepare(ctx, h.guests, p.network, planned)
}

// ends says what a replacement ends.
func ends(services []engine.Member) string {
	var names []string
	for _, m := range services {
		if m.Running {
			names = append(names, m.Service)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(", and %s with it: what ran there was ended", strings.Join(names, " and "))
}

// serve brings up a service that joins a gate that is well.
func (h *healing) serve(ctx context.Context, p part, planned plan.Service, now *engine.Gate, status spec.GateStatus) error {
	service := h.services[planned.Name]
	differs, err := h.differs(now, planned, service)
	if err != nil {
		return err
	}
	unbound := h.project.unboundBy(service)
	why, again := serviceWrong(service, differs, status.Instance, unbound)
	if why == "" && !again {
		switch err := h.engine.Begun(ctx, service.ID); {
		case errors.Is(err, engine.ErrHandover):
			why = err.Error()
		case errors.As(err, new(*engine.Ended)): // since it was listed, as by a stop that was on its way
			service.Running, service.State = false, "exited"
			why, again = serviceWrong(service, differs, status.Instance, unbound)
		case err != nil:
			return stayed(err)
		default:
			if unbound {
				h.notes = append(h.notes, bindGone)
			}
			return nil
		}
	}
	if len(differs) > 0 && service.Instance == status.Instance {
		if err := h.mayEnd(ctx, service, why); err != nil {
			return err
		}
	}
	if err := h.getReady(ctx); err != nil {
		return err
	}
	if now, err = h.sketch(ctx, p); err != nil {
		return err
	}
	planned = now.Service(planned.Name)
	if again { // what the repositories need was as at the first start until now
		differs, err := h.differs(now, planned, service)
		if err != nil {
			return err
		}
		if len(differs) == 0 {
			return h.again(ctx, service, planned)
		}
		why = "other files are bound now: " + strings.Join(differs, ", ")
	}
	if err := h.prepare(ctx); err != nil {
		return err
	}
	ended := ""
	if service.Running {
		ended = ": what ran there was ended"
	}
	h.sayf("%s is made anew (%s)%s", planned.Name, why, ended)
	if !strings.HasPrefix(why, otherWanted) {
		h.count(false, of(planned.Name, why))
	}
	older := h.onRecord(p)
	if service.ID != "" {
		if err := h.engine.Retire(ctx, service); err != nil {
			return err
		}
	}
	w := h.anotherLook(ctx, p, older)
	id, err := h.engine.CreateService(ctx, now, planned, h.project.secretsOf(planned), engine.TerminalOf(planned, engine.PurposeDaemon))
	if err != nil {
		w.abandon(h.project)
		return err
	}
	return h.begin(ctx, w, id, planned, func() bool { return h.engine.Remove(ctx, id) == nil })
}

// serviceWrong says why a service behind a gate that is well is made anew, empty
// if it is not, and whether it is to be started again. A service that runs does
// not end because an editor replaced the policy file.
func serviceWrong(s engine.Member, differs []string, instance string, unbound bool) (why string, again bool) {
	switch {
	case s.ID == "":
		return "it is gone", false
	case len(differs) > 0:
		return otherWanted + strings.Join(differs, ", "), false
	case s.Instance != instance:
		return "its gate was started again", false
	case s.Running:
		return "", false
	case s.State == "created": // nobody knows whether there was a first look
		return "it was never started", false
	case s.State != "exited":
		return "it is gone", false
	case unbound:
		return "the policy file was replaced on this machine, so its read-only bind was gone", false
	}
	return "", true
}

// again starts a service that has ended, as it was. What it changed so far that
// this machine would execute stays to be told.
func (h *healing) again(ctx context.Context, service engine.Member, planned plan.Service) error {
	why := cmp.Or(h.engine.WhyEnded(ctx, service), "it ended")
	h.sayf("%s is started again (%s)", service.Service, why)
	h.count(true, of(service.Service, why))
	return h.started(ctx, service.ID, h.engine.Begin(ctx, service.ID, planned))
}

// differs are the parts of a service that is up which would be made otherwise now.
func (h *healing) differs(now *engine.Gate, planned plan.Service, service engine.Member) ([]string, error) {
	return h.engine.Differs(now, h.project.secretsOf(planned), service)
}

// otherWanted begins why something is made anew that is as well as ever: nothing was
// mended.
const otherWanted = "another is asked for: "

// of says whose reason it is, for who reads it elsewhere than beside that: "it is gone" would
// say of nothing that it is.
func of(what, why string) string {
	if why == "" {
		return ""
	}
	return what + ": " + why
}

// count keeps how often that was done to what was up before, for status. What cannot be
// kept is told, and keeps nothing down.
func (h *healing) count(again bool, why string) {
	h.keepCount(func(done *state.Heals) bool {
		switch {
		case done == nil: // it was not up yet
			return false
		case again:
			done.StartedAgain++
		default:
			done.MadeAnew++
		}
		done.Last, done.Why = time.Now().UTC(), why
		return true
	})
}

// keepCount keeps the count as change leaves it, if that says so.
func (h *healing) keepCount(change func(*state.Heals) bool) {
	home, err := state.Home()
	if err != nil {
		h.app.sayf("how often it was mended cannot be kept: %v", err)
		return
	}
	done, err := state.Healed(home, h.project.id())
	if err != nil {
		h.app.sayf("how often it was mended cannot be read, and counts anew: %v", err)
		done = &state.Heals{}
	}
	if !change(done) && err == nil {
		return
	}
	if done == nil {
		done = &state.Heals{}
	}
	if err := state.SetHealed(home, h.project.id(), done); err != nil {
		h.app.sayf("how often it was mended cannot be kept: %v", err)
	}
}

// begin starts a new service after the first look at what it may change, or
// takes it away again with drop.
func (h *healing) begin(ctx context.Context, w *watch, id string, s plan.Service, drop func() bool) error {
	if err := w.begun(ctx); err != nil {
		if drop() {
			w.abandon(h.project)
		}
		return err
	}
	w.leave() // what was there at the start is on record, for status and down
	return h.started(ctx, id, h.engine.Begin(ctx, id, s))
}

// started is what became of a start. A service that may be on its way still is
// taken away: nobody knows what it would become.
func (h *healing) started(ctx context.Context, id string, err error) error {
	if err != nil && !errors.As(err, new(*engine.Ended)) {
		return errors.Join(err, h.engine.Remove(ctx, id))
	}
	return stayed(err)
}

// stayed says what to do about a service that did not stay.
func stayed(err error) error {
	if errors.As(err, new(*engine.Ended)) {
		return exit.Failedf("corral logs has what it said; profile_options.shell.command is what profile shell runs", "%w", err)
	}
	return err
}

// onRecord is the first look at a sandbox, if there is one. One that cannot be read
// is told, and keeps nothing down.
func (h *healing) onRecord(p part) *wayback.Snapshot {
	if !p.main() {
		return nil // nothing of this machine's is mounted there
	}
	older, err := baseline(h.project.id())
	switch {
	case errors.Is(err, errNoBaseline):
		return nil
	case err != nil:
		showFindings(h.err, h.project.id(), nil, err)
		return nil
	}
	return &older
}

// anotherLook tells what changed since an older look, if there is one, under a
// service that has ended, and begins to look anew. It stays to be told: perhaps
// nobody reads what a heal says.
func (h *healing) anotherLook(ctx context.Context, p part, older *wayback.Snapshot) *watch {
	if !p.main() {
		return nil
	}
	if older != nil {
		findings, err := compare(ctx, *older, nil)
		showFindings(h.err, h.project.id(), findings, err)
	}
	return h.lookBack(ctx, h.project, older)
}

// carried brings back relays that ended under a gate that is well.
func (h *healing) carried(ctx context.Context, p part, now *engine.Gate) error {
	relays, err := h.engine.RelayHealth(ctx, []engine.Member{p.gate})
	if err != nil {
		return err
	}
	for _, r := range relays {
		if r.OK {
			continue
		}
		h.sayf("the relay of host port %s is made anew (%s)", r.Carries, r.Why)
		h.engine.Trusted = h.project.host.Certificates
		image, err := h.engine.GateImage(ctx, h.guests)
		if err != nil {
			return err
		}
		return h.engine.Carry(ctx, image, now)
	}
	return nil
}

func (h *healing) refresh(ctx context.Context, now *engine.Gate) error {
	done, err := h.engine.Refresh(ctx, now)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	err = showRefreshed(&said, done)
	if said.String() != nothingRefreshed {
		_, _ = said.WriteTo(h.err)
	}
	return err
}

// unboundBy reports whether the policy file that a service has bound over itself
// is another one than there is.
func (p *project) unboundBy(service engine.Member) bool {
	return unbound(policy.Seen{Dev: p.policy.Self.Dev, Ino: p.policy.Self.Ino}, []engine.Member{service})
}
