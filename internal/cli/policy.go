package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) policyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Show, ask and compare the policy",
		Args:  cobra.ArbitraryArgs,
		RunE:  subcommand,
	}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(a.policyShow(), a.policyCheck(), a.policyDiff(), a.policySchema())
	return c
}

// policyReport is what policy show says.
type policyReport struct {
	Version  int              `json:"version"`
	File     string           `json:"file"`
	Sandbox  string           `json:"sandbox"`
	Accepted bool             `json:"accepted"`
	Policy   policy.Effective `json:"policy"`
	Rows     []policy.Row     `json:"rows"`
	Notes    []string         `json:"notes"`
}

func (a *app) policyShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show",
		Short: "The effective policy, with where each line comes from",
		Long: `Shows all that the policy amounts to with the profile's own part and the defaults
filled in, where each line comes from, and the settings of this machine that are
in force. Nothing of it has an effect.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := a.load()
			if err != nil {
				return err
			}
			d, err := a.pending(p)
			if err != nil {
				return err
			}
			machine, err := p.settingsRows()
			if err != nil {
				return err
			}
			r := policyReport{
				Version: spec.Version, File: p.policy.File, Sandbox: p.id(), Accepted: !d.asks(),
				Policy: p.effective(), Rows: append(p.rows(), machine...), Notes: a.notes(c.Context(), p),
			}
			if asJSON {
				_, err := a.out.Write(document(r))
				return err
			}
			showRows(a.out, r.Rows)
			for _, n := range r.Notes {
				fmt.Fprintf(a.out, "\n  note: %s\n", printable.Escape(n))
			}
			if d.asks() {
				fmt.Fprintf(a.out, "\n  not in effect: %s\n", printable.Escape(d.reason()))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

// settingsRows are this machine's settings as they are in force for p.
func (p *project) settingsRows() ([]policy.Row, error) {
	w, err := wishes()
	if err != nil {
		return nil, err
	}
	row := func(key, value string) policy.Row {
		return policy.Row{Key: key, Value: value, Origin: cmp.Or(w.origins[key], "default")}
	}
	subnet := "chosen by corral install"
	if w.Subnet.IsValid() {
		subnet = w.Subnet.String()
	}
	var servers []string
	for _, r := range p.host.Resolvers {
		s := r.String()
		if r.IsLoopback() {
			s += " (by way of the DNS relay)"
		}
		servers = append(servers, s)
	}
	rows := []policy.Row{
		row("subnet", subnet),
		row("resolvers", cmp.Or(strings.Join(servers, ", "), "none: names cannot be pinned")),
		row("ca_bundle", cmp.Or(w.CABundle, "none")),
		row("detach_keys", cmp.Or(w.DetachKeys, host.DefaultDetachKeys)),
	}
	for _, name := range host.ProbeNames {
		rows = append(rows, row("probes."+name, w.Probe(name).String()))
	}
	return rows, nil
}

func (a *app) policyCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check HOST[:PORT]",
		Short: "Say whether the policy allows a host, and by which line",
		Long: `Answers from the policy alone: nothing is looked up or connected to. Without a
port it is 443. Exit 1 if it is denied.`,
		Example:           "  corral policy check github.com:22",
		ValidArgsFunction: a.hosts,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Invalidf("write corral policy check HOST[:PORT]", "%s takes one host, got %d", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := a.load()
			if err != nil {
				return err
			}
			allowed, answer, err := check(p.policy.Rules(plan.Defaults(p.profile)), p.policy.HostServices, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, printable.Escape(answer))
			d, err := a.pending(p)
			if err != nil {
				return err
			}
			if d.asks() {
				fmt.Fprintf(a.err, "corral: not in effect: %s\n", printable.Escape(d.reason()))
			}
			if !allowed {
				return exit.Status(exit.Failed)
			}
			return nil
		},
	}
}

// check answers whether the rules allow a target, which is HOST or HOST:PORT.
func check(rules []policy.Rule, services []policy.HostService, target string) (allowed bool, answer string, err error) {
	host, port := target, uint16(443)
	if strings.Contains(target, "://") {
		hint := "write the host alone"
		if asked := hostOf(target); asked != "" {
			hint = fmt.Sprintf("write the host alone: %s", asked)
		}
		return false, "", exit.Invalidf(hint, "%q is a URL", target)
	}
	if a, err := netip.ParseAddrPort(target); err == nil {
		host = a.Addr().String()
	} else if at := strings.LastIndexByte(target, ':'); at >= 0 && strings.Count(target, ":") == 1 {
		n, err := strconv.ParseUint(target[at+1:], 10, 16)
		if err != nil || n == 0 {
			return false, "", exit.Invalidf("a port is a number from 1 to 65535", "%q names no port", target)
		}
		host, port = target[:at], uint16(n)
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return false, fmt.Sprintf("%s denied: a policy allows names, no address", host), nil
	}
	if host == spec.HostName {
		for _, s := range services {
			if s.Port == port {
				return true, fmt.Sprintf("%s:%d allowed by %s: host service %s", host, port, origin(policy.Rule{Pos: s.Pos}), s.Name), nil
			}
		}
		return false, fmt.Sprintf("%s:%d denied: no host service has that port", host, port), nil
	}
	name, err := policy.ParseDomain(host)
	if err != nil {
		return false, "", exit.Invalidf("", "%w", err)
	}
	if r, ok := policy.Allows(rules, name, port); ok {
		return true, fmt.Sprintf("%s:%d allowed by %s", name, port, origin(r)), nil
	}
	for _, r := range rules {
		if r.Domain == name {
			return false, fmt.Sprintf("%s:%d denied: %s allows the name on other ports only: %s", name, port, origin(r), strings.Trim(fmt.Sprint(r.Ports), "[]")), nil
		}
	}
	return false, fmt.Sprintf("%s:%d denied: the name is not listed", name, port), nil
}

// hostOf is what a URL asks for as policy check takes it, empty if that cannot be told.
func hostOf(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return ""
	}
	if u.Scheme == "http" && u.Port() == "" && u.Host != "" {
		return u.Host + ":80"
	}
	return u.Host
}

// origin is where a rule was written.
func origin(r policy.Rule) string {
	if r.Pos.Line == 0 {
		return r.Pos.File
	}
	return fmt.Sprintf("%s:%d", filepath.Base(r.Pos.File), r.Pos.Line)
}

// diffReport is what policy diff says.
type diffReport struct {
	Version int `json:"version"`
	// Asks says that the policy has no effect before a person said yes.
	Asks    bool            `json:"asks"`
	Reason  string          `json:"reason,omitempty"`
	First   bool            `json:"first_use"`
	Changes []policy.Change `json:"changes"`
}

func (a *app) policyDiff() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "diff",
		Short: "How the policy differs from what was accepted of it",
		Long: `Shows what was changed since a person accepted the policy; a ! marks what widens
it. Exit 1 if it has no effect before somebody says yes.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.load()
			if err != nil {
				return err
			}
			d, err := a.pending(p)
			if err != nil {
				return err
			}
			r := diffReport{Version: spec.Version, Asks: d.asks(), First: d.first, Changes: d.changes}
			if r.Asks {
				r.Reason = d.reason()
			}
			if d.first {
				r.Changes = policy.Diff(policy.Effective{Version: policy.EffectiveVersion}, p.effective())
				for i := range r.Changes {
					r.Changes[i].Old = "" // the limits of no policy
				}
			}
			if r.Changes == nil {
				r.Changes = []policy.Change{}
			}
			if asJSON {
				if _, err := a.out.Write(document(r)); err != nil {
					return err
				}
			} else {
				showChanges(a.out, r.Changes)
			}
			if r.Asks {
				if !asJSON {
					fmt.Fprintf(a.err, "corral: %s\n", printable.Escape(r.Reason))
				}
				return exit.Status(exit.Failed)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

func (a *app) policySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "The JSON Schema of corral.yaml, for editors",
		Example: `  corral policy schema > ~/.config/corral/schema.json
  # the first line of corral.yaml:
  # yaml-language-server: $schema=/home/me/.config/corral/schema.json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.out.Write(policy.Schema(profile.Names()...))
			return err
		},
	}
}
