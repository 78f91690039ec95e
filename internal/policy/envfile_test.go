package policy

import (
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

func TestEnvFile(t *testing.T) {
	const (
		key    = "secrets.env_file: "
		out    = " | keep it outside, like ~/.config/corral/p.env"
		inProj = " lies in the project directory, which is mounted by itself in run mode" + out
		lies   = " lies in ~/m, mounted at corral.yaml:3:15" + out
	)
	for _, c := range []struct {
		name, path, want string
		prepare          func(m machine)
	}{
		{"as documented", "~/.config/corral/p.env", "", func(m machine) { m.file("~/.config/corral/p.env", "") }},
		{"any characters", "~/a b:c,d'e$f#g/größe", "", func(m machine) { m.file("~/a b:c,d'e$f#g/größe", "") }},
		{"in a credential store", "~/.netrc", "", func(m machine) { m.file("~/.netrc", "") }},
		{"below a credential store", "~/.aws/x", "", func(m machine) { m.file("~/.aws/x", "") }},
		{"by a link", "~/l", "", func(m machine) { m.file("~/s/x", ""); m.link("~/s/x", "~/l") }},
		{"by dots after a link", "~/d/../x", "", func(m machine) { m.file("~/s/x", ""); m.dir("~/s/t"); m.link("~/s/t", "~/d") }},
		{"beside a mount", "~/mm/x", "", func(m machine) { m.file("~/mm/x", "") }},
		{"beside the project", "~/Projects/p.env", "", func(m machine) { m.file("~/Projects/p.env", "") }},

		{"missing", "~/x", "@/home/u/x does not exist | " + makeFirst, nil},
		{"a dangling link", "~/l", "@/home/u/l does not exist | " + makeFirst, func(m machine) { m.link("~/x", "~/l") }},
		{"links in a circle", "~/l", "@/home/u/l: too many links", func(m machine) { m.link("~/l", "~/l") }},
		{"below a file", "~/f/x", "@/home/u/f/x: not a directory", func(m machine) { m.file("~/f", "") }},
		{"a directory", "~/d/", "@/home/u/d is a directory | name a regular file of lines like KEY=value", func(m machine) { m.dir("~/d") }},
		{"home", "~", "@/home/u is a directory | name a regular file of lines like KEY=value", nil},
		{"a FIFO that nobody writes", "~/q", "@/home/u/q is a FIFO | name a regular file of lines like KEY=value", func(m machine) { m.must(syscall.Mkfifo(m.path("~/q"), 0o600)) }},
		{"a FIFO by a link", "~/l", "@/home/u/l is a FIFO | name a regular file of lines like KEY=value", func(m machine) { m.must(syscall.Mkfifo(m.path("~/q"), 0o600)); m.link("~/q", "~/l") }},
		{"a socket", "~/s", "@/home/u/s is a socket | name a regular file of lines like KEY=value", func(m machine) {
			l, err := net.Listen("unix", m.path("~/s"))
			m.must(err)
			m.t.Cleanup(func() { l.Close() })
		}},
		{"a device", "/dev/null", "/dev/null is a device | name a regular file of lines like KEY=value", nil},

		{"writable by all", "~/x", "@/home/u/x: the file is writable by others (mode 0602) | chmod go-w \"@/home/u/x\"", func(m machine) { m.file("~/x", ""); m.must(os.Chmod(m.path("~/x"), 0o602)) }},
		{"writable by all through a link", "~/l", "@/home/u/l: the file is writable by others (mode 0602) | chmod go-w \"@/home/u/x\"", func(m machine) {
			m.file("~/x", "")
			m.must(os.Chmod(m.path("~/x"), 0o602))
			m.link("~/x", "~/l")
		}},
		{"in a directory writable by all", "~/d/x", "@/home/u/d/x: its directory @/home/u/d is writable by others (mode 0777) | chmod go-w \"@/home/u/d\"", func(m machine) {
			m.file("~/d/x", "")
			m.must(os.Chmod(m.path("~/d"), 0o777|os.ModeSticky))
		}},
		{"with a second name", "~/x", "@/home/u/x has 2 names (hard links), one of which a sandbox may see | copy it, and name the copy", func(m machine) {
			m.file("~/Projects/p/x", "")
			m.must(os.Link(m.path("~/Projects/p/x"), m.path("~/x")))
		}},

		{"in the project", "~/Projects/p/.env", "@/home/u/Projects/p/.env" + inProj, func(m machine) { m.file("~/Projects/p/.env", "") }},
		{"in the project by a link", "~/l", "@/home/u/l" + inProj, func(m machine) { m.file("~/Projects/p/.env", ""); m.link("~/Projects/p/.env", "~/l") }},
		{"a link in the project", "~/Projects/p/.env", "@/home/u/Projects/p/.env" + inProj, func(m machine) { m.file("~/x", ""); m.link("~/x", "~/Projects/p/.env") }},
		{"a link on the way in the project", "~/l/x", "@/home/u/l/x" + inProj, func(m machine) {
			m.file("~/s/x", "")
			m.link("~/s", "~/Projects/p/s")
			m.link("~/Projects/p/s", "~/l")
		}},
		{"a relative link out of the project", "~/Projects/p/d/x", "@/home/u/Projects/p/d/x" + inProj, func(m machine) { m.file("~/s/x", ""); m.link("../../s", "~/Projects/p/d") }},
		{"below a mount", "~/m/d/x", "@/home/u/m/d/x" + lies, func(m machine) { m.file("~/m/d/x", "") }},
		{"below a mount by a link", "~/l/x", "@/home/u/l/x" + lies, func(m machine) { m.file("~/m/x", ""); m.link("~/m", "~/l") }},
		{"a mount itself", "~/f", "@/home/u/f lies in ~/f, mounted at corral.yaml:3:20" + out, nil},
		{"the policy", "~/Projects/p/corral.yaml", "@/home/u/Projects/p/corral.yaml is the policy itself, which a sandbox sees" + out, nil},
		{"in the state", "~/.local/share/corral/x", "@/home/u/.local/share/corral/x: it lies in @/home/u/.local/share/corral (corral's own state and build directories) | keep it elsewhere", func(m machine) { m.file("~/.local/share/corral/x", "") }},
		{"in the state by a link", "~/l", "@/home/u/l: it lies in @/home/u/.local/share/corral (corral's own state and build directories) | keep it elsewhere", func(m machine) {
			m.file("~/.local/share/corral/x", "")
			m.link("~/.local/share/corral/x", "~/l")
		}},
		{"in a directory of corral's", "@/own/x", "@/own/x: it lies in @/own (a directory of corral's own) | keep it elsewhere", func(m machine) { m.file("@/own/x", "") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.env.Own = []string{m.path("@/own")}
			m.dir("~/m")
			m.file("~/f", "")
			if c.prepare != nil {
				c.prepare(m)
			}
			p, err := m.load("profile: shell\nsecrets: {env_file: \"" + c.path + "\"}\nmounts: {rw: [~/m, ~/f]}\n")
			want := c.want
			if want != "" {
				want = "corral.yaml:2:21: " + key + want
			}
			got := m.complaints(err)
			want = strings.ReplaceAll(want, "@/home/u/Projects/p/corral.yaml", "corral.yaml")
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if err != nil {
				return
			}
			if p.EnvFile.Given != c.path || !strings.HasPrefix(p.EnvFile.Path, m.root) || strings.Contains(p.EnvFile.Path, "..") {
				t.Errorf("%+v", p.EnvFile)
			}
		})
	}
}

// In daemon mode the project is no mount.
func TestEnvFileOfADaemon(t *testing.T) {
	m := newMachine(t)
	m.file("~/Projects/p/.env", "")
	m.dir("~/Projects/p/code")
	if _, err := m.load("profile: shell\nmode: daemon\nsecrets: {env_file: ~/Projects/p/.env}\nmounts: {rw: [~/Projects/p/code]}\n"); err != nil {
		t.Error(err)
	}
	_, err := m.load("profile: shell\nmode: daemon\nsecrets: {env_file: ~/Projects/p/.env}\nmounts: {rw: [~/Projects/p]}\n")
	if got, want := m.complaints(err), "corral.yaml:3:21: secrets.env_file: @/home/u/Projects/p/.env lies in ~/Projects/p, mounted at corral.yaml:4:15 | keep it outside, like ~/.config/corral/p.env"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_, err = m.load("profile: shell\nmode: daemon\nsecrets: {env_file: ~/Projects/p/corral.yaml}\n")
	if got := m.complaints(err); !strings.Contains(got, "is the policy itself") {
		t.Error(got)
	}
}

func TestEnvFileOfSomebodyElse(t *testing.T) {
	testenv.Require(t, "netns") // root, who alone can give files away
	m := newMachine(t)
	m.file("~/d/x", "")
	m.must(os.Chown(m.path("~/d/x"), 12345, 12345))
	_, err := m.load("profile: shell\nsecrets: {env_file: ~/d/x}\n")
	if got, want := m.complaints(err), "corral.yaml:2:21: secrets.env_file: @/home/u/d/x: the file belongs to uid 12345, not to uid 0 | secrets are the user's own: chown it, or copy it"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	m.must(os.Chown(m.path("~/d/x"), 0, 0))
	m.must(os.Chown(m.path("~/d"), 12345, 12345))
	_, err = m.load("profile: shell\nsecrets: {env_file: ~/d/x}\n")
	if got := m.complaints(err); !strings.Contains(got, "its directory @/home/u/d belongs to uid 12345, not to uid 0") {
		t.Error(got)
	}
}

// It is looked at, never opened: neither its mode nor its bytes matter here.
func TestEnvFileIsNotOpened(t *testing.T) {
	m := newMachine(t)
	m.file("~/x", "KEY=value\n")
	m.must(os.Chmod(m.path("~/x"), 0))
	before := unix.Stat_t{}
	past := []unix.Timespec{{Sec: 1}, {Sec: 1}}
	m.must(unix.UtimesNanoAt(unix.AT_FDCWD, m.path("~/x"), past, 0))
	m.must(unix.Stat(m.path("~/x"), &before))
	if _, err := m.load("profile: shell\nsecrets: {env_file: ~/x}\n"); err != nil {
		t.Error(err)
	}
	after := unix.Stat_t{}
	m.must(unix.Stat(m.path("~/x"), &after))
	if !reflect.DeepEqual(before, after) {
		t.Errorf("touched: %+v, then %+v", before, after)
	}
}

// One directory by two spellings, as file systems that ignore case have it, is
// told by its identity.
func TestEnvFileByIdentity(t *testing.T) {
	m := newMachine(t)
	m.file("~/s/x", "")
	at := newPlaces(mountTable{}).at(m.path("~/s")).self
	for _, c := range []struct {
		mount Mount
		seen  bool
	}{
		{Mount{Path: "/S", Dev: at.dev, Ino: at.ino}, true},
		{Mount{Path: "/S", Dev: at.dev, Ino: ^at.ino}, false},
		{Mount{Path: "/S", Dev: ^at.dev, Ino: at.ino}, false},
		{Mount{Path: "/S", Submounts: []string{m.path("~/s")}}, true},
		{Mount{Path: "/S", Submounts: []string{m.path("~/Projects")}}, false},
		{Mount{Dev: at.dev, Ino: at.ino}, false}, // refused for another reason
	} {
		p := &Policy{Mounts: []Mount{c.mount}}
		if got := p.shows([]string{m.path("~/s/x")}, newPlaces(mountTable{})); (got != "") != c.seen {
			t.Errorf("%+v: %q", c.mount, got)
		}
	}
}

func TestTrail(t *testing.T) {
	m := newMachine(t)
	m.file("@/a/f", "")
	m.link("f", "@/a/rel")
	m.link("@/a", "@/abs")
	m.link("abs/rel", "@/two")
	m.link("../a/./f", "@/a/dots")
	for path, want := range map[string]string{
		"@/a/f": "@/a/f", "@//a/./f": "@/a/f", "@/a/rel": "@/a/rel @/a/f", "@/abs/f": "@/abs @/a/f",
		"@/two": "@/two @/abs @/a/rel @/a/f", "@/a/dots": "@/a/dots @/a/f", "@/abs/../a/f": "@/abs @/a/f",
	} {
		got := strings.ReplaceAll(strings.Join(trail(m.path(path)), " "), m.root, "@")
		if got != want {
			t.Errorf("trail(%s) = %s, want %s", path, got, want)
		}
	}
}

// What is mounted twice is seen by each of its paths.
func TestBindMountsOfSecretsAndOverlaps(t *testing.T) {
	testenv.Require(t, "netns")
	m := newMachine(t)
	for _, dir := range []string{"~/s/sub/deep", "~/m/sub/deep", "~/.ssh/sub", "@/s", "@/ssub", "@/msub", "@/sshsub", "~/holds/s", "~/Projects/p/s", "~/code/a b/c", "~/code/a b/c/d", "~/ex/a b"} {
		m.dir(dir)
	}
	for _, file := range []string{"~/s/x", "~/s/sub/x", "~/m/sub/x", "~/m/x", "~/y"} {
		m.file(file, "")
	}
	m.file("@/filealias", "")
	within := func(f func(bind func(from, to string))) {
		done := make(chan struct{})
		go func() { // the thread keeps its own mounts and dies with the goroutine
			defer close(done)
			runtime.LockOSThread()
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				t.Error(err)
				return
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				t.Error(err)
				return
			}
			f(func(from, to string) {
				if err := unix.Mount(m.path(from), m.path(to), "", unix.MS_BIND, ""); err != nil {
					t.Error(err)
				}
			})
		}()
		<-done
	}
	within(func(bind func(from, to string)) {
		bind("~/s", "@/s")
		bind("~/s/sub", "@/ssub")
		bind("~/m/sub", "@/msub")
		bind("~/.ssh/sub", "@/sshsub")
		bind("~/s", "~/holds/s")
		bind("~/y", "@/filealias")
		for _, c := range []struct{ env, mount, want string }{
			{"~/s/x", "@/s", "lies in @/s"},
			{"~/s/sub/x", "@/s", "lies in @/s"},
			{"~/s/sub/x", "@/ssub", "lies in @/ssub"},
			{"~/s/x", "@/ssub", ""}, // a sibling
			{"@/s/x", "~/s", "lies in @/home/u/s"},
			{"@/msub/x", "~/m", "lies in @/home/u/m"},
			{"~/m/x", "@/msub", ""},
			{"~/s/x", "~/holds", "lies in @/home/u/holds"},
			{"~/s/sub/x", "~/holds", "lies in @/home/u/holds"},
			{"~/y", "@/filealias", "lies in @/filealias"},
			{"@/filealias", "~/y", "lies in @/home/u/y"},
			{"~/y", "~/m", ""},
		} {
			_, err := m.load("profile: shell\nsecrets: {env_file: \"" + m.path(c.env) + "\"}\nmounts: {ro: [\"" + m.path(c.mount) + "\"]}\n")
			if got := m.complaints(err); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s with %s: %s, want %q", c.env, c.mount, got, c.want)
			}
		}
		for _, c := range []struct{ a, b, want string }{
			{"~/m", "@/msub", "@/msub lies in @/home/u/m"},
			{"@/msub", "~/m", "@/home/u/m holds @/msub"},
			{"~/m/sub", "@/msub", "@/msub is listed already"},
			{"~/m/sub/deep", "@/msub", "@/msub holds @/home/u/m/sub/deep"},
			{"@/s/sub", "~/s", "@/home/u/s holds @/s/sub"},
			{"@/ssub", "@/msub", ""},
		} {
			_, err := m.load("profile: shell\nmounts: {rw: [\"" + m.path(c.a) + "\"], ro: [\"" + m.path(c.b) + "\"]}\n")
			if got := m.complaints(err); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s and %s: %s, want %q", c.a, c.b, got, c.want)
			}
		}
		// A part of a store alone, under another name.
		_, err := m.load(mounting(m.path("@/sshsub")))
		if got, want := m.complaints(err), "corral.yaml:4:5: refusing to mount @/sshsub: it lies in @/home/u/.ssh (SSH keys)"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
	within(func(bind func(from, to string)) {
		bind("~/s", "~/Projects/p/s")
		bind("~/ex", "~/code/a b/c")
		bind("~/ex", "~/code/a b/c") // on top
		bind("~/m", "~/code/a b/c/a b")
		p, err := m.load("profile: shell\nmounts: {ro: [~/code]}\n")
		if err != nil {
			t.Error(err)
			return
		}
		if got, want := p.Mounts[0].Submounts, []string{m.path("~/code/a b/c"), m.path("~/code/a b/c/a b")}; !reflect.DeepEqual(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := p.Project.Submounts, []string{m.path("~/Projects/p/s")}; !reflect.DeepEqual(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if p.Self.Submounts != nil {
			t.Errorf("%q", p.Self.Submounts)
		}
		_, err = m.load("profile: shell\nsecrets: {env_file: ~/s/x}\n")
		if got := m.complaints(err); !strings.Contains(got, "lies in the project directory") {
			t.Errorf("what is mounted in the project holds the secrets: %s", got)
		}
		_, err = m.load("profile: shell\nmounts: {ro: [~/s/sub]}\n")
		if got := m.complaints(err); !strings.Contains(got, "~/s/sub lies in the project directory") {
			t.Errorf("what is mounted in the project is mounted again: %s", got)
		}
	})
}
