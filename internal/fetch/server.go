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
	// maxConns bounds the connections of those who ask; more are closed at once.
	maxConns = 2048
	// drainWithin is how long a server that ends waits for what is under way.
	drainWithin = 5 * time.Second
)

// server answers FetchPath and /healthz.
type server struct {
	follower follower
	slots    slots
	log      *slog.Logger
	// extract is the package's own but in tests of what happens when it fails.
	extract func(context.Context, *page, int) (text, error)
}

func newServer(s settings, out io.Writer) (*server, error) {
	roots, err := s.roots()
	if err != nil {
		return nil, err
	}
	return &server{follower: follower{settings: s, roots: roots}, slots: newSlots(s.Slots), log: slog.New(slog.NewJSONHandler(out, nil)), extract: extract}, nil
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
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
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
	asked, err := readRequest(r)
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
		w.Header().Set("Retry-After", retryAfter)
		s.refuse(w, began, spec.FetchFailure{Error: spec.FetchBusy})
		return
	}
	defer release()
	answer, failure := s.answer(r.Context(), asked.URL, t)
	if failure != nil {
		s.refuse(w, began, *failure)
		return
	}
	s.log.Info("fetched", "url", answer.URL, "status", answer.Status, "type", answer.ContentType, "bytes", len(answer.ContentMarkdown),
		"truncated", answer.Truncated, "ms", time.Since(began).Milliseconds(), "hops", answer.Hops)
	s.write(w, http.StatusOK, answer)
}

// readRequest is the one object that a request is.
func readRequest(r *http.Request) (asked spec.FetchRequest, err error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
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

// answer does the work of one slot.
func (s *server) answer(ctx context.Context, asked string, t target) (a *spec.FetchAnswer, f *spec.FetchFailure) {
	var hops []spec.FetchHop
	defer func() {
		if broken := recover(); broken != nil {
			s.log.Error("panic", "url", asked, "what", cut(fmt.Sprint(broken), maxDetail), "stack", string(debug.Stack()))
			a, f = nil, &spec.FetchFailure{Error: spec.FetchInternal, Detail: "a fault in corral-fetch: its log has more", URL: asked, Hops: hops}
		}
	}()
	total := s.follower.Total
	ctx, cancel := context.WithTimeoutCause(ctx, total, failf(spec.FetchTimeout, "not done within %v", total))
	defer cancel()
	p, hops, err := s.follower.get(ctx, t)
	if err == nil {
		var c text
		if c, err = s.extract(ctx, &p, s.follower.Text); err == nil {
			return &spec.FetchAnswer{URL: asked, FinalURL: p.target.url.String(), Status: p.status, Title: c.title, ContentMarkdown: c.markdown,
				ContentType: legible(p.contentType), Truncated: p.cut || c.cut, Hops: hops}, nil
		}
	}
	told := failed(ended(ctx, err), spec.FetchFailure{URL: asked, Hops: hops})
	return nil, &told
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

// bounded closes what is beyond a number of connections.
type bounded struct {
	net.Listener
	max  int64
	open atomic.Int64
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) > b.max {
			b.open.Add(-1)
			c.Close()
			continue
		}
		return &counted{Conn: c, open: &b.open}, nil
	}
}

type counted struct {
	net.Conn
	open   *atomic.Int64
	closed atomic.Bool
}

func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}
