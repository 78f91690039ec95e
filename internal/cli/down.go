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
		Args:  noArgs,
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
