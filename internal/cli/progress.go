package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/printable"
)

// moving says whether a stream is a terminal on which a line may be written over,
// or words be painted; see no-color.org.
func moving(stream any) bool {
	return terminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// watcher is told by the engine how far it is: on a terminal one line says what is
// being done and for how long, elsewhere what takes long is a line of its own.
func (a *app) watcher() engine.Watcher {
	w := engine.Watcher{Working: func(what string, quick bool) func() {
		if !quick {
			a.sayf("%s", what)
		}
		return func() {}
	}}
	if a.live == nil && moving(a.err) {
		errs := a.err
		a.live = &live{w: errs, columns: func() int { return columns(errs) }}
	}
	if a.live != nil {
		w.Working = a.live.working
	}
	w.Lap = a.timings.lap
	return w
}

// live is the line of a terminal on which what is being done is shown, and since
// when. It is written over, and gone when nothing is done any more.
type live struct {
	w       io.Writer
	columns func() int

	mu    sync.Mutex
	doing []*doing // the innermost last
	drawn bool
	stop  chan struct{}
}

type doing struct {
	what  string
	since time.Time
}

// redraw is how often the seconds change.
const redraw = time.Second

// working shows what takes long at once, and what is mostly quick if it is not.
func (l *live) working(what string, quick bool) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &doing{what, time.Now()}
	l.doing = append(l.doing, d)
	if len(l.doing) == 1 {
		l.stop = make(chan struct{})
		go l.tick(l.stop)
	}
	if !quick {
		l.draw()
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.doing = slices.DeleteFunc(l.doing, func(o *doing) bool { return o == d })
		l.erase()
		if len(l.doing) == 0 {
			close(l.stop)
		}
	})
}

func (l *live) tick(stop chan struct{}) {
	t := time.NewTicker(redraw)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			l.mu.Lock()
			l.draw()
			l.mu.Unlock()
		}
	}
}

func (l *live) draw() {
	if len(l.doing) == 0 {
		return
	}
	d := l.doing[len(l.doing)-1]
	text := "corral: " + printable.Escape(d.what)
	if s := int(time.Since(d.since) / time.Second); s > 0 {
		text += fmt.Sprintf(" (%d s)", s)
	}
	fmt.Fprintf(l.w, "\r\x1b[K%s", cut(text, l.columns()-1))
	l.drawn = true
}

func (l *live) erase() {
	if l.drawn {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.drawn = false
	}
}

// over lets something else be written where the line is. Nil is no line.
func (l *live) over(write func()) {
	if l == nil {
		write()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erase()
	write()
}

// through draws the line by another writer from here on.
func (l *live) through(w io.Writer) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = w
}

// columns is how wide a terminal is; plenty where there is none.
func columns(stream any) int {
	if u, is := stream.(*unheld); is {
		stream = u.to
	}
	if f, ok := stream.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 1000
}

// timings are where the time went, a step after another; nil where nobody asked.
type timings struct {
	mu          sync.Mutex
	begun, last time.Time
	laps        []lap
	told        bool
}

type lap struct {
	step string
	took time.Duration
}

// lap ends a step, which began where the one before ended.
func (t *timings) lap(step string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told { // a watch goes on for months
		return
	}
	now := time.Now()
	t.laps, t.last = append(t.laps, lap{step, now.Sub(t.last)}), now
}

// tell says where the time went until now, once; what comes later does not count.
func (t *timings) tell(w io.Writer) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told || len(t.laps) == 0 { // what was refused took no time
		return
	}
	t.told = true
	var b strings.Builder
	for _, l := range append(t.laps, lap{"in all", t.last.Sub(t.begun)}) {
		fmt.Fprintf(&b, "corral: time %7d ms  %s\n", l.took.Milliseconds(), printable.Escape(l.step))
	}
	fmt.Fprint(w, b.String())
}

// timed gives a command the flag for timings, and tells them when it is over.
func (a *app) timed(c *cobra.Command) {
	var on bool
	c.Flags().BoolVar(&on, "timings", false, "say at the end where the time went, on standard error")
	do := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if on {
			now := time.Now()
			a.timings = &timings{begun: now, last: now}
		}
		defer func() { a.timings.tell(a.err) }()
		return do(c, args)
	}
}
