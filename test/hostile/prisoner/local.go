package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

var localAttempts = []attempt{
	{"loopback", "scan", "something of the gate's listens where we can reach it", loopbackScan},
	{"loopback", "bind-names-port", "we can pose as the gate's names", bindAny("127.0.0.1:53")},
	{"loopback", "bind-names-port-wildcard", "we can catch what the gate's names lose", bindAny("0.0.0.0:53")},
	{"loopback", "bind-docker-resolver", "we can pose as the engine's resolver to the gate", poseAsDocker},
	{"unix", "gate-socket", "the gate's control can be reached", unixConnect(spec.GateSocket)},
	{"unix", "docker-sockets", "the engine, and so the host, is ours", unixConnect("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock", "/run/docker/plugins")},
	{"unix", "host-services", "a service of the host takes orders", unixConnect("/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/stdout", "/run/snapd.socket", "/run/udev/control", "/dev/log", "/tmp/.X11-unix/X0", "/run/acpid.socket")},
	{"unix", "abstract", "somebody else's abstract socket answers", abstractSockets},

	{"netlink", "route", "we may change routes", ask(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, 12)},
	{"netlink", "address", "we may take another address", ask(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, 8)},
	{"netlink", "link", "we may change interfaces", ask(unix.NETLINK_ROUTE, unix.RTM_SETLINK, 16)},
	{"netlink", "rule", "we may change routing rules", ask(unix.NETLINK_ROUTE, unix.RTM_NEWRULE, 12)},
	{"netlink", "nf_tables", "the packet filter listens to us", ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 4)},
	{"netlink", "ipset", "the sets of pinned addresses listen to us", ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_IPSET<<8|1, 4)},
	{"netlink", "conntrack", "the table of connections listens to us", ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_CTNETLINK<<8|1, 4)},
	{"netlink", "log", "we may take over the gate's packet log", ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_ULOG<<8|1, 4)},
	{"netlink", "xfrm", "we may set up tunnels", ask(unix.NETLINK_XFRM, 0x10 /* XFRM_MSG_NEWSA */, 224)},
	{"netlink", "audit", "we may write the host's audit log", ask(unix.NETLINK_AUDIT, 1000 /* AUDIT_GET */, 0)},
	{"netlink", "destroy-socket", "we may end other programs' connections", destroySocket},
	{"netlink", "ip_tables", "the older packet filter listens to us", func(context.Context, *cell) result {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
			var info [84]byte // struct ipt_getinfo
			copy(info[:], "filter")
			size := uint32(len(info))
			const getInfo = 64 // IPT_SO_GET_INFO
			if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, getInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
				return judge(errno)
			}
			return out("it answers")
		})
	}},
}

// inetSocket is a line of /proc/net/tcp, udp or their likes for IPv6.
type inetSocket struct {
	local     netip.AddrPort
	listening bool
	uid       uint32
}

// inetTable reads one table of this network namespace; nothing if it cannot.
func inetTable(table string) []inetSocket {
	b, _ := os.ReadFile("/proc/net/" + table)
	return parseInet(string(b))
}

func parseInet(s string) []inetSocket {
	var all []inetSocket
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		addr, port, _ := strings.Cut(f[1], ":")
		raw, err := hex.DecodeString(addr)
		n, perr := strconv.ParseUint(port, 16, 16)
		uid, uerr := strconv.ParseUint(f[7], 10, 32)
		if err != nil || perr != nil || uerr != nil || len(raw) != 4 && len(raw) != 16 {
			continue
		}
		for word := raw; len(word) > 0; word = word[4:] {
			binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
		}
		a, _ := netip.AddrFromSlice(raw)
		all = append(all, inetSocket{netip.AddrPortFrom(a.Unmap(), uint16(n)), f[3] == "0A", uint32(uid)})
	}
	return all
}

// loopbackScan connects to every port of 127.0.0.1, those first at which somebody
// is known to listen; only what another user holds counts, and the gate's names
// are meant for us.
func loopbackScan(ctx context.Context, _ *cell) result {
	foreign := map[int]uint32{}
	var ports []int
	for _, s := range append(inetTable("tcp"), inetTable("tcp6")...) {
		if s.listening && s.uid != uint32(unix.Getuid()) {
			foreign[int(s.local.Port())] = s.uid
			ports = append(ports, int(s.local.Port()))
		}
	}
	for port := range 1 << 16 {
		ports = append(ports, port)
	}
	const workers = 8
	results := make(chan result, workers)
	for first := range workers {
		go func() {
			for i := first; i < len(ports); i += workers {
				port := ports[i]
				err := connectLoopback(port)
				if uid, isForeign := foreign[port]; err == nil && isForeign && port != 53 {
					results <- out("port %d answers, uid %d", port, uid)
					return
				}
				if ctx.Err() != nil {
					results <- held("not all ports were tried in time; none answers of those at which somebody listens")
					return
				}
			}
			results <- held("nothing but the gate's names answers")
		}()
	}
	last := noTarget
	for range workers {
		if last = worst(<-results, last); last.outcome == escaped {
			break
		}
	}
	return last
}

func connectLoopback(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
}

// bindAny tries to take a port by TCP and UDP, sharing it if need be.
func bindAny(where string) func(context.Context, *cell) result {
	a := netip.MustParseAddrPort(where)
	return func(context.Context, *cell) result {
		if !held53() {
			return absent("nobody holds %v here", gateNames)
		}
		return each([]int{unix.SOCK_STREAM, unix.SOCK_DGRAM}, func(typ int) result {
			return withSocket(unix.AF_INET, typ, 0, func(fd int) result {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
				return judge(unix.Bind(fd, ip4(a)))
			})
		})
	}
}

// poseAsDocker takes the engine's resolver's address, which anybody may, and
// waits for somebody to ask it.
func poseAsDocker(ctx context.Context, _ *cell) result {
	return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) result {
		if err := unix.Bind(fd, ip4(at(dockerResolver, 53))); err != nil {
			return held("%v", err)
		}
		b := make([]byte, 1500)
		for ctx.Err() == nil {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				break
			}
			if !strings.HasPrefix(string(b[:n]), ourID) {
				return out("somebody asked us")
			}
		}
		return held("bound, and nobody asks")
	})
}

func held53() bool {
	for _, s := range inetTable("udp") {
		if s.local == gateNames {
			return true
		}
	}
	return false
}

func unixConnect(paths ...string) func(context.Context, *cell) result {
	return func(context.Context, *cell) result {
		return each(paths, func(p string) result {
			return withSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0, func(fd int) result {
				r := judge(unix.Connect(fd, &unix.SockaddrUnix{Name: p}))
				r.detail = p + ": " + r.detail
				return r
			})
		})
	}
}

// abstractSockets connects to every abstract socket of the namespace; one that
// another user holds is a way to somebody.
func abstractSockets(context.Context, *cell) result {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return judge(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		_, name, found := strings.Cut(strings.TrimSuffix(line, "\n"), " @")
		if !found {
			continue
		}
		n++
		r := withSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0, func(fd int) result {
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name}); err != nil {
				return judge(err)
			}
			peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
			if err == nil && peer.Uid == uint32(unix.Getuid()) {
				return held("@%s is our own", name)
			}
			return out("@%s answers", name)
		})
		if r.outcome == escaped {
			return r
		}
	}
	return held("%d abstract sockets, none of another user", n)
}

// ask sends one request without content. The kernel looks at rights first.
func ask(protocol int, typ uint16, size int) func(context.Context, *cell) result {
	return func(context.Context, *cell) result {
		return netlink(protocol, typ, make([]byte, size), refusal)
	}
}

func netlink(protocol int, typ uint16, body []byte, verdict func(error) result) result {
	return withSocket(unix.AF_NETLINK, unix.SOCK_RAW, protocol, func(fd int) result {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		b = binary.NativeEndian.AppendUint32(b, 1)
		b = append(binary.NativeEndian.AppendUint32(b, 0), body...)
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return judge(err)
		}
		reply := make([]byte, 8192)
		n, _, err := unix.Recvfrom(fd, reply, 0)
		if err != nil || n < unix.SizeofNlMsghdr+4 {
			return held("no answer: %v", err)
		}
		if binary.NativeEndian.Uint16(reply[4:]) != unix.NLMSG_ERROR {
			return out("it answers")
		}
		if errno := int32(binary.NativeEndian.Uint32(reply[unix.SizeofNlMsghdr:])); errno != 0 {
			return verdict(unix.Errno(-errno))
		}
		return out("it obeys")
	})
}

// destroySocket asks for the end of a listener of our own.
func destroySocket(context.Context, *cell) result {
	return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) result {
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return held("bind: %v", err)
		}
		if err := unix.Listen(fd, 1); err != nil {
			return held("listen: %v", err)
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return held("%v", err)
		}
		// struct inet_diag_req_v2
		b := []byte{unix.AF_INET, unix.IPPROTO_TCP, 0, 0, 0xff, 0xff, 0xff, 0xff}
		b = binary.BigEndian.AppendUint16(b, uint16(name.(*unix.SockaddrInet4).Port))
		b = append(b, 0, 0, 127, 0, 0, 1)
		b = append(b, make([]byte, 12+16+4)...)
		b = append(b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff) // any cookie
		return netlink(unix.NETLINK_SOCK_DIAG, 21 /* SOCK_DESTROY */, b, judge)
	})
}

// foreignProcesses are the visible ones of another user or with another root.
func foreignProcesses() []int {
	var pids []int
	own, _ := os.Stat("/proc/self/root/")
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			continue
		}
		root, err := os.Stat(fmt.Sprintf("%s/root/", dir))
		owner := int(st.Uid) // of ours too, by its real or its effective user
		if owner != unix.Getuid() && owner != unix.Geteuid() || err == nil && own != nil && !os.SameFile(own, root) {
			pids = append(pids, pid)
		}
	}
	return pids
}
