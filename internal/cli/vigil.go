package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/state"
)

// How long a watch waits after something happened before it heals: longer each
// time, until there was calm.
const (
	healFirst = time.Second
	healLast  = time.Minute
	calm      = 15 * time.Second
	// longPause is one that a watch speaks of.
	longPause = 4 * time.Second
	// lookAnyway is how often to look without a word from the engine, which does
	// not know whether a gate answers.
	lookAnyway = 30 * time.Second
	// healGrace is what a heal has to come to its end once the watch is asked to:
	// a gate and a handover have a minute each.
	healGrace = 2 * time.Minute
	// farewell bounds the last look of a watch.
	farewell = 30 * time.Second
)

// keepUp heals an always-on sandbox whenever something happened to it, until
// ctx ends or somebody takes it down. Notes, and what failed if something did,
// were told already. There is no e where the engine was away.
func (a *app) keepUp(ctx context.Context, e *engine.Engine, p *project, notes []string, failed error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	poke := make(chan struct{}, 1)
	u, file, away := a.unattended(p), p.policy.File, failed
	follow := func() {
		_ = e.Watch(ctx, file, func() {
			select {
			case poke <- struct{}{}:
			default:
			}
		})
	}
	if e != nil {
		go follow()
	}
	v := &vigil{
		sandbox: p.id(),
		sayf:    a.sayf,
		report:  func(err error) { a.report(err) },
		heal: func(within context.Context) (healed, error) {
			if e == nil {
				found, err := u.connect(within)
				if err != nil {
					away = err
					return healed{}, err
				}
				e = found
				go follow()
			}
			return u.healNow(within, e, file)
		},
		well: func(within context.Context) error {
			if e == nil {
				return away
			}
			return allWell(within, e, file)
		},
		notes: notes,
	}
	if failed != nil {
		v.told = failed.Error()
	}
	if !watchable(failed) {
		v.passing = func(within context.Context, err error) bool { return passing(within, e, err) }
	}
	return v.keep(ctx, poke)
}

// unattended is the app of a watch: nobody is there to be asked, the yes of the
// one who began it was to the policy of then, and it goes on with that very
// file and project, whatever is put nearer.
func (a *app) unattended(p *project) *app {
	u := *a
	u.in, u.quiet, u.unasked, u.yes, u.sure = strings.NewReader(""), true, true, false, false
	u.policy, u.project = p.policy.File, p.policy.Dir
	return &u
}

// healed is what became of one look.
type healed struct {
	down  bool // somebody took it down: nothing is to be up
	did   bool
	notes []string
}

// healNow heals by the policy as it is now, unless somebody took the sandbox
// down: who does that holds the same lock.
func (a *app) healNow(ctx context.Context, e *engine.Engine, file string) (healed, error) {
	p, loadErr := a.load()
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		loadErr = exit.Failedf("corral down ends what is up", "%s is gone", printable.Escape(file))
	}
	var more []string
	if loadErr == nil {
		more = append(more, p.id())
	}
	if err := recorded(); err != nil { // the lock would make the directory anew, and empty
		return healed{}, err
	}
	members, unlock, err := a.alone(ctx, e, file, more...)
	if err != nil {
		return healed{}, err
	}
	defer unlock()
	switch is, err := wanted(file); {
	case err != nil:
		return healed{}, err
	case !is && withoutRecord(file, members):
		return healed{}, errUnrecorded
	case !is:
		return healed{down: true}, nil
	case loadErr != nil:
		return healed{}, loadErr
	}
	if err := a.lasting(ctx, p); err != nil {
		return healed{}, err
	}
	to, err := a.fromNothing(p, members)
	if err != nil {
		return healed{}, err
	}
	h, err := a.heal(ctx, e, p, members, to, true)
	return healed{did: h.did, notes: h.notes}, err
}

// errUnrecorded is a sandbox that is there, and of which nothing is on record: whether
// it is to be up cannot be told.
var errUnrecorded = errors.New("its containers are there and its records are gone, so that nobody knows whether it is to be up")

// recorded is nil if there is a directory of corral's, in which a corral down leaves its
// word.
func recorded() error {
	home, err := state.Home()
	if err == nil {
		_, err = os.Lstat(home)
	}
	if err != nil {
		return exit.Failedf("corral down ends what is up; corral up begins anew", "whether it was taken down cannot be told: %w", err)
	}
	return nil
}

// withoutRecord reports whether what was accepted of an always-on sandbox is not on record,
// which a corral down leaves there unless it takes all of it away.
func withoutRecord(file string, members []engine.Member) bool {
	home, err := state.Home()
	if err != nil || len(members) == 0 {
		return false
	}
	for _, id := range sandboxes(members) {
		if b, err := state.Accepted(home, id); err == nil && b != nil {
			return false
		}
	}
	return true
}

// errDown is a sandbox that somebody took down.
var errDown = errors.New("it was taken down")

// allWell is nil if what is to be up of a policy file is up and well.
func allWell(ctx context.Context, e *engine.Engine, file string) error {
	members, err := e.Members(ctx, file)
	if err != nil {
		return err
	}
	if err := recorded(); err != nil {
		return err
	}
	switch is, err := wanted(file); {
	case err != nil:
		return err
	case !is && withoutRecord(file, members):
		return errUnrecorded
	case !is:
		return errDown
	}
	if len(members) == 0 {
		return errors.New("nothing of it is up")
	}
	relays, err := e.RelayHealth(ctx, members)
	if err != nil {
		return err
	}
	if wrong := allUnwell(e.Health(ctx, members), relays, unnamed(members)); len(wrong) > 0 {
		return errors.New(wrong[0])
	}
	return nil
}

// vigil is a watch over one sandbox.
type vigil struct {
	sandbox string
	sayf    func(format string, args ...any)
	report  func(error)
	heal    func(context.Context) (healed, error)
	well    func(context.Context) error

	notes []string // that were told
	told  string   // the error that was told last, empty once there was none

	// passing is there until all of it was up once: an error that does not pass by
	// itself ends the watch.
	passing func(context.Context, error) bool
}

// keep heals after every poke, and every while anyway, until ctx ends or the
// sandbox is taken down.
func (v *vigil) keep(ctx context.Context, poke <-chan struct{}) error {
	again := v.passing != nil // the last heal failed
	if again {
		v.sayf("%s is not up: it is tried again until it is", v.sandbox)
	} else {
		v.sayf("watching %s", v.sandbox)
	}
	pause, last, waited := healFirst, time.Time{}, ""
	for {
		if !again {
			select {
			case <-ctx.Done():
			case <-poke:
			case <-time.After(lookAnyway):
			}
		}
		if time.Since(last) > calm {
			pause = healFirst
		}
		if pause >= longPause && ctx.Err() == nil {
			if err := v.well(ctx); err != nil && !errors.Is(err, errDown) && ctx.Err() == nil {
				if waits := fmt.Sprintf("%v; the next try is in %v", err, pause); waits != waited {
					waited = waits
					v.sayf("%s", waits)
				}
			}
		}
		select { // what belongs together happens within a moment
		case <-ctx.Done():
			return v.end(ctx)
		case <-time.After(pause):
		}
		if ctx.Err() != nil {
			continue
		}
		got, err := v.once(ctx)
		if again = err != nil; !again {
			v.told, v.notes = "", slices.DeleteFunc(v.notes, func(note string) bool { return !slices.Contains(got.notes, note) })
		}
		for _, note := range got.notes {
			if !slices.Contains(v.notes, note) {
				v.sayf("%s", note)
				v.notes = append(v.notes, note)
			}
		}
		begun := v.passing != nil && !got.down && watchable(err)
		switch {
		case got.down:
			v.sayf("%s was taken down", v.sandbox)
			return nil
		case v.passing != nil && !begun && ctx.Err() == nil && !v.passing(ctx, err):
			return err
		case err != nil:
			if said := err.Error(); said != v.told { // the same again is no news
				v.told = said
				v.report(err)
			}
		case got.did:
			waited = ""
			v.sayf("%s is up", v.sandbox)
		case !begun:
			continue
		}
		if begun {
			v.passing = nil
			v.sayf("watching %s", v.sandbox)
		}
		pause, last = min(2*pause, healLast), time.Now()
	}
}

// once heals once. What was begun when ctx ends may come to its end.
func (v *vigil) once(ctx context.Context) (healed, error) {
	within, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		v.sayf("what was begun is brought to an end first")
		select {
		case <-time.After(healGrace):
			cancel(fmt.Errorf("it was not done within %v", healGrace))
		case <-within.Done():
		}
	})
	defer stop()
	return v.heal(within)
}

// end says how a sandbox is that is not watched any more.
func (v *vigil) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	switch err := v.well(ctx); {
	case errors.Is(err, errDown):
		v.sayf("%s was taken down", v.sandbox)
	case err != nil && v.passing != nil: // it waited for it, and was asked to wait no more
		v.sayf("%s is not tried any more, and is not up: %v", v.sandbox, err)
	case err != nil:
		return exit.Failedf("corral up heals it", "%s is not watched any more, and is not well: %w", v.sandbox, err)
	default:
		v.sayf("%s is not watched any more, and stays up", v.sandbox)
	}
	return nil
}
