package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/profile"
)

// completeWithin bounds what a person waits for after a tab.
const completeWithin = time.Second

// completions fits a command and those below it to the shells' completion: files
// are offered only where one is meant. It says nothing and cannot fail.
func completions(c *cobra.Command) {
	for _, f := range []struct {
		name     string
		complete func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)
	}{
		{"policy", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		}},
		{"project", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}},
		{"profile", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return profile.Names(), cobra.ShellCompDirectiveNoFileComp
		}},
		{"subnet", cobra.NoFileCompletions},
	} {
		if c.Flags().Lookup(f.name) != nil || c.PersistentFlags().Lookup(f.name) != nil {
			_ = c.RegisterFlagCompletionFunc(f.name, f.complete)
		}
	}
	if c.ValidArgsFunction == nil && c.ValidArgs == nil && !slices.Contains([]string{"run", "shell", "help"}, c.Name()) {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range c.Commands() {
		completions(sub)
	}
}

// services completes the name of one of the project's containers: of those that are
// up, as far as the engine says so soon enough.
func (a *app) services(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	names := []string{"main", "gate"}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), completeWithin)
	defer cancel()
	found := make(chan []string, 1)
	go func() {
		_, _, members, err := a.silent().here(ctx)
		var up []string
		for _, m := range members {
			up = append(up, spoken(m))
		}
		if err != nil || len(up) == 0 {
			up = names
		}
		slices.Sort(up)
		found <- slices.Compact(up)
	}()
	select {
	case names = <-found:
	case <-ctx.Done():
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
}

// seats completes the services that somebody may sit down at.
func (a *app) seats(c *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	names, directive := a.services(c, args, part)
	if len(args) > 0 {
		return nil, directive
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "gate" || strings.HasSuffix(name, "-gate") }), directive
}

// hosts completes a host that the policy names.
func (a *app) hosts(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if p, err := a.silent().load(); err == nil && len(args) == 0 {
		for _, r := range p.policy.Rules(plan.Defaults(p.profile)) {
			names = append(names, string(r.Domain))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// silent is an app that asks and says nothing.
func (a *app) silent() *app {
	return &app{in: eof{}, out: io.Discard, err: io.Discard, policy: a.policy, project: a.project, quiet: true, unasked: true}
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }
