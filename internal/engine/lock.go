package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	images "github.com/docker/docker/api/types/image"
)

const (
	lockName = "corral-lock"
	// lockAge is how old the lock of a process that cannot be seen must be
	// before it is taken over: what it guards takes a second.
	lockAge = 2 * time.Minute
	// lockWithin is how long to wait for a living process.
	lockWithin = 3 * time.Minute
	// lockLook is how often to look again whether the holder still lives.
	lockLook = time.Second
)

// turn is this process's own: who has it knows that a lock of this process is one that
// an engine which ended meanwhile did not take back.
var turn = make(chan struct{}, 1)

// lock takes the machine-wide lock: a container name that only one can
// create, whoever the user and whatever their files. The result gives it back.
func (e *Engine) lock(ctx context.Context, image string) (unlock func() error, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWithin, errors.New("waited too long"))
	defer cancel()
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() {
		if err != nil {
			<-turn
		}
	}()
	told, other := false, false
	for {
		id, err := e.create(ctx, request{
			name:   lockName,
			config: &container.Config{Image: image, Labels: map[string]string{labelRole: RoleTool}},
			host:   &container.HostConfig{NetworkMode: "none"},
		})
		if err == nil {
			return sync.OnceValue(func() error { defer func() { <-turn }(); return e.remove(ctx, id) }), nil
		}
		if errdefs.IsNotFound(err) && !other { // it is never started: any image does
			if other, image = e.anyImage(ctx, image); other {
				continue
			}
		}
		if !errdefs.IsConflict(err) {
			return nil, fmt.Errorf("machine-wide lock: %w", err)
		}
		held, err := e.api.ContainerInspect(ctx, lockName)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("machine-wide lock: %w", err)
		}
		if stale(held) || held.Config.Labels[labelOwner] == owner(os.Getpid()) {
			if err := e.remove(ctx, held.ID); err != nil {
				return nil, fmt.Errorf("machine-wide lock of a process that is gone: %w", err)
			}
			continue
		}
		if err := e.gone(ctx, held.ID, lockLook); err != nil {
			return nil, fmt.Errorf("machine-wide lock, held by %s: %w", holder(held), err)
		}
		if !told {
			told = true
			e.Progress("waiting for another corral on this machine, which gives out addresses (%s)", holder(held))
		}
	}
}

// anyImage is an image that the engine has, or image and false if it has none.
func (e *Engine) anyImage(ctx context.Context, image string) (bool, string) {
	list, err := e.api.ImageList(ctx, images.ListOptions{})
	if err != nil || len(list) == 0 {
		return false, image
	}
	return true, list[0].ID
}

// gone waits for a container's removal, for a while.
func (e *Engine) gone(ctx context.Context, id string, while time.Duration) error {
	look, cancel := context.WithTimeout(ctx, while)
	defer cancel()
	removed, errs := e.api.ContainerWait(look, id, container.WaitConditionRemoved)
	select {
	case <-removed:
	case err := <-errs:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errdefs.IsNotFound(err) && look.Err() == nil {
			return err
		}
	}
	return nil
}

func holder(held container.InspectResponse) string {
	if fields := strings.Fields(held.Config.Labels[labelOwner]); len(fields) == 3 {
		return "process " + fields[1]
	}
	return "somebody unknown"
}

// stale reports whether the process that holds a lock is gone.
func stale(held container.InspectResponse) bool {
	switch ownerLife(held.Config.Labels[labelOwner]) {
	case alive:
		return false
	case gone:
		return true
	}
	made, err := time.Parse(time.RFC3339Nano, held.Created)
	return err == nil && time.Since(made) > lockAge
}

type life int

const (
	unknown life = iota // another pid namespace's, or hidden
	alive
	gone
)

// ownerLife looks for the process that an owner label names.
func ownerLife(label string) life {
	var boot, start string
	var pid int
	if _, err := fmt.Sscanf(label, "%s %d %s", &boot, &pid, &start); err != nil {
		return unknown
	}
	if boot != bootID() {
		return gone
	}
	switch now := startTime(pid); {
	case now == start:
		return alive
	case now != "":
		return gone
	case startTime(1) != "": // the processes of others can be seen
		return gone
	}
	return unknown
}

func owner(pid int) string { return fmt.Sprintf("%s %d %s", bootID(), pid, startTime(pid)) }

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// startTime is field 22 of /proc/PID/stat, which with the pid names a process;
// empty for one that is not there or ended and was not collected.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return parseStart(string(b))
}

func parseStart(stat string) string {
	i := strings.LastIndex(stat, ") ") // a program's name may hold anything
	if i < 0 {
		return ""
	}
	fields := strings.Fields(stat[i+2:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}
