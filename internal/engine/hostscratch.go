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
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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

	// scratchHome and scratchTemp begin the names of scratch directories in a home
	// and where temporary files go.
	scratchHome = ".corral-check-"
	scratchTemp = "corral-check-"
	// scratchAbandoned is the age at which nobody uses a scratch directory any
	// more: two containers, each within scratchWithin, and the network between.
	scratchAbandoned = 10 * time.Minute
)

// make makes the directory where people keep their projects: in their home, if
// they have one. The engine may see less of the rest of the machine. What one
// that was killed left there goes.
func (c *scratch) make() error {
	if c.dir != "" {
		return nil
	}
	home, err := os.UserHomeDir()
	if err == nil {
		sweepScratch(home, scratchHome)
		c.dir, err = os.MkdirTemp(home, scratchHome)
	}
	if err != nil {
		sweepScratch(os.TempDir(), scratchTemp)
		if c.dir, err = os.MkdirTemp("", scratchTemp); err != nil {
			return err
		}
	}
	c.nonce = rand.Text()
	return errors.Join(
		os.Chmod(c.dir, 0o755), // root inside has no right to override modes
		os.WriteFile(filepath.Join(c.dir, nonceFile), []byte(c.nonce), 0o644),
	)
}

// sweepScratch removes scratch directories that were abandoned: those of this
// user that have such a name and hold nothing but a nonce. No link is followed,
// and whatever else is in one keeps it.
func sweepScratch(in, prefix string) {
	entries, _ := os.ReadDir(in) // a new one is made in any case
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), prefix)
		if _, err := strconv.ParseUint(number, 10, 64); err != nil || !ours || !e.IsDir() {
			continue
		}
		sweepOne(filepath.Join(in, e.Name()))
	}
}

func sweepOne(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() || time.Since(time.Unix(st.Mtim.Unix())) < scratchAbandoned {
		return
	}
	names, err := dir.Readdirnames(-1)
	if err != nil || slices.ContainsFunc(names, func(n string) bool { return n != nonceFile }) {
		return
	}
	_ = unix.Unlinkat(fd, nonceFile, 0)
	_ = unix.Rmdir(path)
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
