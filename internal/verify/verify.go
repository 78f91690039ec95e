// Package verify is the checker that runs inside a service, as the service's
// own user: a list of checks goes in, one event a check comes out. It never
// changes the sandbox, dials outside only the addresses it is told to prove
// refused, and calls nothing proven that it could not tell.
//
// A refusal seen from the inside is provisional: the event carries the probes,
// and the host asks the gate what became of each (see internal/report).
package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	program = "corral-verify"

	// checkLimit is how long one check may take.
	checkLimit = 2 * time.Second
	// searchLimit is how long one may take whose work grows with the image.
	searchLimit = 10 * time.Second
	// parallel bounds the checks that run at once: they mostly wait.
	parallel = 12
)

// finding is what a check saw. The zero value could not tell.
type finding struct {
	result spec.Result
	detail string
	probes []spec.Probe
}

func ok() finding { return finding{result: spec.OK} }

func failed(format string, args ...any) finding {
	return finding{result: spec.Failed, detail: fmt.Sprintf(format, args...)}
}

func untold(format string, args ...any) finding {
	return finding{result: spec.Untold, detail: fmt.Sprintf(format, args...)}
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
	// handover means that no gate will be asked: a probe counts only if it was
	// refused on the spot.
	handover bool
	// aside means that the gate is asked from here, at once: whoever is silent has
	// not been refused, and what has no route needs no refusal.
	aside bool
}

func newEnv() *env {
	return &env{
		home:     os.Getenv("HOME"),
		dns:      netip.MustParseAddrPort("127.0.0.1:53"),
		resolver: &net.Resolver{PreferGo: true},
		ports:    newPorts(),
	}
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

func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) error {
	switch {
	case len(args) == 0:
		v, err := spec.ParseVerify(stdin)
		if err != nil {
			return &exit.Error{Status: exit.Invalid, Err: err}
		}
		return verify(ctx, v, newEnv(), stdout)
	case args[0] == "handover":
		return handover(ctx, args[1:], newEnv(), stderr)
	case args[0] == "alone":
		return verifyAlone(ctx, args[1:], newEnv(), stdout)
	case args[0] == "version":
		_, err := fmt.Fprintln(stdout, program, spec.Release())
		return err
	}
	return exit.Invalidf("corral-verify reads its list on standard input; the other forms are `alone [--json]`, `handover [--alone] -- COMMAND` and `version`", "unknown argument %q", args[0])
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
			ev := spec.Event{Version: spec.Version, Service: service, Check: c.Name, Result: f.result, Detail: f.detail, Probes: f.probes}
			if !yield(ev) {
				return
			}
		}
	}
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
	if c.Kind() == "secret-absent-elsewhere" {
		limit = searchLimit
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
		return f
	case <-ctx.Done():
		// A check that ended in the same moment counts.
		select {
		case f := <-done:
			return f
		default:
			return untold("no result within %v", limit)
		}
	}
}
