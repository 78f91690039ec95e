package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/secret"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
)

func (a *app) verify() *cobra.Command {
	var asJSON, failed bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Prove the fence from the inside",
		Long: `Runs every check of the policy inside the sandbox and asks the gate to confirm
what was refused; the gate's own container, and each relay's, are proven beside
it. If the sandbox is not up, one is brought up for the purpose.
Exit 1 if a check failed or could not be told.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Invalidf("it proves all of it, and --failed prints only what does not hold", "%s takes no argument, got %q", c.CommandPath(), args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON && failed {
				return exit.Invalidf("what does not hold has another result there than ok, skip and note", "--failed is for lines, and --json writes every event")
			}
			var proof *engine.Proof
			of, err := a.load()
			if err == nil {
				proof, err = a.proveHere(c.Context(), of)
			}
			switch {
			case err != nil && asJSON:
				return errors.Join(err, a.showUntold(of, err))
			case errors.As(err, new(*unproven)):
				return a.showUnproven(err)
			case err != nil:
				return err
			case asJSON:
				return a.showJSON(of, proof)
			}
			return a.show(proof, failed)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "a stream of JSON events")
	c.Flags().BoolVar(&failed, "failed", false, "only what does not hold, and the tally of all")
	a.acceptFlag(c)
	return c
}

func (a *app) proveHere(ctx context.Context, p *project) (*engine.Proof, error) {
	e, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	return a.prove(ctx, e, p)
}

// prove verifies the sandbox that is up, or a throw-away one.
func (a *app) prove(ctx context.Context, e *engine.Engine, p *project) (proof *engine.Proof, err error) {
	members, err := e.Members(ctx, p.policy.File)
	if err != nil {
		return nil, err
	}
	if err := forAnother(members, p); err != nil {
		return nil, err
	}
	gate, service := running(members)
	if service.ID != "" {
		return a.proveRunning(ctx, e, p, members, gate, service)
	}
	if gate.Purpose == engine.PurposeDaemon {
		return nil, &unproven{exit.Failedf("corral up starts it", "%s: not started (there is a gate only)", gate.Service)}
	}
	if slices.ContainsFunc(members, func(m engine.Member) bool { return m.Purpose == engine.PurposeRun }) {
		if err := e.Clear(ctx, p.policy.File); err != nil { // before anything is asked
			return nil, between(err)
		}
	}
	if err := a.agreed(ctx, p); err != nil { // nobody is to wait for a person's answer
		return nil, err
	}
	done, err := a.onlyVerify(ctx, p.id())
	if err != nil {
		return nil, err
	}
	defer done()
	return a.proveNew(ctx, e, p)
}

// onlyVerify keeps other verifies from a sandbox until done is called. It waits
// for one that is at it, and says so.
func (a *app) onlyVerify(ctx context.Context, id string) (done func(), err error) {
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	return state.Wait(ctx, home, filepath.Join(id, "verify"), func() { a.sayf("waiting for another corral verify of %s", id) })
}

// proveNew verifies a sandbox that is made for it, which the caller keeps other
// verifies from.
func (a *app) proveNew(ctx context.Context, e *engine.Engine, p *project) (proof *engine.Proof, err error) {
	unlock, err := a.begin(ctx, e, p, toBuild)
	if err != nil {
		return nil, between(err)
	}
	defer unlock()
	a.sayf("nothing is up: what is proven is a sandbox made for it, which ends with the proof")
	w := a.lookBack(ctx, p, nil) // what the image brings is the agent's as well
	up, err := a.bring(ctx, e, p, engine.PurposeVerify, []string{"sleep", "infinity"}, engine.Terminal{})
	if err != nil {
		w.abandon(p)
		return nil, between(err)
	}
	defer func() {
		gone := a.end(ctx, e, up)
		w.end(ctx, a, p, gone)
	}()
	if err := w.begun(ctx); err != nil {
		return nil, err
	}
	stream, err := e.Start(ctx, up.agent())
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	proof, err = a.proveAll(ctx, e, p, up.gate(), up.standing())
	if err != nil {
		return nil, err
	}
	for _, s := range proof.Sections {
		if s.Service != plan.Main || !s.Untold() {
			continue
		}
		// Why it is not there to be proven it may have said itself.
		if said := stream.LastWords(ctx); said != "" {
			s.Events[0].Detail += fmt.Sprintf(" (the service said: %s)", printable.Escape(said))
		}
	}
	return proof, nil
}

// between is an error of bringing up a sandbox where there is one that cannot be proven:
// its service was not running, and yet it is in the way.
func between(err error) error {
	const wait = "wait a moment, then corral verify again; corral down ends one that stays as it is"
	var other *engine.Running
	switch {
	case errors.As(err, &other):
		return &unproven{exit.Failedf(wait, "sandbox %s is starting or ending", other.ID)}
	case errors.Is(err, state.ErrLocked):
		return &unproven{&exit.Error{Status: exit.Failed, Err: err, Hint: wait}}
	}
	return err
}

// proveAll proves a sandbox that is up.
func (a *app) proveAll(ctx context.Context, e *engine.Engine, p *project, g *engine.Gate, up engine.Standing) (*engine.Proof, error) {
	guests, err := host.FindGuests()
	if err != nil {
		return nil, err
	}
	e.Trusted = p.host.Certificates
	return e.Prove(ctx, g, guests, up)
}

// running are the gate and the service of the agent of a run that is up, or of a sandbox
// that is always on, however its service is; the service is zero if there is none.
func running(members []engine.Member) (gate, service engine.Member) {
	for _, m := range members {
		switch {
		case m.Service != plan.Main: // what serves the agent
		case m.Role == engine.RoleGate:
			gate = m
		case m.Role == engine.RoleService && (m.Running && m.Purpose == engine.PurposeRun || m.Purpose == engine.PurposeDaemon):
			service = m
		}
	}
	return gate, service
}

// outdated says how what is up differs from the policy as it is now, empty if
// it does not.
func (p *project) outdated(members []engine.Member, gate *spec.GateStatus) string {
	now := policy.Seen{Dev: p.policy.Self.Dev, Ino: p.policy.Self.Ino, Digest: p.policy.Digest}
	switch gone := unbound(now, members); {
	case changed(now, members, gate):
		wrong := fmt.Sprintf("the sandbox that is up (%s) was made from another version of %s", members[0].Sandbox, p.policy.File)
		if gone {
			wrong += "; " + bindGone
		}
		return wrong
	case gone:
		return bindGone
	}
	return ""
}

// well is what the gate of a service says, if the two are as they should be, whether
// or not somebody still looks after them.
func (a *app) well(ctx context.Context, e *engine.Engine, gate, service engine.Member) (spec.GateStatus, error) {
	return a.judge(e.Health(ctx, []engine.Member{gate, service})[0], service) // a service is always told
}

func (a *app) judge(h engine.Health, service engine.Member) (spec.GateStatus, error) {
	if h.Alone {
		a.sayf("%s: %s", h.Service, h.State)
	}
	if !h.OK && !h.Alone || h.Gate == nil {
		return spec.GateStatus{}, exit.Failedf(cure(service, "corral down ends it; the next corral run begins anew"), "%s: %s", h.Service, h.State)
	}
	return *h.Gate, nil
}

// cure is what brings right what is wrong with a service; once is said of one
// that is not always on.
func cure(service engine.Member, once string) string {
	if service.Purpose == engine.PurposeDaemon {
		return "corral up heals it"
	}
	return once
}

// show prints a proof as lines, of failed ones only, and turns it into the exit
// status. What to do about what does not hold comes last, each once, on standard error.
func (a *app) show(proof *engine.Proof, failed bool) error {
	write := report.Text
	if failed {
		write = report.Failures
	}
	var hints []string
	sections := slices.Clone(proof.Sections)
	for i, s := range sections {
		for _, hint := range s.Hints() {
			if !slices.Contains(hints, hint) {
				hints = append(hints, hint)
			}
		}
		sections[i] = s.Bare()
	}
	tally, err := write(a.out, sections, a.colour())
	if err != nil || tally.OK() {
		return err
	}
	if len(hints) == 0 {
		hints = []string{hintNone}
	}
	return exit.Failedf(strings.Join(hints, "; "), "not everything holds")
}

// hintNone is where to look if nothing is known of what to do.
const hintNone = "docs/verify.md has what a failure can mean"

// unproven is why nothing can be proven of a sandbox that is up.
type unproven struct{ error }

func (u *unproven) Unwrap() error { return u.error }

// showUnproven tells why nothing can be proven, with its hint, and reports it as a
// check that failed, so that whoever reads the lines has its tally.
func (a *app) showUnproven(why error) error {
	status := a.report(why)
	if _, err := report.Text(a.out, []report.Section{report.NotTold("", engine.Plain(why.Error()))}, a.colour()); err != nil {
		return err
	}
	return exit.Status(status)
}

// showJSON prints it as a stream of events.
func (a *app) showJSON(p *project, proof *engine.Proof) error {
	h := header(p)
	h.Purpose = proof.Purpose
	maps.Copy(h.Versions, proof.Versions)
	maps.Copy(h.Digests, proof.Digests)
	return verdict(report.JSON(a.out, h, proof.Sections))
}

// showUntold prints the same stream where nothing could be proven, but for who was
// interrupted: a stream without its last event was cut off.
func (a *app) showUntold(p *project, why error) error {
	if errors.Is(why, context.Canceled) {
		return nil
	}
	section := report.NotTold("", engine.Plain(why.Error()))
	if known := (*exit.Error)(nil); errors.As(why, &known) {
		section.Hint = known.Hint
	} else {
		section.Hint = hint(why)
	}
	_, err := report.JSON(a.out, header(p), []report.Section{section})
	return err
}

// header is what is known of a proof before anything is proven; p is nil if the
// policy could not be read.
func header(p *project) report.Header {
	h := report.Header{Time: time.Now().UTC(), Versions: map[string]string{"corral": spec.Release()}, Digests: map[string]string{}}
	if p != nil {
		h.Sandbox, h.Digests["policy"] = p.id(), p.policy.Digest
	}
	return h
}

func verdict(t report.Tally, err error) error {
	if err == nil && !t.OK() {
		return exit.Status(exit.Failed)
	}
	return err
}

func (a *app) proveRunning(ctx context.Context, e *engine.Engine, p *project, members []engine.Member, gate, service engine.Member) (*engine.Proof, error) {
	status, err := a.well(ctx, e, gate, service)
	if err != nil {
		return nil, &unproven{err}
	}
	if wrong := p.outdated(members, &status); wrong != "" {
		return nil, &unproven{exit.Failedf(cure(service, "corral down ends it; the next verify proves the policy as it is now"), "cannot tell: %s", wrong)}
	}
	if err := p.asUp(ctx, e, service); err != nil {
		return nil, err
	}
	guests, err := host.FindGuests()
	if err != nil {
		return nil, err
	}
	g, err := p.sketch(ctx, e, guests, members, gate)
	if err != nil {
		return nil, err
	}
	for i := range g.Plan.Services {
		g.Plan.Services[i].Passed = passed // whoever brought it up had others of them, perhaps
	}
	// Two checkers would be in each other's way: their probes have the same ports.
	unlock, err := a.onlyVerify(ctx, g.Plan.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return a.proveAll(ctx, e, p, g, engine.StandingOf(members))
}

// asUp takes from a service that is up, and from this machine, what else its
// plan needs: what depends on how the machine looked at the start is as it was.
func (p *project) asUp(ctx context.Context, e *engine.Engine, service engine.Member) error {
	var err error
	if p.network, p.host.Subnet, err = inForce(ctx, e); err != nil {
		return err
	}
	p.host.Shields, p.host.Furniture, p.host.Submounts = service.Shields, service.Furniture, service.Submounts
	p.secrets, err = p.variables()
	p.host.Secrets = names(p.secrets)
	return err
}

// sketch is the sandbox as it would be made now behind a gate that is up, with those of
// its gates among members where they are.
func (p *project) sketch(ctx context.Context, e *engine.Engine, guests host.Guests, members []engine.Member, gate engine.Member) (*engine.Gate, error) {
	if err := p.identity(ctx); err != nil {
		return nil, err
	}
	planned, err := p.draft(ctx, e, engine.AddressesOf(members), nil)(plan.Addresses{})
	if err != nil {
		return nil, err
	}
	g, err := e.Sketch(guests, planned, gate.Service, gate.Purpose)
	if err != nil {
		return nil, err
	}
	g.ID = gate.ID
	return g, nil
}

// variables are what the policy's env_file says.
func (p *project) variables() ([]secret.Var, error) {
	if p.policy.EnvFile.Path == "" {
		return nil, nil
	}
	owners := []uint32{p.host.UID}
	if os.Geteuid() == 0 {
		owners = append(owners, 0)
	}
	return secret.Load(p.policy.EnvFile.Path, owners...)
}

func names(vars []secret.Var) []string {
	var out []string
	for _, v := range vars {
		out = append(out, v.Name)
	}
	return out
}
