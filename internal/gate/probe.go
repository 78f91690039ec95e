package gate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// probeTimeout is far more than a refusal takes and less than a lost packet.
const probeTimeout = time.Second

// ownMark is that of the gate's own connections to what a policy grants, so that
// they are not taken for a service's: no service has the right to set one. It says
// "corr".
const ownMark = 0x636f7272

// ownDialer makes connections that are no news.
func ownDialer() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, ownMark))
		})
		return errors.Join(err, failed)
	}}
}

// probe sends one packet from a probe port and returns the error of connecting
// (TCP) or of sending (UDP). Ports are tried from the last downwards, to
// keep out of the way of a checker that goes up.
func probe(ctx context.Context, proto string, to netip.AddrPort) (spec.Probe, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p := spec.Probe{Proto: proto, Addr: to.Addr(), Port: to.Port()}
	local := netip.IPv4Unspecified()
	if to.Addr().Is6() {
		local = netip.IPv6Unspecified()
	}
	for p.Source = spec.ProbePortLast; p.Source >= spec.ProbePortFirst; p.Source-- {
		d := net.Dialer{}
		from := netip.AddrPortFrom(local, p.Source)
		if proto == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		conn, err := d.DialContext(ctx, proto, to.String())
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return p, err
		}
		defer conn.Close()
		if proto == "udp" {
			_, err = conn.Write([]byte{0})
		}
		return p, err
	}
	return p, errors.New("every probe port is in use")
}
