package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/policy"
)

// anyShell is bash where the image has it, else sh.
var anyShell = []string{"sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"}

func (a *app) shell() *cobra.Command {
	c := &cobra.Command{
		Use:   "shell [-- COMMAND [ARGS…]]",
		Short: "Open a shell behind the fence, beside the agent",
		Long: `Opens a shell, or runs a command, in the sandbox that is up: as the agent's user,
in its container, after the same proof of the fence. If none is up, one is
brought up for it, as corral run does; one of mode: daemon is corral up's to
bring up. A policy that was changed meanwhile is told, and takes no effect by
this. The exit status is the shell's. The agent is the same user: it can see and
change what you do there.`,
		Example: `  corral shell
  corral shell -- git status
  corral shell < commands.sh`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 && c.ArgsLenAtDash() != 0 {
				return exit.Invalidf("write corral shell -- "+strings.Join(args, " "), "the command goes after --")
			}
			if len(args) == 0 {
				args = anyShell
			}
			return a.checked(c.Context(), a.lookedInto, func(p *project, e *engine.Engine) error {
				return a.enter(c.Context(), p, e, args)
			})
		},
	}
	a.acceptFlag(c)
	return c
}

// lookedInto is forAnother for who changes nothing of what runs: where it cannot be told, one
// may still look into it.
func (a *app) lookedInto(members []engine.Member, p *project) error {
	err := forAnother(members, p)
	if _, service := running(members); service.ID == "" || !errors.As(err, new(*unplaced)) {
		return err
	}
	a.sayf("%v (corral down ends it)", err)
	return nil
}

// enter runs a command beside the agent that is up, or as the agent.
func (a *app) enter(ctx context.Context, p *project, e *engine.Engine, args []string) error {
	members, err := e.Members(ctx, p.policy.File)
	if err != nil {
		return err
	}
	gate, service := running(members)
	switch {
	case service.ID != "":
	case p.policy.Mode == policy.Daemon:
		return exit.Failedf("corral up brings it up", "nothing of %s is up", p.policy.File)
	default:
		return a.runAgent(ctx, p, e, args)
	}
	status, err := a.well(ctx, e, gate, service)
	if err != nil {
		return err
	}
	if wrong := p.outdated(members, &status); wrong != "" { // it is what is up that one wants to look at
		a.sayf("%s (%s)", wrong, cure(service, "corral down ends it; the next corral shell is behind the policy as it is now"))
	}
	var env []string
	for _, name := range []string{"TERM", "COLORTERM"} { // it may be another terminal than the agent's
		if v, found := p.host.Environment[name]; found {
			env = append(env, name+"="+v)
		}
	}
	defer a.sitting(service)()
	t := engine.Terminal{TTY: terminal(a.in) && terminal(a.out), Stdin: true}
	errs := a.unhold(!t.TTY)
	code, err := e.Beside(ctx, service.ID, args, env, t, a.in, a.out, errs)
	a.restore()
	if err != nil {
		return err
	}
	if code != 0 {
		return exit.Status(code)
	}
	return nil
}
