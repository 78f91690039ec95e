package engine

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// attempt is one line of what the hostile agent says.
type attempt struct{ Group, Name, Proves, Outcome, Detail string }

func (a attempt) String() string {
	return fmt.Sprintf("%s/%s: %s: %s", a.Group, a.Name, a.Outcome, a.Detail)
}

// attempted reads what the hostile agent said of each attempt.
func attempted(t *testing.T, said string) map[string]attempt {
	t.Helper()
	all := map[string]attempt{}
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var a attempt
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("the hostile agent said %q: %v", line, err)
		}
		all[a.Group+"/"+a.Name] = a
	}
	return all
}

// got are the attempts that came to an outcome, sorted.
func got(all map[string]attempt, outcome string) []string {
	var names []string
	for name, a := range all {
		if a.Outcome == outcome {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// captive is a project whose agent is hostile: a mount for reading and a secret
// lie beside it, and it aims at the lab. The policy may go on.
func captive(t *testing.T, s *sandbox, more map[string]any) {
	t.Helper()
	root := filepath.Dir(s.dir)
	s.own(filepath.Join(root, "notes"))
	for _, name := range []string{"notes/read.txt", "secret"} {
		path := filepath.Join(root, name)
		if err := os.WriteFile(path, []byte("of the owner\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, int(s.uid), int(s.gid)); err != nil {
			t.Fatal(err)
		}
	}
	s.write("corral.yaml", allowed+"mounts:\n  ro: ["+filepath.Join(root, "notes")+"]\n")
	s.accept()
	b, err := os.ReadFile(filepath.Join(s.bin, "corral-prisoner"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("corral-prisoner", string(b))
	if err := os.Chmod(filepath.Join(s.dir, "corral-prisoner"), 0o755); err != nil {
		t.Fatal(err)
	}
	probes := lab.Probes()
	targets := map[string]any{
		"unlisted": probes.Unlisted, "resolver": probes.Resolver, "metadata": probes.Metadata, "ipv6": probes.IPv6, "upstream": lab.NameServer,
		"gateway": "172.30.0.1", "allowed": []string{"44.10.0.10:443"}, "allowed_names": []string{"api.allowed.test"},
		"names": []string{"secret.evil.test", "unlisted.test"}, "read_write": s.dir, "read_only": []string{filepath.Join(root, "notes")},
		"outside": []string{filepath.Join(root, "secret"), filepath.Join(s.bin, "corral")},
	}
	for k, v := range more {
		targets[k] = v
	}
	s.write("targets.json", string(spec.Encode(targets)))
}

// tree is what stands in a directory of the host's, a line a file: everything
// about each but when it was read. Of the directory that is left out only its
// being there.
func tree(t *testing.T, root, but string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == but {
			lines = append(lines, path+" is there")
			return fs.SkipDir
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %v %d:%d %d %d %v %v", path, fi.Mode(), st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim)
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(b))
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// differs are the lines that only one of two has.
func differs(before, after []string) []string {
	var out []string
	for _, l := range before {
		if !slices.Contains(after, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range after {
		if !slices.Contains(before, l) {
			out = append(out, "+ "+l)
		}
	}
	return out
}

// layer is what a container has changed of its root.
func layer(t *testing.T, container string) []string {
	t.Helper()
	return strings.Split(docker(t, "diff", container), "\n")
}

// hostListener counts who calls a port of this machine that no policy declares.
func hostListener(t *testing.T) (at string, calls *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp4", "172.30.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	calls = &atomic.Int64{}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			conn.Close()
		}
	}()
	return l.Addr().String(), calls
}

// The hostile agent, as the harness. Judged from outside: nothing reaches the
// corral bridge for an address that the policy does not list, nobody is asked
// for a name, and nothing is written but in the mount that is for writing.
func TestPrisoner(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile, and nobody else may ask for a name.
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.lab.Control(t, "corral")
	peer := project(t, nothing)
	endPeer := peer.up(`perl -MIO::Socket::INET -e 'my $l = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die; exit if fork; while (my $c = $l->accept) { close $c }'; echo listening; read -r _`, "listening")
	defer endPeer()
	listener, calls := hostListener(t)
	captive(t, s, map[string]any{"listener": listener, "peers": []string{address(t, peer)}})
	root := filepath.Dir(s.dir)

	c := s.cmd("run", "--", "bash", "-c", "echo ready; read -r _; ./corral-prisoner --json --targets targets.json; echo ended with $?; read -r _; true")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(limit/2, func() { c.Process.Kill() }).Stop()
	shown := &screen{f: out.(*os.File)}
	shown.await(t, "ready\n")
	asked, heard := len(s.lab.DNS.Queries()), len(s.lab.Authority.Queries())
	capture := s.lab.Capture(t, bridge)
	host, service, gate := tree(t, root, s.dir), layer(t, s.agent()), layer(t, s.gate())
	began := time.Now()
	fmt.Fprintln(in)
	shown.await(t, "ended with ")
	took := time.Since(began)
	if left := differs(host, tree(t, root, s.dir)); len(left) > 0 {
		t.Errorf("the host's files were changed: %q", left)
	}
	if left := differs(service, layer(t, s.agent())); len(left) > 0 {
		t.Errorf("the agent's own root was changed: %q", left)
	}
	if left := differs(gate, layer(t, s.gate())); len(left) > 0 {
		t.Errorf("the gate's root was changed: %q", left)
	}
	// What judges can see a change.
	docker(t, "exec", "--user", "0", s.agent(), "touch", "/planted")
	if len(differs(service, layer(t, s.agent()))) == 0 {
		t.Error("a file in the agent's root is not seen: nothing can be told")
	}
	if err := os.Chmod(filepath.Join(root, "notes/read.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(differs(host, tree(t, root, s.dir))) == 0 {
		t.Error("a change of the host's files is not seen: nothing can be told")
	}
	in.Close()
	_, _ = io.Copy(&shown.seen, out)
	if err := c.Wait(); err != nil {
		t.Errorf("the run: %v", err)
	}

	all := attempted(t, shown.seen.String())
	if len(all) < 150 || len(got(all, "blocked")) < 110 {
		t.Errorf("%d attempts, of which %d were blocked", len(all), len(got(all, "blocked")))
	}
	for _, name := range got(all, "escaped") {
		t.Errorf("got through: %v (%s)", all[name], all[name].Proves)
	}
	// Pins hold addresses: this is what they cannot refuse, and nothing else is.
	if known := got(all, "known"); !slices.Equal(known, []string{"shared/forged-host", "shared/forged-sni"}) {
		t.Errorf("known limits: %v", known)
	}
	t.Logf("%d attempts in %v: %d blocked, %d known, %d not there to try: %v", len(all), took.Round(100*time.Millisecond),
		len(got(all, "blocked")), len(got(all, "known")), len(got(all, "absent")), got(all, "absent"))
	if left := capture.Match(unlisted); len(left) > 0 {
		t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
	}
	if n := calls.Load(); n > 0 {
		t.Errorf("a port of the host that is not declared was called %d times", n)
	}
	for _, q := range s.lab.DNS.Queries()[asked:] {
		if !strings.EqualFold(strings.TrimSuffix(q.Name, "."), "api.allowed.test") {
			t.Errorf("the name server was asked for %v", q)
		}
	}
	if q := s.lab.Authority.Queries()[heard:]; len(q) > 0 {
		t.Errorf("somebody's name server was asked for %v", q[0])
	}
}

// Nothing of a gate's control answers an agent by loopback, unix or abstract
// sockets; the attempts that say so find whatever is planted there.
func TestPrisonerFindsWhatIsThere(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	captive(t, s, nil)
	end := s.up("echo up; read -r _", "up")
	defer end()
	attempts := []string{"loopback/aliases", "loopback/scan", "loopback/udp-scan", "unix/abstract", "unix/gate-socket"}
	scan := func() map[string]attempt {
		t.Helper()
		return attempted(t, run(t, "sh", "-c", fmt.Sprintf("docker exec --workdir %s %s ./corral-prisoner --json --targets targets.json --only %s || [ $? = 1 ]",
			s.dir, s.agent(), strings.Join(attempts, ","))))
	}
	if before := scan(); len(before) != len(attempts) || len(got(before, "escaped")) > 0 {
		t.Errorf("before: %v", before)
	}
	const sockets = `use IO::Socket::INET; use Socket; $| = 1;
my $t = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 0) or die;
my $u = IO::Socket::INET->new(Proto => "udp", LocalAddr => "127.0.0.1", LocalPort => 0) or die;
socket(my $a, PF_UNIX, SOCK_STREAM, 0) or die; bind($a, pack("S a*", AF_UNIX, "\0planted")) or die; listen($a, 5) or die;
print "planted\n"; while (<STDIN>) {}`
	const control = `use IO::Socket::UNIX; $| = 1; mkdir "/run/corral"; umask 0;
my $l = IO::Socket::UNIX->new(Listen => 5, Local => "` + spec.GateSocket + `") or die; print "planted\n"; while (<STDIN>) {}`
	pid := docker(t, "inspect", "--format", "{{.State.Pid}}", s.gate())
	for _, args := range [][]string{
		{"nsenter", "--target", pid, "--net", "perl", "-e", sockets},
		{"docker", "exec", "--interactive", "--user", "0", s.agent(), "perl", "-e", control},
	} {
		plant(t, args...)
	}
	after := scan()
	if through := got(after, "escaped"); !slices.Equal(through, attempts) {
		t.Errorf("what was planted is found by %v only: %v", through, after)
	}
}

// plant runs a program until the test ends that says when it is ready.
func plant(t *testing.T, args ...string) {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "planted\n" {
		t.Fatalf("%v: %q %v", args, line, err)
	}
}

// R081: what is mounted is what the policy says and what is disclosed, in each
// mode, by the engine and by the kernel.
func TestMountsAreExactlyThese(t *testing.T) {
	t.Parallel()
	// Of every container: the kernel's own, and what the engine makes for it.
	engines := []string{"/", "/dev", "/dev/mqueue", "/dev/pts", "/dev/shm", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/sys", "/tmp"}
	init := regexp.MustCompile(`^(/usr)?/sbin/docker-init$`)
	for mode, more := range map[string]string{"run": "", "daemon": "profile_options: {shell: {command: " + forever + "}}\n"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := cloned(t, 0, nothing)
			root := filepath.Dir(s.dir)
			s.own(filepath.Join(root, "notes"), filepath.Join(root, "work"))
			s.write("corral.yaml", fmt.Sprintf("%smode: %s\n%smounts:\n  rw: [%s/work]\n  ro: [%s/notes]\n", nothing, mode, more, root, root))
			want := map[string]bool{root + "/work": true, root + "/notes": false, "/opt/corral": false}
			if mode == "run" {
				want[s.dir], want[s.dir+"/corral.yaml"] = true, false
				s.accept()
				defer s.up("echo up; read -r _", "up")()
			} else {
				s.must("up", "--accept")
			}
			said := map[string]bool{}
			for line := range strings.Lines(docker(t, "inspect", "--format", "{{range .Mounts}}{{.RW}} {{.Destination}}\n{{end}}", s.agent())) {
				if rw, path, found := strings.Cut(strings.TrimSpace(line), " "); found {
					said[path] = rw == "true"
				}
			}
			if !maps.Equal(said, want) {
				t.Errorf("the engine mounts %v, want %v", said, want)
			}
			seen := map[string]bool{}
			for line := range strings.Lines(docker(t, "exec", s.agent(), "cat", "/proc/self/mountinfo")) {
				f := strings.Fields(line)
				path := f[4]
				if slices.Contains(engines, path) || init.MatchString(path) || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") {
					continue
				}
				seen[path] = slices.Contains(strings.Split(f[5], ","), "rw")
			}
			if mode == "daemon" { // which has a terminal
				want["/dev/console"] = true
			}
			if !maps.Equal(seen, want) {
				t.Errorf("the kernel has mounted %v, want %v", seen, want)
			}
		})
	}
}

// R090: settings that a harness or an editor on the host would execute are told
// when the run ends, those that are new and those that were changed.
func TestSettingsOfHarnessesAreTold(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	s.own(filepath.Join(s.dir, ".claude"))
	s.write(".claude/settings.json", "{}\n")
	r := s.sh(`
mkdir -p .vscode .devcontainer .opencode/plugin
echo '{"hooks":{}}' > .claude/settings.local.json
echo '{"hooks":{"Stop":[]}}' > .claude/settings.json
echo '{"plugin":["x"]}' > opencode.json
echo '{"tasks":[]}' > .vscode/tasks.json
echo '{"initializeCommand":"x"}' > .devcontainer/devcontainer.json
echo x > .opencode/plugin/x.js
echo x > ordinary.txt
`)
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, file := range []string{".claude/settings.local.json", ".claude/settings.json", "opencode.json", ".vscode/tasks.json", ".devcontainer/devcontainer.json", ".opencode/plugin/x.js"} {
		if !regexp.MustCompile(`(?m)^\s+/\S*/` + regexp.QuoteMeta(file) + `: (new|changed): `).MatchString(r.err) {
			t.Errorf("%s is not told: %s", file, r.err)
		}
	}
	if strings.Contains(r.err, "ordinary.txt") {
		t.Errorf("what nobody executes is told: %s", r.err)
	}
}
