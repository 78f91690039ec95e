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

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/exit"
)

// detachKeys are keys that nobody types: a run ends with its terminal, and
// Docker's own ctrl-p would swallow the agent's.
const detachKeys = "ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^"

// Attach starts a service on the caller's own standard streams, by the docker
// command, and waits for its end. It returns the service's exit status.
//
// A terminal in raw mode passes keys, Ctrl-C included, as bytes. Signals go to
// the service directly: some versions of the docker command take them for
// themselves. The third one ends it.
func (e *Engine) Attach(ctx context.Context, id string, t Terminal, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	defer exit.Hold()()
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
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("docker start: %w", err)
	}
	done := make(chan struct{})
	go e.pass(context.WithoutCancel(ctx), id, signals, done)
	err := cmd.Wait()
	close(done)
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		return -1, fmt.Errorf("docker start: %w", err)
	}
	got, inspectErr := e.api.ContainerInspect(context.WithoutCancel(ctx), id)
	switch {
	case inspectErr != nil:
		return -1, fmt.Errorf("service: %w", inspectErr)
	case got.State.Running:
		return -1, errors.New("the terminal went away while the service was running: it is ended")
	case got.State.Error != "":
		return -1, fmt.Errorf("service: %s", got.State.Error)
	}
	return got.State.ExitCode, nil
}

// patience is how many signals ask before the next one ends the service.
const patience = 2

// pass hands signals on to a service until done.
func (e *Engine) pass(ctx context.Context, id string, signals <-chan os.Signal, done <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case s := <-signals:
			name := unix.SignalName(s.(syscall.Signal))
			if n == patience {
				name = "SIGKILL"
			}
			_ = e.api.ContainerKill(ctx, id, name) // it may have ended by itself
		case <-done:
			return
		}
	}
}
