package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/exit"
)

// detachKeys are keys that nobody types: a run ends with its terminal, and
// Docker's own ctrl-p would swallow the agent's.
const detachKeys = "ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^"

const (
	// patience is how many signals ask before the next one ends the service.
	patience = 2
	// hangUpGrace is how long a service lives on after its terminal is gone.
	hangUpGrace = 10 * time.Second
)

// Attach starts a service on the caller's own standard streams, by the docker
// command, and waits for its end. It returns the service's exit status.
//
// A terminal in raw mode passes keys, Ctrl-C included, as bytes. Signals go to
// the service directly: some versions of the docker command take them for
// themselves. The third one ends it, and one that comes before it has started
// ends the start.
func (e *Engine) Attach(ctx context.Context, id string, t Terminal, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	defer exit.Hold()()
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	cmd := exec.Command("docker", "--host", e.host, "start", "--attach", "--interactive", "--detach-keys", detachKeys, id)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if !t.TTY {
		// Out of reach of what a terminal sends to everybody in front of it, and so
		// without the right to read it: what is typed comes by a pipe.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if f, ok := stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			cmd.Stdin = nil
			pipe, err := cmd.StdinPipe()
			if err != nil {
				return -1, err
			}
			go func() {
				_, _ = io.Copy(pipe, stdin) // ends with the terminal, or with us
				pipe.Close()
			}()
		}
	}
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("docker start: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var hungUp <-chan time.Time
	for asked := 0; ; {
		select {
		case err := <-ended:
			return e.outcome(ctx, id, err)
		case <-hungUp:
			_ = e.api.ContainerKill(context.WithoutCancel(ctx), id, "SIGKILL")
			_ = cmd.Process.Kill()
		case s := <-signals:
			asked++
			name := unix.SignalName(s.(syscall.Signal))
			if s == syscall.SIGHUP {
				hungUp = time.After(hangUpGrace)
			}
			if asked > patience {
				name = "SIGKILL"
			}
			if !e.signal(ctx, id, name) || asked > patience {
				_ = cmd.Process.Kill()
			}
		}
	}
}

// signal sends a signal to a service. It is false if there was nothing to get
// it, because the service has not started.
func (e *Engine) signal(ctx context.Context, id, name string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	if e.api.ContainerKill(ctx, id, name) == nil {
		return true
	}
	got, err := e.api.ContainerInspect(ctx, id)
	return err == nil && got.State.Status == container.StateExited
}

// outcome is what became of a service whose docker command has ended.
func (e *Engine) outcome(ctx context.Context, id string, docker error) (int, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	got, err := e.api.ContainerInspect(ctx, id)
	if errdefs.IsNotFound(err) {
		return -1, ErrTakenDown
	}
	if err != nil {
		return -1, fmt.Errorf("service: %w", err)
	}
	return judge(got.State, docker)
}

// judge tells a service's own exit status from everything else that may have
// ended its docker command.
func judge(s *container.State, docker error) (int, error) {
	switch {
	case s.Running:
		return -1, errors.New("nobody takes the agent's output any more: it was ended")
	case s.Status == container.StateRemoving || s.Status == container.StateDead:
		return -1, ErrTakenDown
	case s.Status != container.StateExited:
		return -1, errors.Join(errors.New("the service did not start"), docker)
	case s.Error != "":
		return -1, fmt.Errorf("service: %s", s.Error)
	}
	return s.ExitCode, nil
}
