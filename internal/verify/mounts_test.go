package verify

import (
	"maps"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/spec"
)

// dockerMounts is what the engine (20.10, cgroup version 1) gives a container
// that declares nothing.
const dockerMounts = `72 48 0:39 / / rw,relatime master:2 - overlay overlay rw,lowerdir=/l
73 72 0:42 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
74 72 0:43 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
75 74 0:44 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,gid=5,mode=620,ptmxmode=666
76 72 0:45 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
77 76 0:46 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
85 77 0:36 /docker/075e /sys/fs/cgroup/pids ro,nosuid,nodev,noexec,relatime - cgroup cgroup rw,pids
87 74 0:41 / /dev/mqueue rw,nosuid,nodev,noexec,relatime - mqueue mqueue rw
88 74 0:47 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=65536k
89 72 254:0 /var/lib/docker/containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/vda rw
90 72 254:0 /var/lib/docker/containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/hostname /etc/hostname rw,relatime - ext4 /dev/vda rw
91 72 254:0 /var/lib/docker/containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/hosts /etc/hosts rw,relatime - ext4 /dev/vda rw
92 72 254:0 /usr/bin/docker-init /sbin/docker-init ro,relatime - ext4 /dev/vda rw
93 74 0:44 /0 /dev/console rw,nosuid,noexec,relatime - devpts devpts rw,gid=5,mode=620,ptmxmode=666
49 73 0:42 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
52 73 0:42 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
53 73 0:48 / /proc/acpi ro,relatime - tmpfs tmpfs ro
54 73 0:43 /null /proc/keys rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
56 76 0:49 / /sys/firmware ro,relatime - tmpfs tmpfs ro
`

func TestMountsOnlyDeclaredComparesTheFile(t *testing.T) {
	e := tree(t, map[string]string{"/proc/self/mountinfo": dockerMounts + "100 72 254:0 /p /p rw,relatime - ext4 /dev/vda rw\n", "/p/": ""})
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
		for line := range strings.Lines(dockerMounts) {
			if !strings.Contains(line, " "+target+" ") {
				kept += line
			}
		}
		return kept
	}
	want(t, with(dockerMounts), c, spec.OK, "")
	for _, p := range []string{"/proc/bus", "/proc/acpi", "/proc/keys", "/sys/firmware"} {
		want(t, with(without(p)), c, spec.Failed, p+" is not covered")
	}
	want(t, with(dockerMounts+"57 73 0:42 /keys /proc/keys ro - proc proc rw\n"), c, spec.Failed, "/proc/keys is not covered as the engine does")
	want(t, with(dockerMounts+"57 73 0:42 /bus /proc/bus rw - proc proc rw\n"), c, spec.Failed, "/proc/bus")
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
