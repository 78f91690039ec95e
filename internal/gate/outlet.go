package gate

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// outletBytes wait at most for somebody to take them.
	outletBytes = 256 << 10
	// lastWordsWithin is for what a gate that ends has still to say.
	lastWordsWithin = 2 * time.Second
)

// outlet passes on what is written to it, by a goroutine of its own: whoever
// writes neither waits for a reader that does not read nor learns of a disk
// that is full. What does not fit is dropped and counted, and the count is said
// as soon as somebody listens. Each Write is a whole line.
type outlet struct {
	w io.Writer

	mu      sync.Mutex
	waiting [][]byte
	bytes   int // of waiting, and of what is being written
	lost    int
	news    chan struct{} // holds one token while lines wait
	idle    chan struct{} // closed while none do
}

func newOutlet(w io.Writer) *outlet {
	o := &outlet{w: w, news: make(chan struct{}, 1), idle: make(chan struct{})}
	close(o.idle)
	go o.run()
	return o
}

// Write never fails.
func (o *outlet) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes+len(b) > outletBytes {
		o.lost++
		return len(b), nil
	}
	if o.bytes == 0 {
		o.idle = make(chan struct{})
	}
	o.waiting = append(o.waiting, append([]byte(nil), b...))
	o.bytes += len(b)
	select {
	case o.news <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (o *outlet) run() {
	for range o.news {
		for {
			o.mu.Lock()
			lines := o.waiting
			o.waiting = nil
			o.mu.Unlock()
			if len(lines) == 0 {
				break
			}
			for _, l := range lines {
				o.pass(l)
			}
		}
	}
}

func (o *outlet) pass(line []byte) {
	_, err := o.w.Write(line)
	o.mu.Lock()
	if err != nil {
		o.lost++
	}
	lost := o.lost
	o.mu.Unlock()
	if lost > 0 && err == nil {
		if _, err := fmt.Fprintf(o.w, "corral-gate: %d lines could not be written\n", lost); err == nil {
			o.mu.Lock()
			o.lost -= lost
			o.mu.Unlock()
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes -= len(line); o.bytes == 0 {
		close(o.idle)
	}
}

// flush waits until all is written, for a while.
func (o *outlet) flush(while time.Duration) {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(while):
	}
}
