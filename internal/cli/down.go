package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End this project's sandbox",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := a.load()
			if err != nil {
				return err
			}
			e, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			n, err := e.Down(c.Context(), p.id())
			if err != nil {
				return err
			}
			if n == 0 {
				fmt.Fprintf(a.err, "corral: %s is not up\n", p.id())
				return nil
			}
			fmt.Fprintf(a.err, "corral: %s is down\n", p.id())
			return nil
		},
	}
}
