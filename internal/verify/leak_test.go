package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

const (
	leakToken = "s3cr\xffet-value"
	leakOther = "another\x1bSecret"
)

func TestSecretAbsentElsewhere(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	t.Setenv("OTHER", leakOther)
	t.Setenv("LONGER", "prefix-"+leakOther)
	t.Setenv("SEVEN", "1234567")
	t.Setenv("EIGHT", "123456-A")
	t.Setenv("DB_HOST", "localhost")
	t.Setenv("MODE", "infinity")
	t.Setenv("EMPTY", "")
	token := []string{"TOKEN"}
	big := strings.Repeat("x", largestSearched-len(leakToken))
	for _, tt := range []struct {
		name   string
		names  []string
		files  map[string]string
		result spec.Result
		detail string
	}{
		{"nowhere", []string{"TOKEN", "OTHER"}, map[string]string{"/etc/passwd": "root"}, spec.OK, ""},
		{"in a file", token, map[string]string{"/etc/leak": "a\x00b" + leakToken + "c"}, spec.Failed, "the value of TOKEN is in /etc/leak"},
		{"deep below", token, map[string]string{"/usr/local/a/b/c": leakToken}, spec.Failed, "/usr/local/a/b/c"},
		{"in /opt", token, map[string]string{"/opt/x": leakToken}, spec.Failed, "/opt/x"},
		{"in /run", token, map[string]string{"/run/x": leakToken}, spec.Failed, "/run/x"},
		{"in /var", token, map[string]string{"/var/x": leakToken}, spec.Failed, "/var/x"},
		{"a place that is no directory", token, map[string]string{"/var": leakToken, "/opt/x": leakToken}, spec.Failed, "the value of TOKEN is in /opt/x"},
		{"elsewhere", token, map[string]string{"/srv/x": leakToken, "/home/agent/x": leakToken}, spec.OK, ""},
		{"all but its last byte", token, map[string]string{"/etc/x": leakToken[:len(leakToken)-1]}, spec.OK, ""},
		{"across two pieces", token, map[string]string{"/etc/x": strings.Repeat("x", searchBlock+len(leakToken)-3) + leakToken}, spec.Failed, "/etc/x"},
		{"the largest file that is read", token, map[string]string{"/etc/x": big + leakToken}, spec.Failed, "/etc/x"},
		{"a larger one", token, map[string]string{"/etc/x": big + "1" + leakToken}, spec.OK, "1 files larger than 16 MiB were not looked into"},
		{"in a mount", token, map[string]string{"/opt/project/.env": leakToken}, spec.OK, ""},
		{"beside a mount", token, map[string]string{"/opt/project2/.env": leakToken}, spec.Failed, "/opt/project2/.env"},
		{"the name of a file", token, map[string]string{"/etc/x-" + leakToken: ""}, spec.Failed, "the value of TOKEN is in the name or the target of /etc/x-(TOKEN)"},
		{"the name of a directory", token, map[string]string{"/var/" + leakToken + "/": ""}, spec.Failed, "/var/(TOKEN)"},
		{"the command line of what lost its first thread", token, map[string]string{"/proc/7/status": "State:\tZ (zombie)\n" + strings.Replace(someoneElse(), "Threads:\t1", "Threads:\t2", 1), "/proc/7/cmdline": "",
			"/proc/7/task/8/status": someoneElse(), "/proc/7/task/8/cmdline": "curl\x00--token=" + leakToken}, spec.Failed, "the value of TOKEN is in the command line of thread 8 of process 7 (agent)"},
		{"a command line", token, map[string]string{"/proc/7/cmdline": "curl\x00--token=" + leakToken}, spec.Failed, "the value of TOKEN is in the command line of process 7 (agent)"},
		{"one in the other", []string{"OTHER", "LONGER"}, map[string]string{"/etc/prefix-" + leakOther: ""}, spec.Failed, "/etc/(LONGER)"},
		{"both", []string{"TOKEN", "OTHER"}, map[string]string{"/etc/a": leakOther + leakToken}, spec.Failed, "the value of OTHER is in /etc/a, the value of TOKEN is in /etc/a"},
		{"one is short", []string{"SEVEN", "EIGHT", "EMPTY"}, map[string]string{"/etc/a": "1234567"}, spec.OK, "not looked for, being shorter than 8 bytes: SEVEN, EMPTY"},
		{"just long enough", []string{"EIGHT"}, map[string]string{"/etc/a": "123456-A9"}, spec.Failed, "EIGHT"},
		{"a word that stands in the engine's own files", []string{"TOKEN", "DB_HOST", "SEVEN"}, map[string]string{"/etc/hosts": "127.0.0.1 localhost"}, spec.OK, "not looked for, being shorter than 8 bytes: SEVEN; too plain to be looked for: DB_HOST (a plain word)"},
		{"a leak beside such a word", []string{"DB_HOST", "TOKEN"}, map[string]string{"/etc/hosts": "127.0.0.1 localhost " + leakToken}, spec.Failed, "the value of TOKEN is in /etc/hosts"},
		{"nothing but such words", []string{"DB_HOST", "MODE"}, nil, spec.Untold, "too plain"},
		{"all are short", []string{"SEVEN"}, nil, spec.Untold, "every value is shorter than 8 bytes"},
		{"one that is not there", []string{"TOKEN", "NONE_OF_THESE"}, nil, spec.Untold, "NONE_OF_THESE is not in the environment"},
		{"none", nil, nil, spec.Untold, "no secrets were named"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"/proc/self/status": someoneElse(), "/proc/7/status": someoneElse(), "/proc/7/cmdline": "sh"}
			for name, content := range tt.files {
				files[name] = content
			}
			e := tree(t, files)
			c := spec.Check{Name: "secret-absent-elsewhere", Names: tt.names, Mount: []spec.Mount{{Target: "/opt/project"}}}
			want(t, e, c, tt.result, tt.detail)
			if got := examine(t.Context(), c, e); strings.Contains(got.detail, leakToken) || strings.Contains(got.detail, leakOther) {
				t.Errorf("it tells a secret: %q", got.detail)
			}
		})
	}
}

// What the agent itself wrote, it put there.
func TestSecretInOwnFile(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	e := tree(t, map[string]string{"/proc/self/status": statusFile(os.Getuid(), os.Getgid(), "", noCaps, 1, 2), "/var/tmp/" + leakToken: leakToken})
	want(t, e, spec.Check{Name: "secret-absent-elsewhere", Names: []string{"TOKEN"}}, spec.OK, "")
}

// However deep the agent's own directories are, they stand in nobody's way.
func TestSecretBelowOwnDeepDirectories(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	e := tree(t, map[string]string{"/proc/self/status": statusFile(os.Getuid(), os.Getgid(), "", noCaps, 1, 2), "/var/tmp/": "", "/etc/x": ""})
	bury(t, e.path("/var/tmp"), "", os.Getuid())
	want(t, e, spec.Check{Name: "secret-absent-elsewhere", Names: []string{"TOKEN"}}, spec.OK, "directories deeper than a path can name")
}

func TestSecretInLinkTarget(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	e := tree(t, map[string]string{"/proc/self/status": someoneElse(), "/etc/": ""})
	if err := os.Symlink("/x/"+leakToken, e.path("/etc/link")); err != nil {
		t.Fatal(err)
	}
	want(t, e, spec.Check{Name: "secret-absent-elsewhere", Names: []string{"TOKEN"}}, spec.Failed, "the target of /etc/link")
}

// An image of any size is looked through as far as there is time: small files
// wherever they are, then larger ones by size. What was left out is told.
func TestSecretInLargeImage(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	const many = 65 // of the largest that are read: more than a gibibyte
	e := tree(t, map[string]string{"/proc/self/status": someoneElse(), "/opt/": ""})
	for i := range many {
		if err := os.WriteFile(e.path(fmt.Sprintf("/opt/%03d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(e.path(fmt.Sprintf("/opt/%03d", i)), largestSearched); err != nil {
			t.Fatal(err)
		}
	}
	c := spec.Check{Name: "secret-absent-elsewhere", Names: []string{"TOKEN"}}
	if got := examine(t.Context(), c, e); got.result != spec.OK || strings.Contains(got.detail, "files larger") {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(e.path("/opt/x"), []byte(leakToken), 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, e, c, spec.Failed, "/opt/x")
}

// searchOf is a search of a tree for TOKEN by a user, and how its time ends.
func searchOf(t *testing.T, e *env, uid int) (*search, func()) {
	t.Helper()
	s := newSearch(t.Context(), e)
	s.uid, s.secrets = uint32(uid), []hidden{{"TOKEN", []byte(leakToken)}}
	return s, s.end
}

func TestSearchWithoutTime(t *testing.T) {
	const other = 4711
	size := func(n int) string { return strings.Repeat("x", n) }
	for _, tt := range []struct {
		name   string
		files  map[string]string
		uid    int
		ends   string // before which part
		result spec.Result
		detail string
	}{
		{"small files", map[string]string{"/etc/a": size(smallSearched)}, other, "places", spec.Untold, "too much to look through in time"},
		{"names", map[string]string{"/etc/a/": ""}, other, "places", spec.Untold, "too much"},
		{"nothing to look at", map[string]string{"/etc/": ""}, other, "places", spec.OK, ""},
		{"larger files", map[string]string{"/etc/a": size(smallSearched + 1), "/etc/b": size(99 << 10), "/etc/c": size(smallSearched)}, other, "rest", spec.OK, "2 files of 64 KiB and more were not looked into, for want of time"},
		{"only small files", map[string]string{"/etc/c": size(smallSearched)}, other, "rest", spec.OK, ""},
		{"a small leak and larger files", map[string]string{"/etc/a": size(smallSearched + 1), "/var/b": leakToken}, other, "rest", spec.Failed, "/var/b"},
		{"a larger leak", map[string]string{"/etc/a": size(smallSearched) + leakToken}, other, "never", spec.Failed, "/etc/a"},
		{"own directories", map[string]string{"/var/a/b/c": ""}, os.Getuid(), "owned", spec.OK, "1 directories of this user's own were not looked into"},
		{"own directories in time", map[string]string{"/var/a/b/c": ""}, os.Getuid(), "rest", spec.OK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, end := searchOf(t, tree(t, tt.files), tt.uid)
			defer end()
			for _, part := range []struct {
				name string
				run  func()
			}{{"places", s.places}, {"owned", s.owned}, {"rest", s.rest}} {
				if part.name == tt.ends {
					end()
				}
				part.run()
			}
			got := s.outcome(nil, nil)
			if got.result != tt.result || !strings.Contains(got.detail, tt.detail) || tt.detail == "" && got.detail != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The time of own directories that ends amid them is not the image's.
func TestSearchOfOwnDirectoriesIsCutOff(t *testing.T) {
	e := tree(t, map[string]string{"/etc/": "", "/var/own/x": "y"})
	s, end := searchOf(t, e, 4711)
	s.own = []string{e.path("/var/own")}
	s.granted = []string{"/var"}
	s.places()
	// It ends as the first name in them is looked at.
	s.ctx = &endsAfter{Context: s.ctx, asked: 1}
	s.owned()
	end()
	if got := s.outcome(nil, nil); got.result != spec.OK || !strings.Contains(got.detail, "1 directories of this user's own") {
		t.Errorf("%+v", got)
	}
}

// endsAfter is over once it was asked some times.
type endsAfter struct {
	context.Context
	asked int
}

func (c *endsAfter) Err() error {
	if c.asked--; c.asked < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// A directory of root's that may be entered and not listed is told; one that
// may not even be entered hides everything; one of this user's own may be opened
// again, so that nothing can be told.
func TestSearchInClosedDirectories(t *testing.T) {
	testenv.Require(t, "netns") // root: only it can be another user
	const user = 4711
	for _, tt := range []struct {
		name   string
		mode   os.FileMode
		owner  int
		result spec.Result
		detail string
	}{
		{"may be entered", 0o711, 0, spec.OK, "may be entered and not listed: /var/(TOKEN)"},
		{"closed", 0o700, 0, spec.OK, ""},
		{"open", 0o755, 0, spec.Failed, "the value of TOKEN is in /var/(TOKEN)/leak"},
		{"another user's", 0o711, user + 1, spec.OK, "may be entered and not listed"},
		{"own, closed", 0o000, user, spec.Untold, "may open it"},
		{"own, may be entered", 0o311, user, spec.Untold, "may open it"},
		{"own, open", 0o700, user, spec.Failed, "/leak"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := "/var/" + leakToken
			e := tree(t, map[string]string{dir + "/leak": leakToken, "/etc/x": "y"})
			if err := errors.Join(
				os.Chown(e.path(dir), tt.owner, -1), os.Chmod(e.path(dir), tt.mode),
				os.Chmod(e.root, 0o755), os.Chmod(filepath.Dir(e.root), 0o755), // the way there
			); err != nil {
				t.Fatal(err)
			}
			s, end := searchOf(t, e, user)
			defer end()
			s.slots = nil // all of it by one thread
			done := make(chan struct{})
			go func() {
				runtime.LockOSThread() // which ends with its rights
				if err := errors.Join(unix.Setfsgid(user), unix.Setfsuid(user)); err != nil {
					t.Error(err)
				}
				s.places()
				s.owned()
				s.rest()
				close(done)
			}()
			<-done
			// Whoever owns it, its name is the same: that was seen if it is not the user's.
			inName := func(f string) bool { return strings.Contains(f, "the name or the target") }
			if slices.ContainsFunc(s.found, inName) != (tt.owner != user) {
				t.Errorf("of names: %q", s.found)
			}
			s.found = slices.DeleteFunc(s.found, inName)
			if got := s.outcome(nil, nil); got.result != tt.result || !strings.Contains(got.detail, tt.detail) || tt.detail == "" && got.detail != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// In a directory that may be listed and not entered the names are all there is
// to see, and they are seen.
func TestSearchOfNamesAlone(t *testing.T) {
	testenv.Require(t, "netns") // root: only it can be another user
	const user = 4711
	e := tree(t, map[string]string{"/var/plain/" + leakToken: "x", "/etc/x": "y"})
	if err := errors.Join(os.Chmod(e.path("/var/plain"), 0o744), os.Chmod(e.root, 0o755), os.Chmod(filepath.Dir(e.root), 0o755)); err != nil {
		t.Fatal(err)
	}
	s, end := searchOf(t, e, user)
	defer end()
	s.slots = nil // all of it by one thread
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // which ends with its rights
		if err := errors.Join(unix.Setfsgid(user), unix.Setfsuid(user)); err != nil {
			t.Error(err)
		}
		s.places()
	}()
	<-done
	if got := s.outcome(nil, nil); got.result != spec.Failed || !strings.Contains(got.detail, "the name or the target of /var/plain/(TOKEN)") {
		t.Errorf("%+v", got)
	}
}

// However a text is cut into pieces, a secret in it is found.
func FuzzScan(f *testing.F) {
	f.Add([]byte("aaab"), []byte("aab"), uint8(0))
	f.Add([]byte("\x00\xff\x00\xff"), []byte("\xff\x00\xff"), uint8(1))
	f.Fuzz(func(t *testing.T, text, secret []byte, more uint8) {
		if len(secret) == 0 {
			return
		}
		s := search{ctx: t.Context(), secrets: []hidden{{"A", secret}}}
		n, held, err := s.scan(bytes.NewReader(text), make([]byte, len(secret)+int(more)))
		if err != nil || n != int64(len(text)) || (len(held) == 1) != bytes.Contains(text, secret) {
			t.Errorf("%d bytes, %v, %v", n, held, err)
		}
	})
}
