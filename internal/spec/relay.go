package spec

import (
	"fmt"
	"io"
	"net/netip"
	"time"
)

// What a relay and those who run it agree on.
const (
	// RelaySocket is a relay's control socket, in its own file system only.
	RelaySocket = "/run/corral/relay.sock"
	// RelayReady is the line a relay prints when it listens and can be told its
	// sources. Until it is told, it accepts nobody.
	RelayReady = "corral-gate: relay ready"
	// RelayTaken begins the error of a relay whose address somebody else
	// listens on.
	RelayTaken = "somebody else listens on "
	// RelayWatch is how long a connection to a host service is watched before it
	// counts as answered. The relay accepts before it has asked the service, and
	// resets when nobody is there.
	RelayWatch = 300 * time.Millisecond
	// RelayDial is what a relay gives a target to accept: less than RelayWatch, so
	// that its reset arrives while somebody watches. On loopback who accepts does
	// so at once; only where nobody takes connections any more is there silence.
	RelayDial = RelayWatch * 2 / 3
)

// Relay is whom a relay accepts: the addresses of the gates that declared its
// port, all of them, each once. None is a list too: nobody.
type Relay struct {
	Version int          `json:"version"`
	Sources []netip.Addr `json:"sources"`
}

// ParseRelay decodes and checks a Relay document.
func ParseRelay(r io.Reader) (Relay, error) {
	var d Relay
	if err := Decode(r, &d); err != nil {
		return Relay{}, fmt.Errorf("relay spec: %w", err)
	}
	if err := d.check(); err != nil {
		return Relay{}, fmt.Errorf("relay spec: %w", err)
	}
	return d, nil
}

func (d Relay) check() error {
	if err := checkVersion("it", d.Version); err != nil {
		return err
	}
	seen := map[netip.Addr]bool{}
	for _, a := range d.Sources {
		if !a.Is4() || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a == broadcast {
			return fmt.Errorf("source %v: it must be the IPv4 address of a gate", a)
		}
		if seen[a] {
			return fmt.Errorf("source %v is listed twice", a)
		}
		seen[a] = true
	}
	return nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
