package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	prisoner = "corral-prisoner"
	// demoWithin bounds the hostile agent.
	demoWithin = 2 * time.Minute
)

const demoPolicy = `profile: shell
name: demo
egress:
  allow: []   # nothing: whatever gets out, got out
profile_options:
  shell:
    command: [sh, -c, "./corral-prisoner --json --targets targets.json; echo done; read _"]
`

// attempt is one line of what the prisoner says.
type attempt struct {
	Group   string `json:"group"`
	Name    string `json:"name"`
	Proves  string `json:"proves"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

// witnessed is what a capture beside the agent saw leave.
type witnessed struct {
	Packets      uint64 `json:"packets"`
	ARP          uint64 `json:"arp"`
	Dropped      uint64 `json:"dropped"` // packets that it could not look at
	Destinations []struct {
		Proto string     `json:"proto"`
		Addr  netip.Addr `json:"addr"`
		Port  uint16     `json:"port"`
		Count uint64     `json:"count"`
	} `json:"destinations"`
}

func (a *app) demo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Watch a hostile agent fail to get out",
		Long: `Runs a hostile program as the agent of a sandbox that allows nothing. It tries
every way out it knows. Beside it a capture watches what leaves, and a listener
on this machine, which an ordinary container reaches first, must not be reached.
Then the fence is verified from the inside. Needs no root, no key and no model.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.runDemo(c.Context()) },
	}
}

func (a *app) runDemo(ctx context.Context) (err error) {
	e, err := a.connect(ctx)
	if err != nil {
		return err
	}
	_, image, err := prepare(ctx, e, false)
	if err != nil {
		return err
	}
	set, _, err := settings()
	if err != nil {
		return err
	}
	network, _, err := inForce(ctx, e)
	if err != nil {
		return err
	}
	if err := e.Sweep(ctx, engine.PurposeDemo); err != nil {
		return err
	}
	dir, err := demoProject()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	a.heading("Control: an ordinary container reaches a listener of this machine")
	listener, err := listen(network.Gateway)
	if err != nil {
		return err
	}
	defer listener.Close()
	reached, err := a.control(ctx, e, image, dir, network.Name, listener.Addr().String())
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "  %s %s\n", a.good("reached"), reached)

	targets := map[string]any{
		"unlisted": set.Probes.Unlisted, "resolver": set.Probes.Resolver, "metadata": set.Probes.Metadata,
		"names": []string{"secret.exfiltration.invalid"}, "ipv6": set.Probes.IPv6, "gateway": network.Gateway, "listener": listener.Addr().String(),
		"read_write": dir,
	}
	if err := os.WriteFile(filepath.Join(dir, "targets.json"), spec.Encode(targets), 0o644); err != nil {
		return err
	}

	a.project, a.policy = "", filepath.Join(dir, "corral.yaml")
	p, err := a.hostile(dir)
	if err != nil {
		return err
	}
	up, err := a.bring(ctx, e, p, engine.PurposeDemo, nil, engine.Terminal{Stdin: true})
	if err != nil {
		return err
	}
	defer func() {
		a.end(ctx, e, up)
		err = errors.Join(err, e.RemoveImages(ctx, p.id()))
	}()
	g, id := up.gate(), up.agent()
	witness, seen, err := e.StartTool(ctx, engine.Tool{
		Purpose: engine.PurposeDemo, Image: image, Network: "container:" + g.ID, Capabilities: []string{"NET_RAW"}, Bind: dir,
		Args: []string{filepath.Join(dir, prisoner), "witness"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(ctx, witness)) }()
	if line, _ := seen.Next(); line != "witness: watching" {
		return fmt.Errorf("cannot tell: the capture did not start: %s", printable.Escape(line))
	}

	a.heading("A hostile agent behind the fence")
	stream, err := e.Start(ctx, id)
	if err != nil {
		return err
	}
	defer stream.Close()
	tally, err := a.watch(ctx, stream)
	if err != nil {
		return err
	}

	a.heading("What left its network namespace")
	if err := seen.HangUp(); err != nil {
		return fmt.Errorf("cannot tell: the capture did not end: %w", err)
	}
	packets, err := capture(seen)
	if err != nil {
		return err
	}
	if packets.Packets == 0 {
		fmt.Fprintf(a.out, "  %s no packet\n", a.good("nothing"))
	}
	for _, d := range packets.Destinations {
		fmt.Fprintf(a.out, "  %s %s %v:%d (%d)\n", a.bad("LEFT"), d.Proto, d.Addr, d.Port, d.Count)
	}

	a.heading("What the gate denied")
	status, err := e.GateStatus(ctx, g.ID)
	if err != nil {
		return err
	}
	a.showDenied(status)

	a.heading("The fence, verified from the inside")
	proof, err := a.proveAll(ctx, e, p, g, up.standing())
	if err != nil {
		return err
	}
	verified := a.show(proof, false)
	_ = stream.HangUp() // the agent leaves by itself; End removes it either way

	fmt.Fprintln(a.out)
	fmt.Fprintf(a.out, "%d attempts: %d blocked, %d not there to try, %d escaped; %d packets left\n",
		tally.total, tally.blocked, tally.absent, tally.escaped, packets.Packets)
	if tally.total == 0 || tally.escaped > 0 || packets.Packets > 0 {
		return exit.Failedf("run no agent behind it; SECURITY.md says how to report it: keep what stands above", "the fence did not hold")
	}
	return verified
}

// hostile is the sandbox of the hostile agent: it trusts whom this machine trusts,
// as every other one does, or its images would be others than theirs.
func (a *app) hostile(dir string) (*project, error) {
	p, err := (&app{in: a.in, out: a.out, err: io.Discard, policy: filepath.Join(dir, "corral.yaml"), project: dir}).load()
	if err != nil {
		return nil, err
	}
	p.accepted = true // it is our own
	p.host.Certificates, err = trusted(p.set)
	return p, err
}

// demoProject is a directory with a policy and the hostile program, given to
// an unprivileged person.
func demoProject() (string, error) {
	path, err := host.Companion(prisoner)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "corral-demo-")
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.Chmod(dir, 0o755), // the helpers are root without the right to override modes
		os.WriteFile(filepath.Join(dir, prisoner), b, 0o755),
		os.WriteFile(filepath.Join(dir, "corral.yaml"), []byte(demoPolicy), 0o644),
	)
	if os.Getuid() == 0 && os.Getenv("SUDO_UID") == "" {
		for _, f := range []string{"", prisoner, "corral.yaml"} {
			err = errors.Join(err, os.Chown(filepath.Join(dir, f), demoUID, demoUID))
		}
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// demoUID is whose the demo is when root starts it for nobody.
const demoUID = 1000

// listen opens a port of this machine's that no policy declares.
func listen(gateway netip.Addr) (net.Listener, error) {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(gateway, 0).String())
	if err != nil {
		return nil, fmt.Errorf("cannot tell: no listener on the gateway address: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return l, nil
}

// control reaches the listener from a container without a fence: only then
// does its silence to the agent mean anything.
func (a *app) control(ctx context.Context, e *engine.Engine, image, dir, network, addr string) (string, error) {
	id, stream, err := e.StartTool(ctx, engine.Tool{
		Purpose: engine.PurposeDemo, Image: image, Network: network, Bind: dir, Args: []string{filepath.Join(dir, prisoner), "reach", addr},
	})
	if err != nil {
		return "", err
	}
	defer e.Remove(ctx, id)
	defer stream.Close()
	said, _ := stream.Next()
	if code := stream.Status(ctx); code != 0 {
		return "", exit.Failedf("a firewall of this machine may drop what comes from the corral bridge",
			"cannot tell: an unfenced container did not reach %s: %s", addr, printable.Escape(said))
	}
	return addr, nil
}

type tally struct{ total, blocked, absent, escaped int }

// watch prints the attempts as they come, under the heading of their group.
func (a *app) watch(ctx context.Context, stream *engine.Stream) (tally, error) {
	var t tally
	ctx, cancel := context.WithTimeout(ctx, demoWithin)
	defer cancel()
	stop := context.AfterFunc(ctx, stream.Close)
	defer stop()
	group := ""
	for {
		line, more := stream.Next()
		if !more {
			return t, fmt.Errorf("cannot tell: the hostile agent ended early: %s", printable.Escape(stream.Errors()))
		}
		if line == "done" {
			return t, nil
		}
		var got attempt
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			return t, fmt.Errorf("cannot tell: the hostile agent said %q", line)
		}
		if got.Group != group {
			group = got.Group
			fmt.Fprintf(a.out, "  %s\n", printable.Escape(group))
		}
		t.total++
		word := a.good("blocked")
		switch got.Outcome {
		case "blocked":
			t.blocked++
		case "absent":
			t.absent++
			word = "absent "
		default:
			t.escaped++
			word = a.bad("ESCAPED")
		}
		shown := fmt.Sprintf("%-24s %s", printable.Escape(got.Name), printable.Escape(got.Detail))
		fmt.Fprintf(a.out, "    %s  %s\n", word, cut(shown, a.columns()-len("    blocked  ")))
	}
}

// capture reads what a capture has to say at its end.
func capture(stream *engine.Stream) (witnessed, error) {
	var w witnessed
	line, _ := stream.Next()
	if err := json.Unmarshal([]byte(line), &w); err != nil {
		return w, fmt.Errorf("cannot tell: the capture said %q", line)
	}
	if w.Dropped > 0 {
		return w, fmt.Errorf("cannot tell: the capture missed %d packets", w.Dropped)
	}
	return w, nil
}

// showDenied prints a line for each name, and one for each address and
// protocol with its ports.
func (a *app) showDenied(s spec.GateStatus) {
	for _, n := range s.RefusedNames {
		fmt.Fprintf(a.out, "  name   %s%s\n", cell(n.Name), times(n.Count))
	}
	type key struct {
		proto string
		addr  netip.Addr
	}
	ports := map[key][]uint16{}
	for _, d := range s.Denied {
		k := key{d.Proto, d.Addr}
		ports[k] = append(ports[k], d.Port)
	}
	keys := slices.SortedFunc(maps.Keys(ports), func(x, y key) int {
		return cmp.Or(strings.Compare(x.proto, y.proto), x.addr.Compare(y.addr))
	})
	for _, k := range keys {
		slices.Sort(ports[k])
		list := strings.Trim(fmt.Sprint(ports[k]), "[]")
		if list == "0" { // no ports in this protocol
			list = ""
		}
		fmt.Fprintln(a.out, cut(strings.TrimRight(fmt.Sprintf("  %-6s %-16s %s", cell(k.proto), cell(k.addr.String()), list), " "), a.columns()))
	}
}

func (a *app) heading(s string) { fmt.Fprintf(a.out, "\n%s\n", a.paint("1", s)) }

func (a *app) good(s string) string { return a.paint("32", s) }
func (a *app) bad(s string) string  { return a.paint("31;1", s) }

// columns is the width of the person's terminal; plenty without one.
func (a *app) columns() int { return columns(a.out) }

// colour says whether the person's terminal wants colours.
func (a *app) colour() bool { return moving(a.out) }

// paint colours words of ours.
func (a *app) paint(code, s string) string {
	if !a.colour() {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
