package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/render"
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
	resized, continued := make(chan os.Signal, 1), make(chan os.Signal, 1)
	raw := rawTerminal{}
	if t.TTY { // the docker command listens from a moment on only, and sets raw mode once
		signal.Notify(resized, syscall.SIGWINCH)
		defer signal.Stop(resized)
		if f := terminalOf(stdin); f != nil {
			before, err := term.GetState(int(f.Fd()))
			if err != nil {
				return -1, fmt.Errorf("terminal: %w", err)
			}
			raw = rawTerminal{f, before}
			defer raw.restore()
		}
		signal.Notify(continued, syscall.SIGCONT)
		defer signal.Stop(continued)
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
	var hungUp, again <-chan time.Time
	for asked := 0; ; {
		select {
		case err := <-ended:
			return e.outcome(ctx, id, err)
		case <-continued:
			raw.again()
			e.sizeConsole(ctx, id, stdout, 0)
		case <-resized:
			e.sizeConsole(ctx, id, stdout, 0)
			again = time.After(redraw) // what the docker command read before may come after
		case <-again:
			again = nil
			e.sizeConsole(ctx, id, stdout, 0)
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

// ErrServiceEnded is a service that ended while something ran beside its agent.
var ErrServiceEnded = errors.New("the sandbox ended, and with it what ran in it")

// Beside runs a command in a service that is up, through the same handover as
// its agent, on the caller's own standard streams, and waits for its end. It
// returns the command's exit status. env are variables over the service's own.
//
// A terminal in raw mode passes keys, Ctrl-C included, as bytes. Signals go to
// the command's process group; the third one ends it.
func (e *Engine) Beside(ctx context.Context, id string, args, env []string, t Terminal, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	defer exit.Hold()()
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	created, err := e.api.ContainerExecCreate(ctx, id, container.ExecOptions{
		Cmd: slices.Concat(render.Entrypoint, args), Env: env, Tty: t.TTY, DetachKeys: detachKeys,
		AttachStdin: t.Stdin, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return -1, e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
	}
	conn, err := within(ctx, func() (types.HijackedResponse, error) {
		return e.api.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{Tty: t.TTY})
	}, func(c types.HijackedResponse) { c.Close() })
	if err != nil {
		return -1, e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
	}
	defer conn.Close()
	raw := rawTerminal{}
	if f, ok := stdin.(*os.File); ok && t.TTY {
		if raw, err = makeRaw(f); err != nil {
			return -1, err
		}
		defer raw.restore()
		select {
		case resized <- syscall.SIGWINCH: // it has no size yet
		default: // the window changed meanwhile, which says the same
		}
	}
	if t.Stdin {
		go func() {
			_, _ = io.Copy(conn.Conn, stdin) // ends with its reader, or with us
			_ = conn.CloseWrite()
		}()
	}
	ended := make(chan error, 1)
	go func() {
		var err error
		if t.TTY {
			_, err = io.Copy(stdout, conn.Reader)
		} else {
			_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
		}
		ended <- err
	}()
	var again, hungUp, stuck <-chan time.Time
	givenUp := false
	for asked, sized := 0, 0; ; {
		select {
		case err := <-ended:
			if err != nil && !givenUp { // nobody takes what it says, or the engine is gone
				e.kill(ctx, id, created.ID, syscall.SIGKILL)
				if state, known := e.State(context.WithoutCancel(ctx), id); known && state != container.StateRunning {
					return -1, ErrServiceEnded
				}
				return -1, fmt.Errorf("nobody takes the output any more, so what ran was ended: %w", err)
			}
			return e.besideOutcome(ctx, id, created.ID)
		case <-hungUp:
			if givenUp = !e.kill(ctx, id, created.ID, syscall.SIGKILL); givenUp {
				conn.Close()
			}
			asked = patience + 1
			stuck = time.After(settle)
		case <-stuck:
			if asked > patience || e.over(ctx, created.ID) {
				return -1, errors.New("nobody takes the output any more: what ran was ended, and what it said last is lost")
			}
			stuck = time.After(settle)
		case <-continued:
			raw.again()
			sized = 0
			again = time.After(0)
		case <-resized:
			sized = 0
			again = time.After(0)
		case <-again:
			// What has only just been started may not have a terminal yet.
			if again = nil; !e.resize(ctx, created.ID, stdout) && sized < resizeTries {
				sized++
				again = time.After(resizePause)
			}
		case s := <-signals:
			asked++
			sent := s.(syscall.Signal)
			if sent == syscall.SIGHUP {
				hungUp = time.After(hangUpGrace)
			}
			if asked > patience {
				sent = syscall.SIGKILL
			}
			stuck = time.After(settle)
			if givenUp = !e.kill(ctx, id, created.ID, sent); givenUp {
				conn.Close()
			}
		}
	}
}

const (
	resizeTries = 50
	resizePause = 20 * time.Millisecond
)

// resize gives a command the size of a terminal; false if it could not.
func (e *Engine) resize(ctx context.Context, command string, stdout io.Writer) bool {
	f, ok := stdout.(*os.File)
	if !ok {
		return true
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return true // there is none to give
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	return e.api.ContainerExecResize(ctx, command, container.ResizeOptions{Width: uint(width), Height: uint(height)}) == nil
}

// over says of a command whether it has ended.
func (e *Engine) over(ctx context.Context, command string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	got, err := e.api.ContainerExecInspect(ctx, command)
	return err == nil && !got.Running
}

// kill sends a signal to the process group of a command beside a service's
// agent. The engine has no verb for that; the command is the person's own
// process. It is false if there was nothing to get it.
func (e *Engine) kill(ctx context.Context, id, command string, s syscall.Signal) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	// What it says can be seen before the engine knows its process.
	for until := time.Now().Add(settle); ; time.Sleep(settleAsk) {
		got, err := e.api.ContainerExecInspect(ctx, command)
		if err != nil {
			return false
		}
		if got.Running && got.Pid > 1 && belongs(got.Pid, id) {
			return unix.Kill(-got.Pid, s) == nil || unix.Kill(got.Pid, s) == nil
		}
		if time.Now().After(until) {
			return false
		}
	}
}

// belongs reports whether a process is a container's. An engine that counts
// processes otherwise than this machine does names somebody else's.
func belongs(pid int, container string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), container)
}

// settle is how long the engine is given to notice an end that was seen
// already, and how often it is asked.
const (
	settle    = 2 * time.Second
	settleAsk = 20 * time.Millisecond
)

// besideOutcome is what became of a command whose output has ended.
func (e *Engine) besideOutcome(ctx context.Context, id, command string) (int, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	until := time.Now().Add(settle)
	for {
		got, err := e.api.ContainerExecInspect(ctx, command)
		state, known := e.State(ctx, id)
		switch late := time.Now().After(until); {
		case known && state != container.StateRunning:
			return -1, ErrServiceEnded
		case err == nil && !got.Running && (got.ExitCode != killed || late):
			// Everything in a service that ends is killed first.
			return got.ExitCode, nil
		case err == nil && late:
			return -1, errors.New("what ran in the sandbox could not be ended and runs on (corral down ends it)")
		case err != nil && late:
			return -1, fmt.Errorf("service: %w", err)
		}
		time.Sleep(settleAsk)
	}
}

// Statuses of what SIGKILL and SIGTERM ended.
const (
	killed = signals + int(syscall.SIGKILL)
	asked  = signals + int(syscall.SIGTERM)
)

// LogRange is a part of what a container has written.
type LogRange struct {
	Follow bool      // and what comes, until it ends
	All    bool      // of what was kept
	Last   int       // else of that only so many lines
	Since  time.Time // and none from before, if it is not zero
}

// Logs writes what the engine kept of a container's output until that or ctx ends:
// byte for byte, but for the carriage returns that its terminal, if it has one, put
// before its line breaks.
func (e *Engine) Logs(ctx context.Context, id string, r LogRange, stdout, stderr io.Writer) error {
	got, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		return err
	}
	which := container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: r.Follow}
	if !r.All {
		which.Tail = strconv.Itoa(r.Last)
	}
	if !r.Since.IsZero() {
		which.Since = r.Since.Format(time.RFC3339Nano)
	}
	logs, err := within(ctx, func() (io.ReadCloser, error) {
		return e.api.ContainerLogs(ctx, id, which)
	}, func(c io.ReadCloser) { c.Close() })
	if err != nil {
		return err
	}
	defer logs.Close()
	if got.Config.Tty {
		w := &unreturned{to: stdout}
		_, err = io.Copy(w, logs)
		err = errors.Join(err, w.Close())
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, logs)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
