package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) install() *cobra.Command {
	var check, asJSON, repair bool
	var subnet string
	c := &cobra.Command{
		Use:   "install",
		Short: "Prepare this machine: the corral network and the gate image",
		Long: `Looks whether a fence on this machine can hold, makes the network that all gates
are on and builds the gate image. Once per machine; doing it again changes
nothing. If something stands against it, that is said with what to do, and
nothing more is made: the gate image is built before the kernel is tried with
it, the network is made before its gateway's address is. With --check the gate
image is still built where it is missing, and nothing else is made.

The network takes 172.30.0.0/16, or the next private range that no route and no
network of this machine uses; --subnet or the settings say which. The network is
the record: every later command goes by the range that it has.`,
		Example: `  corral install            looks, and makes what is missing
  corral install --check    looks, and says each thing; exit 1 unless ready`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if check && repair {
				return exit.Invalidf("corral install --repair looks first, too", "--check makes nothing, so it cannot repair")
			}
			return a.runInstall(c.Context(), subnet, !check, repair, asJSON)
		},
	}
	c.Flags().StringVar(&subnet, "subnet", "", "the range to take, like 172.30.0.0/16")
	c.Flags().BoolVar(&check, "check", false, "only look; the gate image is built if it is missing, to try the kernel with it")
	c.Flags().BoolVar(&asJSON, "json", false, "every finding as a line of JSON")
	c.Flags().BoolVar(&repair, "repair", false, "make the network anew if it is not as it must be or its range collides, and nothing uses it")
	return c
}

// runInstall surveys the machine and makes what is missing if it is asked to.
// A check says everything on standard output; otherwise only what does not
// simply hold is said, on standard error, unless it is asked for as JSON.
func (a *app) runInstall(ctx context.Context, subnet string, making, repair, asJSON bool) error {
	set, _, err := settings()
	if err != nil {
		return err
	}
	wish, err := wished()
	if err != nil {
		return err
	}
	set.Subnet = wish.Subnet
	if subnet != "" {
		const hint = "write it like 172.30.0.0/16"
		if set.Subnet, err = netip.ParsePrefix(subnet); err != nil {
			return exit.Invalidf(hint, "--subnet: %q is no range of addresses", subnet)
		}
		if _, err = plan.Divide(set.Subnet); err != nil {
			return exit.Invalidf(hint, "--subnet: %w", err)
		}
	}
	certificates, err := trusted(set)
	if err != nil {
		return err
	}
	var tally report.Tally
	var failure error // of writing
	tell := func(f engine.Finding) {
		switch f.Result {
		case spec.OK:
			tally.Passed++
		case spec.Skip:
			tally.Skipped++
		case spec.Note:
		default:
			tally.Failed++
		}
		f.Detail = engine.Plain(f.Detail)
		var err error
		switch {
		case asJSON:
			err = writeFinding(a.out, f)
		case !making:
			err = showFinding(a.out, f, a.colour())
		case f.Result != spec.OK:
			err = showFinding(a.err, f, moving(a.err))
		}
		if failure == nil {
			failure = err
		}
	}
	ready, err := engine.Survey(ctx, engine.Machine{Settings: set, Make: making, Repair: repair, Trusted: certificates, Progress: a.progress, Watcher: a.watcher()}, tell)
	if err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	switch {
	case asJSON:
		err = json.NewEncoder(a.out).Encode(report.Summary{Version: spec.Version,
			Passed: tally.Passed, Skipped: tally.Skipped, Failed: tally.Failed, OK: ready})
	case !making:
		_, err = fmt.Fprintln(a.out, tally)
	case ready:
		fmt.Fprintln(a.err, "corral: this machine is ready")
	default:
		return exit.Failedf("what to do stands above with each; corral install --check shows all of it", "this machine is not ready: %d of what a fence stands on does not hold", tally.Failed)
	}
	if err == nil && !ready {
		return exit.Status(exit.Failed)
	}
	return err
}

func (a *app) progress(format string, args ...any) {
	a.live.over(func() { fmt.Fprintf(plain{a.err}, "corral: "+format+"\n", args...) })
}

// showFinding is one line for a person, and one with what to do.
func showFinding(w io.Writer, f engine.Finding, colour bool) error {
	line := report.Line(f.Event, colour)
	if f.Result == spec.OK && f.Detail != "" {
		line += ": " + printable.Escape(f.Detail)
	}
	if f.Hint != "" {
		line += "\n  hint: " + printable.Escape(f.Hint)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func writeFinding(w io.Writer, f engine.Finding) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(f); err != nil {
		return err
	}
	_, err := w.Write(printable.JSON(b.Bytes()))
	return err
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
	if e.Trusted, err = trusted(set); err != nil {
		return nil, "", err
	}
	image, err := e.GateImage(ctx, guests)
	return guests, image, err
}
