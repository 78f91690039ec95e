package mountinfo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/mountinfo/mountinfotest"
	"github.com/corral-sandbox/corral/internal/spec"
)

func TestParse(t *testing.T) {
	all, err := Parse(`36 35 98:0 /a\040b /mnt/with\040space\134x rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue` + "\n")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if m := all[0]; m.Target != `/mnt/with space\x` || m.Root != "/a b" || m.Device != "98:0" || m.FSType != "ext3" || !m.Has("noatime") || m.Has("ro") {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"", "\n", "x", "x 35 98:0 / /mnt rw - ext3 x rw", "36 35 98:0 / /mnt rw -", "36 35 98:0 / /mnt rw master:1", "36 35 98:0 / rw - ext3 x rw", "- - - - - - -"} {
		if all, err := Parse(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, all)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(mountinfotest.Docker))
	f.Add([]byte(`1 2 0:1 / /\1 rw - x y z`))
	f.Add([]byte("a\u00a0b\u2028c d"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := Parse(string(b))
		if err == nil {
			Undeclared(all, nil)
		}
		if len(all) > bytes.Count(b, []byte("\n"))+1 {
			t.Errorf("%d mounts", len(all))
		}
		// Whatever a directory is called, it is read as that.
		name := "/" + string(b)
		if strings.ContainsRune(name, 0) {
			return
		}
		escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(name)
		all, err = Parse("36 35 98:0 " + escaped + " " + escaped + " rw - ext3 /dev/root rw\n")
		if len(name) < 1<<10 && (err != nil || len(all) != 1 || all[0].Root != name || all[0].Target != name) {
			t.Errorf("%q is read as %+v, %v", name, all, err)
		}
	})
}

func TestUndeclared(t *testing.T) {
	with := func(lines ...string) string { return mountinfotest.Docker + strings.Join(lines, "\n") + "\n" }
	const project = "100 72 254:0 /home/u/p /home/u/p rw,relatime - ext4 /dev/vda rw"
	for _, tt := range []struct {
		name     string
		mounts   string
		declared []spec.Mount
		want     string // a part of the only complaint; "" is none
	}{
		{"the engine's own", mountinfotest.Docker, nil, ""},
		{"declared", with(project), []spec.Mount{{Target: "/home/u/p"}}, ""},
		{"declared, unclean", with(project), []spec.Mount{{Target: "/home/u/p/"}}, ""},
		{"undeclared", with(project), nil, "/home/u/p is not declared"},
		{"missing", mountinfotest.Docker, []spec.Mount{{Target: "/home/u/p"}}, "/home/u/p is not mounted"},
		{"mounted over", with(project, project), []spec.Mount{{Target: "/home/u/p"}}, "mounted over"},
		{"writable", with(project), []spec.Mount{{Target: "/home/u/p", ReadOnly: true}}, "/home/u/p is writable"},
		{"submount", with(project, "101 100 0:90 / /home/u/p/sub rw - tmpfs x rw"), []spec.Mount{{Target: "/home/u/p"}}, "/home/u/p/sub is not declared"},
		{"cgroup 2", with("94 76 0:28 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw"), nil, ""},
		{"cgroup writable", with("94 77 0:28 /docker/x /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu"), nil, "/sys/fs/cgroup/cpu"},
		{"another proc", with("94 73 0:99 / /proc/x ro - proc proc rw"), nil, "/proc/x"},
		{"proc elsewhere", with("94 72 0:42 / /tmp/p ro - proc proc rw"), nil, "/tmp/p"},
		{"a host file below proc", with("94 73 254:0 /etc/shadow /proc/x ro - ext4 /dev/vda rw"), nil, "/proc/x"},
		{"a null device on a host disk", with("94 73 254:0 /null /proc/x ro - ext4 /dev/vda rw"), nil, "/proc/x"},
		{"hosts of somebody's making", strings.ReplaceAll(mountinfotest.Docker, "containers/075e", "volumes/075e"), nil, "/etc/resolv.conf is not declared"},
		{"hosts for hostname", strings.Replace(mountinfotest.Docker, "/hostname /etc/hostname", "/hosts /etc/hostname", 1), nil, "/etc/hostname"},
		{"init writable", strings.Replace(mountinfotest.Docker, "/sbin/docker-init ro", "/sbin/docker-init rw", 1), nil, "docker-init"},
		{"sys writable", strings.Replace(mountinfotest.Docker, "/sys ro", "/sys rw", 1), nil, "/sys is not declared"},
		{"no cover over proc/sys", strings.Replace(mountinfotest.Docker, "52 73 0:42 /sys /proc/sys", "52 73 0:42 /irq /proc/irq", 1), nil, "/proc/sys is not read-only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all, err := Parse(tt.mounts)
			if err != nil {
				t.Fatal(err)
			}
			got := Undeclared(all, tt.declared)
			if tt.name == "hosts of somebody's making" {
				got = got[:1] // all three files
			}
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
