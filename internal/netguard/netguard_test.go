package netguard

import (
	"net/netip"
	"strings"
	"testing"
)

// TestClassifyEdges takes the first and last address of each block, and what is
// just outside, so that neither a hole nor a block too wide goes unseen.
func TestClassifyEdges(t *testing.T) {
	for _, tt := range []struct {
		before      string
		beforeClass Class
		first, last string
		class       Class
		after       string
		afterClass  Class
	}{
		{"", 0, "0.0.0.0", "0.0.0.0", Unspecified, "0.0.0.1", ThisNetwork},
		{"0.0.0.0", Unspecified, "0.0.0.1", "0.255.255.255", ThisNetwork, "1.0.0.0", Public},
		{"9.255.255.255", Public, "10.0.0.0", "10.255.255.255", Private, "11.0.0.0", Public},
		{"100.63.255.255", Public, "100.64.0.0", "100.127.255.255", Shared, "100.128.0.0", Public},
		{"100.100.100.199", Shared, "100.100.100.200", "100.100.100.200", Metadata, "100.100.100.201", Shared},
		{"126.255.255.255", Public, "127.0.0.0", "127.255.255.255", Loopback, "128.0.0.0", Public},
		{"168.63.129.15", Public, "168.63.129.16", "168.63.129.16", Metadata, "168.63.129.17", Public},
		{"169.253.255.255", Public, "169.254.0.0", "169.254.255.255", LinkLocal, "169.255.0.0", Public},
		{"169.254.169.253", LinkLocal, "169.254.169.254", "169.254.169.254", Metadata, "169.254.169.255", LinkLocal},
		{"169.254.170.1", LinkLocal, "169.254.170.2", "169.254.170.2", Metadata, "169.254.170.3", LinkLocal},
		{"169.254.170.22", LinkLocal, "169.254.170.23", "169.254.170.23", Metadata, "169.254.170.24", LinkLocal},
		{"172.15.255.255", Public, "172.16.0.0", "172.31.255.255", Private, "172.32.0.0", Public},
		{"191.255.255.255", Public, "192.0.0.0", "192.0.0.255", Protocol, "192.0.1.0", Public},
		{"192.0.0.191", Protocol, "192.0.0.192", "192.0.0.192", Metadata, "192.0.0.193", Protocol},
		{"192.0.1.255", Public, "192.0.2.0", "192.0.2.255", Documentation, "192.0.3.0", Public},
		{"192.31.195.255", Public, "192.31.196.0", "192.31.196.255", Service, "192.31.197.0", Public},
		{"192.52.192.255", Public, "192.52.193.0", "192.52.193.255", Service, "192.52.194.0", Public},
		{"192.88.98.255", Public, "192.88.99.0", "192.88.99.255", Relay, "192.88.100.0", Public},
		{"192.167.255.255", Public, "192.168.0.0", "192.168.255.255", Private, "192.169.0.0", Public},
		{"192.175.47.255", Public, "192.175.48.0", "192.175.48.255", Service, "192.175.49.0", Public},
		{"198.17.255.255", Public, "198.18.0.0", "198.19.255.255", Benchmark, "198.20.0.0", Public},
		{"198.51.99.255", Public, "198.51.100.0", "198.51.100.255", Documentation, "198.51.101.0", Public},
		{"203.0.112.255", Public, "203.0.113.0", "203.0.113.255", Documentation, "203.0.114.0", Public},
		{"223.255.255.255", Public, "224.0.0.0", "239.255.255.255", Multicast, "240.0.0.0", Reserved},
		{"239.255.255.255", Multicast, "240.0.0.0", "255.255.255.255", Reserved, "", 0},

		{"", 0, "::", "::", Unspecified, "::1", Loopback},
		{"::1", Loopback, "::2", "::ffff:ffff", Translated, "::1:0:0", Unallocated},
		{"64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "64:ff9b::", "64:ff9b::ffff:ffff", Translated, "64:ff9b::1:0:0", Unallocated},
		{"64:ff9b:0:ffff:ffff:ffff:ffff:ffff", Unallocated, "64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", Translated, "64:ff9b:2::", Unallocated},
		{"ff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "100::", "100::1:ffff:ffff:ffff:ffff", Discard, "100:0:0:2::", Unallocated},
		{"1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "2000::", "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Public, "2001::", Tunnelled},
		{"2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Public, "2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff", Tunnelled, "2001:1::", Protocol},
		{"2001:1:ffff:ffff:ffff:ffff:ffff:ffff", Protocol, "2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff", Benchmark, "2001:2:1::", Protocol},
		{"2001:2:0:ffff:ffff:ffff:ffff:ffff", Benchmark, "2001:10::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", Protocol, "2001:200::", Public},
		{"2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", Public, "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Documentation, "2001:db9::", Public},
		{"2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Public, "2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Tunnelled, "2003::", Public},
		{"2620:4f:7fff:ffff:ffff:ffff:ffff:ffff", Public, "2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff", Service, "2620:4f:8001::", Public},
		{"3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Public, "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", Documentation, "3fff:1000::", Public},
		{"3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Public, "4000::", "5eff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "5f00::", Segment},
		{"5eff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Segment, "5f01::", Unallocated},
		{"fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Private, "fe00::", Unallocated},
		{"fd00:ec2::253", Private, "fd00:ec2::254", "fd00:ec2::254", Metadata, "fd00:ec2::255", Private},
		{"fd00:ec2::22", Private, "fd00:ec2::23", "fd00:ec2::23", Metadata, "fd00:ec2::24", Private},
		{"fd20:ce::253", Private, "fd20:ce::254", "fd20:ce::254", Metadata, "fd20:ce::255", Private},
		{"fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Unallocated, "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", LinkLocal, "fec0::", SiteLocal},
		{"febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", LinkLocal, "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", SiteLocal, "ff00::", Multicast},
		{"feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", SiteLocal, "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Multicast, "", 0},
	} {
		check := func(s string, want Class) {
			if s == "" {
				return
			}
			if got := Classify(netip.MustParseAddr(s)); got != want {
				t.Errorf("%s: %s, want %s", s, got, want)
			}
		}
		check(tt.before, tt.beforeClass)
		check(tt.first, tt.class)
		check(tt.last, tt.class)
		check(tt.after, tt.afterClass)
	}
}

// TestEveryBlock holds each block's own edges against the table, whatever the
// table above forgot.
func TestEveryBlock(t *testing.T) {
	seen := map[Class]bool{}
	for _, b := range blocks {
		if b.Prefix != b.Prefix.Masked() {
			t.Errorf("%s has bits outside its mask", b.Prefix)
		}
		seen[b.Class] = true
		for _, a := range []netip.Addr{b.Prefix.Addr(), last(b.Prefix)} {
			if c := Classify(a); c == Public || c == Unclassified {
				t.Errorf("%s of %s: %s", a, b.Prefix, c)
			}
		}
	}
	for c := Zoned + 1; c < Unallocated; c++ {
		if !seen[c] {
			t.Errorf("no block is %s", c)
		}
	}
}

// TestRegistry takes the first and the last address of each row of the table, and
// their neighbours outside: what is in no row is public, if it is anybody's.
//
// R064: blocks that the standard library calls global.
func TestRegistry(t *testing.T) {
	all := rows(special)
	if len(all) < 60 {
		t.Fatalf("%d rows: the table is not whole", len(all))
	}
	holding := func(a netip.Addr) (classes []Class) {
		for _, r := range all {
			if r.Prefix.Contains(a) {
				classes = append(classes, r.Class)
			}
		}
		return classes
	}
	for _, r := range all {
		if r.Prefix.Addr().Is4In6() {
			continue // each is the IPv4 address that it carries: TestSpellings
		}
		for _, a := range []netip.Addr{r.Prefix.Addr(), last(r.Prefix), r.Prefix.Addr().Prev(), last(r.Prefix).Next()} {
			if !a.IsValid() || a.Is4In6() {
				continue
			}
			got, classes := Classify(a), holding(a)
			switch {
			case len(classes) > 0:
				if got != classes[0] {
					t.Errorf("%s, at an edge of %s: %s, want %s", a, r.Prefix, got, classes[0])
				}
			case a.Is6() && !globalUnicast.Contains(a):
				if got != Unallocated {
					t.Errorf("%s, at an edge of %s: %s, want unallocated", a, r.Prefix, got)
				}
			case got != Public:
				t.Errorf("%s, at an edge of %s: %s, want public", a, r.Prefix, got)
			}
		}
	}
}

// What is narrower comes first, or it would never count.
func TestRegistryOrder(t *testing.T) {
	all := rows(special)
	for i, r := range all {
		if r.Prefix != r.Prefix.Masked() {
			t.Errorf("%s has bits outside its mask", r.Prefix)
		}
		for _, later := range all[i+1:] {
			if r.Prefix.Contains(later.Prefix.Addr()) && r.Prefix.Bits() <= later.Prefix.Bits() {
				t.Errorf("%s stands before %s, which lies in it", r.Prefix, later.Prefix)
			}
		}
	}
}

func TestPublic(t *testing.T) {
	for _, s := range strings.Fields(`
		9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
		169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0
		192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255
		198.20.0.0 203.0.112.255 203.0.114.0 223.255.255.255 168.63.129.15 168.63.129.17
		2606:4700:4700::1111 2001:4860:4860::8888 2001:200::1 2a00:1450::1 2620:fe::fe
		2620:4f:7fff:ffff::1 2003::1 44.10.0.10 ::ffff:44.10.0.10`) {
		if got := Classify(netip.MustParseAddr(s)); got != Public {
			t.Errorf("%s: %s", s, got)
		}
	}
}

func TestSpellings(t *testing.T) {
	for s, want := range map[string]Class{
		"::ffff:127.0.0.1":       Loopback,
		"::ffff:169.254.169.254": Metadata,
		"::ffff:10.0.0.1":        Private,
		"::127.0.0.1":            Translated,
		"64:ff9b::7f00:1":        Translated,
		"2002:7f00:1::":          Tunnelled,
		"2001:0:7f00:1::":        Tunnelled,
		"fe80::5efe:127.0.0.1":   LinkLocal,
		"::1%lo":                 Zoned,
		"2606:4700::1%eth0":      Zoned,
		"::ffff:44.10.0.10%eth0": Zoned,
		"255.255.255.255":        Reserved,
	} {
		if got := Classify(netip.MustParseAddr(s)); got != want {
			t.Errorf("%s: %s, want %s", s, got, want)
		}
	}
	if got := Classify(netip.Addr{}); got != Unclassified {
		t.Errorf("no address: %s", got)
	}
}

func TestClassTexts(t *testing.T) {
	names := map[string]bool{}
	for c := Unclassified; c <= Unallocated; c++ {
		if c.String() == "" || c.Reason() == "" || names[c.String()] {
			t.Errorf("class %d: name %q, reason %q", int(c), c, c.Reason())
		}
		names[c.String()] = true
	}
	for _, c := range []Class{-1, Unallocated + 1} {
		if c.String() != "unclassified" || c.Reason() != Unclassified.Reason() {
			t.Errorf("class %d: %s", int(c), c)
		}
	}
}

// A listed name on a company's private address needs the policy's own word for
// it; no word opens loopback, metadata or this host (R055).
func TestPin(t *testing.T) {
	prefixes := func(s ...string) (ps []netip.Prefix) {
		for _, p := range s {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	everything := prefixes("0.0.0.0/0", "::/0")
	for _, tt := range []struct {
		addr           string
		private, never []netip.Prefix
		want           string // part of the refusal, empty: pinned
	}{
		{addr: "44.10.0.10"},
		{addr: "::ffff:44.10.0.10"},
		{addr: "44.10.0.10", never: prefixes("44.10.0.0/24"), want: "belongs to this host"},
		{addr: "::ffff:44.10.0.10", never: prefixes("44.10.0.0/24"), want: "belongs to this host"},
		{addr: "44.10.0.10", never: prefixes("::ffff:44.10.0.0/120"), want: "belongs to this host"},
		{addr: "44.10.0.10", never: []netip.Prefix{{}}, want: "belongs to this host"},
		{addr: "44.10.1.10", never: prefixes("44.10.0.0/24", "fd00::/8")},

		{addr: "10.38.0.27", want: "10.38.0.27 is refused: private: inside somebody's own network (RFC 1918, RFC 4193); the policy permits no prefix"},
		{addr: "10.38.0.27", private: prefixes("10.38.0.0/16")},
		{addr: "::ffff:10.38.0.27", private: prefixes("10.38.0.0/16")},
		{addr: "10.39.0.1", private: prefixes("10.38.0.0/16"), want: "private"},
		{addr: "10.38.0.27", private: prefixes("10.0.0.0/8"), never: prefixes("10.38.0.0/24"), want: "belongs to this host"},
		{addr: "100.64.0.1", want: "shared"},
		{addr: "100.64.0.1", private: prefixes("100.64.0.0/10")},
		{addr: "100.100.100.200", private: prefixes("100.64.0.0/10"), want: "metadata"},
		{addr: "198.18.0.7", want: "fake-IP resolver"},
		{addr: "198.18.0.7", private: prefixes("198.18.0.0/15")},

		{addr: "127.0.0.1", private: everything, want: "loopback"},
		{addr: "169.254.169.254", private: everything, want: "metadata"},
		{addr: "169.254.1.1", private: everything, want: "link-local"},
		{addr: "168.63.129.16", private: everything, want: "metadata"},
		{addr: "0.0.0.0", private: everything, want: "unspecified"},
		{addr: "0.1.2.3", private: everything, want: "this-network"},
		{addr: "224.0.0.1", private: everything, want: "multicast"},
		{addr: "240.0.0.1", private: everything, want: "reserved"},
		{addr: "192.0.2.1", private: everything, want: "documentation"},
		{addr: "192.0.0.8", private: everything, want: "protocol"},
		{addr: "192.88.99.1", private: everything, want: "relay"},

		{addr: "2606:4700:4700::1111", private: everything, want: "only IPv4"},
		{addr: "fd00::1", private: everything, want: "only IPv4"},
		{addr: "fe80::1%eth0", private: everything, want: "zoned"},
	} {
		err := Pin(netip.MustParseAddr(tt.addr), tt.private, tt.never)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s private %v never %v: %v", tt.addr, tt.private, tt.never, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s private %v never %v: %v, want %q", tt.addr, tt.private, tt.never, err, tt.want)
		}
	}
	if Pin(netip.Addr{}, everything, nil) == nil {
		t.Error("no address was pinned")
	}
}

func FuzzClassify(f *testing.F) {
	for _, b := range blocks {
		f.Add(b.Prefix.Addr().AsSlice())
		f.Add(last(b.Prefix).AsSlice())
		f.Add(last(b.Prefix).Next().AsSlice())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		class := Classify(a)
		if class == Unclassified {
			t.Errorf("%s has no class", a)
		}
		if u := a.Unmap(); Classify(u) != class {
			t.Errorf("%s is %s, %s is %s", a, class, u, Classify(u))
		}
		if a.Is6() && Classify(a.WithZone("eth0")) != Zoned {
			t.Errorf("%s with a zone is not refused", a)
		}
		for _, block := range blocks {
			if block.Prefix.Contains(a.Unmap()) && class == Public {
				t.Errorf("%s is public inside %s", a, block.Prefix)
			}
		}
		if u := a.Unmap(); class == Public && (!u.IsGlobalUnicast() || u.IsPrivate() || u.Is6() && !globalUnicast.Contains(u)) {
			t.Errorf("%s is public", a)
		}
		if (class == Public && a.Unmap().Is4()) != (Pin(a, nil, nil) == nil) {
			t.Errorf("%s is %s; Pin: %v", a, class, Pin(a, nil, nil))
		}
	})
}

// last is the highest address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
