package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/spelling"
	"github.com/corral-sandbox/corral/internal/state"
)

func (a *app) attach() *cobra.Command {
	var keys string
	var noInput bool
	c := &cobra.Command{
		Use:   "attach [SERVICE]",
		Short: "Sit down at an always-on agent, and leave it running",
		Long: `Connects this terminal with that of a service that corral up brought up: main,
the agent, unless another is named. ctrl-p ctrl-q leaves it running; other keys
are chosen by --detach-keys, or detach_keys of this machine's settings. A signal
or a terminal that is closed leaves it running, too.

What draws on the whole screen draws again. What writes lines shows the next
one: corral logs has those before. Bytes come as the agent writes them, with
whatever that makes a terminal do. More than one may sit at the same agent.

Where standard input is no terminal, what comes is typed, and its end leaves
nothing: a signal does, or the agent's end. Where only standard output is none,
lines are typed, and Ctrl-C leaves it running.

As long as somebody does, corral up asks before it ends what they sit at, and a
corral up --watch waits with a change of the policy that would. The exit status
is the agent's if it ends meanwhile.`,
		Example: `  corral attach
  corral attach --detach-keys ctrl-]
  corral attach --no-stdin           only watches
  echo "how far are you?" | timeout 60 corral attach`,
		ValidArgsFunction: a.seats,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exit.Invalidf("see corral attach --help", "corral attach takes one service, got %q", args[1])
			}
			return a.sit(c.Context(), append(args, "main")[0], keys, !noInput)
		},
	}
	c.Flags().StringVar(&keys, "detach-keys", "", "the keys that leave it running (default: the setting, else "+host.DefaultDetachKeys+")")
	c.Flags().BoolVar(&noInput, "no-stdin", false, "type nothing into it")
	return c
}

// leaving are the keys that leave a console, and what they are typed as.
func leaving(flag string) (keys string, typed []byte, err error) {
	set, err := wished()
	if err != nil {
		return "", nil, err
	}
	for _, keys := range []string{flag, set.DetachKeys, host.DefaultDetachKeys} {
		if keys == "" {
			continue
		}
		typed, err := host.CheckDetachKeys(keys)
		if err != nil {
			return "", nil, exit.Invalidf("corral attach --help has examples", "--detach-keys: %w", err) // the settings were looked at
		}
		return strings.ReplaceAll(keys, ",", " "), typed, nil
	}
	return "", nil, nil
}

// sit connects the terminal with that of a service. It needs no policy.
func (a *app) sit(ctx context.Context, name, flag string, input bool) error {
	keys, typed, err := leaving(flag)
	if err != nil {
		return err
	}
	e, file, members, err := a.here(ctx)
	if err != nil {
		return err
	}
	service, err := a.seat(ctx, e, file, name, members)
	if err != nil {
		return err
	}
	defer a.sitting(service)()
	tty := terminal(a.in) && terminal(a.out)
	gate := gateOf(members, service)
	switch health := e.Health(ctx, []engine.Member{gate, service})[0]; {
	case !health.OK:
		a.sayf("%s: %s (%s)", health.Service, health.State, cure(service, ""))
	case tty && input:
		a.sayf("%s of %s: %s leaves it running", name, service.Sandbox, keys)
	case terminal(a.in): // without a screen what is typed comes in lines, and Ctrl-C is corral's
		a.sayf("%s of %s: Ctrl-C leaves it running", name, service.Sandbox)
	}
	errs := a.unhold(false)
	told := a.tellLoss(ctx, e, gate.ID, service.ID, tty)
	code, err := e.Console(ctx, service.ID, engine.Console{Leave: typed, Input: input}, a.in, a.out, errs)
	a.restore()
	told()
	switch {
	case errors.Is(err, engine.ErrLeft):
		a.sayf("%s runs on; corral attach comes back to it", name)
		return nil
	case errors.Is(err, engine.ErrStalled):
		return exit.Failedf("corral attach comes back to it; corral logs -f is what may wait for a reader", "nobody took what %s writes, and it would have had to wait: the session was left, and it runs on", name)
	case errors.Is(err, engine.ErrTakenDown):
		return exit.Failedf("corral status says how it is now", "%s was taken down, or made anew by a corral up", name)
	case errors.Is(err, engine.ErrRestarted):
		return exit.Failedf("corral attach comes back to it", "%s was ended and started again by somebody, as docker restart does", name)
	case errors.Is(err, engine.ErrLost):
		return exit.Failedf("corral attach comes back to it, corral status says how it is", "%s: %w", name, err)
	case err != nil:
		return err
	}
	a.sayf("%s ended: %s (%s)", name, e.WhyEnded(ctx, service), cure(service, ""))
	if code != 0 {
		return exit.Status(code)
	}
	return nil
}

// sitting says, until the result is called, that somebody sits at a service: it is not
// ended for a change of the policy without a question. Where that cannot be recorded it is
// told, and keeps nobody from what runs.
func (a *app) sitting(service engine.Member) (leave func()) {
	home, err := state.Home()
	if err == nil {
		leave, err = state.Attach(home, service.Sandbox)
	}
	if err != nil {
		a.sayf("that somebody sits at %s cannot be recorded, so a corral up may end it without a question: %v", service.Service, err)
		return func() {}
	}
	return leave
}

// seat is the service of that name that somebody may sit down at.
func (a *app) seat(ctx context.Context, e *engine.Engine, file, name string, members []engine.Member) (engine.Member, error) {
	if len(members) == 0 && a.starter() == "corral run" {
		return engine.Member{}, exit.Failedf("mode: daemon in the policy makes it always on; corral run is on a terminal by itself", "nothing of %s is up, and its agent is none to sit down at", file)
	}
	if len(members) == 0 {
		return engine.Member{}, exit.Failedf(a.starter()+" starts it", "nothing of %s is up", file)
	}
	var known []string
	for _, m := range members {
		if m.Role != engine.RoleService {
			continue
		}
		switch known = append(known, m.Service); {
		case m.Service != name:
		case m.Purpose != engine.PurposeDaemon:
			return m, exit.Failedf("corral shell opens a shell beside it", "%s is on the terminal of the corral that looks after it", name)
		case m.State == "paused":
			return m, exit.Failedf("corral up lets it go on", "%s is paused", name)
		case !m.Running:
			return m, exit.Failedf("corral up starts it again, corral logs has what it said", "%s does not run: %s", name, e.WhyEnded(ctx, m))
		default:
			return m, nil
		}
	}
	if name == "main" {
		return engine.Member{}, exit.Failedf("corral up brings it up", "%s is not there", name)
	}
	slices.Sort(known)
	hint := "there is " + strings.Join(known, ", ")
	if near := spelling.Nearest(name, known); near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	return engine.Member{}, exit.Invalidf(hint, "no service is called %q", name)
}

// gateOf is the gate that a service is behind, zero if there is none.
func gateOf(members []engine.Member, service engine.Member) engine.Member {
	for _, m := range members {
		if m.Role == engine.RoleGate && m.Sandbox == service.Sandbox && m.Service == service.Gate {
			return m
		}
	}
	return engine.Member{}
}

// tellLoss says at once if the gate ends behind which somebody sits. It ends
// nothing: corral up, or the watch, does. The result ends the telling.
func (a *app) tellLoss(ctx context.Context, e *engine.Engine, gate, service string, raw bool) func() {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		why, lost := e.GateLost(ctx, gate, service)
		if !lost {
			return
		}
		a.interject(raw, fmt.Sprintf("the gate ended (%s): the agent has no network any more until corral up makes both anew", why))
	}()
	return func() {
		stop()
		<-done
	}
}
