package render

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// profiles are ours and the engine's default as an engine makes filters of them,
// for a process with some capabilities.
func profiles(t *testing.T, capabilities ...string) (ours, theirs *specs.LinuxSeccomp) {
	t.Helper()
	rs := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
	b, err := Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	if ours, err = seccomp.LoadProfile(string(b), rs); err != nil {
		t.Fatal(err)
	}
	if theirs, err = seccomp.GetDefaultProfile(rs); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// allows reports whether a filter lets a call through: one of its rules does, by
// all that it says of the arguments.
func allows(p *specs.LinuxSeccomp, name string, args ...uint64) bool {
	args = append(args, make([]uint64, 6)...)
	return slices.ContainsFunc(p.Syscalls, func(r specs.LinuxSyscall) bool {
		return r.Action == specs.ActAllow && slices.Contains(r.Names, name) && !slices.ContainsFunc(r.Args, func(a specs.LinuxSeccompArg) bool { return !holds(a, args[a.Index]) })
	})
}

func holds(a specs.LinuxSeccompArg, value uint64) bool {
	switch a.Op {
	case specs.OpEqualTo:
		return value == a.Value
	case specs.OpLessThan:
		return value < a.Value
	case specs.OpMaskedEqual:
		return value&a.Value == a.ValueTwo
	}
	panic(fmt.Sprintf("no rule has %s", a.Op))
}

// each calls f with all combinations of arguments at which rules of either may
// differ, and those next to them.
func each(name string, f func(args ...uint64), all ...*specs.LinuxSeccomp) {
	values := [3][]uint64{{0}, {0}, {0}}
	for _, p := range all {
		for _, r := range p.Syscalls {
			for _, a := range r.Args {
				if slices.Contains(r.Names, name) && a.Index < 3 {
					values[a.Index] = append(values[a.Index], a.Value-1, a.Value, a.Value+1, a.ValueTwo, a.Value|1<<32)
				}
			}
		}
	}
	for i := range values {
		slices.Sort(values[i])
		values[i] = slices.Compact(values[i])
	}
	for _, a := range values[0] {
		for _, b := range values[1] {
			for _, c := range values[2] {
				f(a, b, c)
			}
		}
	}
}

// Whatever capabilities a process has, whatever it calls, and with what: ours lets
// nothing through that the engine's default does not.
func TestSeccompOnlyRemoves(t *testing.T) {
	t.Parallel()
	every := []string{}
	for _, r := range seccomp.DefaultProfile().Syscalls {
		if r.Includes != nil {
			every = append(every, r.Includes.Caps...)
		}
	}
	slices.Sort(every)
	every = slices.Compact(every)
	sets := [][]string{nil, every}
	for _, c := range every {
		sets = append(sets, []string{c})
	}
	for _, set := range sets {
		ours, theirs := profiles(t, set...)
		if ours.DefaultAction != specs.ActErrno || ours.DefaultAction != theirs.DefaultAction {
			t.Fatalf("what no rule allows is %s", ours.DefaultAction)
		}
		names := map[string]bool{}
		for _, r := range ours.Syscalls {
			if r.Action != specs.ActAllow && r.Action != specs.ActErrno {
				t.Errorf("%v: %s", r.Names, r.Action)
			}
			for i, a := range r.Args { // an engine makes alternatives of two on one argument
				if slices.ContainsFunc(r.Args[:i], func(b specs.LinuxSeccompArg) bool { return a.Index == b.Index }) {
					t.Errorf("%v: two conditions on argument %d", r.Names, a.Index)
				}
			}
			for _, n := range r.Names {
				names[n] = true
			}
		}
		for name := range names {
			if slices.ContainsFunc(theirs.Syscalls, func(r specs.LinuxSyscall) bool {
				return len(r.Args) == 0 && r.Action == specs.ActAllow && slices.Contains(r.Names, name)
			}) {
				continue // it is all allowed there
			}
			each(name, func(args ...uint64) {
				if allows(ours, name, args...) && !allows(theirs, name, args...) {
					t.Fatalf("with %v: %s%v is allowed, and not by default", set, name, args)
				}
			}, ours, theirs)
		}
	}
}

// A capability that somebody adds to a container brings no call with it.
func TestSeccompKnowsNoCapabilities(t *testing.T) {
	t.Parallel()
	none, _ := profiles(t)
	all, _ := profiles(t, "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_CHROOT", "CAP_DAC_READ_SEARCH", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_MODULE", "CAP_SYS_BOOT")
	a, _ := json.Marshal(none)
	b, _ := json.Marshal(all)
	if string(a) != string(b) {
		t.Error("the filter is another one with capabilities")
	}
}

func TestSeccompSockets(t *testing.T) {
	t.Parallel()
	p, _ := profiles(t)
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	for _, tt := range []struct {
		family, kind, protocol uint64
		want                   bool
	}{
		{unix.AF_UNIX, unix.SOCK_STREAM, 0, true}, {unix.AF_UNIX, unix.SOCK_SEQPACKET | flags, 1, true},
		{unix.AF_INET, unix.SOCK_STREAM, 0, true}, {unix.AF_INET, unix.SOCK_STREAM | flags, unix.IPPROTO_TCP, true},
		{unix.AF_INET, unix.SOCK_DGRAM, 0, true}, {unix.AF_INET, unix.SOCK_DGRAM | flags, unix.IPPROTO_UDP, true}, {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, true},
		{unix.AF_INET6, unix.SOCK_STREAM | flags, 0, true}, {unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6, true},
		{unix.AF_NETLINK, unix.SOCK_RAW | flags, unix.NETLINK_ROUTE, true}, {unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_ROUTE, true},

		{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP, false}, {unix.AF_INET, unix.SOCK_RAW | flags, unix.IPPROTO_ICMP, false}, {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, false},
		{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, false}, {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, false}, {unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP, false},
		{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, false}, {unix.AF_INET, unix.SOCK_DCCP, unix.IPPROTO_DCCP, false}, {unix.AF_INET, unix.SOCK_PACKET, 0, false},
		{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP + 1, false}, {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6, false},
		{unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW, false}, {unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, false},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, false}, {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG, false}, {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT, false},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE + 1, false}, {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC, false},
		{unix.AF_UNSPEC, unix.SOCK_STREAM, 0, false}, {unix.AF_AX25, unix.SOCK_STREAM, 0, false}, {unix.AF_PACKET, unix.SOCK_RAW, 0, false}, {unix.AF_VSOCK, unix.SOCK_STREAM, 0, false},
		{unix.AF_ALG, unix.SOCK_SEQPACKET, 0, false}, {unix.AF_TIPC, unix.SOCK_STREAM, 0, false}, {unix.AF_KEY, unix.SOCK_RAW, 2, false}, {unix.AF_SMC, unix.SOCK_STREAM, 0, false}, {unix.AF_XDP, unix.SOCK_RAW, 0, false},
		{1<<32 | unix.AF_INET, unix.SOCK_STREAM, 0, false},
	} {
		if got := allows(p, "socket", tt.family, tt.kind, tt.protocol); got != tt.want {
			t.Errorf("socket(%d, %#x, %d): allowed %v", tt.family, tt.kind, tt.protocol, got)
		}
		if got := allows(p, "socketpair", tt.family, tt.kind, tt.protocol); got != (tt.family == unix.AF_UNIX) {
			t.Errorf("socketpair(%d, %#x, %d): allowed %v", tt.family, tt.kind, tt.protocol, got)
		}
	}
}

// Options of IP headers are refused, also with what the kernel ignores of an
// argument, and nothing next to them is.
func TestSeccompIPOptions(t *testing.T) {
	t.Parallel()
	p, _ := profiles(t)
	for _, c := range []struct {
		level, option uint64
		allowed       bool
	}{
		{unix.IPPROTO_IP, unix.IP_OPTIONS, false}, {1<<32 | unix.IPPROTO_IP, unix.IP_OPTIONS, false}, {unix.IPPROTO_IP, 1<<63 | unix.IP_OPTIONS, false},
		{unix.IPPROTO_IP, unix.IP_OPTIONS - 1, true}, {unix.IPPROTO_IP, unix.IP_OPTIONS + 1, true}, {unix.SOL_SOCKET, unix.IP_OPTIONS, true},
		{unix.IPPROTO_IPV6, unix.IP_OPTIONS, true}, {unix.IPPROTO_IP, unix.IP_TOS, true}, {unix.IPPROTO_TCP, unix.TCP_NODELAY, true}, {1 << 31, unix.IP_OPTIONS, true},
	} {
		if got := allows(p, "setsockopt", 3, c.level, c.option); got != c.allowed {
			t.Errorf("setsockopt, level %#x, option %#x: allowed %v", c.level, c.option, got)
		}
	}
}

// What is refused is, whatever the arguments; what is kept is there; and no other
// call of the default profile is lost, not even those of the holders of a
// capability, without a reason.
func TestSeccompReasons(t *testing.T) {
	t.Parallel()
	b, err := Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	var p seccomp.Seccomp
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	is := map[string]bool{}
	for _, r := range p.Syscalls {
		if r.Includes != nil && len(r.Includes.Caps) > 0 || r.Excludes != nil && len(r.Excludes.Caps) > 0 {
			t.Errorf("%v depends on capabilities", r.Names)
		}
		for _, n := range r.Names {
			is[n] = is[n] || r.Action == specs.ActAllow
		}
	}
	for _, a := range p.ArchMap {
		if len(a.SubArches) != 0 {
			t.Errorf("%s has sub-architectures", a.Arch)
		}
	}
	seen := map[string]bool{}
	for _, r := range refused {
		for _, n := range r.calls {
			if is[n] || seen[n] {
				t.Errorf("%s is allowed (%v), or refused twice", n, is[n])
			}
			seen[n] = true
		}
	}
	for _, k := range kept {
		for _, n := range k.calls {
			if !is[n] || seen[n] {
				t.Errorf("%s is not allowed, or kept and refused", n)
			}
		}
	}
	for _, r := range seccomp.DefaultProfile().Syscalls {
		for _, n := range r.Names {
			if !is[n] && !seen[n] && n != "clone3" { // said not to exist
				t.Errorf("%s is lost, and nothing says why", n)
			}
		}
	}
}

// docs/seccomp.md has every table with its reasons.
func TestDocumentedSeccomp(t *testing.T) {
	t.Parallel()
	const file = "../../docs/seccomp.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	old := string(b)
	text := old
	for name, table := range map[string]string{"sockets": documentSockets(), "refused": documentCalls(), "kept": documentKept()} {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end: "+name+" -->"
		before, rest, found := strings.Cut(text, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no place for %s", file, name)
		}
		text = before + begin + "\n" + table + "\n" + end + after
	}
	if text != old && *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != old {
		t.Errorf("%s is not what it is made from (run with -update to accept)", file)
	}
}

func documentSockets() string {
	var b strings.Builder
	b.WriteString("| socket | family, type, protocols | why it is there |\n|---|---|---|\n")
	for _, s := range sockets {
		kind, protocols := "any", "any"
		if s.kind != 0 {
			kind = fmt.Sprint(s.kind)
		}
		if s.protocols != nil {
			protocols = strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.protocols)), ", "), "[]")
		}
		fmt.Fprintf(&b, "| %s | %d; %s; %s | %s |\n", s.what, s.family, kind, protocols, s.why)
	}
	return b.String()
}

func documentCalls() string {
	had := map[string]string{}
	for _, r := range seccomp.DefaultProfile().Syscalls {
		for _, n := range r.Names {
			switch {
			case r.Action != specs.ActAllow:
			case r.Includes != nil && len(r.Includes.Caps) > 0:
				if had[n] == "" {
					had[n] = "with a capability"
				}
			default:
				had[n] = "yes"
			}
		}
	}
	var b strings.Builder
	b.WriteString("| calls | in the default profile | why they are refused |\n|---|---|---|\n")
	for _, r := range refused {
		var in []string
		for _, n := range r.calls {
			if h := had[n]; !slices.Contains(in, h) {
				in = append(in, h)
			}
		}
		for i := range in {
			if in[i] == "" {
				in[i] = "no"
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(r.calls, "` `"), strings.Join(in, ", "), r.why)
	}
	return b.String()
}

func documentKept() string {
	var b strings.Builder
	b.WriteString("| calls | why they stay |\n|---|---|\n")
	for _, k := range kept {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.Join(k.calls, "` `"), k.why)
	}
	return b.String()
}
