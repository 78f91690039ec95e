package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// beginWithin bounds a handover: a score of checks.
	beginWithin = 60 * time.Second
	// beginLook is how often to look whether it is over.
	beginLook = 50 * time.Millisecond
	// refreshWithin bounds a refresh: many names, slow name servers.
	refreshWithin = 5 * time.Minute
)

// Begin starts a service on nobody's terminal and waits until it has begun, and where
// others call it, until it answers.
func (e *Engine) Begin(ctx context.Context, id string, s plan.Service) error {
	if err := e.api.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	e.lap("service started")
	if err := e.begun(ctx, id); err != nil || s.Serves == 0 {
		return err
	}
	defer e.waiting("waiting until %s answers", s.Name)()
	err := e.serves(ctx, id, s)
	if err == nil {
		e.lap("%s answers", s.Name)
	}
	return err
}

func (e *Engine) begun(ctx context.Context, id string) error {
	defer e.waiting("waiting for the handover")()
	err := e.Begun(ctx, id)
	if err == nil {
		e.lap(HandoverStep)
	}
	return err
}

// servesWithin bounds the start of a program that others call.
const servesWithin = 60 * time.Second

// serves waits until a service that has begun answers at its port.
func (e *Engine) serves(ctx context.Context, id string, s plan.Service) error {
	ctx, cancel := context.WithTimeoutCause(ctx, servesWithin, fmt.Errorf("%s does not answer at port %d within %v", s.Name, s.Serves, servesWithin))
	defer cancel()
	_, err := e.exec(ctx, id, nil, spec.GuestDir+"/bin/corral-verify", "serving", fmt.Sprint(s.Serves))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if state, known := e.State(ctx, id); known && state != container.StateRunning {
		return &Ended{Why: e.WhyEnded(ctx, Member{ID: id, Role: RoleService})}
	}
	return e.unlessTakenDown(ctx, id, fmt.Errorf("service %s: %w", s.Name, err))
}

// HandoverStep is what the time of a handover is of.
const HandoverStep = "handover, to the harness's start"

// ErrHandover is a service that was started and whose harness does not run yet.
var ErrHandover = fmt.Errorf("its handover was not over within %v", beginWithin)

// Begun waits until the handover of a service that was started is over and the
// harness runs. A service that has ended by then is Ended.
func (e *Engine) Begun(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, beginWithin, ErrHandover)
	defer cancel()
	look := time.NewTicker(beginLook)
	defer look.Stop()
	for {
		got, err := e.api.ContainerInspect(ctx, id)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
		case !got.State.Running:
			return &Ended{Why: e.WhyEnded(ctx, Member{ID: id, Role: RoleService})}
		}
		if e.handedOver(ctx, id, got.State.Pid) {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// SeeHandover waits until the handover of a service that somebody else starts is over and
// the harness runs. It is false if the service ended before that was seen, or ctx did.
func (e *Engine) SeeHandover(ctx context.Context, id string) bool {
	look := time.NewTicker(beginLook)
	defer look.Stop()
	for {
		got, err := e.api.ContainerInspect(ctx, id)
		switch {
		case err != nil:
			return false
		case got.State.Status == container.StateCreated:
		case !got.State.Running:
			return false
		case e.handedOver(ctx, id, got.State.Pid):
			return true
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// Ended is a service that was started and has ended.
type Ended struct{ Why string }

func (e *Ended) Error() string { return "the service ended as soon as it was started: " + e.Why }

// handedOver reports whether something else runs in a service than its init and the
// handover. It is no check: who says so is the agent's.
func (e *Engine) handedOver(ctx context.Context, id string, init int) bool {
	top, err := e.api.ContainerTop(ctx, id, []string{"-eo", "pid,args"})
	if err != nil {
		return false // it may have ended
	}
	handover := strings.Join(render.Entrypoint, " ")
	return slices.ContainsFunc(top.Processes, func(p []string) bool {
		return len(p) == 2 && strings.TrimSpace(p[0]) != fmt.Sprint(init) && !strings.HasPrefix(strings.TrimSpace(p[1]), handover)
	})
}

// A gate has so many chances to answer, and so long between them: one question
// may be lost on a machine that is short of something.
const (
	gateChances = 2
	chancePause = time.Second
)

// GateWrong says what is wrong with a gate that should serve, empty if nothing
// is, and what the gate says of itself if it answers. That the engine does not
// say how the gate is, is an error.
func (e *Engine) GateWrong(ctx context.Context, gate Member) (spec.GateStatus, string, error) {
	var none spec.GateStatus
	state := gate.State
	for missed := 0; ; {
		switch state {
		case container.StateRunning:
		case container.StatePaused:
			return none, "it is paused", nil
		default:
			why := e.WhyEnded(ctx, gate)
			if why != "" {
				why = ": " + why
			}
			return none, "it is gone" + why, nil
		}
		status, err := e.GateStatus(ctx, gate.ID)
		pause := chancePause
		switch young := (err != nil || status.State != spec.GateReady) && e.young(ctx, gate.ID); {
		case young:
			pause = youngLook
		case err == nil:
			return status, unsound(status), nil
		default:
			missed++
		}
		known := false
		if state, known = e.State(ctx, gate.ID); !known {
			return none, "", fmt.Errorf("how the gate is cannot be told: %w", cmp.Or(context.Cause(ctx), err, errSilent))
		}
		if missed == gateChances && state == container.StateRunning {
			return none, "it does not answer", nil
		}
		if state != container.StateRunning {
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return none, "", context.Cause(ctx)
		}
	}
}

// errSilent is an engine that does not say how a container is.
var errSilent = errors.New("the engine does not answer")

// A gate that was started a moment ago, by an engine say, may be on its way.
const (
	youth     = 20 * time.Second
	youngLook = 200 * time.Millisecond
)

func (e *Engine) young(ctx context.Context, id string) bool {
	s, known := e.stateOf(ctx, id)
	at, err := time.Parse(time.RFC3339Nano, s.StartedAt)
	return known && s.Running && err == nil && time.Since(at) < youth
}

// Started is when a container was started last, zero if it never was. It is not known
// if the engine does not say.
func (e *Engine) Started(ctx context.Context, id string) (at time.Time, known bool) {
	s, known := e.stateOf(ctx, id)
	if s.StartedAt == "" {
		return time.Time{}, known
	}
	at, err := time.Parse(time.RFC3339Nano, s.StartedAt)
	return at, known && err == nil
}

// Resume lets containers that somebody paused go on.
func (e *Engine) Resume(ctx context.Context, members []Member) error {
	var errs []error
	for _, m := range members {
		if m.State == container.StatePaused {
			errs = append(errs, e.api.ContainerUnpause(ctx, m.ID))
		}
	}
	return errors.Join(errs...)
}

// Prepare does of what StartGate and CreateService would do what may fail or
// take long, and makes no container: what is up can stay so until then.
func (e *Engine) Prepare(ctx context.Context, guests host.Guests, net plan.Network, p *plan.Plan) error {
	if err := e.CheckNetwork(ctx, net); err != nil {
		return err
	}
	if err := e.bindable(p); err != nil {
		return err
	}
	for _, s := range p.Services {
		if err := unmoved(s.Mounts); err != nil {
			return err
		}
	}
	tree, err := render.Render(p)
	if err != nil {
		return err
	}
	if _, _, err = e.Build(ctx, guests, p, tree); err != nil {
		return err
	}
	e.lap("plan; images that were missing")
	return nil
}

// Carry sees to it that what the gate of g needs of the host is carried.
func (e *Engine) Carry(ctx context.Context, image string, g *Gate) error {
	unlock, err := e.lock(ctx, image)
	if err != nil {
		return err
	}
	return errors.Join(e.carry(ctx, image, g), unlock())
}

// refreshDocument is where a gate finds the document that it is to go by from
// now on.
const refreshDocument = spec.GateFile + ".new"

// Refresh gives the gate g.ID the document of g's plan and lets it resolve its
// names anew, in place. If that fails the gate goes on by the document that it
// had, without what the new one takes away, and says so: a document that it does
// not take is an exit.Invalid and changes nothing. What could not be ended is no
// error: the new document is in force.
func (e *Engine) Refresh(ctx context.Context, g *Gate) (spec.Refreshed, error) {
	var done spec.Refreshed
	told := render.Tree{strings.TrimPrefix(refreshDocument, "/"): g.Tree[render.GateSpec(g.Name)]}
	if err := e.api.CopyToContainer(ctx, g.ID, "/", told.Tar(), container.CopyToContainerOptions{}); err != nil {
		return done, e.unlessTakenDown(ctx, g.ID, fmt.Errorf("gate: %w", err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, refreshWithin, fmt.Errorf("no answer within %v", refreshWithin))
	defer cancel()
	out, err := e.exec(ctx, g.ID, nil, spec.GuestDir+"/bin/corral-gate", "refresh", "--spec", refreshDocument, "--json")
	if exited := (*ExecError)(nil); errors.As(err, &exited) {
		if exited.Status == exit.Failed && spec.Decode(bytes.NewReader(out), &done) == nil && done.Unended != "" {
			return done, nil
		}
		return spec.Refreshed{}, refused(exited)
	}
	if err != nil {
		return done, e.unlessTakenDown(ctx, g.ID, fmt.Errorf("gate: %w", err))
	}
	if err := spec.Decode(bytes.NewReader(out), &done); err != nil {
		return done, fmt.Errorf("gate's answer to refresh: %w", err)
	}
	return done, nil
}

// refused is a refresh that a gate did not do, in its own words.
func refused(exited *ExecError) error {
	err := &exit.Error{Status: exit.Failed}
	if exited.Status == exit.Invalid {
		err.Status = exit.Invalid
	}
	var reasons []string
	for line := range strings.Lines(exited.Stderr) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "corral-gate: "))
		if hint, ok := strings.CutPrefix(line, "hint: "); ok {
			err.Hint = printable.Escape(hint)
		} else if line != "" {
			reasons = append(reasons, printable.Escape(line))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{fmt.Sprintf("it ended with status %d", exited.Status)}
	}
	err.Err = errors.New("the gate did not take all of it: " + strings.Join(reasons, "\n  "))
	return err
}
