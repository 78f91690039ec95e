// Package command runs other programs and turns their failure into one error
// type that says which program, how it ended and its last words.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Error is a program that did not end well.
type Error struct {
	Args   []string
	Status int    // exit status, -1 if it never started or was killed
	Stderr string // its last lines
	Err    error
}

func (e *Error) Error() string {
	msg := fmt.Sprintf("%s: %v", e.Args[0], e.Err)
	if len(e.Args) > 1 {
		msg = fmt.Sprintf("%s %s: %v", e.Args[0], firstWords(e.Args[1:]), e.Err)
	}
	if e.Stderr != "" {
		msg += ": " + e.Stderr
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Err }

// Run runs a program with messages in English and returns its standard output.
func Run(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 2 * time.Second
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = stdin
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), Fail(args, errs.String(), err)
	}
	return out.Bytes(), nil
}

// Fail wraps what exec returned for args, with the last lines of stderr.
func Fail(args []string, stderr string, err error) error {
	status := -1
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		status = exited.ExitCode()
	}
	return &Error{Args: args, Status: status, Stderr: lastLines(stderr, 5), Err: err}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "; ")
}

func firstWords(args []string) string {
	if len(args) > 4 {
		return strings.Join(args[:4], " ") + " …"
	}
	return strings.Join(args, " ")
}
