package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/state"
)

const (
	// hookWithin bounds one hook: time for a backup, not for one that hangs.
	hookWithin = 10 * time.Minute
	// hookGrace is what a hook has to end by itself once it is asked to.
	hookGrace = 5 * time.Second
)

// preLaunch runs the policy's hooks on this machine, one after another, in the
// project directory, as the person whose project it is, with their environment
// less the secrets and without standard input, which is the agent's. The first
// one that fails stops the start.
func (a *app) preLaunch(ctx context.Context, p *project) error {
	if !p.accepted {
		return errNotAccepted
	}
	for _, h := range p.policy.PreLaunch {
		fmt.Fprintf(a.err, "corral: hook: %s\n", printable.Escape(h.Text))
		if err := a.hook(ctx, p, h.Text); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return exit.Failedf("what it said stands above; it runs in the project directory, without input and without the secrets: try it there", "%s: hook %q: %w", h.Pos, h.Text, err)
		}
	}
	return nil
}

// untold reports whether this home has a first look at a sandbox of a policy file,
// under whatever name, of which nobody told what changed since.
func untold(file string) (bool, error) {
	home, err := state.Home()
	if err != nil {
		return false, err
	}
	ids, err := known(home, file)
	for _, id := range ids {
		b, unknown := state.Baseline(home, id)
		if err = errors.Join(err, unknown); unknown == nil && b != nil {
			return true, nil
		}
	}
	return false, err
}

// mostNamed bounds what is shown of what hooks name.
const mostNamed = 5

// word is one of a hook that may mean a file.
type word struct{ said, path string }

// named are the words of all hooks, with the path that each would have: nobody
// knows which are one.
func (p *project) named() []word {
	var out []word
	homes := strings.NewReplacer("$HOME/", "~/", "${HOME}/", "~/", "$PWD/", "./", "${PWD}/", "./")
	for _, h := range p.policy.PreLaunch {
		for _, said := range strings.FieldsFunc(homes.Replace(h.Text), func(r rune) bool { return strings.ContainsRune(" \t\n;&|<>()'\"`=", r) }) {
			at := said
			if rest, ok := strings.CutPrefix(said, "~/"); ok {
				at = filepath.Join(p.host.Homes[0], rest)
			}
			if !filepath.IsAbs(at) {
				at = filepath.Join(p.policy.Dir, at)
			}
			out = append(out, word{said, filepath.Clean(at)})
		}
	}
	return out
}

// rewritable are the words of hooks that mean something in one of roots: a path,
// or the name of something that is there.
func (p *project) rewritable(roots []string) []string {
	var out []string
	for _, w := range p.named() {
		if _, err := os.Lstat(w.path); err != nil && !strings.Contains(w.said, "/") {
			continue
		}
		real := policy.Real(w.path)
		if !slices.Contains(out, w.said) && slices.ContainsFunc(roots, func(root string) bool {
			return below(w.path, root) || below(real, root)
		}) {
			out = append(out, w.said)
		}
	}
	return out
}

// below reports whether a clean path is dir or in it.
func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// some are the first of a list.
func some(all []string) string {
	if more := len(all) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), more)
	}
	return strings.Join(all, ", ")
}

func (a *app) hook(ctx context.Context, p *project, script string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hookWithin, fmt.Errorf("it did not end within %v", hookWithin))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script)
	cmd.Dir = p.policy.Dir
	cmd.Env = p.hookEnvironment(os.Environ())
	cmd.Stdout, cmd.Stderr = a.err, a.err
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal to wait at, and a group to end
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.host.UID, Gid: p.host.GID}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = hookGrace
	err := cmd.Run()
	if cmd.Process == nil { // it never started
		return errors.Join(context.Cause(ctx), err)
	}
	if ctx.Err() != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started may have stayed
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// hookEnvironment is environ without what the agent is given as a secret, and
// with the home of the person that the hook runs as.
func (p *project) hookEnvironment(environ []string) []string {
	out := slices.DeleteFunc(environ, func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return slices.Contains(p.host.Secrets, name)
	})
	if os.Geteuid() == 0 {
		out = append(out, "HOME="+p.host.Homes[0])
	}
	return out
}
