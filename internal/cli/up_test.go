package cli

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
)

// What is made anew, what is started again, and what is left alone.
func TestServiceWrong(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   string // empty: there is none
		differs []string
		other   bool // another gate than it was started behind
		unbound bool
		why     string
		again   bool
	}{
		{"well", "running", nil, false, false, "", false},
		{"none", "", nil, false, false, "it is gone", false},
		{"ended", "exited", nil, false, false, "", true},
		{"never started", "created", nil, false, false, "it was never started", false},
		{"half removed", "dead", nil, false, false, "it is gone", false},
		{"runs, an editor replaced the policy file", "running", nil, false, true, "", false},
		{"ended, an editor replaced the policy file", "exited", nil, false, true, "the policy file was replaced", false},
		{"runs, behind another gate", "running", nil, true, false, "its gate was started again", false},
		{"ended, behind another gate", "exited", nil, true, false, "its gate was started again", false},
		{"runs, otherwise", "running", []string{"mounts", "secrets"}, false, false, "another is asked for: mounts, secrets", false},
		{"ended, otherwise", "exited", []string{"mounts"}, false, false, "another is asked for: mounts", false},
	} {
		m := engine.Member{State: c.state, Running: c.state == "running", Instance: "one"}
		if c.state != "" {
			m.ID = "x"
		}
		instance := "one"
		if c.other {
			instance = "two"
		}
		why, again := serviceWrong(m, c.differs, instance, c.unbound)
		if again != c.again || !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %q, again %v", c.name, why, again)
		}
	}
}

// A watch asks nobody, says yes to nothing, and goes on with the file and the
// project that it began with, whatever is put nearer.
func TestUnattended(t *testing.T) {
	dir := t.TempDir()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, policy.FileName)
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	a := &app{in: strings.NewReader("y\n"), err: io.Discard, yes: true}
	for _, nearer := range []bool{false, true} {
		if nearer {
			if err := os.WriteFile(filepath.Join(below, policy.FileName), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if got, _, err := a.find(); err != nil || got == file {
				t.Errorf("somebody else would go by %s: %v", got, err)
			}
		}
		u := a.unattended(&project{policy: &policy.Policy{File: file, Dir: dir}})
		if u.yes {
			t.Error("a watch says yes")
		}
		if b, err := io.ReadAll(u.in); err != nil || len(b) > 0 {
			t.Errorf("a watch reads %q: %v", b, err)
		}
		if gotFile, gotDir, err := u.find(); err != nil || gotFile != file || gotDir != dir {
			t.Errorf("nearer %v: it goes by %s in %s: %v", nearer, gotFile, gotDir, err)
		}
	}
	if !a.yes {
		t.Error("the first up has lost its --accept")
	}
}

// What is ready is so once, also where the shields of a sandbox that is up were
// there already.
func TestReadyAgain(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "--quiet", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	a := &app{err: io.Discard}
	p := &project{accepted: true, profile: &profile.Profile{}, policy: &policy.Policy{Dir: dir, Mounts: []policy.Mount{{Path: dir}}}}
	p.host.Homes = []string{t.TempDir()}
	p.host.UID, p.host.GID = uint32(os.Getuid()), uint32(os.Getgid())
	n := 0
	for i := range 3 {
		if err := a.ready(t.Context(), p, toBuild); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			n = len(p.host.Shields)
		}
		if n == 0 || len(p.host.Shields) != n || len(p.shields) != n {
			t.Errorf("time %d: %d and %d shields, at first %d", i, len(p.host.Shields), len(p.shields), n)
		}
	}
}

// What is to be up is each home's own to say: who takes down what another one
// brought up is told that it may come back.
func TestNotYours(t *testing.T) {
	daemon := []engine.Member{{Role: engine.RoleGate, Purpose: engine.PurposeDaemon}, {Role: engine.RoleService}}
	for _, tt := range []struct {
		name    string
		wanted  bool
		members []engine.Member
		want    bool
	}{
		{"mine", true, daemon, false},
		{"another home's", false, daemon, true},
		{"a run", false, []engine.Member{{Role: engine.RoleGate, Purpose: engine.PurposeRun}}, false},
		{"nothing", false, nil, false},
		{"nothing of mine", true, nil, false},
	} {
		if got := notYours(tt.wanted, tt.members); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
