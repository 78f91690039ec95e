package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const withGit = `profile: shell
name: git
image:
  packages: [git]
`

// host runs a script on the host as the owner, in the project.
func (s *sandbox) host(script string) string {
	s.tb.Helper()
	c := exec.Command("bash", "-euc", script)
	c.Dir, c.Env = s.dir, append(s.env, "GIT_CONFIG_NOSYSTEM=1")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ownerUID, Gid: ownerGID}}
	out, err := c.CombinedOutput()
	if err != nil {
		s.tb.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

const repository = `
git config --global user.name "A Person"; git config --global user.email person@example.com
git config --global init.defaultBranch main; git config --global protocol.file.allow always
git init -q ../lib; cd ../lib; echo lib > lib; git add lib; git commit -qm lib; cd - >/dev/null
git init -q; echo one > one; git add one; git commit -qm one
git submodule --quiet add ../lib deep/lib; git commit -qm submodule
git worktree add -q tree
`

// R087: what the host's git would execute cannot be written or put aside by
// the agent, at any level, while git itself works: R100 with it.
func TestGitShielded(t *testing.T) {
	// Alone: the first of those that need git builds it for all.
	s := project(t, withGit)
	s.host(repository)
	config, err := os.ReadFile(filepath.Join(s.dir, ".git", "config"))
	if err != nil {
		t.Fatal(err)
	}

	r := s.sh(`
no() { if eval "$1" >/dev/null 2>&1; then echo "DONE: $1"; else echo "refused"; fi; }
yes() { out=$(eval "$1" 2>&1) || echo "FAILED: $1: $out"; }
no 'echo x >> corral.yaml'
no 'mv corral.yaml other'
no 'rm -f corral.yaml'
no 'ln -f other corral.yaml'
no 'mv .git .git2'
no 'rm -rf .git/hooks'
no 'echo x > .git/hooks/pre-commit'
no 'mv .git/hooks .git/hooks2'
no 'echo x >> .git/config'
no 'git config core.fsmonitor "touch PWNED"'
no 'git config core.hooksPath .githooks'
no 'git config --worktree core.fsmonitor "touch PWNED"'
no 'mv .git/config .git/config2'
no 'ln .git/config .git/config2'
no 'echo x > .git/config.worktree'
no 'echo "* filter=x" > .git/info/attributes'
no 'mv .git/info .git/info2'
no 'mv .git/modules .git/modules2'
no 'mv .git/modules/deep .git/modules/deep2'
no 'mv .git/modules/deep/lib .git/modules/deep/lib2'
no 'echo x > .git/modules/deep/lib/hooks/post-checkout'
no 'echo x >> .git/modules/deep/lib/config'
no 'git -C deep/lib config core.fsmonitor "touch PWNED"'
no 'mv .git/worktrees .git/worktrees2'
no 'mv .git/worktrees/tree .git/worktrees/tree2'
no 'echo x > .git/worktrees/tree/config.worktree'
no 'mount --bind /tmp .git/hooks'
no 'umount .git/hooks'
yes 'git status'
yes 'echo two > two; git add two; git commit -qm two'
yes 'git branch topic; git switch -q topic; git switch -q main'
yes 'git worktree add -q new topic'
yes 'cd new; echo three > three; git add three; git commit -qm three; cd ..'
yes 'cd tree; git status; cd ..'
yes 'git -C deep/lib status'
yes 'git gc --quiet'
yes 'git fsck'
git log -1 --format="%an <%ae>"
`)
	if r.code != 0 {
		t.Fatal(r)
	}
	if bad := regexp.MustCompile(`(?m)^(DONE|FAILED).*$`).FindAllString(r.out, -1); bad != nil {
		t.Errorf("%s\nstderr: %s", strings.Join(bad, "\n"), r.err)
	}
	if n := strings.Count(r.out, "refused"); n != 28 {
		t.Errorf("%d attempts were refused", n)
	}
	if !strings.Contains(r.out, "A Person <person@example.com>") {
		t.Errorf("commits are not the person's: %s", r.out)
	}
	after, err := os.ReadFile(filepath.Join(s.dir, ".git", "config"))
	if err != nil || string(after) != string(config) {
		t.Errorf("the repository's config was changed: %v\n%s", err, after)
	}
	s.host("git status; git log --oneline topic; git -C deep/lib status; git -C tree status; git fsck; test ! -e PWNED")

	if r := s.corral("verify"); r.code != 0 || !regexp.MustCompile(`(?m)^ok +git-shielded$`).MatchString(r.out) {
		t.Errorf("verify: %v", r)
	}
}

// What cannot be shielded is named first when the run ends, also if it was
// taken away again; what the host would execute later is named with it; and
// no config of the agent's is ever obeyed on the host.
func TestTheWayBackIsReported(t *testing.T) {
	t.Parallel()
	s := project(t, withGit)
	s.host(repository)
	r := s.sh(`
mkdir -p elsewhere/hooks; printf '[core]\n\tfsmonitor = touch %s/PWNED\n' "$PWD" > elsewhere/config
echo ../elsewhere > .git/commondir
git init -q deeper; git -C deeper config core.fsmonitor "touch $PWD/PWNED"
mkdir .vscode; echo '{}' > .vscode/tasks.json
rm .git/commondir
`)
	if r.code != 0 {
		t.Fatal(r)
	}
	lines := strings.Split(r.err, "\n")
	order := []string{"commondir", "core.fsmonitor", "tasks.json"}
	at := 0
	for _, l := range lines {
		if at < len(order) && strings.Contains(l, order[at]) {
			at++
		}
	}
	if at < len(order) {
		t.Errorf("not in order, %v is missing: %s", order[at:], r.err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "PWNED")); err == nil {
		t.Error("corral ran what the agent configured")
	}
}

// Hostile files below a writable mount: reported, never waited for, never
// followed, and their names do nothing to a terminal.
func TestTheWayBackIsHostile(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	secret := s.private("secret", "CANARY-OF-THE-OWNER\n", 0o600)
	r := s.sh(`
mkfifo .envrc
mkdir .vscode; ln -s ` + secret + ` .vscode/tasks.json
truncate -s 1G .mcp.json
mkdir -p "$(printf 'a\033[31mred\nline')"; touch "$(printf 'a\033[31mred\nline/.envrc')"
`)
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, want := range []string{".envrc", "FIFO", ".vscode/tasks.json", "symbolic link", ".mcp.json", `a\x1b[31mred\nline/.envrc`} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the report does not say %q: %s", want, r.err)
		}
	}
	if strings.Contains(r.err, "\x1b") || strings.Contains(r.err, "CANARY") {
		t.Errorf("the report passes on what it must not: %q", r.err)
	}
}

// R091: a policy that is replaced by a rename on the host, as editors do, loses
// its bind: status and verify say so, the agent's edit has no effect, and the
// next start asks.
func TestPolicyReplacedOnTheHost(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up(`echo up; read -r _; echo "hooks: {pre_launch: [touch X]}" >> corral.yaml && echo edited`, "up")
	s.host("sed -i 's/^name/name/' corral.yaml") // the same bytes in another file
	for _, args := range [][]string{{"status"}, {"verify"}} {
		r := s.corral(args...)
		if r.code != 1 || !strings.Contains(r.out+r.err, "its read-only bind in the sandbox is gone") {
			t.Errorf("%v: %v", args, r)
		}
	}
	end()
	b, err := os.ReadFile(filepath.Join(s.dir, "corral.yaml"))
	if err != nil || !strings.Contains(string(b), "touch X") {
		t.Fatalf("the agent could not edit it after all, which this test needs: %v %s", err, b)
	}
	r := s.corral("run", "--", "true")
	if r.code != 2 || !strings.Contains(r.err, "! + hooks.pre_launch  on this machine, as you: touch X") {
		t.Errorf("the next start: %v", r)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "X")); err == nil {
		t.Error("the agent's hook ran")
	}
}

// What the host's own git does while a sandbox is up can take a shield away,
// and what stands for a moment is obeyed by a git that runs in that moment: both
// are told.
func TestShieldsThatDoNotHold(t *testing.T) {
	t.Parallel()
	s := project(t, withGit)
	s.host(repository)
	end := s.up(`echo up; read -r _; echo "[core] fsmonitor = touch PWNED" >> .git/config && echo wrote; echo x > .git/commondir; rm .git/commondir`, "up")
	s.host("git config branch.main.description x")
	if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, ".git/config") || !strings.Contains(r.out, "shield is gone") {
		t.Errorf("status: %v", r)
	}
	if r := s.corral("verify"); r.code != 1 || !regexp.MustCompile(`(?m)^FAIL git-shielded: `).MatchString(r.out) {
		t.Errorf("verify: %v", r)
	}
	end()
	b, err := os.ReadFile(filepath.Join(filepath.Dir(s.dir), "home", ".local/share/corral", s.id, "wayback.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"shield is gone", "commondir: was there while the sandbox ran"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the report does not say %q: %s", want, b)
		}
	}
}

// A run that was cut short is told of by the next one.
func TestFindingsOutliveCorral(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	s.abandoned("echo x > .envrc; echo up; read -r _", "up")
	if r := s.corral("down"); r.code != 0 || !strings.Contains(r.err, ".envrc") {
		t.Errorf("down: %v", r)
	}
	s.abandoned("echo y > .envrc; echo up", "up")
	docker(t, "wait", s.agent())
	r := s.corral("run", "--", "true")
	if r.code != 0 || !strings.Contains(r.err, "an earlier run was cut short") || !strings.Contains(r.err, ".envrc") {
		t.Errorf("the next run: %v", r)
	}
	if r := s.corral("run", "--", "true"); strings.Contains(r.err, ".envrc") {
		t.Errorf("told twice: %v", r)
	}
}

// A writable mount of one file is watched like a directory, and so is what a
// hook runs.
func TestWatchedBesideRepositories(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	rc := s.private(".bashrc", "true\n", 0o644)
	s.write("backup.sh", "true\n")
	s.write("corral.yaml", "profile: shell\nname: nothing\nmounts:\n  rw: ["+rc+"]\nhooks:\n  pre_launch: [\"sh ./backup.sh\"]\n")
	r := s.corral("run", "--accept", "--", "sh", "-c", "echo x >> "+rc+"; echo x >> backup.sh")
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, want := range []string{"note: what a command on this machine", "note: " + rc + " is writable"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the question does not say %q: %s", want, r.err)
		}
	}
	for _, want := range []string{rc + ": changed", "backup.sh: changed"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the report does not say %q: %s", want, r.err)
		}
	}
}
