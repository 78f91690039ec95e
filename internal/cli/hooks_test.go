package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
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

// Only a start from nothing runs hooks.
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
}

// An up starts from nothing if nothing is there and all was told, under whatever
// name it was, and says so where it does not and somebody may expect it to.
func TestFromNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		hooks   []string
		members []engine.Member
		record  func(t *testing.T, p *project)
		want    purpose
		said    bool
	}{
		{name: "the first time", hooks: []string{"true"}, want: toStart},
		{name: "no hooks", want: toHeal},
		{name: "no hooks, and not told", want: toHeal, record: func(t *testing.T, p *project) { begun(t, p, "hooking") }},
		{name: "something is there", hooks: []string{"true"}, members: []engine.Member{{Role: engine.RoleGate}}, want: toHeal},
		{name: "not told", hooks: []string{"true"}, want: toHeal, said: true, record: func(t *testing.T, p *project) { begun(t, p, "hooking") }},
		{name: "not told, of another name", hooks: []string{"true"}, want: toHeal, said: true, record: func(t *testing.T, p *project) { begun(t, p, "before") }},
		{name: "not told, of nothing writable", hooks: []string{"true"}, want: toHeal, said: true, record: func(t *testing.T, p *project) {
			p.policy.Mounts = nil
			begun(t, p, "hooking")
		}},
		{name: "not told, and broken", hooks: []string{"true"}, want: toHeal, said: true, record: func(t *testing.T, p *project) {
			if err := keepRecord(p.id(), []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "told", hooks: []string{"true"}, want: toStart, record: func(t *testing.T, p *project) {
			begun(t, p, "hooking")
			if err := (&app{err: io.Discard}).tellUntold(t.Context(), p.policy.File, notTold, true); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "another policy's", hooks: []string{"true"}, want: toStart, record: func(t *testing.T, p *project) {
			if err := keepRecord(plan.ID("hooking", "/elsewhere/"+policy.FileName), []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, said, p := hooking(t, c.hooks...)
			if c.record != nil {
				c.record(t, p)
			}
			to, err := a.fromNothing(p, c.members)
			if err != nil || to != c.want || strings.Contains(said.String(), "hooks.pre_launch did not run: an earlier start was not ended by corral down") != c.said {
				t.Errorf("%d, %v: %s", to, err, said)
			}
		})
	}
	a, _, p := hooking(t, "true")
	home, err := state.Home()
	if err == nil { // what cannot be looked at
		err = os.MkdirAll(filepath.Join(home, p.id(), "wayback.json"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if to, err := a.fromNothing(p, nil); to == toStart || err == nil {
		t.Errorf("what cannot be read: %d, %v", to, err)
	}
}

// A heal tells what changed so far and forgets nothing of it. A first look that
// cannot be read is told and keeps nothing down; and if nothing comes up what was on
// record stays.
func TestAnotherLook(t *testing.T) {
	broken, other := []byte("{}"), []byte(`{"version":1,"home":"/home/dev","roots":["/"]}`)
	for name, c := range map[string]struct {
		record []byte // instead of a first look
		none   bool
		said   string
	}{
		"nothing on record": {none: true},
		"a first look":      {said: "work/backup.sh: changed"},
		"it is broken":      {record: broken, said: "cannot tell what changed"},
		"of another corral": {record: other, said: "version 1, not "},
	} {
		for _, comes := range []bool{false, true} {
			a, said, p := hooking(t, "work/backup.sh")
			if err := os.Mkdir(p.host.Homes[0], 0o755); err != nil {
				t.Fatal(err)
			}
			if !c.none {
				begun(t, p, "hooking")
			}
			if c.record != nil {
				if err := keepRecord(p.id(), c.record); err != nil {
					t.Fatal(err)
				}
			}
			was, err := record(p.id())
			if err != nil {
				t.Fatal(err)
			}
			put(t, p, "work/backup.sh", "x\n")
			h := healing{app: a, project: p}
			w := h.anotherLook(t.Context(), part{name: plan.Main}, h.onRecord(part{name: plan.Main}))
			if err := w.begun(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := said.String(); !strings.Contains(got, c.said) || c.said == "" && got != "" {
				t.Errorf("%s: %s", name, got)
			}
			if !comes {
				w.abandon(p)
				if is, err := record(p.id()); err != nil || !bytes.Equal(is, was) {
					t.Errorf("%s: given up, and on record is %s, %v", name, is, err)
				}
				continue
			}
			w.stop()
			findings, err := changedSince(t.Context(), p.id())
			if again := len(findings) > 0; err != nil || again != (name == "a first look") {
				t.Errorf("%s: afterwards %v, %v", name, findings, err)
			}
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
	if is, err := untold(p.policy.File); err != nil || !is {
		t.Errorf("what the busy one has not told is forgotten: %v", err)
	}
	unlock()
	if err := a.tellUntold(t.Context(), p.policy.File, notTold, true); err != nil || !strings.Contains(said.String(), "backup.sh: changed") {
		t.Errorf("%v: %s", err, said)
	}
	if is, err := untold(p.policy.File); err != nil || is {
		t.Errorf("all was told: %v", err)
	}
}

// The question says which words of a hook are the agent's to fill.
func TestRewritable(t *testing.T) {
	for hook, want := range map[string]string{
		"work/backup.sh":                  "work/backup.sh",
		"work/none":                       "work/none",
		"./work":                          "./work",
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
