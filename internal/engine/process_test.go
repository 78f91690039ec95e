package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/spec"
)

// engineMounts is what an engine mounts in every container, by control groups of the
// first version.
const engineMounts = `72 48 0:39 / / rw,relatime master:2 - overlay overlay rw
73 72 0:42 / /proc rw,nosuid - proc proc rw
74 72 0:43 / /dev rw,nosuid - tmpfs tmpfs rw
75 74 0:44 / /dev/pts rw,nosuid - devpts devpts rw
76 72 0:45 / /sys ro,nosuid - sysfs sysfs ro
77 76 0:46 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw
85 77 0:36 /docker/075e /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids
87 74 0:41 / /dev/mqueue rw,nosuid - mqueue mqueue rw
88 74 0:47 / /dev/shm rw,nosuid - tmpfs shm rw
89 72 254:0 /var/lib/docker/containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/resolv.conf /etc/resolv.conf rw - ext4 /dev/vda rw
90 72 254:0 /@/docker/containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/hostname /etc/hostname rw - btrfs /dev/vda rw
91 72 254:0 /containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/hosts /etc/hosts rw - xfs /dev/vda rw
92 72 254:0 /usr/bin/tini-static /sbin/docker-init ro - ext4 /dev/vda rw
93 74 0:44 /0 /dev/console rw,nosuid - devpts devpts rw
49 73 0:42 /bus /proc/bus ro,nosuid - proc proc rw
52 73 0:42 /sys /proc/sys ro,nosuid - proc proc rw
53 73 0:48 / /proc/acpi ro - tmpfs tmpfs ro
54 73 0:43 /null /proc/keys rw,nosuid - tmpfs tmpfs rw
55 73 0:43 /null /proc/kcore rw,nosuid - devtmpfs udev rw
56 76 0:49 / /sys/firmware ro - tmpfs tmpfs ro
57 76 0:50 / /sys/devices/system/cpu/cpu0/thermal_throttle ro - tmpfs tmpfs ro
`

func mountsOf(t *testing.T, text string) []mountinfo.Mount {
	t.Helper()
	all, err := mountinfo.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each mount more than an engine makes and than was declared is told, and so is one over
// another, by whatever side it seems to be the same.
func TestKernelsMounts(t *testing.T) {
	declared := []spec.Mount{{Target: spec.GuestDir, ReadOnly: true}, {Target: "/p"}}
	const ours = "94 72 254:0 /var/lib/docker/volumes/v/_data /opt/corral ro - ext4 /dev/vda rw\n95 72 254:0 /p /p rw - ext4 /dev/vda rw\n"
	cgroup2 := strings.Replace(strings.Replace(engineMounts, "77 76 0:46 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n", "77 76 0:46 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n", 1),
		"85 77 0:36 /docker/075e /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids\n", "", 1)
	for _, tt := range []struct {
		name, mountinfo string
		want            []string
	}{
		{"what an engine makes", engineMounts + ours, nil},
		{"control groups of the second version", cgroup2 + ours, nil},
		{"an engine that covers twice", engineMounts + ours + "96 73 0:43 /null /proc/keys rw - tmpfs tmpfs rw\n97 73 0:42 /bus /proc/bus ro - proc proc rw\n98 74 0:44 /1 /dev/console rw - devpts devpts rw\n", nil},

		{"over the guests", engineMounts + ours + "96 72 0:99 / /opt/corral ro - tmpfs tmpfs ro\n", []string{"mountinfo /opt/corral: it is mounted over"}},
		{"over a bind", engineMounts + ours + "96 72 254:0 /etc /p rw - ext4 /dev/vda rw\n", []string{"mountinfo /p: it is mounted over"}},
		{"over the way to the guests", engineMounts + ours + "96 72 254:0 /x /opt ro - ext4 /dev/vda rw\n", []string{"mountinfo /opt: it is not declared (/x of ext4)"}},
		{"over the root", engineMounts + ours + "96 72 254:0 /x / rw - ext4 /dev/vda rw\n", []string{"mountinfo /: it is mounted over"}},
		{"over the names", engineMounts + ours + "96 91 0:99 /hosts /etc/hosts ro - tmpfs tmpfs rw\n",
			[]string{"mountinfo /etc/hosts: it is not declared (/hosts of tmpfs)", "mountinfo /etc/hosts: it is mounted over"}},
		{"over /proc", engineMounts + ours + "96 73 0:77 / /proc rw - proc proc rw\n", nil}, // below
		{"over /sys", engineMounts + ours + "96 76 0:45 / /sys ro - sysfs sysfs ro\n", []string{"mountinfo /sys: it is mounted over"}},
		{"over /dev", engineMounts + ours + "96 74 0:77 / /dev rw - tmpfs tmpfs rw\n", []string{"mountinfo /dev: it is mounted over"}},
		{"a part of /proc that no engine shows", engineMounts + ours + "96 73 0:42 / /proc/tty rw - proc proc rw\n", []string{"mountinfo /proc/tty: it is not declared (/ of proc)"}},
		{"a part of another /proc", engineMounts + ours + "96 73 0:77 /tty /proc/tty ro - proc proc rw\n", []string{"mountinfo /proc/tty: it is not declared (/tty of proc)"}},
		{"a part of /proc to be written", engineMounts + ours + "96 73 0:42 /tty /proc/tty rw - proc proc rw\n", []string{"mountinfo /proc/tty: it is not declared (/tty of proc)"}},
		{"a sysfs below /sys", engineMounts + ours + "96 76 0:45 / /sys/kernel rw - sysfs sysfs rw\n", []string{"mountinfo /sys/kernel: it is not declared (/ of sysfs)"}},
		{"memory below /proc that can be written", engineMounts + ours + "96 73 0:77 / /proc/tty rw - tmpfs tmpfs rw\n", []string{"mountinfo /proc/tty: it is not declared (/ of tmpfs)"}},
		{"memory below /dev", engineMounts + ours + "96 74 0:77 / /dev/x rw - tmpfs tmpfs rw\n", []string{"mountinfo /dev/x: it is not declared (/ of tmpfs)"}},
		{"a control group that can be written", strings.Replace(cgroup2, "/sys/fs/cgroup ro", "/sys/fs/cgroup rw", 1) + ours, []string{"mountinfo /sys/fs/cgroup: it is not declared (/ of cgroup2)"}},
		{"a file of another maker for the names", strings.Replace(engineMounts, "/hosts /etc/hosts", "/hosts.mine /etc/hosts", 1) + ours, []string{"mountinfo /etc/hosts: it is not declared (/containers/075eb541ec3412605f2a9311fbcbd0d6d2136f5dc3a4294fea0d473ee464d883/hosts.mine of xfs)"}},
		{"an init of another name", strings.Replace(engineMounts, "tini-static", "bash", 1) + ours, []string{"mountinfo /sbin/docker-init: it is not declared (/usr/bin/bash of ext4)"}},
		{"settings of the kernel's that can be written", strings.Replace(engineMounts, "/proc/sys ro", "/proc/sys rw", 1) + ours,
			[]string{"mountinfo /proc/sys: it is not declared (/sys of proc)", "mountinfo /proc/sys: it is not read-only"}},
		{"nothing declared", engineMounts, []string{"mountinfo /opt/corral: it is not mounted", "mountinfo /p: it is not mounted"}},
	} {
		p := &process{root: -1, mounts: mountsOf(t, tt.mountinfo)}
		var got []string
		for _, d := range p.undeclared(declared) {
			got = append(got, d.String())
		}
		if tt.name == "over /proc" { // what covers parts of the first covers none of the other
			if !slices.Contains(got, "mountinfo /proc: it is mounted over") {
				t.Errorf("%s: %q", tt.name, got)
			}
			continue
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, not %q", tt.name, got, tt.want)
		}
	}
}

// What a bind shows is what was seen on the host, where this person may look.
func TestKernelsMountsReplaced(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"p", "q", "volumes/v/_data", "other/v/_data"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "p"), &st); err != nil {
		t.Fatal(err)
	}
	seen := &process{root: fd, mounts: mountsOf(t, engineMounts+"95 72 254:0 /p /p rw - ext4 /dev/vda rw\n96 72 254:0 /p /q rw - ext4 /dev/vda rw\n97 72 254:0 /p /r rw - ext4 /dev/vda rw\n")}
	defer seen.close()
	blind := &process{root: -1, mounts: seen.mounts}
	any := []spec.Mount{{Target: "/p"}, {Target: "/q"}, {Target: "/r"}}
	for _, tt := range []struct {
		name   string
		by     *process
		change int // which of any is recorded, as p
		want   string
	}{
		{"as it was", seen, 0, ""},
		{"another directory", seen, 1, "mountinfo /q: it is not what it was on the host (replaced there)"},
		{"nothing there", seen, 2, "mountinfo /r: it cannot be looked at: open /r: no such file or directory"},
		{"nobody may look", blind, 1, ""},
	} {
		declared := slices.Clone(any)
		declared[tt.change].Dev, declared[tt.change].Ino = st.Dev, st.Ino
		var got []string
		for _, d := range tt.by.undeclared(declared) {
			got = append(got, d.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, not %q", tt.name, got, tt.want)
		}
	}

	volume := container.MountPoint{Type: mount.TypeVolume, Name: "v", Driver: "local", Source: filepath.Join(root, "volumes/v/_data"), Destination: "/volumes/v/_data"}
	for _, tt := range []struct {
		name   string
		by     *process
		root   string // of what the kernel has mounted
		change func(*container.MountPoint)
		want   string
	}{
		{"the volume", seen, "/docker/volumes/v/_data", func(*container.MountPoint) {}, ""},
		{"on a disk of its own", seen, "/v/_data", func(*container.MountPoint) {}, ""},
		{"another volume", seen, "/docker/volumes/w/_data", func(*container.MountPoint) {}, "mountinfo /volumes/v/_data: it is not of the volume v"},
		{"another by its end alone", seen, "/docker/volumes/not-v/_data", func(*container.MountPoint) {}, "mountinfo /volumes/v/_data: it is not of the volume v"},
		{"memory", seen, "/", func(*container.MountPoint) {}, "mountinfo /volumes/v/_data: it is not of the volume v"},
		{"another directory that is called like it", seen, "/x/v/_data", func(m *container.MountPoint) { m.Source = filepath.Join(root, "other/v/_data") },
			"mountinfo /volumes/v/_data: it is not the directory of the volume v"},
		{"nobody may look", blind, "/x/v/_data", func(m *container.MountPoint) { m.Source = filepath.Join(root, "other/v/_data") }, ""},
		{"files of an engine elsewhere", seen, "/v/_data", func(m *container.MountPoint) { m.Source = "/nowhere/v/_data" }, ""},
		{"another driver", seen, "/", func(m *container.MountPoint) { m.Driver = "nfs" }, "mountinfo /volumes/v/_data: the engine does not say where it keeps the volume v"},
		{"no place", seen, "/", func(m *container.MountPoint) { m.Source = "" }, "mountinfo /volumes/v/_data: the engine does not say where it keeps the volume v"},
		{"a bind", seen, "/", func(m *container.MountPoint) { m.Type = mount.TypeBind }, ""},
	} {
		p, said := *tt.by, volume
		p.mounts = []mountinfo.Mount{{Target: "/volumes/v/_data", Options: []string{"ro"}, FSType: "ext4", Device: "254:0", Root: tt.root}}
		tt.change(&said)
		var got []string
		for _, d := range p.strayed([]container.MountPoint{said}) {
			got = append(got, d.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, not %q", tt.name, got, tt.want)
		}
	}
}
