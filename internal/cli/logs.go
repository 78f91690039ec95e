package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spelling"
)

func (a *app) logs() *cobra.Command {
	var which engine.LogRange
	c := &cobra.Command{
		Use:   "logs [SERVICE…]",
		Short: "Print what the agent, or the gate, has written",
		Long: `Prints what the engine kept of the output of services that are up: of all but the
gates, unless some are named (main is the agent, gate its gate). Where it is more
than one, each line begins with whose it is, and what would act on a terminal is
escaped. Of one alone it comes as it was written, with whatever it makes a
terminal do until the end; corral logs | less is safe to read. The engine keeps
lines: of a program that draws on the whole screen there may be nothing.

With --follow it goes on until all of them have ended; in an always-on sandbox
until that is taken down: what is started again or made anew is followed, too.`,
		Example: `  corral logs
  corral logs -f
  corral logs gate
  corral logs --tail 20 -f main gate`,
		ValidArgsFunction: a.services,
		RunE: func(c *cobra.Command, args []string) error {
			which.All = !c.Flags().Changed("tail")
			if which.Last < 0 {
				return exit.Invalidf("0 shows what comes from now on, with -f", "-n: %d is no number of lines", which.Last)
			}
			return a.showLogs(c.Context(), args, which)
		},
	}
	c.Flags().BoolVarP(&which.Follow, "follow", "f", false, "go on with what comes")
	c.Flags().IntVarP(&which.Last, "tail", "n", 0, "only so many lines of what was kept (default: all)")
	return c
}

// showLogs needs no policy: it may be anything by now.
func (a *app) showLogs(ctx context.Context, names []string, which engine.LogRange) error {
	e, file, members, err := a.here(ctx)
	if err != nil {
		return err
	}
	if len(members) == 0 {
		return exit.Failedf(a.starter()+" starts it; what it writes is kept as long as it is up", "nothing of %s is up", file)
	}
	var known, services []string
	for _, m := range members {
		if known = append(known, spoken(m)); m.Role == engine.RoleService {
			services = append(services, spoken(m))
		}
	}
	slices.Sort(known)
	slices.Sort(services)
	for _, name := range names {
		if name == "main" && !slices.Contains(known, name) {
			return exit.Failedf(cure(members[0], "corral down ends the rest"), "main is not there, so nothing of it was kept")
		}
		if !slices.Contains(known, name) {
			hint := "there is " + strings.Join(slices.Compact(known), ", ")
			if near := spelling.Nearest(name, known); near != "" {
				hint = fmt.Sprintf("did you mean %s?", near)
			}
			return exit.Invalidf(hint, "no service is called %q", name)
		}
	}
	if len(names) == 0 {
		names = services
	}
	slices.Sort(names)
	for _, h := range e.Health(ctx, members) {
		if h.Dark {
			a.sayf("%s: %s (%s)", h.Service, h.State, cure(members[0], "corral down ends it"))
		}
	}
	l := &reader{app: a, engine: e, file: file, names: slices.Compact(names), which: which, seen: map[string]time.Time{}, reading: map[string]bool{}, until: map[string]time.Time{}}
	if len(l.names) == 0 {
		return exit.Failedf("corral up heals it", "only the gate is there: corral logs gate says what it has written")
	}
	l.errs = a.unhold(true)
	if l.acts() {
		defer a.restore()
	}
	return leavable(ctx, func() error {
		if !which.Follow {
			return l.once(ctx, members)
		}
		return l.follow(ctx)
	})
}

// leaveAfter is how long what is to end may still take.
const leaveAfter = time.Second

// leavable does something that ends with ctx unless it stands still: that is left to the
// end of the process.
func leavable(ctx context.Context, do func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(leaveAfter):
		return context.Cause(ctx)
	}
}

// reader reads what the services of one sandbox write.
type reader struct {
	*app
	engine *engine.Engine
	file   string
	names  []string
	which  engine.LogRange
	errs   io.Writer // standard error itself

	mu sync.Mutex // of what is written

	// By container: when what is or was read last had been started, whether it is, and
	// until when.
	seen    map[string]time.Time
	reading map[string]bool
	until   map[string]time.Time
}

// chosen are the members whose output is asked for, by their names.
func (l *reader) chosen(members []engine.Member) []engine.Member {
	members = slices.DeleteFunc(slices.Clone(members), func(m engine.Member) bool { return !slices.Contains(l.names, spoken(m)) })
	slices.SortFunc(members, func(a, b engine.Member) int { return strings.Compare(spoken(a), spoken(b)) })
	return members
}

// once reads what was kept of each, one after the other.
func (l *reader) once(ctx context.Context, members []engine.Member) error {
	for _, m := range l.chosen(members) {
		err := l.read(ctx, m, l.which)
		if gone := new(nobodyReads); errors.As(err, &gone) {
			return gone.error
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read passes on one container's output.
func (l *reader) read(ctx context.Context, m engine.Member, which engine.LogRange) error {
	out, errs := l.writer(m, l.out), l.writer(m, l.errs)
	err := l.engine.Logs(ctx, m.ID, which, out, errs)
	return errors.Join(err, out.Close(), errs.Close())
}

// follow reads all of them side by side, and whatever comes in their place.
func (l *reader) follow(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var readers sync.WaitGroup
	defer readers.Wait()
	poke := make(chan struct{}, 1)
	happened := func() {
		select {
		case poke <- struct{}{}:
		default:
		}
	}
	go func() { _ = l.engine.Watch(ctx, l.file, happened) }()
	ended := make(chan reading)
	for lasting := false; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-ended:
			delete(l.reading, r.ID)
			l.until[r.ID] = r.over
			if lasting {
				l.tell(ctx, r.Member)
			}
		case <-poke:
		}
		members, err := l.engine.Members(ctx, l.file)
		if err != nil {
			continue // the engine is away: it is waited for
		}
		chosen := l.chosen(members)
		for _, m := range chosen {
			lasting = lasting || m.Purpose == engine.PurposeDaemon
			which, is := l.next(ctx, m)
			if !is {
				continue
			}
			readers.Go(func() {
				err := l.read(ctx, m, which)
				if gone := new(nobodyReads); errors.As(err, &gone) {
					stop(gone.error)
				}
				over := time.Now()
				if state, known := l.engine.State(ctx, m.ID); known && state == "running" {
					// The engine ends a reading where it rotates what it keeps.
					select {
					case <-time.After(rereadAfter):
					case <-ctx.Done():
					}
				}
				select {
				case ended <- reading{m, over}:
				case <-ctx.Done():
				}
			})
		}
		l.which.All, l.which.Last = true, 0
		if len(l.reading) > 0 || lasting && len(chosen) > 0 {
			continue
		}
		if is, err := wanted(l.file); !lasting || err == nil && !is {
			if lasting {
				l.calmed()
				l.sayf("it was taken down")
			}
			return nil
		}
	}
}

// acts says whether what is read can act on the terminal.
func (l *reader) acts() bool { return len(l.names) == 1 && terminal(l.out) }

// calmed is for what is said while more may come.
func (l *reader) calmed() {
	if l.acts() {
		l.calm()
	}
}

// tell says why an always-on container ended, unless it was taken down.
func (l *reader) tell(ctx context.Context, m engine.Member) {
	why := l.engine.WhyEnded(ctx, m)
	if is, err := wanted(l.file); why == "" || err == nil && !is {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calmed()
	l.sayf("%s ended (%s): what comes in its place is followed", spoken(m), why)
}

// reading is one that is over, and when it was.
type reading struct {
	engine.Member
	over time.Time
}

// rereadAfter is how long after a reading ended, and nothing else, the next one begins.
const rereadAfter = time.Second

// next is what of a container is to be read now, if anything is: it was started since
// it was read last, or runs on and the engine has ended the reading.
func (l *reader) next(ctx context.Context, m engine.Member) (which engine.LogRange, is bool) {
	started, known := l.engine.Started(ctx, m.ID)
	before, again := l.seen[m.ID]
	same := again && before.Equal(started)
	if !known || started.IsZero() || l.reading[m.ID] || same && !m.Running {
		return which, false
	}
	which = l.which
	if again { // it has said the rest already; what it says first may be older than its start, for the engine
		which.Since = l.until[m.ID]
	}
	l.seen[m.ID], l.reading[m.ID] = started, true
	return which, true
}

// nobodyReads is a standard output that takes nothing more.
type nobodyReads struct{ error }

func (e *nobodyReads) Unwrap() error { return e.error }

// writer passes on what one container writes: as it is if it is the only one, else
// line by line, each with whose it is and escaped: none can look like another's.
func (l *reader) writer(m engine.Member, to io.Writer) *lines {
	w := &lines{mu: &l.mu, to: to}
	if len(l.names) > 1 {
		width := len(slices.MaxFunc(l.names, func(a, b string) int { return len(a) - len(b) }))
		w.prefix = fmt.Sprintf("%-*s | ", width, spoken(m))
	}
	return w
}

// mostOfALine bounds what is kept of a line that does not end.
const mostOfALine = 64 << 10

// lines writes a prefix before each line, and each line in one piece, escaped but for
// tabs.
type lines struct {
	mu     *sync.Mutex
	to     io.Writer
	prefix string
	rest   []byte
}

func (w *lines) Write(b []byte) (int, error) {
	if w.prefix == "" {
		return len(b), w.pass(b)
	}
	for rest := b; len(rest) > 0; {
		line, more, whole := bytes.Cut(rest, []byte("\n"))
		w.rest, rest = append(w.rest, line...), more
		if !whole && len(w.rest) < mostOfALine {
			break
		}
		if err := w.end(); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// Close writes what did not end with a line break.
func (w *lines) Close() error {
	if len(w.rest) == 0 {
		return nil
	}
	return w.end()
}

// end writes the line that is there.
func (w *lines) end() error {
	cells := strings.Split(strings.TrimSuffix(string(w.rest), "\r"), "\t")
	for i, c := range cells {
		cells[i] = printable.Escape(c)
	}
	w.rest = w.rest[:0]
	return w.pass([]byte(w.prefix + strings.Join(cells, "\t") + "\n"))
}

func (w *lines) pass(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.to.Write(b); err != nil {
		return &nobodyReads{err}
	}
	return nil
}

// spoken is what people call a container of a sandbox.
func spoken(m engine.Member) string {
	if m.Role == engine.RoleGate {
		return strings.TrimPrefix(m.Service+"-gate", "main-")
	}
	return m.Service
}
