package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spelling"
)

func (a *app) logs() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs [SERVICE]",
		Short: "Print what the agent, or the gate, has written",
		Long: `Prints what the engine kept of a service's output in the sandbox that is up:
main, the agent, or gate. It comes as the agent wrote it, with whatever it
makes a terminal do; corral logs | less is safe to read. The engine keeps lines:
of a program that draws on the whole screen there may be nothing.`,
		Example: `  corral logs
  corral logs -f
  corral logs gate`,
		ValidArgsFunction: a.services,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exit.Invalidf("see corral logs --help", "corral logs takes one service, got %q", args[1])
			}
			return a.showLogs(c.Context(), append(args, "main")[0], follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until it ends")
	return c
}

// showLogs needs no policy: it may be anything by now.
func (a *app) showLogs(ctx context.Context, service string, follow bool) error {
	e, file, members, err := a.here(ctx)
	if err != nil {
		return err
	}
	if len(members) == 0 {
		return exit.Failedf(a.starter()+" starts it; what it writes is kept as long as it is up", "nothing of %s is up", file)
	}
	var known []string
	for _, m := range members {
		name := spoken(m)
		if name == service {
			return e.Logs(ctx, m.ID, follow, a.out, a.err)
		}
		known = append(known, name)
	}
	slices.Sort(known)
	hint := "there is " + strings.Join(known, ", ")
	if near := spelling.Nearest(service, known); near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	return exit.Invalidf(hint, "no service is called %q", service)
}

// spoken is what people call a container of a sandbox.
func spoken(m engine.Member) string {
	if m.Role == engine.RoleGate {
		return strings.TrimPrefix(m.Service+"-gate", "main-")
	}
	return m.Service
}
