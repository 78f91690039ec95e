package verify

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// way is a datagram that a program gives a device, or an address of its own choice.
type way struct {
	what   string
	device int        // 0: as routed
	from   netip.Addr // zero: as routed
	to     netip.AddrPort
}

// boundSocketsClosed: what may stay inside is loopback's by device and by address
// both, and nobody speaks in the name of the engine's resolver. A datagram for
// loopback by way of an outer device, one for Probes.Unlisted by way of loopback, and
// one from the resolver's address to the gate's names, which answer anybody else.
func boundSocketsClosed(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil || !c.Probes.Unlisted.Is4() {
		return untold("no probes")
	}
	devices, err := net.Interfaces()
	if err != nil {
		return untold("%v", err)
	}
	ways := []way{{what: "from the engine's resolver", from: dockerResolver, to: e.dns}}
	for _, d := range devices {
		switch {
		case d.Flags&net.FlagUp == 0:
		case d.Flags&net.FlagLoopback != 0:
			ways = append(ways, way{what: "by " + d.Name, device: d.Index, to: netip.AddrPortFrom(c.Probes.Unlisted, 443)})
		default:
			ways = append(ways, way{what: "by " + d.Name, device: d.Index, to: e.dns})
		}
	}
	own, err := query(1, spec.InstanceName, dnsmessage.TypeTXT, dnsmessage.ClassCHAOS)
	if err != nil {
		return untold("%v", err)
	}
	f := ok()
	for _, w := range ways {
		probe, err := e.sendBy(ctx, w, own)
		switch {
		case err == nil:
			f.result, f.detail = spec.Untold, fmt.Sprintf("udp %v %s: not refused at once", w.to, w.what)
		case !refused(err):
			return untold("udp %v %s: %v", w.to, w.what, err)
		}
		f.probes = append(f.probes, probe)
	}
	return f
}

// sendBy sends one datagram from a port of probes; the error is that of sending.
func (e *env) sendBy(ctx context.Context, w way, payload []byte) (spec.Probe, error) {
	e.ports.slots <- struct{}{}
	defer func() { <-e.ports.slots }()
	tried := map[uint16]bool{}
	for {
		source, err := e.ports.take(target{"udp", w.to}, tried)
		if err != nil {
			return spec.Probe{}, err
		}
		err = sendByFrom(source, w, payload)
		e.ports.release(source)
		if err == unix.EADDRINUSE && ctx.Err() == nil {
			tried[source] = true
			continue
		}
		return spec.Probe{Proto: "udp", Source: source, Addr: w.to.Addr(), Port: w.to.Port()}, err
	}
}

func sendByFrom(source uint16, w way, payload []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	from := netip.IPv4Unspecified()
	if w.from.IsValid() {
		from = w.from
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(source), Addr: from.As4()}); err != nil {
		return err
	}
	var oob []byte
	if w.device != 0 { // unlike binding to a device it takes no right, in any kernel
		oob = unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(w.device)})
	}
	return unix.Sendmsg(fd, payload, oob, &unix.SockaddrInet4{Port: int(w.to.Port()), Addr: w.to.Addr().As4()}, 0)
}
