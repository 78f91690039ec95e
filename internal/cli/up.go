package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
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

With --watch it stays, follows the engine, and heals what ends. A signal ends
the watch and leaves the sandbox up.`,
		Example: `  corral up
  corral up --watch`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				if err := a.bringUp(c.Context(), e, p); err != nil {
					return err
				}
				if !watch {
					return nil
				}
				return a.keepUp(c.Context(), e, p)
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "stay, and heal what ends")
	c.Flags().Bool("wait", true, "return when all of it runs, as it does anyway")
	a.acceptFlag(c)
	return c
}

// bringUp brings up an always-on sandbox and says what it did.
func (a *app) bringUp(ctx context.Context, e *engine.Engine, p *project) error {
	did, err := a.heal(ctx, e, p)
	if err != nil {
		return err
	}
	if did {
		fmt.Fprintf(a.err, "corral: %s is up\n", p.id())
	} else {
		fmt.Fprintf(a.err, "corral: %s is up already\n", p.id())
	}
	return nil
}

// heal brings up what is missing or wrong of an always-on sandbox, and touches
// nothing else. It reports whether there was anything.
func (a *app) heal(ctx context.Context, e *engine.Engine, p *project) (did bool, err error) {
	if p.policy.Mode != policy.Daemon {
		return false, exit.Invalidf("corral run runs it; mode: daemon in the policy makes it always on", "%s: mode: run is for as long as somebody looks after it", p.policy.File)
	}
	if err := a.agreed(ctx, p); err != nil {
		return false, err
	}
	home, err := state.Home()
	if err != nil {
		return false, err
	}
	unlock, err := state.Lock(home, p.id())
	if err != nil {
		return false, err
	}
	defer unlock()
	h := &healing{app: a, engine: e, project: p}
	if h.guests, err = host.FindGuests(); err != nil {
		return false, err
	}
	err = h.heal(ctx)
	return h.did, err
}

// healing is one look at a sandbox and what is done about it.
type healing struct {
	*app
	engine  *engine.Engine
	project *project
	guests  host.Guests
	did     bool

	gate, service engine.Member // as they are, zero if there is none
}

func (h *healing) sayf(format string, args ...any) {
	h.did = true
	fmt.Fprintf(h.err, "corral: "+format+"\n", args...)
}

func (h *healing) heal(ctx context.Context) error {
	if err := h.look(ctx); err != nil {
		return err
	}
	if h.gate.ID == "" && h.service.ID == "" {
		h.did = true
		return h.whole(ctx)
	}
	status, why := spec.GateStatus{}, "it is gone"
	if h.gate.ID != "" {
		status, why = h.engine.GateWrong(ctx, h.gate)
	}
	if why != "" {
		return h.anew(ctx, why)
	}
	if err := h.project.asUp(ctx, h.engine, h.service); err != nil {
		return err
	}
	if err := h.project.identity(ctx); err != nil {
		return err
	}
	planned, err := h.project.draft(ctx, h.engine, nil)(h.gate.Address)
	if err != nil {
		return err
	}
	now, err := h.engine.Sketch(h.guests, planned, engine.PurposeDaemon)
	if err != nil {
		return err
	}
	now.ID = h.gate.ID
	differs, err := h.engine.Differs(now, h.project.secrets, h.gate)
	if err != nil {
		return err
	}
	if len(differs) > 0 {
		return h.anew(ctx, "another is asked for: "+strings.Join(differs, ", "))
	}
	if err := h.carried(ctx, now); err != nil {
		return err
	}
	if status.Policy != h.project.policy.Digest {
		h.sayf("the policy was changed: the gate is refreshed")
		if err := h.refresh(ctx, now); err != nil {
			return err
		}
	}
	return h.serve(ctx, now, status)
}

// look finds out what there is. What another policy of the same file left, and
// what is of another kind, is in the way and goes.
func (h *healing) look(ctx context.Context) error {
	members, err := h.engine.Members(ctx, h.project.policy.File)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(members, func(m engine.Member) bool { return m.Purpose != engine.PurposeDaemon }) {
		if err := h.engine.Clear(ctx, h.project.policy.File); err != nil {
			return err
		}
		members = nil
	}
	old := slices.DeleteFunc(slices.Clone(members), func(m engine.Member) bool { return m.Sandbox == h.project.id() })
	if len(old) > 0 {
		h.sayf("%s ends: the policy has another name now", old[0].Sandbox)
		if err := h.engine.Down(ctx, old); err != nil {
			return err
		}
	}
	var paused []engine.Member
	for i, m := range members {
		if m.Sandbox != h.project.id() {
			continue
		}
		if m.State == "paused" {
			h.sayf("%s was paused: it goes on", spoken(m))
			paused = append(paused, m)
			members[i].Running, members[i].State = true, "running"
		}
		switch m.Role {
		case engine.RoleGate:
			h.gate = members[i]
		case engine.RoleService:
			h.service = members[i]
		}
	}
	return h.engine.Resume(ctx, paused)
}

// anew replaces the gate, with everything that is behind it.
func (h *healing) anew(ctx context.Context, why string) error {
	h.sayf("the gate is made anew (%s)%s", why, h.ends())
	var there []engine.Member
	for _, m := range []engine.Member{h.service, h.gate} {
		if m.ID != "" {
			there = append(there, m)
		}
	}
	if err := h.engine.Down(ctx, there); err != nil {
		return err
	}
	return h.whole(ctx)
}

// ends says what a replacement ends.
func (h *healing) ends() string {
	if h.service.Running {
		return fmt.Sprintf(", and %s with it: what ran there was ended", h.service.Service)
	}
	return ""
}

// whole brings up everything.
func (h *healing) whole(ctx context.Context) error {
	if err := h.ready(ctx, h.project, toStart); err != nil {
		return err
	}
	w, err := h.anotherLook(ctx)
	if err != nil {
		return err
	}
	g, id, err := h.bring(ctx, h.engine, h.project, engine.PurposeDaemon, nil, engine.Terminal{})
	if err != nil {
		w.abandon(h.project)
		return err
	}
	return h.begin(ctx, w, id, func() bool { return h.end(ctx, h.engine, g, id) })
}

// serve brings up what joins a gate that is well.
func (h *healing) serve(ctx context.Context, now *engine.Gate, status spec.GateStatus) error {
	why := ""
	switch differs, err := h.engine.Differs(now, h.project.secrets, h.service); {
	case h.service.ID == "":
		why = "it is gone"
	case err != nil:
		return err
	case len(differs) > 0:
		why = "another is asked for: " + strings.Join(differs, ", ")
	case h.service.Instance != status.Instance:
		why = "its gate was started again"
	case h.project.unboundBy(h.service):
		why = "the policy file was replaced on this machine, so its read-only bind was gone"
	case !h.service.Running:
		return h.again(ctx)
	default:
		return nil
	}
	name := now.Plan.Services[0].Name
	ended := ""
	if h.service.Running {
		ended = ": what ran there was ended"
	}
	h.sayf("%s is made anew (%s)%s", name, why, ended)
	if h.service.ID != "" {
		if err := h.engine.Remove(ctx, h.service.ID); err != nil {
			return err
		}
	}
	h.project.host.Shields, h.project.shields, h.project.host.Furniture = nil, nil, nil // as they are now
	if err := h.ready(ctx, h.project, toStart); err != nil {
		return err
	}
	planned, err := h.project.draft(ctx, h.engine, nil)(h.gate.Address)
	if err != nil {
		return err
	}
	g, err := h.engine.Sketch(h.guests, planned, engine.PurposeDaemon)
	if err != nil {
		return err
	}
	g.ID = h.gate.ID
	w, err := h.anotherLook(ctx)
	if err != nil {
		return err
	}
	id, err := h.engine.CreateService(ctx, g, planned.Services[0], h.project.secrets, engine.Terminal{})
	if err != nil {
		w.abandon(h.project)
		return err
	}
	return h.begin(ctx, w, id, func() bool { return h.engine.Remove(ctx, id) == nil })
}

// again starts a service that has ended, as it was. What it changed so far that
// this machine would execute stays to be told.
func (h *healing) again(ctx context.Context) error {
	why := h.engine.WhyEnded(ctx, h.service)
	if why == "" {
		why = "it was never started"
	}
	h.sayf("%s is started again (%s)", h.service.Service, why)
	if err := h.preLaunch(ctx, h.project); err != nil {
		return err
	}
	return h.started(h.engine.Begin(ctx, h.service.ID))
}

// begin starts a new service after the first look at what it may change, or
// takes it away again with drop.
func (h *healing) begin(ctx context.Context, w *watch, id string, drop func() bool) error {
	if err := w.begun(ctx); err != nil {
		if drop() {
			w.abandon(h.project)
		}
		return err
	}
	w.stop() // what was there at the start is on record, for status and down
	return h.started(h.engine.Begin(ctx, id))
}

// started says what to do about a service that did not stay.
func (h *healing) started(err error) error {
	if ended := (*engine.Ended)(nil); errors.As(err, &ended) {
		return exit.Failedf("corral logs has what it said; profile_options.shell.command is what profile shell runs", "%w", err)
	}
	return err
}

// anotherLook tells what changed so far under a service that ends, and begins
// to look anew.
func (h *healing) anotherLook(ctx context.Context) (*watch, error) {
	findings, err := changedSince(ctx, h.project.id())
	if !errors.Is(err, errNoBaseline) {
		showFindings(h.err, h.project.id(), findings, err)
	}
	if err := keepBaseline(h.project.id(), nil); err != nil {
		return nil, err
	}
	return h.lookBack(ctx, h.project), nil
}

// carried brings back relays that ended under a gate that is well.
func (h *healing) carried(ctx context.Context, now *engine.Gate) error {
	relays, err := h.engine.RelayHealth(ctx, []engine.Member{h.gate})
	if err != nil {
		return err
	}
	for _, r := range relays {
		if r.OK {
			continue
		}
		h.sayf("the relay of host port %s is made anew (%s)", r.Carries, r.State)
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
	return showRefreshed(h.err, done)
}

// unboundBy reports whether the policy file that a service has bound over itself
// is another one than there is.
func (p *project) unboundBy(service engine.Member) bool {
	return unbound(policy.Seen{Dev: p.policy.Self.Dev, Ino: p.policy.Self.Ino}, []engine.Member{service})
}

// How long a watch waits after something happened before it heals: longer each
// time, until there was calm.
const (
	healFirst = time.Second
	healLast  = time.Minute
	calm      = 2 * time.Minute
	// lookAnyway is how often to look without a word from the engine, which does
	// not know whether a gate answers.
	lookAnyway = 30 * time.Second
)

// keepUp heals an always-on sandbox whenever something happened to it, until
// ctx ends or somebody takes it down.
func (a *app) keepUp(ctx context.Context, e *engine.Engine, p *project) error {
	unattended := *a
	unattended.in, unattended.quiet = strings.NewReader(""), true // nobody is there to be asked
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	poke := make(chan struct{}, 1)
	go func() {
		_ = e.Watch(ctx, p.policy.File, func() {
			select {
			case poke <- struct{}{}:
			default:
			}
		})
	}()
	fmt.Fprintf(a.err, "corral: watching %s\n", p.id())
	pause, healed, told := healFirst, time.Time{}, ""
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
		case <-poke:
		case <-retry:
		case <-time.After(lookAnyway):
		}
		if time.Since(healed) > calm {
			pause = healFirst
		}
		select { // what belongs together happens within a moment
		case <-ctx.Done():
			fmt.Fprintf(a.err, "corral: %s is not watched any more, and stays up\n", p.id())
			return nil
		case <-time.After(pause):
		}
		retry = nil
		down, did, err := unattended.healNow(ctx, e, p.policy.File)
		switch {
		case ctx.Err() != nil:
			continue
		case down:
			fmt.Fprintf(a.err, "corral: %s was taken down\n", p.id())
			return nil
		case err != nil:
			if said := err.Error(); said != told { // the same again is no news
				told = said
				unattended.report(err)
			}
			retry = time.After(0)
		case did:
			fmt.Fprintf(a.err, "corral: %s is up\n", p.id())
			told = ""
		default:
			told = ""
			continue
		}
		pause, healed = min(2*pause, healLast), time.Now()
	}
}

// healNow heals by the policy as it is now. Nothing left of it at all means
// that somebody took it down.
func (a *app) healNow(ctx context.Context, e *engine.Engine, file string) (down, did bool, err error) {
	members, err := e.Members(ctx, file)
	if err != nil {
		return false, false, err
	}
	if len(members) == 0 {
		return true, false, nil
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return false, false, exit.Failedf("corral down ends what is up", "%s is gone", printable.Escape(file))
	}
	p, err := a.load()
	if err != nil {
		return false, false, err
	}
	did, err = a.heal(ctx, e, p)
	return false, did, err
}
