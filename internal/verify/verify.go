// Package verify is the checker that runs inside a service, as the service's
// own user: a list of checks goes in, one event a check comes out. It never
// changes the sandbox, dials only what its list names (addresses that must be
// refused, listed hosts, the gateway, other sandboxes, the engine's resolver), and
// calls nothing proven that it could not tell.
//
// A refusal seen from the inside is provisional: the event carries the probes,
// and the host asks the gate what became of each (see internal/report).
package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	program = "corral-verify"

	// checkLimit is how long one check may take: the work of some grows with the image
	// or with what the agent does, who may leave them little of the processors. What
	// waits for an answer has a limit of its own.
	checkLimit = 10 * time.Second
	// harnessLimit is the same of a check that starts the harness itself.
	harnessLimit = 40 * time.Second
	// proofLimit is when nobody listens any more. Whoever was stopped until then ends
	// before anything else.
	proofLimit = time.Minute
	// settleWithin is more than an engine takes to make a process that it starts the
	// service's, on a busy machine.
	settleWithin = 500 * time.Millisecond
	// parallel bounds the checks that run at once: they mostly wait.
	parallel = 12
)

// finding is what a check saw. The zero value could not tell.
type finding struct {
	result spec.Result
	detail string
	hint   string // what to do about it, in a stack that no corral outside sees
	probes []spec.Probe
}

func ok() finding { return finding{result: spec.OK} }

func failed(format string, args ...any) finding {
	return finding{result: spec.Failed, detail: fmt.Sprintf(format, args...)}
}

func untold(format string, args ...any) finding {
	return finding{result: spec.Untold, detail: fmt.Sprintf(format, args...)}
}

// advising is f with what to do about it, if it does not hold.
func (f finding) advising(hint string) finding {
	if f.result == spec.Failed || f.result == spec.Untold {
		f.hint = hint
	}
	return f
}

// check asserts one thing. It reads the fields of c that its kind defines.
type check func(ctx context.Context, c spec.Check, e *env) finding

// env is what checks look at. Tests point it at something smaller.
type env struct {
	root     string         // prefix of every path
	home     string         // $HOME
	dns      netip.AddrPort // where the gate answers
	resolver *net.Resolver  // the way of ordinary programs
	ports    *ports
	settle   time.Duration // how long something must be wrong that may be passing
	// resources are this process's own limits as they were at its start, nil if nobody
	// looks.
	resources resources
	// live are the engine's sockets in what is mounted, looked for once.
	live func() mountedSockets
	// handover means that no gate will be asked: a probe counts only if it was
	// refused on the spot.
	handover bool
	// aside means that the gate is asked from here, at once: whoever is silent has
	// not been refused, and what has no route needs no refusal.
	aside bool
	// mute is why the gate is not asked any more: it did not answer at all.
	mute error
}

func newEnv() *env {
	e := &env{
		home:     os.Getenv("HOME"),
		dns:      netip.MustParseAddrPort("127.0.0.1:53"),
		resolver: &net.Resolver{PreferGo: true, Dial: insist},
		ports:    newPorts(),
		settle:   settleWithin,
	}
	e.live = sync.OnceValue(e.engineSockets)
	return e
}

func (e *env) path(p string) string { return filepath.Join(e.root, p) }

// Main is corral-verify. Without arguments it reads a spec.Verify document and
// writes one spec.Event a line; the status is 1 if a check failed or could not
// be told.
func Main(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) int {
	// The agent runs as the same user: it may not read or write this process's
	// memory, nor open what it holds open.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return exit.Report(stderr, program, fmt.Errorf("not to be traced: %w", err))
	}
	return exit.Report(stderr, program, run(ctx, stdin, stdout, stderr, args))
}

// usage is what corral-verify says of itself.
const usage = `corral-verify proves from the inside that its service is fenced.

  corral-verify alone [--failed | --json]
                                  every check that needs no plan of corral's, in a stack of
                                  yours; exit 1 if one fails or cannot be told
  corral-verify handover [--alone] -- COMMAND
                                  starts COMMAND behind a closed gate, or not at all; with
                                  --alone in a stack of yours
  corral-verify serving PORT      waits until this service answers at a TCP port of its own
  corral-verify version
  corral-verify                   takes its list on standard input: corral does that

What it prints: docs/verify.md; the stack: docs/alone.md.
`

// ignoreSignals takes no signal as more than noise: they are the agent's, since whoever
// asked reads to the end, or goes away. But for the one by which a child tells how it
// ended, which the kernel would throw away.
func ignoreSignals() {
	signal.Ignore()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGCHLD)
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" || arg == "help" }

func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) error {
	switch {
	case len(args) == 0:
		v, err := spec.ParseVerify(stdin)
		if errors.Is(err, io.EOF) {
			return exit.Invalidf("corral verify starts it with one; in a stack of yours: docker compose exec SERVICE /opt/corral/bin/corral-verify alone", "there is no list of checks on standard input")
		}
		if err != nil {
			return &exit.Error{Status: exit.Invalid, Err: err}
		}
		ignoreSignals()
		ctx, cancel := context.WithTimeout(ctx, proofLimit)
		defer cancel()
		e := newEnv()
		if e.resources, err = ownResources(); err != nil {
			return err
		}
		return verify(ctx, v, e, stdout)
	case args[0] == "handover":
		return handover(ctx, args[1:], newEnv(), stderr)
	case args[0] == "alone":
		return verifyAlone(ctx, args[1:], newEnv(), stdout)
	case args[0] == "serving":
		return serving(ctx, args[1:])
	case args[0] == "version":
		_, err := fmt.Fprintln(stdout, program, spec.Release())
		return err
	case isHelp(args[0]):
		_, err := fmt.Fprint(stdout, usage)
		return err
	}
	return exit.Invalidf("corral-verify reads its list on standard input; the other forms are `alone [--failed | --json]`, `handover [--alone] -- COMMAND` and `version`", "unknown argument %q", args[0])
}

// verify writes an event for every check, in list order.
func verify(ctx context.Context, v spec.Verify, e *env, stdout io.Writer) error {
	enc := json.NewEncoder(stdout)
	enc.SetEscapeHTML(false)
	bad := 0
	for ev := range runChecks(ctx, v.Service, v.Checks, e) {
		if ev.Result == spec.Untold || ev.Result == spec.Failed {
			bad++
		}
		if err := enc.Encode(ev); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
	}
	if bad > 0 {
		return exit.Status(exit.Failed)
	}
	return nil
}

// runChecks runs the checks side by side and yields their events in list order.
func runChecks(ctx context.Context, service string, checks []spec.Check, e *env) func(func(spec.Event) bool) {
	return func(yield func(spec.Event) bool) {
		findings := make([]chan finding, len(checks))
		for i := range findings {
			findings[i] = make(chan finding, 1)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		next := make(chan int, len(checks))
		for i := range checks {
			next <- i
		}
		close(next)
		for range min(parallel, len(checks)) {
			wg.Go(func() {
				for i := range next {
					findings[i] <- examine(ctx, checks[i], e)
				}
			})
		}
		for i, c := range checks {
			f := <-findings[i]
			ev := spec.Event{Version: spec.Version, Service: service, Check: c.Name, Result: f.result, Detail: f.detail, Hint: f.hint, Probes: f.probes}
			if !yield(ev) {
				return
			}
		}
	}
}

// undisturbed is what was found, if nobody stood in the way of looking.
func (e *env) undisturbed(f finding) finding {
	if e == nil || e.resources == nil {
		return f
	}
	if why := e.resources.lowered(); why != "" {
		return untold("%s", why)
	}
	return f
}

// examine runs one check. Whatever goes wrong with the check itself, a kind it
// does not know included, could not be told.
func examine(ctx context.Context, c spec.Check, e *env) finding {
	if c.Skip != "" {
		return finding{result: spec.Skip, detail: c.Skip}
	}
	fn, known := kinds[c.Kind()]
	if !known {
		return untold("this checker does not know it")
	}
	limit := checkLimit
	if c.Kind() == "config-pinned" {
		limit = harnessLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan finding, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- untold("the check broke: %v", p)
			}
		}()
		done <- fn(ctx, c, e)
	}()
	select {
	case f := <-done:
		return e.undisturbed(f)
	case <-ctx.Done():
		// A check that ended in the same moment counts.
		select {
		case f := <-done:
			return e.undisturbed(f)
		default:
			f := untold("no result within %v", limit)
			if e != nil {
				f.detail += e.crowded()
			}
			return f
		}
	}
}
