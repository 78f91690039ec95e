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

// gateControlUnreachable: in this network namespace nobody but this user listens,
// save for the gate's names and the engine's resolver, and what listens as this user a
// process here holds, or what serves at Port may; the gate's files and processes are not visible.
func gateControlUnreachable(ctx context.Context, c spec.Check, e *env) finding {
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
	if f := e.lasting(ctx, func() (map[string]finding, error) { return e.foreignSockets(self.uids[1], c.Port) }); f.result != spec.OK {
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

// foreignSockets are those that wait for whoever comes and are somebody else's: of
// another uid, or of this one in a process that is not to be seen here, or abstract
// ones of such; and the socket files of another. A service that serves at a port may be
// a program that lets nobody look, as its own children are not to.
func (e *env) foreignSockets(uid uint32, serves uint16) (map[string]finding, error) {
	foreign, unclaimed := map[string]finding{}, map[string]string{}
	planned := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "udplite", "udplite6"} {
		sockets, err := e.inetSockets(table)
		if err != nil {
			return nil, err
		}
		for _, s := range sockets {
			switch {
			case s.state != tcpListen && s.state != udpUnbound:
			case s.uid == uid && e.aside: // others behind the same gate may have the same uid
			case s.uid == uid:
				unclaimed[s.inode] = fmt.Sprintf("%s %v listens as this user", table, s.local)
				planned[s.inode] = table == "tcp" && serves != 0 && s.local.Port() == serves
			case s.local == e.dns || s.local.Addr() == dockerResolver:
			default:
				foreign[s.inode] = failed("%s %v listens, uid %d", table, s.local, s.uid)
			}
		}
	}
	sockets, err := e.unixSockets()
	if err != nil {
		return nil, err
	}
	var files []unixSocket
	for _, s := range sockets {
		switch {
		case !s.listening:
		case s.path[0] == '@':
			unclaimed[s.inode] = "abstract socket " + s.path + " is there"
		default:
			files = append(files, s)
		}
	}
	if len(unclaimed)+len(files) == 0 {
		return foreign, nil
	}
	all, err := e.processes()
	if err != nil {
		return nil, err
	}
	held, closed := e.held(all, uid)
	for inode, words := range unclaimed {
		switch {
		case held[inode]:
		case len(closed) > 0 && planned[inode]:
		case len(closed) > 0:
			foreign[inode] = untold("%s, and whose it is %v may know, which lets nobody look at what it holds", words, closed[0])
		default:
			foreign[inode] = failed("%s and is somebody else's: no process here holds it", words)
		}
	}
	for _, s := range files {
		// A path of another file system cannot be reached.
		var st unix.Stat_t
		if !held[s.inode] && unix.Lstat(e.path(s.path), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK && st.Uid != uid {
			foreign[s.inode] = failed("socket %s is somebody else's", s.path)
		}
	}
	return foreign, nil
}
