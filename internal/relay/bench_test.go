package relay

import (
	"io"
	"testing"
)

// BenchmarkThrough is what a relay costs: a plain connection, and one through it.
func BenchmarkThrough(b *testing.B) {
	needNamespace(b)
	for _, relayed := range []bool{false, true} {
		name := "plain"
		if relayed {
			name = "relayed"
		}
		b.Run(name, func(b *testing.B) {
			s := newService(b)
			if relayed {
				r := open(b, false, s.at)
				serve(b, r)
				r.Accept(addrs(one))
			} else {
				s.Close()
				s = listenAt(b, host)
			}
			c := connect(b, one, s.at.Port())
			inside := s.take(b)
			go io.Copy(io.Discard, inside)
			block := make([]byte, 128<<10)
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				if _, err := c.Write(block); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
