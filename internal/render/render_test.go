package render

import (
	"archive/tar"
	"encoding/json"
	"io"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestSeccompOnlyRemoves(t *testing.T) {
	b, err := Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	var got seccomp.Seccomp
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	before := seccomp.DefaultProfile()
	names := func(p *seccomp.Seccomp) map[string]int {
		m := map[string]int{}
		for _, s := range p.Syscalls {
			for _, n := range s.Names {
				m[n]++
			}
		}
		return m
	}
	was, is := names(before), names(&got)
	for n, k := range is {
		if k > was[n] && n != "setsockopt" { // narrowed below
			t.Errorf("%s has %d rules, the default profile has %d", n, k, was[n])
		}
	}
	for _, gone := range []string{"socketcall"} {
		if is[gone] != 0 {
			t.Errorf("%s is still allowed", gone)
		}
	}
	if is["socket"] != 3 {
		t.Errorf("socket has %d rules, want 3: unix and inet, inet6, netlink", is["socket"])
	}
	for _, s := range got.Syscalls {
		if slices.Contains(s.Names, "setsockopt") && (len(s.Args) != 1 || s.Args[0].Op != specs.OpMaskedEqual) {
			t.Errorf("setsockopt is allowed by more than one bit of one argument: %+v", s)
		}
	}
	// Where it is refused, and next to that, also in the halves the kernel ignores.
	for _, c := range []struct {
		level, option uint64
		allowed       bool
	}{
		{unix.IPPROTO_IP, unix.IP_OPTIONS, false}, {1<<32 | unix.IPPROTO_IP, unix.IP_OPTIONS, false}, {unix.IPPROTO_IP, 1<<63 | unix.IP_OPTIONS, false},
		{unix.IPPROTO_IP, unix.IP_OPTIONS - 1, true}, {unix.IPPROTO_IP, unix.IP_OPTIONS + 1, true}, {unix.SOL_SOCKET, unix.IP_OPTIONS, true},
		{unix.IPPROTO_IPV6, unix.IP_OPTIONS, true}, {unix.IPPROTO_IP, unix.IP_TOS, true}, {unix.IPPROTO_TCP, unix.TCP_NODELAY, true}, {1 << 31, unix.IP_OPTIONS, true},
	} {
		allowed := slices.ContainsFunc(got.Syscalls, func(s *seccomp.Syscall) bool {
			return slices.Contains(s.Names, "setsockopt") && [3]uint64{0, c.level, c.option}[s.Args[0].Index]&s.Args[0].Value == s.Args[0].ValueTwo
		})
		if allowed != c.allowed {
			t.Errorf("setsockopt, level %#x, option %#x: allowed %v", c.level, c.option, allowed)
		}
	}
	for _, a := range got.ArchMap {
		if len(a.SubArches) != 0 {
			t.Errorf("%s still has sub-architectures", a.Arch)
		}
	}
	if got.DefaultAction != before.DefaultAction {
		t.Errorf("default action is %s", got.DefaultAction)
	}
}

func TestTreeIsStable(t *testing.T) {
	tree := Tree{"a/bin/x": []byte("1"), "a/b": []byte("2"), "c": []byte("3")}
	if got := tree.Names(); !slices.Equal(got, []string{"a/b", "a/bin/x", "c"}) {
		t.Errorf("names %v", got)
	}
	if got := tree.Sub("a").Names(); !slices.Equal(got, []string{"b", "bin/x"}) {
		t.Errorf("sub %v", got)
	}
	one, _ := io.ReadAll(tree.Tar())
	two, _ := io.ReadAll(tree.Tar())
	if !slices.Equal(one, two) {
		t.Error("the same tree gave two archives")
	}
	if (Tree{"ab": []byte("c")}).Digest() == (Tree{"a": []byte("bc")}).Digest() {
		t.Error("two trees share a digest")
	}
}

func TestTarModes(t *testing.T) {
	r := tar.NewReader(Tree{"a/bin/x": nil, "a/y": nil}.Tar())
	modes := map[string]int64{}
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		modes[h.Name] = h.Mode
	}
	if modes["a/bin/x"] != 0o711 || modes["a/y"] != 0o644 || modes["a/"] != 0o755 {
		t.Errorf("modes %v", modes)
	}
}
