package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
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
			return exit.Failedf("", "%s: hook %q: %w", h.Pos, h.Text, err)
		}
	}
	return nil
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
