package policy

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// mounting is a policy of these ro mounts, each in quotes.
func mounting(paths ...string) string {
	s := "profile: shell\nmounts:\n  ro:\n"
	for _, p := range paths {
		s += fmt.Sprintf("  - %q\n", p)
	}
	return s
}

// Every row refuses its own path, what is above and, unless only the whole is
// meant, what is below; the neighbour with a longer name is not touched.
func TestEveryGuard(t *testing.T) {
	m := newMachine(t)
	ws := newPlaces(mountTable{}).walls(m.env)
	for _, g := range guards {
		if g.reason == "" || g.reach == 0 {
			t.Errorf("row %q has no reason or no reach", g.path)
		}
		path := m.path(g.path)
		refused := func(p string) string {
			reason, _ := ws.verdict(site{spellings: []string{p}})
			return reason
		}
		if refused(path) == "" {
			t.Errorf("%s can be mounted", g.path)
		}
		if refused(filepath.Dir(path)) == "" {
			t.Errorf("what is above %s can be mounted", g.path)
		}
		if path == "/" {
			continue
		}
		if reason := refused(path + "/x"); g.reach == around && reason == "" {
			t.Errorf("what is below %s can be mounted", g.path)
		} else if g.path == "/tmp" && reason != "" {
			t.Errorf("nothing below %s can be mounted: %s", g.path, reason)
		}
		if reason := refused(path + "-x"); reason != "" && !strings.Contains(reason, "it lies in ") {
			t.Errorf("%s-x cannot be mounted: %s", g.path, reason)
		}
	}
}

// The index finds what a look at every row finds.
func TestVerdictIsThatOfEveryRow(t *testing.T) {
	m := newMachine(t)
	m.env.Own = []string{m.path("~/own")}
	for _, dir := range []string{"~/.ssh/sub", "~/.config/gh/x", "~/.local/share/corral/x", "~/own/x", "@/big"} {
		m.dir(dir)
	}
	m.link("@/big", "~/.aws")
	m.file("@/big/key", "")
	ps := newPlaces(mountTable{})
	ws := ps.walls(m.env)
	byRow := func(s site) (string, bool) {
		for _, w := range ws.rows {
			if slices.Contains(s.spellings, w.path) || slices.Contains(s.spellings, w.real) || s.self != (id{}) && s.self == w.self {
				return w.reason, true
			}
		}
		for _, w := range ws.rows {
			above := s.self != (id{}) && slices.Contains(w.chain, s.self)
			below := w.self != (id{}) && slices.Contains(s.chain, w.self)
			for _, p := range s.spellings {
				above = above || within(p, w.path) || within(p, w.real)
				below = below || within(w.path, p) || within(w.real, p)
			}
			switch {
			case above:
				return fmt.Sprintf("it holds %s (%s)", w.path, w.reason), false
			case below && w.reach == around:
				return fmt.Sprintf("it lies in %s (%s)", w.path, w.reason), false
			}
		}
		return "", false
	}
	paths := []string{"/", "/srv", "/var", "/home", "/tmp/x", m.root, m.path("@/big/key"), m.path("~/own/x"), m.path("~/Projects/p")}
	for _, w := range ws.rows {
		for _, p := range []string{w.path, w.real} {
			paths = append(paths, p, filepath.Dir(p), filepath.Dir(filepath.Dir(p)), filepath.Join(p, "x"), filepath.Join(p, "x", "y"), p+"x")
		}
	}
	free := 0
	for i, p := range paths {
		at, other := ps.at(p), ps.at(paths[(i*7)%len(paths)])
		for _, s := range []site{
			{spellings: []string{p}},
			{spellings: []string{p, at.real}, self: at.self, chain: at.chain()},
			{self: at.self, chain: at.chain()},
			{spellings: []string{p, other.real}, self: other.self, chain: other.chain()},
		} {
			reason, exact := ws.verdict(s)
			if want, wantExact := byRow(s); reason != want || exact != wantExact {
				t.Fatalf("%+v: %q, %t, want %q, %t", s, reason, exact, want, wantExact)
			}
			if reason == "" {
				free++
			}
		}
	}
	if free == 0 || free == 4*len(paths) {
		t.Errorf("%d of %d are free", free, 4*len(paths))
	}
}

func TestGuard(t *testing.T) {
	for _, c := range []struct {
		name, path, want string
		prepare          func(m machine)
	}{
		{"home", "~", "refusing to mount your home directory (@/home/u)", nil},
		{"home with a slash", "~/", "refusing to mount your home directory (@/home/u)", nil},
		{"home written out", "@/home/u", "refusing to mount your home directory (@/home/u)", nil},
		{"home by dots", "~/Projects/..//./", "refusing to mount your home directory (@/home/u)", nil},
		{"home by a link", "~/x", "refusing to mount your home directory (via symlink ~/x)", func(m machine) { m.link("~", "~/x") }},
		{"home by a link on the way", "@/l/u", "refusing to mount your home directory (via symlink @/l/u)", func(m machine) { m.link("@/home", "@/l") }},
		{"home by dots after a link", "~/d/x/..", "refusing to mount your home directory (via symlink ~/d/x/..)", func(m machine) { m.link("~/Projects", "~/d/x") }},
		{"home by the letters only", "~/x/..", "refusing to mount your home directory (via symlink ~/x/..)", func(m machine) { m.dir("~/d/e"); m.link("~/d/e", "~/x") }},
		{"what holds home", "@/home", "refusing to mount @/home: it holds @/home/u (your home directory)", nil},
		{"what holds home by a link", "~/x", "refusing to mount @/home (via symlink ~/x): it holds @/home/u (your home directory)", func(m machine) { m.link("@/home", "~/x") }},
		{"everything", "/", "refusing to mount the whole file system (/)", nil},
		{"everything by a link", "~/x", "refusing to mount the whole file system (via symlink ~/x)", func(m machine) { m.link("/", "~/x") }},
		{"everything by slashes", "//", "refusing to mount the whole file system (/)", nil},

		{"settings", "~/.config/corral", "refusing to mount corral's own settings (@/home/u/.config/corral)", func(m machine) { m.dir("~/.config/corral") }},
		{"state not there yet", "~/.local/share/corral/x", "refusing to mount @/home/u/.local/share/corral/x: it lies in @/home/u/.local/share/corral (corral's own state and build directories)", nil},
		{"what holds state", "~/.local", "refusing to mount @/home/u/.local: it holds @/home/u/.local/share/corral (corral's own state and build directories)", func(m machine) { m.dir("~/.local") }},
		{"state by a link", "~/s", "refusing to mount corral's own state and build directories (via symlink ~/s)", func(m machine) { m.dir("~/.local/share/corral"); m.link("~/.local/share/corral", "~/s") }},
		{"state that is a link itself", "@/big/c", "refusing to mount corral's own state and build directories (@/big/c)", func(m machine) { m.dir("@/big/c"); m.link("@/big/c", "~/.local/share/corral") }},
		{"below a linked parent of nothing yet", "@/cfg/gh", "refusing to mount GitHub credentials (@/cfg/gh)", func(m machine) { m.dir("@/cfg"); m.link("@/cfg", "~/.config") }},

		{"a store", "~/.ssh", "refusing to mount SSH keys (@/home/u/.ssh)", func(m machine) { m.dir("~/.ssh") }},
		{"in a store", "~/.ssh/config", "refusing to mount @/home/u/.ssh/config: it lies in @/home/u/.ssh (SSH keys)", func(m machine) { m.file("~/.ssh/config", "") }},
		{"a store by a link", "~/k", "refusing to mount SSH keys (via symlink ~/k)", func(m machine) { m.dir("~/.ssh"); m.link("~/.ssh", "~/k") }},
		{"in a store by a link", "~/k/id", "refusing to mount @/home/u/.ssh/id (via symlink ~/k/id): it lies in @/home/u/.ssh (SSH keys)", func(m machine) { m.file("~/.ssh/id", ""); m.link("~/.ssh", "~/k") }},
		{"a store by a hard link", "~/n", "refusing to mount passwords of servers (@/home/u/n)", func(m machine) {
			m.file("~/.netrc", "")
			m.must(os.Link(m.path("~/.netrc"), m.path("~/n")))
		}},
		{"in a store by a hard link", "~/n", "mounts.ro[0]: @/home/u/n has 2 names (hard links), and not all of them can be judged | copy it, and mount the copy; or mount its directory", func(m machine) {
			m.file("~/.ssh/id", "")
			m.must(os.Link(m.path("~/.ssh/id"), m.path("~/n")))
		}},
		{"what holds stores", "~/.config", "refusing to mount @/home/u/.config: it holds @/home/u/.config/corral (corral's own settings)", func(m machine) { m.dir("~/.config") }},
		{"beside stores", "~/.config/nvim", "", func(m machine) { m.dir("~/.config/nvim") }},
		{"a longer name", "~/.sshx", "", func(m machine) { m.dir("~/.sshx") }},
		{"root's store", "/root/.ssh/x", "refusing to mount /root/.ssh/x: it lies in /root/.ssh (SSH keys)", nil},

		{"the system", "/etc/ssl", "refusing to mount /etc/ssl: it lies in /etc (the system's configuration)", nil},
		{"what holds the engine", "/var", "refusing to mount /var: it holds /var/run (sockets of the system's services, the engine's among them)", nil},
		{"the system by a link", "~/e", "refusing to mount the system's configuration (via symlink ~/e)", func(m machine) { m.link("/etc", "~/e") }},
		{"processes", "/proc/self", "", nil}, // the message has a number, see below
		{"a place of ours", "/opt/corral/bin", "refusing to mount /opt/corral/bin: it lies in /opt/corral (the place of corral's own programs in a sandbox)", nil},
		{"what holds a place of ours", "/opt", "refusing to mount /opt: it holds /opt/corral (the place of corral's own programs in a sandbox)", nil},
		{"a file of ours", "/etc/hosts", "refusing to mount a file that corral writes in a sandbox (/etc/hosts)", nil},
		{"the verifier", "/usr/local/bin/corral-verify", "refusing to mount the place of corral's own program in a sandbox (/usr/local/bin/corral-verify)", nil},

		{"missing", "~/Projets/typo", "mounts.ro[0]: @/home/u/Projets/typo does not exist | corral creates nothing on the host: make it first, or correct the path", nil},
		{"a dangling link", "~/x", "mounts.ro[0]: @/home/u/x does not exist | corral creates nothing on the host: make it first, or correct the path", func(m machine) { m.link("~/nothing", "~/x") }},
		{"links in a circle", "~/x", "mounts.ro[0]: @/home/u/x: too many links", func(m machine) { m.link("~/x", "~/x") }},
		{"below a file", "~/f/x", "mounts.ro[0]: @/home/u/f/x: not a directory", func(m machine) { m.file("~/f", "") }},
		{"a FIFO", "~/f", "mounts.ro[0]: @/home/u/f is a FIFO | mount a directory or a regular file", func(m machine) { m.must(syscall.Mkfifo(m.path("~/f"), 0o600)) }},
		{"a socket", "~/s", "mounts.ro[0]: @/home/u/s is a socket | mount a directory or a regular file", func(m machine) {
			l, err := net.Listen("unix", m.path("~/s"))
			m.must(err)
			m.t.Cleanup(func() { l.Close() })
		}},
		{"a device by a link", "~/d", "refusing to mount /dev/null (via symlink ~/d): it lies in /dev (the machine's devices)", func(m machine) { m.link("/dev/null", "~/d") }},
		{"a file", "~/f", "", func(m machine) { m.file("~/f", "") }},
		{"any characters", `~/a b:c,d'e"f$g#h/größe`, "", func(m machine) { m.dir(`~/a b:c,d'e"f$g#h/größe`) }},

		{"the project", "~/Projects/p", "the project directory is mounted by itself in run mode, read and write | remove it", nil},
		{"the project by a link", "~/q/", "the project directory is mounted by itself in run mode, read and write | remove it", func(m machine) { m.link("~/Projects/p", "~/q") }},
		{"in the project", "~/Projects/p/sub", "~/Projects/p/sub lies in the project directory, which is mounted by itself in run mode", func(m machine) { m.dir("~/Projects/p/sub") }},
		{"around the project", "~/Projects", "~/Projects holds the project directory, which is mounted by itself in run mode", nil},
		{"beside the project", "~/Projects/pp", "", func(m machine) { m.dir("~/Projects/pp") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			if c.prepare != nil {
				c.prepare(m)
			}
			_, err := m.load(mounting(m.path(c.path[:1]) + c.path[1:]))
			if strings.HasPrefix(c.path, "~") {
				_, err = m.load(mounting(c.path))
			}
			got := m.complaints(err)
			if c.name == "processes" {
				if !strings.Contains(got, "it lies in /proc (the kernel's processes and settings)") {
					t.Error(got)
				}
				return
			}
			want := c.want
			if want != "" {
				want = "corral.yaml:4:5: " + want
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestOverlaps(t *testing.T) {
	for _, c := range []struct{ name, mounts, want string }{
		{"apart", "{rw: [~/a, ~/ab], ro: [~/c]}", ""},
		{"twice", "{rw: [~/a, ~/a/]}", "corral.yaml:2:20: ~/a/ is listed already, at corral.yaml:2:15 | keep one of the two"},
		{"rw and ro", "{rw: [~/a], ro: [~/a]}", "corral.yaml:2:26: ~/a is listed already, at corral.yaml:2:15 | keep one of the two"},
		{"by a link", "{rw: [~/a], ro: [~/l]}", "corral.yaml:2:26: ~/l is listed already, at corral.yaml:2:15 | keep one of the two"},
		{"ro in rw", "{rw: [~/a], ro: [~/a/sub]}", "corral.yaml:2:26: ~/a/sub lies in ~/a, listed at corral.yaml:2:15 | mounts may not overlap"},
		{"rw in ro", "{ro: [~/a], rw: [~/a/sub]}", "corral.yaml:2:26: ~/a/sub lies in ~/a, listed at corral.yaml:2:15 | mounts may not overlap"},
		{"around", "{rw: [~/a/sub], ro: [~/a]}", "corral.yaml:2:30: ~/a holds ~/a/sub, listed at corral.yaml:2:15 | mounts may not overlap"},
		{"a refused one does not count", "{rw: [~/, ~/a]}", "corral.yaml:2:15: refusing to mount your home directory (@/home/u)"},
	} {
		m := newMachine(t)
		for _, dir := range []string{"~/a/sub", "~/ab", "~/c"} {
			m.dir(dir)
		}
		m.link("~/a", "~/l")
		_, err := m.load("profile: shell\nmounts: " + c.mounts + "\n")
		if got := m.complaints(err); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestProjectDirectory(t *testing.T) {
	const hint = " | put the policy into the directory of one project"
	for _, c := range []struct{ dir, run, daemon string }{
		{"~/Projects/p", "", ""},
		{"~", "the project directory is your home directory (@/home/u)" + hint, "the project directory is your home directory (@/home/u)" + hint},
		{"@/home", "the project directory is @/home: it holds @/home/u (your home directory)" + hint, "the project directory is @/home: it holds @/home/u (your home directory)" + hint},
		{"/", "the project directory is the whole file system (/)" + hint, "the project directory is the whole file system (/)" + hint},
		{"@/alias", "the project directory is your home directory (@/home/u)" + hint, "the project directory is your home directory (@/home/u)" + hint},
		{"~/.config", "the project directory is @/home/u/.config: it holds @/home/u/.config/corral (corral's own settings)" + hint, ""},
		{"~/.ssh/x", "the project directory is @/home/u/.ssh/x: it lies in @/home/u/.ssh (SSH keys)" + hint, ""},
		{"~/Projects/data", "the project directory is @/home/u/Projects/data: it holds @/home/u/Projects/data/xdg/corral (corral's own state and build directories)" + hint, ""},
		{"~/own", "the project directory is a directory of corral's own (@/home/u/own)" + hint, ""},
	} {
		for mode, want := range map[string]string{"run": c.run, "daemon": c.daemon} {
			m := newMachine(t)
			m.link("~", "@/alias")
			m.env.DataHome = m.path("~/Projects/data/xdg")
			m.env.Own = []string{m.path("~/own")}
			if c.dir != "/" {
				m.dir(c.dir)
			}
			m.env.Project = m.path(c.dir)
			_, err := m.load("profile: shell\nmode: " + mode + "\n")
			if want != "" {
				want = "corral.yaml: " + want
			}
			if got := m.complaints(err); got != want {
				t.Errorf("%s, %s\ngot  %s\nwant %s", c.dir, mode, got, want)
			}
		}
	}
}

// All at once: what is wrong with the text and what is wrong with the machine.
func TestEverythingAtOnce(t *testing.T) {
	m := newMachine(t)
	_, err := m.load("profile: shel\nmounts:\n  rw: [~/, x]\n  ro:\n  - ~/none\n  - /etc\negress: {allow: [1.2.3.4], alow: []}\n")
	var b bytes.Buffer
	for line := range strings.Lines(m.complaints(err)) {
		b.WriteString(strings.SplitN(line, ": ", 2)[0] + " ")
	}
	if got := strings.TrimSpace(b.String()); got != "corral.yaml:1:10 corral.yaml:3:8 corral.yaml:3:12 corral.yaml:5:5 corral.yaml:6:5 corral.yaml:7:18 corral.yaml:7:28" {
		t.Errorf("%s\n%v", got, err)
	}
}

// A bind mount is the same inode under another name, and comes along with
// whatever holds it.
func TestBindMounts(t *testing.T) {
	testenv.Require(t, "netns")
	m := newMachine(t)
	for _, dir := range []string{"~/.ssh/sub", "~/code/in", "@/b/ssh", "@/b/home", "@/b/parent", "@/b/state", "@/holds/k", "@/holds/s p", "@/fine/w", "~/.local/share/corral"} {
		m.dir(dir)
	}
	done := make(chan struct{})
	go func() { // the thread keeps its own mounts and dies with the goroutine
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			t.Error(err)
			return
		}
		bind := func(from, to string) {
			if err := unix.Mount(m.path(from), m.path(to), "", unix.MS_BIND, ""); err != nil {
				t.Error(err)
			}
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Error(err)
			return
		}
		bind("~/.ssh", "@/b/ssh")
		bind("~", "@/b/home")
		bind("@/home", "@/b/parent")
		bind("~/.local/share/corral", "@/b/state")
		bind("~/.ssh", "@/holds/k")
		bind("~/code", "@/fine/w")
		for _, c := range []struct{ path, want string }{
			{"@/b/ssh", "refusing to mount SSH keys (@/b/ssh)"},
			{"@/b/ssh/sub", "refusing to mount @/b/ssh/sub: it lies in @/home/u/.ssh (SSH keys)"},
			{"@/b/home", "refusing to mount your home directory (@/b/home)"},
			{"@/b/home/.ssh", "refusing to mount SSH keys (@/b/home/.ssh)"},
			{"@/b/home/code/in", ""},
			{"@/b/parent", "refusing to mount @/b/parent: it holds @/home/u (your home directory)"},
			{"@/b/state", "refusing to mount corral's own state and build directories (@/b/state)"},
			{"@/holds", "refusing to mount @/holds: @/holds/k is mounted in it: SSH keys"},
			{"@/fine", ""},
		} {
			_, err := m.load(mounting(strings.ReplaceAll(c.path, "@", m.root)))
			want := c.want
			if want != "" {
				want = "corral.yaml:4:5: " + want
			}
			if got := m.complaints(err); got != want {
				t.Errorf("%s\ngot  %s\nwant %s", c.path, got, want)
			}
		}
	}()
	<-done
}

func TestMountPointsAreUnescaped(t *testing.T) {
	got, err := parseMounts("22 1 0:21 / /a\\040b\\011\\012\\134c rw,nosuid shared:7 - proc proc rw\n23 1 0:22 /x / rw - ext4 /dev/x rw\n")
	if err != nil || len(got.points) != 2 || got.points[0] != "/" || got.points[1] != "/a b\t\n\\c" {
		t.Errorf("%q, %v", got.points, err)
	}
}

func TestMountTable(t *testing.T) {
	// As btrfs, a disk, a bind mount of a part, and one on top of another have it.
	table, err := parseMounts(`1 0 0:30 /@ / rw - btrfs /dev/a rw
2 1 0:30 /@home /home rw - btrfs /dev/a rw
3 1 8:1 / /mnt/disk rw - ext4 /dev/b rw
4 1 8:1 /photos /srv/photos rw - ext4 /dev/b rw
5 1 0:30 /@home/u/x /srv/hidden rw - btrfs /dev/a rw
6 1 8:1 /photos/old /srv/hidden rw - ext4 /dev/b rw
`)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/home/u/x":             "",
		"/home":                 "",
		"/mnt/disk/photos/a":    "/srv/photos/a",
		"/mnt/disk/photos":      "/srv/photos",
		"/mnt/disk/photosx":     "",
		"/mnt/disk":             "",
		"/srv/photos/old/a":     "/mnt/disk/photos/old/a /srv/hidden/a",
		"/srv/hidden/a":         "/mnt/disk/photos/old/a /srv/photos/old/a",
		"/srv/photos/oldest":    "/mnt/disk/photos/oldest",
		"/srv/photos":           "/mnt/disk/photos",
		"/usr/x":                "",
		"/mnt/disk/photos/old/": "/srv/hidden /srv/photos/old",
	} {
		if got := strings.Join(table.others(filepath.Clean(path)), " "); got != want {
			t.Errorf("others(%s) = %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"/srv": "/srv/hidden /srv/photos", "/srv/photos": "", "/mnt": "/mnt/disk", "/mnt/dis": "", "/home": "",
	} {
		if got := strings.Join(table.below(path), " "); got != want {
			t.Errorf("below(%s) = %s, want %s", path, got, want)
		}
	}
	for _, bad := range []string{"1 0 0:1 /\n", "\n"} {
		if _, err := parseMounts(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
