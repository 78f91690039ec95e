package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

// A hook that is not wanted any more before it started is no crash, and one of
// a policy that nobody accepted does not start.
func TestHooksThatDoNotStart(t *testing.T) {
	var b bytes.Buffer
	a := &app{err: &b}
	p := &project{policy: &policy.Policy{Dir: t.TempDir(), PreLaunch: []policy.Line{{Text: "touch X"}}}}
	p.host.Homes = []string{"/nonexistent"}
	p.host.UID, p.host.GID = 12345, 12345
	if err := a.preLaunch(t.Context(), p); !errors.Is(err, errNotAccepted) || b.Len() > 0 {
		t.Errorf("%v: %s", err, b.String())
	}
	p.accepted = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.preLaunch(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestHookEnvironment(t *testing.T) {
	p := &project{}
	p.host.Secrets = []string{"TOKEN"}
	p.host.Homes = []string{"/home/dev"}
	got := strings.Join(p.hookEnvironment([]string{"A=1", "TOKEN=x", "TOKEN2=y", "B=TOKEN=z"}), " ")
	if !strings.HasPrefix(got, "A=1 TOKEN2=y B=TOKEN=z") || strings.Contains(got, " TOKEN=x") {
		t.Error(got)
	}
}

// hooking is a project in a directory of its own whose policy has hooks, and whose
// agent may write work.
func hooking(t *testing.T, hooks ...string) (*app, *bytes.Buffer, *project) {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &project{accepted: true, policy: &policy.Policy{Name: "hooking", File: filepath.Join(dir, policy.FileName), Dir: dir, Mounts: []policy.Mount{{Path: work}}}}
	for _, h := range hooks {
		p.policy.PreLaunch = append(p.policy.PreLaunch, policy.Line{Text: h})
	}
	p.host.Homes = []string{filepath.Join(dir, "home")}
	put(t, p, "work/backup.sh", "true\n")
	put(t, p, "work/other.sh", "true\n")
	put(t, p, "own.sh", "true\n")
	var b bytes.Buffer
	return &app{err: &b}, &b, p
}

func put(t *testing.T, p *project, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.policy.Dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// begun records a first look under a name that the policy has or had.
func begun(t *testing.T, p *project, name string) {
	t.Helper()
	before := wayback.Snapshot{}
	if scope := p.scope(); len(scope.Roots) > 0 {
		var err error
		if before, err = wayback.Take(t.Context(), scope); err != nil {
			t.Fatal(err)
		}
	}
	if err := keepBaseline(plan.ID(name, p.policy.File), &before); err != nil {
		t.Fatal(err)
	}
}

// No hook runs over what the agent may have written and nobody was told of.
func TestMayHook(t *testing.T) {
	for _, c := range []struct {
		name   string
		hook   string
		change string // a file that is written after the first look
		runs   bool   // the agent is up still
		before func(t *testing.T, p *project)
		said   string // by the refusal, none if the hooks may run
	}{
		{name: "nobody was told", hook: "work/backup.sh", change: "work/backup.sh", said: "work/backup.sh: changed"},
		{name: "by another word", hook: "nice sh -c 'exec work/backup.sh >log'", change: "work/backup.sh", said: "work/backup.sh: changed"},
		{name: "by the home", hook: "$HOME/../work/backup.sh", change: "work/backup.sh", said: "work/backup.sh: changed"},
		{name: "in a directory", hook: "run-parts work/d", change: "work/d/new", said: "work/d/new: new"},
		{name: "the whole mount", hook: "cd work && ./backup.sh", change: "work/backup.sh", said: "was not looked at"},
		{name: "another file", hook: "work/backup.sh", change: "work/other.sh"},
		{name: "not in a mount", hook: "./own.sh", change: "own.sh"},
		{name: "nothing changed", hook: "work/backup.sh"},
		{name: "it runs", hook: "work/backup.sh", runs: true, said: "the agent is up, and could change what they name before they read it: work/backup.sh"},
		{name: "it runs, of another file", hook: "./own.sh", runs: true},
		{name: "it runs, of what is not there yet", hook: "[ -e work/none ] && . work/none", runs: true, said: "work/none"},
		{name: "no hook", change: "work/backup.sh"},
		{name: "it was told", hook: "work/backup.sh", change: "work/backup.sh", before: func(t *testing.T, p *project) {
			if err := keepBaseline(p.id(), nil); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "under another name", hook: "work/backup.sh", change: "work/backup.sh", said: "work/backup.sh: changed", before: func(_ *testing.T, p *project) {
			p.policy.Name = "renamed"
		}},
		{name: "a mount that was writable", hook: "work/backup.sh", change: "work/backup.sh", said: "work/backup.sh: changed", before: func(_ *testing.T, p *project) {
			p.policy.Mounts = nil
		}},
		{name: "it runs with a mount that was writable", hook: "work/backup.sh", runs: true, said: "the agent is up", before: func(_ *testing.T, p *project) {
			p.policy.Mounts = nil
		}},
		{name: "a hook more", hook: "work/backup.sh", change: "work/other.sh", said: "work/other.sh: new", before: func(_ *testing.T, p *project) {
			p.policy.PreLaunch = append(p.policy.PreLaunch, policy.Line{Text: "work/other.sh"})
		}},
		{name: "a first look that is broken", hook: "true", said: "cannot be told", before: func(t *testing.T, p *project) {
			home, err := state.Home()
			if err == nil {
				err = state.SetBaseline(home, p.id(), []byte("{}"))
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			hooks := []string{c.hook}
			if c.hook == "" {
				hooks = nil
			}
			a, _, p := hooking(t, hooks...)
			for _, dir := range []string{"home", "work/d"} {
				if err := os.Mkdir(filepath.Join(p.policy.Dir, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.mayHook(t.Context(), p, false, "look"); err != nil {
				t.Errorf("at first: %v", err)
			}
			begun(t, p, "hooking")
			if c.change != "" {
				put(t, p, c.change, "touch WITNESS\n")
			}
			if c.before != nil {
				c.before(t, p)
			}
			err := a.mayHook(t.Context(), p, c.runs, "look")
			if (err != nil) != (c.said != "") || err != nil && !strings.Contains(err.Error(), c.said) {
				t.Errorf("%v, want %q", err, c.said)
			}
			var e *exit.Error
			if err != nil && (!errors.As(err, &e) || e.Status != exit.Failed || e.Hint == "") {
				t.Errorf("%+v", e)
			}
		})
	}
}

// Only what somebody starts by hand runs hooks.
func TestHooksAreForPeople(t *testing.T) {
	for to, want := range map[purpose]bool{toRead: false, toBuild: false, toHeal: false, toStart: true} {
		a, _, p := hooking(t, "touch WITNESS")
		p.profile = &profile.Profile{}
		p.host.UID, p.host.GID = uint32(os.Getuid()), uint32(os.Getgid())
		p.policy.Mounts = nil
		if err := a.ready(t.Context(), p, to); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(p.policy.Dir, "WITNESS")); (err == nil) != want {
			t.Errorf("purpose %d: %v", to, err)
		}
	}
	a, _, p := hooking(t, "work/backup.sh")
	begun(t, p, "hooking")
	put(t, p, "work/backup.sh", "x\n")
	for to, want := range map[purpose]bool{toHeal: true, toStart: false} {
		h := healing{app: a, project: p, to: to}
		if err := h.mayHook(t.Context(), false); (err == nil) != want {
			t.Errorf("purpose %d: %v", to, err)
		}
	}
}

// What nobody told is told once, under whatever name it was, but what another
// corral is busy with.
func TestTellUntold(t *testing.T) {
	a, said, p := hooking(t, "work/backup.sh")
	home, err := state.Home()
	if err != nil {
		t.Fatal(err)
	}
	begun(t, p, "hooking")
	begun(t, p, "before")
	begun(t, p, "busy")
	put(t, p, "work/backup.sh", "x\n")
	unlock, err := state.Lock(home, plan.ID("busy", p.policy.File))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 0} {
		said.Reset()
		if err := a.tellUntold(t.Context(), p.policy.File, cutShort, false); err != nil {
			t.Error(err)
		}
		if strings.Count(said.String(), "backup.sh: changed") != want || strings.Count(said.String(), cutShort) != want {
			t.Errorf("time %d: %s", i, said)
		}
	}
	if err := a.mayHook(t.Context(), p, false, ""); err == nil {
		t.Error("what the busy one has not told is forgotten")
	}
	unlock()
	if err := a.tellUntold(t.Context(), p.policy.File, "", true); err != nil || !strings.Contains(said.String(), "backup.sh: changed") {
		t.Errorf("%v: %s", err, said)
	}
	if err := a.mayHook(t.Context(), p, false, ""); err != nil {
		t.Errorf("all was told: %v", err)
	}
}

// The question says which words of a hook are the agent's to fill.
func TestRewritable(t *testing.T) {
	for hook, want := range map[string]string{
		"work/backup.sh":                  "work/backup.sh",
		"./work/none":                     "./work/none",
		"work":                            "work",
		"none":                            "",
		"./own.sh":                        "",
		"restic backup ~/x":               "",
		"./linked":                        "./linked",
		"linked":                          "linked",
		"work/backup.sh; work/backup.sh":  "work/backup.sh",
		"cat work/a work/b work/c work/d": "work/a, work/b, work/c, work/d",
		"cat work/1 work/2 work/3 work/4 work/5 work/6 work/7": "work/1, work/2, work/3, work/4, work/5 and 2 more",
	} {
		a, _, p := hooking(t, hook)
		if err := os.Symlink("work/backup.sh", filepath.Join(p.policy.Dir, "linked")); err != nil {
			t.Fatal(err)
		}
		if got := some(p.rewritable(p.mounted())); got != want {
			t.Errorf("%s: %q", hook, got)
		}
		const note = "the agent may rewrite what a command on this machine names"
		if got := strings.Join(a.notes(t.Context(), p), "\n"); strings.Contains(got, note) != (want != "") {
			t.Errorf("%s: %s", hook, got)
		}
	}
}
