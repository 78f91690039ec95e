package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// buildLimit bounds what fetches a harness and the packages around it.
const buildLimit = 9 * time.Minute

// machineRoots is what this machine trusts: where a network looks into TLS, a
// build has to trust it too.
const machineRoots = "/etc/ssl/certs/ca-certificates.crt"

// providers are the names that the profile brings.
var providers = []string{"openrouter.ai", "api.openai.com", "api.anthropic.com"}

// opencode is a project with the real OpenCode and a scripted model on this
// machine's loopback, built and accepted.
func opencode(t *testing.T, port uint16, more string) *sandbox {
	t.Helper()
	testenv.Require(t, "harness")
	s := cloned(t, 0, fmt.Sprintf("profile: opencode\nname: oc\nhost_services:\n  - {name: model, port: %d}\n%s", port, more))
	roots, err := os.ReadFile(machineRoots)
	if err != nil {
		t.Fatal(err)
	}
	// The origins of the lab are trusted as well.
	s.env = append(s.env, "CORRAL_CA_BUNDLE="+s.inHome("company.pem", string(roots)+string(s.lab.CA), 0o644))
	const scripted = `"models":{"scripted":{"name":"scripted","limit":{"context":131072,"output":8192}}}`
	s.inHome(".config/opencode/opencode.json", fmt.Sprintf(`{"model":"local/scripted","provider":{
		"local":{"npm":"@ai-sdk/openai-compatible","name":"Local model","options":{"baseURL":"http://corral-host:%d/v1"},%s},
		"anthropic":{%s}}}`, port, scripted, scripted), 0o644)
	return s
}

// home is the person's.
func (s *sandbox) home() string {
	for _, e := range s.env {
		if dir, ok := strings.CutPrefix(e, "HOME="); ok {
			return dir
		}
	}
	s.tb.Fatal("nobody's home")
	return ""
}

// inHome puts a file of the person's below their home.
func (s *sandbox) inHome(name, content string, mode os.FileMode) string {
	s.tb.Helper()
	path := filepath.Join(s.home(), name)
	for dir := filepath.Dir(path); dir != s.home(); dir = filepath.Dir(dir) {
		s.own(dir)
	}
	if err := errors.Join(os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode), os.Chown(path, int(s.uid), int(s.gid))); err != nil {
		s.tb.Fatal(err)
	}
	return path
}

// build is corral build, which may take its time.
func (s *sandbox) build() result {
	s.tb.Helper()
	c := s.cmd("build", "--accept")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	timer := time.AfterFunc(buildLimit, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	err := c.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		s.tb.Fatal(err)
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode(), c.Process.Pid}
}

// layers are those of the agent's image.
func (s *sandbox) layers() []string {
	s.tb.Helper()
	images := strings.Fields(docker(s.tb, "images", "--format", "{{.Repository}}:{{.Tag}}", "corral-"+s.id+"-main"))
	if len(images) != 1 {
		s.tb.Fatalf("images of the agent: %v", images)
	}
	var out []string
	if err := json.Unmarshal([]byte(docker(s.tb, "image", "inspect", "--format", "{{json .RootFS.Layers}}", images[0])), &out); err != nil {
		s.tb.Fatal(err)
	}
	return out
}

// tool is a turn in which the model calls one of the harness' tools.
func tool(name string, args map[string]any) lab.Turn {
	return lab.Turn{Call: &lab.ToolCall{Name: name, Args: args}}
}

// The real harness, from its first build to its terminal.
func TestOpenCode(t *testing.T) {
	// Alone: nothing may reach the canary meanwhile, nobody else may ask for a name, and the README shows the checks of the only sandbox that is up.
	var s *sandbox
	file := func(name string) string { return filepath.Join(s.dir, name) }
	model := lab.ServeModel(t)
	s = opencode(t, model.Port(), "")
	const key = "sk-" + canary + "-0123456789"
	auth := `{"anthropic":{"type":"api","key":"` + key + `"}}`
	s.inHome(".local/share/opencode/auth.json", auth, 0o600)

	r := s.build()
	if r.code != 0 {
		t.Fatal(r)
	}
	if !strings.Contains(r.err, "copied ~/.local/share/opencode/auth.json") || !strings.Contains(r.err, "made ~/.config/opencode/.gitignore") {
		t.Errorf("the first build does not say what it took and made: %v", r)
	}
	if r := s.build(); r.code != 0 || strings.Contains(r.err, "building") || strings.Contains(r.err, "copied") || strings.Count(r.out, "up to date") != 2 {
		t.Errorf("the second build: %v", r)
	}

	t.Run("a tool call, nothing refused", func(t *testing.T) {
		model.Play(t, tool("write", map[string]any{"filePath": file("hello.txt"), "content": "hello\n"}), lab.Turn{Text: "written"})
		asked := len(s.lab.DNS.Queries())
		capture := s.lab.Capture(t, bridge)
		r := s.corral("run", "--", "run", "write hello")
		if r.code != 0 || !strings.Contains(r.out, "written") {
			t.Fatal(r)
		}
		b, err := os.ReadFile(file("hello.txt"))
		fi, errStat := os.Stat(file("hello.txt"))
		if err := errors.Join(err, errStat); err != nil || string(b) != "hello\n" || fi.Sys().(*syscall.Stat_t).Uid != s.uid {
			t.Errorf("the file: %q, %v", b, err)
		}
		// R049: nothing at its start waits for what the fence refuses, or is refused.
		if strings.Contains(r.err, "denied:") {
			t.Errorf("something was refused during a plain run: %s", r.err)
		}
		for _, name := range providers {
			if want := "warning: " + name + " (profile opencode) stays closed: "; !strings.Contains(r.err, want) {
				t.Errorf("no %q in %s", want, r.err)
			}
		}
		for _, q := range s.lab.DNS.Queries()[asked:] {
			if !slices.Contains(providers, strings.ToLower(strings.TrimSuffix(q.Name, "."))) {
				t.Errorf("the name server was asked for %v", q)
			}
		}
		if left := capture.To(lab.Canary); len(left) > 0 {
			t.Errorf("%d packets to an unlisted address", len(left))
		}
	})

	// R129: its own rule about other directories stands in nobody's way.
	t.Run("an unlisted host is refused fast and named", func(t *testing.T) {
		model.Play(t, tool("bash", map[string]any{"command": fmt.Sprintf(
			`cat /etc/hostname; s=$(date +%%s%%N); for u in https://unlisted.test/ https://%v/; do curl -sS --max-time 20 $u; echo "status $?"; done; echo "took $(( ($(date +%%s%%N)-s)/1000000 )) ms"`, lab.Canary),
			"description": "fetch"}), lab.Turn{Text: "tried"})
		r := s.corral("run", "--", "run", "fetch it")
		if r.code != 0 {
			t.Fatal(r)
		}
		requests := model.Requests()
		answers := r.out
		for _, m := range requests[len(requests)-1].Messages {
			answers += m.Text + "\n"
		}
		m := regexp.MustCompile(`status 6\b(?s:.*)status 7\b(?s:.*)took (\d+) ms`).FindStringSubmatch(answers)
		if m == nil {
			t.Fatalf("what curl said did not come back: %s\n%v", answers, r)
		}
		if ms, _ := strconv.Atoi(m[1]); ms > 500 {
			t.Errorf("two refusals took %d ms", ms)
		}
		denied := regexp.MustCompile(`(?m)^corral: denied: .*$`).FindString(r.err)
		if !strings.Contains(denied, "unlisted.test") || !strings.Contains(denied, lab.Canary.String()+":443") {
			t.Errorf("the end of the run does not name what was denied: %s", r.err)
		}
	})

	t.Run("verify", func(t *testing.T) {
		r := s.corral("verify")
		passed, skipped := tally(t, r)
		if r.code != 0 || passed < 35 {
			t.Errorf("%d passed: %v", passed, r)
		}
		for _, name := range providers {
			if want := "skip allowed:" + name + ":443: not pinned (profile default)\n"; !strings.Contains(r.out, want) {
				t.Errorf("no %q in %v", want, r)
			}
		}
		if bad := regexp.MustCompile(`(?m)^skip [^:]*(:[^ :]*)*$`).FindString(r.out); bad != "" {
			t.Errorf("skipped without a reason: %q", bad)
		}
		if skipped == 0 {
			t.Error("nothing was skipped although three names do not resolve")
		}
	})

	t.Run("verify, with its providers", func(t *testing.T) {
		for i, name := range providers { // R053
			s.lab.DNS.Set(name, lab.A(fmt.Sprintf("44.10.0.%d", 10+i)))
		}
		r := s.corral("verify")
		if _, skipped := tally(t, r); r.code != 0 || skipped != 2 || !strings.Contains(r.out, "skip secret-absent-elsewhere: the policy has no secrets") || !strings.Contains(r.out, "skip no-credential-dir:.local/share/opencode: the sandbox's own: ") {
			t.Error(r)
		}
		inReadme(t, "verify", plainVerify(r.out, s.dir, model.Port()))
		if r := s.corral("run", "--", "--version"); r.code != 0 || strings.TrimSpace(r.out) != "1.18.33" || strings.Contains(r.err, "warning") {
			t.Error(r)
		}
	})

	t.Run("what it keeps and what it cannot change", func(t *testing.T) {
		r := s.corral("shell", "--", "bash", "-c", `cat ~/.local/share/opencode/auth.json; echo; ls ~/.local/share/opencode; echo x > ~/.config/opencode/x && echo written;
			echo x > /etc/opencode/opencode.json && echo written; opencode session list`)
		if r.code != 0 || !strings.Contains(r.out, auth) || !strings.Contains(r.out, "opencode.db") || strings.Contains(r.out, "written") {
			t.Error(r)
		}
		if !regexp.MustCompile(`(?m)^ses_`).MatchString(r.out) {
			t.Errorf("no session of the earlier runs: %v", r)
		}
	})

	t.Run("on a terminal", func(t *testing.T) {
		model.Play(t, tool("write", map[string]any{"filePath": file("typed.txt"), "content": "typed\n"}), lab.Turn{Text: "finished typing"})
		screen := s.tmux("run")
		screen.await(t, "Ask anything")
		screen.keys(t, "write it down")
		screen.await(t, "write it down")
		screen.keys(t, "Enter")
		screen.await(t, "finished typing")
		if b, err := os.ReadFile(file("typed.txt")); err != nil || string(b) != "typed\n" {
			t.Errorf("%q, %v", b, err)
		}
		screen.keys(t, "C-c")
		screen.await(t, "ENDED 0")
	})

	// R053, R130: the policy as init writes it, a provider that speaks TLS by a
	// company's certificate, and the key that the person has.
	t.Run("with no edit", func(t *testing.T) {
		at, err := url.Parse(model.URL())
		if err != nil {
			t.Fatal(err)
		}
		s.lab.Handle(t, "api.anthropic.com", httputil.NewSingleHostReverseProxy(at))
		o := *s
		o.dir = filepath.Join(filepath.Dir(s.dir), "unedited")
		o.own(o.dir)
		o.id = plan.ID("unedited", filepath.Join(o.dir, "corral.yaml"))
		t.Cleanup(o.dropImages)
		if r := o.corral("init", "--profile", "opencode"); r.code != 0 {
			t.Fatal(r)
		}
		model.Play(t, tool("write", map[string]any{"filePath": filepath.Join(o.dir, "asked.txt"), "content": "asked\n"}), lab.Turn{Text: "answered from afar"})
		asked := len(model.Requests())
		r := o.corral("run", "--", "run", "--model", "anthropic/scripted", "write it")
		if r.code != 0 || !strings.Contains(r.out, "answered from afar") || strings.Contains(r.err, "denied:") {
			t.Fatal(r)
		}
		if _, err := os.Stat(filepath.Join(o.dir, "asked.txt")); err != nil {
			t.Error(err)
		}
		for _, q := range model.Requests()[asked:] {
			if q.Host != "api.anthropic.com" || q.Header.Get("X-Api-Key") != key {
				t.Errorf("asked at %s with the key %q", q.Host, q.Header.Get("X-Api-Key"))
			}
		}
	})

	t.Run("a change rebuilds what it must", func(t *testing.T) {
		before := s.layers()
		s.write("corral.yaml", fmt.Sprintf("profile: opencode\nname: oc\nhost_services:\n  - {name: model, port: %d}\negress:\n  allow: [api.allowed.test]\n", model.Port()))
		if r := s.build(); r.code != 0 {
			t.Fatal(r)
		}
		egress := s.layers()
		if n := common(before, egress); n != len(before)-1 || len(egress) != len(before) {
			t.Errorf("a name more: %d of %d layers stayed", n, len(before))
		}
		s.write("corral.yaml", fmt.Sprintf("profile: opencode\nname: oc\nhost_services:\n  - {name: model, port: %d}\nimage:\n  run: [\"echo built > /built\"]\n", model.Port()))
		if r := s.build(); r.code != 0 {
			t.Fatal(r)
		}
		// The passwd entry, gitconfig and README come after the policy's steps; the
		// packages and the harness before.
		if n := common(before, s.layers()); n != len(before)-3 {
			t.Errorf("a step more: %d of %d layers stayed", n, len(before))
		}
	})
}

// tally is the last line of a verify.
func tally(t *testing.T, r result) (passed, skipped int) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^(\d+) passed, (\d+) skipped, (\d+) failed\n\z`).FindStringSubmatch(r.out)
	if m == nil {
		t.Fatal(r)
	}
	passed, _ = strconv.Atoi(m[1])
	skipped, _ = strconv.Atoi(m[2])
	return passed, skipped
}

func common(a, b []string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// plainVerify is what verify printed for anybody's project and port 8081, with
// the stores of credentials in one line.
func plainVerify(out, dir string, port uint16) string {
	out = strings.ReplaceAll(out, dir, "/home/you/project")
	out = strings.ReplaceAll(out, fmt.Sprintf("host-service:%d", port), "host-service:8081")
	out = strings.ReplaceAll(out, fmt.Sprintf("relay-%d:", port), "relay-8081:")
	const stores = "ok   no-credential-dir:"
	var lines []string
	folded := 0
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if strings.HasPrefix(line, stores) {
			if folded++; folded > 1 {
				continue
			}
		} else if folded > 1 {
			lines = append(lines, fmt.Sprintf("     … and %d more of these", folded-1))
			folded = 0
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// inReadme holds the README to what really came out. UPDATE=1 writes it there.
func inReadme(t *testing.T, name, got string) {
	t.Helper()
	const readme = "../../README.md"
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n```\n", "```\n<!-- end -->"
	before, rest, found := strings.Cut(string(b), begin)
	was, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("the README has no place for %s", name)
	}
	if was == got {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Errorf("the README shows another output of %s (UPDATE=1 writes it):\n%s", name, got)
		return
	}
	if err := os.WriteFile(readme, []byte(before+begin+got+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tmux runs a corral command of the person's in a terminal multiplexer.
func (s *sandbox) tmux(args ...string) *pane {
	s.tb.Helper()
	dir := s.tb.TempDir()
	p := &pane{socket: filepath.Join(dir, "tmux")}
	fifo := filepath.Join(dir, "output")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		s.tb.Fatal(err)
	}
	line := []string{"cd", quote(s.dir), "&&", "env", "-i"}
	for _, e := range s.env {
		if !strings.HasPrefix(e, "TERM=") {
			line = append(line, quote(e))
		}
	}
	var groups []string
	for _, g := range dockerGroups() {
		groups = append(groups, fmt.Sprint(g))
	}
	line = append(line, "TERM=tmux-256color", "setpriv", fmt.Sprintf("--reuid=%d --regid=%d --groups=%s", s.uid, s.gid, strings.Join(groups, ",")), quote(filepath.Join(s.bin, "corral")))
	for _, a := range args {
		line = append(line, quote(a))
	}
	// The screen is read as soon as something is written on it, and the first
	// words come after somebody listens.
	script := fmt.Sprintf("read -r _; %s; echo ENDED $?; read -r _", strings.Join(line, " "))
	p.run(s.tb, "-f", "/dev/null", "new-session", "-d", "-x", "110", "-y", "35", script)
	s.tb.Cleanup(func() { p.run(s.tb, "kill-server") })
	p.run(s.tb, "pipe-pane", "-o", "exec cat > "+quote(fifo))
	var err error
	if p.output, err = os.OpenFile(fifo, os.O_RDONLY, 0); err != nil {
		s.tb.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { p.output.Close() })
	s.tb.Cleanup(func() { timer.Stop(); p.output.Close() })
	p.keys(s.tb, "Enter")
	return p
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// pane is a screen of tmux.
type pane struct {
	socket string
	output *os.File // what is written on it, as it comes
}

func (p *pane) run(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", p.socket}, args...)...).CombinedOutput()
	if err != nil {
		tb.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (p *pane) keys(tb testing.TB, keys string) {
	tb.Helper()
	p.run(tb, "send-keys", keys)
}

// await waits until the screen shows a text.
func (p *pane) await(t *testing.T, text string) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for {
		shown := p.run(t, "capture-pane", "-p")
		if strings.Contains(shown, text) {
			return
		}
		if _, err := p.output.Read(buf); err != nil {
			t.Fatalf("%q was not shown (%v):\n%s", text, err, shown)
		}
	}
}
