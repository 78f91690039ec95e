package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/test/lab"
)

// R122: every command three times, in any order, from two shells with little in common:
// nothing is made, started or ended anew.
func TestNothingIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := project(t, always("shells", `[sh, -c, "echo up; exec sleep infinity"]`))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	x := &trial{sandbox: s, t: t}
	gate, agent := lives(s)
	happened := x.events()

	path := strings.Split(os.Getenv("PATH"), ":")
	slices.Reverse(path)
	one, two := *s, *s
	one.env = append(slices.Clone(s.env), "LANG=C", "TZ=UTC", "TERM=dumb")
	two.env = append(slices.Clone(s.env), "LANG=de_CH.UTF-8", "TZ=Asia/Tokyo", "TERM=xterm-256color", "COLORTERM=truecolor", "PATH="+strings.Join(path, ":"), "EDITOR=true")
	var commands [][]string
	for _, c := range [][]string{
		{"up"}, {"up", "--wait"}, {"verify"}, {"shell", "--", "true"}, {"logs"}, {"logs", "gate"}, {"status"}, {"status", "--json"}, {"ps"}, {"refresh"}, {"traffic"},
		{"build"}, {"render"}, {"policy", "show"}, {"policy", "diff"}, {"policy", "check", "api.allowed.test"}, {"version"}, {"install", "--check"},
	} {
		commands = append(commands, c, c, c)
	}
	r, _ := draw(t)
	r.Shuffle(len(commands), func(i, j int) { commands[i], commands[j] = commands[j], commands[i] })
	for i, c := range commands {
		from := []*sandbox{&one, &two}[i%2]
		if got := from.corral(c...); got.code != 0 {
			t.Errorf("corral %v: %v", c, got)
		}
		if s.identity(s.gate()) != gate || s.identity(s.agent()) != agent {
			t.Fatalf("corral %v made something anew", c)
		}
	}
	if got := happened(); len(got) > 0 {
		t.Errorf("it happened: %v", got)
	}
}

// person is a sandbox of somebody else's of this machine, with a home of their own.
func (s *sandbox) person(t *testing.T, uid uint32, yaml string) *sandbox {
	t.Helper()
	root, err := os.MkdirTemp("", "corral-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	o := *s
	o.tb, o.uid, o.gid = t, uid, uid
	o.dir = filepath.Join(root, "project")
	o.env = append(slices.DeleteFunc(slices.Clone(s.env), func(v string) bool { return strings.HasPrefix(v, "HOME=") }), "HOME="+filepath.Join(root, "home"))
	o.own(root, o.dir, filepath.Join(root, "home"))
	o.write("corral.yaml", yaml)
	o.id = plan.ID(name(t, yaml), filepath.Join(o.dir, "corral.yaml"))
	t.Cleanup(func() {
		if r := o.corral("down"); r.code != 0 {
			t.Errorf("corral down: %v", r)
		}
		o.dropImages()
		if left := o.containers(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return &o
}

// Two people of one machine, with projects of one name: nothing of one is the other's.
// A policy file is one sandbox, whoever looks at it, and its owner's to bring up.
func TestTwoUsers(t *testing.T) {
	t.Parallel()
	yaml := always("same", forever)
	one := project(t, yaml)
	one.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	two := one.person(t, ownerUID+100, yaml)
	one.must("up")
	two.must("up", "--accept")
	if one.id == two.id {
		t.Fatalf("both are %s", one.id)
	}
	address := func(s *sandbox) string {
		return docker(t, "inspect", "--format", "{{.NetworkSettings.Networks.corral.IPAddress}}", s.gate())
	}
	user := func(s *sandbox) string {
		return docker(t, "inspect", "--format", "{{.Config.User}} {{.Config.Image}}", s.agent())
	}
	if address(one) == address(two) || user(one) == user(two) || !strings.HasPrefix(user(two), fmt.Sprint(two.uid)+":") {
		t.Errorf("addresses %s, %s; users and images %s, %s", address(one), address(two), user(one), user(two))
	}
	for _, s := range []*sandbox{one, two} {
		if r := s.corral("status"); r.code != 0 || !strings.HasPrefix(r.out, s.id+"\n") {
			t.Errorf("status: %v", r)
		}
		if r := s.corral("verify"); r.code != 0 {
			t.Error(r)
		}
		if r := s.corral("ps"); r.code != 0 || rowOf(r.out, one.id) == "" || rowOf(r.out, two.id) == "" {
			t.Errorf("ps: %v", r)
		}
	}
	gate, agent := lives(one)
	two.must("down")
	if now, main := lives(one); now != gate || main != agent {
		t.Error("the other one's down touched it")
	}
	if r := one.corral("up"); r.code != 0 || !strings.Contains(r.err, "is up already") {
		t.Error(r)
	}

	// The other one, in the project of the first.
	guest := *two
	guest.dir, guest.id = one.dir, one.id
	if r := guest.corral("status"); r.code != 1 || !strings.Contains(r.out, "main: running") {
		t.Errorf("status: %v", r)
	}
	if r := guest.corral("up"); r.code != 2 {
		t.Errorf("an up of somebody else's policy: %v", r)
	}
	if now, main := lives(one); now != gate || main != agent {
		t.Error("it touched something")
	}
	if r := guest.corral("down"); r.code != 0 || !strings.Contains(r.err, "was not brought up from this home directory") {
		t.Errorf("down: %v", r)
	}
	if r := one.corral("up"); r.code != 0 || !strings.Contains(r.err, one.id+" is up\n") {
		t.Errorf("the owner's up after it: %v", r)
	}
	if _, err := os.Stat(filepath.Join(two.home(), ".local/share/corral", one.id, "wanted")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not theirs is to be up: %v", err)
	}
}

// lives is which life its gate and its agent live.
func lives(s *sandbox) (gate, agent string) { return s.identity(s.gate()), s.identity(s.agent()) }
