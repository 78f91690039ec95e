package gate

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

// trial says what a gate could rely on here: an event a line for each feature
// of the kernel, by the rules and sets that need it. It is for a container
// that is thrown away afterwards.
type trial struct {
	file  string // to be read first
	reach string // ADDR:PORT to be connected to, and nothing else tried
	// listen makes it the neighbour that a second one tries to reach.
	listen bool
	within time.Duration // for reach
	out    io.Writer
	bad    bool
}

func (t *trial) flags(f *flag.FlagSet) {
	f.StringVar(&t.file, "read", "", "")
	f.StringVar(&t.reach, "reach", "", "")
	f.BoolVar(&t.listen, "listen", false, "")
	f.DurationVar(&t.within, "within", reachTimeout, "")
}

// reachTimeout tells a lost packet from a slow one between neighbours: the
// kernel repeats it after one second.
const reachTimeout = 2500 * time.Millisecond

func (t *trial) run(ctx context.Context, out io.Writer) error {
	t.out = out
	switch {
	case t.reach != "":
		t.say(spec.TrialReach, "", dial(ctx, t.reach, t.within))
		return t.verdict()
	case t.listen:
		return t.answer(ctx)
	}
	if err := alone(); err != nil {
		return exit.Invalidf("it closes the network of wherever it runs, so it must be the first process of a container without one (--network none)",
			"trial: %w", err)
	}
	if t.file != "" {
		said, err := readLine(t.file)
		t.say(spec.TrialRead, said, err)
	}
	k, err := netfilter.Open(ctx)
	var unusable *netfilter.Unusable
	switch {
	case err == nil:
		t.say(spec.TrialBackend, k.Backend(), nil)
	case errors.As(err, &unusable) && len(unusable.Lacks) > 0 && len(unusable.Rights) == 0:
		t.say(spec.TrialBackend, unusable.Backend, nil)
	default:
		t.say(spec.TrialBackend, "", err)
		return t.verdict()
	}
	for _, f := range spec.TrialFeatures[1:] {
		err := tryFeature(ctx, f.Name, k, unusable)
		if err != nil && f.Name == spec.TrialDestroy {
			t.note(f.Name, err)
			continue
		}
		t.say(f.Name, "", err)
	}
	return t.verdict()
}

// tryFeature goes by what opening the kernel found out; the socket of the
// records and a gate's own rules are tried here.
func tryFeature(ctx context.Context, name string, k *netfilter.Kernel, lacks *netfilter.Unusable) error {
	switch {
	case name == spec.TrialNFLOGSocket:
		f, err := openRecords()
		if err != nil {
			return err
		}
		return f.Close()
	case name == spec.TrialDestroy && k != nil:
		return k.TryDestroy(ctx)
	case name == spec.TrialRules && k != nil:
		return tryRules(ctx, k)
	case lacks != nil:
		for _, l := range lacks.Lacks {
			if l.Feature == name || name == spec.TrialRules {
				return l.Err
			}
		}
	}
	return nil
}

func (t *trial) say(feature, detail string, err error) {
	ev := spec.Event{Version: spec.Version, Check: feature, Result: spec.OK, Detail: detail}
	if err != nil {
		ev.Result, ev.Detail = spec.Failed, err.Error()
		t.bad = true
	}
	t.write(ev)
}

// note is of a feature that a gate can do without.
func (t *trial) note(feature string, err error) {
	t.write(spec.Event{Version: spec.Version, Check: feature, Result: spec.Note, Detail: fmt.Sprintf("%v: %s", err, spec.WithoutDestroy)})
}

func (t *trial) write(ev spec.Event) {
	b, err := json.Marshal(ev)
	if err != nil {
		panic(err) // strings and numbers
	}
	_, err = fmt.Fprintf(t.out, "%s\n", b)
	t.bad = t.bad || err != nil
}

func (t *trial) verdict() error {
	if t.bad {
		return exit.Status(exit.Failed)
	}
	return nil
}

// alone is nil in the first process of a namespace that leads nowhere. The
// devices that some kernels put into every namespace are down.
func alone() error {
	if os.Getpid() != 1 {
		return errors.New("it runs as PID 1 only")
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			return fmt.Errorf("interface %s is up", i.Name)
		}
	}
	return nil
}

// answer says where it listens and takes every connection until it is ended.
func (t *trial) answer(ctx context.Context) error {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.To4() != nil && !n.IP.IsLoopback()
	})
	if i < 0 {
		return errors.New("there is no address to listen on")
	}
	l, err := net.Listen("tcp4", netip.AddrPortFrom(netip.MustParsePrefix(addrs[i].String()).Addr(), 0).String())
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	t.say(spec.TrialListen, l.Addr().String(), nil)
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil
		}
		conn.Close()
	}
}

// dial connects and hangs up.
func dial(ctx context.Context, to string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", to)
	if err != nil {
		return err
	}
	return conn.Close()
}

// maxRead is far above what the caller writes into the file.
const maxRead = 256

func readLine(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRead))
	return strings.TrimSpace(string(b)), err
}

// What the trial's document and pins grant: addresses for documentation.
var (
	trialSpec = spec.Gate{
		Gateway:   netip.MustParseAddr("192.0.2.1"),
		Resolvers: []netip.Addr{netip.MustParseAddr("192.0.2.53")},
		HostPorts: []uint16{443},
	}
	trialSets = sets([]spec.Pin{
		{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Ports: []uint16{443}},
		{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.8")}, AnyPort: true},
	})
)

// tryRules puts a gate's own rules and sets in place at each stage and reads
// them back.
func tryRules(ctx context.Context, k *netfilter.Kernel) error {
	if err := k.ApplySets(ctx, trialSets...); err != nil {
		return err
	}
	for _, at := range []stage{closed, resolving, serving} {
		for _, want := range rulesets(trialSpec, at) {
			if want.Family == netfilter.IPv6 && !k.HasIPv6() {
				continue
			}
			if err := k.Apply(ctx, want); err != nil {
				return err
			}
			if at != serving { // chains of a later stage are left alone
				continue
			}
			got, err := k.Read(ctx, want.Family)
			if err != nil {
				return err
			}
			if diff := netfilter.Diff(want, got); len(diff) > 0 {
				return errors.New(strings.Join(diff, "; "))
			}
		}
	}
	var names []string
	for _, s := range trialSets {
		names = append(names, s.Name)
	}
	got, err := k.ReadSets(ctx, names...)
	if err != nil {
		return err
	}
	if netfilter.Digest(nil, got) != netfilter.Digest(nil, trialSets) {
		return errors.New("the sets do not hold what they were filled with")
	}
	return nil
}
