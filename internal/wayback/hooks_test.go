package wayback

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What hooks run is told whichever way they name it, and nothing else is: an agent
// has more than one way to have another row of the table claim a file.
func TestNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir, away string)
		want   string
	}{
		{"nothing", func(*testing.T, string, string) {}, ""},
		{"something else", func(t *testing.T, dir, _ string) { write(t, dir, ".envrc", "y"); write(t, dir, "beside", "y") }, ""},
		{"written", func(t *testing.T, dir, _ string) { write(t, dir, "script.sh", "y") }, "  script.sh: changed\n"},
		{"written, and told by its mode", func(t *testing.T, dir, _ string) {
			write(t, dir, "script.sh", "y")
			must(t, os.Chmod(dir+"/script.sh", 0o755|os.ModeSetuid))
		}, "  script.sh: changed\n  script.sh: is now set-user-ID or set-group-ID\n"},
		{"of a row of the table", func(t *testing.T, dir, _ string) { write(t, dir, ".husky/pre", "y") }, "  .husky/pre: changed\n"},
		{"by a link outside", func(t *testing.T, dir, _ string) { write(t, dir, "led", "y") }, "  led: changed\n"},
		{"by a link inside", func(t *testing.T, dir, _ string) { write(t, dir, "real/b", "y") }, "  real/b: changed\n"},
		{"in a directory", func(t *testing.T, dir, _ string) { write(t, dir, "scripts/new", "y") }, "  scripts/new: new\n"},
		{"gone", func(t *testing.T, dir, _ string) { must(t, os.Remove(dir+"/script.sh")) }, "  script.sh: removed\n"},
		{"was not there", func(t *testing.T, dir, _ string) { write(t, dir, "none", "y") }, "  none: new\n"},
		{"a link instead", func(t *testing.T, dir, _ string) {
			must(t, os.Remove(dir+"/script.sh"))
			link(t, "beside", dir+"/script.sh")
		}, "  beside: new\n  script.sh: is now a symbolic link to beside\n"},
		{"another link", func(t *testing.T, dir, _ string) {
			must(t, os.Remove(dir+"/linked"))
			link(t, "scripts", dir+"/linked")
		}, "  linked: is now a symbolic link to scripts\n"},
		{"cannot be looked at", func(t *testing.T, dir, _ string) {
			must(t, os.Remove(dir+"/script.sh"))
			must(t, unix.Mkfifo(dir+"/script.sh", 0o755))
		}, "  script.sh: is now a FIFO\n"},
		{"a single file", func(t *testing.T, _, away string) { write(t, away, "single", "y") }, "single: changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, away := realDir(t), realDir(t)
			for _, name := range []string{"script.sh", "scripts/a", "real/b", "led", "beside", ".husky/pre"} {
				write(t, dir, name, "x")
			}
			write(t, away, "single", "x")
			link(t, "real", dir+"/linked")
			link(t, dir+"/led", away+"/outside")
			paths := []string{away + "/outside", dir + "/script.sh", dir + "/scripts", dir + "/linked/b", dir + "/none", dir + "/.husky/pre", away + "/single", away + "/c"}
			before := taken(t, Scope{Roots: []string{dir, away + "/single"}, Also: paths})
			c.change(t, dir, away)
			findings, err := Named(t.Context(), before, paths)
			got := told(dir, findings)
			if err != nil || got != c.want && (c.want == "" || strings.HasPrefix(c.want, "  ") || !strings.Contains(got, c.want)) {
				t.Errorf("%v, got\n%swant\n%s", err, got, c.want)
			}
		})
	}
}

// What was not looked at before, a whole directory, and a look that was cut short
// are no leave to run anything.
func TestNamedCannotTell(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "a", "x")
	for name, c := range map[string]struct {
		paths []string
		want  int
	}{
		"it was not named before": {[]string{dir + "/a"}, 1},
		"the whole directory":     {[]string{dir}, 1},
		"nothing":                 {nil, 0},
		"elsewhere":               {[]string{"/a"}, 0},
	} {
		if got, err := Named(t.Context(), snapshot(t, dir), c.paths); err != nil || len(got) != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := Named(t.Context(), Snapshot{}, []string{"/a"}); err != nil || got != nil {
		t.Errorf("no agent could write: %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := Named(ctx, taken(t, Scope{Roots: []string{dir}, Also: []string{dir + "/a"}}), []string{dir + "/a"}); err != nil || len(got) == 0 {
		t.Errorf("cut short: %v, %v", got, err)
	}
	must(t, os.RemoveAll(dir))
	if got, err := Named(t.Context(), Snapshot{Roots: []Raw{Raw(dir)}}, []string{dir + "/a"}); err != nil || len(got) == 0 {
		t.Errorf("the directory is gone: %v, %v", got, err)
	}
}

// A later look is about what the older one did not see, and nothing is told less.
func TestSince(t *testing.T) {
	old, added := realDir(t), realDir(t)
	for _, dir := range []string{old, added} {
		write(t, dir, ".envrc", "x")
		write(t, dir, "script", "x")
	}
	first := taken(t, Scope{Roots: []string{old}, Also: []string{old + "/script"}})
	write(t, old, ".envrc", "y")
	write(t, old, "script", "y")
	write(t, added, ".envrc", "before it was a mount")
	both := taken(t, Scope{Roots: []string{added, old}, Also: []string{added + "/script", old + "/script"}}).Since(first)
	if err := both.valid(); err != nil {
		t.Fatal(err)
	}
	write(t, added, "script", "y")
	got := told(old, Compare(both, taken(t, both.Scope())))
	if want := lines("  .envrc: changed", "  script: changed", added+"/script: changed"); strings.ReplaceAll(got, "  /", "/") != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := first.Since(Snapshot{}); len(got.Files) != len(first.Files) {
		t.Errorf("after nothing: %+v", got)
	}
	if got := (Snapshot{}).Since(first); got.valid() != nil || len(got.Files) != len(first.Files) {
		t.Errorf("before nothing: %+v", got)
	}
}
