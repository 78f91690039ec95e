package bridge

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

// stream is the answer to one message. While a call of it runs, it is an event
// stream that never falls silent: when nothing was written for a beat, it writes a
// comment, which clients skip. Hermes' client asks for no progress notices, and ends
// what is silent for 300 s.
type stream struct {
	http.ResponseWriter

	mu      sync.Mutex
	begun   bool // the status is out
	between bool // no event is half written
	// calls are those that run. Only then is it sure that the answer is a stream, and
	// that nobody else touches its header.
	calls int
	ended bool
	last  time.Time
	stop  chan struct{}
}

var keepAlive = []byte(": still there\n\n")

func newStream(w http.ResponseWriter, beat time.Duration) *stream {
	s := &stream{ResponseWriter: w, between: true, last: time.Now(), stop: make(chan struct{})}
	go s.beat(beat)
	return s
}

func (s *stream) beat(every time.Duration) {
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.comment(every)
		}
	}
}

func (s *stream) comment(every time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.calls == 0 || !s.between || time.Since(s.last) < every/2 {
		return
	}
	s.begin(http.StatusOK)
	if _, err := s.ResponseWriter.Write(keepAlive); err == nil {
		_ = http.NewResponseController(s.ResponseWriter).Flush()
	}
	s.last = time.Now()
}

func (s *stream) begin(status int) {
	if !s.begun {
		s.begun = true
		s.ResponseWriter.WriteHeader(status)
	}
}

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(status)
}

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(http.StatusOK)
	n, err := s.ResponseWriter.Write(b)
	s.last = time.Now()
	s.between = err == nil && bytes.HasSuffix(b, []byte("\n\n"))
	return n, err
}

// Flush is called by who holds no lock, at any time.
func (s *stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(http.StatusOK)
	_ = http.NewResponseController(s.ResponseWriter).Flush()
}

// run is told that a call begins, and returns what is told of its end.
func (s *stream) run() (ended func()) {
	s.add(1)
	return func() { s.add(-1) }
}

func (s *stream) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls += n
}

// end is for a stream whose connection is given back: nothing is written after it.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	close(s.stop)
}
