package kernel

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/netfilter"
)

// A set of pairs matches address, port and protocol, a set of addresses any
// port; and a new content takes the old one's place under the rules.
func TestSets(t *testing.T) { backends(t, setsMatch) }

func setsMatch(t *testing.T) {
	inside, _ := newPair(t)
	k := inside.open(t)
	inside.applySets(t, k, pins, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...))
	inside.refused(t, neighbourV4, port)

	// The same address twice, as a resolver may answer (R001).
	twice := netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry(neighbourV4, port), entry("44.10.0.10", 22), entry(neighbourV4, port)}}
	for range 2 {
		inside.applySets(t, k, twice)
		inside.reaches(t, neighbourV4, port)
		inside.refused(t, neighbourV4, otherPort)
		want := []netfilter.Set{{Name: pins.Name, Entries: []netfilter.Entry{entry("44.10.0.10", 22), entry(neighbourV4, port)}}, anyPort}
		got := inside.readSets(t, k, pins.Name, anyPort.Name)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("read back %v, want %v", got, want)
		}
		if a, b := netfilter.Digest(nil, []netfilter.Set{twice, anyPort}), netfilter.Digest(nil, got); a != b {
			t.Errorf("digest %s applied, %s read back", a, b)
		}
	}

	inside.applySets(t, k, netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry(neighbourV4, otherPort)}})
	inside.refused(t, neighbourV4, port)
	inside.reaches(t, neighbourV4, otherPort)

	inside.applySets(t, k, pins, netfilter.Set{Name: anyPort.Name, AnyPort: true, Entries: []netfilter.Entry{entry(neighbourV4, 0)}})
	inside.reaches(t, neighbourV4, port)
	inside.reaches(t, neighbourV4, otherPort)

	inside.applySets(t, k, pins, anyPort)
	inside.refused(t, neighbourV4, port)
}

// Sets of any size are written and read back whole, and go in one step.
func TestSetsGrow(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	// One entry more or less than a message has, and more than a set holds by default.
	for _, size := range []int{1023, 1024, 1025, 70000} {
		big := []netfilter.Set{{Name: pins.Name}, {Name: anyPort.Name, AnyPort: true}}
		for i := range size {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], 44<<24|uint32(i))
			big[0].Entries = append(big[0].Entries, netfilter.Entry{Addr: netip.AddrFrom4(b), Port: 443})
			big[1].Entries = append(big[1].Entries, netfilter.Entry{Addr: netip.AddrFrom4(b)})
		}
		for _, want := range [][]netfilter.Set{big, {pins, anyPort}} {
			n.applySets(t, k, want...)
			if d := netfilter.DiffSets(want, n.readSets(t, k, pins.Name, anyPort.Name)); len(d) > 0 {
				t.Errorf("%d entries: %d differences, the first: %s", size, len(d), d[0])
			}
		}
	}
}

// What a run that was killed half-way left behind is in nobody's way.
func TestSetsAfterACrash(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.do(func() {
		check(t, netlink.IpsetCreate(pins.Name+"-new", "hash:ip", netlink.IpsetCreateOptions{}))
	})
	n.applySets(t, k, pins)
	n.do(func() {
		list, err := netlink.IpsetListAll()
		if err != nil || len(list) != 1 || list[0].SetName != pins.Name {
			t.Errorf("sets: %v %v", list, err)
		}
	})
}

// While somebody lists a set the kernel neither swaps nor destroys it: who changes it
// waits for the end of the listing, not for ever.
func TestSetsBesideAListing(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	var many, few netfilter.Set
	many.Name, few.Name = pins.Name, pins.Name
	for i := range 5000 { // more than one message of a listing has
		many.Entries = append(many.Entries, entry(netip.AddrFrom4([4]byte{44, 10, byte(i >> 8), byte(i)}).String(), 443))
	}
	few.Entries = many.Entries[:1]
	n.applySets(t, k, many)
	listing := func() (fd int) {
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|nl.IPSET_CMD_LIST, nl.GetIpsetFlags(nl.IPSET_CMD_LIST))
		r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
		r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, []byte{nl.IPSET_PROTOCOL}))
		r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(pins.Name)))
		n.do(func() {
			fd = must(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER))
			check(t, unix.Sendto(fd, r.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
			_, _, err := unix.Recvfrom(fd, make([]byte, 1<<16), 0)
			check(t, err)
		})
		return fd
	}
	fd := listing()
	time.AfterFunc(300*time.Millisecond, func() { unix.Close(fd) })
	n.applySets(t, k, few)
	if got := n.readSets(t, k, pins.Name); len(got[0].Entries) != 1 {
		t.Errorf("%d entries", len(got[0].Entries))
	}

	n.applySets(t, k, many)
	fd = listing()
	defer unix.Close(fd)
	n.do(func() {
		if err := k.ApplySets(t.Context(), few); err == nil || !strings.Contains(err.Error(), "another program has been listing the set") {
			t.Errorf("beside a listing that does not end: %v", err)
		}
	})
	if got := n.readSets(t, k, pins.Name); len(got[0].Entries) != len(many.Entries) {
		t.Errorf("a failure left %d entries", len(got[0].Entries))
	}
}

func TestSetTamperingShows(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	want := netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry("44.10.0.10", 443)}}
	n.applySets(t, k, want, anyPort)
	add := func(addr string, port uint16, proto uint8) {
		n.do(func() {
			e := netlink.IPSetEntry{IP: netip.MustParseAddr(addr).AsSlice(), Port: &port, Protocol: &proto}
			check(t, netlink.IpsetAdd(pins.Name, &e))
		})
	}
	add("44.10.9.9", 443, unix.IPPROTO_TCP)
	d := netfilter.DiffSets([]netfilter.Set{want}, n.readSets(t, k, pins.Name))
	if strings.Join(d, "\n") != "set corral-pins: foreign entry: 44.10.9.9:443" {
		t.Errorf("an entry was added: %q", d)
	}
	n.applySets(t, k, netfilter.Set{Name: pins.Name})
	d = netfilter.DiffSets([]netfilter.Set{want}, n.readSets(t, k, pins.Name))
	if strings.Join(d, "\n") != "set corral-pins: missing entry: 44.10.0.10:443" {
		t.Errorf("an entry was taken: %q", d)
	}
	add("44.10.0.10", 443, unix.IPPROTO_UDP)
	n.do(func() {
		if _, err := k.ReadSets(t.Context(), pins.Name); err == nil || !strings.Contains(err.Error(), "foreign entry 44.10.0.10:443") {
			t.Errorf("an entry for UDP was added: %v", err)
		}
		if _, err := k.ReadSets(t.Context(), "nowhere"); err == nil {
			t.Error("a set that is not there was read")
		}
		if err := k.ApplySets(t.Context(), netfilter.Set{Name: pins.Name, AnyPort: true}); err == nil {
			t.Error("a set changed its type")
		}
	})
}

// A set with the same entries and type may match others: what it was made with is
// read too, and none of ours has any of it.
func TestSetOptionsShow(t *testing.T) {
	want := netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry("44.10.0.10", 443)}}
	for _, tt := range []struct{ options, want string }{
		{"hash:ip,port bitmask 44.10.0.10", "foreign option bitmask"},
		{"hash:ip,port netmask 31", "foreign option netmask"},
		{"hash:ip,port timeout 0", "foreign option timeout"},
		{"hash:ip,port counters", "foreign option flags"},
		{"hash:ip,port comment", "foreign option flags"},
		{"hash:ip,port skbinfo", "foreign option flags"},
		{"hash:ip,port forceadd", "foreign option flags"},
		{"hash:ip,port family inet hashsize 64 maxelem 4", "revision"}, // harmless, and yet not ours
	} {
		t.Run(tt.options, func(t *testing.T) {
			n := newNamespace(t)
			k := n.open(t)
			n.applySets(t, k, want)
			if d := netfilter.DiffSets([]netfilter.Set{want}, n.readSets(t, k, pins.Name)); len(d) > 0 {
				t.Fatal(d)
			}
			n.run(t, "ipset create other "+tt.options)
			n.run(t, "ipset add other 44.10.0.10,tcp:443")
			n.run(t, "ipset swap other "+pins.Name)
			n.do(func() {
				_, err := k.ReadSets(t.Context(), pins.Name)
				if err == nil || !strings.Contains(err.Error(), "set "+pins.Name+": ") || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v", err)
				}
			})
			// Made anew it is ours again.
			n.applySets(t, k, want)
			if d := netfilter.DiffSets([]netfilter.Set{want}, n.readSets(t, k, pins.Name)); len(d) > 0 {
				t.Error(d)
			}
		})
	}
}
