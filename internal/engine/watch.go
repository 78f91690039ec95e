package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"

	"github.com/corral-sandbox/corral/internal/printable"
)

// happenings are the events after which a sandbox may be another than it was.
var happenings = []events.Action{
	events.ActionStart, events.ActionRestart, events.ActionDie, events.ActionOOM, events.ActionStop,
	events.ActionPause, events.ActionUnPause, events.ActionDestroy,
}

// How long to wait before the engine is asked again for its events.
const (
	reconnectFirst = 200 * time.Millisecond
	reconnectLast  = 5 * time.Second
)

// follow calls do whenever something happened to a container that an events
// filter matches, until do returns false or ctx ends. It calls do first of all,
// and after every time that the engine was away, since nobody knows what
// happened meanwhile. An engine that is away is waited for.
func (e *Engine) follow(ctx context.Context, key, value string, do func() bool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	which := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg(key, value))
	for _, h := range happenings {
		which.Add("event", string(h))
	}
	for pause := reconnectFirst; ; pause = min(2*pause, reconnectLast) {
		came, broken := e.api.Events(ctx, events.ListOptions{Filters: which})
		if _, err := e.api.Ping(ctx); err == nil {
			pause = reconnectFirst
			if !do() {
				return nil
			}
		}
		for up := true; up; {
			select {
			case <-came:
				if !do() {
					return nil
				}
			case <-broken:
				up = false
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Watch calls changed whenever something happened to a container of a policy's
// sandbox, whenever the engine came back, and once at the beginning. It goes on
// until ctx ends, and never waits for changed to be done with what it does.
func (e *Engine) Watch(ctx context.Context, policy string, changed func()) error {
	return e.follow(ctx, "label", labelPolicy+"="+policy, func() bool { changed(); return true })
}

// awaitState is stateOf once the engine says it; not known only if ctx ended.
func (e *Engine) awaitState(ctx context.Context, id string) (s container.State, known bool) {
	for pause := reconnectFirst; ; pause = min(2*pause, reconnectLast) {
		if s, known = e.stateOf(ctx, id); known {
			return s, true
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return s, false
		}
	}
}

// GateLost waits until a service that runs has lost its gate, and says what
// became of that; false if the service or ctx ended before. It takes a gate
// that was started again for lost: its namespace is another one.
func (e *Engine) GateLost(ctx context.Context, gate, service string) (why string, lost bool) {
	var first string // when the gate that the service is behind was started
	_ = e.follow(ctx, "container", gate, func() bool {
		g, known := e.awaitState(ctx, gate)
		if first == "" && g.Running {
			first = g.StartedAt
		}
		switch {
		case !known, g.Status == container.StatePaused, g.Status == container.StateRunning && g.StartedAt == first:
			return true
		case g.Status == container.StateRunning:
			why = "it was started again, with another network namespace"
		case g.Status == "" || g.Status == container.StateRemoving:
			why = "it was removed"
		default:
			why = cmp.Or(e.WhyEnded(ctx, Member{ID: gate, Role: RoleGate}), "it was removed")
		}
		// Whoever takes a sandbox down begins with the service.
		s, known := e.awaitState(ctx, service)
		lost = known && (s.Status == container.StateRunning || s.Status == container.StatePaused || s.Status == container.StateCreated)
		return false
	})
	return why, lost && ctx.Err() == nil
}

// waitTold is after how long somebody who waits for a service to end is told so.
const waitTold = time.Second

// Grace is what a service that was asked to end has to do so by itself.
const Grace = 10 * time.Second

// Stop ends a service in order: it is asked, and after Grace it is killed.
func (e *Engine) Stop(ctx context.Context, id string) error {
	return e.stop(context.WithoutCancel(ctx), id)
}

// stop is Stop until ctx ends: what then becomes of the service is not waited for.
func (e *Engine) stop(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, Grace+settleWithin)
	defer cancel()
	seconds := int(Grace.Seconds())
	if err := e.api.ContainerStop(ctx, id, container.StopOptions{Timeout: &seconds}); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	return nil
}

// Retire takes services of a sandbox away. Those that run are asked first, all at
// once; the end of ctx cuts their Grace short. One that is paused cannot hear, and
// one that a living corral looks after is not asked: that would take what it did
// then for its own end.
func (e *Engine) Retire(ctx context.Context, services ...Member) error {
	var asked sync.WaitGroup
	var ids []string
	for _, s := range services {
		ids = append(ids, s.ID)
		if s.State != container.StateRunning {
			continue
		}
		asked.Go(func() {
			if e.deaf(ctx, s.ID) {
				if err := e.unblock(ctx, s.ID); err != nil {
					e.Progress("the engine does not answer about %s, and what is stopped in it cannot be ended: %s", s.Service, printable.Escape(Plain(err.Error())))
				}
			}
			if s.Purpose != PurposeDaemon && !s.Unattended() {
				return
			}
			defer e.slow(waitTold, "waiting until %s ends by itself, as it was asked to: %.0f s at most", s.Service, Grace.Seconds())()
			if err := e.stop(ctx, s.ID); err != nil && ctx.Err() == nil && !errdefs.IsNotFound(err) {
				e.Progress("%s was not asked to end: %s", s.Service, printable.Escape(Plain(err.Error())))
			}
		})
	}
	asked.Wait()
	err := e.removeAll(ctx, ids)
	if slices.ContainsFunc(services, func(s Member) bool { return s.State == container.StateRunning }) {
		e.lap("old service ended") // it had its time for that
	}
	return err
}
