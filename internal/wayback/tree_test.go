package wayback

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// TestHostile is a tree that was made to hang, mislead or rob whoever looks.
func TestHostile(t *testing.T) {
	out, dir := realDir(t), realDir(t)
	write(t, out, "secret", "the secret")
	mkfifo(t, dir+"/a/.envrc")
	mkfifo(t, dir+"/.git/config")
	mkfifo(t, dir+"/.git/hooks/pre-commit")
	link(t, out+"/secret", dir+"/.vscode/tasks.json")
	link(t, out, dir+"/.idea")
	link(t, out, dir+"/.github")
	link(t, "../b/loop", dir+"/b/loop")
	link(t, ".envrc", dir+"/b/.envrc")
	link(t, "..", dir+"/b/.claude")
	must(t, os.Mkdir(dir+"/c", 0o755))
	must(t, os.Mkdir(dir+"/c/.envrc", 0o755))
	write(t, dir, "c/.envrc/.npmrc", "x")
	write(t, dir, ".mcp.json", "")
	must(t, os.Truncate(dir+"/.mcp.json", 1<<30))
	write(t, dir, "d\x1b[2J\n\xff\\/.envrc", "x")
	write(t, dir, ".cursor/\xfe\"\\x00", "x")
	must(t, unix.Mknod(dir+"/a/.npmrc", unix.S_IFSOCK|0o644, 0))

	type seen struct{ kind, why, target, sum string }
	got := map[string]seen{}
	s := snapshot(t, dir)
	for _, f := range s.Files {
		if f.Kind == folder && f.way() {
			continue
		}
		if f.Sum != "" {
			f.Sum = "read"
		}
		got[strings.TrimPrefix(string(f.Path), dir+"/")] = seen{f.Kind, f.Why, string(f.Target), f.Sum}
	}
	want := map[string]seen{
		".git":                    {folder, "", "", ""},
		".git/config":             {fifo, "", "", ""},
		".git/hooks/pre-commit":   {fifo, "", "", ""},
		"a/.envrc":                {fifo, "", "", ""},
		"a/.npmrc":                {socket, "", "", ""},
		".vscode/tasks.json":      {symlink, "", out + "/secret", ""},
		".idea":                   {symlink, "", out, ""},
		".github":                 {symlink, "", out, ""},
		"b/.envrc":                {symlink, "", ".envrc", ""},
		"b/.claude":               {symlink, "", "..", ""},
		"c/.envrc":                {folder, "", "", ""},
		"c/.envrc/.npmrc":         {regular, "", "", "read"},
		".mcp.json":               {regular, "larger than 1 MiB: 1073741824 bytes", "", ""},
		"d\x1b[2J\n\xff\\/.envrc": {regular, "", "", "read"},
		".cursor/\xfe\"\\x00":     {regular, "", "", "read"},
	}
	for p, w := range want {
		if got[p] != w {
			t.Errorf("%q is %+v, want %+v", p, got[p], w)
		}
		delete(got, p)
	}
	for p, g := range got {
		t.Errorf("%q is %+v, of no interest", p, g)
	}
	if len(s.Incomplete) != 1 || s.Incomplete[0].Path != Raw(dir) { // b/.claude
		t.Errorf("not looked at: %+v", s.Incomplete)
	}
	odd := told(dir, s.Odd())
	if want := lines(
		"  .: was not looked at",
		"  .git/hooks/pre-commit: a FIFO",
		"  .git/config: a FIFO",
		"  .github: a symbolic link to "+out,
		"  .idea: a symbolic link to "+out,
		"  .mcp.json: larger than 1 MiB: 1073741824 bytes",
		"  .vscode/tasks.json: a symbolic link to "+out+"/secret",
		"  a/.envrc: a FIFO",
		"  a/.npmrc: a socket",
		"  b/.claude: a symbolic link to ..",
		"  b/.envrc: a symbolic link to .envrc",
		"  c/.envrc: a directory"); odd != want {
		t.Errorf("odd:\n%swant\n%s", odd, want)
	}
}

// TestReplacedByAPipe, between the look and the opening too.
func TestReplacedByAPipe(t *testing.T) {
	dir := realDir(t)
	write(t, dir, ".envrc", "x")
	write(t, dir, ".git/config", "[core]\npager = x\n")
	before := snapshot(t, dir)
	must(t, os.Remove(dir+"/.envrc"))
	must(t, os.Remove(dir+"/.git/config"))
	mkfifo(t, dir+"/.envrc")
	mkfifo(t, dir+"/.git/config")
	if got, want := told(dir, Compare(before, snapshot(t, dir))), lines(
		"  .git/config: is now a FIFO", `  .git/config: core.pager removed: "x" → none`, "  .envrc: is now a FIFO"); got != want {
		t.Errorf("got\n%s", got)
	}
	fd, err := at(root(t, dir).fd, ".envrc", unix.O_RDONLY|careful, 0) // as if it had been a file a moment before
	must(t, err)
	unix.Close(fd)

	// Under somebody who never stops swapping it.
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := fmt.Sprintf("%s/next%d", dir, i%4)
			os.Remove(p)
			switch i % 4 {
			case 0:
				unix.Mkfifo(p, 0o644)
			case 1:
				os.Symlink("/etc/passwd", p)
			case 2:
				os.WriteFile(p, []byte("y"), 0o644)
			case 3:
				unix.Mknod(p, unix.S_IFSOCK|0o644, 0)
			}
			os.Rename(p, dir+"/.envrc")
		}
	}()
	for range 300 {
		for _, f := range snapshot(t, dir).Files {
			if f.Sum != "" && f.Path == Raw(dir+"/.envrc") && f.Sum != digest([]byte("y")) {
				t.Errorf("%+v", f)
			}
		}
	}
	close(stop)
	<-stopped
}

// TestDevices are looked at and never opened.
func TestDevices(t *testing.T) {
	testenv.Require(t, "netns") // root, for mknod
	dir := realDir(t)
	for name, dev := range map[string]int{"zero": int(unix.Mkdev(1, 5)), "null": int(unix.Mkdev(1, 3))} {
		must(t, os.Mkdir(dir+"/"+name, 0o755))
		must(t, unix.Mknod(dir+"/"+name+"/.envrc", unix.S_IFCHR|0o666, dev))
	}
	s := snapshot(t, dir)
	if len(s.Files) != 2 || s.Files[0].Kind != device || s.Files[1].Kind != device || s.Files[0].Sum != "" {
		t.Errorf("%+v", s.Files)
	}
	write(t, dir, ".git/HEAD", "x")
	must(t, unix.Mknod(dir+"/.git/config", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	if _, err := Shield(dir, Options{}); err == nil || !strings.Contains(err.Error(), "it is a device") {
		t.Errorf("%v", err)
	}
}

// nest makes directories in each other, each called d, without a path that
// grows.
func nest(t *testing.T, dir string, deep int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range deep {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	t.Cleanup(func() { exec.Command("rm", "-rf", dir+"/d").Run() })
}

func TestDepth(t *testing.T) {
	for _, tt := range []struct{ deep, gaps int }{{depthMost, 0}, {depthMost + 1, 1}, {3_000, 1}} { // the last is longer than a path may be
		dir := realDir(t)
		nest(t, dir, tt.deep)
		write(t, dir, "z/.envrc", "x") // after it
		s := snapshot(t, dir)
		if len(s.Incomplete) != tt.gaps || len(s.Files) != 1 {
			t.Errorf("%d: %+v, %d files", tt.deep, s.Incomplete, len(s.Files))
		}
		if tt.gaps > 0 {
			g := s.Incomplete[0]
			if g.Why != "deeper than 256 directories" || g.Below != g.Path || strings.Count(string(g.Path), "/d") != depthMost+1 {
				t.Errorf("%d: %s in %s", tt.deep, g.Why, g.Path)
			}
		}
		if _, whole := Repositories(t.Context(), dir, 1); whole != (tt.gaps == 0) {
			t.Errorf("%d: the census is whole: %v", tt.deep, whole)
		}
	}
	dir := realDir(t)
	must(t, os.Mkdir(dir+"/.claude", 0o755))
	nest(t, dir+"/.claude", 3_000)
	if s := snapshot(t, dir); len(s.Incomplete) == 0 {
		t.Error("a tree of a row has no depth")
	}
	must(t, os.MkdirAll(dir+"/.git/modules", 0o755))
	nest(t, dir+"/.git/modules", 100)
	if _, err := Shield(dir, Options{}); err == nil || !strings.Contains(err.Error(), "deeper than") {
		t.Errorf("%v", err)
	}
}

// TestEnd: a look that ends early says where, and looks at git first.
func TestEnd(t *testing.T) {
	dir := realDir(t)
	write(t, dir, ".git/hooks/pre-commit", "x")
	write(t, dir, "z/.envrc", "x")
	for i := range 100 {
		write(t, dir, fmt.Sprintf("-%02d/x", i), "")
	}
	whole := snapshot(t, dir)
	s, err := take(t.Context(), Scope{Roots: []string{dir, dir + "/z"}}, 150)
	must(t, err)
	if len(s.Incomplete) != 2 || s.Incomplete[0].Why != "stopped here: too many entries" || s.Incomplete[0].Below != Raw(dir) ||
		s.Incomplete[1] != (Gap{Raw(dir + "/z"), "not looked at: too many entries", Raw(dir + "/z")}) {
		t.Errorf("%+v", s.Incomplete)
	}
	if len(s.Files) != 3 || s.Files[2].Pattern != rowHooks {
		t.Errorf("%+v", s.Files)
	}
	for _, f := range Compare(whole, s) {
		if f.What != notLooked {
			t.Errorf("%v", f)
		}
	}
	s, err = Take(ended(), Scope{Roots: []string{dir}})
	must(t, err)
	if len(s.Files) != 0 || len(s.Incomplete) != 1 || s.Incomplete[0].Why != "stopped here: context canceled" {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if s, err = Take(ctx, Scope{Roots: []string{dir}}); err != nil || len(s.Incomplete) != 1 || s.Incomplete[0].Why != "stopped here: context deadline exceeded" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, roots := range [][]string{nil, {""}, {"x"}, {dir + "/"}, {dir + "/../x"}} {
		if _, err := Take(t.Context(), Scope{Roots: roots}); err == nil {
			t.Errorf("%q is looked at", roots)
		}
	}
	if s := snapshot(t, dir+"/none", dir+"/z"); len(s.Files) != 1 || len(s.Incomplete) != 1 || s.Incomplete[0].Path != Raw(dir+"/none") {
		t.Errorf("%+v", s)
	}
	if s := snapshot(t, dir+"/z/.envrc"); len(s.Files) != 1 || s.Files[0].Sum == "" || s.Incomplete != nil {
		t.Errorf("a single file: %+v", s)
	}
}

// TestUnreadable runs as somebody who may not.
func TestUnreadable(t *testing.T) {
	const path = "CORRAL_TEST_UNREADABLE"
	if dir := os.Getenv(path); dir != "" {
		fmt.Print(told(dir, snapshot(t, dir).Odd()))
		_, err := Shield(dir+"/r", Options{})
		fmt.Print(strings.ReplaceAll(fmt.Sprintln(err), dir+"/", ""))
		_, whole := Repositories(t.Context(), dir, 9)
		fmt.Println(whole)
		return
	}
	dir := realDir(t)
	write(t, dir, ".envrc", "x")
	write(t, dir, "a/.envrc", "x")
	write(t, dir, "b/.envrc", "x")
	write(t, dir, ".claude/x", "x")
	repository(t, dir+"/r")
	must(t, os.RemoveAll(dir+"/r/.git/info"))
	modes := map[string]os.FileMode{".envrc": 0, "a": 0, "b": 0o444, ".claude": 0, "r/.git": 0o555}
	for name, mode := range modes {
		must(t, os.Chmod(dir+"/"+name, mode))
		t.Cleanup(func() { os.Chmod(dir+"/"+name, 0o755) })
	}
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	bin := realDir(t) + "/self"
	must(t, os.WriteFile(bin, self, 0o755))
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^TestUnreadable$")
	cmd.Env = []string{path + "=" + dir}
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
		for _, d := range []string{dir, bin} { // the way there
			for ; d != "/tmp" && d != "/"; d = d[:strings.LastIndex(d, "/")] {
				if info, err := os.Stat(d); err == nil && info.IsDir() {
					os.Chmod(d, 0o755)
				}
			}
		}
	}
	out, err := cmd.CombinedOutput()
	got, _, _ := strings.Cut(string(out), "PASS")
	if want := lines(
		"  .claude: was not looked at",
		"  a: was not looked at",
		"  .envrc: unreadable: permission denied",
		"  b/.envrc: of an unknown kind, unreadable: permission denied",
		"shield r/.git/config.worktree: permission denied",
		"false"); err != nil || got != want {
		t.Errorf("%v\n%swant\n%s", err, out, want)
	}
}

// TestMuch: what an agent can make corral read and remember has an end that is
// told.
func TestMuch(t *testing.T) {
	dir := realDir(t)
	write(t, dir, ".claude/x", "x")
	write(t, dir, ".git/config", "[core]\npager = x\n")
	before := snapshot(t, dir)
	tk := taker{budget: budget{t.Context(), 100}, files: map[string]File{}, handles: map[string]*directory{}, root: dir, read: readsMost + 1}
	tk.takeRoot()
	for _, d := range tk.handles {
		d.close()
	}
	after := Snapshot{Version: version, Roots: before.Roots}
	for _, f := range before.Files {
		g := tk.files[string(f.Path)]
		if g.Kind != f.Kind || g.Sum != "" || f.Kind == regular && g.Why != "not read: more than 256 MiB were read before it" {
			t.Errorf("%+v", g)
		}
		after.Files = append(after.Files, g)
	}
	if got := told(dir, Compare(before, after)); got != "" {
		t.Errorf("unread and unchanged, but\n%s", got)
	}
	write(t, dir, ".claude/x", "y")
	f, _ := unread(root(t, dir), ".claude/x", ".claude/")
	after.Files[slices.IndexFunc(after.Files, func(g File) bool { return g.Path == f.Path })] = f
	if got, want := told(dir, Compare(before, after)), lines("  .claude/x: changed, not read: more than 256 MiB were read before it"); got != want {
		t.Errorf("got\n%s", got)
	}
}

// TestMemory: files of settings, each as large as may be, in every line of
// which something executes.
func TestMemory(t *testing.T) {
	dir := realDir(t)
	for i := range 4 {
		write(t, dir, fmt.Sprintf("%d/.git/config", i), "[alias]\n"+strings.Repeat("a\n", readMost/2-4))
	}
	s, err := Take(t.Context(), Scope{Roots: []string{dir}})
	must(t, err)
	if len(s.Incomplete) != 1 || s.Incomplete[0].Path != Raw(dir+"/1/.git/config") || s.Incomplete[0].Why != "stopped here: too much that is watched" {
		t.Errorf("%+v", s.Incomplete)
	}
}

// TestOverlap: two roots, one in the other, tell each file once.
func TestOverlap(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "a/.envrc", "x")
	if s := snapshot(t, dir, dir+"/a"); len(s.Files) != 1 || s.Incomplete != nil {
		t.Errorf("%+v", s)
	}
}

// TestAcrossRoots: settings of one mount name files of another.
func TestAcrossRoots(t *testing.T) {
	one, two := realDir(t), realDir(t)
	repository(t, one)
	write(t, two, "hooks/pre-commit", "x")
	git(t, one, "config", "core.hooksPath", two+"/hooks")
	before := snapshot(t, one, two)
	write(t, two, "hooks/pre-commit", "y")
	if got := told(two, Compare(before, snapshot(t, one, two))); got != lines("  hooks/pre-commit: changed") {
		t.Errorf("got\n%s", got)
	}
}

func BenchmarkTake(b *testing.B) {
	dir := realDir(b)
	repository(b, dir)
	for i := range 2000 { // 200,000 entries, as node_modules has them
		d := fmt.Sprintf("%s/node_modules/p%d/lib/x", dir, i)
		must(b, os.MkdirAll(d, 0o755))
		for j := range 96 {
			must(b, os.WriteFile(fmt.Sprintf("%s/file-%d.js", d, j), nil, 0o644))
		}
		write(b, d, ".npmrc", "x")
	}
	for b.Loop() {
		s, err := Take(b.Context(), Scope{Roots: []string{dir}})
		if err != nil || s.Incomplete != nil {
			b.Fatal(err, s.Incomplete)
		}
	}
}
