package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/render"
)

// settleWithin bounds what must be brought to an end once it has begun.
const settleWithin = 30 * time.Second

// request is a container to be made.
type request struct {
	name    string // empty: one of its own
	config  *container.Config
	host    *container.HostConfig
	network *network.NetworkingConfig
	options []string // security options beside no-new-privileges
}

// create makes a container, with no capability but those that are added, no way
// to more, bounded logs, and a label that names this process. It is there when
// create returns without an error, and not otherwise, whatever ctx and the
// connection do meanwhile.
func (e *Engine) create(ctx context.Context, r request) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	if r.name == "" {
		r.name = mark + "tool-" + strings.ToLower(rand.Text())
	}
	r.config.Labels[labelOwner] = owner(os.Getpid())
	r = r.confined()
	settled, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	made, err := e.api.ContainerCreate(settled, r.config, r.host, r.network, nil, r.name)
	err = unseen(err)
	switch {
	case err == nil && ctx.Err() == nil:
		return made.ID, nil
	case err == nil:
		return "", errors.Join(context.Cause(ctx), e.remove(ctx, made.ID))
	case errdefs.IsConflict(err):
		return "", err
	}
	// The engine may have made it and the answer was lost.
	if got, lookErr := e.api.ContainerInspect(settled, r.name); lookErr == nil && got.Config.Labels[labelOwner] == r.config.Labels[labelOwner] {
		err = errors.Join(err, e.remove(ctx, got.ID))
	}
	return "", err
}

// confined adds what is asked of the engine for every container.
func (r request) confined() request {
	host := *r.host
	host.CapDrop = []string{"ALL"}
	host.SecurityOpt = append([]string{render.NoNewPrivileges}, r.options...)
	host.LogConfig = logging()
	r.host = &host
	return r
}

// mark begins the name of every container that corral makes. Labels alone prove
// nothing: a container has those of its image too, whoever wrote that. Names are
// given by those who may use the engine.
const mark = "corral-"

// ours are the containers that corral made and that have a label, which may
// be NAME or NAME=VALUE.
func (e *Engine) ours(ctx context.Context, label string) ([]container.Summary, error) {
	list, err := e.labelled(ctx, label)
	if err != nil {
		return nil, err
	}
	var all []container.Summary
	if slices.ContainsFunc(list, func(c container.Summary) bool {
		return !marked(c) && slices.Contains([]string{RoleService, RoleGate}, c.Labels[labelRole])
	}) {
		all, err = e.labelled(ctx, labelSandbox)
	}
	return slices.DeleteFunc(list, func(c container.Summary) bool { return !marked(c) && !renamed(c, all) }), err
}

func (e *Engine) labelled(ctx context.Context, label string) ([]container.Summary, error) {
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	return list, nil
}

func marked(c container.Summary) bool {
	return slices.ContainsFunc(c.Names, func(name string) bool { return strings.HasPrefix(name, "/"+mark) })
}

// renamed reports whether somebody gave a part of a sandbox another name: it is a
// service and its gate that share a network namespace, and the other of the two has its
// name still. Who joins whom is said by those who may use the engine, too.
func renamed(c container.Summary, all []container.Summary) bool {
	return slices.ContainsFunc(all, func(other container.Summary) bool {
		return marked(other) && other.Labels[labelSandbox] == c.Labels[labelSandbox] && (joins(c, other) || joins(other, c))
	})
}

func joins(service, gate container.Summary) bool {
	return service.Labels[labelRole] == RoleService && gate.Labels[labelRole] == RoleGate &&
		service.HostConfig.NetworkMode == "container:"+gate.ID
}

// MadeAs is the name that corral made a container by.
func (m Member) MadeAs() string {
	if m.Role == RoleGate {
		return render.GateContainer(m.Sandbox, m.Service)
	}
	return render.Container(m.Sandbox, m.Service)
}

// Rename gives a container back the name that corral made it by, unless another has it.
func (e *Engine) Rename(ctx context.Context, m Member) (taken bool, err error) {
	switch err := e.api.ContainerRename(ctx, m.ID, m.MadeAs()); {
	case errdefs.IsConflict(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("container %s: %w", m.Name, err)
	}
	return false, nil
}

// Mislabelled is a container with a name of corral's and a label that corral never
// wrote: what it is part of cannot be told, nor what may be done beside it.
type Mislabelled struct {
	Container string
	Label     string
	Err       error
}

func (e *Mislabelled) Error() string {
	return fmt.Sprintf("container %s: label %s: %v", e.Container, e.Label, e.Err)
}

func (e *Mislabelled) Unwrap() error { return e.Err }

// logging bounds what a container can write to the host's disk.
func logging() container.LogConfig {
	return container.LogConfig{Type: render.LogDriver, Config: map[string]string{"max-size": render.LogSize, "max-file": render.LogFiles}}
}

// removeTries is how often a removal is tried: what is left costs a person time.
const removeTries = 3

// remove takes a container away by force, also when ctx has ended.
func (e *Engine) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	var err error
	for range removeTries {
		err = e.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil || errdefs.IsNotFound(err):
			return nil
		case strings.Contains(err.Error(), "already in progress"):
			return e.gone(ctx, id, settleWithin)
		}
	}
	return fmt.Errorf("a container cannot be removed: %w", err)
}

// Remove takes a container away by force, also when ctx has ended.
func (e *Engine) Remove(ctx context.Context, id string) error { return e.remove(ctx, id) }

// State is the engine's word for how a container is, empty if there is none.
// It is not known if the engine does not say.
func (e *Engine) State(ctx context.Context, id string) (state string, known bool) {
	s, known := e.stateOf(ctx, id)
	return s.Status, known
}

// stateOf is State with all that the engine says of it.
func (e *Engine) stateOf(ctx context.Context, id string) (s container.State, known bool) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	got, err := e.api.ContainerInspect(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		return container.State{}, true
	case err != nil || got.ContainerJSONBase == nil || got.State == nil:
		return container.State{}, false
	}
	return *got.State, true
}

// ErrTakenDown is a sandbox that somebody else ended, as corral down does.
var ErrTakenDown = errors.New("the sandbox was taken down")

// unlessTakenDown is err, or the plainer truth that a container is gone.
func (e *Engine) unlessTakenDown(ctx context.Context, id string, err error) error {
	switch state, known := e.State(context.WithoutCancel(ctx), id); {
	case known && (state == "" || state == container.StateRemoving || state == container.StateDead):
		return ErrTakenDown
	}
	return err
}
