package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
)

func (a *app) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End this project's sandbox",
		Long: `Ends the agent, whatever it is doing, and removes its containers. A corral run
that looks after it says that the sandbox was taken down, and exits with 1. The
project's image stays, for the next run.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				members, err := e.Members(c.Context(), p.policy.File)
				if err != nil {
					return err
				}
				if err := e.Down(c.Context(), members); err != nil {
					return err
				}
				state := "down"
				if len(members) == 0 {
					state = "not up"
				}
				fmt.Fprintf(a.err, "corral: %s is %s\n", p.id(), state)
				return nil
			})
		},
	}
}
