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

	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/exit"
)

// detachKeys are keys that nobody types: a run ends with its terminal, and
// Docker's own ctrl-p would swallow the agent's.
const detachKeys = "ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^"

// Attach starts a service on the caller's own standard streams, by the docker
// command, and waits for its end. It returns the service's exit status.
//
// Signals: a terminal sends its own to everybody in front of it, so only those
// that it does not send are passed on; without a terminal all are. The docker
// command gives up at the third, which ends the service with it.
func (e *Engine) Attach(ctx context.Context, id string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	defer exit.Hold()()
	args := []string{"--host", e.host, "start", "--attach", "--detach-keys", detachKeys}
	if stdin != nil {
		args = append(args, "--interactive")
	}
	cmd := exec.Command("docker", append(args, id)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	pass := []os.Signal{syscall.SIGTERM, syscall.SIGHUP}
	if f, ok := stdin.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		pass = append(pass, syscall.SIGINT, syscall.SIGQUIT)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, pass...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("docker start: %w", err)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended by itself
			case <-done:
				return
			}
		}
	}()
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
