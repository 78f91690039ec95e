package render

import (
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// sockets are the families a service may open. Every other one either leaves
// past the gate's rules or reaches into the kernel for nothing an agent needs:
// vsock talks to the hypervisor, packet to the wire, alg and the rest have
// been the way into kernels before.
var sockets = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// Seccomp is the engine's default profile of the named module's version with
// things taken away: socket families other than those above; socketcall,
// whose families a filter cannot see; options of IP headers, by which a packet
// to a permitted address asks to be passed on to another one; the 32-bit
// sub-architectures, which reach the same kernel by calls that the filter
// numbers otherwise. Nothing is ever added, so it is at least as narrow on every
// engine.
func Seccomp() ([]byte, error) {
	p := seccomp.DefaultProfile()
	for i := range p.ArchMap {
		p.ArchMap[i].SubArches = nil
	}
	kept, options := 0, 0
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(s *seccomp.Syscall) bool {
		if slices.Contains(s.Names, "socket") && !narrow(s) {
			if len(s.Names) > 1 {
				s.Names = without(s.Names, "socket")
				return false
			}
			return true
		}
		if slices.Contains(s.Names, "socket") {
			kept++
		}
		if slices.Contains(s.Names, "setsockopt") && len(s.Args) == 0 {
			options++
		}
		s.Names = without(without(s.Names, "socketcall"), "setsockopt")
		return len(s.Names) == 0
	})
	if kept == 0 {
		return nil, fmt.Errorf("seccomp: the default profile names no socket family that a service needs: its shape has changed")
	}
	if options != 1 {
		return nil, fmt.Errorf("seccomp: the default profile does not allow setsockopt once and for all: its shape has changed")
	}
	p.Syscalls = append(p.Syscalls, unlessIPOptions()...)
	return spec.Encode(p), nil
}

// unlessIPOptions allow setsockopt but for level IPPROTO_IP with option
// IP_OPTIONS. A filter compares 64 bits of an argument of which the kernel takes
// 32, and can mask them only to find them equal: so each rule is one bit in which
// the level, or the option, is another.
func unlessIPOptions() []*seccomp.Syscall {
	var rules []*seccomp.Syscall
	for _, arg := range []struct {
		index uint
		not   uint64
	}{{1, unix.IPPROTO_IP}, {2, unix.IP_OPTIONS}} {
		for bit := uint64(1); bit < 1<<32; bit <<= 1 {
			rules = append(rules, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{"setsockopt"}, Action: specs.ActAllow,
				Args: []specs.LinuxSeccompArg{{Index: arg.index, Value: bit, ValueTwo: ^arg.not & bit, Op: specs.OpMaskedEqual}}}})
		}
	}
	return rules
}

// narrow reports whether a rule for socket admits wanted families only.
func narrow(s *seccomp.Syscall) bool {
	if len(s.Args) != 1 || s.Args[0].Index != 0 {
		return false
	}
	a := s.Args[0]
	switch a.Op {
	case specs.OpEqualTo:
		return slices.Contains(sockets, a.Value)
	case specs.OpLessThan: // unspecified, unix and inet, in today's profile
		return a.Value <= unix.AF_INET+1
	}
	return false
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}
