package render

import (
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// opened is a kind of socket that a service may open: every other one either
// leaves past the gate's rules or reaches into the kernel for nothing that an
// agent needs. The kernel loads the module of whatever protocol is asked for, so
// what is not opened is not loaded on somebody's behalf either.
type opened struct {
	what      string
	family    uint64
	kind      uint64   // SOCK_STREAM and the like; 0 is any
	protocols []uint64 // nil is any
	why       string
}

// sockets are all of them.
var sockets = []opened{
	{"UNIX", unix.AF_UNIX, 0, nil, "programs of the service talk to each other; which files are there the mounts say"},
	{"TCP", unix.AF_INET, unix.SOCK_STREAM, []uint64{0, unix.IPPROTO_TCP}, "what a policy grants is TCP, and so are servers on loopback"},
	{"UDP", unix.AF_INET, unix.SOCK_DGRAM, []uint64{0, unix.IPPROTO_UDP}, "lookups go to the gate's names server; the gate refuses all other UDP"},
	{"ICMP echo", unix.AF_INET, unix.SOCK_DGRAM, []uint64{unix.IPPROTO_ICMP}, "ping gets the gate's refusal, or loopback's answer, and not a puzzle"},
	{"TCP, IPv6", unix.AF_INET6, unix.SOCK_STREAM, []uint64{0, unix.IPPROTO_TCP}, "servers listen for both versions by one such socket; nothing leaves by IPv6"},
	{"UDP, IPv6", unix.AF_INET6, unix.SOCK_DGRAM, []uint64{0, unix.IPPROTO_UDP}, "resolvers and runtimes try it first and go on"},
	{"ICMP echo, IPv6", unix.AF_INET6, unix.SOCK_DGRAM, []uint64{unix.IPPROTO_ICMPV6}, "as ICMP echo"},
	{"netlink, routes", unix.AF_NETLINK, 0, []uint64{unix.NETLINK_ROUTE},
		"libraries list interfaces and addresses by it, libc when it looks a name up. The other protocols of netlink tell of the host's devices, ask the packet filter, or load modules"},
}

// refused are calls that a service may not make, whether the default profile has
// them, has them for holders of a capability, which no service is, or gets them in
// a later version.
var refused = []struct {
	calls []string
	why   string
}{
	{[]string{"socketcall"}, "opens sockets by a number in memory, where a filter does not see the family"},
	{[]string{"modify_ldt"}, "makes segments for 16-bit and 32-bit programs, which are none here, and has been a way into kernels"},
	{[]string{"name_to_handle_at", "open_by_handle_at"}, "a handle names a file by its number, past every mount; it leads to the host's"},
	{[]string{"fanotify_init", "fanotify_mark"}, "watches whole file systems, the host's among them"},
	{[]string{"io_uring_setup", "io_uring_enter", "io_uring_register"}, "does what calls do where no filter sees them, and has been a way into kernels"},
	{[]string{"userfaultfd"}, "holds the kernel up in the middle of a copy, as long as one likes: a help to exploits"},
	{[]string{"add_key", "keyctl", "request_key"}, "keyrings know no containers: those of a user are the same on the host"},
	{[]string{"bpf", "perf_event_open"}, "runs code in the kernel, or watches it; a way into kernels"},
	{[]string{"mount", "umount", "umount2", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree", "mount_setattr", "pivot_root", "chroot"}, "what is mounted where is the plan's"},
	{[]string{"unshare", "setns"}, "a user namespace of one's own gives every capability in it, and with them most of what kernels had to mend; of the others the gate's must not be left"},
	{[]string{"quotactl", "quotactl_fd", "acct", "swapon", "swapoff", "syslog", "lookup_dcookie"}, "is about the whole machine"},
	{[]string{"sethostname", "setdomainname", "vhangup"}, "is the engine's"},
	{[]string{"settimeofday", "stime", "clock_settime", "clock_settime64"}, "time is the machine's"},
	{[]string{"reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "iopl", "ioperm"}, "puts other code in the kernel's place, or goes round it"},
	{[]string{"kcmp", "pidfd_getfd", "process_madvise"}, "reaches into other processes, beyond what debuggers need"},
	{[]string{"get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"}, "steers memory between the nodes of a machine; has been a way into kernels"},
	{[]string{"lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules"}, "is about the machine's security modules"},
}

// kept are calls that one might look for among those refused.
var kept = []struct {
	calls []string
	why   string
}{
	{[]string{"ptrace", "process_vm_readv", "process_vm_writev"}, "debuggers and strace are ordinary tools. They reach processes of the same user in the same container, which has nothing that the agent has not"},
	{[]string{"seccomp", "prctl", "landlock_create_ruleset"}, "tools and browsers put themselves under filters of their own, which only take away"},
	{[]string{"personality"}, "five values of it, none of which turns the layout of memory's randomness off"},
	{[]string{"memfd_create", "execveat"}, "runtimes keep and run code in memory; no file system is mounted against execution here"},
	{[]string{"io_setup", "io_submit"}, "databases read and write by it; it is not io_uring"},
	{[]string{"mknod", "mknodat"}, "makes named pipes; device nodes take a capability"},
	{[]string{"ioctl"}, "terminals are set by it. What a program pushes into its own terminal another program of the container reads, not the person's shell"},
	{[]string{"clone"}, "starts processes and threads, without the flags that make namespaces; clone3, whose flags a filter does not see, is said not to exist"},
	{[]string{"setuid", "setgid", "setgroups", "capset"}, "without a capability they change nothing, and programs call them to be sure of that"},
}

// Seccomp is the engine's default profile of the named module's version with
// things taken away: sockets other than the above, and pairs of them other than
// UNIX; the calls that are refused; rules for holders of a capability; options of IP
// headers, by which a packet to a permitted address asks to be passed on to another
// one; the 32-bit sub-architectures, which reach the same kernel by calls that the
// filter numbers otherwise. Nothing is ever added, so it is at least as narrow on
// every engine.
func Seccomp() ([]byte, error) {
	p := seccomp.DefaultProfile()
	for i := range p.ArchMap {
		p.ArchMap[i].SubArches = nil
	}
	for _, s := range sockets {
		if !slices.ContainsFunc(p.Syscalls, func(r *seccomp.Syscall) bool { return admits(r, s.family) }) {
			return nil, fmt.Errorf("seccomp: the default profile opens no %s socket: its shape has changed", s.what)
		}
	}
	for _, name := range []string{"socketpair", "setsockopt"} {
		if !slices.ContainsFunc(p.Syscalls, func(r *seccomp.Syscall) bool { return freely(r) && slices.Contains(r.Names, name) }) {
			return nil, fmt.Errorf("seccomp: the default profile does not allow %s once and for all: its shape has changed", name)
		}
	}
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(r *seccomp.Syscall) bool {
		if r.Includes != nil && len(r.Includes.Caps) > 0 {
			return true
		}
		if r.Excludes != nil { // what is for those without capabilities is for everybody
			r.Excludes.Caps = nil
			if len(r.Excludes.Arches) == 0 && r.Excludes.MinKernel == nil {
				r.Excludes = nil
			}
		}
		r.Names = slices.DeleteFunc(r.Names, func(name string) bool { return narrowed(name) || isRefused(name) })
		return len(r.Names) == 0
	})
	p.Syscalls = append(p.Syscalls, openings()...)
	p.Syscalls = append(p.Syscalls, allow("socketpair", equal(0, unix.AF_UNIX)))
	p.Syscalls = append(p.Syscalls, unlessIPOptions()...)
	return spec.Encode(p), nil
}

// narrowed are the calls whose rules are ours.
func narrowed(name string) bool {
	return name == "socket" || name == "socketpair" || name == "setsockopt"
}

func isRefused(name string) bool {
	for _, r := range refused {
		if slices.Contains(r.calls, name) {
			return true
		}
	}
	return false
}

// freely reports whether a rule allows its calls to everybody, whatever the
// arguments.
func freely(r *seccomp.Syscall) bool {
	return r.Action == specs.ActAllow && len(r.Args) == 0 && r.Includes == nil && r.Excludes == nil
}

// admits reports whether a rule of the default profile lets everybody open
// sockets of a family.
func admits(r *seccomp.Syscall, family uint64) bool {
	if !slices.Contains(r.Names, "socket") || r.Action != specs.ActAllow || r.Includes != nil || r.Excludes != nil || len(r.Args) != 1 || r.Args[0].Index != 0 {
		return false
	}
	switch a := r.Args[0]; a.Op {
	case specs.OpEqualTo:
		return a.Value == family
	case specs.OpLessThan:
		return family < a.Value
	}
	return false
}

// openings are the rules of socket.
func openings() []*seccomp.Syscall {
	const typeMask = 0xf // SOCK_TYPE_MASK, linux/net.h: beside it are SOCK_CLOEXEC and SOCK_NONBLOCK
	var rules []*seccomp.Syscall
	for _, s := range sockets {
		args := []specs.LinuxSeccompArg{equal(0, s.family)}
		if s.kind != 0 {
			args = append(args, masked(1, typeMask, s.kind))
		}
		if s.protocols == nil {
			rules = append(rules, allow("socket", args...))
		}
		for _, protocol := range s.protocols {
			rules = append(rules, allow("socket", append(slices.Clone(args), equal(2, protocol))...))
		}
	}
	return rules
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
			rules = append(rules, allow("setsockopt", masked(arg.index, bit, ^arg.not&bit)))
		}
	}
	return rules
}

// allow is a rule that allows a call if each of the arguments is as said.
func allow(name string, args ...specs.LinuxSeccompArg) *seccomp.Syscall {
	return &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}}
}

func equal(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}
