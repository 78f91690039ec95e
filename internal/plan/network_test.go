package plan

import (
	"net/netip"
	"slices"
	"testing"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// R048: whatever touches a range rules it out, and what only adjoins it does
// not.
func TestSubnets(t *testing.T) {
	for _, c := range []struct {
		name  string
		first string
		taken []netip.Prefix
		want  string // the first that is free
	}{
		{"nothing is taken", "", nil, "172.30.0.0/16"},
		{"Docker's own", "", prefixes("172.17.0.0/16"), "172.30.0.0/16"},
		{"the same", "", prefixes("172.30.0.0/16"), "172.29.0.0/16"},
		{"inside, at its beginning", "", prefixes("172.30.0.0/24"), "172.29.0.0/16"},
		{"inside, in the upper half", "", prefixes("172.30.128.0/17"), "172.29.0.0/16"},
		{"its first address", "", prefixes("172.30.0.0/32"), "172.29.0.0/16"},
		{"its last address", "", prefixes("172.30.255.255/32"), "172.29.0.0/16"},
		{"the address before it", "", prefixes("172.29.255.255/32"), "172.30.0.0/16"},
		{"the address after it", "", prefixes("172.31.0.0/32"), "172.30.0.0/16"},
		{"the blocks beside it", "", prefixes("172.29.0.0/16", "172.31.0.0/16"), "172.30.0.0/16"},
		{"around it", "", prefixes("172.30.0.0/15"), "172.29.0.0/16"},
		{"several", "", prefixes("172.28.0.0/14", "172.27.9.0/24"), "172.26.0.0/16"},
		{"all but one of the block", "", prefixes("172.16.0.0/13", "172.24.0.0/14", "172.28.0.0/15", "172.30.0.0/16"), "172.31.0.0/16"},
		{"the whole block", "", prefixes("172.16.0.0/12"), "10.255.0.0/16"},
		{"a part of the next block", "", prefixes("172.16.0.0/12", "10.128.0.0/9"), "10.127.0.0/16"},
		{"two blocks", "", prefixes("172.16.0.0/12", "10.0.0.0/8"), "192.168.240.0/20"},
		{"a home router", "", prefixes("172.16.0.0/12", "10.0.0.0/8", "192.168.240.0/24"), "192.168.224.0/20"},
		{"everything", "", prefixes("172.16.0.0/12", "10.0.0.0/8", "192.168.0.0/16"), ""},
		{"IPv6 takes nothing", "", prefixes("::/0"), "172.30.0.0/16"},
		{"the present one", "10.200.0.0/20", nil, "10.200.0.0/20"},
		{"the present one, beside others", "10.200.0.0/20", prefixes("10.200.16.0/24"), "10.200.0.0/20"},
		{"the present one, taken", "10.200.0.0/20", prefixes("10.200.15.0/24"), "172.30.0.0/16"},
		{"the present one is all there is", "100.64.0.0/16", prefixes("172.16.0.0/12", "10.0.0.0/8", "192.168.0.0/16"), "100.64.0.0/16"},
	} {
		var first netip.Prefix
		if c.first != "" {
			first = netip.MustParsePrefix(c.first)
		}
		got := Subnets(first, c.taken)
		if c.want == "" {
			if len(got) > 0 {
				t.Errorf("%s: %v", c.name, got)
			}
			continue
		}
		if len(got) == 0 || got[0].String() != c.want {
			t.Errorf("%s: %v, want %s first", c.name, got[:min(3, len(got))], c.want)
		}
	}
}

// All that can be taken is private, can be divided, and is tried once.
func TestEverySubnetIsUsable(t *testing.T) {
	list := Subnets(DefaultSubnet, nil)
	if want := 16 + 256 + 16; len(list) != want {
		t.Errorf("%d subnets, want %d", len(list), want)
	}
	for i, p := range list {
		if _, err := Divide(p); err != nil || !p.Addr().IsPrivate() {
			t.Errorf("%v: %v", p, err)
		}
		if slices.ContainsFunc(list[:i], p.Overlaps) {
			t.Errorf("%v is there already", p)
		}
	}
}

func TestUndivide(t *testing.T) {
	for _, p := range append(Subnets(netip.Prefix{}, nil), prefixes("172.16.0.0/12", "10.200.0.0/20")...) {
		n, err := Divide(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Undivide(n.Subnet); err != nil || got != p {
			t.Errorf("%v is undivided to %v: %v", n.Subnet, got, err)
		}
	}
	for _, half := range []string{
		"172.30.128.0/17", // an upper half
		"172.30.0.1/17",
		"172.16.0.0/12", "172.16.0.0/22", // too wide, too narrow
		"0.0.0.0/0", "fd00::/17",
	} {
		if got, err := Undivide(netip.MustParsePrefix(half)); err == nil {
			t.Errorf("%s is undivided to %v", half, got)
		}
	}
	if _, err := Undivide(netip.Prefix{}); err == nil {
		t.Error("nothing was undivided")
	}
}
