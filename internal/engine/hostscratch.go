package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// scratch is what a survey needs for a moment.
type scratch struct {
	dir      string // seen by scratch containers, with the nonce in it
	nonce    string
	listener net.Listener // on the gateway's address
}

const (
	nonceFile = "nonce"
	// scratchWithin bounds the life of a scratch container.
	scratchWithin = 30 * time.Second
)

// make makes the directory where people keep their projects: in their home, if
// they have one. The engine may see less of the rest of the machine.
func (c *scratch) make() error {
	if c.dir != "" {
		return nil
	}
	home, err := os.UserHomeDir()
	if err == nil {
		c.dir, err = os.MkdirTemp(home, ".corral-check-")
	}
	if err != nil {
		if c.dir, err = os.MkdirTemp("", "corral-check-"); err != nil {
			return err
		}
	}
	c.nonce = rand.Text()
	return errors.Join(
		os.Chmod(c.dir, 0o755), // root inside has no right to override modes
		os.WriteFile(filepath.Join(c.dir, nonceFile), []byte(c.nonce), 0o644),
	)
}

func (s *survey) close() {
	if l := s.scratch.listener; l != nil {
		l.Close()
	}
	if s.scratch.dir != "" {
		os.RemoveAll(s.scratch.dir)
	}
}

// run runs a trial in a scratch container and returns what it said.
func (s *survey) run(ctx context.Context, network string, capabilities []string, args ...string) (events []spec.Event, err error) {
	if err := s.scratch.make(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, scratchWithin, fmt.Errorf("the scratch container did not end within %v", scratchWithin))
	defer cancel()
	id, stream, err := s.e.StartTool(ctx, Tool{
		Purpose: PurposeCheck, Image: s.image, Network: network, Capabilities: capabilities, Bind: s.scratch.dir,
		Args: slices.Concat([]string{spec.GuestDir + "/bin/corral-gate", "trial"}, args),
	})
	if err != nil {
		return nil, unseen(err)
	}
	defer func() { err = errors.Join(err, s.e.remove(ctx, id)) }()
	defer stream.Close()
	var lines strings.Builder
	for line, more := stream.Next(); more; line, more = stream.Next() {
		lines.WriteString(line + "\n")
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	events, err = report.Read(strings.NewReader(lines.String()))
	if err == nil && len(events) == 0 {
		err = errors.New("the scratch container said nothing")
	}
	if err != nil && stream.Errors() != "" {
		err = fmt.Errorf("%w: %s", err, stream.Errors())
	}
	return events, err
}

// unseen makes sense of an engine that does not find what is to be mounted
// though it is there.
func unseen(err error) error {
	if err == nil {
		return nil
	}
	_, path, missing := strings.Cut(err.Error(), "bind source path does not exist: ")
	if !missing {
		return err
	}
	if _, here := os.Lstat(path); here != nil {
		return err
	}
	return &NotUsable{Reason: fmt.Sprintf("the Docker engine does not see this machine's files: %s is here, and not there", path), Hint: hintUnseen}
}

const hintUnseen = "an engine in a container or elsewhere mounts its own files: " + useLocal

// tried is what became of the trial of a gate's rights.
type tried struct {
	read   spec.Event
	events []spec.Event
	err    error
}

// try has a container without a network read the nonce, and try with a gate's
// rights what a gate needs of the kernel.
func (s *survey) try(ctx context.Context) tried {
	if err := s.scratch.make(); err != nil {
		return tried{err: err}
	}
	events, err := s.run(ctx, "none", render.GateCapabilities, "--read", filepath.Join(s.scratch.dir, nonceFile))
	if err != nil {
		return tried{err: err}
	}
	if events[0].Check != spec.TrialRead {
		return tried{err: errors.New("the scratch container did not say what it read")}
	}
	return tried{read: events[0], events: events[1:]}
}

func lookFiles(ctx context.Context, s *survey) Finding {
	t := s.tried(ctx)
	switch {
	case t.err != nil:
		return found(t.err)
	case t.read.Result != spec.OK:
		return fails(hintUnseen, "the Docker engine does not see this machine's files: %s", t.read.Detail)
	case t.read.Detail != s.scratch.nonce:
		return fails(hintUnseen, "the Docker engine does not see this machine's files: it read something else in %s", s.scratch.dir)
	}
	return holds("")
}
