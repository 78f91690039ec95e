package verify

import (
	"maps"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/mountinfo/mountinfotest"
	"github.com/corral-sandbox/corral/internal/spec"
)

func TestMountsOnlyDeclaredComparesTheFile(t *testing.T) {
	e := tree(t, map[string]string{"/proc/self/mountinfo": mountinfotest.Docker + "100 72 254:0 /p /p rw,relatime - ext4 /dev/vda rw\n", "/p/": ""})
	var st unix.Stat_t
	if err := unix.Stat(e.path("/p"), &st); err != nil {
		t.Fatal(err)
	}
	same := spec.Mount{Target: "/p", Dev: st.Dev, Ino: st.Ino}
	want(t, e, spec.Check{Name: "mounts-only-declared", Mount: []spec.Mount{same}}, spec.OK, "")
	other := same
	other.Ino++
	want(t, e, spec.Check{Name: "mounts-only-declared", Mount: []spec.Mount{other}}, spec.Failed, "replaced there")
	if err := os.Remove(e.path("/p")); err != nil {
		t.Fatal(err)
	}
	want(t, e, spec.Check{Name: "mounts-only-declared", Mount: []spec.Mount{same}}, spec.Untold, "no such file")
}

// What the engine covers is covered, as far as this kernel has it.
func TestUncovered(t *testing.T) {
	here := map[string]string{"/proc/bus/": "", "/proc/sys/": "", "/proc/acpi/": "", "/proc/keys": "", "/sys/firmware/": ""}
	c := spec.Check{Name: "mounts-only-declared"}
	with := func(mounts string) *env {
		files := maps.Clone(here)
		files["/proc/self/mountinfo"] = mounts
		return tree(t, files)
	}
	without := func(target string) string {
		var kept string
		for line := range strings.Lines(mountinfotest.Docker) {
			if !strings.Contains(line, " "+target+" ") {
				kept += line
			}
		}
		return kept
	}
	want(t, with(mountinfotest.Docker), c, spec.OK, "")
	for _, p := range []string{"/proc/bus", "/proc/acpi", "/proc/keys", "/sys/firmware"} {
		want(t, with(without(p)), c, spec.Failed, p+" is not covered")
	}
	want(t, with(mountinfotest.Docker+"57 73 0:42 /keys /proc/keys ro - proc proc rw\n"), c, spec.Failed, "/proc/keys is not covered as the engine does")
	want(t, with(mountinfotest.Docker+"57 73 0:42 /bus /proc/bus rw - proc proc rw\n"), c, spec.Failed, "/proc/bus")
}

func TestHolding(t *testing.T) {
	all := []mountinfo.Mount{{Target: "/"}, {Target: "/a"}, {Target: "/a/b"}, {Target: "/a", Root: "/over"}, {Target: "/ab"}, {Target: "/a/c/d"}}
	for p, targets := range map[string]string{
		"/a":     "/a /a/b /a/c/d",
		"/a/b/x": "/a/b",
		"/a/c":   "/a /a/c/d",
		"/ab":    "/ab",
		"/x":     "/",
	} {
		var got []string
		for _, m := range holding(all, p) {
			got = append(got, m.Target)
		}
		if strings.Join(got, " ") != targets {
			t.Errorf("%s: %q, want %q", p, got, targets)
		}
	}
	if m := holding(all, "/a")[0]; m.Root != "/over" {
		t.Errorf("the mount underneath was taken: %+v", m)
	}
}
