package wayback

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// bound is binds, one a line, by paths below root.
func bound(t testing.TB, root string, binds []Bind) string {
	t.Helper()
	var b strings.Builder
	for _, m := range binds {
		var st unix.Stat_t
		must(t, unix.Lstat(m.Path, &st))
		if st.Dev != m.Dev || st.Ino != m.Ino {
			t.Errorf("%s is another inode than was bound", m.Path)
		}
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		fmt.Fprintf(&b, "%s %s\n", mode, strings.TrimPrefix(m.Path, root+"/"))
	}
	return b.String()
}

// everything is a repository with submodules, one in another, one with a
// slash in its name, and a worktree with a submodule.
func everything(t testing.TB) string {
	t.Helper()
	dir := realDir(t)
	repository(t, dir+"/inner")
	repository(t, dir+"/outer")
	git(t, dir+"/outer", "submodule", "--quiet", "add", dir+"/inner", "deep")
	git(t, dir+"/outer", "commit", "-qm", "deep")
	repository(t, dir+"/main")
	git(t, dir+"/main", "submodule", "--quiet", "add", "--name", "libs/a", dir+"/outer", "a")
	git(t, dir+"/main", "submodule", "--quiet", "add", dir+"/inner", "b")
	git(t, dir+"/main", "submodule", "--quiet", "update", "--init", "--recursive")
	git(t, dir+"/main", "commit", "-qm", "modules")
	git(t, dir+"/main", "worktree", "add", "-q", dir+"/tree")
	git(t, dir+"/tree", "submodule", "--quiet", "update", "--init", "b")
	return dir + "/main"
}

const everythingBound = `rw .git
ro .git/config
ro .git/config.worktree
ro .git/hooks
rw .git/info
rw .git/modules
rw .git/worktrees
ro .git/info/attributes
rw .git/modules/b
rw .git/modules/libs
rw .git/worktrees/tree
ro .git/modules/b/config
ro .git/modules/b/config.worktree
ro .git/modules/b/hooks
rw .git/modules/b/info
rw .git/modules/libs/a
ro .git/worktrees/tree/commondir
ro .git/worktrees/tree/config.worktree
rw .git/worktrees/tree/modules
ro .git/modules/b/info/attributes
ro .git/modules/libs/a/config
ro .git/modules/libs/a/config.worktree
ro .git/modules/libs/a/hooks
rw .git/modules/libs/a/info
rw .git/modules/libs/a/modules
rw .git/worktrees/tree/modules/b
ro .git/modules/libs/a/info/attributes
rw .git/modules/libs/a/modules/deep
ro .git/worktrees/tree/modules/b/config
ro .git/worktrees/tree/modules/b/config.worktree
ro .git/worktrees/tree/modules/b/hooks
rw .git/worktrees/tree/modules/b/info
ro .git/modules/libs/a/modules/deep/config
ro .git/modules/libs/a/modules/deep/config.worktree
ro .git/modules/libs/a/modules/deep/hooks
rw .git/modules/libs/a/modules/deep/info
ro .git/worktrees/tree/modules/b/info/attributes
ro .git/modules/libs/a/modules/deep/info/attributes
`

func TestShield(t *testing.T) {
	dir := everything(t)
	binds, err := Shield(dir, Options{})
	must(t, err)
	if got := bound(t, dir, binds); got != everythingBound {
		t.Errorf("bound:\n%s", got)
	}
	again, err := Shield(dir, Options{})
	if err != nil || !slices.Equal(again, binds) {
		t.Errorf("the second time: %v, %v", again, err)
	}
	for i, b := range binds { // whatever holds a bind is bound before it, up to the root
		if p := filepath.Dir(b.Path); p != dir && !slices.ContainsFunc(binds[:i], func(b Bind) bool { return b.Path == p }) {
			t.Errorf("%s is not bound before %s", p, b.Path)
		}
	}

	writable, err := Shield(dir, Options{ConfigWritable: true})
	must(t, err)
	want := slices.DeleteFunc(strings.SplitAfter(everythingBound, "\n"), func(s string) bool {
		return strings.HasSuffix(s, "config\n") || strings.HasSuffix(s, "config.worktree\n")
	})
	if got := bound(t, dir, writable); got != strings.Join(want, "") {
		t.Errorf("with the configuration writable:\n%s", got)
	}
	for _, o := range []Options{{DirReadOnly: true}, {DirReadOnly: true, ConfigWritable: true}} {
		closed, err := Shield(dir, o)
		must(t, err)
		if got := bound(t, dir, closed); got != "ro .git\n" {
			t.Errorf("%+v:\n%s", o, got)
		}
	}
}

// TestHostIsHappy: what a shield makes is in nobody's way.
func TestHostIsHappy(t *testing.T) {
	dir := everything(t)
	tree := filepath.Dir(dir) + "/tree"
	_, err := Shield(dir, Options{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())})
	must(t, err)
	for i, d := range []string{dir, tree, dir + "/a", dir + "/a/deep", dir + "/b", tree + "/b"} {
		for _, args := range []string{"status --porcelain", "fsck --strict", "gc -q", "config --list", fmt.Sprintf("branch new%d", i), fmt.Sprintf("checkout -q new%d", i), "commit -q --allow-empty -m second", "worktree list"} {
			out, err := host(t, d, strings.Fields(args)...)
			if err != nil || strings.Contains(out, "warning") || strings.Contains(out, "error") {
				t.Errorf("%s: git %s: %v %s", d, args, err, out)
			}
		}
	}
	git(t, dir, "worktree", "add", "-q", dir+"/third")
	git(t, dir, "worktree", "remove", "third")
	git(t, dir, "worktree", "remove", "--force", tree)
	git(t, dir, "worktree", "prune")
	git(t, dir, "submodule", "update", "--recursive")
	git(t, dir, "config", "extensions.worktreeConfig", "true")
	git(t, dir, "config", "--worktree", "user.name", "x")
	git(t, dir, "status")
	if out := git(t, dir, "status", "--porcelain", "--ignored"); strings.Contains(out, "??") {
		t.Errorf("git sees what a shield made: %s", out)
	}
}

// TestShieldMakesWhatIsMissing, configuration too: an empty one means the same
// as none.
func TestShieldMakesWhatIsMissing(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	for _, name := range []string{"hooks", "info", "config"} {
		must(t, os.RemoveAll(dir+"/.git/"+name))
	}
	owner := Options{UID: 4242, GID: 4343}
	if os.Getuid() != 0 {
		owner = Options{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	}
	if _, err := Shield(dir, Options{DirReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir + "/.git/hooks"); err == nil {
		t.Error("a .git that is closed whole was written in")
	}
	binds, err := Shield(dir, owner)
	must(t, err)
	if got, want := bound(t, dir, binds), "rw .git\nro .git/config\nro .git/config.worktree\nro .git/hooks\nrw .git/info\nro .git/info/attributes\n"; got != want {
		t.Errorf("bound:\n%s", got)
	}
	for name, mode := range map[string]fs.FileMode{"hooks": fs.ModeDir | 0o755, "info": fs.ModeDir | 0o755, "config": 0o644, "config.worktree": 0o644, "info/attributes": 0o644} {
		info, err := os.Lstat(dir + "/.git/" + name)
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode()&^0o022 != mode || st.Uid != owner.UID || st.Gid != owner.GID || mode.IsRegular() && info.Size() != 0 {
			t.Errorf("%s: %v of %d:%d, %d bytes", name, info.Mode(), st.Uid, st.Gid, info.Size())
		}
	}
	git(t, dir, "status")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "second")
}

func TestNothingToShield(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "sub/HEAD", "")
	repository(t, dir+"/deeper")
	for _, root := range []string{dir, dir + "/sub/HEAD"} {
		if binds, err := Shield(root, Options{}); err != nil || binds != nil {
			t.Errorf("%s: %v, %v", root, binds, err)
		}
	}
	link(t, dir+"/deeper", dir+"/link")
	for _, root := range []string{"", "relative", dir + "/", dir + "/none", dir + "/link", dir + "/deeper/../deeper"} {
		if binds, err := Shield(root, Options{}); err == nil {
			t.Errorf("%q: %v", root, binds)
		}
	}
}

func TestShieldBare(t *testing.T) {
	dir := realDir(t)
	repository(t, dir+"/r")
	git(t, dir, "clone", "-q", "--bare", "r", "bare")
	git(t, dir+"/bare", "worktree", "add", "-q", dir+"/w")
	binds, err := Shield(dir+"/bare", Options{})
	must(t, err)
	if got, want := bound(t, dir+"/bare", binds), "ro config\nro config.worktree\nro hooks\nrw info\nrw worktrees\nro info/attributes\nrw worktrees/w\nro worktrees/w/commondir\nro worktrees/w/config.worktree\n"; got != want {
		t.Errorf("bound:\n%s", got)
	}
	if _, err := Shield(dir+"/bare", Options{DirReadOnly: true}); err == nil {
		t.Error("a repository without .git has one that is closed")
	}
	binds, err = Shield(dir+"/w", Options{}) // its repository is elsewhere
	must(t, err)
	if got := bound(t, dir+"/w", binds); got != "ro .git\n" {
		t.Errorf("bound:\n%s", got)
	}
}

// TestShieldGitFile: the directory that a .git file names counts as .git if
// the agent can write it.
func TestShieldGitFile(t *testing.T) {
	const inside = "ro .git\nrw store\nrw store/x.git\nro store/x.git/config\nro store/x.git/config.worktree\nro store/x.git/hooks\nrw store/x.git/info\nro store/x.git/info/attributes\n"
	for what, tt := range map[string]struct {
		text, want, refused string
	}{
		"relative":            {"gitdir: store/x.git\n", inside, ""},
		"dot":                 {"gitdir: ./store/x.git", inside, ""},
		"absolute":            {"gitdir: DIR/store/x.git\r\n", inside, ""},
		"by another way in":   {"gitdir: OUT/alias/store/x.git\n", inside, ""},
		"outside":             {"gitdir: OUT/real\n", "ro .git\n", ""},
		"outside, relative":   {"gitdir: ../elsewhere/x\n", "ro .git\n", ""},
		"outside and missing": {"gitdir: /nonexistent/x\n", "ro .git\n", ""},
		"no gitfile":          {"something\n", "ro .git\n", ""},
		"empty":               {"", "ro .git\n", ""},
		"missing":             {"gitdir: store/none\n", "", "not there"},
		"by a link":           {"gitdir: link/x.git\n", "", "symbolic link"},
		"by a link outside":   {"gitdir: away\n", "", "symbolic link"},
		"up again":            {"gitdir: store/../store/x.git\n", "", "by way of other"},
		"up again, absolute":  {"gitdir: DIR/link/../x\n", "", "by way of other"},
		"itself":              {"gitdir: .\n", "", "the directory that it is in"},
		"two lines":           {"gitdir: store/x.git\nx", "", "does not name"},
	} {
		t.Run(what, func(t *testing.T) {
			out, dir := realDir(t), realDir(t)
			must(t, os.MkdirAll(out+"/real", 0o755))
			link(t, dir, out+"/alias")
			git(t, dir, "init", "-q", "--bare", "store/x.git")
			link(t, "store", dir+"/link")
			link(t, out+"/real", dir+"/away")
			write(t, dir, ".git", strings.NewReplacer("DIR", dir, "OUT", out).Replace(tt.text))
			binds, err := Shield(dir, Options{})
			if tt.refused != "" {
				var u *Unshieldable
				if !errors.As(err, &u) || u.Path != dir+"/.git" || !strings.Contains(u.Reason, tt.refused) {
					t.Fatalf("%v, %v", binds, err)
				}
				return
			}
			must(t, err)
			if got := bound(t, dir, binds); got != tt.want {
				t.Errorf("bound:\n%s", got)
			}
			if tt.want == inside {
				binds, err = Shield(dir, Options{DirReadOnly: true})
				must(t, err)
				if got := bound(t, dir, binds); got != "ro .git\nrw store\nro store/x.git\n" {
					t.Errorf("closed:\n%s", got)
				}
			}
		})
	}
}

// TestUnshieldable: nothing is made when anything is refused, and no link is
// followed.
func TestUnshieldable(t *testing.T) {
	replace := func(name string, f func(t *testing.T, p string)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir+"/"+name))
			must(t, os.MkdirAll(filepath.Dir(dir+"/"+name), 0o755))
			f(t, dir+"/"+name)
		}
	}
	away := func(t *testing.T, p string) { link(t, "/nonexistent/x", p) }
	pipe := func(t *testing.T, p string) { mkfifo(t, p) }
	full := func(t *testing.T, p string) { write(t, filepath.Dir(p), filepath.Base(p), "x") }
	folder := func(t *testing.T, p string) { must(t, os.Mkdir(p, 0o755)) }
	twice := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if _, err := os.Lstat(dir + "/" + name); err != nil {
				write(t, dir, name, "")
			}
			must(t, os.Link(dir+"/"+name, dir+"/second"))
		}
	}
	original := everything(t)
	must(t, exec.CommandContext(t.Context(), "find", original, "(", "-name", "*.sample", "-o", "-path", "*/objects/?*", ")", "-delete").Run()) // they are many to copy
	for _, tt := range []struct {
		name   string // of the path that is refused
		spoil  func(t *testing.T, dir string)
		reason string
	}{
		{".git", replace(".git", away), "it is a symbolic link"},
		{".git", replace(".git", pipe), "it is a FIFO"},
		{".git/hooks", replace(".git/hooks", away), "it is a symbolic link"},
		{".git/hooks", replace(".git/hooks", full), "it is a file"},
		{".git/hooks", replace(".git/hooks", pipe), "it is a FIFO"},
		{".git/config", replace(".git/config", away), "it is a symbolic link"},
		{".git/config", replace(".git/config", folder), "it is a directory"},
		{".git/config", replace(".git/config", pipe), "it is a FIFO"},
		{".git/config.worktree", replace(".git/config.worktree", away), "it is a symbolic link"},
		{".git/info", replace(".git/info", away), "it is a symbolic link"},
		{".git/info", replace(".git/info", full), "it is a file"},
		{".git/info/attributes", replace(".git/info/attributes", away), "it is a symbolic link"},
		{".git/modules", replace(".git/modules", away), "it is a symbolic link"},
		{".git/modules", replace(".git/modules", full), "it is a file"},
		{".git/modules/libs", replace(".git/modules/libs", away), "it is a symbolic link"},
		{".git/modules/libs/a", replace(".git/modules/libs/a", away), "it is a symbolic link"},
		{".git/modules/libs/a/hooks", replace(".git/modules/libs/a/hooks", away), "it is a symbolic link"},
		{".git/modules/libs/a/modules/deep/config", replace(".git/modules/libs/a/modules/deep/config", away), "it is a symbolic link"},
		{".git/modules/libs/a/b", replace(".git/modules/libs/a/b", away), "it is a symbolic link"},
		{".git/worktrees", replace(".git/worktrees", away), "it is a symbolic link"},
		{".git/worktrees/x", replace(".git/worktrees/x", away), "it is a symbolic link"},
		{".git/worktrees/tree/config.worktree", replace(".git/worktrees/tree/config.worktree", away), "it is a symbolic link"},
		{".git/worktrees/tree/commondir", replace(".git/worktrees/tree/commondir", away), "it is no regular file"},
		{".git/worktrees/tree/commondir", replace(".git/worktrees/tree/commondir", full), "it sends git to settings and hooks elsewhere"},
		{".git/worktrees/tree/modules/b/hooks", replace(".git/worktrees/tree/modules/b/hooks", away), "it is a symbolic link"},
		{".git/commondir", replace(".git/commondir", full), "it is a file that sends git to settings and hooks elsewhere"},
		{".git/commondir", replace(".git/commondir", away), "it is a symbolic link that sends git to settings and hooks elsewhere"},
		{".git/modules/b/commondir", replace(".git/modules/b/commondir", full), "it is a file that sends git to settings and hooks elsewhere"},
		{".git/config", twice(".git/config"), "it has 2 names, and could be written by another one"},
		{".git/config.worktree", twice(".git/config.worktree"), "it has 2 names, and could be written by another one"},
		{".git/hooks/pre-commit", twice(".git/hooks/pre-commit"), "it has 2 names, and could be written by another one"},
		{".git/hooks/pre-commit.d/x", twice(".git/hooks/pre-commit.d/x"), "it has 2 names, and could be written by another one"},
		{".git/modules/b/config", twice(".git/modules/b/config"), "it has 2 names, and could be written by another one"},
		{"", nil, ""},
		{"", twice(".git/hooks/pre-commit.sample"), ""},
		{"", twice(".git/HEAD"), ""},
		{"", replace(".git/worktrees/x", full), ""},
		{"", replace(".git/modules/b/HEAD", func(t *testing.T, p string) { link(t, "refs/heads/main", p) }), ""},
		{"", replace(".git/hooks/post-commit", away), ""}, // reported, with what it points to
	} {
		t.Run(strings.ReplaceAll(tt.name, "/", "_"), func(t *testing.T) {
			t.Parallel()
			dir := realDir(t) + "/main"
			if out, err := exec.Command("cp", "-a", original, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if tt.spoil != nil {
				tt.spoil(t, dir)
			}
			for _, o := range []Options{{}, {DirReadOnly: true}} {
				_, made := os.Lstat(dir + "/.git/info/attributes")
				checked := Shieldable(dir, o)
				_, err := Shield(dir, o)
				if (checked == nil) != (err == nil) || err != nil && checked.Error() != err.Error() {
					t.Errorf("%+v: checked alone it is %v, and %v", o, checked, err)
				}
				if tt.reason == "" {
					if err != nil {
						t.Errorf("%+v: %v", o, err)
					}
					continue
				}
				var u *Unshieldable
				var e *exit.Error
				if !errors.As(err, &u) || u.Path != dir+"/"+tt.name || u.Reason != tt.reason {
					t.Errorf("%+v: %v", o, err)
				}
				if !errors.As(err, &e) || e.Hint == "" || e.Status != exit.Invalid {
					t.Errorf("%+v: %#v", o, err)
				}
				if _, now := os.Lstat(dir + "/.git/info/attributes"); now == nil && made != nil {
					t.Error("something was made")
				}
			}
		})
	}
}

// TestShieldableMakesNothing: the check alone leaves a repository as it is.
func TestShieldableMakesNothing(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	must(t, os.RemoveAll(dir+"/.git/hooks"))
	must(t, os.RemoveAll(dir+"/.git/info"))
	for _, o := range []Options{{}, {ConfigWritable: true}, {DirReadOnly: true}} {
		if err := Shieldable(dir, o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, name := range []string{"hooks", "info", "config.worktree"} {
		if _, err := os.Lstat(dir + "/.git/" + name); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	write(t, dir, "file", "x")
	if err := Shieldable(dir+"/file", Options{}); err != nil {
		t.Errorf("a mount of one file: %v", err)
	}
	if err := Shieldable(dir+"/none", Options{}); err == nil {
		t.Error("nothing is shieldable")
	}
	if err := Shieldable("x", Options{}); err == nil {
		t.Error("a relative path is shieldable")
	}
}

func TestUnshieldableIsSafeToShow(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	link(t, "x", dir+"/.git/modules/\x1b[2J")
	_, err := Shield(dir, Options{})
	if err == nil || strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), `\x1b[2J`) {
		t.Errorf("%v", err)
	}
}

// TestBindsMost: every module takes six binds.
func TestBindsMost(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	module := func(i int) {
		d := fmt.Sprintf("%s/.git/modules/m%03d", dir, i)
		for _, sub := range []string{"objects", "refs"} {
			must(t, os.MkdirAll(d+"/"+sub, 0o755))
		}
		write(t, d, "HEAD", "ref: refs/heads/main\n")
	}
	for i := range 82 { // with 7 of its own
		module(i)
	}
	must(t, os.Mkdir(dir+"/.git/worktrees", 0o755))
	binds, err := Shield(dir, Options{})
	if err != nil || len(binds) != bindsMost {
		t.Fatalf("%d binds, %v", len(binds), err)
	}
	must(t, os.Mkdir(dir+"/.git/worktrees/x", 0o755))
	_, err = Shield(dir, Options{})
	var e *exit.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "git: {dir: ro}") || !strings.Contains(e.Error(), "502 binds") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(dir + "/.git/worktrees/x/config.worktree"); err == nil {
		t.Error("something was made")
	}
	if binds, err := Shield(dir, Options{DirReadOnly: true}); err != nil || len(binds) != 1 {
		t.Errorf("%d binds, %v", len(binds), err)
	}
}

// TestShieldsHold binds for real and tries what an agent would try.
func TestShieldsHold(t *testing.T) {
	testenv.Require(t, "netns") // root, for mounts
	dir := everything(t)
	write(t, dir, ".git/hooks/pre-commit", "#!/bin/sh\n")
	binds, err := Shield(dir, Options{})
	must(t, err)
	w := Watch(t.Context(), []string{dir}, binds)
	script := strings.Builder{}
	script.WriteString(inside(dir, binds))
	for _, try := range []string{
		"mv .git .old", "rm -rf .git/hooks/pre-commit", "echo x > .git/hooks/pre-push", "mv .git/hooks .git/h", "mv .git/info .git/i",
		"echo x >> .git/config", "git config core.pager x", "git config --worktree core.pager x", "echo x > .git/config.worktree", "mv .git/config .git/c", "rm -f .git/config",
		"echo x > .git/info/attributes", "mv .git/info/attributes .git/x", "mv .git/modules .git/m", "mv .git/modules/libs .git/m", "mv .git/modules/libs/a .git/m",
		"git -C b config core.pager x", "git -C a/deep config core.pager x", "echo x > .git/modules/libs/a/hooks/pre-commit", "mv .git/worktrees .git/w", "mv .git/worktrees/tree .git/w",
		"echo x > .git/worktrees/tree/commondir", "echo x > .git/worktrees/tree/config.worktree", "git -C ../tree/b config core.pager x", "ln -f .git/config .git/c", "ln -f .git/hooks/pre-commit x",
	} {
		fmt.Fprintf(&script, "(%s) >/dev/null 2>&1 && echo 'worked: %s'\n", try, try)
	}
	// And what it may.
	for _, try := range []string{"git commit --allow-empty -m x", "git checkout -b y", "git worktree add ./new", "git worktree remove new", "git gc", "git stash list", "git -C b commit --allow-empty -m x", "touch .git/commondir && rm .git/commondir"} {
		fmt.Fprintf(&script, "(%s) >/tmp/out.$$ 2>&1 || { echo 'did not work: %s'; cat /tmp/out.$$; }\nrm -f /tmp/out.$$\n", try, try)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script.String())
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	// None of that is a shield that was lost. A mv between two mounts copies, and
	// removes what it can.
	if got := told(dir, w.Seen()); got != lines("! .git/commondir: was there while the sandbox ran", "! .git/worktrees/tree/gitdir: was gone while the sandbox ran") {
		t.Errorf("seen:\n%s", got)
	}
}

// inside is the beginning of a script that has the binds in its namespace.
func inside(dir string, binds []Bind) string {
	script := "set -e\nmount --make-rprivate /\n"
	for _, b := range binds {
		script += fmt.Sprintf("mount --bind '%s' '%s'\n", b.Path, b.Path)
		if b.ReadOnly {
			script += fmt.Sprintf("mount -o remount,bind,ro '%s'\n", b.Path)
		}
	}
	return script + "set +e\ncd '" + dir + "'\n"
}

// TestShieldLost: what git config on the host does to a bind, for real, and that
// it is told.
func TestShieldLost(t *testing.T) {
	testenv.Require(t, "netns") // root, for mounts
	dir := realDir(t)
	repository(t, dir)
	binds, err := Shield(dir, Options{})
	must(t, err)
	w := Watch(t.Context(), []string{dir}, binds)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", inside(dir, binds)+
		"try() { (echo '# x' >> .git/config) 2>/dev/null && echo written || echo refused; }\ntry\nread go\ntry\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	must(t, err)
	pipe, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	out := bufio.NewReader(pipe)
	first, err := out.ReadString('\n')
	must(t, err)
	if got := w.Seen(); len(got) != 0 {
		t.Errorf("too early: %v", got)
	}
	git(t, dir, "config", "a.b", "c")
	fmt.Fprintln(in)
	second, err := out.ReadString('\n')
	must(t, err)
	must(t, cmd.Wait())
	if first != "refused\n" || second != "written\n" {
		t.Errorf("first %s, then %s", first, second)
	}
	want := lines("! .git/config: was replaced on this machine while the sandbox ran")
	if got := told(dir, w.Seen()); got != want {
		t.Errorf("seen\n%s", got)
	}
	if got := told(dir, Lost(binds)); got != want {
		t.Errorf("lost\n%s", got)
	}
}

func TestRepositories(t *testing.T) {
	dir := realDir(t)
	for _, name := range []string{"b", "a", "a/deep", "c/x/y"} {
		must(t, os.MkdirAll(dir+"/"+name+"/.git/objects/.git", 0o755))
	}
	write(t, dir, "file/.git", "gitdir: x\n")
	link(t, dir+"/a", dir+"/z")
	all := []string{"a", "a/deep", "b", "c/x/y", "file"}
	for i := range all {
		all[i] = dir + "/" + all[i]
	}
	for most, whole := range map[int]bool{4: false, 5: true, 6: true} {
		got, ok := Repositories(t.Context(), dir, most)
		if ok != whole || !slices.Equal(got, all[:min(most, len(all))]) {
			t.Errorf("%d: %v %v", most, got, ok)
		}
	}
	must(t, os.Mkdir(dir+"/.git", 0o755))
	if got, ok := Repositories(t.Context(), dir, 1); ok || len(got) != 1 || got[0] != dir {
		t.Errorf("%v %v", got, ok)
	}
	for _, tt := range []struct {
		ctx context.Context
		dir string
	}{{ended(), dir}, {t.Context(), dir + "/none"}} {
		if got, ok := Repositories(tt.ctx, tt.dir, 9); ok || got != nil {
			t.Errorf("%s: %v %v", tt.dir, got, ok)
		}
	}
}
