package verify

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// says is a python that answers as Hermes does, by the name of its home: it goes by the
// pins in its own, in the covered one, and not in the bare one.
const says = `#!/bin/sh
case $HERMES_HOME in
*/bare) mode=%s ;;
*/covered) mode=%s ;;
*) mode=%s ;;
esac
test -e "$HERMES_HOME/.env" || exit 3
[ "$mode" != ends ] || { echo complaint >&2; exit 1; }
[ "$mode" != nonsense ] || { echo '{"home":'; exit 0; }
[ "$mode" != floods ] || { exec head -c 5000000 /dev/zero; }
home=$HERMES_HOME
[ "$mode" != elsewhere ] || home=/elsewhere
console=$mode
[ "$mode" != console ] || mode=manual
echo '{"home":"'$home'","config":{"approvals":{"mode":"'$mode'"},"list":[]},"console":{"approvals":{"mode":"'$console'"},"list":[]},
 "environment":{"A":"1"},"tools":{"cli":["file"]},"in force":{"hooks":[]}}'
`

// TestConfigPinned knows each way in which Hermes is not as it is pinned, or cannot be
// told to be. The real one is asked where there is one, in the engine's tests.
func TestConfigPinned(t *testing.T) {
	values := map[string]any{"approvals.mode": "manual", "list": []any{}, "$A": "1", "tools of cli": []any{"file"}, "in force: hooks": []any{}}
	with := func(name string, v any) map[string]any {
		out := map[string]any{name: v}
		for k, v := range values {
			if k != name {
				out[k] = v
			}
		}
		return out
	}
	for _, tt := range []struct {
		name                string
		bare, covered, real string
		values              map[string]any
		result              spec.Result
		detail              string
	}{
		{"as pinned", "off", "manual", "manual", values, spec.OK, ""},
		{"the bare one ends", "ends", "manual", "manual", values, spec.OK, ""},
		{"a value of its own", "off", "manual", "off", values, spec.Failed, `Hermes does not go by what is pinned: approvals.mode is "off"`},
		{"of the console alone", "off", "manual", "console", values, spec.Failed, `approvals.mode is "console"`},
		{"another home", "off", "manual", "elsewhere", values, spec.Failed, "its home is /elsewhere"},
		{"no value", "off", "manual", "manual", with("approvals.cron_mode", "deny"), spec.Failed, "approvals.cron_mode is null"},
		{"below a value", "off", "manual", "manual", with("list.deeper", "x"), spec.Failed, "list.deeper is null"},
		{"another variable", "off", "manual", "manual", with("$A", "0"), spec.Failed, `$A is "1"`},
		{"other tools", "off", "manual", "manual", with("tools of cli", []any{}), spec.Failed, `tools of cli is ["file"]`},
		{"hooks", "off", "manual", "manual", with("in force: hooks", []any{"x"}), spec.Failed, "in force: hooks is []"},
		{"redirected", "off", "off", "manual", values, spec.Failed, `Hermes can be redirected from where the agent may write: approvals.mode is "off"`},
		{"redirects that move nothing", "manual", "manual", "manual", values, spec.Untold, "they prove nothing"},
		{"it ends", "off", "manual", "ends", values, spec.Untold, "exit status 1: complaint"},
		{"it ends among redirects", "off", "ends", "manual", values, spec.Untold, "among redirects: exit status 1: complaint"},
		{"no answer", "off", "manual", "nonsense", values, spec.Untold, "does not say what it goes by: unexpected end"},
		{"too much of it", "off", "manual", "floods", values, spec.Untold, "it says too much"},
		{"nothing is pinned", "off", "manual", "manual", nil, spec.Untold, "nothing was pinned"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, map[string]string{"/h/.env": "", "/tmp/": "", "/python": fmt.Sprintf(says, tt.bare, tt.covered, tt.real)})
			if err := os.Chmod(e.path("/python"), 0o755); err != nil {
				t.Fatal(err)
			}
			c := spec.Check{Name: "config-pinned", Path: "/python", Paths: []string{"/h"}, Files: []spec.File{{Path: "/h/.env"}}, Values: tt.values}
			want(t, e, c, tt.result, tt.detail)
			if left, err := os.ReadDir(e.path("/tmp")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// A redirect is planted wherever a shadow is to cover one, or covering it shows nothing.
func TestRedirectsAreWhatIsCovered(t *testing.T) {
	home, real := t.TempDir(), t.TempDir()
	if err := redirect(home); err != nil {
		t.Fatal(err)
	}
	for _, f := range []spec.File{{Path: "/h/.env"}, {Path: "/h/.op.env"}, {Path: "/h/active_profile"}, {Path: "/h/config.yaml"}, {Path: "/h/hooks", Dir: true}, {Path: "/h/profiles", Dir: true}} {
		p := home + f.Path[len("/h"):]
		fi, err := os.Stat(p)
		if err != nil || fi.IsDir() != f.Dir || fi.Size() == 0 {
			t.Errorf("nothing is planted at %s: %v", f.Path, err)
		}
		if !f.Dir {
			if err := os.WriteFile(real+f.Path[len("/h"):], []byte("shown"), 0o400); err != nil {
				t.Fatal(err)
			}
		}
		if err := cover(home, real, f); err != nil {
			t.Fatal(err)
		}
		want := f
		want.Content = "shown"
		if same, err := contains(p, want); err != nil || !same {
			t.Errorf("%s: not what the shadow shows (%v)", f.Path, err)
		}
	}
}

// A program that takes no signal still knows how its children end. (It is this test
// again, as a process of its own: signals are a process'.)
func TestChildrenOfTheDeaf(t *testing.T) {
	const again = "CORRAL_TEST_DEAF"
	if os.Getenv(again) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestChildrenOfTheDeaf$")
		cmd.Env = append(os.Environ(), again+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	ignoreSignals()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("sh", "-c", "exit 7").Run(); err == nil || err.Error() != "exit status 7" {
		t.Errorf("a child ended with %v", err)
	}
}
