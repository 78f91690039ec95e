package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

func (a *app) status() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Say how this project's sandbox is",
		Long: `Shows every service, the names its gate pinned, what was denied, and what carries
the host's own services. Exit 1 if it is not up or not well.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := a.observe(c.Context())
			if err != nil {
				return err
			}
			if err := a.showStatus(report, asJSON); err != nil {
				return err
			}
			if !report.Well {
				return exit.Status(exit.Failed)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

// observe looks at what is up of a policy. The policy itself may be anything by
// now: it is read only where nothing is up.
func (a *app) observe(ctx context.Context) (statusReport, error) {
	e, file, members, err := a.here(ctx)
	if err != nil {
		return statusReport{}, err
	}
	r := statusReport{Version: spec.Version, WayBack: []changedFile{}}
	r.Unit = unitOf(ctx, file)
	if len(members) == 0 {
		a.quiet = true
		p, err := a.load()
		if err != nil {
			return r, err
		}
		r.Sandbox = p.id()
		return r, nil
	}
	r.Sandbox, r.cure = members[0].Sandbox, cure(members[0], "")
	r.Services = e.Health(ctx, members)
	if r.Relays, err = e.RelayHealth(ctx, members); err != nil {
		return r, err
	}
	now, err := policy.Observe(file)
	if err != nil {
		now = policy.Seen{} // none that it could have been made from
	}
	var gate *spec.GateStatus
	if len(r.Services) > 0 {
		gate = r.Services[0].Gate
	}
	r.Changed, r.Unbound = changed(now, members, gate), unbound(now, members)
	r.ImagesGone = unnamed(members)
	if r.NetworkGone, err = e.NetworkGone(ctx); err != nil {
		return r, err
	}
	r.Well = !r.Unbound && !r.NetworkGone && len(allUnwell(r.Services, r.Relays, r.ImagesGone)) == 0
	if r.Healed, err = mended(r.Sandbox); err != nil {
		a.sayf("how often it was mended cannot be told: %v", err)
	}
	r.findings, r.blind = changedSince(ctx, r.Sandbox)
	if r.blind != nil {
		r.Well, r.Blind = false, printable.Escape(r.blind.Error())
	}
	for _, m := range members {
		lost := wayback.Lost(binds(m.Shields))
		r.Well = r.Well && len(lost) == 0
		r.findings = wayback.Join(r.findings, lost)
	}
	r.WayBack = changedFiles(r.findings)
	return r, nil
}

// unwell says what is wrong with a service, connections that its gate could not end
// included; empty if nothing is. That it could not count them is no such thing.
func unwell(h engine.Health) string {
	why := ""
	switch g := h.Gate; {
	case !h.OK:
		why = h.State
	case g != nil && g.Unended != "":
		why = "connections to what is not allowed any more go on: " + g.Unended
	default:
		return ""
	}
	return h.Service + ": " + cut(printable.Escape(why), mostState)
}

// allUnwell is what is wrong with a sandbox, a line each.
func allUnwell(services []engine.Health, relays []engine.RelayHealth, images []string) []string {
	var wrong []string
	for _, h := range services {
		if why := unwell(h); why != "" {
			wrong = append(wrong, why)
		}
	}
	for _, h := range relays {
		if !h.OK {
			wrong = append(wrong, carriedRow(h))
		}
	}
	for _, name := range images {
		wrong = append(wrong, imageRow(name))
	}
	return wrong
}

// carriedRow says how a port of the host's is carried.
func carriedRow(h engine.RelayHealth) string {
	return fmt.Sprintf("host port %s: %s", cell(h.Carries), cut(printable.Escape(h.State), mostState))
}

// imageRow says that an image is gone under what was made of it.
func imageRow(name string) string {
	return fmt.Sprintf("image of %s: is gone (corral build makes it anew)", cell(name))
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
	// Healed is what corral up, or a watch, mended of an always-on sandbox since it was up
	// first, if anything.
	Healed *state.Heals `json:"healed,omitempty"`
	// Unit is what corral enable made, if it did.
	Unit *unitReport `json:"unit,omitempty"`
	// Relays carry what the policy opens of the host's loopback.
	Relays []engine.RelayHealth `json:"relays,omitempty"`
	// ImagesGone are the containers whose images the engine has not any more by their
	// names: what runs goes on.
	ImagesGone []string `json:"images_gone,omitempty"`
	// NetworkGone says that there is no corral network on this machine.
	NetworkGone bool `json:"network_gone,omitempty"`
	// WayBack is what the agent changed that this machine would execute.
	WayBack []changedFile `json:"way_back"`

	// Blind is why that cannot be told.
	Blind string `json:"way_back_unknown,omitempty"`

	cure     string // what brings it right, if one command does
	findings []wayback.Finding
	blind    error
}

// changed reports whether a sandbox goes by another policy than there is now. Its
// gate knows that, if it answers: a refresh is for what can change in place, and
// the rest was the same.
func changed(now policy.Seen, members []engine.Member, gate *spec.GateStatus) bool {
	if gate != nil && gate.Policy != "" {
		return gate.Policy != now.Digest
	}
	// A gate goes by what it was refreshed with, and its label is of when it was made.
	services := slices.DeleteFunc(slices.Clone(members), func(m engine.Member) bool { return m.Role != engine.RoleService })
	if len(services) == 0 {
		services = members
	}
	return slices.ContainsFunc(services, func(m engine.Member) bool { return m.Digest != now.Digest })
}

// unbound reports whether the policy file that a sandbox has bound over itself
// is not the one that is there now: the kernel drops a bind from running
// containers when its file is replaced by a rename.
func unbound(now policy.Seen, members []engine.Member) bool {
	inode := plan.Inode(now.Dev, now.Ino)
	return slices.ContainsFunc(members, func(m engine.Member) bool {
		return m.Role == engine.RoleService && m.Inode != "" && m.Inode != inode // a gate has no such bind
	})
}

// bindGone is said wherever somebody may notice it.
const bindGone = "the policy file was replaced on this machine, so its read-only bind in the sandbox is gone: the agent may change the file; nothing of it has effect before you accept it"

// Bounds of what status shows: an agent chooses names and how many.
const (
	mostRows  = 20
	mostWidth = 60
	mostState = 400 // of what is wrong, which may be several lines of a log
)

func (a *app) showStatus(r statusReport, asJSON bool) error {
	if asJSON {
		_, err := a.out.Write(document(r))
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	switch {
	case len(r.Services) == 0:
		fmt.Fprintf(w, "%s: not up\n", cell(r.Sandbox))
	case r.Changed:
		fmt.Fprintf(w, "%s (the policy was changed since it was brought up)\n", cell(r.Sandbox))
	default:
		fmt.Fprintf(w, "%s\n", cell(r.Sandbox))
	}
	if r.Unbound {
		fmt.Fprintln(w, bindGone)
	}
	if r.Unit != nil {
		fmt.Fprintf(w, "%s\n", r.Unit.words())
	}
	for _, h := range r.Services {
		state := cut(printable.Escape(h.State), mostState)
		if unwell(h) != "" && r.cure != "" && !strings.Contains(h.State, "(corral ") {
			state += " (" + r.cure + ")"
		}
		fmt.Fprintf(w, "%s: %s\n", cell(h.Service), state)
		for _, row := range serviceRows(h, time.Now()) {
			fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
		}
		if r.Healed != nil {
			fmt.Fprintf(w, "  %s\n", strings.Join(healedRow(*r.Healed, time.Now()), "\t"))
		}
		if h.Gate != nil {
			for _, row := range gateRows(*h.Gate) {
				fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
			}
		}
	}
	for _, h := range r.Relays {
		fmt.Fprintln(w, carriedRow(h))
	}
	for _, name := range r.ImagesGone {
		fmt.Fprintln(w, imageRow(name))
	}
	if r.NetworkGone {
		fmt.Fprintln(w, "the corral network of this machine is gone (corral up brings back that of an always-on sandbox, corral install makes it)")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	showFindings(a.out, r.Sandbox, r.findings, r.blind)
	return nil
}

// serviceRows are since when a service is up, whose network a service has, of which class, and how its gate
// is.
func serviceRows(h engine.Health, now time.Time) [][]string {
	up := upSince(h, now)
	if h.Behind == "" {
		return append(up, []string{"network", "none"})
	}
	if h.Gate == nil {
		return append(up, []string{"network", "of " + cell(h.Behind)})
	}
	g := *h.Gate
	class := cell(string(g.Class))
	if class == "" {
		class = "none"
	}
	rows := append(up, []string{"network", "of " + cell(h.Behind), "egress " + class, fmt.Sprintf("namespace %d", g.NetNS)})
	if g.WorkerRestarts > 0 {
		rows = append(rows, []string{"gate", "its worker was replaced", count(uint64(g.WorkerRestarts))})
	}
	if !g.Refreshed.IsZero() {
		row := []string{"names", "resolved " + age(now.Sub(g.Refreshed)) + " ago"}
		if !g.NextRefresh.IsZero() {
			row = append(row, "again in "+age(g.NextRefresh.Sub(now)))
		}
		rows = append(rows, row)
	}
	if g.Unended != "" {
		rows = append(rows, []string{"not ended", "connections to what is not allowed any more go on: " + cut(printable.Escape(g.Unended), mostState)})
	}
	if g.Uncounted != "" {
		rows = append(rows, []string{"not counted", "connections, which are as of an earlier look: " + cut(printable.Escape(g.Uncounted), mostState)})
	}
	var more [][]string
	for _, p := range g.Pins {
		if p.Failed != "" {
			more = append(more, []string{"kept", cell(p.Domain), cell(p.Failed)})
		}
		for _, f := range p.Fading {
			more = append(more, []string{"fading", cell(p.Domain), cell(f.Addr.String()), fmt.Sprintf("since %s, %d open", age(now.Sub(f.Since)), f.Flows)})
		}
	}
	for _, s := range g.SharedAddresses {
		more = append(more, []string{"one address", cell(s.Addr.String()), cut(printable.Escape(s.String()), mostState)})
	}
	for _, s := range g.Shared {
		more = append(more, []string{"shared", cell(s.Removed), cell(fmt.Sprintf("%v:%d", s.Addr, s.Port)), fmt.Sprintf("%d open, by way of %s", s.Flows, cell(s.With))})
	}
	if n := len(more) - mostRows; n > 0 {
		more = append(more[:mostRows], []string{"", fmt.Sprintf("and %d more (--json has them)", n)})
	}
	return append(rows, more...)
}

// startWithin is how long after it was made a container is started for the first time.
const startWithin = time.Minute

// upSince is since when a service runs, and how old its container is where that was
// started before.
func upSince(h engine.Health, now time.Time) [][]string {
	if h.Started.IsZero() {
		return nil
	}
	row := []string{"up", "for " + age(now.Sub(h.Started)), "since " + h.Started.Local().Format(time.DateTime)}
	if h.Started.Sub(h.Made) > startWithin {
		row = append(row, "started again, in a container of "+h.Made.Local().Format(time.DateTime))
	}
	return [][]string{row}
}

// mended is what was mended of a sandbox, nil if nothing was.
func mended(sandbox string) (*state.Heals, error) {
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	h, err := state.Healed(home, sandbox)
	if err != nil || h == nil || h.MadeAnew+h.StartedAgain == 0 {
		return nil, err
	}
	return h, nil
}

// healedRow says how often a service was mended, and why at last.
func healedRow(h state.Heals, now time.Time) []string {
	var times []string
	for _, t := range []struct {
		what string
		n    int
	}{{"made anew ", h.MadeAnew}, {"started again ", h.StartedAgain}} {
		if t.n > 0 {
			times = append(times, t.what+count(uint64(t.n)))
		}
	}
	return []string{"mended", strings.Join(times, ", "), "last " + age(now.Sub(h.Last)) + " ago: " + cut(printable.Escape(h.Why), mostState)}
}

// age is a time as people say it.
func age(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
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
		denied = append(denied, []string{"denied", cell(d.Addr.String()), cell(fmt.Sprintf("%s %d", d.Proto, d.Port)), count(d.Count)})
	}
	switch more := len(denied) - mostRows; {
	case more > 0:
		denied = append(denied[:mostRows], []string{"denied", fmt.Sprintf("and %d more (corral traffic says which line would allow what)", more)})
	case len(denied) > 0:
		denied = append(denied, []string{"", "corral traffic says which line would allow what"})
	}
	for _, u := range unrecorded(g.AllowedUnrecorded, g.DeniedUnrecorded) {
		denied = append(denied, []string{"", u})
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
