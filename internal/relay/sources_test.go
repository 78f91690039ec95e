package relay

import (
	"net/netip"
	"testing"
)

func TestSourcesBounds(t *testing.T) {
	all := addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	for k := range kinds {
		b := bounds[k]
		if b.each <= 0 || b.all < b.each || b.all > b.each*(len(all)-1) {
			t.Fatalf("kind %d: bounds %+v", k, b)
		}
		var s sources
		if s.admit(all[0], k) != nil {
			t.Fatal("the zero value admits")
		}
		s.replace(all)
		fill := func(a netip.Addr) (n int, last *source) {
			for src := s.admit(a, k); src != nil; src = s.admit(a, k) {
				last = src
				n++
			}
			return n, last
		}
		left := b.all
		var first *source
		for i, a := range all {
			n, src := fill(a)
			if n != min(b.each, left) {
				t.Errorf("kind %d: %d of %v, want %d", k, n, a, min(b.each, left))
			}
			left -= n
			if i == 0 {
				first = src
			}
		}
		if s.admit(netip.MustParseAddr("10.0.0.9"), k) != nil {
			t.Error("a stranger is admitted")
		}
		// One who leaves makes room for exactly one.
		s.leave(first, k)
		if n, _ := fill(all[len(all)-1]); n != 1 {
			t.Errorf("kind %d: room for %d after one left", k, n)
		}
		// The other kind has its own count.
		if s.admit(all[0], kinds-1-k) == nil {
			t.Errorf("kind %d: takes the other's room", k)
		}
	}
}

func TestSourcesReplace(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	var s sources
	s.replace([]netip.Addr{a, b})
	stays, goes := s.admit(a, connection), s.admit(b, connection)
	replaced := make(chan struct{})
	go func() {
		s.replace([]netip.Addr{a})
		close(replaced)
	}()
	<-goes.ctx.Done()
	select {
	case <-replaced:
		t.Error("in force while one who is not listed is busy")
	default:
	}
	if s.admit(b, lookup) != nil {
		t.Error("admitted though no longer listed")
	}
	s.leave(goes, connection)
	<-replaced
	if stays.ctx.Err() != nil || s.admit(a, connection) != stays {
		t.Error("one who is still listed was ended")
	}
	s.replace([]netip.Addr{a, b})
	if again := s.admit(b, connection); again == nil || again == goes || again.ctx.Err() != nil {
		t.Error("one who is listed again is not as new")
	}
}
