package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/corral-sandbox/corral/internal/mountinfo/mountinfotest"
	"github.com/corral-sandbox/corral/internal/spec"
)

// someoneElse is a user that the files of these tests do not belong to.
func someoneElse() string {
	return statusFile(os.Getuid()+1, os.Getuid()+1, "", noCaps, 1, 2)
}

func TestHostHomeOnlyMounts(t *testing.T) {
	const project = "100 72 254:0 /home/u/p /home/u/p rw,relatime - ext4 /dev/vda rw\n"
	declared := []spec.Mount{{Target: "/tmp"}, {Target: "/home/u/p"}, {Target: "/home/u/deep/er/q"}}
	for _, tt := range []struct {
		name   string
		homes  []string
		files  []string
		mounts string
		result spec.Result
		detail string
	}{
		{"no home inside", []string{"/home/u"}, nil, "", spec.OK, ""},
		{"only what leads to mounts", []string{"/home/u"}, []string{"/home/u/p/", "/home/u/deep/er/q/"}, project, spec.OK, ""},
		{"what is in a mount is granted", []string{"/home/u"}, []string{"/home/u/p/.ssh/id"}, project, spec.OK, ""},
		{"a file", []string{"/home/u"}, []string{"/home/u/p/", "/home/u/.bashrc"}, project, spec.Failed, "/home/u/.bashrc is there"},
		{"a directory that leads nowhere", []string{"/home/u"}, []string{"/home/u/other/"}, "", spec.Failed, "/home/u/other is there"},
		{"beside what leads on", []string{"/home/u"}, []string{"/home/u/deep/er/q/", "/home/u/deep/er/x"}, "", spec.Failed, "/home/u/deep/er/x is there"},
		{"a file in the place of a directory that leads on", []string{"/home/u"}, []string{"/home/u/deep"}, "", spec.Failed, "/home/u/deep is there"},
		{"a name that begins as a mount's", []string{"/home/u"}, []string{"/home/u/pp/"}, "", spec.Failed, "/home/u/pp is there"},
		{"the home is a file", []string{"/home/u"}, []string{"/home/u"}, "", spec.Failed, "/home/u is there"},
		{"the second home", []string{"/home/u", "/srv/u"}, []string{"/srv/u/x"}, "", spec.Failed, "/srv/u/x is there"},
		{"an undeclared mount", []string{"/home/u"}, nil, "100 72 254:0 /x /home/u/.ssh ro - ext4 /dev/vda rw\n", spec.Failed, "/home/u/.ssh is mounted"},
		{"the whole home mounted", []string{"/home/u"}, nil, "100 72 254:0 /x /home/u ro - ext4 /dev/vda rw\n", spec.Failed, "/home/u is mounted"},

		{"the host's agent has the same home", []string{"/home/agent"}, []string{"/home/agent/.bashrc"}, "", spec.OK, ""},
		{"and something is mounted there", []string{"/home/agent"}, nil, "100 72 254:0 /x /home/agent/.ssh ro - ext4 /dev/vda rw\n", spec.Failed, "/home/agent/.ssh is mounted"},
		{"a home in it", []string{"/home/agent/u"}, []string{"/home/agent/u/x"}, "", spec.OK, ""},
		{"a home above it", []string{"/home"}, []string{"/home/agent/.bashrc"}, "", spec.OK, ""},
		{"a home above it with more", []string{"/home"}, []string{"/home/agent/.bashrc", "/home/w/"}, "", spec.Failed, "/home/w is there"},
		{"root's home", []string{"/root"}, []string{"/root/.bashrc"}, "", spec.OK, ""},
		{"root's home with a mount", []string{"/root"}, nil, "100 72 254:0 /x /root/.aws ro - ext4 /dev/vda rw\n", spec.Failed, "/root/.aws is mounted"},
		{"the root", []string{"/"}, []string{"/etc/passwd"}, project, spec.OK, ""},
		{"the root and another", []string{"/", "/home/u"}, []string{"/home/u/x"}, "", spec.Failed, "/home/u/x is there"},
		{"not a path", []string{"home"}, nil, "", spec.Untold, `a home is "home"`},
		{"no home", nil, nil, "", spec.Untold, "no homes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"/proc/self/mountinfo": mountinfotest.Docker + tt.mounts, "/proc/self/status": someoneElse()}
			for _, f := range tt.files {
				files[f] = ""
			}
			want(t, tree(t, files), spec.Check{Name: "host-home-only-mounts", Paths: tt.homes, Mount: declared}, tt.result, tt.detail)
		})
	}
}

// Without a home of its own the agent could not be told from the host.
func TestHostHomeWithoutOwn(t *testing.T) {
	for _, home := range []string{"", "agent", "/", "//"} {
		e := tree(t, map[string]string{"/proc/self/mountinfo": mountinfotest.Docker, "/proc/self/status": someoneElse(), "/home/u/x": ""})
		e.home = home
		want(t, e, spec.Check{Name: "host-home-only-mounts", Paths: []string{"/home/u"}}, spec.Untold, "HOME")
	}
}

// What the agent made itself in the container's own layer is nothing of the
// host's; the same file in a mount is.
func TestHostHomeSelfMade(t *testing.T) {
	c := spec.Check{Name: "host-home-only-mounts", Paths: []string{"/home/u"}}
	own := statusFile(os.Getuid(), os.Getgid(), "", noCaps, 1, 2)
	files := map[string]string{"/proc/self/mountinfo": mountinfotest.Docker, "/proc/self/status": own, "/home/u/x": ""}
	want(t, tree(t, files), c, spec.OK, "")
	files["/proc/self/mountinfo"] += "100 72 254:0 /home /home ro - ext4 /dev/vda rw\n"
	want(t, tree(t, files), c, spec.Failed, "/home/u/x is there")
}

// A look that was cut short has seen nothing.
func TestHostHomeIsBounded(t *testing.T) {
	e := tree(t, map[string]string{"/proc/self/mountinfo": mountinfotest.Docker, "/proc/self/status": statusFile(os.Getuid(), os.Getgid(), "", noCaps, 1, 2), "/home/u/": ""})
	for i := range mostHomeEntries + 1 {
		if i == mostHomeEntries {
			want(t, e, spec.Check{Name: "host-home-only-mounts", Paths: []string{"/home/u"}}, spec.OK, "")
		}
		if err := os.WriteFile(filepath.Join(e.root, "home/u", fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want(t, e, spec.Check{Name: "host-home-only-mounts", Paths: []string{"/home/u"}}, spec.Untold, "too much")
}
