package render

import (
	"archive/tar"
	"encoding/json"
	"io"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
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
		if k > was[n] {
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
