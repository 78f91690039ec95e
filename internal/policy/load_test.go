package policy

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/exit"
)

// machine is a home directory with a project in it.
type machine struct {
	t    *testing.T
	root string // holds everything, a real path
	env  Env
}

func newMachine(t *testing.T) machine {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := machine{t, root, Env{Home: root + "/home/u", UID: os.Getuid(), Profiles: []string{"shell", "opencode"}}}
	m.dir("~/Projects/p")
	return m
}

// path expands ~ to the home and @ to the root.
func (m machine) path(s string) string {
	s = strings.ReplaceAll(s, "@", m.root)
	if rest, ok := strings.CutPrefix(s, "~"); ok {
		return m.env.Home + rest
	}
	return s
}

func (m machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) dir(path string) {
	m.t.Helper()
	m.must(os.MkdirAll(m.path(path), 0o755))
}

func (m machine) file(path, text string) {
	m.t.Helper()
	m.dir(filepath.Dir(path))
	m.must(os.WriteFile(m.path(path), []byte(text), 0o644))
}

func (m machine) link(target, path string) {
	m.t.Helper()
	m.dir(filepath.Dir(path))
	m.must(os.Symlink(m.path(target), m.path(path)))
}

// load puts the policy into the project and loads it there.
func (m machine) load(policy string) (*Policy, error) {
	m.t.Helper()
	m.file("~/Projects/p/corral.yaml", strings.ReplaceAll(policy, "@", m.root))
	return Load(m.path("~/Projects/p/corral.yaml"), m.env)
}

// complaints are the lines of err that say what is wrong and what to do, with
// the machine's root as @ and the policy without its directory.
func (m machine) complaints(err error) string {
	m.t.Helper()
	if err == nil {
		return ""
	}
	var l diag.List
	if !errors.As(err, &l) {
		m.t.Fatalf("not a mistake of the person: %v", err)
	}
	var lines []string
	for _, d := range l {
		line := d.Pos.String() + ": " + d.Message
		if d.Hint != "" {
			line += " | " + d.Hint
		}
		line = strings.ReplaceAll(line, m.path("~/Projects/p/corral.yaml"), "corral.yaml")
		lines = append(lines, strings.ReplaceAll(line, m.root, "@"))
	}
	return strings.Join(lines, "\n")
}

func TestLoad(t *testing.T) {
	m := newMachine(t)
	m.dir("~/notes")
	m.link("~/notes", "~/link")
	p, err := m.load("profile: shell\nmounts: {ro: [~/link/]}\n")
	m.must(err)
	if p.File != m.path("~/Projects/p/corral.yaml") || p.Dir != m.path("~/Projects/p") || p.Name != "p" || p.Mode != Run {
		t.Errorf("%+v", p)
	}
	fi, err := os.Stat(m.path("~/notes"))
	m.must(err)
	got := p.Mounts[0]
	if got.Path != m.path("~/notes") || got.Given != "~/link/" || !got.ReadOnly || got.Ino != stat(fi).Ino || got.Dev != stat(fi).Dev {
		t.Errorf("%+v", got)
	}
	if p.Project.Path != p.Dir || p.Project.Ino == 0 || p.Project.ReadOnly {
		t.Errorf("%+v", p.Project)
	}
	p, err = m.load("profile: shell\nmode: daemon\nmounts: {rw: [~/Projects/p]}\n")
	m.must(err)
	if !reflect.DeepEqual(p.Project, Mount{}) || len(p.Mounts) != 1 {
		t.Errorf("%+v", p)
	}
}

func TestLoadElsewhere(t *testing.T) {
	m := newMachine(t)
	m.file("~/policies/p.yaml", "profile: shell\n")
	m.dir("~/Projects/Große  Dinge.v2")
	m.link("~/Projects/Große  Dinge.v2", "~/q")
	m.env.Project = m.path("~/q")
	p, err := Load(m.path("~/policies/p.yaml"), m.env)
	m.must(err)
	if p.Dir != m.path("~/Projects/Große  Dinge.v2") || p.Name != "gro-e-dinge-v2" || p.File != m.path("~/policies/p.yaml") {
		t.Errorf("%+v", p)
	}
}

func TestPlaceIsRelativeToTheWorkingDirectory(t *testing.T) {
	m := newMachine(t)
	m.file("~/Projects/p/corral.yaml", "profil: shell\n")
	for dir, want := range map[string]string{
		"~/Projects/p": "corral.yaml:1:1", "~/Projects": "p/corral.yaml:1:1", "~/Projects/p/sub": m.path("~/Projects/p/corral.yaml:1:1"),
	} {
		m.dir(dir)
		t.Run(dir, func(t *testing.T) {
			t.Chdir(m.path(dir))
			_, err := Load(m.path("~/Projects/p/corral.yaml"), m.env)
			if err == nil || !strings.HasPrefix(err.Error(), want+": policy error: ") {
				t.Error(err)
			}
		})
	}
}

func TestValidName(t *testing.T) {
	for in, want := range map[string]string{
		"myproject": "myproject", "My Project": "my-project", "..": "sandbox", "": "sandbox", "-a-": "a", "a__b": "a-b", "/": "sandbox",
		strings.Repeat("a", 31): strings.Repeat("a", 30), strings.Repeat("a", 29) + "-b": strings.Repeat("a", 29), "0": "0", "日本": "sandbox",
	} {
		if got := validName(in); got != want || !sandboxName.MatchString(got) {
			t.Errorf("validName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLoadRefusesTheFile(t *testing.T) {
	const ok = "profile: shell\n"
	for _, c := range []struct {
		name, want string
		prepare    func(m machine, dir, file string)
	}{
		{"a directory", "a directory, not a regular file", func(m machine, dir, file string) {
			m.must(os.Remove(file))
			m.must(os.Mkdir(file, 0o755))
		}},
		{"a symbolic link", "a symbolic link, not a regular file", func(m machine, dir, file string) {
			m.must(os.Rename(file, dir+"/other.yaml"))
			m.must(os.Symlink("other.yaml", file))
		}},
		{"a dangling link", "a symbolic link, not a regular file", func(m machine, dir, file string) {
			m.must(os.Remove(file))
			m.must(os.Symlink("nothing", file))
		}},
		{"a second name", "the file has 2 names (hard links): an agent could write it by another one | remove the others", func(m machine, dir, file string) {
			m.must(os.Link(file, dir+"/other.yaml"))
		}},
		{"a FIFO that nobody writes", "a FIFO, not a regular file", func(m machine, dir, file string) {
			m.must(os.Remove(file))
			m.must(syscall.Mkfifo(file, 0o600))
		}},
		{"writable by all", "the file is writable by others (mode 0646) | chmod go-w \"corral.yaml\"", func(m machine, dir, file string) {
			m.must(os.Chmod(file, 0o646))
		}},
		{"directory writable by all", "its directory @/home/u/Projects/p is writable by others (mode 0757) | chmod go-w \"@/home/u/Projects/p\"", func(m machine, dir, file string) {
			m.must(os.Chmod(dir, 0o757))
		}},
		{"sticky changes nothing", "its directory @/home/u/Projects/p is writable by others (mode 0777) | chmod go-w \"@/home/u/Projects/p\"", func(m machine, dir, file string) {
			m.must(os.Chmod(dir, 0o777|os.ModeSticky))
		}},
		{"readable by all is fine", "", func(m machine, dir, file string) { m.must(os.Chmod(file, 0o644)) }},
		{"too large", "the file has 1048577 bytes, a policy has at most 1048576", func(m machine, dir, file string) { m.must(os.Truncate(file, maxBytes+1)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.file("~/Projects/p/corral.yaml", ok)
			c.prepare(m, m.path("~/Projects/p"), m.path("~/Projects/p/corral.yaml"))
			_, err := Load(m.path("~/Projects/p/corral.yaml"), m.env)
			want := c.want
			if want != "" {
				want = "corral.yaml: " + want
			}
			if got := m.complaints(err); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// A file that is not there is no mistake in it.
func TestLoadOfNothing(t *testing.T) {
	m := newMachine(t)
	m.file("~/Projects/p/other.yaml", "profile: shell\n")
	for _, name := range []string{"corral.yaml", "gone/corral.yaml"} {
		_, err := Load(m.path("~/Projects/p/"+name), m.env)
		var known *exit.Error
		if !errors.As(err, &known) || known.Status != exit.Invalid || known.Hint == "" || !strings.HasPrefix(err.Error(), "there is no policy file ") || !strings.HasSuffix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Owners are played, since only root can give files away.
func TestOwners(t *testing.T) {
	type owned struct{ mode, uid, gid uint32 }
	for _, c := range []struct {
		name      string
		file, dir owned
		uid       int
		root      bool
		want      string
	}{
		{"the user's own", owned{0o644, 1000, 1000}, owned{0o755, 1000, 1000}, 1000, false, ""},
		{"their own group may write", owned{0o664, 1000, 1000}, owned{0o775, 1000, 1000}, 1000, false, ""},
		{"another group may write the file", owned{0o664, 1000, 100}, owned{0o755, 1000, 1000}, 1000, false, "the file is writable by others (mode 0664)"},
		{"another group may write the directory", owned{0o644, 1000, 1000}, owned{0o775, 1000, 100}, 1000, false, "its directory /d is writable by others (mode 0775)"},
		{"somebody else's file", owned{0o644, 1001, 1001}, owned{0o755, 1000, 1000}, 1000, false, "the file belongs to uid 1001, not to uid 1000"},
		{"somebody else's directory", owned{0o644, 1000, 1000}, owned{0o755, 1001, 1001}, 1000, false, "its directory /d belongs to uid 1001, not to uid 1000"},
		{"root's directory", owned{0o644, 1000, 1000}, owned{0o755, 0, 0}, 1000, false, ""},
		{"root's file", owned{0o644, 0, 0}, owned{0o755, 1000, 1000}, 1000, false, "the file belongs to uid 0, not to uid 1000"},
		{"root's file, as root", owned{0o644, 0, 0}, owned{0o755, 1000, 1000}, 1000, true, ""},
		{"somebody else's file, as root", owned{0o644, 1001, 1001}, owned{0o755, 1000, 1000}, 1000, true, "the file belongs to uid 1001, not to uid 1000"},
	} {
		file := syscall.Stat_t{Mode: syscall.S_IFREG | c.file.mode, Uid: c.file.uid, Gid: c.file.gid}
		dir := syscall.Stat_t{Mode: syscall.S_IFDIR | c.dir.mode, Uid: c.dir.uid, Gid: c.dir.gid}
		owners := []uint32{uint32(c.uid)}
		if c.root {
			owners = append(owners, 0)
		}
		got := ""
		if err := trusted("/d/corral.yaml", "", &file, &dir, owners); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestLoadChecksTheProfile(t *testing.T) {
	m := newMachine(t)
	_, err := m.load("profile: opencod\nmode: x\n")
	want := "corral.yaml:1:10: there is no profile \"opencod\" | did you mean \"opencode\"?\ncorral.yaml:2:7: mode must be run or daemon, not \"x\""
	if got := m.complaints(err); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	m.env.Profiles = nil
	if _, err := m.load("profile: shell\n"); err == nil {
		t.Error("no profile is known, yet one is accepted")
	}
}

func TestLoadNeedsToKnowWhatToGuard(t *testing.T) {
	m := newMachine(t)
	m.env.ConfigHome = "relative" // as good as unset, says XDG
	_, err := m.load("profile: shell\n")
	m.must(err)
	m.env.Own = []string{"relative"}
	if _, err := m.load("profile: shell\n"); err == nil {
		t.Error("a relative path is guarded")
	}
	path := m.path("~/Projects/p/corral.yaml")
	if _, err := Load(path, Env{UID: m.env.UID, Profiles: m.env.Profiles}); err == nil {
		t.Error("no home is guarded")
	}
}

func TestFind(t *testing.T) {
	m := newMachine(t)
	m.dir("~/Projects/p/a/b")
	m.dir("~/other/c")
	m.file("~/Projects/p/corral.yaml", "")
	m.file("@/corral.yaml", "") // above home
	m.link("~/Projects/p/a", "~/other/c/link")
	m.link("~", "@/alias")
	find := func(dir, home string) string {
		got, err := Find(m.path(dir), m.path(home))
		if err == nil {
			return strings.ReplaceAll(got, m.root, "@")
		}
		var e *exit.Error
		if !errors.As(err, &e) || e.Status != exit.Invalid || e.Hint == "" {
			return "not a request's fault: " + err.Error()
		}
		if !strings.Contains(e.Hint, "corral init --profile shell") {
			t.Errorf("hint %q", e.Hint)
		}
		return strings.ReplaceAll(err.Error(), m.root, "@")
	}
	const found = "@/home/u/Projects/p/corral.yaml"
	for _, c := range []struct{ dir, home, want string }{
		{"~/Projects/p", "~", found},
		{"~/Projects/p/a/b", "~", found},
		{"~/other/c/link/b", "~", found},           // where the shell says it is does not count
		{"@/alias/Projects/p/a", "@/alias", found}, // nor by which name home is known
		{"~/other/c", "~", "there is no corral.yaml in @/home/u/other/c or above it, up to @/home/u"},
		{"~/other/c", "@/alias", "there is no corral.yaml in @/home/u/other/c or above it, up to @/home/u"},
		{"~", "~", "there is no corral.yaml in @/home/u or above it, up to @/home/u"},
		{"~/other", "@/nowhere", "@/corral.yaml"},
		{"/proc/self", "~", "there is no corral.yaml in /proc/PID or above it, up to /proc"},
	} {
		got := find(c.dir, c.home)
		if strings.HasPrefix(c.dir, "/proc") {
			self, err := os.Readlink("/proc/self")
			m.must(err)
			got = strings.ReplaceAll(got, self, "PID")
		}
		if got != c.want {
			t.Errorf("Find(%s, %s)\ngot  %s\nwant %s", c.dir, c.home, got, c.want)
		}
	}
	if _, err := Find(m.path("~/missing"), m.path("~")); err == nil {
		t.Error("a missing directory is searched")
	}
	m.must(os.Remove(m.path("~/Projects/p/corral.yaml")))
	m.link("nothing", "~/Projects/p/corral.yaml")
	if got := find("~/Projects/p/a", "~"); got != found {
		t.Errorf("what is not fit to be read is passed over: %s", got)
	}
}
