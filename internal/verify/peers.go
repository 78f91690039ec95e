package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// peerClosed: nothing answers at Addr on Port and Ports, by TCP or UDP. Addr is
// the gateway, or another sandbox.
func peerClosed(ctx context.Context, c spec.Check, e *env) finding {
	ports := c.Ports
	if c.Port != 0 {
		ports = append([]uint16{c.Port}, ports...)
	}
	if !c.Addr.IsValid() {
		if _, err := e.routes(); err != nil {
			return untold("%v", err)
		}
	}
	return e.closed(ctx, unique(targets(tcpAndUDP, []netip.Addr{c.Addr}, ports...)), somePayload)
}

// gateControlUnreachable: in this network namespace nobody but this user
// listens, save for the gate's names and the engine's resolver; the gate's
// files and processes are not visible.
func gateControlUnreachable(_ context.Context, _ spec.Check, e *env) finding {
	switch _, err := os.Lstat(e.path("/run/corral")); {
	case err == nil:
		return failed("/run/corral exists")
	case !errors.Is(err, fs.ErrNotExist):
		return untold("%v", err)
	}
	self, err := e.process("self")
	if err != nil {
		return untold("%v", err)
	}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "udplite", "udplite6"} {
		sockets, err := e.inetSockets(table)
		if err != nil {
			return untold("%v", err)
		}
		for _, s := range sockets {
			if s.state != tcpListen && s.state != udpUnbound || s.uid == self.uids[1] {
				continue
			}
			if s.local == e.dns || s.local.Addr() == dockerResolver {
				continue
			}
			return failed("%s %v listens, uid %d", table, s.local, s.uid)
		}
	}
	if f := e.foreignUnixSockets(self.uids[1]); f.result != spec.OK {
		return f
	}
	processes, err := e.processes()
	if err != nil {
		return untold("%v", err)
	}
	for _, p := range processes {
		if p.uids[1] == spec.WorkerUID || p.name == "corral-gate" && p.uids[1] != spec.CarrierUID {
			return failed("%v is the gate's", p)
		}
	}
	return ok()
}

// foreignUnixSockets: no abstract socket that no process of uid visible here
// holds, and no socket file of another.
func (e *env) foreignUnixSockets(uid uint32) finding {
	sockets, err := e.unixSockets()
	if err != nil {
		return untold("%v", err)
	}
	var own map[string]bool
	for _, s := range sockets {
		if !s.listening {
			continue
		}
		if own == nil {
			own = e.ownSockets()
		}
		if own[s.inode] {
			continue
		}
		if s.path[0] == '@' {
			return failed("abstract socket %s is somebody else's", s.path)
		}
		// A path of another file system cannot be reached.
		var st unix.Stat_t
		if unix.Lstat(e.path(s.path), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK && st.Uid != uid {
			return failed("%s", fmt.Sprintf("socket %s is somebody else's", s.path))
		}
	}
	return ok()
}
