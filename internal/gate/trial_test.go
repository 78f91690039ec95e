package gate_test

import (
	"bytes"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// trialOf runs the trial by a command that ends with the gate's own.
func trialOf(t *testing.T, how []string, args ...string) (events map[string]spec.Event, said string, status int) {
	t.Helper()
	binary, err := gateBinary()
	if err != nil {
		t.Fatal(err)
	}
	words := append(append(how, binary, "trial"), args...)
	cmd := exec.Command(words[0], words[1:]...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	list, err := report.Read(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	events = map[string]spec.Event{}
	for _, ev := range list {
		if _, twice := events[ev.Check]; twice {
			t.Errorf("%s is told twice", ev.Check)
		}
		events[ev.Check] = ev
	}
	return events, errs.String(), cmd.ProcessState.ExitCode()
}

var empty = []string{"unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc"}

// R038, R040: each feature is proven by real rules and sets, and one that is
// really missing has a name.
func TestTrial(t *testing.T) {
	testenv.Require(t, "netns")
	without := func(capability string) []string {
		return append(empty[:len(empty):len(empty)], "setpriv", "--bounding-set", "-"+capability, "--inh-caps", "-"+capability)
	}
	for _, tt := range []struct {
		name   string
		how    []string
		status int
		failed []string
	}{
		{"all there", empty, 0, nil},
		{"no raw socket", without("net_raw"), 1, []string{"backend"}},
		{"no right to rules", without("net_admin"), 1, []string{"backend"}},
		{"no programs", append(empty[:len(empty):len(empty)], "env", "PATH=/nonexistent"), 1, []string{"backend"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			events, said, status := trialOf(t, tt.how)
			if tt.status == 0 {
				for _, f := range spec.TrialFeatures {
					if events[f.Name].Check != f.Name {
						t.Errorf("nothing is said of %s", f.Name)
					}
				}
			}
			if status != tt.status || said != "" {
				t.Errorf("status %d: %s", status, said)
			}
			for _, name := range tt.failed {
				if ev := events[name]; ev.Result != spec.Failed || ev.Detail == "" {
					t.Errorf("%s is %+v", name, ev)
				}
				delete(events, name)
			}
			for _, ev := range events {
				if ev.Result != spec.OK {
					t.Errorf("%+v", ev)
				}
			}
			if tt.status == 0 && (len(events) != len(spec.TrialFeatures) || events[spec.TrialBackend].Detail == "") {
				t.Errorf("%v", events)
			}
		})
	}
}

// The trial closes where it runs: never in a namespace that somebody uses.
func TestTrialElsewhere(t *testing.T) {
	testenv.Require(t, "netns")
	for _, tt := range []struct {
		how  []string
		said string
	}{
		{[]string{"env"}, "it runs as PID 1 only"},
		{append(empty[:len(empty):len(empty)], "sh", "-c", `ip link add up0 type veth peer down0 && ip link set up0 up && exec "$@"`, "sh"), "interface up0 is up"},
	} {
		events, said, status := trialOf(t, tt.how)
		if status != 2 || !strings.Contains(said, tt.said) || len(events) > 0 {
			t.Errorf("%v: status %d, %v: %s", tt.how, status, events, said)
		}
	}
}

func TestTrialReadsAndReaches(t *testing.T) {
	testenv.Require(t, "netns")
	if events, _, _ := trialOf(t, empty, "--read", filepath.Join(t.TempDir(), "nothing")); events["read"].Result != spec.Failed {
		t.Errorf("a file that is not there: %+v", events["read"])
	}
	if events, _, _ := trialOf(t, empty, "--read", "/proc/sys/kernel/ostype"); events["read"].Detail != "Linux" {
		t.Errorf("%+v", events["read"])
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	events, _, status := trialOf(t, []string{"env"}, "--reach", l.Addr().String())
	if events["reach"].Result != spec.OK || status != 0 {
		t.Errorf("%+v, status %d", events["reach"], status)
	}
	l.Close()
	events, _, status = trialOf(t, []string{"env"}, "--reach", l.Addr().String())
	if ev := events["reach"]; ev.Result != spec.Failed || !strings.Contains(ev.Detail, "refused") || status != 1 {
		t.Errorf("%+v, status %d", ev, status)
	}
}
