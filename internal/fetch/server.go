package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// maxRequest bounds what may be asked, in bytes: a URL, escaped.
	maxRequest = 8 * maxURL
	// maxDrained is how much more than that is taken, and thrown away.
	maxDrained = 4 << 20
	// askWithin is how long a request may take to arrive.
	askWithin = 10 * time.Second
	// takeWithin is how long an answer may take to leave. Its slot is held so long.
	takeWithin = 20 * time.Second
	// retryAfter is what who is refused is told to wait, in seconds.
	retryAfter = "1"
	// maxConns bounds the connections of those who ask. One more ends the oldest that
	// waits for nothing but what its client has to say.
	maxConns = 1024
	// usualRequest is what every connection may ask at the same time, in bytes; of
	// longer requests a few are read at a time.
	usualRequest = 2 << 10
	longRequests = 16
	// drainWithin is how long a server that ends waits for what is under way.
	drainWithin = 5 * time.Second
)

// server answers FetchPath and /healthz.
type server struct {
	follower follower
	slots    slots
	long     slots // requests that are longer than usual
	log      *slog.Logger
	// extract is the package's own but in tests of what happens when it fails.
	extract func(context.Context, *page, int) (text, error)
}

func newServer(s settings, out io.Writer) (*server, error) {
	roots, err := s.roots()
	if err != nil {
		return nil, err
	}
	return &server{follower: follower{settings: s, roots: roots}, slots: newSlots(s.Slots), long: newSlots(longRequests), log: slog.New(slog.NewJSONHandler(out, nil)), extract: extract}, nil
}

// serve answers until ctx ends, and then for as long as what is under way takes,
// within bounds.
func (s *server) serve(ctx context.Context, l net.Listener) error {
	log.SetOutput(io.Discard) // the HTTP library tells what servers send too much
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: askWithin,
		ReadTimeout:       askWithin,
		MaxHeaderBytes:    4 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		// What is asked of no path is not found, like anything else.
		DisableGeneralOptionsHandler: true,
	}
	srv.SetKeepAlivesEnabled(false)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(&bounded{Listener: l, max: maxConns}) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(base, drainWithin)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		stop()
		return srv.Close()
	}
	return nil
}

// ServeHTTP answers one request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	asker, _ := r.Context().Value(connKey{}).(*counted)
	asker.set(asking)
	switch {
	case r.URL.Path == "/healthz" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		s.write(w, http.StatusOK, map[string]any{"status": "ok", "slots": cap(s.slots), "taken": s.slots.taken()})
		return
	case r.URL.Path == spec.FetchPath && r.Method == http.MethodPost:
	case r.URL.Path == spec.FetchPath:
		w.Header().Set("Allow", http.MethodPost)
		s.refuse(w, began, spec.FetchFailure{Error: spec.FetchMethod, Detail: "POST " + spec.FetchPath})
		return
	case r.URL.Path == "/healthz":
		w.Header().Set("Allow", http.MethodGet)
		s.refuse(w, began, spec.FetchFailure{Error: spec.FetchMethod, Detail: "GET /healthz"})
		return
	default:
		s.refuse(w, began, spec.FetchFailure{Error: spec.FetchNotFound, Detail: "POST " + spec.FetchPath + " or GET /healthz"})
		return
	}
	asked, err := s.readRequest(r)
	asker.set(answered)
	if err != nil {
		s.refuse(w, began, failed(err, spec.FetchFailure{}))
		return
	}
	t, err := parse(asked.URL, s.follower.Ports)
	if err != nil {
		s.refuse(w, began, failed(err, spec.FetchFailure{URL: cut(asked.URL, maxURL)}))
		return
	}
	release, ok := s.slots.take()
	if !ok {
		s.refuse(w, began, spec.FetchFailure{Error: spec.FetchBusy})
		return
	}
	answer, failure, left := s.answer(r.Context(), asked.URL, t)
	defer func() {
		if left == nil {
			release()
			return
		}
		go func() { <-left; release() }()
	}()
	if failure != nil {
		s.refuse(w, began, *failure)
		return
	}
	s.log.Info("fetched", "url", answer.URL, "status", answer.Status, "type", answer.ContentType, "bytes", len(answer.ContentMarkdown),
		"truncated", answer.Truncated, "ms", time.Since(began).Milliseconds(), "hops", answer.Hops)
	s.write(w, http.StatusOK, answer)
}

// readRequest is the one object that a request is.
func (s *server) readRequest(r *http.Request) (asked spec.FetchRequest, err error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, usualRequest))
	if err == nil && len(body) == usualRequest {
		release, ok := s.long.take()
		if !ok {
			return asked, failf(spec.FetchBusy, "")
		}
		defer release()
		var rest []byte
		rest, err = io.ReadAll(io.LimitReader(r.Body, maxRequest+1-usualRequest))
		body = append(body, rest...)
	}
	switch {
	case err != nil:
		return asked, failf(spec.FetchBadRequest, "it did not arrive whole")
	case len(body) > maxRequest:
		// Who writes on to a connection that is closed sees that, and not the answer.
		_, _ = io.CopyN(io.Discard, r.Body, maxDrained)
		return asked, failf(spec.FetchBadRequest, "a request has at most %d bytes", maxRequest)
	}
	if err := spec.Decode(bytes.NewReader(body), &asked); err != nil {
		return asked, failf(spec.FetchBadRequest, `it is not one object like {"url": "https://example.com/"}: %s`, ownWords(err))
	}
	return asked, nil
}

// answer does the work of one slot, and takes no longer than the limit. What cannot be
// given up in the middle is left to itself: until it is done, the slot is taken.
func (s *server) answer(ctx context.Context, asked string, t target) (a *spec.FetchAnswer, f *spec.FetchFailure, left <-chan struct{}) {
	total := s.follower.Total
	ctx, cancel := context.WithTimeoutCause(ctx, total, failf(spec.FetchTimeout, "not done within %v", total))
	defer cancel()
	var p page
	var hops []spec.FetchHop
	err := s.guarded(asked, func() (err error) {
		p, hops, err = s.follower.get(ctx, t)
		return err
	})
	if err == nil {
		final, status, contentType, more := p.target.url.String(), p.status, legible(p.contentType), p.cut
		var c text
		var broken error
		done := make(chan struct{})
		go func() {
			defer close(done)
			broken = s.guarded(asked, func() (err error) {
				c, err = s.extract(ctx, &p, s.follower.Text)
				return err
			})
		}()
		select {
		case <-done:
			if err = broken; err == nil {
				return &spec.FetchAnswer{URL: asked, FinalURL: final, Status: status, Title: c.title, ContentMarkdown: c.markdown,
					ContentType: contentType, Truncated: more || c.cut, Hops: hops}, nil, nil
			}
		case <-ctx.Done():
			left = done
		}
	}
	told := failed(ended(ctx, err), spec.FetchFailure{URL: asked, Hops: hops})
	return nil, &told, left
}

// guarded makes an error of a panic.
func (s *server) guarded(asked string, work func() error) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			s.log.Error("panic", "url", asked, "what", cut(fmt.Sprint(broken), maxDetail), "stack", string(debug.Stack()))
			err = failf(spec.FetchInternal, "a fault in corral-fetch: its log has more")
		}
	}()
	return work()
}

// failed is what an error is told as.
func failed(err error, told spec.FetchFailure) spec.FetchFailure {
	var f *failure
	if !errors.As(err, &f) {
		f = failf(spec.FetchInternal, "%v", err)
	}
	told.Error, told.Detail = f.reason, f.detail
	return told
}

func (s *server) refuse(w http.ResponseWriter, began time.Time, f spec.FetchFailure) {
	s.log.Info("refused", "url", f.URL, "error", f.Error, "detail", f.Detail, "ms", time.Since(began).Milliseconds(), "hops", f.Hops)
	if f.Error == spec.FetchBusy {
		w.Header().Set("Retry-After", retryAfter)
	}
	s.write(w, f.Error.Status(), f)
}

// write sends a document to its last byte.
func (s *server) write(w http.ResponseWriter, status int, doc any) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(takeWithin)) // of a test's writer it is no matter
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(doc) // whoever asked may be gone
	_ = control.Flush()
}

// bounded bounds the connections. Who comes when there are as many as there may be
// ends the oldest that has not asked yet: nobody keeps others out by saying nothing.
type bounded struct {
	net.Listener
	max  int
	mu   sync.Mutex
	open []*counted // oldest first
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		var old *counted
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
		n := &counted{Conn: c, of: b}
		b.open = append(b.open, n)
		b.mu.Unlock()
		if old != nil {
			old.Conn.Close()
		}
		return n, nil
	}
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// What has come of a connection.
const (
	asking   = 1 + iota // its request is being read
	answered            // it is read
)

type counted struct {
	net.Conn
	of    *bounded
	state atomic.Int32
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
	if n > 0 && len(b) == 1 && c.state.Load() != 0 {
		return 0, errSurplus
	}
	return n, err
}

func (c *counted) Close() error {
	c.of.mu.Lock()
	if i := slices.Index(c.of.open, c); i >= 0 {
		c.of.open = slices.Delete(c.of.open, i, i+1)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
