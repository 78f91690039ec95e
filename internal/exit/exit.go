// Package exit is where an error becomes a message, a hint and a status, for
// every binary alike.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/printable"
)

// Statuses of every corral binary.
const (
	OK      = 0
	Failed  = 1 // the operation failed, or a check did
	Invalid = 2 // the policy, the spec or the request is invalid
)

// Error carries what a person should do and the status to leave with.
type Error struct {
	Status int
	Err    error
	Hint   string
	// Quiet errors were reported already: only the status counts.
	Quiet bool
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Invalidf is a request that cannot be served as it stands.
func Invalidf(hint, format string, args ...any) error {
	return &Error{Status: Invalid, Err: fmt.Errorf(format, args...), Hint: hint}
}

// Failedf is an operation that failed.
func Failedf(hint, format string, args ...any) error {
	return &Error{Status: Failed, Err: fmt.Errorf(format, args...), Hint: hint}
}

// Status leaves with a status and says nothing.
func Status(n int) error { return &Error{Status: n, Quiet: true} }

// Report prints err for a person and returns the exit status.
func Report(w io.Writer, program string, err error) int {
	if err == nil {
		return OK
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintf(w, "%s: interrupted\n", program)
		for _, other := range besides(err) { // what could not be cleared up
			fmt.Fprintf(w, "%s: %s\n", program, shown(other))
		}
		return Interrupted
	}
	var e *Error
	if !errors.As(err, &e) {
		fmt.Fprintf(w, "%s: %s\n", program, shown(err))
		return Failed
	}
	if !e.Quiet {
		fmt.Fprintf(w, "%s: %s\n", program, shown(err))
		if e.Hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", printable.Escape(e.Hint))
		}
	}
	return e.Status
}

// shown is an error's text, which may hold names and words of others.
func shown(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, l := range lines {
		lines[i] = printable.Escape(l)
	}
	return strings.Join(lines, "\n")
}

// besides are the parts of a joined error that are no interruption.
func besides(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return []error{err}
	}
	var out []error
	for _, part := range joined.Unwrap() {
		out = append(out, besides(part)...)
	}
	return out
}

// Interrupted is the status of a program that SIGINT ended, as shells have it.
const Interrupted = 130

// Context is cancelled by the first SIGINT, SIGTERM or SIGHUP; the second one
// ends the process, unless Hold says that it is somebody else's. What that
// leaves, and what to do about it, program says with hint. A reader of our
// output that goes away is an error of the write, not the end: there may be
// something to clear up.
func Context(program, hint string) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		for {
			<-ch
			switch {
			case held.Load() > 0:
			case ctx.Err() != nil:
				abrupt := &Error{Status: Interrupted, Err: errors.New("interrupted twice, and ended at once"), Hint: hint}
				if hint != "" {
					abrupt.Err = fmt.Errorf("%w: what it had begun may be left", abrupt.Err)
				}
				said := make(chan int, 1)
				go func() { said <- Report(os.Stderr, program, abrupt) }()
				select {
				case <-said:
				case <-time.After(time.Second): // it takes nothing any more
				}
				os.Exit(Interrupted)
			default:
				cancel()
			}
		}
	}()
	return ctx
}

var held atomic.Int32

// Hold leaves signals to a child process that is in front of the person, until
// the result is called.
func Hold() (release func()) {
	held.Add(1)
	return func() { held.Add(-1) }
}
