package verify

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/creack/pty"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

func TestProve(t *testing.T) {
	defer func(saved map[string]check) { kinds = saved }(kinds)
	kinds = map[string]check{
		"lost": func(context.Context, spec.Check, *env) finding { return untold("no idea") },
		"bad":  func(context.Context, spec.Check, *env) finding { return failed("it is there") },
	}
	var full []spec.Check
	for _, kind := range required {
		kinds[kind] = func(_ context.Context, _ spec.Check, e *env) finding {
			if !e.handover {
				return failed("not told that this is a handover")
			}
			return ok()
		}
		full = append(full, spec.Check{Name: kind})
	}
	with := func(more ...spec.Check) []spec.Check { return append(append([]spec.Check{}, full...), more...) }
	skipped := with()
	skipped[2].Skip = "not here"
	for _, tt := range []struct {
		name   string
		checks []spec.Check
		status int
		stderr string
	}{
		{"all hold", with(), exit.OK, ""},
		{"one fails", with(spec.Check{Name: "bad:x"}), exit.Failed, "corral-verify: handover refused: bad:x: it is there\n"},
		{"one cannot tell", with(spec.Check{Name: "lost"}), exit.Failed, "corral-verify: handover refused: lost: cannot tell: no idea\n"},
		{"one is not known", with(spec.Check{Name: "new"}), exit.Failed, "corral-verify: handover refused: new: cannot tell: this checker does not know it\n"},
		{"one is missing", full[1:], exit.Invalid, "corral-verify: handover spec: it does not check " + required[0] + "\n"},
		{"one is skipped", skipped, exit.Invalid, "corral-verify: handover spec: it does not check " + required[2] + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			err := prove(t.Context(), spec.Handover{Version: 1, Checks: tt.checks}, newEnv(), &stderr)
			status := exit.Report(&stderr, program, err)
			if status != tt.status || stderr.String() != tt.stderr {
				t.Errorf("status %d, stderr %q", status, &stderr)
			}
		})
	}
}

func TestHandoverRefusesToStart(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	nothing := string(spec.Encode(spec.Handover{Version: 1, Checks: []spec.Check{{Name: "non-root"}}}))
	for _, tt := range []struct {
		name, env, args, stderr string
		status                  int
	}{
		{"no spec", "", "handover -- true", "handover: no CORRAL_SPEC says what to prove", exit.Invalid},
		{"none is asked for, and no gate", "", "handover --alone -- true", "handover refused: gate-answers: no gate is here", exit.Failed},
		{"none is asked for, and no command", "", "handover --alone --", "no command", exit.Invalid},
		{"none is asked for, and there is one", "CORRAL_SPEC=" + nothing, "handover --alone -- true", "--alone, and CORRAL_SPEC says what to prove", exit.Invalid},
		{"an empty one beside it", "CORRAL_SPEC=", "handover --alone -- true", "--alone, and CORRAL_SPEC says what to prove", exit.Invalid},
		{"the word behind the dashes", "", "handover -- --alone true", "no CORRAL_SPEC", exit.Invalid},
		{"empty spec", "CORRAL_SPEC=", "handover -- true", "handover spec: EOF", exit.Invalid},
		{"weak spec", "CORRAL_SPEC=" + nothing, "handover -- true", "it does not check", exit.Invalid},
		{"no command", "CORRAL_SPEC=" + nothing, "handover --", "no command", exit.Invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(self, strings.Fields(tt.args)...)
			cmd.Env = []string{asMain + "=1", "PATH=" + os.Getenv("PATH")}
			if tt.env != "" {
				cmd.Env = append(cmd.Env, tt.env)
			}
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != tt.status || !strings.Contains(string(out), tt.stderr) {
				t.Errorf("status %d: %s", cmd.ProcessState.ExitCode(), out)
			}
		})
	}
}

// TestHandoverBecomesTheCommand hands over in namespaces that look like an
// agent's: PID 1 becomes the command, or nothing runs.
func TestHandoverBecomesTheCommand(t *testing.T) {
	testenv.Require(t, "netns")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "corral-verify"), binary, 0o755); err != nil {
		t.Fatal(err)
	}
	probes := spec.DefaultProbes()
	document := func(instance string) string {
		return string(spec.Encode(spec.Handover{Version: 1, Service: "main", Checks: []spec.Check{
			{Name: "same-netns-as-gate", Gate: &spec.Joined{Instance: instance, NetNS: 4242424242}},
			{Name: "unlisted-host-blocked", Probes: &probes},
			{Name: "no-capabilities"}, {Name: "no-new-privs"}, {Name: "non-root"},
		}}))
	}
	const setup = `set -e
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up
ip link add d0 type veth peer name d1; ip link set d1 up
ip addr add 172.30.0.5/24 dev d0; ip link set d0 up; ip route add default via 172.30.0.1
mkfifo gate
VERIFY_TEST_AS_GATE=right ./corral-verify >gate &
read ready <gate
rm gate
CORRAL_SPEC=$(echo "$DOCUMENT" | sed "s/4242424242/$(stat -Lc %i /proc/self/ns/net)/")
unset DOCUMENT
export CORRAL_SPEC VERIFY_TEST_AS_MAIN=1
`
	const rules = `iptables -w -A OUTPUT -o lo -j ACCEPT
iptables -w -A OUTPUT -p tcp -j REJECT --reject-with tcp-reset
iptables -w -A OUTPUT -j REJECT --reject-with icmp-admin-prohibited
`
	const drop = `exec setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set -all --inh-caps -all --no-new-privs `
	const show = `./corral-verify handover -- sh -c 'echo "pid $$ uid $(id -u) spec ${CORRAL_SPEC-none}"; exit 7'`
	for _, tt := range []struct {
		name, instance, script string
		status                 int
		output                 string
	}{
		{"a fence that holds", "right", rules + drop + show, 7, "pid 1 uid 1000 spec none\n"},
		{"a command that is not there", "right", rules + drop + "./corral-verify handover -- /gone", notFound, "corral-verify: /gone: command not found\n  hint: its image does not have it; with corral, image.packages and image.run of the policy add programs\n"},
		{"the gate was restarted", "wrong", rules + drop + show, 1, "corral-verify: handover refused: same-netns-as-gate: another run of the gate answers here (it was restarted)\n"},
		{"no rules", "right", drop + show, 1, "corral-verify: handover refused: unlisted-host-blocked: cannot tell: udp 203.0.113.53:443: not refused at once\n"},
		{"privileges", "right", rules + strings.Replace(drop, "--no-new-privs", "", 1) + show, 1, "corral-verify: handover refused: no-new-privs: this process (corral-verify) may gain privileges\n"},
		{"a capability", "right", rules + strings.Replace(drop, "-all --inh", "-all,+net_raw --inh", 1) + show, 1, "corral-verify: handover refused: no-capabilities: this process (corral-verify) has CapBnd 2000\n"},
		{"root", "right", rules + strings.ReplaceAll(drop, "1000", "0") + show, 1, "corral-verify: handover refused: non-root: this process (corral-verify) runs as root\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", setup+tt.script)
			cmd.Dir = dir
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS}
			cmd.Env = append(os.Environ(), "DOCUMENT="+document(tt.instance))
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != tt.status || !strings.HasSuffix(string(out), tt.output) {
				t.Errorf("status %d, %s", cmd.ProcessState.ExitCode(), out)
			}
		})
	}
}

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"runs": 0o755, "plain": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for _, tt := range []struct {
		name   string
		status int
		text   string
	}{
		{"runs", exit.OK, ""},
		{filepath.Join(dir, "runs"), exit.OK, ""},
		{"plain", notExecutable, "plain: cannot be executed: permission denied"},
		{filepath.Join(dir, "plain"), notExecutable, "cannot be executed: permission denied"},
		{"gone", notFound, "gone: command not found\n  hint: its image does not have it"},
		{"/gone/too", notFound, "/gone/too: command not found"},
		{dir, notExecutable, "cannot be executed"},
	} {
		var stderr bytes.Buffer
		_, err := lookUp(tt.name)
		if status := exit.Report(&stderr, program, err); status != tt.status || !strings.Contains(stderr.String(), tt.text) {
			t.Errorf("%s: status %d, %q", tt.name, status, &stderr)
		}
	}
}

func TestWithout(t *testing.T) {
	got := without([]string{"A=1", "CORRAL_SPEC={}", "CORRAL_SPECIAL=2"}, "CORRAL_SPEC")
	if strings.Join(got, " ") != "A=1 CORRAL_SPECIAL=2" {
		t.Errorf("%q", got)
	}
}

// A terminal without a size gets one, and no other is changed.
func TestGiveSize(t *testing.T) {
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	defer tty.Close()
	for _, tt := range []struct{ has, gets pty.Winsize }{
		{pty.Winsize{}, pty.Winsize{Rows: 24, Cols: 80}},
		{pty.Winsize{Rows: 33, Cols: 111}, pty.Winsize{Rows: 33, Cols: 111}},
	} {
		if err := pty.Setsize(ptmx, &tt.has); err != nil {
			t.Fatal(err)
		}
		giveSize(tty)
		got, err := pty.GetsizeFull(ptmx)
		if err != nil || *got != tt.gets {
			t.Errorf("%v: %v, %v", tt.has, got, err)
		}
	}
}
