package verify

import (
	"net"
	"os"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

const unixHeader = "Num       RefCount Protocol Flags    Type St Inode Path\n"

func TestNoDockerSocket(t *testing.T) {
	const p = "/var/run/docker.sock"
	c := spec.Check{Name: "no-docker-socket:" + p}
	files := func(mounts, sockets string) map[string]string {
		return map[string]string{"/proc/self/mountinfo": dockerMounts + mounts, "/proc/net/unix": unixHeader + sockets}
	}
	want(t, tree(t, files("", "")), c, spec.OK, "")
	want(t, tree(t, files("100 72 0:25 /docker.sock /tmp/d ro - tmpfs tmpfs rw\n", "")), c, spec.Failed, "mounted at /tmp/d")
	want(t, tree(t, files("", "0000: 00000002 00000000 00010000 0001 01 123 /elsewhere/docker.sock\n")), c, spec.Failed, "/elsewhere/docker.sock")
	e := tree(t, files("", ""))
	if err := os.MkdirAll(e.path("/var/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", e.path(p))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want(t, e, c, spec.Failed, p+" exists")
	want(t, e, spec.Check{Name: "no-docker-socket"}, spec.Untold, "no path")
}

func TestNoCredentialDir(t *testing.T) {
	c := spec.Check{Name: "no-credential-dir:.config/gh", Paths: []string{"/home/u"}}
	want(t, tree(t, map[string]string{"/home/u/.config/x": ""}), c, spec.OK, "")
	want(t, tree(t, map[string]string{"/home/u/.config/gh/hosts.yml": ""}), c, spec.Failed, "/home/u/.config/gh exists")
	const mounted = "100 72 254:0 /gh /home/agent/.config/gh ro,relatime - ext4 /dev/vda rw\n"
	for mounts, result := range map[string]spec.Result{dockerMounts: spec.OK, dockerMounts + mounted: spec.Failed, "garbage": spec.Failed} {
		want(t, tree(t, map[string]string{"/home/agent/.config/gh/": "", "/proc/self/mountinfo": mounts}), c, result, "")
	}
	want(t, tree(t, map[string]string{"/home/agent/.config/gh/": ""}), c, spec.Failed, "/home/agent/.config/gh exists")
	// A sandbox's own state is there because it was declared.
	state := spec.Check{Name: c.Name, Paths: c.Paths, Mount: []spec.Mount{{Target: "/home/agent/.config/gh"}}}
	want(t, tree(t, map[string]string{"/home/agent/.config/gh/": "", "/proc/self/mountinfo": dockerMounts + mounted}), state, spec.OK, "")
	want(t, tree(t, map[string]string{"/home/u/.config/gh/": "", "/proc/self/mountinfo": dockerMounts + mounted}), state, spec.Failed, "/home/u/.config/gh exists")
	e := tree(t, nil)
	e.home = ""
	want(t, e, c, spec.Untold, "HOME")
}

// Who owns a directory on the way can close it before a check and open it
// afterwards: what cannot be seen there is not known to be absent.
func TestHides(t *testing.T) {
	e := tree(t, map[string]string{"/home/agent/.config/": ""})
	if !e.hides("/home/agent/.ssh") {
		t.Error("a directory of our own hides nothing")
	}
	if e.hides("/gone/.ssh") {
		t.Error("a directory that is not there hides something")
	}
}

func TestWritableLeavesNothing(t *testing.T) {
	e := tree(t, map[string]string{"/dir/": "", "/file": ""})
	want(t, e, spec.Check{Name: "rw-writable:/dir"}, spec.OK, "")
	want(t, e, spec.Check{Name: "rw-writable:x", Path: "/file"}, spec.OK, "")
	want(t, e, spec.Check{Name: "rw-writable:/gone"}, spec.Failed, "no such file")
	want(t, e, spec.Check{Name: "rw-writable"}, spec.Untold, "no path")
	left, err := os.ReadDir(e.path("/dir"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestRoUnwritable(t *testing.T) {
	const line = "100 72 254:0 /notes /notes ro,relatime - ext4 /dev/vda rw\n"
	c := spec.Check{Name: "ro-unwritable:/notes"}
	want(t, tree(t, map[string]string{"/notes/": "", "/proc/self/mountinfo": dockerMounts}), c, spec.Failed, "/ is mounted writable")
	// The table says read-only and the kernel lets it be written: behaviour decides.
	want(t, tree(t, map[string]string{"/notes/": "", "/proc/self/mountinfo": dockerMounts + line}), c, spec.Failed, "/notes can be written")
	want(t, tree(t, map[string]string{"/proc/self/mountinfo": dockerMounts + line}), c, spec.Untold, "no such file")
}

func TestPolicyInputsAbsent(t *testing.T) {
	e := tree(t, map[string]string{"/state/x": ""})
	want(t, e, spec.Check{Name: "policy-inputs-absent", Paths: []string{"/build", "/state/x/y"}}, spec.OK, "")
	want(t, e, spec.Check{Name: "policy-inputs-absent", Paths: []string{"/build", "/state/x"}}, spec.Failed, "/state/x is visible")
}

func TestRootOwned(t *testing.T) {
	e := tree(t, map[string]string{"/etc/corral/README": ""})
	// Whoever runs this test can write what it made.
	want(t, e, spec.Check{Name: "root-owned:/etc/corral/README"}, spec.Failed, "/etc/corral/README")
	want(t, e, spec.Check{Name: "root-owned:/etc/none"}, spec.Untold, "no such file")
}
