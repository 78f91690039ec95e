package wayback

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"
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
		}, lines("! .git: was another while the sandbox ran", "! .git/worktrees/tree/commondir: was gone while the sandbox ran")},
		".git, gone": {func(d string) { must(t, os.Rename(d+"/.git", d+"/.old")) }, func(d string) { must(t, os.Rename(d+"/.old", d+"/.git")) },
			lines("! .git: was gone while the sandbox ran", "! .git/worktrees/tree/commondir: was gone while the sandbox ran")},
		"the root": {func(d string) { must(t, os.Rename(d, away+"/x")) }, func(d string) { must(t, os.Rename(away+"/x", d)) },
			lines("! .: could not be looked at while the sandbox ran")},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				before := snapshot(t, dir)
				w := Watch(ctx, []string{dir})
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

// TestSeenLooks: what is there at the end needs no tick.
func TestSeenLooks(t *testing.T) {
	dir := realDir(t)
	before := snapshot(t, dir)
	w := Watch(ended(), []string{dir})
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
	if got := told(dir, Watch(ended(), []string{dir}).Seen()); got != lines("! .: could not be looked at while the sandbox ran") {
		t.Errorf("got\n%s", got)
	}
}
