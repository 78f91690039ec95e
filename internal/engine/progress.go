package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Watcher is told of the steps of what is done, as they come; each may be nil.
type Watcher struct {
	// Lap is told the name of a step that is over: it began where the one before ended.
	Lap func(step string)
	// Working is told what may take long, and whether it takes a few seconds at
	// most. What it returns is called when that is over.
	Working func(what string, quick bool) (done func())
}

func (w Watcher) lap(format string, args ...any) {
	if w.Lap != nil {
		w.Lap(fmt.Sprintf(format, args...))
	}
}

// working announces what takes long; the result ends it.
func (e *Engine) working(format string, args ...any) (done func()) {
	what := fmt.Sprintf(format, args...)
	if e.Working == nil {
		e.Progress("%s", what)
		return func() {}
	}
	return e.Working(what, false)
}

// slow announces what takes longer than that. The result ends it.
func (e *Engine) slow(after time.Duration, format string, args ...any) (done func()) {
	over, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-over:
		case <-time.After(after):
			done := e.working(format, args...)
			<-over
			done()
		}
	}()
	return func() {
		close(over)
		<-told
	}
}

// waiting announces what takes a moment, most of the time.
func (w Watcher) waiting(format string, args ...any) (done func()) {
	if w.Working == nil {
		return func() {}
	}
	return w.Working(fmt.Sprintf(format, args...), true)
}

// gateSteps are how the lines begin that a gate writes at the end of its steps,
// without its name, and what has been done by then. One without names looks none up.
var gateSteps = []struct{ begins, step string }{
	{"closed: ", "gate started and closed"},
	{"lookups closed", "names resolved"},
	{"names written: ", "pins and rules in force"},
	{strings.TrimPrefix(spec.ReadyLine, gatePrefix), "self-check of the gate"},
}

const gatePrefix = "corral-gate: "

// gateLaps tells the laps of a gate's start by what it says.
func (e *Engine) gateLaps() func(line string) {
	next := 0
	return func(line string) {
		line, ours := strings.CutPrefix(line, gatePrefix)
		if !ours {
			return
		}
		for i := next; i < len(gateSteps); i++ {
			if strings.HasPrefix(line, gateSteps[i].begins) {
				e.lap("%s", gateSteps[i].step)
				next = i + 1
				return
			}
		}
	}
}
