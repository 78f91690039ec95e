package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

func TestIdentity(t *testing.T) {
	agent := statusFile(1000, 1000, "1000", noCaps, 1, 2)
	root := statusFile(0, 0, "", noCaps, 1, 2)
	for _, tt := range []struct {
		name        string
		self, first string
		check       spec.Check
		result      spec.Result
		detail      string
	}{
		{"agent", agent, agent, spec.Check{Name: "non-root"}, spec.OK, ""},
		{"root", root, root, spec.Check{Name: "non-root"}, spec.Failed, "runs as root"},
		{"the service is root, the exec is not", agent, root, spec.Check{Name: "non-root"}, spec.Failed, "process 1 (agent) runs as root"},
		{"no PID 1", agent, "", spec.Check{Name: "non-root"}, spec.Untold, "status"},

		{"agent", agent, agent, spec.Check{Name: "uid-matches-host", UID: 1000, GID: 1000}, spec.OK, ""},
		{"zero", agent, agent, spec.Check{Name: "uid-matches-host"}, spec.Untold, "no user"},
		{"uid", agent, agent, spec.Check{Name: "uid-matches-host", UID: 1001, GID: 1000}, spec.Failed, "uids"},
		{"gid", agent, agent, spec.Check{Name: "uid-matches-host", UID: 1000, GID: 1001}, spec.Failed, "gids"},
		{"service has another", agent, statusFile(1001, 1000, "", noCaps, 1, 2), spec.Check{Name: "uid-matches-host", UID: 1000, GID: 1000}, spec.Failed, "process 1"},
		{"holder", agent, statusFile(spec.CarrierUID, spec.CarrierUID, "", noCaps, 1, 2), spec.Check{Name: "uid-matches-host", UID: 1000, GID: 1000}, spec.OK, ""},
		{"group", statusFile(1000, 1000, "1000 999", noCaps, 1, 2), agent, spec.Check{Name: "uid-matches-host", UID: 1000, GID: 1000}, spec.Failed, "group 999"},
		{"the worker's", statusFile(spec.WorkerUID, 1000, "", noCaps, 1, 2), agent, spec.Check{Name: "user-not-the-gates"}, spec.Failed, "uid 64999, which is the gate's own"},
		{"the carrier's", agent, statusFile(spec.CarrierUID, 1000, "", noCaps, 1, 2), spec.Check{Name: "user-not-the-gates"}, spec.Failed, "uid 64998"},
		{"one below", statusFile(spec.CarrierUID-1, 1000, "", noCaps, 1, 2), statusFile(spec.WorkerUID+1, 1000, "", noCaps, 1, 2), spec.Check{Name: "user-not-the-gates"}, spec.OK, ""},

		{"privileges", agent, statusFile(1000, 1000, "", noCaps, 0, 2), spec.Check{Name: "no-new-privs"}, spec.Failed, "process 1"},
		{"privileges", agent, agent, spec.Check{Name: "no-new-privs"}, spec.OK, ""},
		{"seccomp", agent, statusFile(1000, 1000, "", noCaps, 1, 0), spec.Check{Name: "seccomp-on"}, spec.Failed, "Seccomp: 0"},
		{"seccomp strict", statusFile(1000, 1000, "", noCaps, 1, 1), agent, spec.Check{Name: "seccomp-on"}, spec.Failed, "Seccomp: 1"},
		{"seccomp", agent, agent, spec.Check{Name: "seccomp-on"}, spec.OK, ""},

		{"capabilities", agent, agent, spec.Check{Name: "no-capabilities"}, spec.OK, ""},
		{"bounding", statusFile(1000, 1000, "", "0000000000002000", 1, 2), agent, spec.Check{Name: "no-capabilities"}, spec.Failed, "CapBnd 2000"},
		{"service", agent, statusFile(0, 0, "", "00000000a80425fb", 1, 2), spec.Check{Name: "no-capabilities"}, spec.Failed, "process 1 (agent) has CapBnd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, map[string]string{"/proc/self/status": tt.self})
			if tt.first != "" {
				e = tree(t, map[string]string{"/proc/self/status": tt.self, "/proc/1/status": tt.first})
			}
			want(t, e, tt.check, tt.result, tt.detail)
		})
	}
}

// Whoever is visible is looked at: what joined the sandbox's processes has another
// user, no filter, or rights. What has ended has none.
func TestEveryProcess(t *testing.T) {
	agent := statusFile(1000, 1000, "", noCaps, 1, 2)
	kinds := []string{"non-root", "uid-matches-host", "no-capabilities", "no-new-privs", "seccomp-on"}
	for _, tt := range []struct {
		name, other string
		red         []string
	}{
		{"one more of the agent's", agent, nil},
		{"no filter and no bounds", statusFile(1000, 1000, "", noCaps, 0, 0), []string{"no-new-privs", "seccomp-on"}},
		{"root without rights", statusFile(0, 0, "", noCaps, 1, 2), []string{"non-root", "uid-matches-host"}},
		{"another user's", statusFile(33, 1000, "", noCaps, 1, 2), []string{"uid-matches-host"}},
		{"in a group", statusFile(1000, 1000, "1000 999", noCaps, 1, 2), []string{"uid-matches-host"}},
		{"a right of another user's", statusFile(33, 33, "", "0000000000000001", 1, 2), []string{"uid-matches-host", "no-capabilities"}},
		{"a worker", statusFile(spec.WorkerUID, 1000, "", noCaps, 1, 2), []string{"non-root", "uid-matches-host"}},
		{"a carrier that is not the first", statusFile(spec.CarrierUID, 1000, "", noCaps, 1, 2), []string{"non-root", "uid-matches-host"}},
		{"root's, and ended", "State:\tZ (zombie)\n" + statusFile(0, 0, "", "00000000a80425fb", 0, 0), nil},
	} {
		files := map[string]string{"/proc/self/status": agent, "/proc/1/status": agent, "/proc/9/status": tt.other, "/proc/sys/x": ""}
		for _, kind := range kinds {
			c := spec.Check{Name: kind, UID: 1000, GID: 1000}
			if slices.Contains(tt.red, kind) {
				want(t, tree(t, files), c, spec.Failed, "process 9 (agent) ")
			} else {
				want(t, tree(t, files), c, spec.OK, "")
			}
		}
		e := tree(t, files)
		e.aside = true // who else is there is the stack's own
		want(t, e, spec.Check{Name: "seccomp-on"}, spec.OK, "")
	}
	files := map[string]string{"/proc/self/status": agent, "/proc/1/status": agent, "/proc/9/status": "rubbish"}
	want(t, tree(t, files), spec.Check{Name: "no-capabilities"}, spec.Untold, "/proc/9")
}

// Each thread has rights of its own, and some run on when the first has ended, of which
// the kernel then says nothing else.
func TestEveryThread(t *testing.T) {
	agent, root := statusFile(1000, 1000, "", noCaps, 1, 2), statusFile(0, 0, "", "00000000a80425fb", 0, 0)
	of := func(state, status string) string {
		return "State:\t" + state + "\n" + strings.Replace(status, "Threads:\t1", "Threads:\t2", 1)
	}
	for _, tt := range []struct {
		name          string
		first, second string // of process 9
		want          string // nothing is wrong if empty
	}{
		{"all the agent's", of("S (sleeping)", agent), of("S (sleeping)", agent), ""},
		{"the agent's, whose first has ended", of("Z (zombie)", agent), of("S (sleeping)", agent), ""},
		{"root's, whose first has ended", of("Z (zombie)", root), of("S (sleeping)", root), "thread 10 of process 9 (agent) "},
		{"root's, and the first was the agent's", of("S (sleeping)", agent), of("R (running)", root), "thread 10 of process 9 (agent) "},
		{"root's, and the second was the agent's", of("S (sleeping)", root), of("S (sleeping)", agent), "process 9 (agent) "},
		{"root's, and all have ended", of("Z (zombie)", root), of("X (dead)", root), ""},
	} {
		files := map[string]string{"/proc/self/status": agent, "/proc/1/status": agent,
			"/proc/9/status": tt.first, "/proc/9/task/9/status": tt.first, "/proc/9/task/10/status": tt.second, "/proc/9/task/11/": ""}
		for _, c := range []spec.Check{{Name: "non-root"}, {Name: "no-capabilities"}, {Name: "no-new-privs"}, {Name: "seccomp-on"},
			{Name: "uid-matches-host", UID: 1000, GID: 1000}, {Name: "no-capabilities", Names: unfenced}} {
			if tt.want == "" {
				want(t, tree(t, files), c, spec.OK, "")
			} else {
				want(t, tree(t, files), c, spec.Failed, tt.want)
			}
		}
	}
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	if got, err := tree(t, map[string]string{"/proc/9/status": agent}).threads(over); err == nil {
		t.Errorf("after its time: %v", got)
	}
}

// A program that the engine starts here is root's for a moment. What stays is told,
// and so is what never does.
func TestLasting(t *testing.T) {
	e := tree(t, nil)
	wrong := func(names ...string) map[string]finding {
		all := map[string]finding{}
		for _, n := range names {
			all[n] = failed("%s", n)
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		look   func(n int) map[string]finding
		result spec.Result
		detail string
	}{
		{"nothing", func(int) map[string]finding { return nil }, spec.OK, ""},
		{"passing", func(n int) map[string]finding {
			if n < lookEvery {
				return wrong("a")
			}
			return nil
		}, spec.OK, ""},
		{"staying", func(int) map[string]finding { return wrong("a") }, spec.Failed, "a"},
		{"staying beside what passes", func(n int) map[string]finding { return wrong("b", fmt.Sprint("a", n)) }, spec.Failed, "b"},
		{"come after the first look", func(n int) map[string]finding {
			if n == 0 {
				return wrong("a")
			}
			return wrong("b")
		}, spec.Failed, "b"},
		{"ever others", func(n int) map[string]finding { return wrong(fmt.Sprint("a", n)) }, spec.Untold, "too fast"},
	} {
		n := -1
		got := e.lasting(t.Context(), func() (map[string]finding, error) { n++; return tt.look(n), nil })
		if got.result != tt.result || !strings.Contains(got.detail, tt.detail) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// What an ordinary user closes or buries of its own stands in nobody's way; of
// somebody else's, names can be guessed.
func TestNoSudoAmongOwnDirectories(t *testing.T) {
	testenv.Require(t, "netns") // root
	e := tree(t, map[string]string{"/usr/bin/ls": "", "/var/mine/": "", "/var/theirs/": ""})
	for dir := e.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(e.path("/var/mine"), ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
	bury(t, e.path("/var/mine"), "", ordinary)
	for _, tt := range []struct {
		mine, theirs os.FileMode
		result       string
	}{
		{0o755, 0o755, `"ok" ""`},
		{0o111, 0o755, `"ok" ""`},
		{0o755, 0o711, `"" "open /var/theirs: permission denied"`},
	} {
		if err := errors.Join(os.Chmod(e.path("/var/mine"), tt.mine), os.Chmod(e.path("/var/theirs"), tt.theirs)); err != nil {
			t.Fatal(err)
		}
		if out := ordinarily(t, e, "no-sudo"); !strings.HasPrefix(out, tt.result) {
			t.Errorf("%v %v: %s", tt.mine, tt.theirs, out)
		}
	}
}

func TestNoSudo(t *testing.T) {
	t.Setenv("PATH", "/opt/tools")
	c := spec.Check{Name: "no-sudo"}
	want(t, tree(t, map[string]string{"/usr/bin/ls": ""}), c, spec.OK, "")
	want(t, tree(t, map[string]string{"/usr/bin/sudo": ""}), c, spec.Failed, "/usr/bin/sudo exists")
	want(t, tree(t, map[string]string{"/opt/tools/doas": ""}), c, spec.Failed, "/opt/tools/doas exists")
	want(t, tree(t, map[string]string{"/etc/pam.d/sudo": ""}), c, spec.OK, "")

	if os.Getuid() != 0 {
		return // only root can make another's set-user-ID file
	}
	e := tree(t, map[string]string{"/usr/lib/deep/su": "", "/usr/lib/deep/mine": "", "/usr/lib/deep/dead": ""})
	for name, uid := range map[string]int{"su": 1, "mine": 0, "dead": 1} {
		p := e.path("/usr/lib/deep/" + name)
		if err := os.Chown(p, uid, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, os.ModeSetuid|map[string]os.FileMode{"su": 0o755, "mine": 0o755, "dead": 0o644}[name]); err != nil {
			t.Fatal(err)
		}
	}
	want(t, e, c, spec.Failed, "set-user-ID: /usr/lib/deep/su")
	if err := os.Remove(e.path("/usr/lib/deep/su")); err != nil {
		t.Fatal(err)
	}
	want(t, e, c, spec.OK, "")
}
