package gate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

// Whoever writes never waits, whether anybody reads or not; what was dropped is
// counted once somebody does.
func TestOutletNeverBlocks(t *testing.T) {
	r, w := io.Pipe()
	o := newOutlet(w)
	line := strings.Repeat("x", 1023) + "\n"
	const n = 4 * outletBytes / 1024
	for range n {
		if _, err := io.WriteString(o, line); err != nil { // nobody reads: a deadlock would end the test
			t.Fatal(err)
		}
	}
	o.flush(time.Millisecond) // ends, although nothing is written
	lines, kept, lost := bufio.NewScanner(r), 0, 0
	for kept+lost < n && lines.Scan() {
		var more int
		if _, err := fmt.Sscanf(lines.Text(), "corral-gate: %d lines could not be written", &more); err == nil {
			lost += more
		} else {
			kept++
		}
	}
	if kept < outletBytes/1024-1 || kept+lost != n {
		t.Errorf("%d lines kept, %d counted as lost, of %d", kept, lost, n)
	}
}

// full is a disk that is full for a while.
type full struct {
	mu   sync.Mutex
	left int // writes that fail
	said strings.Builder
}

func (f *full) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
		return 0, errors.New("no space left on device")
	}
	return f.said.Write(b)
}

// What could not be written is no error of whoever wrote it, and is counted.
func TestOutletOnAFullDisk(t *testing.T) {
	f := &full{left: 2}
	o := newOutlet(f)
	for i := range 4 {
		if _, err := fmt.Fprintf(o, "line %d\n", i); err != nil {
			t.Error(err)
		}
		o.flush(time.Minute)
	}
	want := "line 2\ncorral-gate: 2 lines could not be written\nline 3\n"
	if got := f.said.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
