package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/host"
)

func (a *app) install() *cobra.Command {
	var repair bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Prepare this machine: the corral network and the gate image",
		Long: `Makes the network that all gates are on and builds the gate image. Once per
machine; doing it again changes nothing.

The network takes 172.30.0.0/16, or the next private range that no route and no
network of this machine uses. CORRAL_SUBNET says which. The network is the
record: every later command goes by the range that it has.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			e, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			guests, image, err := prepare(c.Context(), e, repair)
			if err != nil {
				return err
			}
			e.Prune(c.Context(), guests, image)
			fmt.Fprintln(a.err, "corral: this machine is ready")
			return nil
		},
	}
	c.Flags().BoolVar(&repair, "repair", false, "make the network anew if it is not as it must be or its range collides, and nothing uses it")
	return c
}

// prepare makes what a machine needs once, and returns the guest binaries and
// the name of the gate image.
func prepare(ctx context.Context, e *engine.Engine, repair bool) (host.Guests, string, error) {
	set, err := wished()
	if err != nil {
		return nil, "", err
	}
	guests, err := host.FindGuests()
	if err != nil {
		return nil, "", err
	}
	if _, err := e.EnsureNetwork(ctx, set.Subnet, repair); err != nil {
		return nil, "", err
	}
	image, err := e.GateImage(ctx, guests)
	return guests, image, err
}
