package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

// bounded bounds the connections. Who comes when there are as many as there may be
// ends the oldest that has not asked yet: nobody keeps others out by saying nothing.
type bounded struct {
	net.Listener
	max int
	// told is called with what a connection was told that is not a request.
	told  func(c *counted, f spec.FetchFailure)
	mu    sync.Mutex
	open  []*counted    // oldest first
	empty chan struct{} // once it is there nobody is let in; closed when none is open
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		var old *counted
		if b.empty != nil {
			b.mu.Unlock()
			c.Close()
			continue
		}
		if len(b.open) >= b.max {
			i := slices.IndexFunc(b.open, func(c *counted) bool { return c.state.Load() != answered })
			if i < 0 {
				b.mu.Unlock()
				c.Close()
				continue
			}
			old = b.open[i]
			b.open = slices.Delete(b.open, i, i+1)
		}
		n := &counted{Conn: c, of: b, began: time.Now()}
		b.open = append(b.open, n)
		b.mu.Unlock()
		if old != nil {
			old.Conn.Close()
		}
		return n, nil
	}
}

// end lets nobody in any more, and ends the connections that have said nothing. What
// it returns is closed when the rest is gone too.
func (b *bounded) end() <-chan struct{} {
	b.Listener.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.empty = make(chan struct{})
	b.open = slices.DeleteFunc(b.open, func(c *counted) bool {
		said := c.state.Load() != unheard
		if !said {
			c.Conn.Close()
		}
		return !said
	})
	if len(b.open) == 0 {
		close(b.empty)
	}
	return b.empty
}

// hurry ends the wait for requests that are still arriving.
func (b *bounded) hurry() {
	b.mu.Lock()
	open := slices.Clone(b.open)
	b.mu.Unlock()
	for _, c := range open {
		if c.state.CompareAndSwap(arriving, answered) {
			c.tell(shuttingDown())
			c.Close()
			continue
		}
		_ = c.SetReadDeadline(time.Now()) // its handler has the word
	}
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// What has come of a connection.
const (
	unheard  = iota
	arriving // something was said, not yet a request
	asking   // it is a request, whose body is being read
	answered // it is read
)

type counted struct {
	net.Conn
	of    *bounded
	began time.Time
	state atomic.Int32
	spoke sync.Once
	late  atomic.Bool // its time to ask was over
}

// notInTime is why half a request is none.
func notInTime() *failure {
	return failf(spec.FetchBadRequest, "it did not arrive within %v", askWithin)
}

func (c *counted) set(state int32) {
	if c != nil { // in tests there is none
		c.state.Store(state)
	}
}

// errSurplus ends a connection whose client says more than one request. To look for
// its end, the library reads on, one byte, and behind that byte it would see none.
var errSurplus = errors.New("more than one request")

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.state.CompareAndSwap(unheard, arriving)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.late.Store(true)
	}
	if n > 0 && len(b) == 1 && c.state.Load() >= asking {
		return 0, errSurplus
	}
	return n, err
}

// Write has the library say nothing of its own: what it writes before there is a
// request is why there is none, and that is an answer like others.
func (c *counted) Write(b []byte) (int, error) {
	if c.state.Load() >= asking {
		return c.Conn.Write(b)
	}
	if c.late.Load() {
		c.tell(notInTime())
		return len(b), nil
	}
	var status int
	_, _ = fmt.Sscanf(string(b), "HTTP/1.1 %d", &status)
	c.tell(failf(spec.FetchBadRequest, "%s", notRead(status)))
	return len(b), nil
}

// notRead is why the library reads no request, by the status that it would give.
func notRead(status int) string {
	switch status {
	case 417:
		return "it expects what is not done"
	case 431:
		return fmt.Sprintf("its headers have more than %d bytes", maxAskHeaders)
	case 501:
		return "its transfer encoding is not known"
	case 505:
		return "it is not HTTP/1.1"
	}
	return "it is not HTTP as it should be"
}

// tell answers what is no request, once.
func (c *counted) tell(why *failure) {
	c.spoke.Do(func() {
		f := failed(why, spec.FetchFailure{})
		c.of.told(c, f)
		doc, _ := json.Marshal(f) // of strings
		status, retry := f.Error.Status(), ""
		if after := retryAfter(f.Error); after != "" {
			retry = "Retry-After: " + after + "\r\n"
		}
		_ = c.SetWriteDeadline(time.Now().Add(lastWords))
		_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", status, statusText(status), retry, len(doc)+1, doc)
	})
}

// CloseWrite lets who is still writing read what it was told.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *counted) Close() error {
	// Of a request that breaks off between two lines the library says nothing.
	if c.late.Load() && c.state.CompareAndSwap(arriving, answered) {
		c.tell(notInTime())
	}
	c.of.mu.Lock()
	if i := slices.Index(c.of.open, c); i >= 0 {
		c.of.open = slices.Delete(c.of.open, i, i+1)
		if c.of.empty != nil && len(c.of.open) == 0 {
			close(c.of.empty)
		}
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
