package engine

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
)

// The agent's container, as asked of the engine.
func TestBindsAreIdenticalPaths(t *testing.T) {
	g := &Gate{Guests: "corral-guest-x"}
	for _, recursive := range []bool{false, true} {
		got := binds(g, plan.Service{Mounts: []plan.Mount{{Path: "/p"}, {Path: "/r: ,x", ReadOnly: true}}}, recursive)
		if len(got) != 3 || !got[0].ReadOnly || got[1].ReadOnly || !got[2].ReadOnly {
			t.Fatalf("%+v", got)
		}
		for _, m := range got[1:] {
			if m.Source != m.Target || m.BindOptions == nil || m.BindOptions.CreateMountpoint || m.BindOptions.ReadOnlyForceRecursive != (m.ReadOnly && recursive) {
				t.Errorf("%+v %+v", m, m.BindOptions)
			}
		}
	}
}

func TestMountable(t *testing.T) {
	below := []string{"/n/sub"}
	for _, tt := range []struct {
		mount     plan.Mount
		recursive bool
		ok        bool
	}{
		{plan.Mount{Path: "/n", ReadOnly: true}, false, true},
		{plan.Mount{Path: "/n", ReadOnly: true, Submounts: below}, true, true},
		{plan.Mount{Path: "/n", Submounts: below}, false, true},
		{plan.Mount{Path: "/n", ReadOnly: true, Submounts: below}, false, false},
	} {
		err := mountable([]plan.Mount{{Path: "/a"}, tt.mount}, tt.recursive)
		if (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), "/n/sub") {
			t.Errorf("%+v, recursive %v: %v", tt.mount, tt.recursive, err)
		}
	}
}

// What came along with a service's mounts stays on record for as long as it is there.
func TestSubmountsOnRecord(t *testing.T) {
	for _, tt := range []struct {
		mounts []plan.Mount
		label  string
	}{
		{nil, "{}"},
		{[]plan.Mount{{Path: "/p"}, {Path: "/h", Inside: "/i", Submounts: []string{"/h/x"}}}, "{}"}, // that of what the profile brings is elsewhere
		{[]plan.Mount{{Path: "/p", Submounts: []string{"/p/b", "/p/a"}}, {Path: "/n", ReadOnly: true, Submounts: []string{"/n/a"}}}, `{"/n":["/n/a"],"/p":["/p/b","/p/a"]}`},
	} {
		label := submountsLabel(tt.mounts)
		back, err := parseSubmounts(label)
		if label != tt.label || err != nil || back == nil || !reflect.DeepEqual(back, below(tt.mounts)) {
			t.Errorf("%s, %v, %v", label, back, err)
		}
	}
	for label, told := range map[string]bool{`{"/p":["/p/a"]}`: true, "{}": true, "": false} {
		e := answered(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
			json.NewEncoder(w).Encode([]container.Summary{{Names: []string{"/corral-a"}, Labels: map[string]string{labelRole: RoleService, labelSubmounts: label}}})
		})
		members, err := e.Members(t.Context(), "")
		if err != nil || len(members) != 1 || (members[0].Submounts != nil) != told || len(members[0].Submounts) != strings.Count(label, ":") {
			t.Errorf("%q: %+v, %v", label, members, err)
		}
	}
	e := answered(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		json.NewEncoder(w).Encode([]container.Summary{{Names: []string{"/corral-a"}, Labels: map[string]string{labelSubmounts: "["}}})
	})
	if _, err := e.Members(t.Context(), ""); !errors.As(err, new(*Mislabelled)) {
		t.Errorf("no sense: %v", err)
	}
}

func TestUnmoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	made := func() plan.Mount {
		t.Helper()
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return plan.Mount{Path: path, Dev: st.Dev, Ino: st.Ino}
	}
	m := made()
	if err := unmoved([]plan.Mount{m}); err != nil {
		t.Error(err)
	}
	if err := os.Rename(path, path+"2"); err != nil {
		t.Fatal(err)
	}
	if err := unmoved([]plan.Mount{m}); err == nil {
		t.Error("one that is gone was taken")
	}
	if err := os.Symlink("x2", path); err != nil {
		t.Fatal(err)
	}
	if err := unmoved([]plan.Mount{m}); err == nil {
		t.Error("a link to it was taken")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	made()
	if err := unmoved([]plan.Mount{m}); err == nil {
		t.Error("another directory was taken")
	}
}

func TestShieldsAreReadBack(t *testing.T) {
	want := []plan.Mount{{Path: "/p/.git", Dev: 1, Ino: 2}, {Path: "/p/.git/a \"b\\n", ReadOnly: true, Dev: 1, Ino: 1<<64 - 1}}
	got, err := parseMounts(render.MountsLabel(want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := parseMounts(render.MountsLabel(nil)); err != nil || got != nil {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := parseMounts(`[{"Path": "/p", "Evil": 1}]`); err == nil {
		t.Errorf("%+v", got)
	}
}
