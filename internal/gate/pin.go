package gate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// resolveTimeout bounds the resolution of all names together.
	resolveTimeout = 60 * time.Second
	dnsPort        = 53
)

// resolution is what became of one name.
type resolution struct {
	addrs []netip.Addr
	ttl   time.Duration
	err   error
}

// resolveNames asks the resolvers of g once for every name, in parallel.
func resolveNames(ctx context.Context, g spec.Gate, domains []string, ask func(context.Context, request) (reply, error)) map[string]resolution {
	ctx, cancel := context.WithTimeoutCause(ctx, resolveTimeout, fmt.Errorf("not resolved within %v", resolveTimeout))
	defer cancel()
	var servers []netip.AddrPort
	for _, r := range g.Resolvers {
		servers = append(servers, netip.AddrPortFrom(r, dnsPort))
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		results = map[string]resolution{}
	)
	for _, name := range domains {
		wg.Go(func() {
			r, err := ask(ctx, request{Resolve: &lookup{Name: name, Servers: servers}})
			if err == nil && len(r.Addrs) == 0 {
				err = errors.New("an answer without an address")
			}
			mu.Lock()
			defer mu.Unlock()
			results[name] = resolution{addrs: r.Addrs, ttl: r.TTL, err: err}
		})
	}
	wg.Wait()
	return results
}

// outcome is what became of every name of a document.
type outcome struct {
	pins     []spec.Pin
	unpinned []spec.Unpinned
}

// domains are the names of a document, each once.
func domains(g spec.Gate) []string {
	all := []string{}
	for _, n := range g.Names {
		all = append(all, n.Domain)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// decide makes pins of what the names resolved to. Names that are listed several
// times are one pin for each set of ports. before is what they were pinned to so
// far: a name that now has no address which may be pinned keeps what it had and
// says why, one that was not looked up keeps it without a word, and what it no
// longer has fades. A name with nothing to keep is an error; a soft one stays
// closed and is reported.
func decide(g spec.Gate, before outcome, results map[string]resolution, now time.Time) (outcome, error) {
	never := never(g)
	var next outcome
	var failures []error
	for _, n := range g.Names {
		r, asked := results[n.Domain]
		addrs, err := admit(n, r, never)
		if byItself(g) {
			err = permission(err, n)
		}
		old, left := lately(before.pins, n, never)
		p := spec.Pin{Domain: n.Domain, Addrs: addrs, Ports: sorted(n.Ports), AnyPort: n.AnyPort,
			TTL: r.ttl, At: now, Soft: n.Soft, Origin: n.Origin}
		switch {
		case err == nil:
			p.Fading = fade(left, addrs, now)
		case len(old.Addrs) > 0:
			p.Addrs, p.Fading, p.TTL, p.At, p.Failed = old.Addrs, fade(left, old.Addrs, now), old.TTL, old.At, old.Failed
			if asked {
				p.Failed = err.Error()
			}
		case n.Soft:
			u := spec.Unpinned{Domain: n.Domain, Reason: err.Error(), Origin: n.Origin}
			if i := slices.IndexFunc(before.unpinned, func(u spec.Unpinned) bool { return u.Domain == n.Domain }); i >= 0 && !asked {
				u.Reason = before.unpinned[i].Reason
			}
			next.unpinned = append(next.unpinned, u)
			continue
		default:
			failures = append(failures, fmt.Errorf("%s (%s): %w", n.Domain, n.Origin, err))
			continue
		}
		next.pins = append(next.pins, p)
	}
	return next, errors.Join(failures...)
}

// lately is what a name was pinned to, as far as it may be still, with the newest
// lookup's particulars; and each of its addresses with those of its ports there that
// it is granted now.
func lately(pins []spec.Pin, n spec.Name, never []netip.Prefix) (old spec.Pin, left []spec.Fading) {
	keep := func(f spec.Fading) bool {
		if netguard.Pin(f.Addr, n.Private, never) != nil {
			return false
		}
		i := slices.IndexFunc(left, func(o spec.Fading) bool { return o.Addr == f.Addr })
		if i < 0 {
			i = len(left)
			left = append(left, spec.Fading{Addr: f.Addr, Since: f.Since, Flows: f.Flows})
		}
		switch {
		case f.AnyPort && n.AnyPort:
			left[i].AnyPort = true
		case f.AnyPort:
			left[i].Ports = sorted(n.Ports)
		default:
			granted := slices.DeleteFunc(slices.Clone(f.Ports), func(p uint16) bool { return !n.AnyPort && !slices.Contains(n.Ports, p) })
			left[i].Ports = sorted(append(granted, left[i].Ports...))
		}
		return true
	}
	for _, p := range pins {
		if p.Domain != n.Domain {
			continue
		}
		if p.At.After(old.At) {
			old.TTL, old.At, old.Failed = p.TTL, p.At, p.Failed
		}
		for _, a := range p.Addrs {
			if keep(spec.Fading{Addr: a, Ports: p.Ports, AnyPort: p.AnyPort}) && !slices.Contains(old.Addrs, a) {
				old.Addrs = append(old.Addrs, a)
			}
		}
		for _, f := range p.Fading {
			keep(f)
		}
	}
	return old, left
}

// fade has what is left of addresses that are not in addrs, the longest gone first.
// Those that have not been gone so far are from now on.
func fade(left []spec.Fading, addrs []netip.Addr, now time.Time) []spec.Fading {
	var fading []spec.Fading
	for _, f := range left {
		if slices.Contains(addrs, f.Addr) || !f.AnyPort && len(f.Ports) == 0 {
			continue
		}
		if f.Since.IsZero() {
			f.Since = now
		}
		fading = append(fading, f)
	}
	slices.SortStableFunc(fading, func(a, b spec.Fading) int { return a.Since.Compare(b.Since) })
	return fading
}

// maxFading bounds what a name keeps beside its addresses, unless more of it is in
// use: four times what it can have at once.
const maxFading = 4 * resolve.MaxRecords

// thin lets go of what fades and has no connection: what is due by now, and the
// longest gone beyond the limit.
func thin(g spec.Gate, pins []spec.Pin, now time.Time) []spec.Pin {
	pins = slices.Clone(pins)
	for i, p := range pins {
		var kept []spec.Fading
		excess := len(p.Fading) - maxFading
		for _, f := range p.Fading {
			switch {
			case f.Flows > 0:
				kept = append(kept, f)
			case excess > 0:
				excess--
			case !now.Before(f.Since.Add(grace(g, p))):
			default:
				kept = append(kept, f)
			}
		}
		pins[i].Fading = kept
	}
	return pins
}

// maxFadingInUse bounds what a name keeps even if all of it is in use: its name
// server and an agent together could make it grow as long as the gate runs. A pool
// that rotates has a hundred addresses or two, and each refresh goes through all.
const maxFadingInUse = 1024

// crop lets go of the longest gone beyond maxFadingInUse, whatever uses them, and
// says of which names.
func crop(pins []spec.Pin) (cropped []spec.Pin, crowded []string) {
	cropped = slices.Clone(pins)
	for i, p := range pins {
		if n := len(p.Fading) - maxFadingInUse; n > 0 {
			cropped[i].Fading = p.Fading[n:]
			crowded = append(crowded, fmt.Sprintf("%s (%s) had more than %d addresses before that are in use still: the %d longest gone leave, and what uses them ends",
				p.Domain, p.Origin, maxFadingInUse, n))
		}
	}
	return cropped, crowded
}

// grace is how long what a pin's name no longer has stays pinned at least.
func grace(g spec.Gate, p spec.Pin) time.Duration {
	d := spec.DefaultPinGrace
	if g.PinGrace > 0 {
		d = g.PinGrace
	}
	return max(d, 2*p.TTL)
}

// admit returns the addresses of one name, sorted, each once. One that may not
// be pinned spoils the name: who answers with it may answer with anything.
func admit(n spec.Name, r resolution, never []netip.Prefix) ([]netip.Addr, error) {
	if r.err != nil {
		return nil, r.err
	}
	addrs := slices.Compact(slices.SortedFunc(slices.Values(r.addrs), netip.Addr.Compare))
	if len(addrs) == 0 || len(addrs) > resolve.MaxRecords {
		return nil, fmt.Errorf("%d addresses, 1 to %d can be pinned", len(addrs), resolve.MaxRecords)
	}
	for _, a := range addrs {
		if err := netguard.Pin(a, n.Private, never); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

// dockerBridge is the machine itself on the engine's own network, as a rule.
var dockerBridge = netip.AddrFrom4([4]byte{172, 17, 0, 1})

// permission says of an address that a policy could permit how a gate without one
// does.
func permission(err error, n spec.Name) error {
	e := (*netguard.Unpermitted)(nil)
	switch {
	case !errors.As(err, &e):
		return err
	case e.Addr == dockerBridge:
		return fmt.Errorf("%s is refused: as a rule it is this machine itself, whose ports are for %s", e.Addr, hostPortsSetting)
	case n.Origin == allowSetting:
		return fmt.Errorf("%s is refused: %s: %s; no variable permits that, a document does in place of them: %s, with \"private\": [%q] for this name", e.Addr, e.Class, e.Class.Reason(), spec.GateFile, e.Prefix())
	}
	return fmt.Errorf("%s is refused: %s: %s; \"private\": [%q] for this name in %s would permit it", e.Addr, e.Class, e.Class.Reason(), e.Prefix(), spec.GateFile)
}

// noticeShown is how many addresses that names share are worth a line.
const noticeShown = 5

// sharedAddrs is a line for each address that several names have: nothing tells
// them apart by it.
func sharedAddrs(pins []spec.Pin) []string {
	var lines []string
	for _, shared := range spec.SharedAddresses(pins) {
		lines = append(lines, shared.String())
	}
	return lines
}

// tableOf has one entry a name, with all its addresses.
func tableOf(pins []spec.Pin) []spec.Pin {
	var table []spec.Pin
	seen := map[string]int{}
	for _, p := range pins {
		i, known := seen[p.Domain]
		if !known {
			seen[p.Domain] = len(table)
			table = append(table, p)
			continue
		}
		for _, f := range p.Fading {
			if !slices.ContainsFunc(table[i].Fading, func(o spec.Fading) bool { return o.Addr == f.Addr }) {
				table[i].Fading = append(slices.Clip(table[i].Fading), f)
			}
		}
	}
	return table
}

const (
	hostsFile    = "/etc/hosts"
	resolverFile = "/etc/resolv.conf"
	// resolverText sends programs that do not read the hosts file to the names
	// server, and completes no name.
	resolverText = "nameserver 127.0.0.1\noptions ndots:0 timeout:1 attempts:1\n"
	// resolverTextPublic waits longer: somebody outside is asked.
	resolverTextPublic = "nameserver 127.0.0.1\noptions ndots:0 timeout:5 attempts:1\n"
)

// hostsText is the hosts file: loopback, the container's own lines as the engine
// wrote them to old, one for each of own, and the pins. Whatever else old had is gone.
func hostsText(old, hostname string, own map[netip.Addr]bool, pins []spec.Pin) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	told := map[netip.Addr]bool{}
	for line := range strings.Lines(old) {
		entry, _, _ := strings.Cut(line, "#")
		fields := strings.Fields(entry)
		if len(fields) < 2 || !slices.Contains(fields[1:], hostname) || hostname == "localhost" {
			continue
		}
		if a, err := netip.ParseAddr(fields[0]); err == nil && own[a] && !told[a] {
			told[a] = true
			b.WriteString(strings.Join(fields, "\t") + "\n")
		}
	}
	for _, p := range tableOf(pins) {
		for _, a := range p.Addrs {
			fmt.Fprintf(&b, "%s\t%s\n", a, p.Domain)
		}
	}
	return b.String()
}

// writeNames writes both files in place: they are bind mounts of the engine's,
// which a rename cannot replace. Before anybody reads them they need no blank lines.
func writeNames(class spec.Class, pins []spec.Pin, serving bool) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	old, err := os.ReadFile(hostsFile)
	if err != nil {
		return err
	}
	own, err := localAddrs()
	if err != nil {
		return err
	}
	write := writeInPlace
	if !serving {
		write = func(path string, _ []byte, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
	}
	if err := write(hostsFile, old, hostsText(string(old), hostname, own, pins)); err != nil {
		return err
	}
	if old, err = os.ReadFile(resolverFile); err != nil {
		return err
	}
	text := resolverText
	if class == spec.ClassPublic {
		text = resolverTextPublic
	}
	return write(resolverFile, old, text)
}

// writeInPlace puts text where old is. A program that reads the file meanwhile may
// find lines of both, and never a file that is empty or cut short: what old is longer
// becomes blank lines, since a file that shrinks under a reader gives zeros.
func writeInPlace(path string, old []byte, text string) error {
	if strings.TrimRight(string(old), "\n")+"\n" == text {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text+strings.Repeat("\n", max(0, len(old)-len(text)))), 0)
	return errors.Join(err, f.Close())
}
