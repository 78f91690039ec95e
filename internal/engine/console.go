package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/exit"
)

// Console is how a person sits down at a service that is up.
type Console struct {
	Leave []byte // what is typed to leave it; nothing leaves it if it is empty
	Input bool   // what is typed goes there, a terminal in raw mode if stdout is one too
}

// ErrLeft is a console that the person left. The service goes on.
var ErrLeft = errors.New("left the console")

// ErrStalled is a console whose terminal took nothing any more, for longer than there is
// room for what comes. The service goes on: an engine would make it wait.
var ErrStalled = errors.New("the terminal takes nothing any more")

// ErrRestarted is a console of a service that somebody ended and started again.
var ErrRestarted = errors.New("it was ended and started again")

// ErrLost is a console that ended without the service.
var ErrLost = errors.New("the console was lost, the service goes on")

const (
	// stallRoom is how much is kept for a terminal that takes nothing.
	stallRoom = 1 << 20
	// stallAfter is how long it may take nothing while there is no more room.
	stallAfter = 5 * time.Second
	// dropWithin is how long what is being written is waited for by who leaves.
	dropWithin = time.Second
)

// unstalled passes on what is written without waiting for it to be taken, as long as
// there is room. Once to has taken nothing for stallAfter and the room is full, it calls
// stalled and takes nothing more.
//
// Whoever leaves meanwhile drops the rest.
func unstalled(to io.Writer, stalled func()) *staller {
	s := &staller{to: to, stalled: stalled, changed: make(chan struct{}, 1), more: make(chan struct{}, 1), done: make(chan struct{})}
	go s.pass()
	return s
}

// Unheld passes on what is written to a stream that may take nothing for a while, or ever
// again, and holds nobody up. Its Close waits until all was taken; where nothing is any more
// it is ErrStalled, and may be called again.
func Unheld(to io.Writer) io.WriteCloser { return unstalled(to, func() {}) }

type staller struct {
	to      io.Writer
	stalled func()

	mu     sync.Mutex
	kept   []byte
	closed bool
	err    error

	more    chan struct{} // something is kept, or it was closed
	changed chan struct{} // something was taken
	done    chan struct{} // all of it was
}

// take is what to pass on next, with the error or the end of it.
func (s *staller) take() (piece []byte, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	piece, s.kept = s.kept, nil
	return piece, s.closed && len(piece) == 0
}

// dropped says whether nothing more is to be passed on.
func (s *staller) dropped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// drop passes on nothing more, and waits for what is being written, so that nothing comes
// after what somebody else writes then; not for one who has taken nothing for a while.
func (s *staller) drop() {
	s.mu.Lock()
	s.kept, s.closed, s.err = nil, true, cmp.Or(s.err, ErrLeft)
	s.mu.Unlock()
	poke(s.more)
	select {
	case <-s.done:
	case <-time.After(dropWithin):
	}
}

func (s *staller) pass() {
	defer close(s.done)
	for {
		piece, end := s.take()
		if end {
			return
		}
		if len(piece) == 0 {
			<-s.more
			continue
		}
		for rest := piece; len(rest) > 0 && !s.dropped(); { // in pieces: each that is taken is a sign of life
			n, err := s.to.Write(rest[:min(len(rest), 4096)])
			rest = rest[n:]
			if err != nil {
				s.mu.Lock()
				s.err = err
				s.mu.Unlock()
			}
			poke(s.changed)
			if err != nil {
				return
			}
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keep puts b with the rest if there is room.
func (s *staller) keep(b []byte) (kept bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || len(s.kept) > 0 && len(s.kept)+len(b) > stallRoom {
		return false, s.err
	}
	s.kept = append(s.kept, b...)
	poke(s.more)
	return true, nil
}

func (s *staller) Write(b []byte) (int, error) {
	for {
		switch kept, err := s.keep(b); {
		case err != nil:
			return 0, err
		case kept:
			return len(b), nil
		}
		select {
		case <-s.changed:
		case <-time.After(stallAfter):
			s.stalled()
			return 0, ErrStalled
		}
	}
}

// Close waits until all of it was taken, as long as anything is.
func (s *staller) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	poke(s.more)
	for {
		select {
		case <-s.done:
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.err
		case <-s.changed:
		case <-time.After(stallAfter):
			s.stalled()
			return ErrStalled
		}
	}
}

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
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	defer exit.Hold()()
	// Whoever does not want to wait for the engine any more need not.
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	go func() {
		select {
		case <-signals:
			leave(ErrLeft)
		case <-ctx.Done():
		}
	}()
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	got, err := e.api.ContainerInspect(ctx, id)
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	if err != nil {
		return -1, e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
	}
	conn, err := within(ctx, func() (types.HijackedResponse, error) {
		return e.api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: c.Input && got.Config.OpenStdin, Stdout: true, Stderr: true, DetachKeys: detachKeys})
	}, func(c types.HijackedResponse) { c.Close() })
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	if err != nil {
		return -1, e.unlessTakenDown(ctx, id, fmt.Errorf("service: %w", err))
	}
	defer conn.Close()
	raw := rawTerminal{}
	if in := terminalOf(stdin); got.Config.Tty && c.Input && in != nil && terminalOf(stdout) != nil {
		if raw, err = makeRaw(in); err != nil {
			return -1, err
		}
		defer raw.restore()
	}
	if c.Input && got.Config.OpenStdin {
		if len(c.Leave) > 0 {
			stdin = newLeaver(stdin, c.Leave)
		}
		go func() {
			// A standard input that ends is nobody who leaves: whoever pipes a question in
			// waits for the answer.
			if _, err := io.Copy(conn.Conn, stdin); errors.Is(err, ErrLeft) {
				leave(ErrLeft)
			}
		}()
	}
	ended := make(chan error, 1)
	stalled := func() { leave(ErrStalled) }
	out, errs := unstalled(stdout, stalled), unstalled(stderr, stalled)
	defer errs.drop()
	defer out.drop()
	go func() {
		var err error
		if got.Config.Tty {
			_, err = io.Copy(out, conn.Reader)
		} else {
			_, err = stdcopy.StdCopy(out, errs, conn.Reader)
		}
		ended <- cmp.Or(err, out.Close(), errs.Close())
	}()
	var right <-chan time.Time
	if got.Config.Tty && e.sizeConsole(ctx, id, stdout, 1) {
		right = time.After(redraw)
	}
	for {
		select {
		case err := <-ended:
			if errors.Is(err, syscall.EPIPE) { // nobody reads any more
				return -1, err
			}
			if ctx.Err() != nil {
				return -1, context.Cause(ctx)
			}
			return e.consoleOutcome(ctx, id, got.State.StartedAt, err)
		case <-ctx.Done():
			return -1, context.Cause(ctx)
		case <-resized:
			if got.Config.Tty && right == nil {
				e.sizeConsole(ctx, id, stdout, 0)
			}
		case <-continued:
			raw.again()
			if got.Config.Tty && e.sizeConsole(ctx, id, stdout, 1) {
				right = time.After(redraw)
			}
		case <-right:
			right = nil
			e.sizeConsole(ctx, id, stdout, 0)
		}
	}
}

// rawTerminal is a terminal that passes keys as bytes; there may be none.
type rawTerminal struct {
	f      *os.File
	before *term.State
}

// terminalOf is the terminal that a stream is, nil if it is none.
func terminalOf(stream any) *os.File {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return f
}

func makeRaw(f *os.File) (rawTerminal, error) {
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return rawTerminal{}, fmt.Errorf("terminal: %w", err)
	}
	return rawTerminal{f, before}, nil
}

// again is for one who was stopped: the shell has set the terminal to what it needs
// itself. In the background it is not ours, and setting it would stop us again.
func (t rawTerminal) again() {
	if t.f != nil {
		InFront(t.f, func() { _, _ = term.MakeRaw(int(t.f.Fd())) })
	}
}

func (t rawTerminal) restore() {
	if t.f != nil {
		InFront(t.f, func() { _ = term.Restore(int(t.f.Fd()), t.before) })
	}
}

// InFront does something to a terminal unless that is somebody else's at the moment: who is
// in the background would be stopped by it. Nor does it stop one who is put there meanwhile.
func InFront(terminal *os.File, do func()) {
	if front, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP); err == nil && front != unix.Getpgrp() {
		return
	}
	// Of this thread only: a program that is started gets what is ignored by all of them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stops, before unix.Sigset_t
	stops.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &stops, &before); err == nil {
		defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	}
	do()
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

// consoleOutcome is what became of a service that was started then and whose output has
// ended. The engine may need a moment to notice what was seen already.
func (e *Engine) consoleOutcome(ctx context.Context, id, started string, seen error) (int, error) {
	for until := time.Now().Add(settle); ; time.Sleep(settleAsk) {
		state, known := e.stateOf(context.WithoutCancel(ctx), id)
		switch late := time.Now().After(until); {
		case known && (state.Status == "" || state.Status == container.StateRemoving || state.Status == container.StateDead):
			return -1, ErrTakenDown
		case known && state.Status == container.StateRunning && state.StartedAt != started:
			return -1, ErrRestarted
		case known && state.Status == container.StateExited && (late || state.ExitCode != killed && state.ExitCode != asked):
			// Whoever takes it down ends it first.
			return state.ExitCode, nil
		case late && seen != nil:
			return -1, fmt.Errorf("%w: %w", ErrLost, seen)
		case late:
			return -1, ErrLost
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
