package engine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/test/lab"
)

// An agent that stops what the engine is about to start beside it, as its own user
// already, makes the engine deaf to everything about its container, docker rm --force
// included. Verify says that it cannot tell, and leaves nothing stopped; the proofs
// of others do not suffer, and corral down ends the agent.
func TestTheEngineIsUnblocked(t *testing.T) {
	// Alone: whoever verifies beside it, unblocks it.
	s := project(t, always("deaf", `[sh, -c, "while :; do kill -STOP -1; done"]`))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	if r := s.corral("up", "--accept"); r.code != 0 {
		t.Fatal(r)
	}
	answers := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := command.Run(ctx, nil, "docker", "inspect", s.agent())
		return err == nil
	}
	if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.out, "cannot tell: checker: ") {
		t.Errorf("verify: %v", r)
	}
	if !answers() {
		t.Error("a verify left the engine deaf")
	}
	if left := stoppedIn(t, docker(t, "inspect", "--format", "{{.Id}}", s.agent())); len(left) > 0 {
		t.Errorf("left stopped: %v", left)
	}
	deafen := func() {
		t.Helper()
		for tries := 0; answers(); tries++ {
			if tries == 20 {
				t.Fatal("it never stopped what the engine starts")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			c := exec.CommandContext(ctx, "docker", "exec", "--user", fmt.Sprint(uid(t, s)), s.agent(), "true")
			_ = c.Run() // it hangs, or it was stopped later, or there was luck
			cancel()
		}
	}
	deafen()
	other := s.another(filepath.Join(filepath.Dir(s.dir), "other"), always("other", forever))
	other.must("up", "--accept")
	if r := other.corral("verify"); r.code != 0 {
		t.Errorf("verify of another one: %v", r)
	}
	other.must("down")
	deafen()
	began := time.Now()
	if r := s.corral("down"); r.code != 0 || len(s.containers()) != 0 {
		t.Errorf("down: %v, left %v", r, s.containers())
	}
	t.Logf("down after %v", time.Since(began))
}

// uid is the user whose agent runs in a project.
func uid(t *testing.T, s *sandbox) uint32 {
	t.Helper()
	var id uint32
	if _, err := fmt.Sscan(strings.Split(docker(t, "inspect", "--format", "{{.Config.User}}", s.agent()), ":")[0], &id); err != nil {
		t.Fatal(err)
	}
	return id
}

// stoppedIn are the stopped processes of a container that the engine started.
func stoppedIn(t *testing.T, id string) (stopped []string) {
	t.Helper()
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		groups, _ := os.ReadFile("/proc/" + p.Name() + "/cgroup")
		stat, _ := os.ReadFile("/proc/" + p.Name() + "/stat")
		if strings.Contains(string(groups), id) && strings.Contains(string(stat), ") T ") && (strings.Contains(string(stat), "(runc") || strings.Contains(string(stat), "(corral-verify)")) {
			stopped = append(stopped, string(stat))
		}
	}
	return stopped
}

// An image that a sandbox uses keeps the name that it was started by, whatever other
// names it has: verify compares by it.
func TestPruneLeavesWhatIsInUse(t *testing.T) {
	t.Parallel()
	s := project(t, always("kept", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	if r := s.corral("up", "--accept"); r.code != 0 {
		t.Fatal(r)
	}
	const older, named = "corral-gate:0123456789abcdef", "corral-gate:of-somebody"
	for _, name := range []string{older, named} {
		docker(t, "tag", docker(t, "inspect", "--format", "{{.Image}}", s.gate()), name)
	}
	t.Cleanup(func() { docker(t, "rmi", "--no-prune", older, named) })
	s.must("install")
	docker(t, "image", "inspect", older)
	s.must("down")
}
