package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/state"
)

// What is up is not taken for another project's, nor for this one's where that cannot be
// told. Of another user's there is no record here.
func TestForAnother(t *testing.T) {
	record := func(project string) []byte {
		return policy.Effective{Version: policy.EffectiveVersion, Project: project}.Encode()
	}
	damage := func(how func(file string) error) func(home string) error {
		return func(home string) error {
			return errors.Join(state.Accept(home, "x-1", record("/here")), how(filepath.Join(home, "x-1", "accepted.json")))
		}
	}
	for name, c := range map[string]struct {
		kept   func(home string) error
		up     bool
		status int
		says   string
	}{
		"nothing is up":     {damage(func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) }), false, 0, ""},
		"another user's":    {func(string) error { return nil }, true, 0, ""},
		"this project's":    {func(home string) error { return state.Accept(home, "x-1", record("/here")) }, true, 0, ""},
		"another project's": {func(home string) error { return state.Accept(home, "x-1", record("/there")) }, true, 2, "is up for the project /there, not for /here"},
		"another version's": {func(home string) error {
			return state.Accept(home, "x-1", []byte(`{"version": 1, "project": "/here"}`))
		}, true, 0, ""},
		"no project's":             {func(home string) error { return state.Accept(home, "x-1", []byte("{}")) }, true, 1, "names none"},
		"half a record":            {damage(func(file string) error { return os.WriteFile(file, record("/here")[:9], 0o600) }), true, 1, "cannot be told"},
		"an empty record":          {damage(func(file string) error { return os.WriteFile(file, nil, 0o600) }), true, 1, "cannot be told"},
		"one anybody may write":    {damage(func(file string) error { return os.Chmod(file, 0o666) }), true, 1, "only you can write"},
		"a directory in its place": {damage(func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) }), true, 1, "cannot be told"},
		"a link in its place": {damage(func(file string) error {
			return errors.Join(os.Rename(file, file+"-"), os.Symlink(file+"-", file))
		}), true, 1, "cannot be told"},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			t.Setenv("XDG_DATA_HOME", data)
			if err := c.kept(filepath.Join(data, "corral")); err != nil {
				t.Fatal(err)
			}
			var members []engine.Member
			if c.up {
				members = []engine.Member{{Sandbox: "x-1", Role: engine.RoleGate}, {Sandbox: "x-1", Role: engine.RoleService}}
			}
			err := forAnother(members, &project{policy: &policy.Policy{Dir: "/here"}})
			var known *exit.Error
			switch is := errors.As(err, &known); {
			case c.status == 0 && err != nil:
				t.Error(err)
			case c.status != 0 && (!is || known.Status != c.status || known.Hint == "" || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v", err)
			}
			// A shell beside the agent changes nothing: only what is another project's for sure is none.
			a, said := saying()
			for i := range members {
				members[i].ID, members[i].Service, members[i].Purpose = "c", plan.Main, engine.PurposeDaemon
			}
			err = a.lookedInto(members, &project{policy: &policy.Policy{Dir: "/here"}})
			if (err != nil) != (c.status == exit.Invalid) || strings.Contains(said.String(), "corral down ends it") != (c.status == exit.Failed) {
				t.Errorf("a shell: %v, %q", err, said)
			}
			if c.status == exit.Failed && a.lookedInto(members[:1], &project{policy: &policy.Policy{Dir: "/here"}}) == nil {
				t.Error("a shell without an agent")
			}
		})
	}
}

// saying is an app whose words are kept.
func saying() (*app, *strings.Builder) {
	said := &strings.Builder{}
	return &app{in: strings.NewReader(""), out: said, err: said}, said
}
