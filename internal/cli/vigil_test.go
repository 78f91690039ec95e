package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
)

// fake is a vigil whose heals go by a list, then nothing is left to do; said is
// what it told, with the errors.
func fake(looks []func(context.Context) (healed, error), well error) (v *vigil, said *[]string) {
	said = &[]string{}
	var mu sync.Mutex
	sayf := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		*said = append(*said, fmt.Sprintf(format, args...))
	}
	n := 0
	return &vigil{
		sandbox: "s",
		sayf:    sayf,
		report:  func(err error) { sayf("error: %v", err) },
		heal: func(ctx context.Context) (healed, error) {
			if n++; n > len(looks) {
				return healed{}, nil
			}
			return looks[n-1](ctx)
		},
		well: func(context.Context) error { return well },
	}, said
}

func gives(h healed, err error) func(context.Context) (healed, error) {
	return func(context.Context) (healed, error) { return h, err }
}

// A heal that failed is tried again, whatever is left of the sandbox; the same
// error is told once; nothing but a down ends the watch by itself.
func TestVigil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("no memory")
		v, said := fake([]func(context.Context) (healed, error){
			gives(healed{did: true, notes: []string{"old", "new"}}, nil),
			gives(healed{notes: []string{"fails"}}, failed), gives(healed{notes: []string{"fails"}}, failed), gives(healed{}, failed), gives(healed{}, errors.New("other")), gives(healed{}, failed),
			gives(healed{did: true, notes: []string{"old", "new"}}, nil),
			gives(healed{}, nil),
			gives(healed{did: true, notes: []string{"new"}}, nil), // it was gone
			gives(healed{down: true}, nil),
		}, nil)
		v.notes = []string{"old"}
		start := time.Now()
		if err := v.keep(t.Context(), nil); err != nil {
			t.Error(err)
		}
		want := []string{"watching s", "new", "s is up", "fails", "error: no memory", "error: other", "error: no memory", "s is up", "new", "s is up", "s was taken down"}
		if !slices.Equal(*said, want) {
			t.Errorf("said %q", *said)
		}
		// 31, 32, 4, 8, 16, 62, 60 and 60 s or so: longer each time.
		if took := time.Since(start); took < 3*time.Minute || took > 8*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// What happens again at once waits longer each time, and a long wait is told with
// what it is for; after some calm the next mishap waits no longer than the first.
func TestVigilPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := gives(healed{did: true}, nil)
		v, said := fake([]func(context.Context) (healed, error){up, up, up, up, gives(healed{down: true}, nil)}, errors.New("main: exited"))
		poke := make(chan struct{}, 1)
		poke <- struct{}{}
		var after []time.Duration
		last := time.Now()
		heal := v.heal
		v.heal = func(ctx context.Context) (healed, error) {
			after = append(after, time.Since(last))
			last = time.Now()
			if len(after) == 4 {
				time.AfterFunc(calm+time.Second, func() { poke <- struct{}{} })
			} else {
				poke <- struct{}{}
			}
			return heal(ctx)
		}
		if err := v.keep(t.Context(), poke); err != nil {
			t.Error(err)
		}
		if want := []time.Duration{healFirst, 2 * time.Second, 4 * time.Second, 8 * time.Second, calm + time.Second + healFirst}; !slices.Equal(after, want) {
			t.Errorf("after %v", after)
		}
		if want := []string{"watching s", "s is up", "s is up", "main: exited; the next try is in 4s", "s is up", "main: exited; the next try is in 8s", "s is up", "s was taken down"}; !slices.Equal(*said, want) {
			t.Errorf("said %q", *said)
		}
	})
}

// A wait that comes again and again is told once.
func TestVigilWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := gives(healed{}, errors.New("no memory"))
		v, said := fake([]func(context.Context) (healed, error){fails, fails, fails, fails, fails, fails, fails, fails, fails, gives(healed{down: true}, nil)}, errors.New("main: exited"))
		if err := v.keep(t.Context(), nil); err != nil {
			t.Error(err)
		}
		want := []string{"watching s", "error: no memory"}
		for _, pause := range []string{"4s", "8s", "16s", "32s", "1m0s"} {
			want = append(want, "main: exited; the next try is in "+pause)
		}
		if want = append(want, "s was taken down"); !slices.Equal(*said, want) {
			t.Errorf("said %q", *said)
		}
	})
}

// What up told is no news to the watch that follows it, an error included.
func TestVigilAfterAnError(t *testing.T) {
	for err, want := range map[error]bool{nil: true, unended("no answer"): true, errors.Join(unended("x")): true, errNotAccepted: false} {
		if got := watchable(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		v, said := fake([]func(context.Context) (healed, error){
			gives(healed{}, unended("no answer")), gives(healed{}, nil), gives(healed{}, unended("no answer")), gives(healed{down: true}, nil),
		}, nil)
		v.told = unended("no answer").Error()
		if err := v.keep(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if want := []string{"watching s", "error: " + unended("no answer").Error(), "s was taken down"}; !slices.Equal(*said, want) {
			t.Errorf("said %q", *said)
		}
	})
}

// A signal ends the watch, after what was begun has come to its end; how the
// sandbox is then is said as it is.
func TestVigilEnds(t *testing.T) {
	for name, c := range map[string]struct {
		well error
		said string
		ok   bool
	}{
		"well":       {nil, "s is not watched any more, and stays up", true},
		"not well":   {errors.New("nothing of it is up"), "", false},
		"taken down": {errDown, "s was taken down", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := false
			v, said := fake([]func(context.Context) (healed, error){func(ctx context.Context) (healed, error) {
				cancel()
				select {
				case <-ctx.Done():
					return healed{}, context.Cause(ctx)
				case <-time.After(healGrace - time.Second):
				}
				done = true
				return healed{did: true}, nil
			}}, c.well)
			poke := make(chan struct{}, 1)
			poke <- struct{}{}
			err := v.keep(ctx, poke)
			if !done {
				t.Errorf("%s: a heal was cut short", name)
			}
			if (err == nil) != c.ok || !c.ok && !strings.Contains(err.Error(), "not well: nothing of it is up") {
				t.Errorf("%s: %v", name, err)
			}
			last := (*said)[len(*said)-1]
			if c.ok && last != c.said || strings.Contains(last, "stays up") && c.well != nil {
				t.Errorf("%s: said %q", name, *said)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		v, said := fake([]func(context.Context) (healed, error){func(ctx context.Context) (healed, error) {
			cancel()
			<-ctx.Done()
			return healed{}, context.Cause(ctx)
		}}, errors.New("down"))
		start := time.Now()
		if err := v.keep(ctx, nil); err == nil {
			t.Error("a heal that hangs is well")
		}
		if took := time.Since(start); took > lookAnyway+healFirst+healGrace+time.Second || !slices.Contains(*said, fmt.Sprintf("error: it was not done within %v", healGrace)) {
			t.Errorf("a heal that hangs: %v, said %q", took, *said)
		}
	})
}

// Until all of it was up once, a watch waits for what comes by itself, longer each
// time, and says each reason once; whatever else fails ends it as it does an up.
func TestVigilBegins(t *testing.T) {
	away, late, invalid := errors.New("no engine"), errors.New("no name"), errors.New("nonsense")
	passes := func(_ context.Context, err error) bool { return !errors.Is(err, invalid) }
	synctest.Test(t, func(t *testing.T) {
		fails := func(err error) func(context.Context) (healed, error) { return gives(healed{}, err) }
		v, said := fake([]func(context.Context) (healed, error){
			fails(away), fails(away), fails(late), fails(late), fails(late), fails(late), fails(late), fails(late),
			gives(healed{did: true}, nil),
			fails(invalid), gives(healed{}, nil), // it was up: now that is told, and tried again
			gives(healed{down: true}, nil),
		}, away)
		v.passing, v.told = passes, away.Error()
		var after []time.Duration
		last, heal := time.Now(), v.heal
		v.heal = func(ctx context.Context) (healed, error) {
			after, last = append(after, time.Since(last)), time.Now()
			return heal(ctx)
		}
		if err := v.keep(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}; !slices.EqualFunc(after[:len(want)], want, func(a, s time.Duration) bool { return a == s*time.Second }) {
			t.Errorf("after %v", after)
		}
		want := []string{"s is not up: it is tried again until it is", "no engine; the next try is in 4s", "error: no name"}
		for _, pause := range []string{"8s", "16s", "32s", "1m0s"} {
			want = append(want, "no engine; the next try is in "+pause)
		}
		if want = append(want, "s is up", "watching s", "error: nonsense", "s was taken down"); !slices.Equal(*said, want) {
			t.Errorf("said %q, want %q", *said, want)
		}
	})
	for name, c := range map[string]struct {
		look func(context.Context) (healed, error)
		err  error
		last string
	}{
		"invalid":                  {gives(healed{}, invalid), invalid, "s is not up: it is tried again until it is"},
		"somebody else was faster": {gives(healed{}, nil), nil, "watching s"},
		"connections go on":        {gives(healed{}, unended("no answer")), nil, "watching s"},
		"taken down meanwhile":     {gives(healed{down: true}, nil), nil, "s was taken down"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			v, said := fake([]func(context.Context) (healed, error){c.look}, nil)
			v.passing = passes
			time.AfterFunc(healFirst+time.Second, cancel)
			if err := v.keep(ctx, nil); !errors.Is(err, c.err) {
				t.Errorf("%s: %v", name, err)
			}
			left := slices.DeleteFunc(*said, func(s string) bool { return strings.Contains(s, "not watched any more") })
			if left[len(left)-1] != c.last {
				t.Errorf("%s: said %q", name, *said)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // a signal is no error of what was tried
		ctx, cancel := context.WithCancel(t.Context())
		v, said := fake([]func(context.Context) (healed, error){func(context.Context) (healed, error) { cancel(); return healed{}, invalid }}, away)
		v.passing = passes
		if err := v.keep(ctx, nil); err != nil || (*said)[len(*said)-1] != "s is not tried any more, and is not up: no engine" {
			t.Errorf("ended: %v, said %q", err, *said)
		}
	})
	synctest.Test(t, func(t *testing.T) { // nor is one while it waits: a stop is what was asked for
		ctx, cancel := context.WithCancel(t.Context())
		v, said := fake([]func(context.Context) (healed, error){gives(healed{}, away), gives(healed{}, away), gives(healed{}, away)}, away)
		v.passing = passes
		time.AfterFunc(healFirst+time.Second, cancel)
		if err := v.keep(ctx, nil); err != nil || (*said)[len(*said)-1] != "s is not tried any more, and is not up: no engine" {
			t.Errorf("ended: %v, said %q", err, *said)
		}
	})
	synctest.Test(t, func(t *testing.T) { // one that was up, and is not well, is told
		ctx, cancel := context.WithCancel(t.Context())
		v, _ := fake(nil, away)
		time.AfterFunc(time.Second, cancel)
		if err := v.keep(ctx, nil); err == nil || !strings.Contains(err.Error(), "is not well: no engine") {
			t.Errorf("ended: %v", err)
		}
	})
}

// What is waited for at the start, and what is not.
func TestPassing(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	failed := &engine.GateFailed{Reasons: []string{"api.example.com: no answer"}}
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"nothing", nil, false},
		{"an engine that is away", fmt.Errorf("x: %w", &engine.NotUsable{Away: true}), true},
		{"a rootless engine", &engine.NotUsable{Reason: "rootless"}, false},
		{"a gate that stayed closed", errors.Join(failed, errors.New("more")), true},
		{"no name server yet", plan.ErrNoResolver{}, true},
		{"a host service that does not listen", fmt.Errorf("port 1: %w", engine.ErrUnserved), true},
		{"a policy that grants more", exit.Invalidf("", "more"), false},
		{"a mistake in the policy", diag.List{{}}, false},
		{"a path that the engine cannot mount", &engine.Unmountable{}, false},
		{"a build", &engine.BuildFailed{}, false},
		{"an agent that ends", &engine.Ended{}, false},
		{"a hook", exit.Failedf("", "hook"), false},
	} {
		if got := passing(t.Context(), nil, c.err); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if passing(ended, nil, failed) {
		t.Error("it goes on after it was asked to end")
	}
}

// Hooks run once for a start, however often that is tried: not again when they ran,
// and never where something is there already.
func TestHooksOnce(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	p := &project{policy: &policy.Policy{File: "/p/corral.yaml", PreLaunch: []policy.Line{{Text: "true"}}}}
	a := &app{err: io.Discard}
	for range 2 { // nothing ran yet
		if to, err := a.fromNothing(p, nil); to != toStart || err != nil {
			t.Errorf("%v %v", to, err)
		}
	}
	u := *a
	u.hooked = true
	if to, err := u.fromNothing(p, nil); to != toHeal || err != nil {
		t.Errorf("after the hooks: %v %v", to, err)
	}
	if to, err := a.fromNothing(p, []engine.Member{{}}); to != toHeal || err != nil {
		t.Errorf("something is there: %v %v", to, err)
	}
	if to, err := a.fromNothing(p, nil); to != toHeal || err != nil {
		t.Errorf("something was there: %v %v", to, err)
	}
}
