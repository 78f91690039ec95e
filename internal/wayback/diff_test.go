package wayback

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// after is what a report says of what f does in a project.
func after(t *testing.T, before, f func(dir string)) string {
	t.Helper()
	dir := realDir(t)
	repository(t, dir)
	if before != nil {
		before(dir)
	}
	then := snapshot(t, dir)
	if out := told(dir, Compare(then, snapshot(t, dir))); out != "" {
		t.Errorf("nothing happened, and the report is\n%s", out)
	}
	f(dir)
	return told(dir, Compare(then, snapshot(t, dir)))
}

func TestCompare(t *testing.T) {
	for what, tt := range map[string]struct {
		before, agent func(dir string)
		want          string
	}{
		"honest work": {nil, func(d string) {
			write(t, d, "file", "more\n")
			write(t, d, "Makefile", "all:\n")
			git(t, d, "commit", "-qam", "work")
			git(t, d, "checkout", "-qb", "branch")
			git(t, d, "config", "user.name", "Agent")
			write(t, d, ".gitattributes", "* text=auto\n*.png binary\n")
			write(t, d, ".gitmodules", "[submodule \"x\"]\npath = x\nurl = y\nupdate = rebase\n")
			write(t, d, ".git/hooks/pre-commit.sample", "x")
			must(t, os.Mkdir(d+"/.vscode", 0o755))
			write(t, d, ".git/objects/0a/.envrc", "nobody enters it")
			write(t, d, ".git/objects/pack/.envrc", "nobody enters it")
		}, ""},
		"objects of something else": {nil, func(d string) { write(t, d, "game/objects/.envrc", "x") }, lines("  game/objects/.envrc: new")},
		"hooks": {func(d string) {
			write(t, d, ".git/hooks/pre-push", "old")
			write(t, d, ".git/hooks/post-merge", "old")
			write(t, d, ".git/hooks/pre-rebase", "old")
			link(t, "../../file", d+"/.git/hooks/update")
		}, func(d string) {
			write(t, d, ".git/hooks/pre-commit", "new")
			write(t, d, ".git/hooks/pre-push", "changed")
			must(t, os.Chmod(d+"/.git/hooks/post-merge", 0o755))
			must(t, os.Remove(d+"/.git/hooks/pre-rebase"))
			write(t, d, ".git/hooks/x.d/y", "new")
			write(t, d, "file", "a hook is a link to it")
		}, lines(
			"  .git/hooks/post-merge: is now executable",
			"  .git/hooks/pre-commit: new",
			"  .git/hooks/pre-push: changed",
			"  .git/hooks/pre-rebase: removed",
			"  .git/hooks/x.d/y: new",
			"  file: changed")},
		"keys": {func(d string) {
			git(t, d, "config", "core.pager", "less")
			git(t, d, "config", "core.editor", "vi")
			git(t, d, "config", "--add", "credential.helper", "a")
		}, func(d string) {
			git(t, d, "config", "core.pager", "sh -c evil")
			git(t, d, "config", "--unset", "core.editor")
			git(t, d, "config", "--add", "credential.helper", "b")
			git(t, d, "config", "filter.x.clean", "a\nb\x1b[2J")
			git(t, d, "config", "alias.st", "!x")
			write(t, d, ".git/config", read(t, d+"/.git/config")+"[core]\nfsmonitor\n")
		}, lines(
			`  .git/config: alias.st new: none → "!x"`,
			`  .git/config: core.editor removed: "vi" → none`,
			`  .git/config: core.fsmonitor new: none → "true"`,
			`  .git/config: core.pager changed: "less" → "sh -c evil"`,
			`  .git/config: credential.helper changed: "a" → "a", "b"`,
			`  .git/config: filter.x.clean new: none → "a\nb\x1b[2J"`)},
		"a configuration that git cannot read": {nil, func(d string) {
			write(t, d, ".git/config", "[core]\npager = x\n!")
		}, lines("  .git/config: changed, cannot be read as git config: line 3", `  .git/config: core.pager new: none → "x"`)},
		"an order of what matters": {nil, func(d string) {
			write(t, d, ".envrc", "x")
			write(t, d, "node_modules/a/.npmrc", "x")
			write(t, d, "z/.npmrc", "x")
			git(t, d, "config", "core.pager", "x")
			write(t, d, ".git/hooks/pre-commit", "x")
			write(t, d, ".git/config.worktree", "[core]\nhooksPath = x\n")
			write(t, d, ".git/commondir", "/x\n")
		}, lines(
			"! .git/commondir: new",
			`! .git/config.worktree: core.hooksPath new: none → "x"`,
			"  .git/hooks/pre-commit: new",
			`  .git/config: core.pager new: none → "x"`,
			"  .envrc: new",
			"  z/.npmrc: new",
			"  node_modules/a/.npmrc: new")},
		".git becomes a file": {nil, func(d string) {
			must(t, os.Rename(d+"/.git", d+"/other"))
			write(t, d, ".git", "gitdir: other\n")
		}, lines(
			"! .git: is now a file",
			"  other: new")},
		".git becomes a link": {nil, func(d string) {
			must(t, os.Rename(d+"/.git", d+"/.other"))
			link(t, ".other", d+"/.git")
		}, lines(
			"! .git: is now a symbolic link to .other",
			"  .other: new")},
		"a gitfile": {func(d string) { write(t, d, "sub/.git", "gitdir: a\n") }, func(d string) {
			write(t, d, "sub/.git", "gitdir: b\n")
			write(t, d, "new/.git", "gitdir: b\n")
		}, lines("! new/.git: new", "! sub/.git: changed")},
		"a new repository": {nil, func(d string) {
			git(t, d, "init", "-q", "sub")
			git(t, d+"/sub", "config", "core.pager", "x")
			write(t, d, "sub/.git/hooks/pre-commit", "x")
		}, lines(
			"  sub/.git/hooks/pre-commit: new",
			`  sub/.git/config: core.pager new: none → "x"`,
			"  sub/.git: new")},
		"a planted bare repository": {nil, func(d string) {
			write(t, d, "doc/HEAD", "ref: refs/heads/main\n")
			must(t, os.MkdirAll(d+"/doc/refs", 0o755))
			must(t, os.MkdirAll(d+"/doc/objects/x", 0o755))
			write(t, d, "doc/config", "[core]\nfsmonitor = x\n")
			write(t, d, "doc/hooks/pre-commit", "x")
			write(t, d, "pic/HEAD", "ref: refs/heads/main\n")
			write(t, d, "pic/commondir", "../doc\n")
			write(t, d, "not/HEAD", "")
			write(t, d, "not/config", "[core]\nfsmonitor = x\n")
		}, lines(
			"! pic/commondir: new",
			"  doc/hooks/pre-commit: new",
			`  doc/config: core.fsmonitor new: none → "x"`,
			"  doc: new",
			"  pic: new")},
		"a worktree": {nil, func(d string) {
			git(t, d, "worktree", "add", "-q", d+"/tree")
		}, lines("! tree/.git: new", "  .git/worktrees/tree/gitdir: new")},
		"a worktree sent elsewhere": {func(d string) { git(t, d, "worktree", "add", "-q", d+"/tree") }, func(d string) {
			write(t, d, ".git/worktrees/tree/commondir", "/x\n")
			write(t, d, ".git/worktrees/tree/gitdir", "/x\n")
			write(t, d, ".git/worktrees/tree/config.worktree", "[core]\npager = x\n")
		}, lines(
			"! .git/worktrees/tree/commondir: new",
			`! .git/worktrees/tree/config.worktree: core.pager new: none → "x"`,
			"! .git/worktrees/tree/gitdir: changed")},
		"a submodule": {func(d string) {
			repository(t, d+"/../inner")
		}, func(d string) {
			git(t, d, "submodule", "--quiet", "add", d+"/../inner", "sub")
			write(t, d, ".git/modules/sub/hooks/post-checkout", "x")
			write(t, d, ".gitmodules", read(t, d+"/.gitmodules")+"update = !evil\n")
		}, lines(
			"! sub/.git: new",
			"  .git/modules/sub/hooks/post-checkout: new",
			`  .git/modules/sub/config: core.worktree new: none → "../../../sub"`,
			`  .git/modules/sub/config: remote.origin.url new: none → "../inner"`,
			`  .gitmodules: submodule.sub.update new: none → "!evil"`,
			"  .git/modules/sub: new")},
		"attributes": {func(d string) {
			write(t, d, ".gitattributes", "*.a filter=x\n")
			write(t, d, "sub/.gitattributes", "* text\n")
		}, func(d string) {
			write(t, d, ".gitattributes", "* filter=x\n")
			write(t, d, "sub/.gitattributes", "* diff=y\n")
			write(t, d, "new/.gitattributes", "[attr]q merge=z\n")
			write(t, d, ".git/info/attributes", "* filter=x\n")
		}, lines("  .git/info/attributes: new", "  .gitattributes: changed", "  new/.gitattributes: new", "  sub/.gitattributes: changed")},
		"what goes on on the host": {func(d string) {
			write(t, d, ".git/rebase-apply/apply-opt", "x")
			write(t, d, ".git/sequencer/todo", "pick x\n")
		}, func(d string) {
			write(t, d, ".git/rebase-merge/git-rebase-todo", "exec evil\n")
			write(t, d, ".git/rebase-merge/strategy", "../evil\n")
			write(t, d, ".git/sequencer/opts", "[options]\nstrategy = ../evil\n")
			must(t, os.RemoveAll(d+"/.git/rebase-apply"))
			must(t, os.Remove(d+"/.git/sequencer/todo"))
			write(t, d, ".git/lazygit.yml", "x")
		}, lines("  .git/lazygit.yml: new", "  .git/rebase-merge/git-rebase-todo: new", "  .git/rebase-merge/strategy: new", "  .git/sequencer/opts: new")},
		"objects": {nil, func(d string) {
			write(t, d, ".git/objects/info/alternates", "/x\n")
			for _, hidden := range []string{".git/objects/r/.git", ".git/objects/abc", ".git/objects/AB", ".git/objects/aa", ".git/objects/pack"} {
				write(t, d, hidden+"/HEAD", "ref: refs/heads/main\n")
				write(t, d, hidden+"/config", "[core]\nfsmonitor = x\n")
				must(t, os.MkdirAll(d+"/"+hidden+"/objects", 0o755))
				must(t, os.MkdirAll(d+"/"+hidden+"/refs", 0o755))
			}
		}, lines(
			`  .git/objects/AB/config: core.fsmonitor new: none → "x"`,
			`  .git/objects/abc/config: core.fsmonitor new: none → "x"`,
			`  .git/objects/r/.git/config: core.fsmonitor new: none → "x"`,
			"  .git/objects/AB: new",
			"  .git/objects/abc: new",
			"  .git/objects/info/alternates: new",
			"  .git/objects/r/.git: new")},
		"objects that are a repository": {nil, func(d string) {
			write(t, d, ".git/objects/HEAD", "ref: refs/heads/main\n")
			must(t, os.Mkdir(d+"/.git/objects/objects", 0o755))
			must(t, os.Mkdir(d+"/.git/objects/refs", 0o755))
			write(t, d, ".git/objects/config", "[core]\nfsmonitor = x\n")
		}, lines(`  .git/objects/config: core.fsmonitor new: none → "x"`, "  .git/objects: new")},
		"set-user-ID": {func(d string) {
			write(t, d, "old", "x")
			write(t, d, "was", "x")
			must(t, unix.Chmod(d+"/was", 0o4755))
			write(t, d, "stays", "x")
			must(t, unix.Chmod(d+"/stays", 0o2755))
			write(t, d, ".envrc", "x")
			write(t, d, "sub/dir/x", "x")
			must(t, unix.Chmod(d+"/sub/dir", 0o2755)) // of a directory it means something else
		}, func(d string) {
			must(t, unix.Chmod(d+"/old", 0o4755))
			must(t, unix.Chmod(d+"/was", 0o755))
			must(t, unix.Chmod(d+"/.envrc", 0o2644))
			must(t, unix.Chmod(d+"/sub/dir/x", 0o1755))
			write(t, d, ".git/logs/x", "x")
			must(t, unix.Chmod(d+"/.git/logs/x", 0o6755))
			write(t, d, ".npmrc", "x")
			must(t, unix.Chmod(d+"/.npmrc", 0o4755))
		}, lines(
			"  .envrc: is now set-user-ID or set-group-ID",
			"  .git/logs/x: is now set-user-ID or set-group-ID",
			"  .npmrc: is now set-user-ID or set-group-ID",
			"  .npmrc: new",
			"  old: is now set-user-ID or set-group-ID")},
		"programs, many at once": {func(d string) { write(t, d, "two/venv/bin/python", "x") }, func(d string) {
			for _, name := range []string{"a", "b", "c", "d"} {
				write(t, d, ".venv/bin/"+name, "x")
				write(t, d, ".venv/lib/python3/site-packages/"+name, "x")
				write(t, d, ".direnv/python-3/lib/site-packages/x/"+name, "x")
			}
			for _, name := range []string{"a", "b", "python"} {
				write(t, d, "two/venv/bin/"+name, "y")
			}
			write(t, d, ".direnv/x.rc", "x")
		}, lines(
			"  .direnv/x.rc: new",
			"  .venv/bin: 4 things in it are new, changed or removed",
			"  two/venv/bin/a: new",
			"  two/venv/bin/b: new",
			"  two/venv/bin/python: changed")},
		"what settings name": {func(d string) {
			write(t, d, "hooks/pre-commit", "old")
			write(t, d, "conf/git", "[core]\npager = less\n[include]\npath = more\n")
			write(t, d, "conf/more", "[core]\neditor = vi\n")
			write(t, d, "conf/attributes", "* text\n")
			write(t, d, "bin/clean.sh", "old")
			write(t, d, "bin/other.sh", "old")
			git(t, d, "config", "core.hooksPath", "hooks")
			git(t, d, "config", "include.path", "../conf/git")
			git(t, d, "config", "core.attributesFile", d+"/conf/attributes")
			git(t, d, "config", "filter.x.clean", "sh -c './bin/clean.sh %f'")
		}, func(d string) {
			write(t, d, "hooks/pre-commit", "changed")
			write(t, d, "hooks/pre-push", "new")
			write(t, d, "conf/git", "[core]\npager = evil\n[include]\npath = more\n")
			write(t, d, "conf/more", "[core]\neditor = evil\n")
			write(t, d, "conf/attributes", "* filter=x\n")
			write(t, d, "bin/clean.sh", "changed")
			write(t, d, "bin/other.sh", "changed")
		}, lines(
			"  hooks/pre-commit: changed",
			"  hooks/pre-push: new",
			`  conf/git: core.pager changed: "less" → "evil"`,
			`  conf/more: core.editor changed: "vi" → "evil"`,
			"  bin/clean.sh: changed",
			"  conf/attributes: changed")},
		"what links name": {func(d string) {
			write(t, d, "agents/x.md", "old")
			link(t, "agents", d+"/.claude")
			write(t, d, "env", "old")
			link(t, "../env", d+"/sub/.envrc")
		}, func(d string) {
			write(t, d, "agents/x.md", "changed")
			write(t, d, "env", "changed")
		}, lines("  agents/x.md: changed", "  env: changed")},
		"the whole directory": {nil, func(d string) { git(t, d, "config", "core.hooksPath", ".") }, lines(
			"  .: was not looked at",
			`  .git/config: core.hooksPath new: none → "."`)},
		"kinds": {func(d string) {
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				write(t, d, name+"/.envrc", "old")
			}
			link(t, "x", d+"/f/.envrc")
		}, func(d string) {
			for _, name := range []string{"a", "b", "c", "d", "f"} {
				must(t, os.Remove(d+"/"+name+"/.envrc"))
			}
			mkfifo(t, d+"/a/.envrc")
			link(t, "/etc/passwd", d+"/b/.envrc")
			must(t, os.Mkdir(d+"/c/.envrc", 0o755))
			link(t, "y\x1b", d+"/f/.envrc")
			must(t, os.Truncate(d+"/e/.envrc", readMost+1))
		}, lines(
			"  a/.envrc: is now a FIFO",
			"  b/.envrc: is now a symbolic link to /etc/passwd",
			"  c/.envrc: is now a directory",
			"  d/.envrc: removed",
			"  e/.envrc: changed, larger than 1 MiB: 1048577 bytes",
			`  f/.envrc: is now a symbolic link to y\x1b`)},
		"a large file of the same size": {func(d string) {
			write(t, d, ".mcp.json", strings.Repeat("a", readMost+1))
		}, func(d string) {
			f, err := os.OpenFile(d+"/.mcp.json", os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("b"), 7)
			must(t, err)
			must(t, f.Close())
			must(t, os.Chtimes(d+"/.mcp.json", time.Unix(1, 0), time.Unix(1, 0)))
		}, lines("  .mcp.json: changed, larger than 1 MiB: 1048577 bytes")},
		"touched, or copied over itself": {func(d string) { write(t, d, ".envrc", "same") }, func(d string) {
			must(t, os.Remove(d+"/.envrc"))
			write(t, d, ".envrc", "same")
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if got := after(t, tt.before, tt.agent); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

func read(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	must(t, err)
	return string(b)
}

// TestHostObeysWhatIsWatched: the fact behind the first rows of the table.
func TestHostObeysWhatIsWatched(t *testing.T) {
	for what, plant := range map[string]func(dir, evil string){
		"commondir":     func(d, evil string) { write(t, d, ".git/commondir", evil+"/.git\n") },
		"HEAD, objects": func(d, evil string) { must(t, os.RemoveAll(d)); must(t, os.Rename(evil+"/.git", d)) },
		"HEAD, commondir": func(d, evil string) {
			must(t, os.RemoveAll(d))
			write(t, d, "HEAD", "ref: refs/heads/main\n")
			write(t, d, "commondir", evil+"/.git\n")
		},
		"gitfile":          func(d, evil string) { must(t, os.RemoveAll(d+"/.git")); write(t, d, ".git", "gitdir: "+evil+"/.git\n") },
		"include":          func(d, evil string) { git(t, d, "config", "include.path", evil+"/.git/config") },
		"a NUL in a name":  func(d, evil string) { write(t, d, ".git/config", "[alias \"owned\x00\"]\nx = !echo owned\n") },
		"nothing, at last": nil,
	} {
		dir := realDir(t)
		repository(t, dir+"/p")
		repository(t, dir+"/evil")
		git(t, dir+"/evil", "config", "alias.owned", "!echo owned")
		if plant != nil {
			plant(dir+"/p", dir+"/evil")
		}
		out, _ := host(t, dir+"/p", "owned")
		if got := out == "owned\n"; got != (plant != nil) {
			t.Errorf("%s: %q", what, out)
		}
		if plant != nil {
			before := Snapshot{Version: version, Roots: []Raw{Raw(dir + "/p")}}
			if got := Compare(before, snapshot(t, dir+"/p")); len(got) == 0 {
				t.Errorf("%s: nothing is told", what)
			}
		}
	}
}

// TestHostGoesOn: the fact behind the rows of what git goes on with.
func TestHostGoesOn(t *testing.T) {
	for what, plant := range map[string]func(dir string){
		"cherry-pick": func(d string) { write(t, d, ".git/sequencer/opts", "[options]\n\tstrategy = ../evil\n") },
		"rebase":      func(d string) { write(t, d, ".git/rebase-merge/strategy", "../evil\n") },
	} {
		dir := realDir(t)
		repository(t, dir)
		git(t, dir, "checkout", "-qb", "topic")
		for _, n := range []string{"1", "2", "3"} {
			write(t, dir, "file", n)
			git(t, dir, "commit", "-qam", n)
		}
		git(t, dir, "checkout", "-q", "main")
		write(t, dir, "file", "z")
		git(t, dir, "commit", "-qam", "z")
		if what == "rebase" {
			git(t, dir, "checkout", "-q", "topic")
			host(t, dir, "rebase", "-q", "main")
		} else {
			host(t, dir, "cherry-pick", "topic~2", "topic~1", "topic")
		}
		before := snapshot(t, dir)
		plant(dir)
		write(t, dir, "git-merge-../evil", "#!/bin/sh\ntouch '"+dir+"/ran'\nexit 1\n")
		must(t, os.Chmod(dir+"/git-merge-../evil", 0o755))
		if got := told(dir, Compare(before, snapshot(t, dir))); strings.Count(got, "\n") != 1 || !strings.Contains(got, ": new") && !strings.Contains(got, ": changed") {
			t.Errorf("%s: told is\n%s", what, got)
		}
		write(t, dir, "file", "1")
		git(t, dir, "add", "file")
		out, _ := host(t, dir, "-c", "core.editor=true", what, "--continue")
		if _, err := os.Lstat(dir + "/ran"); err != nil {
			t.Errorf("%s does not run the strategy: %s", what, out)
		}
	}
}

// TestNames: every row of names is found where it is, and nothing beside it.
func TestNames(t *testing.T) {
	dir := realDir(t)
	want := map[string]string{}
	for i, pattern := range patterns(GroupName) {
		name := strings.ReplaceAll(pattern, "*", "x")
		if strings.HasSuffix(name, "/") {
			name += "sub/thing"
		}
		at := filepath.Join(dir, "d"+string(rune('a'+i/26))+string(rune('a'+i%26)))
		text := "x"
		switch pattern {
		case rowGitmodules:
			text = "[submodule \"x\"]\nupdate = !x\n"
		case rowGitattributes:
			text = "* filter=x\n"
		case rowGitconfig:
			text = "[user]\nname = x\n"
		}
		write(t, at, name, text)
		write(t, at, "x"+name+"x", text) // a neighbour
		want[at+"/"+name] = pattern
	}
	before := Snapshot{Version: version, Roots: []Raw{Raw(dir)}}
	after := snapshot(t, dir)
	for _, f := range after.Files {
		if f.Kind == folder {
			continue
		}
		if want[string(f.Path)] != f.Pattern {
			t.Errorf("%s is of %s, want %q", f.Path, f.Pattern, want[string(f.Path)])
		}
		delete(want, string(f.Path))
	}
	for p := range want {
		t.Errorf("%s is not found", p)
	}
	if got := Compare(before, after); len(got) != len(patterns(GroupName)) {
		t.Errorf("%d findings of %d", len(got), len(patterns(GroupName)))
	}
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Table() {
		if e.Group == "" || e.Pattern == "" || len(e.Reason) < 10 || strings.HasSuffix(e.Reason, ".") {
			t.Errorf("%+v", e)
		}
		if seen[e.Group+e.Pattern] {
			t.Errorf("%s is there twice", e.Pattern)
		}
		seen[e.Group+e.Pattern] = true
		if e.Group != GroupKey && rowOf(e.Pattern).Group != e.Group {
			t.Errorf("%s of %s is taken for %s", e.Pattern, e.Group, rowOf(e.Pattern).Group)
		}
	}
	for _, name := range []string{
		".envrc", ".vscode/", ".devcontainer/", ".devcontainer.json", ".idea/", ".cursor/", ".mcp.json", "opencode.json", "opencode.jsonc", ".opencode/", ".claude/", ".husky/",
		".pre-commit-config.yaml", ".npmrc", ".yarnrc*", ".mise.toml", "mise.toml", ".tool-versions", ".github/workflows/", "corral.yaml",
	} {
		if !seen[GroupName+name] {
			t.Errorf("%s is not in the table", name)
		}
	}
	if e := rowOf("of another version"); e.Reason == "" {
		t.Error("a row that is not known has no reason")
	}
	Table()[0].Reason = ""
	if table[0].Reason == "" {
		t.Error("the table can be changed from outside")
	}
}

// TestGaps: what was not looked at is neither new nor removed.
func TestGaps(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "a/.envrc", "x")
	write(t, dir, "b/.envrc", "x")
	full := snapshot(t, dir)
	half := snapshot(t, dir)
	half.Files = half.Files[:1] // a/.envrc
	half.Incomplete = []Gap{{Path: Raw(dir + "/b"), Why: "a reason", Below: Raw(dir + "/b")}}
	if got := told(dir, Compare(full, half)); got != lines("  b: was not looked at") {
		t.Errorf("later:\n%s", got)
	}
	if got := told(dir, Compare(half, full)); got != lines("  b/.envrc: was not looked at before") {
		t.Errorf("earlier:\n%s", got)
	}
	half.Files, half.Incomplete[0].Below = nil, Raw(dir)
	if got := told(dir, Compare(full, half)); got != lines("  b: was not looked at") {
		t.Errorf("cut off:\n%s", got)
	}
	other := snapshot(t, dir+"/a")
	if got := told(dir, Compare(full, other)); got != lines("  .: was not looked at") {
		t.Errorf("other directories:\n%s", got)
	}
	if got := told(dir, Compare(other, full)); got != lines("  b/.envrc: was not looked at before") {
		t.Errorf("other directories before:\n%s", got)
	}
}

// TestStandingGaps: a place that neither look was at is told once, and not as
// something that happened.
func TestStandingGaps(t *testing.T) {
	gap := func(p, why string) Gap { return Gap{Path: Raw(p), Why: why, Below: Raw(p)} }
	look := func(gaps ...Gap) Snapshot {
		return Snapshot{Version: version, Roots: []Raw{"/r"}, Files: []File{{Path: "/r/z/.envrc", Pattern: ".envrc", Kind: fifo}}, Incomplete: gaps}
	}
	for what, tt := range map[string]struct {
		before, after Snapshot
		want          string
	}{
		"none":       {look(), look(), ""},
		"gone":       {look(gap("/r/a", "x")), look(), ""},
		"appeared":   {look(), look(gap("/r/a", "x")), lines("  a: was not looked at")},
		"stands":     {look(gap("/r/a", "x")), look(gap("/r/a", "x")), lines("  a: was not looked at before either")},
		"changed":    {look(gap("/r/a", "x")), look(gap("/r/a", "y")), lines("  a: was not looked at")},
		"two stand":  {look(gap("/r/a", "x"), gap("/r/b", "x")), look(gap("/r/a", "x"), gap("/r/b", "x")), lines("  a: was not looked at before either, nor were 1 other places")},
		"one of two": {look(gap("/r/a", "x")), look(gap("/r/a", "x"), gap("/r/b", "x")), lines("  b: was not looked at", "  a: was not looked at before either")},
	} {
		if got := told("/r", Compare(tt.before, tt.after)); got != tt.want {
			t.Errorf("%s: got\n%swant\n%s", what, got, tt.want)
		}
	}
}

func TestLineIsSafe(t *testing.T) {
	f := Finding{Path: "/a\x1b[2J\nb\xff", What: "new\u202e", Target: "\x07", Reason: "r\r", Key: "k\x00", Old: []string{"\x1b"}, New: nil}
	if got, want := f.String(), `/a\x1b[2J\nb\xff: k\x00 new\u202e to \a: "\x1b" → none: r\r`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestRunsNothing: neither git nor anything else is started in a repository
// that asks for it.
func TestRunsNothing(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	mark := realDir(t) + "/mark"
	for _, key := range []string{"core.fsmonitor", "core.pager", "alias.st", "filter.x.clean"} {
		git(t, dir, "config", key, "touch "+mark)
	}
	write(t, dir, ".gitattributes", "* filter=x\n")
	_, err := Shield(dir, Options{})
	must(t, err)
	snapshot(t, dir)
	if _, err := os.Lstat(mark); err == nil {
		t.Error("something was run")
	}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	must(t, err)
	if strings.Contains(string(out), "os/exec\n") {
		t.Error("the package can run programs")
	}
}
