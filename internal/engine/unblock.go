package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/spec"
)

// deaf reports whether the engine answers nothing about a container.
func (e *Engine) deaf(ctx context.Context, id string) bool {
	within, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := e.api.ContainerInspect(within, id)
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// unblock ends what the engine started in a service and a process of the service's user
// stopped. While the engine is about to start a program there, with that user's rights
// already, such a stop holds the engine's lock of the container: every question about
// it then waits, and it can be neither stopped nor removed.
func (e *Engine) unblock(ctx context.Context, service string) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	list, err := e.ours(ctx, labelSandbox)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(c container.Summary) bool { return c.ID == service })
	if i < 0 {
		return errors.New("it is not there")
	}
	sandbox := list[i].Labels[labelSandbox]
	i = slices.IndexFunc(list, func(c container.Summary) bool {
		return c.Labels[labelRole] == RoleGate && c.Labels[labelSandbox] == sandbox
	})
	if i < 0 {
		return errors.New("its gate is gone, and with it the program that ends what is stopped; as root: pkill -KILL -f '^runc init$'")
	}
	id, stream, err := e.StartTool(ctx, Tool{Image: list[i].ImageID, Network: "none", Capabilities: []string{"KILL"}, Host: true, Purpose: PurposeCheck,
		Args: []string{spec.GuestDir + "/bin/corral-gate", "unblock", service}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.remove(ctx, id)) }()
	defer stream.Close()
	for _, more := stream.Next(); more; _, more = stream.Next() {
	}
	if status := stream.Status(ctx); status != 0 {
		return fmt.Errorf("status %d: %v", status, stream.Errors())
	}
	return nil
}
