package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

const (
	// snapWithin bounds one look at what the agent may write.
	snapWithin = 20 * time.Second
	// mostFindings bounds what is shown of what changed: the agent chooses how
	// much that is.
	mostFindings = 30
)

// watch looks after what the agent changes that this machine would execute,
// from before it starts until it has ended.
type watch struct {
	taken   chan struct{} // closed once before and err are set
	before  wayback.Snapshot
	record  []byte // what was on record before
	kept    bool   // before is on record instead
	err     error
	watcher *wayback.Watcher
	stop    context.CancelFunc
}

// lookBack begins to look. Nothing of the agent's may have started, but what was
// there at an older look, if there is one, is on record further on.
func (a *app) lookBack(ctx context.Context, p *project, older *wayback.Snapshot) *watch {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &watch{taken: make(chan struct{}), stop: stop, watcher: wayback.Watch(ctx, p.roots(), p.shields)}
	scope := p.scope()
	go func() {
		defer close(w.taken)
		ctx, cancel := context.WithTimeout(ctx, snapWithin)
		defer cancel()
		if w.record, w.err = record(p.id()); w.err == nil && len(scope.Roots) > 0 { // else there is nothing that it could change
			w.before, w.err = wayback.Take(ctx, scope)
		}
		if w.err == nil {
			merged := w.before
			if older != nil {
				merged = merged.Since(*older)
			}
			w.kept, w.err = true, keepBaseline(p.id(), &merged)
		}
	}()
	return w
}

// begun waits for the first look. What cannot be compared later is an error
// now, before the agent starts.
func (w *watch) begun(ctx context.Context) error {
	if w == nil { // there is nothing that it could change
		return nil
	}
	select {
	case <-w.taken:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if w.err != nil {
		return fmt.Errorf("what the agent changes could not be told later: %w", w.err)
	}
	return nil
}

// end says what has changed, and why that matters. If the agent may not be gone
// yet, somebody will ask again.
func (w *watch) end(ctx context.Context, a *app, p *project, gone bool) {
	<-w.taken
	findings, err := compare(ctx, w.before, w.err)
	findings = wayback.Join(findings, w.watcher.Seen())
	w.stop()
	showFindings(a.err, p.id(), findings, err)
	if gone {
		if err := keepBaseline(p.id(), nil); err != nil {
			fmt.Fprintf(a.err, "corral: %s\n", printable.Escape(err.Error()))
		}
	}
	if notice := p.notice(); notice != "" {
		fmt.Fprintf(a.err, "corral: %s\n", notice)
	}
}

// abandon gives up on a sandbox that did not come up: on record stays what was, for
// the next start to tell.
func (w *watch) abandon(p *project) {
	if w == nil {
		return
	}
	w.stop()
	<-w.taken
	if w.kept {
		_ = keepRecord(p.id(), w.record)
	}
}

// leave ends the look: what was there at the start stays on record.
func (w *watch) leave() {
	if w != nil {
		w.stop()
	}
}

// leftBehind tells what changed under a run that was cut short before it could
// say so itself, or a sandbox that was always on. The caller holds the lock of p.
func (a *app) leftBehind(ctx context.Context, p *project) error {
	first := cutShort
	if p.policy.Mode == policy.Daemon {
		first = notTold
	}
	return a.tellUntold(ctx, p.policy.File, first, false, p.id())
}

const (
	cutShort = "an earlier run was cut short"
	notTold  = "nobody was told yet what an earlier start left"
)

// tellUntold tells, after a line of its own, what changed under each
// sandbox that a policy file has had and of which nobody told it, and forgets it.
// The caller holds the locks of all of them, or of those held: one that another
// corral is busy with is left to that.
func (a *app) tellUntold(ctx context.Context, file, first string, all bool, held ...string) error {
	home, err := state.Home()
	if err != nil {
		return err
	}
	ids, err := known(home, file)
	for _, id := range ids {
		if !all && !slices.Contains(held, id) {
			unlock, busy := state.Lock(home, id)
			if errors.Is(busy, state.ErrLocked) {
				continue
			}
			if busy != nil {
				err = errors.Join(err, busy)
				continue
			}
			defer unlock()
		}
		findings, blind := changedSince(ctx, id)
		if errors.Is(blind, errNoBaseline) {
			continue
		}
		if blind != nil || len(findings) > 0 {
			fmt.Fprintf(a.err, "corral: %s\n", first)
		}
		showFindings(a.err, id, findings, blind)
		err = errors.Join(err, keepBaseline(id, nil))
	}
	return err
}

func compare(ctx context.Context, before wayback.Snapshot, err error) ([]wayback.Finding, error) {
	if err != nil || len(before.Scope().Roots) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapWithin)
	defer cancel()
	after, err := wayback.Take(ctx, before.Scope())
	if err != nil {
		return nil, err
	}
	return wayback.Compare(before, after), nil
}

// scope is all that the agent may write, and what leads there.
func (p *project) scope() wayback.Scope {
	s := wayback.Scope{Home: p.host.Homes[0], Roots: p.mounted()}
	for _, n := range p.named() {
		s.Also = append(s.Also, n.path)
	}
	return s
}

// binds are shields as the way back knows them.
func binds(shields []plan.Mount) []wayback.Bind {
	var out []wayback.Bind
	for _, s := range shields {
		out = append(out, wayback.Bind{Path: s.Path, ReadOnly: s.ReadOnly, Dev: s.Dev, Ino: s.Ino, Born: s.Born})
	}
	return out
}

// showFindings lists what changed, and keeps all of it in a file: what was on
// the screen may be gone, or more than fits there. Its names are the agent's.
func showFindings(w io.Writer, sandbox string, findings []wayback.Finding, err error) {
	if err != nil {
		fmt.Fprintf(w, "corral: cannot tell what changed that this machine would execute: %s\n", printable.Escape(err.Error()))
	}
	if len(findings) == 0 {
		return
	}
	fmt.Fprintln(w, "corral: this changed while the sandbox was up, and this machine would execute it; look before you use it:")
	lines, _ := wayback.Lines(findings, mostFindings)
	for _, l := range lines {
		fmt.Fprintf(w, "  %s\n", l)
	}
	var all strings.Builder
	for _, f := range findings {
		fmt.Fprintln(&all, f)
	}
	path, err := keepReport(sandbox, all.String())
	switch {
	case err != nil:
		fmt.Fprintf(w, "  (the list could not be kept: %s)\n", printable.Escape(err.Error()))
	case len(lines) < len(findings):
		fmt.Fprintf(w, "  all %d: %s\n", len(findings), path)
	}
}

// keepReport puts a list of findings where the person can read it.
func keepReport(sandbox, text string) (string, error) {
	home, err := state.Home()
	if err != nil {
		return "", err
	}
	return state.KeepReport(home, sandbox, []byte(text))
}

// changedFile is a finding for scripts, escaped like everything of an agent's.
type changedFile struct {
	Path   string   `json:"path"`
	What   string   `json:"what"`
	Target string   `json:"target,omitempty"`
	Reason string   `json:"reason"`
	First  bool     `json:"first"` // it cannot be shielded
	Key    string   `json:"key,omitempty"`
	Old    []string `json:"old,omitempty"`
	New    []string `json:"new,omitempty"`
}

func changedFiles(findings []wayback.Finding) []changedFile {
	out := []changedFile{}
	for _, f := range findings {
		out = append(out, changedFile{
			Path: printable.Escape(f.Path), What: printable.Escape(f.What), Target: printable.Escape(f.Target), Reason: printable.Escape(f.Reason),
			First: f.First, Key: printable.Escape(f.Key), Old: escaped(f.Old), New: escaped(f.New),
		})
	}
	return out
}

func escaped(all []string) []string {
	var out []string
	for _, s := range all {
		out = append(out, printable.Escape(s))
	}
	return out
}

// changedSince are the findings of a sandbox that is up.
func changedSince(ctx context.Context, sandbox string) ([]wayback.Finding, error) {
	before, err := baseline(sandbox)
	if err != nil {
		return nil, err
	}
	return compare(ctx, before, nil)
}

// baseline is the first look at a sandbox that nobody told the end of; without
// roots if its agent can write nothing of this machine.
func baseline(sandbox string) (wayback.Snapshot, error) {
	var none wayback.Snapshot
	b, err := record(sandbox)
	switch {
	case err != nil:
		return none, err
	case b == nil:
		return none, errNoBaseline
	case string(b) == unchangeable:
		return none, nil
	}
	return wayback.DecodeSnapshot(b)
}

// record is what is kept of the first look at a sandbox, nil if nothing is.
func record(sandbox string) ([]byte, error) {
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	return state.Baseline(home, sandbox)
}

// errNoBaseline is a sandbox without a first look to compare with.
var errNoBaseline = errors.New("what was there at the start is not recorded")

// unchangeable is the record of a sandbox whose agent can write nothing of this
// machine.
const unchangeable = "nothing is writable\n"

// keepBaseline lets another corral compare with before; nil ends that.
func keepBaseline(sandbox string, before *wayback.Snapshot) error {
	var b []byte
	if before != nil && len(before.Scope().Roots) == 0 {
		b = []byte(unchangeable)
	} else if before != nil {
		var err error
		if b, err = json.Marshal(before); err != nil {
			return err
		}
	}
	return keepRecord(sandbox, b)
}

// keepRecord replaces a record by b, of which nil is none.
func keepRecord(sandbox string, b []byte) error {
	home, err := state.Home()
	if err != nil {
		return err
	}
	return state.SetBaseline(home, sandbox, b)
}

// notice says what became of the policy file while the sandbox was up.
func (p *project) notice() string {
	inside := false
	for _, root := range p.roots() {
		inside = inside || strings.HasPrefix(p.policy.File, root+"/")
	}
	now, err := policy.Observe(p.policy.File)
	switch {
	case err != nil:
		return fmt.Sprintf("%s cannot be read any more: %s", printable.Escape(p.policy.File), printable.Escape(err.Error()))
	case inside && plan.Inode(now.Dev, now.Ino) != plan.Inode(p.policy.Self.Dev, p.policy.Self.Ino):
		return bindGone
	case now.Digest != p.policy.Digest:
		return "the policy was changed meanwhile: corral policy diff"
	}
	return ""
}
