package verify

import (
	"os"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
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
		{"the worker's", statusFile(spec.WorkerUID, 1000, "", noCaps, 1, 2), agent, spec.Check{Name: "user-not-the-gates"}, spec.Failed, "uid 64999, which is the gate's own: choose another, `user: \"1000:1000\"`"},
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

func TestNoCapabilitiesInOtherProcesses(t *testing.T) {
	agent := statusFile(1000, 1000, "", noCaps, 1, 2)
	files := map[string]string{"/proc/self/status": agent, "/proc/1/status": agent, "/proc/7/status": statusFile(33, 33, "", "0000000000000001", 1, 2), "/proc/sys/x": ""}
	want(t, tree(t, files), spec.Check{Name: "no-capabilities"}, spec.OK, "") // another user's
	files["/proc/9/status"] = statusFile(1000, 1000, "", "0000000000000001", 1, 2)
	want(t, tree(t, files), spec.Check{Name: "no-capabilities"}, spec.Failed, "process 9")
	files["/proc/9/status"] = "rubbish"
	want(t, tree(t, files), spec.Check{Name: "no-capabilities"}, spec.Untold, "/proc/9")
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
