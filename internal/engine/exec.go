package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/corral-sandbox/corral/internal/spec"
)

// ExecError is a program inside a container that ended with a status.
type ExecError struct {
	Args   []string
	Status int
	Stderr string
}

func (e *ExecError) Error() string {
	ended := fmt.Sprintf("%s ended with status %d", strings.Join(e.Args, " "), e.Status)
	if said := strings.TrimSpace(e.Stderr); said != "" {
		ended += ": " + said
	}
	return ended
}

// maxOutput bounds what a program inside may make us keep.
const maxOutput = 16 << 20

// exec runs a program in a container, as the container's user, and returns
// its standard output.
func (e *Engine) exec(ctx context.Context, id string, stdin []byte, args ...string) ([]byte, error) {
	created, err := e.api.ContainerExecCreate(ctx, id, container.ExecOptions{
		Cmd: args, AttachStdin: stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, err
	}
	conn, err := within(ctx, func() (types.HijackedResponse, error) {
		return e.api.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	}, func(c types.HijackedResponse) { c.Close() })
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if stdin != nil {
		go func() {
			_, _ = conn.Conn.Write(stdin) // a reader that left says so by its status
			_ = conn.CloseWrite()
		}()
	}
	var out, errs bytes.Buffer
	_, err = stdcopy.StdCopy(&limited{&out, maxOutput}, &clip{&errs, maxErrors}, conn.Reader)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", args[0], context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	done, err := e.api.ContainerExecInspect(ctx, created.ID)
	if err != nil {
		return nil, err
	}
	if done.Running {
		return nil, fmt.Errorf("%s: its output ended before it did", args[0])
	}
	if done.ExitCode != 0 {
		return out.Bytes(), &ExecError{Args: args, Status: done.ExitCode, Stderr: errs.String()}
	}
	return out.Bytes(), nil
}

type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.left {
		return 0, fmt.Errorf("more than %d bytes of output", maxOutput)
	}
	l.left -= len(b)
	return l.w.Write(b)
}

// GateStatus asks a gate how it is.
func (e *Engine) GateStatus(ctx context.Context, gate string) (spec.GateStatus, error) {
	var s spec.GateStatus
	return s, e.ask(ctx, gate, &s, &s.Version, "status", "--json")
}

// Verdicts asks a gate what became of the probes after a mark.
func (e *Engine) Verdicts(ctx context.Context, gate string, after uint64) (spec.Verdicts, error) {
	var v spec.Verdicts
	return v, e.ask(ctx, gate, &v, &v.Version, "verdicts", "--after", fmt.Sprint(after))
}

// ask fills v, whose version is at version.
func (e *Engine) ask(ctx context.Context, gate string, v any, version *int, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, fmt.Errorf("no answer within %v", answerWithin))
	defer cancel()
	out, err := e.exec(ctx, gate, nil, append([]string{spec.GuestDir + "/bin/corral-gate"}, args...)...)
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	if err := spec.Decode(bytes.NewReader(out), v); err != nil {
		return fmt.Errorf("gate's answer to %s: %w", args[0], err)
	}
	if *version != spec.Version {
		return fmt.Errorf("gate's answer to %s has version %d, this corral reads version %d", args[0], *version, spec.Version)
	}
	return nil
}
