package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) status() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Say how this project's sandbox is",
		Long:  `Shows every service, the names its gate pinned, and what was denied. Exit 1 if it is not up or not well.`,
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
			members, err := e.Members(c.Context(), p.id())
			if err != nil {
				return err
			}
			health := e.Health(c.Context(), members)
			well := len(health) > 0
			for _, h := range health {
				well = well && h.OK
			}
			if asJSON {
				enc := json.NewEncoder(a.out)
				enc.SetIndent("", "  ")
				if err := enc.Encode(struct {
					Version  int    `json:"version"`
					Sandbox  string `json:"sandbox"`
					Well     bool   `json:"well"`
					Services any    `json:"services"`
				}{spec.Version, p.id(), well, health}); err != nil {
					return err
				}
			} else {
				a.showStatus(p.id(), health)
			}
			if !well {
				return exit.Status(exit.Failed)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

func (a *app) showStatus(id string, health []engine.Health) {
	if len(health) == 0 {
		fmt.Fprintf(a.out, "%s: not up\n", id)
		return
	}
	fmt.Fprintf(a.out, "%s\n", id)
	for _, h := range health {
		fmt.Fprintf(a.out, "%s: %s\n", h.Service, h.State)
		if h.Gate == nil {
			continue
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		for _, pin := range h.Gate.Pins {
			ports := "any port"
			if !pin.AnyPort {
				ports = strings.Trim(fmt.Sprint(pin.Ports), "[]")
			}
			fmt.Fprintf(w, "  allowed\t%s\t%s\t%s\n", printable.Escape(pin.Domain), strings.Trim(fmt.Sprint(pin.Addrs), "[]"), ports)
		}
		for _, u := range h.Gate.Unpinned {
			fmt.Fprintf(w, "  closed\t%s\t%s\t\n", printable.Escape(u.Domain), printable.Escape(u.Reason))
		}
		for _, n := range h.Gate.RefusedNames {
			fmt.Fprintf(w, "  denied\t%s\tname lookup\t%d\n", printable.Escape(n.Name), n.Count)
		}
		for _, d := range h.Gate.Denied {
			fmt.Fprintf(w, "  denied\t%v\t%s %d\t%d\n", d.Addr, d.Proto, d.Port, d.Count)
		}
		w.Flush()
	}
}
