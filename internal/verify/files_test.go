package verify

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo/mountinfotest"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

const unixHeader = "Num       RefCount Protocol Flags    Type St Inode Path\n"

func TestNoDockerSocket(t *testing.T) {
	const p = "/var/run/docker.sock"
	c := spec.Check{Name: "no-docker-socket:" + p}
	files := func(mounts, sockets string) map[string]string {
		return map[string]string{"/proc/self/mountinfo": mountinfotest.Docker + mounts, "/proc/net/unix": unixHeader + sockets}
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
	for mounts, result := range map[string]spec.Result{mountinfotest.Docker: spec.OK, mountinfotest.Docker + mounted: spec.Failed, "garbage": spec.Failed} {
		want(t, tree(t, map[string]string{"/home/agent/.config/gh/": "", "/proc/self/mountinfo": mounts}), c, result, "")
	}
	want(t, tree(t, map[string]string{"/home/agent/.config/gh/": ""}), c, spec.Failed, "/home/agent/.config/gh exists")
	// A sandbox's own state is there because it was declared.
	state := spec.Check{Name: c.Name, Paths: c.Paths, Mount: []spec.Mount{{Target: "/home/agent/.config/gh"}}}
	want(t, tree(t, map[string]string{"/home/agent/.config/gh/": "", "/proc/self/mountinfo": mountinfotest.Docker + mounted}), state, spec.OK, "")
	want(t, tree(t, map[string]string{"/home/u/.config/gh/": "", "/proc/self/mountinfo": mountinfotest.Docker + mounted}), state, spec.Failed, "/home/u/.config/gh exists")
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
	want(t, tree(t, map[string]string{"/notes/": "", "/proc/self/mountinfo": mountinfotest.Docker}), c, spec.Failed, "/ is mounted writable")
	// The table says read-only and the kernel lets it be written: behaviour decides.
	want(t, tree(t, map[string]string{"/notes/": "", "/proc/self/mountinfo": mountinfotest.Docker + line}), c, spec.Failed, "/notes can be written")
	want(t, tree(t, map[string]string{"/proc/self/mountinfo": mountinfotest.Docker + line}), c, spec.Untold, "no such file")
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

// An engine's socket that answers is found wherever it lies in what is mounted, by the
// names of all engines. One that nobody listens on any more, and one of another name,
// is none.
func TestEngineSockets(t *testing.T) {
	mounts := mountinfotest.Docker + "100 72 254:0 /p /p rw,relatime - ext4 /dev/vda rw\n"
	c := spec.Check{Name: "no-docker-socket:/run/docker.sock"}
	const dead = "nobody"
	for _, tt := range []struct {
		name, socket string
		answer       string
		result       spec.Result
	}{
		{"in a project", "/p/docker.sock", "", spec.Failed},
		{"deep in one", "/p/a/b/buildkitd.sock", "", spec.Failed},
		{"of nobody living", "/p/docker.sock", dead, spec.OK},
		{"of another name, silent", "/p/x.sock", "", spec.OK},
		{"of another name, not an engine's", "/p/x.sock", "HTTP/1.1 404 Not Found\r\nServer: nginx\r\n\r\nApi-Versions: 1", spec.OK},
		{"renamed", "/p/a/x", "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nDocker-Experimental: false\r\n\r\nOK", spec.Failed},
		{"renamed, one that refuses", "/p/a/x", "HTTP/1.1 403 Forbidden\r\nServer: Docker/20.10.24 (linux)\r\n\r\n", spec.Failed},
		{"in no mount", "/q/docker.sock", "", spec.OK},
	} {
		e := tree(t, map[string]string{"/proc/self/mountinfo": mounts, "/proc/net/unix": unixHeader, "/p/a/b/": "", "/q/": ""})
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: e.path(tt.socket)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		var answering sync.WaitGroup
		if tt.answer == dead {
			l.Close()
		} else {
			answering.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					if tt.answer != "" {
						c.Read(make([]byte, 1024)) // the request
						io.WriteString(c, tt.answer)
						c.Close()
					} else {
						t.Cleanup(func() { c.Close() })
					}
				}
			})
		}
		detail := ""
		if tt.result == spec.Failed {
			detail = tt.socket + ": an engine's socket, and it answers"
		}
		want(t, e, c, tt.result, detail)
		l.Close()
		answering.Wait()
	}
	// How far it looked is told.
	e := tree(t, map[string]string{"/proc/self/mountinfo": mounts, "/proc/net/unix": unixHeader, "/p/": ""})
	for i := range socketsAmong + 1 {
		if err := os.Symlink("x", e.path(fmt.Sprintf("/p/%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	want(t, e, c, spec.OK, "not everything in the mounts was looked at: after 20000 names")
	if err := os.Remove(e.path("/p/0")); err != nil {
		t.Fatal(err)
	}
	e.live = e.engineSockets
	if f := examine(t.Context(), c, e); f.result != spec.OK {
		t.Errorf("%+v", f)
	}
}

// The checker itself can be run and not read: nobody traces it from its first
// instruction. A directory that may be entered and not listed hides what it holds.
func TestRootOwnedByAnOrdinaryUser(t *testing.T) {
	testenv.Require(t, "netns") // root
	e := tree(t, map[string]string{"/opt/corral/bin/corral-verify": "x", "/etc/closed/": "", "/etc/shut/": ""})
	for p, mode := range map[string]os.FileMode{"/opt/corral/bin/corral-verify": 0o711, "/etc/closed": 0o711, "/etc/shut": 0o700} {
		if err := os.Chmod(e.path(p), mode); err != nil {
			t.Fatal(err)
		}
	}
	for dir := e.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		path   string
		mode   os.FileMode
		result string
	}{
		{"/opt/corral/bin/corral-verify", 0o711, `"ok" ""`},
		{"/opt/corral/bin/corral-verify", 0o755, `"failed" "/opt/corral/bin/corral-verify can be read, so that whoever runs it may trace it"`},
		{"/etc/closed", 0o711, `"" "open `},
		{"/etc/closed", 0o700, `"ok" ""`},
	} {
		if err := os.Chmod(e.path(tt.path), tt.mode); err != nil {
			t.Fatal(err)
		}
		if out := ordinarily(t, e, "root-owned:"+tt.path); !strings.HasPrefix(out, tt.result) {
			t.Errorf("%s, %v: %s", tt.path, tt.mode, out)
		}
	}
}

const ordinary = 12398

// ordinarily makes a check as an ordinary user.
func ordinarily(t *testing.T, e *env, check string) string {
	t.Helper()
	cmd := exec.Command("setpriv", "--reuid", fmt.Sprint(ordinary), "--regid", fmt.Sprint(ordinary), "--clear-groups", os.Args[0])
	cmd.Env = append(os.Environ(), asOwner+"="+check, "ROOT="+e.root)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// Who owns a directory can close it over what it holds, and open it again.
func TestEngineSocketBehindAClosedDirectory(t *testing.T) {
	testenv.Require(t, "netns") // root
	e := tree(t, map[string]string{"/proc/self/mountinfo": mountinfotest.Docker + "100 72 254:0 /p /p rw,relatime - ext4 /dev/vda rw\n", "/proc/net/unix": unixHeader,
		"/p/mine/": "", "/p/theirs/": ""})
	if err := os.Chown(e.path("/p/mine"), ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
	for dir := e.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		mine, theirs os.FileMode
		result       string
	}{
		{0o700, 0o755, `"ok" ""`},
		{0o700, 0o700, `"ok" ""`}, // it sees nothing there either
		{0o300, 0o755, `"" "/p/mine is this user's, and closed to it`},
		{0, 0o755, `"" "/p/mine is this user's, and closed to it`},
	} {
		if err := errors.Join(os.Chmod(e.path("/p/mine"), tt.mine), os.Chmod(e.path("/p/theirs"), tt.theirs)); err != nil {
			t.Fatal(err)
		}
		if out := ordinarily(t, e, "no-docker-socket:/run/docker.sock"); !strings.HasPrefix(out, tt.result) {
			t.Errorf("%v %v: %s", tt.mine, tt.theirs, out)
		}
	}
}

// However who writes in a mount closes, calls or buries an engine's socket: that it
// answers is told, or it cannot be told.
func TestEngineSocketHidden(t *testing.T) {
	testenv.Require(t, "netns") // root
	const head = "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n\r\nOK"
	for _, tt := range []struct {
		name   string
		hide   func(dir string) // what the agent does, in a directory of its own with the socket in it
		result string
	}{
		{"its own name", func(string) {}, `"failed" "/p/docker.sock: an engine's socket, and it answers"`},
		{"a name too long for an address", func(dir string) { rename(t, dir+"/docker.sock", dir+"/"+strings.Repeat("7", 200)) }, `"failed" "/p/777`},
		{"closed to its owner", func(dir string) {
			if err := os.Chmod(dir+"/docker.sock", 0); err != nil {
				t.Fatal(err)
			}
		}, `"" "/p/docker.sock is this user's, and closed to it`},
		{"of somebody else's, closed", func(dir string) {
			if err := errors.Join(os.Chown(dir+"/docker.sock", 0, 0), os.Chmod(dir+"/docker.sock", 0o600)); err != nil {
				t.Fatal(err)
			}
		}, `"ok" ""`},
		{"deeper than a path can say", func(dir string) { bury(t, dir, "docker.sock", ordinary) }, `"" "/p/ddd`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, map[string]string{"/proc/self/mountinfo": mountinfotest.Docker + "100 72 254:0 /p /p rw,relatime - ext4 /dev/vda rw\n", "/proc/net/unix": unixHeader, "/p/": ""})
			for dir := e.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			socket := e.path("/p/docker.sock")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			defer l.Close()
			if err := errors.Join(os.Chown(socket, ordinary, ordinary), os.Chmod(socket, 0o700)); err != nil {
				t.Fatal(err)
			}
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					c.Read(make([]byte, 1024)) // the request
					io.WriteString(c, head)
					c.Close()
				}
			}()
			tt.hide(e.path("/p"))
			if out := ordinarily(t, e, "no-docker-socket:/run/docker.sock"); !strings.HasPrefix(out, tt.result) {
				t.Errorf("%s, not %s", out, tt.result)
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// bury moves what is in a directory below more directories than a path can name; they
// are taken away at the end.
func bury(t *testing.T, dir, name string, uid int) {
	t.Helper()
	const deep = 30
	step := strings.Repeat("d", 200)
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	top := at
	for range deep {
		err := unix.Mkdirat(at, step, 0o755)
		next, openErr := unix.Openat(at, step, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err := errors.Join(err, openErr, unix.Fchown(next, uid, uid)); err != nil {
			t.Fatal(err)
		}
		if at != top {
			unix.Close(at)
		}
		at = next
	}
	if name != "" {
		if err := unix.Renameat(top, name, at, name); err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(at)
	unix.Close(top)
	t.Cleanup(func() {
		if out, err := exec.Command("rm", "-rf", filepath.Join(dir, step)).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}
