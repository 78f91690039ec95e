package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) traffic() *cobra.Command {
	var w trafficWish
	c := &cobra.Command{
		Use:   "traffic",
		Short: "Show what the agent tried, and which line would allow it",
		Long: `Shows what the sandbox that is up has connected to, and what its gate refused:
name or address, how often, the rule, when first and last. For a refusal it also
prints the line of the policy that would allow it, or why none would. Nothing is
allowed by itself. What corral verify tries is left out.

With -f it shows what was decided so far and then what is, as it comes.`,
		Example: `  corral traffic --denied
  corral traffic -f`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.showTraffic(c.Context(), w) },
	}
	c.Flags().BoolVarP(&w.follow, "follow", "f", false, "go on until the sandbox ends")
	c.Flags().BoolVar(&w.denied, "denied", false, "only what was refused")
	c.Flags().BoolVar(&w.json, "json", false, "as JSON; with -f an event a line")
	return c
}

// trafficWish is what somebody asked to see.
type trafficWish struct{ follow, denied, json bool }

// trafficReport is what traffic says.
type trafficReport struct {
	Version int          `json:"version"`
	Sandbox string       `json:"sandbox"`
	Rows    []trafficRow `json:"rows"`
	// What there was beyond the destinations and names that a gate keeps: new
	// connections, refused packets, lookups.
	AllowedMore uint64 `json:"allowed_more"`
	DeniedMore  uint64 `json:"denied_more"`
	RefusedMore uint64 `json:"refused_more"`
	// What came too fast for a record each: where it went may be in no row.
	AllowedUnrecorded uint64 `json:"allowed_unrecorded"`
	DeniedUnrecorded  uint64 `json:"denied_unrecorded"`
	// Probed counts refused packets and connections of corral verify's, and what
	// handovers send.
	Probed uint64 `json:"probed"`
}

// trafficRow is what was decided in the same way, how often and when.
type trafficRow struct {
	Service string `json:"service"`
	decided
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// trafficEvent is one decision as it comes.
type trafficEvent struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Service string    `json:"service"`
	decided
	Count uint64 `json:"count"`
}

// decided is what was decided about what.
type decided struct {
	Verdict string     `json:"verdict"`
	Proto   string     `json:"proto,omitempty"`
	Name    string     `json:"name,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Rule    string     `json:"rule,omitempty"`
	Reason  string     `json:"reason,omitempty"` // Rule in plain words
	// Suggestion is the line that would allow what was refused, or why there is none.
	Suggestion *policy.Suggestion `json:"suggestion,omitempty"`
}

// reasons are the rules that refuse, in plain words.
var reasons = map[string]string{
	"unlisted":          "not listed",
	"ipv6":              "no IPv6",
	"docker-resolver":   "no lookups by way of Docker",
	"special-purpose":   "no public address",
	"host-or-container": "this machine or a container of it",
}

// judge fills in what a decision means.
func (d *decided) judge(in policy.Circumstances) {
	switch d.Verdict {
	case spec.VerdictRefusedName:
		d.Reason = "name not listed"
	case spec.VerdictDenied:
		d.Reason = cmp.Or(reasons[d.Rule], d.Rule)
	default:
		return
	}
	s := policy.Suggest(policy.Attempt{Name: d.Name, Proto: d.Proto, Addr: d.Addr, Port: d.Port}, in)
	d.Suggestion = &s
}

func (d decided) refused() bool {
	return d.Verdict == spec.VerdictDenied || d.Verdict == spec.VerdictRefusedName
}

// what and how are a decision's subject for people: a name or an address, and
// the way to it.
func (d decided) what() string {
	switch {
	case !d.Addr.IsValid():
		return cell(d.Name)
	case d.Name != "":
		addr := cell(d.Addr.String())
		return cut(printable.Escape(d.Name), max(1, mostWidth-len(" ()")-len(addr))) + " (" + addr + ")"
	}
	return cell(d.Addr.String())
}

func (d decided) how() string {
	switch {
	case !d.Addr.IsValid():
		return spec.ProtoLookup
	case d.Port == 0:
		return cell(d.Proto)
	}
	return fmt.Sprintf("%s %d", cell(d.Proto), d.Port)
}

// verdictWords are for people.
var verdictWords = map[string]string{
	spec.VerdictAllowed: "allowed", spec.VerdictLookedUp: "looked up", spec.VerdictDenied: "denied", spec.VerdictRefusedName: "denied",
}

func (a *app) showTraffic(ctx context.Context, w trafficWish) error {
	e, file, members, err := a.here(ctx)
	if err != nil {
		return err
	}
	var gates []engine.Member
	for _, m := range members {
		if m.Role == engine.RoleGate && m.Running {
			gates = append(gates, m)
		}
	}
	if len(gates) == 0 {
		return exit.Failedf(a.starter()+" starts it; a gate remembers for as long as it is up", "no gate of %s is up", file)
	}
	r := trafficReport{Version: spec.Version, Sandbox: gates[0].Sandbox, Rows: []trafficRow{}}
	in := map[string]policy.Circumstances{} // by service
	for _, g := range gates {
		status, err := e.GateStatus(ctx, g.ID)
		if err != nil {
			return err
		}
		in[g.Service] = a.circumstances(ctx, e, file, status)
		r.add(g.Service, status, in[g.Service], w)
	}
	switch {
	case w.follow:
		return a.followTraffic(ctx, e, gates, in, w)
	case w.json:
		_, err := a.out.Write(document(r))
		return err
	}
	return r.show(a.out, time.Now(), len(gates) > 1)
}

// circumstances are those of the policy as it is now: what is suggested goes
// into that one. If it cannot be read, what the gate was told stands for it.
func (a *app) circumstances(ctx context.Context, e *engine.Engine, file string, s spec.GateStatus) policy.Circumstances {
	in := policy.Circumstances{Pins: s.Pins}
	if n, subnet, err := inForce(ctx, e); err == nil {
		in.Gateway, in.Network = n.Gateway, subnet
	}
	a.quiet = true
	if p, err := a.load(); err == nil && p.policy.File == file {
		in.Rules, in.Services = p.policy.Rules(plan.Defaults(p.profile)), p.policy.HostServices
		return in
	}
	for _, p := range s.Pins {
		in.Rules = append(in.Rules, policy.Rule{Domain: policy.Domain(p.Domain), Ports: p.Ports, AnyPort: p.AnyPort, Soft: p.Soft, Liveness: true, Pos: diag.Pos{File: p.Origin}})
	}
	return in
}

// add takes over a gate's account: what was refused first, names before
// addresses.
func (r *trafficReport) add(service string, s spec.GateStatus, in policy.Circumstances, w trafficWish) {
	row := func(d decided, count uint64, first, last time.Time) {
		d.judge(in)
		r.Rows = append(r.Rows, trafficRow{service, d, count, first, last})
	}
	for _, n := range s.RefusedNames {
		row(decided{Verdict: spec.VerdictRefusedName, Name: n.Name}, n.Count, n.First, n.Last)
	}
	for _, t := range s.Denied {
		row(decided{Verdict: spec.VerdictDenied, Proto: t.Proto, Name: t.Name, Addr: t.Addr, Port: t.Port, Rule: t.Rule}, t.Count, t.First, t.Last)
	}
	r.DeniedMore += s.DeniedMore
	r.DeniedUnrecorded += s.DeniedUnrecorded
	r.RefusedMore += s.RefusedMore
	r.Probed += s.Probed
	if w.denied {
		return
	}
	for _, t := range s.Allowed {
		d := decided{Verdict: spec.VerdictAllowed, Proto: t.Proto, Name: t.Name, Addr: t.Addr, Port: t.Port}
		if t.Proto == spec.ProtoLookup {
			d.Verdict, d.Proto = spec.VerdictLookedUp, ""
		}
		row(d, t.Count, t.First, t.Last)
	}
	r.AllowedMore += s.AllowedMore
	r.AllowedUnrecorded += s.AllowedUnrecorded
}

// unrecorded says what of an account is known by number only.
func unrecorded(allowed, denied uint64) (lines []string) {
	for _, u := range []struct {
		n   uint64
		one string
	}{{denied, "refused packet"}, {allowed, "connection"}} {
		if u.n > 0 {
			lines = append(lines, fmt.Sprintf("not recorded: %s; too many came at a time, so where they went may be missing", printable.Count(u.n, u.one)))
		}
	}
	return lines
}

// Bounds of what traffic shows to people: an agent chooses what there is. JSON
// has all.
const (
	mostTraffic     = 40 // rows of each kind: refused, and passed
	mostSuggestions = 20 // lines, and reasons for none
)

func (r trafficReport) show(out io.Writer, now time.Time, several bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Rows) == 0 {
		fmt.Fprintf(w, "%s: nothing was tried\n", cell(r.Sandbox))
	} else {
		fmt.Fprintln(w, "VERDICT\tWHAT\tHOW\tTIMES\tFIRST\tLAST\tWHY")
	}
	shown, left := map[bool]int{}, 0
	for _, row := range r.Rows {
		if shown[row.refused()]++; shown[row.refused()] > mostTraffic {
			left++
			continue
		}
		what := row.what()
		if several {
			what = cell(row.Service) + ": " + what
		}
		cells := []string{cmp.Or(verdictWords[row.Verdict], cell(row.Verdict)), what, row.how(), fmt.Sprint(row.Count), ago(now, row.First), ago(now, row.Last)}
		if row.Reason != "" {
			cells = append(cells, cell(row.Reason))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if left > 0 {
		fmt.Fprintf(out, "and %s more (--json has them)\n", printable.Count(left, "row"))
	}
	for _, more := range []struct {
		n         uint64
		one, what string
	}{
		{r.RefusedMore, "lookup", "of other names refused"}, {r.DeniedMore, "packet", "to other destinations refused"},
		{r.AllowedMore, "connection", "to other destinations made"},
	} {
		if more.n > 0 {
			fmt.Fprintf(out, "%s %s: the gate keeps only so many apart\n", printable.Count(more.n, more.one), more.what)
		}
	}
	for _, u := range unrecorded(r.AllowedUnrecorded, r.DeniedUnrecorded) {
		fmt.Fprintln(out, u)
	}
	r.suggest(out)
	return nil
}

// suggest prints what would allow what was refused, and why nothing would.
func (r trafficReport) suggest(out io.Writer) {
	lines, whys := map[string][]string{}, []string{}
	count, seen, left := 0, map[string]bool{}, 0
	for _, row := range r.Rows {
		s := row.Suggestion
		if s == nil {
			continue
		}
		text := row.how() + " " + row.what() + ": " + s.Note
		if s.Entry != "" {
			text = pasted(*s)
		}
		switch {
		case seen[text]:
			continue
		case s.Entry != "" && count == mostSuggestions, s.Entry == "" && len(whys) == mostSuggestions:
			left++
		case s.Entry != "":
			count++
			lines[s.Key] = append(lines[s.Key], text)
		default:
			whys = append(whys, text)
		}
		seen[text] = true
	}
	if count > 0 {
		fmt.Fprintln(out, "\nEach of these lines of the policy would allow one of them (where a key is there already, the lines go below it):")
		for _, list := range []struct{ key, above, indent string }{
			{"egress.allow", "egress:\n  allow:", "    "}, {"host_services", "host_services:", "  "},
		} {
			if len(lines[list.key]) > 0 {
				fmt.Fprintf(out, "%s\n%s%s\n", list.above, list.indent, strings.Join(lines[list.key], "\n"+list.indent))
			}
		}
	}
	if len(whys) > 0 {
		fmt.Fprintf(out, "\nFor these there is none:\n  %s\n", strings.Join(whys, "\n  "))
	}
	if left > 0 {
		fmt.Fprintf(out, "and %d more (--json has them)\n", left)
	}
}

// pasted is a suggested entry as it is pasted, with what there is to say of it
// behind.
func pasted(s policy.Suggestion) string {
	var notes []string
	if s.Doubt != "" {
		notes = append(notes, "CAREFUL: "+s.Doubt)
	}
	if s.Replaces != "" {
		notes = append(notes, "in place of the entry of "+s.Replaces)
	}
	if s.Note != "" {
		notes = append(notes, s.Note)
	}
	text := "- " + s.Entry
	if len(notes) > 0 {
		text += "  # " + strings.Join(notes, "; ")
	}
	return text
}

// ago is a moment for people.
func ago(now, at time.Time) string {
	switch d := now.Sub(at); {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/(24*time.Hour))
	}
}

// mostTold bounds what is remembered of what was suggested already.
const mostTold = 1000

// followTraffic prints decisions until the gates end, or somebody interrupts:
// that is how one ends looking.
func (a *app) followTraffic(ctx context.Context, e *engine.Engine, gates []engine.Member, in map[string]policy.Circumstances, w trafficWish) error {
	var mu sync.Mutex
	told := map[string]bool{}
	tasks, following := errgroup.WithContext(ctx)
	for _, g := range gates {
		tasks.Go(func() error {
			return e.Decisions(following, g.ID, func(d spec.Decision) error {
				ev := trafficEvent{Version: spec.Version, Time: d.Time, Service: g.Service, Count: d.Count,
					decided: decided{Verdict: d.Verdict, Proto: d.Proto, Name: d.Name, Addr: d.Addr, Port: d.Port, Rule: d.Rule}}
				if ev.Verdict == spec.VerdictProbed || w.denied && !ev.refused() && ev.Verdict != spec.VerdictNotShown {
					return nil
				}
				ev.judge(in[g.Service])
				mu.Lock()
				defer mu.Unlock()
				if w.json {
					return writeEvent(a.out, ev)
				}
				return ev.show(a.out, told)
			})
		})
	}
	err := tasks.Wait()
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		fmt.Fprintf(a.err, "corral: the gate of %s ended, and with it what it decided; once the sandbox is up again, corral traffic -f follows that one\n", gates[0].Sandbox)
	}
	return err
}

func writeEvent(out io.Writer, ev trafficEvent) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(ev); err != nil {
		return err
	}
	_, err := out.Write(printable.JSON(b.Bytes()))
	return err
}

// show prints an event, and what would allow it if that was not told before.
func (ev trafficEvent) show(out io.Writer, told map[string]bool) error {
	if ev.Verdict == spec.VerdictNotShown {
		_, err := fmt.Fprintf(out, "%s  %s more than there are lines for\n", clock(ev.Time), printable.Count(ev.Count, "decision"))
		return err
	}
	text := fmt.Sprintf("%s  %s  %s %s%s", clock(ev.Time), cmp.Or(verdictWords[ev.Verdict], cell(ev.Verdict)), ev.how(), ev.what(), times(ev.Count))
	if ev.Reason != "" {
		text += ": " + cell(ev.Reason)
	}
	text += "\n"
	if s := ev.Suggestion; s != nil {
		more := s.Note
		if s.Entry != "" {
			more = s.Key + ": " + pasted(*s)
		}
		if !told[more] && len(told) < mostTold {
			told[more] = true
			text += "          " + more + "\n"
		}
	}
	_, err := io.WriteString(out, text)
	return err
}

func clock(t time.Time) string { return t.Local().Format(time.TimeOnly) }
