package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/exit"
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

// Begin starts a service on nobody's terminal and waits until its handover is
// over and the harness runs. A service that has ended by then is an error that
// says why.
func (e *Engine) Begin(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, beginWithin, fmt.Errorf("its handover was not over within %v", beginWithin))
	defer cancel()
	if err := e.api.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return fmt.Errorf("service: %s", longID.ReplaceAllString(err.Error(), "…"))
	}
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
			return &Ended{Why: e.ending(ctx, Member{ID: id, Role: RoleService})}
		}
		if e.begun(ctx, id, got.State.Pid) {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Ended is a service that was started and has ended.
type Ended struct{ Why string }

func (e *Ended) Error() string { return "the service ended as soon as it was started: " + e.Why }

// begun reports whether something else runs in a service than its init and the
// handover. It is no check: who says so is the agent's.
func (e *Engine) begun(ctx context.Context, id string, init int) bool {
	top, err := e.api.ContainerTop(ctx, id, []string{"-eo", "pid,args"})
	if err != nil {
		return false // it may have ended
	}
	handover := strings.Join(render.Entrypoint, " ")
	return slices.ContainsFunc(top.Processes, func(p []string) bool {
		return len(p) == 2 && strings.TrimSpace(p[0]) != fmt.Sprint(init) && !strings.HasPrefix(strings.TrimSpace(p[1]), handover)
	})
}

// GateWrong says what is wrong with a gate that should serve, empty if nothing
// is, and what the gate says of itself if it answers.
func (e *Engine) GateWrong(ctx context.Context, gate Member) (spec.GateStatus, string) {
	if !gate.Running {
		if why := e.ending(ctx, gate); why != "" {
			return spec.GateStatus{}, "it is gone: " + why
		}
		return spec.GateStatus{}, "it is gone"
	}
	for {
		status, err := e.GateStatus(ctx, gate.ID)
		if (err != nil || status.State != spec.GateReady) && e.young(ctx, gate.ID) {
			select {
			case <-time.After(youngLook):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil {
			return spec.GateStatus{}, "it does not answer"
		}
		return status, unsound(status)
	}
}

// A gate that was started a moment ago, by an engine say, may be on its way.
const (
	youth     = 20 * time.Second
	youngLook = 200 * time.Millisecond
)

func (e *Engine) young(ctx context.Context, id string) bool {
	got, err := e.api.ContainerInspect(ctx, id)
	if err != nil || !got.State.Running {
		return false
	}
	at, err := time.Parse(time.RFC3339Nano, got.State.StartedAt)
	return err == nil && time.Since(at) < youth
}

// WhyEnded says in words why a container does not run; empty if nothing is
// known.
func (e *Engine) WhyEnded(ctx context.Context, m Member) string { return e.ending(ctx, m) }

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

// Carry sees to it that what the gate of g needs of the host is carried.
func (e *Engine) Carry(ctx context.Context, image string, g *Gate) error {
	unlock, err := e.lock(ctx, image)
	if err != nil {
		return err
	}
	return errors.Join(e.carry(ctx, image, g.Plan), unlock())
}

// refreshDocument is where a gate finds the document that it is to go by from
// now on.
const refreshDocument = spec.GateFile + ".new"

// Refresh gives the gate g.ID the document of g's plan and lets it resolve its
// names anew, in place. If that fails the gate goes on by the document that it
// had: a document that it does not take is an exit.Invalid.
func (e *Engine) Refresh(ctx context.Context, g *Gate) (spec.Refreshed, error) {
	var done spec.Refreshed
	told := render.Tree{strings.TrimPrefix(refreshDocument, "/"): g.Tree[render.GateSpec(g.Plan.Gates[0].Name)]}
	if err := e.api.CopyToContainer(ctx, g.ID, "/", told.Tar(), container.CopyToContainerOptions{}); err != nil {
		return done, e.unlessTakenDown(ctx, g.ID, fmt.Errorf("gate: %w", err))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, refreshWithin, fmt.Errorf("no answer within %v", refreshWithin))
	defer cancel()
	out, err := e.exec(ctx, g.ID, nil, spec.GuestDir+"/bin/corral-gate", "refresh", "--spec", refreshDocument, "--json")
	if exited := (*ExecError)(nil); errors.As(err, &exited) {
		return done, refused(exited)
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
	err.Err = errors.New("the gate goes on as before: " + strings.Join(reasons, "\n  "))
	return err
}
