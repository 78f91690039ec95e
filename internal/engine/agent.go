package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/secret"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Terminal says what of a terminal the agent gets.
type Terminal struct {
	TTY   bool // a terminal, not just streams
	Stdin bool // standard input is attached
	Stays bool // it is there for whoever comes, and standard input does not end with who goes
}

// Lasting is the terminal of an always-on service: people come and go.
var Lasting = Terminal{TTY: true, Stdin: true, Stays: true}

// TerminalOf is what of a terminal a service of a sandbox has that was brought up for
// a purpose. Of a run nobody else knows: that depends on where somebody sits.
func TerminalOf(s plan.Service, purpose string) Terminal {
	if s.Console && purpose == PurposeDaemon {
		return Lasting
	}
	return Terminal{}
}

// CreateService creates a service's container, which joins a proven gate and
// starts by handing over. It is not started. The secrets go into its
// environment and nowhere else.
func (e *Engine) CreateService(ctx context.Context, g *Gate, s plan.Service, secrets []secret.Var, term Terminal) (string, error) {
	image, err := e.ServiceImage(ctx, g.Plan.ID, s, g.Tree)
	if err != nil {
		return "", err
	}
	e.lap("image of service %s", s.Name)
	if err := unmoved(s.Mounts); err != nil {
		return "", err
	}
	status, err := e.GateStatus(ctx, g.ID)
	if err != nil {
		return "", e.unlessTakenDown(ctx, g.ID, err)
	}
	if wrong := unsound(status); wrong != "" {
		return "", errors.New(wrong)
	}
	handover, err := json.Marshal(spec.Handover{Version: spec.Version, Service: s.Name, Checks: plan.Join(s.Handover, status), Console: term.Stays})
	if err != nil {
		return "", err
	}
	if len(handover) > maxVariable {
		return "", &Unmountable{Reason: fmt.Sprintf("the service's %d mounts do not fit into the document that proves them", len(s.Mounts)),
			Hint: "mount fewer, or directories that hold several of them"}
	}
	made, err := e.serviceRequest(g, s, secrets, term)
	if err != nil {
		return "", err
	}
	made.config.Labels[labelConfig] = serviceParts(g, s, made).String()
	made.config.Labels[labelInstance] = status.Instance
	made.config.Image = image
	made.config.Env = append(made.config.Env, spec.HandoverEnv+"="+string(handover))
	made.host.NetworkMode = container.NetworkMode("container:" + g.ID)
	id, err := e.create(ctx, made)
	if err != nil {
		return "", e.unlessTakenDown(ctx, g.ID, fmt.Errorf("service %s: %w", s.Name, err))
	}
	e.lap("service %s created", s.Name)
	return id, nil
}

// serviceRequest is a service's container without its image, and without what
// ties it to one run of its gate.
func (e *Engine) serviceRequest(g *Gate, s plan.Service, secrets []secret.Var, term Terminal) (request, error) {
	var seccomp bytes.Buffer
	if err := json.Compact(&seccomp, g.Tree["seccomp.json"]); err != nil {
		return request{}, err
	}
	init := true
	return request{
		name: render.Container(g.Plan.ID, s.Name),
		config: &container.Config{
			User:         fmt.Sprintf("%d:%d", s.UID, s.GID),
			Entrypoint:   render.Entrypoint,
			Cmd:          s.Command,
			Env:          append(environment(s.Environment, secrets), signalTheGroup),
			WorkingDir:   s.WorkDir,
			Labels:       labels(g, s.Name, RoleService, map[string]string{labelGate: s.Gate, labelShields: render.MountsLabel(s.Shields), labelFurniture: render.MountsLabel(s.Furniture), labelSubmounts: submountsLabel(s.Mounts)}),
			Tty:          term.TTY,
			OpenStdin:    term.Stdin,
			StdinOnce:    term.Stdin && !term.Stays,
			AttachStdin:  term.Stdin && !term.Stays,
			AttachStdout: true,
			AttachStderr: true,
		},
		options: []string{"seccomp=" + seccomp.String()},
		host: &container.HostConfig{
			IpcMode: render.ServiceIPC,
			Init:    &init,

			ReadonlyRootfs: s.ReadOnly,
			Tmpfs:          render.InMemory(s),
			Mounts:         binds(g, s, e.recursive()),
			// Nothing more of the memory by way of swap.
			Resources: container.Resources{PidsLimit: &s.Pids, Memory: s.Memory, MemorySwap: s.Memory, NanoCPUs: s.NanoCPUs},
		},
	}, nil
}

// signalTheGroup makes the engine's init pass a signal to everything in front,
// as a terminal would: a shell waits for its child, and both are to end.
const signalTheGroup = spec.InitEnv + "=1"

// maxVariable is what the kernel takes as one variable of an environment
// (MAX_ARG_STRLEN), less its name.
const maxVariable = 128<<10 - 32

// environment is what a service is given; a secret stands over a variable of
// the same name.
func environment(env map[string]string, secrets []secret.Var) []string {
	all := maps.Clone(env)
	for _, s := range secrets {
		all[s.Name] = s.Value.Reveal()
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, k+"="+all[k])
	}
	return out
}

// End takes a service and its gate away: the service first, so that nothing
// runs beside a gate that is going. What relays did for the gate ends with it.
func (e *Engine) End(ctx context.Context, g *Gate, services ...string) error {
	left := e.removeAll(ctx, services)
	if needs(g.Plan, g.planned()) == "" {
		left = errors.Join(left, e.remove(ctx, g.ID))
	} else {
		left = errors.Join(left, e.takeAway(ctx, g.Image, g.ID))
	}
	if !g.planned().Link.IsValid() {
		return left
	}
	return errors.Join(left, e.unlink(context.WithoutCancel(ctx), g.Plan.ID))
}
