package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/state"
)

func (a *app) render() *cobra.Command {
	c := &cobra.Command{
		Use:   "render",
		Short: "Write out what the policy turns into, and print where",
		Long: `Writes the Dockerfiles and the documents for gate and checker into the build
directory. It is disposable, and needs no engine. The gate's address and this
machine's Docker networks are filled in when a sandbox is brought up. Files that
shield a repository and are missing in it are made, empty, as at a start; of what
a profile keeps or copies nothing is made.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := a.load()
			if err != nil {
				return err
			}
			if err := a.agreed(c.Context(), p); err != nil {
				return err
			}
			if err := a.ready(c.Context(), p, toRead); err != nil {
				return err
			}
			h := p.host
			own, err := host.Addresses()
			if err != nil {
				return err
			}
			h.Never = append(own, h.Subnet)
			planned, err := plan.Build(p.policy, p.profile, h, plan.Addresses{}, nil)
			if err != nil {
				return err
			}
			tree, err := render.Render(planned)
			if err != nil {
				return err
			}
			home, err := state.Home()
			if err != nil {
				return err
			}
			dir := filepath.Join(home, planned.ID, "build")
			if err := state.WriteBuild(dir, tree); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, dir)
			return err
		},
	}
	a.acceptFlag(c)
	return c
}
