package lab

import (
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Only what begins a connection is recorded where everything is local.
func TestBegun(t *testing.T) {
	vm, err := bpf.NewVM(begun())
	if err != nil {
		t.Fatal(err)
	}
	v4 := func(proto, flags byte) []byte {
		b := make([]byte, 40)
		b[0], b[9], b[20+13] = 0x45, proto, flags
		return b
	}
	v6 := func(proto, flags byte) []byte {
		b := make([]byte, 60)
		b[0], b[6], b[40+13] = 0x60, proto, flags
		return b
	}
	for _, tt := range []struct {
		what string
		b    []byte
		want bool
	}{
		{"SYN", v4(unix.IPPROTO_TCP, 0x02), true},
		{"SYN with ECN", v4(unix.IPPROTO_TCP, 0xc2), true},
		{"SYN ACK", v4(unix.IPPROTO_TCP, 0x12), false},
		{"ACK", v4(unix.IPPROTO_TCP, 0x10), false},
		{"UDP", v4(unix.IPPROTO_UDP, 0x02), false},
		{"IPv6 SYN", v6(unix.IPPROTO_TCP, 0x02), true},
		{"IPv6 ACK", v6(unix.IPPROTO_TCP, 0x10), false},
		{"IPv6 UDP", v6(unix.IPPROTO_UDP, 0x02), false},
	} {
		if n, err := vm.Run(tt.b); err != nil || (n > 0) != tt.want {
			t.Errorf("%s: %d, %v", tt.what, n, err)
		}
	}
}
