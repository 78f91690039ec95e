package relay

import (
	"context"
	"net/netip"
	"sync"
)

// kind is what is counted.
type kind int

const (
	connection kind = iota
	lookup
	kinds
)

// bounds are how many there may be at a time. All of it: a connection takes up
// to six descriptors and as many kernel buffers, a lookup one of each, and a
// relay has little memory. Of one source: no gate can take all from the others.
var bounds = [kinds]struct{ all, each int }{
	connection: {all: 512, each: 128},
	lookup:     {all: 1024, each: 256},
}

// sources is who is accepted and what they have at the moment. The zero value
// accepts nobody.
type sources struct {
	mu     sync.Mutex
	listed map[netip.Addr]*source
	count  [kinds]int
}

// source is one accepted address. Its context ends when it is listed no longer.
type source struct {
	ctx   context.Context
	end   context.CancelFunc
	count [kinds]int // under the mutex of sources
	busy  sync.WaitGroup
}

// admit counts one more of a source, to be given back to leave; nil refuses it.
func (s *sources) admit(a netip.Addr, k kind) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.listed[a]
	if src == nil || src.count[k] >= bounds[k].each || s.count[k] >= bounds[k].all {
		return nil
	}
	src.count[k]++
	s.count[k]++
	src.busy.Add(1)
	return src
}

func (s *sources) leave(src *source, k kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src.count[k]--
	s.count[k]--
	src.busy.Done()
}

// replace returns when those who went have nothing left.
func (s *sources) replace(list []netip.Addr) {
	next := map[netip.Addr]*source{}
	s.mu.Lock()
	for _, a := range list {
		src := s.listed[a]
		if src == nil {
			src = &source{}
			src.ctx, src.end = context.WithCancel(context.Background())
		}
		next[a] = src
	}
	var gone []*source
	for a, src := range s.listed {
		if next[a] == nil {
			gone = append(gone, src)
		}
	}
	s.listed = next
	s.mu.Unlock()
	for _, src := range gone {
		src.end()
	}
	for _, src := range gone {
		src.busy.Wait()
	}
}
