package wayback

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatch: what came and went between the beginning and the end is told, at
// a clock that the test holds.
func TestWatch(t *testing.T) {
	dir := everything(t)
	away := realDir(t)
	for what, tt := range map[string]struct {
		come func(dir string)
		gone func(dir string)
		want string
	}{
		"honest work": {func(d string) {
			git(t, d, "commit", "-q", "--allow-empty", "-m", "x")
			git(t, d, "gc", "-q")
			git(t, d, "worktree", "add", "-q", "./new")
			git(t, d, "worktree", "remove", "new")
		}, nil, ""},
		"commondir": {func(d string) { write(t, d, ".git/commondir", "x") }, func(d string) { must(t, os.Remove(d+"/.git/commondir")) },
			lines("! .git/commondir: was there while the sandbox ran")},
		"commondir that leads on": {func(d string) { link(t, "x\x1b", d+"/.git/modules/b/commondir") }, func(d string) { must(t, os.Remove(d+"/.git/modules/b/commondir")) },
			lines(`! .git/modules/b/commondir: was there while the sandbox ran, a symbolic link to x\x1b`)},
		"commondir of a worktree": {func(d string) { write(t, d, ".git/worktrees/tree/commondir", "x\n") }, func(d string) { write(t, d, ".git/worktrees/tree/commondir", "../..\n") },
			lines("! .git/worktrees/tree/commondir: was another while the sandbox ran")},
		".git": {func(d string) {
			must(t, os.Rename(d+"/.git", d+"/.old"))
			write(t, d, ".git", "gitdir: .old\n")
		}, func(d string) {
			must(t, os.Remove(d+"/.git"))
			must(t, os.Rename(d+"/.old", d+"/.git"))
		}, lines("! .git: was another while the sandbox ran", "! .git/worktrees/tree/commondir: was gone while the sandbox ran", "! .git/worktrees/tree/gitdir: was gone while the sandbox ran")},
		".git, gone": {func(d string) { must(t, os.Rename(d+"/.git", d+"/.old")) }, func(d string) { must(t, os.Rename(d+"/.old", d+"/.git")) },
			lines("! .git: was replaced while the sandbox ran", "! .git/worktrees/tree/commondir: was gone while the sandbox ran", "! .git/worktrees/tree/gitdir: was gone while the sandbox ran")},
		"the root": {func(d string) { must(t, os.Rename(d, away+"/x")) }, func(d string) { must(t, os.Rename(away+"/x", d)) },
			lines("! .: could not be looked at while the sandbox ran")},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				before := snapshot(t, dir)
				w := Watch(ctx, []string{dir}, nil)
				pass := func() {
					<-time.After(interval)
					synctest.Wait()
				}
				pass()
				if got := told(dir, w.Seen()); got != "" {
					t.Errorf("at first:\n%s", got)
				}
				tt.come(dir)
				pass()
				if tt.gone != nil {
					tt.gone(dir)
				}
				pass()
				got := w.Seen()
				if told(dir, got) != tt.want {
					t.Errorf("got\n%swant\n%s", told(dir, got), tt.want)
				}
				if all := told(dir, Join(Compare(before, snapshot(t, dir)), got)); all != tt.want {
					t.Errorf("at the end\n%swant\n%s", all, tt.want)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// TestWatchBetweenLooks: what came and went between two looks is told, since the
// kernel told it. Nothing looks here but Seen.
func TestWatchBetweenLooks(t *testing.T) {
	dir := everything(t)
	git(t, dir, "worktree", "add", "-q", dir+"/inside")
	binds, err := Shield(dir, Options{})
	must(t, err)
	bound := map[string]string{}
	for _, b := range binds {
		bound[strings.TrimPrefix(b.Path, dir+"/")] = b.Path
	}
	swap := func(name, text string) func() {
		return func() {
			must(t, os.Rename(dir+"/"+name, dir+"/kept"))
			write(t, dir, name, text)
			must(t, os.Rename(dir+"/kept", dir+"/"+name))
		}
	}
	for what, tt := range map[string]struct {
		do   func()
		want string
	}{
		"nothing": {func() {}, ""},
		"honest work": {func() {
			git(t, dir, "commit", "-q", "--allow-empty", "-m", "x")
			git(t, dir, "gc", "-q")
			git(t, dir+"/b", "commit", "-q", "--allow-empty", "-m", "x")
			git(t, dir+"/inside", "commit", "-q", "--allow-empty", "-m", "x")
			git(t, dir, "worktree", "list")
			write(t, dir, "notes.txt", "x")
			write(t, dir, "src/.gitignore", "x")
		}, ""},
		"commondir": {func() {
			write(t, dir, ".git/t", "x")
			must(t, os.Rename(dir+"/.git/t", dir+"/.git/commondir"))
			must(t, os.Rename(dir+"/.git/commondir", dir+"/.git/t"))
		}, lines("! .git/commondir: was there while the sandbox ran")},
		"commondir of a submodule": {func() {
			write(t, dir, ".git/modules/libs/a/modules/deep/commondir", "x")
			must(t, os.Remove(dir+"/.git/modules/libs/a/modules/deep/commondir"))
		}, lines("! .git/modules/libs/a/modules/deep/commondir: was there while the sandbox ran")},
		"a submodule sent elsewhere":          {swap("b/.git", "gitdir: x"), lines("! b/.git: was replaced while the sandbox ran")},
		"a submodule in one":                  {swap("a/deep/.git", "gitdir: x"), lines("! a/deep/.git: was replaced while the sandbox ran")},
		"a worktree sent elsewhere":           {swap("inside/.git", "gitdir: x"), lines("! inside/.git: was replaced while the sandbox ran")},
		"the gitdir of a worktree":            {swap(".git/worktrees/inside/gitdir", "x"), lines("! .git/worktrees/inside/gitdir: was replaced while the sandbox ran")},
		"the gitdir of a worktree, as it was": {func() { write(t, dir, ".git/worktrees/inside/gitdir", dir+"/inside/.git\n") }, ""},
		"written in place": {func() {
			was := read(t, dir+"/b/.git")
			write(t, dir, "b/.git", "gitdir: x")
			write(t, dir, "b/.git", was)
		}, lines("! b/.git: was written while the sandbox ran")},
		"written by a second name": {func() {
			must(t, os.Link(dir+"/b/.git", dir+"/second"))
			was := read(t, dir+"/b/.git")
			write(t, dir, "second", "gitdir: x")
			write(t, dir, "second", was)
			must(t, os.Remove(dir+"/second"))
		}, lines("! b/.git: was written while the sandbox ran")},
		"a directory put aside": {func() {
			must(t, os.Rename(dir+"/b", dir+"/kept"))
			write(t, dir, "b/.git", "gitdir: x")
			must(t, os.RemoveAll(dir+"/b"))
			must(t, os.Rename(dir+"/kept", dir+"/b"))
		}, lines("! b/.git: was in a directory that was put aside while the sandbox ran")},
		"git config on this machine": {func() {
			keep := dir + "/keep"
			must(t, os.Link(dir+"/.git/config", keep))
			git(t, dir, "config", "a.b", "c")
			must(t, os.Rename(keep, dir+"/.git/config"))
		}, lines("! .git/config: was replaced on this machine while the sandbox ran")},
		"a shield away and back": {func() {
			must(t, os.Rename(bound[".git/modules/b/hooks"], dir+"/kept"))
			must(t, os.Rename(dir+"/kept", bound[".git/modules/b/hooks"]))
		}, lines("! .git/modules/b/hooks: was taken away on this machine while the sandbox ran")},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := Watch(ctx, []string{dir}, binds)
			tt.do()
			// What a look adds is not wanted here: only what the kernel told.
			w.mu.Lock()
			w.drain()
			got := told(dir, ordered(slices.Collect(maps.Values(w.seen))))
			w.mu.Unlock()
			if got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
			if seen := told(dir, w.Seen()); seen != tt.want {
				t.Errorf("with a look\n%swant\n%s", seen, tt.want)
			}
			if lost := Lost(binds); len(lost) != 0 {
				t.Errorf("lost: %v", lost)
			}
		})
	}
}

// TestWatchWithoutNotices: where the kernel does not tell, or told less than
// happened, that is said, and the looks go on.
func TestWatchWithoutNotices(t *testing.T) {
	dir := realDir(t)
	repository(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := Watch(ctx, []string{dir}, nil)
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	must(t, os.WriteFile(dir+"/x", nil, 0o644))
	w.mu.Lock() // nobody takes them
	for range most/2 + 1 {
		must(t, os.Rename(dir+"/x", dir+"/y"))
		must(t, os.Rename(dir+"/y", dir+"/x"))
	}
	w.mu.Unlock()
	write(t, dir, ".git/commondir", "x")
	want := lines("! .: was watched only twice a second while the sandbox ran", "! .git/commondir: was there while the sandbox ran")
	if got := told(dir, w.Seen()); got != want {
		t.Errorf("too much at once:\n%s", got)
	}
	must(t, os.Remove(dir+"/.git/commondir"))

	w = &Watcher{roots: []string{dir}, at: map[string][]int{}, in: map[string][]int{}, seen: map[string]Finding{}}
	w.polled(unix.EMFILE)
	w.begin(dir, nil)
	write(t, dir, ".git/commondir", "x")
	if got := told(dir, w.Seen()); got != want {
		t.Errorf("without inotify:\n%s", got)
	}
	w.end()
}

// TestWatchEnds: it leaves neither a descriptor nor a goroutine, and tells what
// happened before its end.
func TestWatchEnds(t *testing.T) {
	dir := everything(t)
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(names)
	}
	synctest.Test(t, func(t *testing.T) {
		before := open()
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			w := Watch(ctx, []string{dir}, nil)
			write(t, dir, ".git/commondir", "x")
			must(t, os.Remove(dir+"/.git/commondir"))
			cancel()
			synctest.Wait()
			if got := told(dir, w.Seen()); got != lines("! .git/commondir: was there while the sandbox ran") {
				t.Errorf("after the end\n%s", got)
			}
		}
		if now := open(); now != before {
			t.Errorf("%d descriptors, and %d before", now, before)
		}
	})
}

// TestWatchFile: a root that is one file has no name to watch.
func TestWatchFile(t *testing.T) {
	dir := realDir(t)
	write(t, dir, ".bashrc", "x")
	w := Watch(ended(), []string{dir + "/.bashrc"}, nil)
	if got := w.Seen(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestLost: what git does on the host to a file that is bound, told at one
// moment.
func TestLost(t *testing.T) {
	dir := everything(t)
	binds, err := Shield(dir, Options{})
	must(t, err)
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "x")
	git(t, dir, "gc", "-q")
	if got := Lost(binds); len(got) != 0 {
		t.Errorf("honest work: %v", got)
	}
	git(t, dir, "config", "a.b", "c")
	want := lines("! .git/config: was replaced on this machine while the sandbox ran")
	if got := told(dir, Lost(binds)); got != want {
		t.Errorf("once:\n%s", got)
	}
	// The number of the first inode may be given to the second copy.
	git(t, dir, "config", "a.b", "d")
	if got := told(dir, Lost(binds)); got != want {
		t.Errorf("twice:\n%s", got)
	}
	w := Watch(ended(), []string{dir}, binds)
	if got := told(dir, w.Seen()); got != want {
		t.Errorf("seen:\n%s", got)
	}
	if all := told(dir, Join([]Finding{{Path: dir + "/.git/config", What: isChanged}}, w.Seen())); all != lines("! .git/config: changed", "! .git/config: was replaced on this machine while the sandbox ran") {
		t.Errorf("joined:\n%s", all)
	}
	must(t, os.Remove(dir+"/.git/config"))
	link(t, "x", dir+"/.git/config")
	must(t, os.RemoveAll(dir+"/.git/modules/b"))
	got := told(dir, Lost(binds))
	for _, want := range []string{
		"! .git/config: was replaced on this machine while the sandbox ran, a symbolic link to x\n",
		"! .git/modules/b: was removed on this machine while the sandbox ran\n",
		"! .git/modules/b/hooks: was removed on this machine while the sandbox ran\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("not told: %s of\n%s", want, got)
		}
	}
	// Seen tells what is below something that is gone once.
	w = Watch(ended(), []string{dir}, binds)
	if got := told(dir, w.Seen()); strings.Contains(got, "modules/b/") || !strings.Contains(got, "modules/b:") {
		t.Errorf("seen:\n%s", got)
	}
	if got := Lost([]Bind{{Path: dir + "/.git/hooks"}}); len(got) != 1 {
		t.Errorf("a bind of nothing known holds: %v", got)
	}
	same := binds[0]
	if same.Born == 0 {
		t.Fatal("the file system of the temporary directory does not tell when a file was made")
	}
	same.Born = 0
	if got := Lost([]Bind{same}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	for _, other := range []Bind{{same.Path, false, same.Dev, same.Ino + 1, 0}, {same.Path, false, same.Dev + 1, same.Ino, 0}} {
		if got := Lost([]Bind{other}); len(got) != 1 {
			t.Errorf("another inode is taken for it: %v", got)
		}
	}
	same.Born = 1
	if got := Lost([]Bind{same}); len(got) != 1 {
		t.Error("another file with the same number is taken for the first")
	}
	if got := told(dir, Watch(ended(), nil, binds[:1]).Seen()); got != lines("! .git: is bound, but in no directory that is looked at") {
		t.Errorf("a shield outside:\n%s", got)
	}
}

// TestSeenLooks: what is there at the end needs no tick.
func TestSeenLooks(t *testing.T) {
	dir := realDir(t)
	before := snapshot(t, dir)
	w := Watch(ended(), []string{dir}, nil)
	if got := w.Seen(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	write(t, dir, "HEAD", "ref: refs/heads/main\n")
	write(t, dir, "commondir", "/x\n")
	write(t, dir, ".git", "gitdir: x\n")
	seen := w.Seen()
	if got, want := told(dir, seen), lines("! .git: was there while the sandbox ran", "! commondir: was there while the sandbox ran"); got != want {
		t.Errorf("got\n%s", got)
	}
	// The comparison says the same, and once is enough.
	if got, want := told(dir, Join(Compare(before, snapshot(t, dir)), seen)), lines("! .git: new", "! commondir: new", "  .: new"); got != want {
		t.Errorf("got\n%s", got)
	}
	must(t, os.RemoveAll(dir))
	if got := told(dir, Watch(ended(), []string{dir}, nil).Seen()); got != lines("! .: could not be looked at while the sandbox ran") {
		t.Errorf("got\n%s", got)
	}
}
