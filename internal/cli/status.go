package cli

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/wayback"
)

func (a *app) status() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Say how this project's sandbox is",
		Long:  `Shows every service, the names its gate pinned, and what was denied. Exit 1 if it is not up or not well.`,
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(p *project, e *engine.Engine) error {
				members, err := e.Members(c.Context(), p.policy.File)
				if err != nil {
					return err
				}
				report := statusReport{Version: spec.Version, Sandbox: p.id(), Services: e.Health(c.Context(), members)}
				report.Well = len(report.Services) > 0
				for _, h := range report.Services {
					report.Well = report.Well && h.OK
				}
				report.Changed, report.Unbound = changed(p, members), unbound(p, members)
				report.Well = report.Well && !report.Unbound
				if len(members) > 0 {
					report.findings, err = changedSince(c.Context(), members[0].Sandbox)
					if err != nil {
						return fmt.Errorf("cannot tell what the agent changed that this machine would execute: %w", err)
					}
				}
				report.WayBack = changedFiles(report.findings)
				if err := a.showStatus(report, asJSON); err != nil {
					return err
				}
				if !report.Well {
					return exit.Status(exit.Failed)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

// statusReport is what status says.
type statusReport struct {
	Version int    `json:"version"`
	Sandbox string `json:"sandbox"`
	Well    bool   `json:"well"`
	// Changed says that the policy is not the one that the sandbox was made from.
	Changed bool `json:"policy_changed"`
	// Unbound says that the file was replaced on the host, so that the sandbox
	// has no read-only bind over it any more.
	Unbound  bool            `json:"policy_unbound"`
	Services []engine.Health `json:"services"`
	// WayBack is what the agent changed that this machine would execute.
	WayBack []changedFile `json:"way_back"`

	findings []wayback.Finding
}

// changed reports whether a sandbox was made from another policy than there is
// now.
func changed(p *project, members []engine.Member) bool {
	return slices.ContainsFunc(members, func(m engine.Member) bool { return m.Digest != p.policy.Digest })
}

// unbound reports whether the policy file that a sandbox has bound over itself
// is not the one that is there now: the kernel drops a bind from running
// containers when its file is replaced by a rename.
func unbound(p *project, members []engine.Member) bool {
	now := plan.Inode(p.policy.Self.Dev, p.policy.Self.Ino)
	return slices.ContainsFunc(members, func(m engine.Member) bool { return m.Inode != "" && m.Inode != now })
}

// bindGone is said wherever somebody may notice it.
const bindGone = "the policy file was replaced on this machine, so its read-only bind in the sandbox is gone: the agent may change the file; nothing of it has effect before you accept it"

// Bounds of what status shows: an agent chooses names and how many.
const (
	mostRows  = 20
	mostWidth = 60
)

func (a *app) showStatus(r statusReport, asJSON bool) error {
	if asJSON {
		_, err := a.out.Write(spec.Encode(r))
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	switch {
	case len(r.Services) == 0:
		fmt.Fprintf(w, "%s: not up\n", r.Sandbox)
	case r.Changed:
		fmt.Fprintf(w, "%s (the policy was changed since it was brought up)\n", r.Sandbox)
	default:
		fmt.Fprintf(w, "%s\n", r.Sandbox)
	}
	if r.Unbound {
		fmt.Fprintln(w, bindGone)
	}
	for _, h := range r.Services {
		fmt.Fprintf(w, "%s: %s\n", h.Service, h.State)
		if h.Gate != nil {
			for _, row := range gateRows(*h.Gate) {
				fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	showFindings(a.out, r.Sandbox, r.findings, nil)
	return nil
}

// gateRows are what a gate allows, keeps closed, and has denied.
func gateRows(g spec.GateStatus) [][]string {
	var rows [][]string
	for _, pin := range g.Pins {
		ports := "any port"
		if !pin.AnyPort {
			ports = "port " + strings.Trim(fmt.Sprint(pin.Ports), "[]")
		}
		rows = append(rows, []string{"allowed", cell(pin.Domain), cell(strings.Trim(fmt.Sprint(pin.Addrs), "[]")), ports})
	}
	if len(g.Pins) == 0 {
		rows = append(rows, []string{"allowed", "nothing"})
	}
	for _, u := range g.Unpinned {
		rows = append(rows, []string{"closed", cell(u.Domain), cell(u.Reason)})
	}
	var denied [][]string
	for _, n := range g.RefusedNames {
		denied = append(denied, []string{"denied", cell(n.Name), "lookup", count(n.Count)})
	}
	for _, d := range g.Denied {
		denied = append(denied, []string{"denied", d.Addr.String(), fmt.Sprintf("%s %d", d.Proto, d.Port), count(d.Count)})
	}
	if more := len(denied) - mostRows; more > 0 {
		denied = append(denied[:mostRows], []string{"denied", fmt.Sprintf("and %d more (--json has them)", more)})
	}
	return append(rows, denied...)
}

func count(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// cell makes a string fit for a table.
func cell(s string) string { return cut(printable.Escape(s), mostWidth) }

// cut is s, or as much of it as fits into n columns.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n && n > 0 {
		return string(r[:n-1]) + "…"
	}
	return s
}
