package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Statuses of a command that cannot be run, as shells have them.
const (
	notExecutable = 126
	notFound      = 127
)

// handover proves the fence from the agent's own side and then becomes the
// agent. Nothing but a failure is printed. What is proven a document says, which
// corral gives to all that it makes; in the stacks of others there is none, and
// --alone, which asks for what holds of any service, is for those.
func handover(ctx context.Context, args []string, e *env, stderr io.Writer) error {
	isAlone := len(args) > 0 && args[0] == "--alone"
	if isAlone {
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return exit.Invalidf("corral-verify handover [--alone] -- COMMAND ARGS…", "handover: no command")
	}
	switch document, found := os.LookupEnv(spec.HandoverEnv); {
	case isAlone && found:
		return exit.Invalidf("leave one of the two out", "handover: --alone, and %s says what to prove", spec.HandoverEnv)
	case isAlone:
		if err := proveAlone(ctx, e, stderr); err != nil {
			return err
		}
	case !found:
		return exit.Invalidf("in a stack that corral did not make: `corral-verify handover --alone -- COMMAND ARGS…`", "handover: no %s says what to prove", spec.HandoverEnv)
	default:
		h, err := spec.ParseHandover(strings.NewReader(document))
		if err != nil {
			return &exit.Error{Status: exit.Invalid, Err: err}
		}
		if err := prove(ctx, h, e, stderr); err != nil {
			return err
		}
		if h.Console && os.Getppid() == 1 { // what is run beside the harness has one of its own
			giveSize(os.Stdin)
		}
	}
	file, err := lookUp(args[0])
	if err != nil {
		return err
	}
	if err := syscall.Exec(file, args, without(os.Environ(), spec.HandoverEnv, spec.InitEnv)); err != nil {
		return unrunnable(args[0], err)
	}
	return nil
}

// giveSize gives a terminal that has no size yet the usual one: what draws on the whole
// screen would draw nothing. Whoever comes brings their own.
func giveSize(terminal *os.File) {
	fd := int(terminal.Fd())
	size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err == nil && size.Row == 0 && size.Col == 0 {
		_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
}

// prove runs the checks of a handover, each of which must hold.
func prove(ctx context.Context, h spec.Handover, e *env, stderr io.Writer) error {
	for _, kind := range required {
		if !slices.ContainsFunc(h.Checks, func(c spec.Check) bool { return c.Kind() == kind && c.Skip == "" }) {
			return exit.Invalidf("", "handover spec: it does not check %s", kind)
		}
	}
	e.handover = true
	// Nothing is sent in a namespace that is not this gate's: it may be open.
	var gate, rest []spec.Check
	for _, c := range h.Checks {
		if c.Kind() == "same-netns-as-gate" {
			gate = append(gate, c)
		} else {
			rest = append(rest, c)
		}
	}
	for _, round := range [][]spec.Check{gate, rest} {
		if handoverRefused(ctx, h.Service, round, e, stderr) {
			return exit.Status(exit.Failed)
		}
	}
	return nil
}

// handoverRefused runs checks, prints those that do not hold, and reports
// whether there was one.
func handoverRefused(ctx context.Context, service string, checks []spec.Check, e *env, stderr io.Writer) bool {
	var events []spec.Event
	for ev := range runChecks(ctx, service, checks, e) {
		events = append(events, ev)
	}
	return refuse(events, stderr)
}

// refuse prints the events that do not hold and reports whether there was one.
func refuse(events []spec.Event, stderr io.Writer) bool {
	refused := false
	for _, ev := range events {
		why := ev.Detail
		switch ev.Result {
		case spec.OK, spec.Skip, spec.Note:
			continue
		case spec.Untold:
			why = "cannot tell: " + why
		}
		refused = true
		if ev.Hint != "" {
			why += "; " + ev.Hint
		}
		fmt.Fprintf(stderr, "%s: handover refused: %s: %s\n", program, ev.Check, printable.Escape(why))
	}
	return refused
}

// lookUp finds a command as a shell would.
func lookUp(name string) (string, error) {
	file, err := exec.LookPath(name)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return file, nil
	}
	if !strings.Contains(name, "/") {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if st, statErr := os.Stat(filepath.Join(dir, name)); statErr == nil && !st.IsDir() {
				err = fs.ErrPermission
			}
		}
	}
	return "", unrunnable(name, err)
}

func unrunnable(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &exit.Error{Status: notFound, Err: fmt.Errorf("%s: command not found", name), Hint: "its image does not have it; with corral, image.packages and image.run of the policy add programs"}
	}
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return &exit.Error{Status: notExecutable, Err: fmt.Errorf("%s: cannot be executed: %w", name, err)}
}

func without(environ []string, names ...string) []string {
	return slices.DeleteFunc(environ, func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains(names, name)
	})
}
