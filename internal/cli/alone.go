package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/state"
)

// aloneWithin bounds the wait for another corral that is busy with the same
// sandbox: it may pull an image or run a hook, which take minutes.
const aloneWithin = 5 * time.Minute

// alone keeps other corrals from the always-on sandbox of a policy file, under
// whatever names it is known and under more, until unlock is called. It waits
// for one that is busy with it, and says so. Members are what there is by then.
func (a *app) alone(ctx context.Context, e *engine.Engine, file string, more ...string) (members []engine.Member, unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, aloneWithin, errors.New("waited too long"))
	defer cancel()
	home, err := state.Home()
	if err != nil {
		return nil, nil, &unkept{err}
	}
	if members, err = e.Members(ctx, file); err != nil {
		return nil, nil, err
	}
	ids, err := known(home, file)
	if err != nil {
		return nil, nil, &unkept{err}
	}
	ids = slices.Concat(ids, sandboxes(members), more)
	slices.Sort(ids) // everybody takes them in the same order
	var locks []func()
	unlock = func() {
		for _, l := range locks {
			l()
		}
	}
	for _, id := range slices.Compact(ids) {
		l, err := state.Wait(ctx, home, id, func() { a.sayf("waiting for another corral that is busy with %s", id) })
		if err != nil {
			unlock()
			if !errors.Is(err, state.ErrLocked) {
				err = &unkept{err}
			}
			return nil, nil, err
		}
		locks = append(locks, l)
	}
	if members, err = e.Members(ctx, file); err != nil {
		unlock()
		return nil, nil, err
	}
	return members, unlock, nil
}

// unkept is what is kept of a sandbox and cannot be read or written.
type unkept struct{ error }

func (u *unkept) Unwrap() error { return u.error }

// known are the sandboxes that a policy file has had, by what corral keeps of
// them.
func known(home, file string) ([]string, error) {
	ids, err := state.Sandboxes(home)
	return slices.DeleteFunc(ids, func(id string) bool { return !plan.Of(id, file) }), err
}

// wanted reports whether the sandbox of a policy file is to be up, under
// whatever name.
func wanted(file string) (bool, error) {
	home, err := state.Home()
	if err != nil {
		return false, err
	}
	ids, err := known(home, file)
	for _, id := range ids {
		is, unknown := state.Wanted(home, id)
		if err = errors.Join(err, unknown); is {
			return true, nil
		}
	}
	return false, err
}

// unwanted records that it is not to be up any more.
func unwanted(file string) error {
	home, err := state.Home()
	if err != nil {
		return err
	}
	ids, err := known(home, file)
	for _, id := range ids {
		err = errors.Join(err, state.SetWanted(home, id, false), state.SetHealed(home, id, nil))
	}
	return err
}
