package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/corral-sandbox/corral/internal/engine"
)

// unheld is a stream that holds nobody up: a terminal may take nothing any more, and what is
// to be done after an agent has ended, or was left, must be done all the same.
type unheld struct {
	io.WriteCloser
	to      io.Writer
	patient bool // a person may have stopped the output to read it: flush waits for them
}

func unheldTo(to io.Writer, patient bool) *unheld {
	return &unheld{engine.Unheld(to), to, patient}
}

// unhold lets what corral says on standard error from here on hold nothing up; flush waits for
// it at the end. The result is standard error itself, for the agent.
func (a *app) unhold(patient bool) (errs io.Writer) {
	f, is := a.err.(*os.File)
	if !is {
		return a.err
	}
	u := unheldTo(f, patient)
	a.err, a.late = u, append(a.late, u)
	a.live.through(u)
	return f
}

// flush waits for what was said to be taken, as long as anything is.
func (a *app) flush(ctx context.Context) {
	for _, u := range a.late {
		for errors.Is(u.Close(), engine.ErrStalled) && u.patient && ctx.Err() == nil {
		}
	}
}
