// Package cli is the command people type: one file per command. Arguments and
// standard streams go in, an exit status comes out. It joins policy, plan and
// engine together and holds no rule of its own.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/spelling"
	"github.com/corral-sandbox/corral/internal/state"
)

// app is what every command works with.
type app struct {
	in       io.Reader
	out, err io.Writer
	policy   string // --policy
	project  string // --project
	yes      bool   // --accept
	quiet    bool   // says nothing of where the project is
	unasked  bool   // nobody is there to be asked
	sure     bool   // --yes: what somebody sits at may be ended, or purged
	hooked   bool   // hooks ran for the start that is under way, or are not to

	late    []*unheld // what may not have been taken yet
	live    *live     // the line that is written over, nil where there is none
	timings *timings  // nil where nobody asked
}

// Main runs one command line.
func Main(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) int {
	a := &app{in: stdin, out: stdout, err: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	defer a.flush(ctx)
	return a.report(root.ExecuteContext(ctx))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "corral",
		Short: "Run an agent inside a fence, and prove the fence from the inside",
		Long: `corral runs coding and personal agents in Docker containers that reach only what
one policy file lists, and proves from the inside that it is so.`,
		Example: `  corral install                 once per machine
  corral init --profile opencode a policy for this project (shell: any command)
  corral run                     the agent, in this project
  corral run -- run "fix it"     the same, with arguments of its own
  corral up                      an agent that is always on (mode: daemon)
  corral enable                  the same, from every boot on
  corral attach                  sits down at it; ctrl-p ctrl-q leaves it on
  corral shell                   a shell beside the agent
  corral verify                  proves the fence

Exit status: 0 done; 1 the operation or a check failed; 2 the policy or the
request is invalid; run, shell and attach return that of the agent or the shell
once it has started.`,
		Version:                    spec.Release(),
		SilenceUsage:               true,
		SilenceErrors:              true,
		Args:                       cobra.ArbitraryArgs,
		RunE:                       subcommand,
		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("corral {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
	root.SetFlagErrorFunc(flagError)
	for _, g := range []struct {
		id, title string
		project   bool // its commands are about one project
		commands  []*cobra.Command
	}{
		{"start", "Start:", false, []*cobra.Command{a.init(), a.demo()}},
		{"run", "Run:", true, []*cobra.Command{a.run(), a.up(), a.attach(), a.shell(), a.refresh(), a.build(), a.down(), a.enable(), a.disable()}},
		{"look", "Look:", true, []*cobra.Command{a.status(), a.traffic(), a.logs(), a.verify()}},
		{"policy", "Policy:", true, []*cobra.Command{a.policyCommand(), a.render()}},
		{machineGroup, "This machine:", false, []*cobra.Command{a.install(), a.ps(), a.version()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			if c.GroupID = g.id; g.project {
				c.PersistentFlags().StringVar(&a.policy, "policy", "", "the policy file (default: corral.yaml here or above)")
				c.PersistentFlags().StringVar(&a.project, "project", "", "the project directory (default: the policy's own; with --policy, the working directory)")
			}
			root.AddCommand(c)
		}
	}
	for _, c := range root.Commands() {
		c.SuggestFor = elsewhere[c.Name()]
	}
	given(root)
	completions(root)
	narrow(root)
	return root
}

// narrow fits what the commands say of themselves into the width of help.
func narrow(c *cobra.Command) {
	paragraphs := strings.Split(c.Long, "\n\n")
	for i, p := range paragraphs {
		if p == "" || strings.HasPrefix(p, " ") || strings.HasPrefix(p, "\t") || strings.Contains(p, "\n ") {
			continue // as it is to be typed
		}
		var b strings.Builder
		width := 0
		for j, word := range strings.Fields(p) {
			n := utf8.RuneCountInString(word)
			switch {
			case j == 0:
			case width+1+n > helpWidth:
				b.WriteByte('\n')
				width = 0
			default:
				b.WriteByte(' ')
				width++
			}
			b.WriteString(word)
			width += n
		}
		paragraphs[i] = b.String()
	}
	c.Long = strings.Join(paragraphs, "\n\n")
	for _, sub := range c.Commands() {
		narrow(sub)
	}
}

// elsewhere are the words of other tools for what a command of ours does.
var elsewhere = map[string][]string{
	"ps":    {"ls", "list"},
	"up":    {"start"},
	"down":  {"stop", "kill", "rm"},
	"shell": {"exec"},
}

// helpWidth is how wide help is: what the narrowest terminals show.
const helpWidth = 80

// machineGroup is where help lists what is about no project.
const machineGroup = "machine"

// given fits the commands that come with cobra into ours: completion is for the
// shells of the systems that corral runs on.
func given(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.GroupID, c.Short = machineGroup, "Say more about a command"
			c.Run, c.RunE = nil, func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 {
					return subcommand(about, rest)
				}
				about.InitDefaultHelpFlag()
				about.InitDefaultVersionFlag()
				return about.Help()
			}
		case "completion":
			c.GroupID, c.Short = machineGroup, "Print the completion script of a shell"
			c.Args, c.RunE, c.SuggestionsMinimumDistance = cobra.ArbitraryArgs, subcommand, root.SuggestionsMinimumDistance
			for _, shell := range c.Commands() {
				switch shell.Args = noArgs; shell.Name() {
				case "powershell":
					c.RemoveCommand(shell)
				case "bash":
					shell.Long = bashCompletion
				}
			}
		}
	}
}

const bashCompletion = `Prints the completion script for bash. make install has put it in place.

It needs the package bash-completion (apt-get install bash-completion), and bash
looks for it when it starts: open a new shell after either was installed.

To have it in this shell alone:

	source <(corral completion bash)

To have it in every new one, where make install was not used:

	mkdir -p ~/.local/share/bash-completion/completions
	corral completion bash > ~/.local/share/bash-completion/completions/corral
`

// subcommand is what a command with others below it does by itself.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	hint := fmt.Sprintf("see %s --help", c.CommandPath())
	if meant := meant(c, args[0]); meant != "" {
		hint = fmt.Sprintf("did you mean %s %s?", c.CommandPath(), meant)
	}
	return exit.Invalidf(hint, "unknown command %q", args[0])
}

// meant is the command below c that a word most likely means, empty if none does:
// another tool's word for it first, then what is spelled alike.
func meant(c *cobra.Command, word string) string {
	for _, sub := range c.Commands() {
		if slices.Contains(sub.SuggestFor, strings.ToLower(word)) {
			return sub.Name()
		}
	}
	near := c.SuggestionsFor(word)
	if len(near) == 0 {
		return ""
	}
	return slices.MinFunc(near, func(x, y string) int {
		return cmp.Compare(spelling.Distance(word, x), spelling.Distance(word, y))
	})
}

// flagError is what is wrong with the flags of a command, in our words.
func flagError(c *cobra.Command, err error) error {
	// An unknown flag of an unknown command is the lesser mistake.
	if before := c.Flags().Args(); c.HasSubCommands() && len(before) > 0 {
		return subcommand(c, before)
	}
	see := fmt.Sprintf("see %s --help", c.CommandPath())
	if wrong := (*pflag.InvalidValueError)(nil); errors.As(err, &wrong) {
		takes, known := flagValues[wrong.GetFlag().Value.Type()]
		if !known {
			takes = "another value"
		}
		return exit.Invalidf(see, "--%s takes %s, got %q", wrong.GetFlag().Name, takes, wrong.GetValue())
	}
	return exit.Invalidf(flagHint(c, err), "%v", err)
}

// flagValues says what flags of a type take.
var flagValues = map[string]string{"bool": "true or false", "int": "a whole number", "duration": "a time like 30s"}

// flagHint says which flag of a command a mistyped one most likely is.
func flagHint(c *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := spelling.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Sprintf("did you mean --%s?", near)
		}
		if given := unknown.GetSpecifiedName(); len(given) >= leastAlike {
			names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, given[:leastAlike]) })
			if len(names) == 1 {
				return fmt.Sprintf("did you mean --%s?", names[0])
			}
		}
	}
	return fmt.Sprintf("see %s --help", c.CommandPath())
}

// leastAlike is how much of its beginning a flag shares with one that it may mean.
const leastAlike = 3

// noArgs refuses arguments with our exit status for an invalid request.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exit.Invalidf(fmt.Sprintf("see %s --help", c.CommandPath()), "%s takes no argument, got %q", c.CommandPath(), args[0])
	}
	return nil
}

// report is the one place where an error becomes a message and a status.
func (a *app) report(err error) int {
	var mistakes diag.List
	if errors.As(err, &mistakes) {
		mistakes.Print(a.err)
		return exit.Invalid
	}
	if a.unread(err) {
		return exit.Failed
	}
	if errors.Is(err, context.Canceled) {
		return exit.Report(plain{a.err}, "corral", err)
	}
	var known *exit.Error
	if err != nil && !errors.As(err, &known) {
		err = &exit.Error{Status: status(err), Err: err, Hint: hint(err)}
	}
	return exit.Report(plain{a.err}, "corral", err)
}

// unread reports whether all that went wrong is that whoever reads what was asked for
// has enough, as head does: there is nobody to tell. Where that ends more than the
// output, somebody has put words to it.
func (a *app) unread(err error) bool {
	f, is := a.out.(*os.File)
	return is && err != nil && brokenPipe(err, f.Name())
}

func brokenPipe(err error, of string) bool {
	switch e := err.(type) {
	case *fs.PathError:
		return e.Op == "write" && e.Path == of && errors.Is(e.Err, syscall.EPIPE)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(part error) bool { return !brokenPipe(part, of) })
	}
	return false
}

// plain writes corral's own words, without the engine's names for containers.
type plain struct{ w io.Writer }

func (p plain) Write(b []byte) (int, error) {
	_, err := io.WriteString(p.w, engine.Plain(string(b)))
	return len(b), err
}

// sayf tells a person something, in a line of its own; whatever else the words of
// others would do to a terminal is made visible.
func (a *app) sayf(format string, args ...any) {
	lines := strings.Split(fmt.Sprintf("corral: "+format, args...), "\n")
	for i, l := range lines {
		lines[i] = printable.Escape(l)
	}
	a.live.over(func() { fmt.Fprintln(plain{a.err}, strings.Join(lines, "\n")) })
}

// invalid reports whether an error is a mistake in the policy or the request.
func invalid(err error) bool {
	var known *exit.Error
	if errors.As(err, &known) {
		return known.Status == exit.Invalid
	}
	return errors.As(err, new(diag.List)) || status(err) == exit.Invalid
}

func status(err error) int {
	if errors.As(err, new(plan.ErrNoResolver)) || errors.As(err, new(plan.ErrPolicyBelow)) || errors.As(err, new(*engine.Unmountable)) {
		return exit.Invalid
	}
	return exit.Failed
}

// hint says what to do about the errors that a person can do something about.
func hint(err error) string {
	var unusable *engine.NotUsable
	var network *engine.WrongNetwork
	var running *engine.Running
	var failed *engine.GateFailed
	var unbuilt *engine.BuildFailed
	var unmountable *engine.Unmountable
	var collision *engine.Collision
	var mislabelled *engine.Mislabelled
	switch {
	case errors.As(err, &unusable):
		return unusable.Hint
	case errors.As(err, &network):
		return "corral install makes it; corral install --repair makes it anew"
	case errors.As(err, &failed):
		return failed.Hint
	case errors.As(err, &unbuilt):
		return unbuilt.Hint()
	case errors.As(err, new(*state.Misplaced)):
		return "put a directory of your own back in its place; XDG_DATA_HOME, or a bind mount, moves all of corral's elsewhere"
	case errors.Is(err, state.ErrLocked):
		return "wait for it, or end it"
	case errors.As(err, &collision):
		return collision.Hint
	case errors.As(err, &unmountable):
		return unmountable.Hint
	case errors.As(err, &mislabelled):
		return "corral did not make it as it is now: docker rm --force " + mislabelled.Container
	case errors.As(err, &running) && running.Daemon:
		return "corral up heals it, corral shell opens a shell in it, corral down ends it"
	case errors.As(err, &running):
		return "corral shell opens a shell in it, corral status says how it is, corral down ends it"
	case errors.As(err, new(plan.ErrPolicyBelow)):
		return "keep it at the top of the project, or outside of every mount"
	case errors.As(err, new(plan.ErrNoResolver)):
		return "set CORRAL_RESOLVERS to the address of a name server"
	}
	return ""
}

// connect finds the engine; progress goes to standard error.
func (a *app) connect(ctx context.Context) (*engine.Engine, error) {
	e, err := engine.Connect(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	e.Progress, e.Watcher = a.sayf, a.watcher()
	a.timings.lap("engine found")
	return e, nil
}

// here finds the engine and what is up of the policy that governs here. The
// policy itself is not read: it may be anything by now.
func (a *app) here(ctx context.Context) (e *engine.Engine, file string, members []engine.Member, err error) {
	if err = isThere(a.project); err != nil {
		return nil, "", nil, err
	}
	if e, err = a.connect(ctx); err != nil {
		return nil, "", nil, err
	}
	if file, err = a.governed(ctx, e); err != nil {
		return nil, "", nil, err
	}
	members, err = e.Members(ctx, file)
	return e, file, members, err
}

// starter is the command that brings up what is not up, as far as the policy
// can be told.
func (a *app) starter() string {
	quiet := *a
	quiet.quiet = true
	p, err := quiet.load()
	switch {
	case err != nil:
		return "corral run, or corral up where it is always on,"
	case p.policy.Mode == policy.Daemon:
		return "corral up"
	}
	return "corral run"
}

// with gives a command its project and the engine, unless what is up is another project's.
func (a *app) with(ctx context.Context, f func(*project, *engine.Engine) error) error {
	return a.checked(ctx, forAnother, f)
}

// checked gives a command its project and the engine, if what is up passes.
func (a *app) checked(ctx context.Context, pass func([]engine.Member, *project) error, f func(*project, *engine.Engine) error) error {
	p, err := a.load()
	if err != nil {
		return err
	}
	a.timings.lap("policy read")
	e, err := a.connect(ctx)
	if err != nil {
		return err
	}
	members, err := e.Members(ctx, p.policy.File)
	if err == nil {
		err = pass(members, p)
	}
	if err != nil {
		return err
	}
	return f(p, e)
}

// unplaced is why it cannot be told for which project a sandbox is up.
type unplaced struct{ error }

func (e *unplaced) Unwrap() error { return e.error }

// forAnother refuses a policy whose sandbox is up for another project: who says
// --policy without --project, or stands elsewhere than before, would end that one, or
// judge it by this one. Where that cannot be told it is refused, too.
func forAnother(members []engine.Member, p *project) error {
	home, err := state.Home()
	if err != nil {
		return err
	}
	for _, id := range sandboxes(members) {
		b, err := state.Accepted(home, id)
		if err == nil && b == nil || os.Geteuid() == 0 && errors.Is(err, state.ErrNotYours) { // another user's: of that nobody here can tell
			continue
		}
		was := ""
		if err == nil {
			was, err = policy.ProjectOf(b)
		}
		switch {
		case err != nil:
			return exit.Failedf("corral down ends it, whatever it is up for; what comes up then asks anew", "%s is up, and for which project cannot be told: %w", id, &unplaced{err})
		case was != p.policy.Dir:
			return exit.Invalidf("say --project "+was+", or corral down from there", "%s is up for the project %s, not for %s", id, was, p.policy.Dir)
		}
	}
	return nil
}

// terminal reports whether a stream is one.
func terminal(stream any) bool {
	if u, is := stream.(*unheld); is {
		stream = u.to
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
