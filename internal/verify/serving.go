package verify

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
)

// servingLook is how often to ask whether a service listens.
const servingLook = 100 * time.Millisecond

// serving waits until something listens at a TCP port of this namespace. It proves
// nothing: who is to be called by others is ready for them.
func serving(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return exit.Invalidf("corral-verify serving PORT", "serving takes one port")
	}
	port, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil || port == 0 {
		return exit.Invalidf("ports go from 1 to 65535", "%q is no port", args[0])
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)).String()
	look := time.NewTicker(servingLook)
	defer look.Stop()
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp4", at)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
