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
// whose families a filter cannot see; the 32-bit sub-architectures, which
// reach the same kernel by calls that the filter numbers otherwise. Nothing is
// ever added, so it is at least as narrow on every engine.
func Seccomp() ([]byte, error) {
	p := seccomp.DefaultProfile()
	for i := range p.ArchMap {
		p.ArchMap[i].SubArches = nil
	}
	kept := 0
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
		s.Names = without(s.Names, "socketcall")
		return len(s.Names) == 0
	})
	if kept == 0 {
		return nil, fmt.Errorf("seccomp: the default profile names no socket family that a service needs: its shape has changed")
	}
	return spec.Encode(p), nil
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
