package netfilter

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// listed is a message of a listing as a kernel gives it: a set of pairs, in it
// 192.0.2.9 with TCP port 443.
const listed = "02000000" +
	"05000100" + "07000000" + "0600020061000000" + "11000300" + hashIPPort + "000000" + "0500050002000000" + revision +
	"3c000780" + plain +
	"24000880" + "20000780" + "0c000180" + address + "0600044001bb0000" + "0500070006000000"

const (
	hashIP     = "686173683a697000"
	hashIPPort = "686173683a69702c706f727400"
	address    = "08000140c0000209"
	revision   = "0500040001000000"
	// hash size, elements at most, bucket size, initial value, references, memory,
	// elements: all that is told of a set without options.
	plain = "0800124000000400" + "0800134000010000" + "050015000c000000" + "08001140659dcb73" + "0800194000000001" + "08001a4000000118" + "0800184000000001"
)

func listedBytes(t testing.TB, changes ...string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer(changes...).Replace(listed))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// told has one option more told; 8 or 12 bytes.
func told(attr string) []string {
	return []string{"3c000780" + plain, fmt.Sprintf("%02x000780", 0x3c+len(attr)/2) + plain + attr}
}

// addressesOnly makes listed one of a set of addresses.
var addressesOnly = []string{"11000300" + hashIPPort + "000000", "0c000300" + hashIP,
	"24000880" + "20000780", "14000880" + "10000780", "0600044001bb0000" + "0500070006000000", ""}

func TestDecodeSet(t *testing.T) {
	for _, c := range []struct {
		what    string
		changes []string
		want    string
	}{
		{"a pair", nil, "[192.0.2.9:443]"},
		{"an address", addressesOnly, "[192.0.2.9]"},
		{"UDP", []string{"0500070006", "0500070011"}, "foreign entry 192.0.2.9:443: not TCP over IPv4"},
		{"no protocol", []string{"0500070006", "05000a0006"}, "foreign entry 192.0.2.9:443: not TCP over IPv4"},
		{"no port", []string{"0600044001bb", "060004400000"}, "foreign entry 192.0.2.9: not TCP over IPv4"},
		{"a port among addresses", []string{"11000300" + hashIPPort + "000000", "0c000300" + hashIP}, "foreign entry 192.0.2.9:443: not TCP over IPv4"},
		{"an address of 3", []string{address, "07000140c0000209"}, "foreign entry invalid AddrPort: not TCP over IPv4"},
		{"an attribute more", []string{"0600044001bb0000", "0600084001bb0000"}, "foreign entry 192.0.2.9: not TCP over IPv4"},
		{"a netmask", told("050014001f000000"), "foreign option netmask (1f): its entries may not be what it matches"},
		{"a bitmask", told("0c000c80" + address), "foreign option bitmask (08000140c0000209): its entries may not be what it matches"},
		{"a mask of marks", told("08000b40000000ff"), "foreign option markmask (000000ff): its entries may not be what it matches"},
		{"entries that end", told("0800064000000000"), "foreign option timeout (00000000): its entries may not be what it matches"},
		{"counters", told("0800084000000008"), "foreign option flags (00000008): its entries may not be what it matches"},
		{"a size", told("0800174000000008"), "foreign option size (00000008): its entries may not be what it matches"},
		{"what kernels have no number for yet", told("08001b4000000008"), "foreign option number 27 (00000008): its entries may not be what it matches"},
		{"an option cut off", []string{"3c000780", "3c000780" + "ff001b40"}, errCutOff.Error()},
		{"of an old kernel", []string{"3c000780" + plain, "2c000780" + strings.NewReplacer("050015000c000000", "", "08001140659dcb73", "").Replace(plain)}, "[192.0.2.9:443]"},
		{"no options told", []string{"3c000780" + plain, ""}, "not ours"},
		{"another revision", []string{revision, "0500040007000000"}, "not ours"},
		{"no revision", []string{revision, ""}, "not ours"},
		{"cut off", []string{"24000880", "ff000880"}, errCutOff.Error()},
		{"an entry cut off", []string{"20000780", "ff000780"}, errCutOff.Error()},
		{"IPv6", []string{"0500050002", "050005000a"}, "not ours"},
		{"another type", []string{hashIPPort, "686173683a6970" + "2c6d61726b00"}, "not ours"},
	} {
		var l listing
		got := "not ours"
		if err := l.decode(listedBytes(t, c.changes...)); err != nil {
			got = err.Error()
		} else if l.strange() == nil {
			got = fmt.Sprint(l.entries)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	for n := range 4 {
		if err := new(listing).decode(listedBytes(t)[:n]); err == nil {
			t.Errorf("%d bytes are enough", n)
		}
	}
}

// Whatever a kernel may say, nothing panics and nothing is made up.
func FuzzDecodeSet(f *testing.F) {
	f.Add(listedBytes(f))
	f.Add(listedBytes(f, addressesOnly...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := listing{kind: ofPairs, family: unix.AF_INET}
		_ = l.decode(b) // what was read before a mistake must hold too
		for _, e := range l.entries {
			if !e.Addr.Is4() || e.Addr == (netip.Addr{}) {
				t.Errorf("%v", e)
			}
		}
	})
}
