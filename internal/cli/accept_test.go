package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
)

// Whatever a policy holds, what is asked about is on the screen: no value pads
// others away, hides in blanks, or does something to the terminal.
func TestRowsHideNothing(t *testing.T) {
	long := strings.Repeat("0123456789", 50)
	var b bytes.Buffer
	showRows(&b, []policy.Row{
		{Key: "egress.allow", Value: "a.example", Origin: "corral.yaml:2"},
		{Key: "hooks.pre_launch", Value: "true" + strings.Repeat(" ", 100000) + "; touch X\nsecond\u3164\x1b[8m", Origin: "corral.yaml:3"},
		{Key: "hooks.pre_launch", Value: long, Origin: "corral.yaml:5"},
		{Key: "image.run", Value: "none", Origin: "default"},
	})
	for _, want := range []string{
		"  egress.allow      a.example   [corral.yaml:2]\n",
		"  hooks.pre_launch  on this machine, as you: true[100000 blanks]; touch X\n",
		"                    second\\u3164\\x1b[8m   [corral.yaml:3]\n",
		"  image.run         none   [default]\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(line)); n > keyWidth+foldWidth+40 {
			t.Errorf("a line of %d characters", n)
		}
	}
	shown := strings.NewReplacer(" …\n", "", " ", "").Replace(b.String())
	if !strings.Contains(shown, long) {
		t.Errorf("not every character of a long value is shown:\n%s", b.String())
	}
}

func TestSum(t *testing.T) {
	for want, e := range map[string]policy.Effective{
		"nothing of this machine or the network": {},
		"1 command on this machine, 2 build steps as root, a file of secrets, 1 writable mount, 1 read-only mount, 3 names on the network, 1 service of this machine": {
			PreLaunch: []string{"x"}, Run: []string{"a", "b"}, EnvFile: "/e", Mounts: []policy.EffectiveMount{{Path: "/p"}, {Path: "/r", ReadOnly: true}},
			Egress: make([]policy.EffectiveRule, 3), HostServices: make([]policy.EffectiveService, 1),
		},
	} {
		if got := sum(e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPersonal(t *testing.T) {
	for path, want := range map[string]bool{
		"/home/u/.bashrc": true, "/home/u/.config/autostart": true, "/home/u/bin": true, "/home/u/bin/x": true,
		"/home/u/binary": false, "/home/u/Projects/.git": false, "/home/u": false, "/home/u2/.bashrc": false, "/srv/.x": false,
	} {
		if got := personal(path, []string{"/nowhere", "/home/u"}); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// What nobody has accepted is told once: with all that it asks for to who may answer, and
// in a line to a watch, which looks again and again.
func TestThePolicyIsToldOnce(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	shell, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.Parse(policy.FileName, []byte("profile: shell\nname: x\nmode: daemon\nimage: {run: [make]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, unasked := range []bool{false, true} {
		var b bytes.Buffer
		a := &app{in: strings.NewReader("y\n"), err: &b, unasked: unasked}
		err := a.accept(t.Context(), &project{policy: pol, profile: shell})
		if !invalid(err) {
			t.Errorf("unasked %v: %v", unasked, err)
		}
		a.report(err)
		if n := strings.Count(b.String(), "nobody has accepted this policy yet"); n != 1 || strings.Contains(b.String(), "image.run") == unasked {
			t.Errorf("unasked %v: said %d times: %s", unasked, n, b.String())
		}
	}
}
