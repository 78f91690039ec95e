package wayback

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
)

func taken(t *testing.T, s Scope) Snapshot {
	t.Helper()
	got, err := Take(t.Context(), s)
	must(t, err)
	return got
}

// TestSettingsByEverySpelling: what settings name is watched, whichever way the
// path takes to it.
func TestSettingsByEverySpelling(t *testing.T) {
	for what, tt := range map[string]struct {
		prepare func(home, p string)
		want    string
	}{
		"nothing names it": {func(_, _ string) {}, ""},
		"~":                {func(_, p string) { git(t, p, "config", "core.hooksPath", "~/p/my") }, lines("  my/file: changed")},
		"of somebody else": {func(_, p string) { git(t, p, "config", "core.hooksPath", "~x/p/my") }, ""},
		"a link outside": {func(home, p string) {
			link(t, home, home+"/../homelink")
			git(t, p, "config", "core.hooksPath", home+"/../homelink/p/my")
		}, lines("  my/file: changed")},
		"links outside, one relative": {func(home, p string) {
			link(t, "two/..", home+"/one")
			link(t, home+"/p", home+"/three")
			must(t, os.Mkdir(home+"/two", 0o755))
			git(t, p, "config", "core.hooksPath", home+"/one/three/my")
		}, lines("  my/file: changed")},
		"a link in a circle": {func(home, p string) {
			link(t, "b", home+"/a")
			link(t, "a", home+"/b")
			git(t, p, "config", "core.hooksPath", home+"/a/p/my")
		}, ""},
		"a link inside": {func(_, p string) {
			link(t, "sub/..", p+"/here")
			must(t, os.Mkdir(p+"/sub", 0o755))
			git(t, p, "config", "core.hooksPath", "here/my")
		}, lines("  my/file: changed")},
		"links inside, one to outside and back": {func(home, p string) {
			link(t, home+"/back", p+"/away")
			link(t, p, home+"/back")
			git(t, p, "config", "core.hooksPath", "away/my")
		}, lines("  my/file: changed")},
		"a hook by a link inside": {func(_, p string) {
			link(t, ".", p+"/here")
			link(t, "../../here/my/file", p+"/.git/hooks/pre-commit")
		}, lines("  my/file: changed")},
		"include":        {func(_, p string) { git(t, p, "config", "include.path", "~/p/my/settings") }, lines(`  my/settings: core.pager new: none → "evil"`)},
		"attributes":     {func(_, p string) { git(t, p, "config", "core.attributesFile", "~/p/my/attributes") }, lines("  my/attributes: changed")},
		"a command in ~": {func(_, p string) { git(t, p, "config", "core.editor", "sh ~/p/my/file") }, lines("  my/file: changed")},
		"a command in $HOME": {func(_, p string) { git(t, p, "config", "core.editor", `sh -c "${HOME}/p/my/file"`) },
			lines("  my/file: changed")},
		"the person's own": {func(home, _ string) { write(t, home, ".gitconfig", "[core]\nhooksPath = ~/p/my\n") }, lines("  my/file: changed")},
		"the person's own, relative to a worktree": {func(home, _ string) { write(t, home, ".gitconfig", "[core]\nhooksPath = my\n") },
			lines("  my/file: changed")},
		"the person's other one":   {func(home, _ string) { write(t, home, ".config/git/config", "[core]\nhooksPath = "+home+"/p/my\n") }, lines("  my/file: changed")},
		"the person's own include": {func(home, _ string) { write(t, home, ".gitconfig", "[include]\npath = p/my/settings\n") }, lines(`  my/settings: core.pager new: none → "evil"`)},
		"the person's own include of it": {func(home, _ string) {
			write(t, home, ".gitconfig", "[include]\npath = other\n")
			write(t, home, "other", "[core]\nhooksPath = ~/p/my\n")
		}, ""},
		"the person's own command":     {func(home, _ string) { write(t, home, ".gitconfig", "[alias]\nx = !~/p/my/file\n") }, lines("  my/file: changed")},
		"what is no command of theirs": {func(home, _ string) { write(t, home, ".gitconfig", "[user]\nname = ~/p/my/file\n") }, ""},
		"the person's own before a mistake": {func(home, _ string) { write(t, home, ".gitconfig", "[core]\nhooksPath = ~/p/my\n!") },
			lines("  my/file: changed")},
		"the person's own is a link inside": {func(home, p string) { link(t, "p/my/settings", home+"/.gitconfig") }, lines(`  my/settings: core.pager new: none → "evil"`)},
		"their attributes are a link inside": {func(home, p string) { link(t, "../../p/my/attributes", home+"/.config/git/attributes") },
			lines("  my/attributes: changed")},
		"their settings cannot be read": {func(home, _ string) { mkfifo(t, home+"/.gitconfig") }, lines("  HOME/.gitconfig: was not looked at before either")},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			top := realDir(t)
			home, p := top+"/home", top+"/home/p"
			repository(t, p)
			write(t, p, "my/file", "x")
			write(t, p, "my/settings", "[user]\nname = x\n")
			write(t, p, "my/attributes", "x text\n")
			tt.prepare(home, p)
			scope := Scope{Roots: []string{p}, Home: home}
			before := taken(t, scope)
			if got := Compare(before, taken(t, before.Scope())); slices.ContainsFunc(got, func(f Finding) bool { return f.What != notEither }) {
				t.Errorf("nothing happened: %v", got)
			}
			write(t, p, "my/file", "y")
			write(t, p, "my/settings", "[core]\npager = evil\n")
			write(t, p, "my/attributes", "x filter=y\n")
			got := told(p, Compare(before, taken(t, before.Scope())))
			// Of a directory of hooks every file is told.
			for _, also := range []string{"  my/attributes: changed\n", "  my/settings: changed\n"} {
				if strings.Contains(got, "my/file") {
					got = strings.ReplaceAll(got, also, "")
				}
			}
			if got = strings.ReplaceAll(got, home, "HOME"); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

// TestLinkInside is watched itself, and not only what it led to.
func TestLinkInside(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	write(t, dir, "one/my/file", "x")
	write(t, dir, "two/my/file", "x")
	link(t, "one", dir+"/here")
	git(t, dir, "config", "core.hooksPath", dir+"/here/my")
	before := snapshot(t, dir)
	must(t, os.Remove(dir+"/here"))
	link(t, "two", dir+"/here")
	if got := told(dir, Compare(before, snapshot(t, dir))); got != lines("  here: is now a symbolic link to two", "  one/my/file: removed", "  two/my/file: new") {
		t.Errorf("got\n%s", got)
	}
}

// TestNoHome: without a home ~ is nobody's.
func TestNoHome(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	write(t, dir, "~/my/file", "x")
	git(t, dir, "config", "core.hooksPath", "~/my")
	for _, f := range taken(t, Scope{Roots: []string{dir}}).Files {
		if strings.Contains(string(f.Path), "my") {
			t.Errorf("%s", f.Path)
		}
	}
}

func TestAlso(t *testing.T) {
	dir, away := realDir(t), realDir(t)
	write(t, dir, "script.sh", "x")
	write(t, dir, "scripts/a", "x")
	write(t, dir, "real/b", "x")
	write(t, away, "c", "x")
	link(t, "real", dir+"/linked")
	link(t, dir+"/script.sh", away+"/outside")
	scope := Scope{Roots: []string{dir}, Also: []string{away + "/outside", dir + "/scripts", dir + "/linked/b", dir + "/none", away + "/c"}}
	before := taken(t, scope)
	for _, name := range []string{"script.sh", "scripts/a", "scripts/new", "real/b", "none"} {
		write(t, dir, name, "y")
	}
	write(t, away, "c", "y")
	got := told(dir, Compare(before, taken(t, before.Scope())))
	if want := lines("  none: new", "  real/b: changed", "  script.sh: changed", "  scripts/a: changed", "  scripts/new: new"); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := taken(t, Scope{Roots: []string{dir}, Also: []string{dir}}); len(got.Incomplete) != 1 {
		t.Errorf("the whole directory: %+v", got.Incomplete)
	}
	for _, s := range []Scope{{Roots: []string{dir}, Also: []string{"x"}}, {Roots: []string{dir}, Also: []string{""}}, {Roots: []string{dir}, Home: "x"}, {Home: dir}} {
		if _, err := Take(context.Background(), s); err == nil {
			t.Errorf("%+v is looked at", s)
		}
	}
}

// TestMountOfOneFile: whatever it is called, it is compared.
func TestMountOfOneFile(t *testing.T) {
	dir := realDir(t)
	write(t, dir, ".bashrc", "x")
	write(t, dir, "some.conf", "x")
	write(t, dir, "beside", "x")
	roots := []string{dir + "/.bashrc", dir + "/some.conf"}
	before := snapshot(t, roots...)
	if len(before.Files) != 2 || before.Files[0].Pattern != ".bashrc" || before.Files[1].Pattern != rowMount || before.Incomplete != nil {
		t.Fatalf("%+v", before)
	}
	write(t, dir, "beside", "y")
	if got := told(dir, Compare(before, snapshot(t, roots...))); got != "" {
		t.Errorf("nothing happened to them:\n%s", got)
	}
	write(t, dir, ".bashrc", "y")
	write(t, dir, "some.conf", "y")
	if got := told(dir, Compare(before, snapshot(t, roots...))); got != lines("  .bashrc: changed", "  some.conf: changed") {
		t.Errorf("got\n%s", got)
	}
	must(t, os.Remove(dir+"/some.conf"))
	must(t, os.Remove(dir+"/.bashrc"))
	must(t, os.Mkdir(dir+"/.bashrc", 0o755))
	if got := told(dir, Compare(before, snapshot(t, roots...))); got != lines("  some.conf: was not looked at", "  .bashrc: removed") {
		t.Errorf("gone:\n%s", got)
	}
}
