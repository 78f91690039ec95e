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

// resolveNames asks for every name once, in parallel.
func resolveNames(ctx context.Context, g spec.Gate, ask func(context.Context, request) (reply, error)) map[string]resolution {
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
	distinct := map[string]bool{}
	for _, n := range g.Names {
		distinct[n.Domain] = true
	}
	for name := range distinct {
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

// decide makes pins of what the names resolved to. Names that are listed
// several times are one pin for each set of ports. A name that has no address
// which may be pinned is an error; a soft one stays closed and is reported.
func decide(g spec.Gate, results map[string]resolution, now time.Time) (pins []spec.Pin, unpinned []spec.Unpinned, err error) {
	never := never(g)
	var failures []error
	for _, n := range g.Names {
		r := results[n.Domain]
		addrs, err := admit(n, r, never)
		switch {
		case err == nil:
			pins = append(pins, spec.Pin{Domain: n.Domain, Addrs: addrs, Ports: sorted(n.Ports), AnyPort: n.AnyPort,
				TTL: r.ttl, At: now, Soft: n.Soft, Origin: n.Origin})
		case n.Soft:
			unpinned = append(unpinned, spec.Unpinned{Domain: n.Domain, Reason: err.Error(), Origin: n.Origin})
		default:
			failures = append(failures, fmt.Errorf("%s (%s): %w", n.Domain, n.Origin, err))
		}
	}
	return pins, unpinned, errors.Join(failures...)
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

// tableOf has one entry a name, with all its addresses.
func tableOf(pins []spec.Pin) []spec.Pin {
	var table []spec.Pin
	seen := map[string]bool{}
	for _, p := range pins {
		if !seen[p.Domain] {
			seen[p.Domain] = true
			table = append(table, p)
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
)

// hostsText is the hosts file: loopback, the container's own line as the
// engine wrote it to old, and the pins. Whatever else old had is gone.
func hostsText(old, hostname string, pins []spec.Pin) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	for line := range strings.Lines(old) {
		entry, _, _ := strings.Cut(line, "#")
		fields := strings.Fields(entry)
		if len(fields) > 1 && slices.Contains(fields[1:], hostname) && hostname != "localhost" {
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
// which a rename cannot replace.
func writeNames(pins []spec.Pin) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	old, err := os.ReadFile(hostsFile)
	if err != nil {
		return err
	}
	if err := os.WriteFile(hostsFile, []byte(hostsText(string(old), hostname, pins)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(resolverFile, []byte(resolverText), 0o644)
}
