package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/test/lab"
)

// R094: whatever a path holds, it is mounted, under its own name; what cannot
// be is refused with its place.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	home := filepath.Dir(s.dir)
	names := []string{"a b", "a:b", "a,b", "a$HOME", "a$$b", "a#b", `a"b'c`, `a\b`, "naïve", "-x", "end ", "a=b", "{a}", "%s", "ro", "a\u00a0b", "a\u3000b"}
	policy := "profile: shell\nname: odd\nmounts:\n  rw:\n"
	for _, n := range names {
		dir := filepath.Join(home, "odd", n)
		s.own(dir)
		policy += "    - " + strconv.Quote(dir) + "\n"
	}
	odd := s.another(filepath.Join(home, `p, "q":$HOME #'ü`), policy)
	odd.accept()
	script := "set -e; pwd; touch here\n"
	for _, n := range names {
		script += fmt.Sprintf("touch '%s/there'\n", strings.ReplaceAll(filepath.Join(home, "odd", n), "'", `'\''`))
	}
	if r := odd.sh(script); r.code != 0 || strings.TrimSuffix(r.out, "\n") != odd.dir {
		t.Fatal(r)
	}
	for _, n := range append(names, "../"+filepath.Base(odd.dir)) {
		file := "there"
		if strings.HasPrefix(n, "../") {
			file = "here"
		}
		if _, err := os.Stat(filepath.Join(home, "odd", n, file)); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
	if r := odd.corral("verify"); r.code != 0 {
		t.Error(r)
	}

	line := s.another(filepath.Join(home, "a\nb"), nothing)
	if r := line.corral("render", "--accept"); r.code != 2 || !strings.Contains(r.err, "control character") {
		t.Errorf("a path with a line feed: %v", r)
	}
}

// R083, R092: what is bound is what was judged, or nothing is started; nothing
// is made on the host in place of what is gone.
func TestMountsReplacedBeforeTheStart(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]string{
		"gone":     "rm -r ../mounted",
		"replaced": "mv ../mounted ../old && mkdir ../mounted",
		"a link":   "mv ../mounted ../old && ln -s old ../mounted",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cloned(t, 0, nothing)
			mounted := filepath.Join(filepath.Dir(s.dir), "mounted")
			s.own(mounted)
			s.write("corral.yaml", "profile: shell\nname: nothing\nmounts:\n  rw: ["+mounted+"]\nhooks:\n  pre_launch: ["+strconv.Quote(hook)+"]\n")
			r := s.corral("run", "--accept", "--", "true")
			if r.code != 2 || !strings.Contains(r.err, mounted+" was ") {
				t.Error(r)
			}
			if fi, err := os.Lstat(mounted); name == "gone" && err == nil {
				t.Errorf("it was made anew: %v", fi.Mode())
			}
		})
	}
}

// R086: what is mounted below a read-only mount is not writable inside, or
// nothing starts and the message names it.
func TestReadOnlyIsRecursive(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	notes := filepath.Join(filepath.Dir(s.dir), "notes")
	s.own(notes, notes+"/sub")
	if err := unix.Mount("none", notes+"/sub", "tmpfs", 0, "mode=0777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(notes+"/sub", unix.MNT_DETACH) })
	s.write("corral.yaml", "profile: shell\nname: nothing\nmounts:\n  ro: ["+notes+"]\n")
	r := s.corral("run", "--accept", "--", "sh", "-c", "touch "+notes+"/sub/x")
	refused := r.code == 2 && strings.Contains(r.err, notes+"/sub is mounted in it") && strings.Contains(r.err, "hint: ")
	readOnly := r.code == 1 && strings.Contains(r.err, "Read-only file system")
	if !refused && !readOnly {
		t.Error(r)
	}
	if _, err := os.Stat(notes + "/sub/x"); err == nil {
		t.Error("it was written")
	}
}

// What somebody mounts on the host below what is mounted, or takes away there, changes
// nothing inside, and the proof is of what is inside. What is mounted inside is found.
func TestVerifyMountedLater(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	before, later := s.dir+"/before", s.dir+"/later"
	s.own(before, later)
	var undo []string
	defer func() {
		for _, at := range undo {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}()
	tmpfs := func(at string) {
		t.Helper()
		if err := unix.Mount("none", at, "tmpfs", 0, "mode=0777"); err != nil {
			t.Fatal(err)
		}
		undo = append(undo, at)
	}
	tmpfs(before)
	end := s.up("echo up; read -r _", "up")
	defer end()
	tmpfs(later)
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("mounted on the host later: %v", r)
	}
	if err := unix.Unmount(before, 0); err != nil {
		t.Fatal(err)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("taken away on the host later: %v", r)
	}
	run(t, "nsenter", "--target", strconv.Itoa(pid(t, s.agent())), "--mount", "mount", "-t", "tmpfs", "none", later)
	if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.out, "FAIL mounts-only-declared: ") || !strings.Contains(r.out, later) {
		t.Errorf("mounted inside too: %v", r)
	}
}

// The agent is whoever the person is, whatever number that is, with a name.
func TestAnyPerson(t *testing.T) {
	t.Parallel()
	base := project(t, nothing)
	for _, id := range []uint32{1, 33, 65534, 1 << 31, 1<<32 - 2} {
		t.Run(fmt.Sprint(id), func(t *testing.T) {
			s := *base
			s.tb, s.uid, s.gid = t, id, id
			home := filepath.Join(filepath.Dir(base.dir), fmt.Sprint("home", id))
			s.own(home)
			s.env = append([]string{"HOME=" + home}, s.env...)
			for i, v := range s.env {
				if strings.HasPrefix(v, "HOME=") {
					s.env[i] = "HOME=" + home
				}
			}
			o := s.another(filepath.Join(filepath.Dir(base.dir), fmt.Sprint("p", id)), nothing)
			if r := o.corral("run", "--accept", "--", "sh", "-c", "touch made; id -u; id -un; echo $HOME; test -w $HOME"); r.code != 0 || r.out != fmt.Sprintf("%d\nagent\n/home/agent\n", id) {
				t.Error(r)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(o.dir, "made"), &st); err != nil || st.Uid != id || st.Gid != id {
				t.Errorf("%d:%d %v", st.Uid, st.Gid, err)
			}
		})
	}
	for _, id := range []uint32{64998, 64999} {
		s := *base
		s.uid, s.gid = id, id
		o := s.another(filepath.Join(filepath.Dir(base.dir), fmt.Sprint("p", id)), nothing)
		if r := o.corral("run", "--accept", "--", "true"); r.code != 2 || !strings.Contains(r.err, "which it never may") {
			t.Errorf("%d: %v", id, r)
		}
	}
}

// Limits hold, and verify reads them back.
func TestResources(t *testing.T) {
	t.Parallel()
	s := project(t, "profile: shell\nname: nothing\nresources: {memory: 64m, cpus: 0.5, pids: 40}\n")
	r := s.corral("verify")
	for _, check := range []string{"memory-limited", "cpus-limited", "pids-limited"} {
		if r.code != 0 || !strings.Contains(r.out, "ok   "+check+"\n") {
			t.Fatalf("%s: %v", check, r)
		}
	}
	if r := s.sh("head -c 200M /dev/zero | tail > /dev/null"); r.code == 0 { // tail keeps it all
		t.Errorf("200 MB were used: %v", r)
	}
	if r := s.sh("for i in $(seq 100); do sleep 60 & done"); r.code == 0 && !strings.Contains(r.err, "fork") {
		t.Errorf("100 processes were started: %v", r)
	}
}

// R085: what the agent leaves in the project decides nothing of the next start.
func TestLinksGrantNothing(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	aws := filepath.Join(filepath.Dir(s.dir), "home", ".aws")
	s.own(aws)
	s.private(".aws/credentials", "key\n", 0o600)
	link := "ln -sf " + aws + " aws; ln -sf " + aws + "/credentials key; ls aws/ key/ 2>&1; cat aws/credentials key"
	for range 2 {
		if r := s.sh(link); r.code == 0 || strings.Contains(r.out, "credentials\n") && !strings.Contains(r.out, "No such file") {
			t.Errorf("a link leads out: %v", r)
		}
	}
	if r := s.corral("policy", "diff"); r.code != 0 || r.out != "" {
		t.Errorf("the links count for something: %v", r)
	}
}

// R118: however little a policy says of the network, it is closed, in each mode.
func TestSilenceIsClosed(t *testing.T) {
	// Alone: nothing may reach the canary meanwhile.
	s := project(t, nothing)
	s.lab.Control(t, "corral")
	capture := s.lab.Capture(t, bridge)
	for _, egress := range []string{"", "egress: {}\n", "egress: {allow: []}\n", "egress: {defaults: true, refresh: manual}\n"} {
		s.write("corral.yaml", nothing+egress)
		r := s.corral("run", "--accept", "--", "bash", "-c", connect+fmt.Sprintf("t %v 443", lab.Canary))
		if r.code != 0 || !strings.HasPrefix(r.out, lab.Canary.String()+" 1 ") {
			t.Errorf("%q: %v", egress, r)
		}
	}
	const daemon = "mode: daemon\nprofile_options: {shell: {command: " + forever + "}}\n"
	for _, egress := range []string{"", "egress: {allow: []}\n"} {
		s.write("corral.yaml", nothing+daemon+egress)
		if r := s.corral("up", "--accept"); r.code != 0 {
			t.Fatalf("%q: %v", egress, r)
		}
		if r := s.corral("shell", "--", "bash", "-c", connect+fmt.Sprintf("t %v 443", lab.Canary)); r.code != 0 || !strings.HasPrefix(r.out, lab.Canary.String()+" 1 ") {
			t.Errorf("always on, %q: %v", egress, r)
		}
		s.must("down")
	}
	if left := capture.To(lab.Canary); len(left) > 0 {
		t.Errorf("%d packets left", len(left))
	}
}
