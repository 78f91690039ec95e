package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	keys "github.com/moby/term"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/exit"
)

// Console is how a person sits down at a service that is up.
type Console struct {
	Leave []byte // what is typed to leave it; nothing leaves it if it is empty
	Input bool   // what is typed goes there
}

// ErrLeft is a console that the person left. The service goes on.
var ErrLeft = errors.New("left the console")

// redraw is how long a console has another size than it should: a program that
// draws on the whole screen does so again for a new one only. Who else gives it a
// size is done within that.
const redraw = 100 * time.Millisecond

// Console connects the caller's standard streams with those of a service that is
// up, until the service ends, whose exit status it returns, or the person leaves
// (ErrLeft): by what is typed, by a signal, or with the terminal. What the service
// drew before is drawn again, if it does that for a new size of its terminal.
func (e *Engine) Console(ctx context.Context, id string, c Console, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	defer exit.Hold()()
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	got, err := e.api.ContainerInspect(ctx, id)
	if err != nil {
		return -1, e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
	}
	conn, err := within(ctx, func() (types.HijackedResponse, error) {
		return e.api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: c.Input && got.Config.OpenStdin, Stdout: true, Stderr: true, DetachKeys: detachKeys})
	}, func(c types.HijackedResponse) { c.Close() })
	if err != nil {
		return -1, e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
	}
	defer conn.Close()
	f, isFile := stdin.(*os.File)
	if isFile && got.Config.Tty && c.Input && term.IsTerminal(int(f.Fd())) {
		before, err := term.MakeRaw(int(f.Fd()))
		if err != nil {
			return -1, fmt.Errorf("terminal: %w", err)
		}
		defer func() { _ = term.Restore(int(f.Fd()), before) }()
	}
	left := make(chan struct{})
	if c.Input && got.Config.OpenStdin {
		if len(c.Leave) > 0 {
			stdin = keys.NewEscapeProxy(stdin, c.Leave)
		}
		go func() {
			// A standard input that ends is nobody who leaves: whoever pipes a question in
			// waits for the answer.
			if _, err := io.Copy(conn.Conn, stdin); errors.As(err, new(keys.EscapeError)) {
				close(left)
			}
		}()
	}
	ended := make(chan error, 1)
	go func() {
		var err error
		if got.Config.Tty {
			_, err = io.Copy(stdout, conn.Reader)
		} else {
			_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
		}
		ended <- err
	}()
	var right <-chan time.Time
	if got.Config.Tty && e.sizeConsole(ctx, id, stdout, -1) {
		right = time.After(redraw)
	}
	for {
		select {
		case err := <-ended:
			if errors.Is(err, syscall.EPIPE) { // nobody reads any more
				return -1, err
			}
			return e.consoleOutcome(ctx, id, err)
		case <-left:
			return -1, ErrLeft
		case <-signals:
			return -1, ErrLeft
		case <-resized:
			if got.Config.Tty && right == nil {
				e.sizeConsole(ctx, id, stdout, 0)
			}
		case <-right:
			right = nil
			e.sizeConsole(ctx, id, stdout, 0)
		}
	}
}

// sizeConsole gives a service's terminal the size of the caller's, and some rows
// more; false if there is none to give.
func (e *Engine) sizeConsole(ctx context.Context, id string, stdout io.Writer, more int) bool {
	f, ok := stdout.(*os.File)
	if !ok {
		return false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 || height+more <= 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	return e.api.ContainerResize(ctx, id, container.ResizeOptions{Width: uint(width), Height: uint(height + more)}) == nil
}

// consoleOutcome is what became of a service whose output has ended. The engine may
// need a moment to notice what was seen already.
func (e *Engine) consoleOutcome(ctx context.Context, id string, seen error) (int, error) {
	for until := time.Now().Add(settle); ; time.Sleep(settleAsk) {
		state, known := e.stateOf(context.WithoutCancel(ctx), id)
		switch late := time.Now().After(until); {
		case known && (state.Status == "" || state.Status == container.StateRemoving || state.Status == container.StateDead):
			return -1, ErrTakenDown
		case known && state.Status == container.StateExited && (late || state.ExitCode != killed && state.ExitCode != asked):
			// Whoever takes it down ends it first.
			return state.ExitCode, nil
		case late && seen != nil:
			return -1, fmt.Errorf("the console was lost, the service goes on: %w", seen)
		case late:
			return -1, errors.New("the console was lost, the service goes on")
		}
	}
}

// unreturned takes away the carriage return before each line break, which a terminal
// has put there.
type unreturned struct {
	to   io.Writer
	held bool // one that a line break may follow
}

func (w *unreturned) Write(b []byte) (int, error) {
	out := make([]byte, 0, len(b)+1)
	for _, c := range b {
		if w.held && c != '\n' {
			out = append(out, '\r')
		}
		if w.held = c == '\r'; !w.held {
			out = append(out, c)
		}
	}
	if _, err := w.to.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close writes what was held.
func (w *unreturned) Close() error {
	if !w.held {
		return nil
	}
	w.held = false
	_, err := w.to.Write([]byte{'\r'})
	return err
}
