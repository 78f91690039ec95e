// Package gate is corral-gate. In goes a spec.Gate document; out comes a
// network namespace in which everything is refused but what the document
// grants, kept so until the process ends, and an account of what was refused.
// It forwards no lookup but of public names for a gate of class public, never
// writes the nat table, and on every error and every path it leaves the namespace
// closed.
//
// Two processes share the work. PID 1 is root, holds the few capabilities that
// rules need and reads nothing that comes from the network. The worker has no
// right at all; it parses DNS and copies of packets, and PID 1 checks what it
// says.
package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

const usage = `usage: corral-gate COMMAND

  serve               close the namespace, open what the document grants, and watch (PID 1)
  status [--json]     how it is; exit 1 unless it is ready
  refresh [--spec FILE] [--json]
                      resolve the names again, or go by another document from now on (-: standard input)
  verdicts --after N  what became of packets from probe ports since mark N, as JSON
  trial               what a gate could rely on here, a feature a line (PID 1 of an empty namespace)
  relay [--dns] LISTEN TARGET...
                      carry from an address of the host to its loopback, for listed sources (a relay's PID 1)
  relay-sources       list them: a document on standard input, in force on return
  unblock CONTAINER   end what the engine started in a container and a process there stopped (among the host's processes)
  settings            the variables that a gate goes by where it is given no document
  version
`

const howTo = "corral-gate --help lists the commands"

// Main runs one command and returns the exit status.
func Main(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) int {
	err := run(ctx, stdin, stdout, stderr, args)
	last := newOutlet(stderr) // that nobody takes them keeps no gate from its end
	defer last.flush(lastWordsWithin)
	return exit.Report(last, "corral-gate", err)
}

func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args []string) error {
	if len(args) == 0 {
		return exit.Invalidf(howTo, "no command")
	}
	if slices.Contains([]string{"help", "--help", "-h"}, args[0]) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON, dns, after, tried, file := false, false, uint64(0), trial{}, spec.GateFile
	switch args[0] {
	case "status":
		flags.BoolVar(&asJSON, "json", false, "")
	case "refresh":
		flags.BoolVar(&asJSON, "json", false, "")
		flags.StringVar(&file, "spec", file, "")
	case "relay":
		flags.BoolVar(&dns, "dns", false, "")
	case "verdicts":
		flags.Uint64Var(&after, "after", 0, "")
	case "trial":
		tried.flags(flags)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return exit.Invalidf(howTo, "%s: %w", args[0], err)
	}
	if flags.NArg() > 0 && args[0] != "relay" && args[0] != "unblock" {
		return exit.Invalidf(howTo, "%s takes no %q", args[0], flags.Arg(0))
	}
	switch args[0] {
	case "serve":
		return serve(ctx, stdout, stderr)
	case "worker":
		return work(ctx)
	case "status":
		return status(ctx, stdout, asJSON)
	case "refresh":
		if file == "-" {
			if err := takeIn(stdin, toldFile); err != nil {
				return err
			}
			file = toldFile
		}
		return refresh(ctx, stdout, file, asJSON)
	case "verdicts":
		answer, err := call(ctx, question{Verdicts: &after})
		if err != nil {
			return err
		}
		_, err = stdout.Write(answer)
		return err
	case "trial":
		return tried.run(ctx, stdout)
	case "relay":
		return carry(ctx, stdout, dns, flags.Args())
	case "relay-sources":
		return tellSources(ctx, stdin)
	case "unblock":
		return unblock(ctx, stdout, flags.Args())
	case "settings":
		return printSettings(stdout)
	case "version":
		_, err := fmt.Fprintf(stdout, "corral-gate %s\n", spec.Release())
		return err
	}
	return exit.Invalidf(howTo, "no command is called %q", args[0])
}

func status(ctx context.Context, stdout io.Writer, asJSON bool) error {
	answer, err := call(ctx, question{Status: true})
	if err != nil {
		return err
	}
	if asJSON {
		var b bytes.Buffer
		if err := json.Indent(&b, answer, "", "  "); err != nil {
			return err
		}
		_, err := b.WriteTo(stdout)
		return err
	}
	var s spec.GateStatus
	if err := json.Unmarshal(answer, &s); err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, statusText(s)); err != nil {
		return err
	}
	if s.State != spec.GateReady {
		return exit.Status(exit.Failed)
	}
	return nil
}

// toldFile keeps a document that came by standard input: a gate reads one from files
// of root's alone.
const toldFile = "/run/corral-gate.json"

// takeIn writes a document to a file, whole or not at all.
func takeIn(from io.Reader, file string) error {
	b, err := io.ReadAll(io.LimitReader(from, maxSpec+1))
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	if len(b) > maxSpec {
		return exit.Invalidf(stays, "a document has at most %d bytes", maxSpec)
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)) // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already if all went well
	if _, err := f.Write(b); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// refresh has the gate resolve again, and go by a document.
func refresh(ctx context.Context, stdout io.Writer, file string, asJSON bool) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	answer, err := call(ctx, question{Refresh: file})
	if err != nil {
		return err
	}
	var r spec.Refreshed
	if err := json.Unmarshal(answer, &r); err != nil {
		return err
	}
	text := string(answer)
	if !asJSON {
		text = refreshedText(r)
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if r.Unended != "" {
		return exit.Failedf("the new policy is in force, and the gate tries again until they have ended; corral-gate status says whether they have",
			"connections to what is granted no longer go on: %s", r.Unended)
	}
	return nil
}

func refreshedText(r spec.Refreshed) string {
	var b strings.Builder
	for _, d := range r.Added {
		fmt.Fprintf(&b, "added    %s\n", d)
	}
	for _, d := range r.Removed {
		fmt.Fprintf(&b, "removed  %s\n", d)
	}
	for _, p := range r.Pins {
		if p.Failed != "" {
			fmt.Fprintf(&b, "kept     %s as it was: %s (%s)\n", p.Domain, p.Failed, p.Origin)
		}
	}
	for _, s := range r.Silent {
		fmt.Fprintf(&b, "silent   %s: accepts no connection on %s: %s (%s): the next start of the gate would refuse it\n", s.Domain, anyOf(s.Ports), s.Why, s.Origin)
	}
	for _, u := range r.Unpinned {
		fmt.Fprintf(&b, "unpinned %s: %s (%s)\n", u.Domain, u.Reason, u.Origin)
	}
	b.WriteString(sharedText(r.Shared))
	fmt.Fprintf(&b, "%s, %s added, %d removed, %s ended\n", printable.Count(len(r.Pins), "pin"), printable.Count(len(r.Added), "destination"), len(r.Removed), printable.Count(r.Ended, "connection"))
	return b.String()
}

func sharedText(shared []spec.Shared) string {
	var b strings.Builder
	for _, s := range shared {
		fmt.Fprintf(&b, "shared   %s of %s goes on for %s × %d\n", endpoint(s.Addr, s.Port), s.Removed, s.With, s.Flows)
	}
	return b.String()
}

func statusText(s spec.GateStatus) string {
	var b bytes.Buffer
	state := string(s.State)
	if s.State == spec.GateClosed {
		state = "closed"
	}
	fmt.Fprintf(&b, "%s, rules by %s", state, s.Backend)
	switch {
	case s.Applied == "":
	case s.Applied == s.ReadBack:
		b.WriteString(", the kernel has them as applied")
	default:
		b.WriteString(", THE KERNEL HAS OTHERS THAN APPLIED")
	}
	for _, d := range s.Differences {
		fmt.Fprintf(&b, "\nDIFFERS  %s", d)
	}
	if s.Namespace != nil {
		for _, a := range s.Namespace.Altered {
			fmt.Fprintf(&b, "\nALTERED  %s", a)
		}
		for _, p := range s.Namespace.PacketSockets {
			fmt.Fprintf(&b, "\nSTRANGE  %s", p)
		}
	}
	fmt.Fprintf(&b, "\nworker restarts: %d\n", s.WorkerRestarts)
	if !s.Refreshed.IsZero() {
		fmt.Fprintf(&b, "names resolved %s", s.Refreshed.UTC().Format(time.RFC3339))
		if !s.NextRefresh.IsZero() {
			fmt.Fprintf(&b, ", next %s", s.NextRefresh.UTC().Format(time.RFC3339))
		}
		b.WriteString("\n")
	}
	for _, p := range s.Pins {
		var addrs []string
		for _, a := range p.Addrs {
			addrs = append(addrs, a.String())
		}
		fmt.Fprintf(&b, "pinned   %s %s (ports %s; %s)\n", p.Domain, strings.Join(addrs, " "), portsText(p.Ports, p.AnyPort), p.Origin)
		if p.Failed != "" {
			fmt.Fprintf(&b, "  kept as of %s: %s\n", p.At.UTC().Format(time.RFC3339), p.Failed)
		}
		if n := len(p.Fading); n > 0 {
			flows := 0
			for _, f := range p.Fading {
				flows += f.Flows
			}
			fmt.Fprintf(&b, "  and %d that it had until %s or later, with %s\n", n, p.Fading[0].Since.UTC().Format(time.RFC3339), printable.Count(flows, "connection"))
		}
	}
	for _, u := range s.Unpinned {
		fmt.Fprintf(&b, "unpinned %s: %s (%s)\n", u.Domain, u.Reason, u.Origin)
	}
	b.WriteString(sharedText(s.Shared))
	if s.Unended != "" {
		fmt.Fprintf(&b, "CONNECTIONS TO WHAT IS GRANTED NO LONGER GO ON: %s\n", s.Unended)
	}
	if s.Uncounted != "" {
		fmt.Fprintf(&b, "connections could not be counted: %s\n", s.Uncounted)
	}
	for _, r := range s.Rules {
		if r.Packets > 0 && r.Chain == "OUTPUT" { // where everything is decided
			rule := r.Rule
			if r.Proto != "" { // one ID may have a rule for each
				rule += " " + r.Proto
			}
			fmt.Fprintf(&b, "rule     %s %s %s × %d packets, %d bytes\n", r.Family, r.Chain, rule, r.Packets, r.Bytes)
		}
	}
	for _, d := range s.Denied {
		fmt.Fprintf(&b, "denied   %s %s × %d (%s)\n", d.Proto, endpoint(d.Addr, d.Port), d.Count, d.Rule)
	}
	if s.DeniedMore > 0 {
		fmt.Fprintf(&b, "denied   to other destinations × %d\n", s.DeniedMore)
	}
	if s.Probed > 0 {
		fmt.Fprintf(&b, "probed   by proofs, from ports %d to %d × %d\n", spec.ProbePortFirst, spec.ProbePortLast, s.Probed)
	}
	for _, u := range []struct {
		n    uint64
		what string
	}{{s.AllowedUnrecorded, "connections that were made"}, {s.DeniedUnrecorded, "packets that were refused"}} {
		if u.n > 0 {
			fmt.Fprintf(&b, "not recorded: %d %s, which came too fast: where they went may be missing here\n", u.n, u.what)
		}
	}
	for _, r := range s.RefusedNames {
		fmt.Fprintf(&b, "refused  lookup of %s × %d\n", r.Name, r.Count)
	}
	if s.RefusedMore > 0 {
		fmt.Fprintf(&b, "refused  lookups of other names × %d\n", s.RefusedMore)
	}
	return b.String()
}
