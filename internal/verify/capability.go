package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// noCapabilities: all five sets are empty in every visible process, whoever's it is.
// With Names, those are in no set of any.
func noCapabilities(ctx context.Context, c spec.Check, e *env) finding {
	if len(c.Names) > 0 {
		return e.withoutRights(ctx, c.Names)
	}
	return e.everyProcess(ctx, func(p process) string {
		for i, set := range p.caps {
			if set != 0 {
				return fmt.Sprintf("has %s %x", capSets[i], set)
			}
		}
		return ""
	})
}

// withoutRights: no visible process has any of these, or can come to have it.
func (e *env) withoutRights(ctx context.Context, names []string) finding {
	self, first, err := e.selfAndFirst()
	if err != nil {
		return untold("%v", err)
	}
	all, err := e.threads(ctx)
	if err != nil {
		return untold("%v", err)
	}
	for _, p := range append([]process{self, first}, all...) {
		if held, err := holds(p, names); err != nil {
			return untold("%v", err)
		} else if held != "" {
			return failed("%v has %s", p, held).advising("in compose.yaml: `cap_drop: [ALL]`")
		}
	}
	return ok()
}

// capabilities are the numbers of those that are asked for by name
// (linux/capability.h).
var capabilities = map[string]uint{
	"NET_RAW": unix.CAP_NET_RAW, "NET_ADMIN": unix.CAP_NET_ADMIN, "SETUID": unix.CAP_SETUID, "SETGID": unix.CAP_SETGID,
	"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_PTRACE": unix.CAP_SYS_PTRACE,
}

// holds names those of the capabilities that a process has, or can come to have,
// and the first set that each is in.
func holds(p process, names []string) (string, error) {
	var held []string
	for _, name := range names {
		n, known := capabilities[name]
		if !known {
			return "", fmt.Errorf("no capability is called %s", name)
		}
		for i, set := range p.caps {
			if set>>n&1 != 0 {
				held = append(held, name+" ("+capSets[i]+")")
				break
			}
		}
	}
	return strings.Join(held, ", "), nil
}

// noNewPrivs: set in every process here; aside, in this one and in the first.
func noNewPrivs(ctx context.Context, _ spec.Check, e *env) finding {
	return e.everyProcess(ctx, func(p process) string {
		if p.noNewPrivs != 1 {
			return "may gain privileges"
		}
		return ""
	}).advising(e.stackHint("in compose.yaml: `security_opt: [no-new-privileges]`"))
}

// seccompOn: every process here runs under a filter; aside, this one and the first.
func seccompOn(ctx context.Context, _ spec.Check, e *env) finding {
	return e.everyProcess(ctx, func(p process) string {
		if p.seccomp != 2 {
			return fmt.Sprintf("runs without a filter (Seccomp: %d)", p.seccomp)
		}
		return ""
	})
}

// iptablesRefused: the kernel lets this user neither ask nor change the packet
// filter, by either of its two interfaces. Only questions are asked.
func iptablesRefused(context.Context, spec.Check, *env) finding {
	if err := askNetfilter(); err == nil {
		return failed("nf_tables answers")
	} else if !refused(err) {
		return untold("nf_tables: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return untold("udp socket: %v", err)
	}
	defer unix.Close(fd)
	const iptSoGetInfo = 64 // IPT_SO_GET_INFO, linux/netfilter_ipv4/ip_tables.h
	var info [84]byte       // struct ipt_getinfo
	copy(info[:], "filter")
	size := uint32(len(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, iptSoGetInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	switch {
	case errno == 0:
		return failed("ip_tables answers")
	case !refused(errno) && errno != unix.ENOPROTOOPT:
		return untold("ip_tables: %v", errno)
	}
	return ok()
}

// askNetfilter asks nf_tables for its generation number, which needs
// CAP_NET_ADMIN like everything else there. nil means that it answered.
func askNetfilter() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	const size = unix.SizeofNlMsghdr + 4 // struct nfgenmsg: family, version, id
	var msg [size]byte
	*(*unix.NlMsghdr)(unsafe.Pointer(&msg)) = unix.NlMsghdr{
		Len:   size,
		Type:  unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN,
		Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK,
		Seq:   1,
	}
	if err := unix.Sendto(fd, msg[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var reply [4096]byte
	n, _, err := unix.Recvfrom(fd, reply[:], 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return errors.New("a short answer")
	}
	if h := (*unix.NlMsghdr)(unsafe.Pointer(&reply)); h.Type != unix.NLMSG_ERROR {
		return nil
	}
	if errno := *(*int32)(unsafe.Pointer(&reply[unix.SizeofNlMsghdr])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}

// rawSocketsRefused: no socket that writes its own headers.
func rawSocketsRefused(context.Context, spec.Check, *env) finding {
	return noSocket([]socketKind{
		{"raw ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"raw IP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW},
		{"raw TCP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP},
		{"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"packet", unix.AF_PACKET, unix.SOCK_DGRAM, 0},
	})
}

// vsockRefused: no socket to the hypervisor or to sibling machines.
func vsockRefused(context.Context, spec.Check, *env) finding {
	return noSocket([]socketKind{
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"vsock datagram", unix.AF_VSOCK, unix.SOCK_DGRAM, 0},
	})
}

type socketKind struct {
	name               string
	family, typ, proto int
}

// noSocket: the kernel refuses to make any of these. Every error but a lack of
// resources is such a refusal.
func noSocket(all []socketKind) finding {
	for _, k := range all {
		fd, err := unix.Socket(k.family, k.typ|unix.SOCK_CLOEXEC, k.proto)
		if err == nil {
			unix.Close(fd)
			return failed("a %s socket can be made", k.name)
		}
		if !refused(err) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EPROTONOSUPPORT) && !errors.Is(err, unix.ESOCKTNOSUPPORT) {
			return untold("%s socket: %v", k.name, err)
		}
	}
	return ok()
}

// refused says whether an error is a lack of rights.
func refused(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) }
