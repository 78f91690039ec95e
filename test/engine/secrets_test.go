package engine

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const canary = "CANARY-0c95a7d1"

// R115: what the file says is what the agent gets, byte for byte.
func TestSecretsAreByteExact(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	file := s.private("project.env", strings.Join([]string{
		`# a comment`, ``,
		`A="abc$def"`, `B=a#b`, `C='x y'`, `D=a=b==`, `E=`, `export F=1`, `G=$2y$10$abcdefgh`, `H='it"s'`, `I="it's"`,
		`J=äöü日本`, `K=back\slash`, `L='  blanks  '`, `M="tab	inside"`, `N="a # b"`, `O=%s{{.}}`, ``,
	}, "\n"), 0o600)
	s.write("corral.yaml", "profile: shell\nname: nothing\nsecrets:\n  env_file: "+file+"\n")
	s.accept()
	r := s.sh(`for n in A B C D E F G H I J K L M N O; do printf '%s=%s\n' $n "${!n}"; done`)
	want := "A=abc$def\nB=a#b\nC=x y\nD=a=b==\nE=\nF=1\nG=$2y$10$abcdefgh\nH=it\"s\nI=it's\nJ=äöü日本\nK=back\\slash\nL=  blanks  \nM=tab\tinside\nN=a # b\nO=%s{{.}}\n"
	if r.code != 0 || r.out != want {
		t.Errorf("got\n%s\nwant\n%s\n%s", r.out, want, r.err)
	}
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, "ok   env-file-not-mounted\n") {
		t.Error(r)
	}
}

// R117: a secret is in the agent's environment, and nowhere else that corral
// writes, says, builds or starts; what goes wrong does not tell it either.
func TestSecretsAreNowhereElse(t *testing.T) {
	// Alone: another test puts the same secret on a command line.
	s := cloned(t, 0, nothing)
	file := s.private("project.env", "TOKEN="+canary+"\n", 0o600)
	policy := "profile: shell\nname: nothing\nsecrets:\n  env_file: " + file + "\nhooks:\n  pre_launch: [\"env; echo hook ran\"]\n"
	s.write("corral.yaml", policy)
	s.env = append(s.env, "TOKEN="+canary, "DOCKER_BUILDKIT=0")
	clean := func(what, text string) {
		t.Helper()
		if strings.Contains(text, canary) {
			t.Errorf("%s tells the secret", what)
		}
	}
	for _, args := range [][]string{
		{"policy", "show"}, {"policy", "show", "--json"}, {"policy", "diff", "--json"}, {"policy", "check", "a.example"}, {"render"}, {"render", "--accept"},
		{"run", "--", "sh", "-c", "echo hi"}, {"run", "--", "no-such-program"}, {"verify"}, {"verify", "--json"}, {"status"}, {"status", "--json"}, {"down"},
	} {
		r := s.corral(args...)
		clean(strings.Join(args, " "), r.out+r.err)
		if args[0] == "run" && !strings.Contains(r.err, "hook ran") {
			t.Errorf("the hook did not run: %v", r)
		}
	}

	end := s.up("echo up; read -r _", "up")
	if got := docker(t, "inspect", "--format", "{{.Config.Env}}", s.agent()); !strings.Contains(got, canary) {
		t.Fatal("the control: the engine does not know it, so the agent has none")
	}
	for _, container := range []string{s.agent(), s.gate()} {
		clean("a label or an argument of "+container, docker(t, "inspect", "--format", "{{json .Config.Labels}} {{json .Config.Cmd}} {{json .Config.Entrypoint}} {{json .HostConfig}} {{json .Mounts}}", container))
		clean("the log of "+container, logs(t, container))
	}
	clean("the gate's environment", docker(t, "inspect", "--format", "{{json .Config.Env}}", s.gate()))
	for _, dir := range glob(t, "/proc/[0-9]*") {
		b, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // one that has ended meanwhile has none
		clean("the command line of "+dir, string(b))
	}
	clean("status", s.corral("status", "--json").out)
	clean("verify", s.corral("verify", "--json").out)
	end()
	image := strings.Fields(docker(t, "images", "--format", "{{.Repository}}:{{.Tag}}", "corral-"+s.id+"-main"))
	if len(image) == 0 {
		t.Fatal("no image to look into")
	}
	clean("the image", docker(t, "inspect", image[0])+docker(t, "history", "--no-trunc", image[0]))
	files := 0
	err := filepath.WalkDir(filepath.Join(filepath.Dir(s.dir), "home", ".local"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(canary)) {
			t.Errorf("%s holds the secret", path)
		}
		files++
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files of corral's own: %v", files, err)
	}

	// Mistakes in the file are told by their line.
	for _, bad := range []string{"TOKEN=\"" + canary, canary, "TOKEN=" + canary + " # no", "TOKEN=" + canary + "\nTOKEN=" + canary, "2" + canary + "=x", canary + "=" + canary + "\x00"} {
		s.private("project.env", bad+"\n", 0o600)
		r := s.corral("run", "--", "true")
		clean(bad, r.out+r.err)
		if r.code != 2 || !strings.Contains(r.err, "line ") {
			t.Errorf("%q: %v", bad, r)
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The hooks are the person's: where, as whom, and that one that fails ends it.
func TestHooks(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	s.write("corral.yaml", "profile: shell\nname: nothing\nhooks:\n  pre_launch: [\"pwd; id -u; echo $HOME\", \"exit 3\", \"touch X\"]\n")
	r := s.corral("run", "--accept", "--", "true")
	if r.code != 1 || !strings.Contains(r.err, s.dir+"\n12345\n"+filepath.Join(filepath.Dir(s.dir), "home")+"\n") || !strings.Contains(r.err, "exit 3") {
		t.Error(r)
	}
	s.untouched()

	// One that hangs is ended by a signal, with all that it started.
	s.write("corral.yaml", "profile: shell\nname: nothing\nhooks:\n  pre_launch: [\"echo waiting >&2; sleep 1000 & wait\"]\n")
	c := s.cmd("run", "--accept", "--", "true")
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	errs := &screen{f: pipe.(*os.File)}
	errs.await(t, "waiting\n")
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if got := c.ProcessState.ExitCode(); got != 130 {
		t.Errorf("status %d: %s", got, errs.seen.String())
	}
	s.untouched()
}
