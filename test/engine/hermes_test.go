package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// hermes is a project with the real Hermes, always on, and a scripted model on this
// machine's loopback, built and accepted. Its image is the same for every test but for
// what governs it, which comes last: what fetches it is in the engine's cache.
func hermes(t *testing.T, port uint16, options string) *sandbox {
	t.Helper()
	testenv.Require(t, "harness")
	s := cloned(t, 0, fmt.Sprintf("profile: hermes\nname: hermes\nmode: daemon\nhost_services:\n  - {name: model, port: %d}\n"+
		"profile_options:\n  hermes:\n    model: {base_url: \"http://corral-host:%d/v1\", name: scripted, context_length: 65536}\n%s", port, port, options))
	roots, err := os.ReadFile(machineRoots)
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "CORRAL_CA_BUNDLE="+s.inHome("company.pem", string(roots)+string(s.lab.CA), 0o644))
	return s
}

// ask types a line at a console and waits for what the answer ends with.
func (s *sandbox) ask(t *testing.T, line, answer string) {
	t.Helper()
	f, wait := s.onTerminal("attach")
	f.await(t, "leaves it running")
	f.await(t, "❯")
	f.key(t, line)
	f.await(t, line) // it is read as typed: a return that comes along would be part of it
	f.key(t, "\r")
	f.await(t, answer)
	f.key(t, "\x10\x11")
	f.await(t, "main runs on")
	if code := wait(); code != 0 {
		t.Errorf("attach ended with %d", code)
	}
}

// conversation is the messages of the model's last request with tools, one a line.
func conversation(model *lab.Model) string {
	var last lab.ModelRequest
	for _, r := range model.Requests() {
		if len(r.Tools) > 0 {
			last = r
		}
	}
	var b strings.Builder
	for _, m := range last.Messages {
		fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Text)
	}
	return b.String()
}

// The real Hermes, from its first build to its second life: it answers at its console,
// works where it may, remembers, and nothing that it can write changes what governs it.
func TestHermes(t *testing.T) {
	t.Parallel()
	model := lab.ServeModel(t)
	s := hermes(t, model.Port(), "    approvals_deny: [\"*rm -rf /*\"]\n")
	work := filepath.Join(filepath.Dir(s.dir), "work")
	s.own(work)
	b, err := os.ReadFile(filepath.Join(s.dir, "corral.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("corral.yaml", string(b)+fmt.Sprintf("mounts:\n  rw: [%s]\n", work))
	if r := s.build(); r.code != 0 {
		t.Fatal(r)
	}
	s.must("up")
	state := filepath.Join(s.home(), ".local/share/corral", s.id, "state/main/.hermes")

	t.Run("a question at its console", func(t *testing.T) {
		file := filepath.Join(work, "hello.txt")
		model.Play(t,
			tool("memory", map[string]any{"action": "add", "target": "memory", "content": "the cat is called Mikesch"}),
			tool("write_file", map[string]any{"path": file, "content": "hello\n"}),
			lab.Turn{Text: "written-and-kept"})
		s.ask(t, "write hello", "written-and-kept")
		b, err := os.ReadFile(file)
		fi, errStat := os.Stat(file)
		if err := errors.Join(err, errStat); err != nil || string(b) != "hello\n" || fi.Sys().(*syscall.Stat_t).Uid != s.uid {
			t.Errorf("the file: %q, %v", b, err)
		}
		want := []string{"clarify", "execute_code", "memory", "patch", "process", "read_file", "search_files", "session_search", "skill_manage", "skill_view", "skills_list", "terminal", "todo", "write_file"}
		for _, r := range model.Requests() {
			if got := slices.Sorted(slices.Values(r.Tools)); len(got) > 0 && !slices.Equal(got, want) {
				t.Errorf("its tools are %v", got)
			}
		}
	})

	// R080: whatever runs something runs it here.
	t.Run("every tool is behind the gate", func(t *testing.T) {
		script := `import os, subprocess\nprint("netns", os.readlink("/proc/self/ns/net"))\nprint("curl", subprocess.run(["curl", "-sS", "--max-time", "20", "https://unlisted.test/"]).returncode)`
		model.Play(t,
			tool("terminal", map[string]any{"command": `echo netns $(readlink /proc/self/ns/net); curl -sS --max-time 20 https://unlisted.test/; echo curl $?`}),
			tool("execute_code", map[string]any{"code": strings.ReplaceAll(script, `\n`, "\n")}),
			lab.Turn{Text: "both-tried"})
		s.ask(t, "try the network", "both-tried")
		here := "netns " + s.must("shell", "--", "readlink", "/proc/self/ns/net").out
		here = strings.TrimSpace(here)
		if got := conversation(model); strings.Count(got, here) != 2 || strings.Count(got, "curl 6") != 2 {
			t.Errorf("want %q and a refused name from both in %s", here, got)
		}
	})

	t.Run("verify", func(t *testing.T) {
		r := s.corral("verify")
		if passed, _ := tally(t, r); r.code != 0 || passed < 41 || !strings.Contains(r.out, "\nok   env-shadowed\n") || !strings.Contains(r.out, "\nok   config-pinned\n") {
			t.Error(r)
		}
	})

	t.Run("what governs it, by hand", func(t *testing.T) {
		r := s.must("shell", "--", "bash", "-c", `cd ~/.hermes
			for f in .env .op.env config.yaml active_profile; do
				{ echo HERMES_YOLO_MODE=1 >> $f; } && echo WRITTEN $f; mv $f $f.old && echo MOVED $f; rm -f $f && echo REMOVED $f
				echo HERMES_YOLO_MODE=1 > new; mv new $f && echo REPLACED $f
			done
			for d in hooks profiles; do mkdir $d/evil && echo WRITTEN $d; mv $d $d.old && echo MOVED $d; rmdir $d && echo REMOVED $d; done
			mv ~/.hermes ~/.old && echo MOVED home
			for p in /etc/hermes/.env /etc/hermes/config.yaml /opt/hermes/bin/hermes /usr/local/bin/hermes; do { echo >> $p; } && echo WRITTEN $p; done
			hermes config show`)
		if regexp.MustCompile(`(?m)^(WRITTEN|MOVED|REMOVED|REPLACED)`).MatchString(r.out) {
			t.Error(r)
		}
		if !strings.Contains(r.out, "approvals.mode") || !strings.Contains(r.out, fmt.Sprintf("'base_url': 'http://corral-host:%d/v1'", model.Port())) {
			t.Errorf("what Hermes says it goes by: %v", r)
		}
	})

	// Each shadow is there for a reason: without it a redirect is found.
	t.Run("mutants", func(t *testing.T) {
		checks := s.checks(t)
		pinned, shadowed := checks["config-pinned"], checks["env-shadowed"]
		for _, missing := range []string{".env", "active_profile", "config.yaml", "hooks"} {
			c := pinned
			c.Files = slices.DeleteFunc(slices.Clone(c.Files), func(f spec.File) bool { return filepath.Base(f.Path) == missing })
			if len(c.Files) != len(pinned.Files)-1 {
				t.Fatalf("%s is no shadow: %v", missing, pinned.Files)
			}
			if out := s.asAgent(t, c); !strings.Contains(out, "redirects: ") && !strings.Contains(out, "can be redirected") {
				t.Errorf("without %s: %s", missing, out)
			}
		}
		c := pinned
		c.Values = map[string]any{"approvals.mode": "off"}
		if out := s.asAgent(t, c); !strings.Contains(out, "does not go by what is pinned: approvals.mode is \\\"manual\\\"") {
			t.Errorf("another value: %s", out)
		}
		shadowed.Files = append(shadowed.Files, spec.File{Path: "/home/agent/.hermes/SOUL.md"})
		if out := s.asAgent(t, shadowed); !strings.Contains(out, "SOUL.md is not shadowed") {
			t.Errorf("no shadow: %s", out)
		}
	})

	t.Run("down and up", func(t *testing.T) {
		s.must("down")
		// What an agent could leave only where no shadow was.
		if err := errors.Join(os.Remove(filepath.Join(state, ".env")), os.Symlink("/etc/passwd", filepath.Join(state, ".env"))); err != nil {
			t.Fatal(err)
		}
		if r := s.must("up"); !strings.Contains(r.err, "something else than a plain .env") || !strings.Contains(r.err, ".env.aside-1") {
			t.Errorf("a link in place of .env: %v", r)
		}
		model.Play(t, lab.Turn{Text: "it-is-Mikesch"})
		s.ask(t, "what is the cat called", "it-is-Mikesch")
		if got := conversation(model); !strings.Contains(got, "the cat is called Mikesch") {
			t.Errorf("nothing of its memory: %s", got)
		}
		r := s.must("shell", "--", "hermes", "sessions", "list")
		if n := strings.Count(r.out, "\n"); n < 3 {
			t.Errorf("no earlier sessions: %v", r)
		}
		fi, err := os.Lstat(filepath.Join(state, ".env"))
		if err != nil || !fi.Mode().IsRegular() || fi.Sys().(*syscall.Stat_t).Uid != s.uid {
			t.Errorf("what is under the shadow: %v, %v", fi, err)
		}
	})
}

// checks are those of the agent that corral would ask for, by their kinds.
func (s *sandbox) checks(t *testing.T) map[string]spec.Check {
	t.Helper()
	dir := strings.TrimSpace(s.must("render").out)
	f, err := os.Open(filepath.Join(dir, "main/verify.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v, err := spec.ParseVerify(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]spec.Check{}
	for _, c := range v.Checks {
		out[c.Kind()] = c
	}
	return out
}

// asAgent is what the checker in the agent's container says of a check, as the agent.
func (s *sandbox) asAgent(t *testing.T, c spec.Check) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", "exec", "-i", s.agent(), spec.GuestDir+"/bin/corral-verify")
	cmd.Stdin = strings.NewReader(string(spec.Encode(spec.Verify{Version: spec.Version, Service: "main", Checks: []spec.Check{c}})))
	out, err := cmd.CombinedOutput()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return string(out)
}
