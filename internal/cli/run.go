package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) run() *cobra.Command {
	c := &cobra.Command{
		Use:   "run [-- ARGS…]",
		Short: "Run the agent in this project, behind the fence",
		Long: `Brings up a gate, waits until it has proven its rules, then starts the agent
behind it on this terminal. Both are gone afterwards; the exit status is the
agent's.

What follows -- are the agent's own arguments. With the profile shell, which has
no agent of its own, they are the command.`,
		Example: `  corral run
  corral run -- run "add a test"            profile opencode
  corral run -- sh -c 'make && make test'   profile shell
  echo question | corral run -- my-agent    profile shell`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 && c.ArgsLenAtDash() != 0 {
				return exit.Invalidf("write corral run -- "+strings.Join(args, " "), "the agent's arguments go after --")
			}
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				if p.policy.Mode == policy.Daemon {
					return exit.Invalidf("corral up brings it up; corral shell opens a shell in it", "%s: mode: daemon is always on, and on nobody's terminal", p.policy.File)
				}
				return a.runAgent(c.Context(), p, e, p.profile.Line(args))
			})
		},
	}
	a.acceptFlag(c)
	a.timed(c)
	return c
}

func (a *app) runAgent(ctx context.Context, p *project, e *engine.Engine, args []string) error {
	t := engine.Terminal{TTY: terminal(a.in) && terminal(a.out), Stdin: true}
	unlock, err := a.begin(ctx, e, p, toStart)
	if err != nil {
		return err
	}
	defer unlock()
	w := a.lookBack(ctx, p, nil)
	up, err := a.bring(ctx, e, p, engine.PurposeRun, args, t)
	if err != nil {
		w.abandon(p)
		return err
	}
	if err := w.begun(ctx); err != nil {
		if a.end(ctx, e, up) {
			w.abandon(p)
		}
		return err
	}
	g, id := up.gate(), up.agent()
	a.timings.lap("first look at the repositories")
	errs := a.unhold(!t.TTY)
	lost := a.guard(ctx, e, g, id, t.TTY)
	seen := a.timeHandover(ctx, e, id)
	code, err := e.Attach(ctx, id, t, a.in, a.out, errs)
	if seen() {
		a.timings.lap("agent, to its end")
	} else {
		a.timings.lap("handover and agent, to its end")
	}
	a.restore()
	var denied []string
	if why := lost(); why == "" {
		denied = a.denied(ctx, e, g, p)
	} else {
		err = exit.Failedf("corral run starts both anew", "the gate ended during the run (%s): the agent was without a network, and was ended", why)
	}
	gone := a.end(ctx, e, up) // the agent's status stands, whatever becomes of its containers
	w.end(ctx, a, p, gone)
	a.timings.lap("all of it removed")
	if err != nil {
		return err
	}
	for _, line := range denied {
		a.sayf("%s", line)
	}
	if code != 0 {
		return exit.Status(code)
	}
	return nil
}

// timeHandover takes the time of the handover of a service that is about to be started,
// if somebody asked for times. The result ends that, and says whether it was seen: one
// whose agent ends at once may not be.
func (a *app) timeHandover(ctx context.Context, e *engine.Engine, service string) (seen func() bool) {
	if a.timings == nil {
		return func() bool { return false }
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan bool, 1)
	go func() {
		over := e.SeeHandover(ctx, service)
		if over {
			a.timings.lap(engine.HandoverStep)
		}
		done <- over
	}()
	return func() bool {
		stop()
		return <-done
	}
}

// guard watches the gate of a run. If that is lost, it says so at once and ends
// the agent, which has no network any more and never will. The result ends the
// watch and says what became of the gate, empty if nothing did.
func (a *app) guard(ctx context.Context, e *engine.Engine, g *engine.Gate, service string, raw bool) (lost func() string) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	said := make(chan string, 1)
	go func() {
		why, gone := e.GateLost(ctx, g.ID, service)
		if !gone {
			said <- ""
			return
		}
		a.interject(raw, fmt.Sprintf("the gate ended (%s): the agent has no network any more and is ended", why))
		if err := e.Stop(ctx, service); err != nil && ctx.Err() == nil {
			a.interject(raw, engine.Plain(err.Error()))
		}
		said <- why
	}()
	return func() string {
		stop()
		return <-said
	}
}

// heard ends whatever string (DCS, OSC, APC, PM, SOS) an agent has begun and not ended:
// a terminal would take everything that follows for a part of it.
const heard = "\x18\x1b\\"

// sane brings a terminal back to where what corral says can be seen, whatever
// the agent left it in: the main screen, a soft reset, plain characters.
// It also takes back what a program that did not clear up has asked for: the mouse,
// pasted text in brackets, word of who has the focus, keys as sequences, colours turned
// round, an output that waits, a hidden cursor.
// Where there was only the main screen, leaving the other one would put the cursor where
// it was saved last: so it is saved first. Either screen may have its own keys.
const sane = heard + "\x1b7" + plainKeys + "\x1b[?1049l\r" + plainKeys + "\x1b[!p\x1b[0m" +
	"\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l" +
	"\x1b[?2004l\x1b[?1004l\x1b[?2026l\x1b[?5l\x1b[?25h"

// plainKeys makes a terminal send keys as it did: all of kitty's stack goes, and
// modifyOtherKeys.
const plainKeys = "\x1b[<99u\x1b[<u\x1b[=0u\x1b[>4m"

// restore does so, where corral may write such things. It paints nothing, so NO_COLOR
// says nothing of it. What the agent asked of the terminal and was answered late is not
// left for the person's shell to take for what they typed. In the background the terminal is
// another's, and stays as it is.
func (a *app) restore() {
	if f, is := a.in.(*os.File); is && terminal(a.out) {
		engine.InFront(f, func() { _ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) })
	}
	switch {
	case terminal(a.err):
		inFront(a.err, a.calm)
	case terminal(a.out):
		inFront(a.out, func() {
			out := unheldTo(a.out, false)
			a.late = append(a.late, out)
			fmt.Fprint(out, a.before(out))
		})
	}
}

// inFront does something to the terminal that a stream of corral's is, unless corral is in
// the background of it.
func inFront(stream io.Writer, do func()) {
	if u, is := stream.(*unheld); is {
		stream = u.to
	}
	if f, is := stream.(*os.File); is {
		engine.InFront(f, do)
	}
}

// calm does so for what is said next on standard error, if that is a terminal.
func (a *app) calm() {
	if s := a.before(a.err); s != "" {
		fmt.Fprint(a.err, s)
	}
}

// before is what to write to a stream before anything of corral's, where an agent may
// have written to it. Where standard output is no terminal, a pager may have the terminal
// that standard error is: then it is only made visible.
func (a *app) before(to io.Writer) string {
	switch {
	case !terminal(to) || os.Getenv("TERM") == "dumb":
		return ""
	case !terminal(a.out):
		return heard + "\x1b[0m"
	}
	return sane
}

// interject says something while an agent writes to the same terminal, whatever it draws
// there: on a line of its own.
func (a *app) interject(raw bool, what string) {
	begin, end := "", "\n"
	if raw {
		begin, end = "\r\n", "\r\n"
	}
	fmt.Fprint(a.err, a.before(a.err)+begin+"corral: "+printable.Escape(what)+end)
}

// denied says in one line what the agent asked for and did not get, or why that
// cannot be told, and in another which line would allow the most of it.
func (a *app) denied(ctx context.Context, e *engine.Engine, g *engine.Gate, p *project) []string {
	ctx = context.WithoutCancel(ctx)
	status, err := e.GateStatus(ctx, g.ID)
	if err == nil {
		var lines []string
		if line := summary(status); line != "" {
			lines = append(lines, "denied: "+line)
		}
		if line := remedy(status, p.policy.Rules(plan.Defaults(p.profile))); line != "" {
			lines = append(lines, line)
		}
		return lines
	}
	switch state, known := e.State(ctx, g.ID); {
	case known && (state == "" || state == "removing"):
		return nil // Attach says so
	case known && state != "running":
		return []string{"the gate ended during the run: the agent was without a network"}
	}
	return []string{fmt.Sprintf("what was denied cannot be told: %v", err)}
}

// remedy is the line of the policy for the name that was refused most often and
// that there is a plain one for.
func remedy(s spec.GateStatus, rules []policy.Rule) string {
	const most = 10 // an agent may have looked up thousands
	for _, n := range s.RefusedNames[:min(len(s.RefusedNames), most)] {
		if got := policy.Suggest(policy.Attempt{Name: n.Name}, policy.Circumstances{Rules: rules}); got.Entry != "" && got.Doubt == "" {
			return fmt.Sprintf("%s would be allowed by this line of the policy, under %s: - %s", n.Name, got.Key, got.Entry)
		}
	}
	return ""
}

// mostShown bounds a line: the rest is counted.
const mostShown = 5

func summary(s spec.GateStatus) string {
	var parts []string
	for _, n := range s.RefusedNames {
		parts = append(parts, cell(n.Name)+times(n.Count))
	}
	for _, d := range s.Denied {
		to := d.Addr.String()
		if d.Port != 0 {
			to = fmt.Sprintf("%v:%d", d.Addr, d.Port)
		}
		parts = append(parts, cell(d.Proto+" "+to)+times(d.Count))
	}
	if more := len(parts) - mostShown; more > 0 {
		parts = append(parts[:mostShown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

func times(n uint64) string {
	if n <= 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times)", n)
}
