package engine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
)

const (
	lockName   = "corral-lock"
	labelOwner = "dev.corral.owner"
	// lockAge is how old the lock of a process that cannot be seen must be
	// before it is taken over: what it guards takes a second.
	lockAge = 2 * time.Minute
)

// lock takes the machine-wide lock: a container name that only one can
// create, whoever the user and whatever their files. The result gives it back.
func (e *Engine) lock(ctx context.Context, image string) (func(), error) {
	for {
		created, err := e.api.ContainerCreate(ctx, &container.Config{
			Image:  image,
			Labels: map[string]string{labelRole: RoleTool, labelOwner: owner(os.Getpid())},
		}, &container.HostConfig{NetworkMode: "none"}, nil, nil, lockName)
		if err == nil {
			return func() { e.remove(ctx, created.ID) }, nil
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
		if stale(held) {
			e.remove(ctx, held.ID)
			continue
		}
		removed, errs := e.api.ContainerWait(ctx, held.ID, container.WaitConditionRemoved)
		select {
		case <-removed:
		case err := <-errs:
			if !errdefs.IsNotFound(err) {
				return nil, fmt.Errorf("machine-wide lock held by %s: %w", held.Config.Labels[labelOwner], err)
			}
		}
	}
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
	unknown life = iota // another boot's, another pid namespace's, or hidden
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

// startTime is field 22 of /proc/PID/stat, which with the pid names a process.
func startTime(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	if fields := strings.Fields(rest); ok && len(fields) > 19 {
		return fields[19]
	}
	return ""
}

// remove takes a container away by force, also when ctx has ended.
func (e *Engine) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err := e.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) || (err != nil && strings.Contains(err.Error(), "already in progress")) {
		return nil
	}
	return err
}
