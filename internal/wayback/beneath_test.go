package wayback

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func root(t testing.TB, dir string) *directory {
	t.Helper()
	d, err := openRoot(dir)
	must(t, err)
	t.Cleanup(d.close)
	return d
}

// TestBeneath holds both ways of opening to the same answers.
func TestBeneath(t *testing.T) {
	outside, dir := realDir(t), realDir(t)
	write(t, outside, "secret", "s")
	write(t, dir, "a/b/file", "f")
	link(t, "file", dir+"/a/b/link")
	link(t, outside, dir+"/out")
	link(t, "a", dir+"/in")
	link(t, "loop", dir+"/loop")
	d := root(t, dir)
	const pathOnly = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for _, tt := range []struct {
		name  string
		flags int
		want  error
	}{
		{"a", careful, nil},
		{"a/b", careful, nil},
		{"a/b/file", careful, nil},
		{"a/b/file", careful | unix.O_DIRECTORY, unix.ENOTDIR},
		{"a/b/file/x", careful, unix.ENOTDIR},
		{"a/none", careful, unix.ENOENT},
		{"none/a", careful, unix.ENOENT},
		{"a/b/link", careful, unix.ELOOP},
		{"a/b/link", pathOnly, nil}, // the link itself
		{"out", careful, unix.ELOOP},
		{"out/secret", careful, unix.ELOOP},
		{"out/secret", pathOnly, unix.ELOOP},
		{"in/b/file", careful, unix.ELOOP},
		{"loop", careful, unix.ELOOP},
		{"", careful, unix.EINVAL},
		{".", careful, unix.EINVAL},
		{"..", careful, unix.EINVAL},
		{"a/../a", careful, unix.EINVAL},
		{"a/..", careful, unix.EINVAL},
		{"a//b", careful, unix.EINVAL},
		{"/", careful, unix.EINVAL},
		{outside + "/secret", careful, unix.EINVAL},
		{"a/b/file\x00", careful, unix.EINVAL},
	} {
		for way, open := range map[string]func(int, string, int, uint32) (int, error){"scoped": scoped, "stepwise": stepwise} {
			fd, err := open(d.fd, tt.name, tt.flags, 0)
			if err == nil {
				unix.Close(fd)
			}
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("%s %q %#x: %v, want %v", way, tt.name, tt.flags, err, tt.want)
			}
		}
	}
}

// TestStepwiseClosesItsWay would run out of handles otherwise.
func TestStepwiseClosesItsWay(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "a/b/c/file", "f")
	d := root(t, dir)
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(names)
	}
	before := count()
	for range 50 {
		for _, name := range []string{"a/b/c/file", "a/b/none/file", "a/none"} {
			if fd, err := stepwise(d.fd, name, careful, 0); err == nil {
				unix.Close(fd)
			}
		}
	}
	if after := count(); after > before+20 {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

func TestRead(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "empty", "")
	write(t, dir, "most", strings.Repeat("x", readMost))
	write(t, dir, "more", strings.Repeat("x", readMost+1))
	mkfifo(t, dir+"/fifo")
	link(t, "empty", dir+"/link")
	must(t, os.Mkdir(dir+"/dir", 0o755))
	must(t, unix.Mknod(dir+"/socket", unix.S_IFSOCK|0o644, 0))
	d := root(t, dir)
	for name, want := range map[string]string{
		"empty": "", "most": "", "more": "larger than 1 MiB: 1048577 bytes",
		"fifo": errNotRegular.Error(), "link": errNotRegular.Error(), "dir": errNotRegular.Error(), "socket": errNotRegular.Error(),
		"none": unix.ENOENT.Error(),
	} {
		b, st, err := d.read(name)
		if err == nil && want == "" {
			if int64(len(b)) != st.Size {
				t.Errorf("%s: %d bytes of %d", name, len(b), st.Size)
			}
			continue
		}
		if err == nil || err.Error() != want || b != nil {
			t.Errorf("%s: %d bytes, %v, want %q", name, len(b), err, want)
		}
	}
	if _, _, err := root(t, "/dev").read("zero"); err != errNotRegular {
		t.Errorf("/dev/zero: %v", err)
	}
	// A file that says it is empty and is not.
	if b, _, err := root(t, "/proc").read("version"); err != nil || len(b) < 10 {
		t.Errorf("/proc/version: %d bytes, %v", len(b), err)
	}
}

func TestEachGivesBytes(t *testing.T) {
	dir := realDir(t)
	want := []string{"-x", "a\nb", "\x1b[31m", "\xff\xfe", strings.Repeat("n", 255)}
	for _, name := range want {
		write(t, dir, name, "")
	}
	for range 1000 { // more than one read of the directory
		want = append(want, "f"+strings.Repeat("0", len(want)%200)+string(rune('a'+len(want)%26)))
		write(t, dir, want[len(want)-1], "")
	}
	var got []string
	must(t, root(t, dir).each(func(name string, kind byte) error {
		if kind != unix.DT_REG {
			t.Errorf("%q is %d", name, kind)
		}
		got = append(got, name)
		return nil
	}))
	slices.Sort(want)
	slices.Sort(got)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("%d names, want %d", len(got), len(want))
	}
	stop := errors.New("enough")
	if err := root(t, dir).each(func(string, byte) error { return stop }); err != stop {
		t.Errorf("got %v", err)
	}
}

func TestPaths(t *testing.T) {
	for _, tt := range []struct {
		root, path, want string
		ok               bool
	}{
		{"/a", "/a", "", true},
		{"/a", "/a/b", "b", true},
		{"/a", "/ab", "", false},
		{"/a", "/", "", false},
		{"/", "/a", "a", true},
		{"/", "/", "", true},
		{"/", "", "", false},
		{"/a", "", "", false},
		{"/ab", "/a", "", false},
		{"/a", "/b/c", "", false},
	} {
		if got, ok := rel(tt.root, tt.path); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s in %s: %q %v", tt.path, tt.root, got, ok)
		}
	}
	for p, want := range map[string]bool{
		"../x": false, "../../x": false, "x": false, "./x/y": false, "/x": false, "..": false, "./../x": false, "x..y": false,
		"x/..": true, "x/../y": true, "../x/../y": true, "/..": true, "/x/../y": true,
	} {
		if got := dotdot(p); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}
