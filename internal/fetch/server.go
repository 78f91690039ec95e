package fetch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/printable"
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
	// maxConns bounds the connections of those who ask. One more ends the oldest that
	// waits for nothing but what its client has to say.
	maxConns = 1024
	// usualRequest is what every connection may ask at the same time, in bytes; of
	// longer requests a few are read at a time.
	usualRequest = 2 << 10
	longRequests = 16
	// maxAskHeaders bounds what a request says before its body, in bytes. The library
	// lets through headroom more than it is told.
	maxAskHeaders = 8 << 10
	headroom      = 4 << 10
	// graceWithin is how long a server that ends waits for what is under way, and
	// lastWords how long for who is told that it is given up. Docker kills after 10 s.
	graceWithin = 5 * time.Second
	lastWords   = 2 * time.Second
)

// server answers FetchPath and /healthz.
type server struct {
	follower follower
	slots    slots
	long     slots // requests that are longer than usual
	log      *slog.Logger
	conns    *bounded
	ending   atomic.Bool
	after    func(time.Duration) <-chan time.Time
	// extract is the package's own but in tests of what happens when it fails.
	extract func(context.Context, *page, int) (text, error)
}

func newServer(s settings, out io.Writer) (*server, error) {
	roots, err := s.roots()
	if err != nil {
		return nil, err
	}
	srv := &server{follower: follower{settings: s, roots: roots}, slots: newSlots(s.Slots), long: newSlots(longRequests), after: time.After, log: slog.New(slog.NewJSONHandler(printed{out}, nil)), extract: extract}
	srv.conns = &bounded{max: maxConns, told: func(c *counted, f spec.FetchFailure) { srv.tell(c.RemoteAddr().String(), c.began, "", f) }}
	return srv, nil
}

// serve answers until ctx ends. Then nobody is let in any more, what is under way has a
// little time to be done, and the rest is told why it is not.
func (s *server) serve(ctx context.Context, l net.Listener) error {
	log.SetOutput(io.Discard) // the HTTP library tells what servers send too much
	base, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: askWithin,
		ReadTimeout:       askWithin,
		MaxHeaderBytes:    maxAskHeaders - headroom,
		ErrorLog:          log.New(io.Discard, "", 0),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		// What is asked of no path is not found, like anything else.
		DisableGeneralOptionsHandler: true,
	}
	srv.SetKeepAlivesEnabled(false)
	s.conns.Listener = l
	done := make(chan error, 1)
	go func() { done <- srv.Serve(s.conns) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	s.ending.Store(true)
	s.log.Info("ending", "taken", s.slots.taken())
	// Not by the library's Shutdown, which cuts who has just asked without a word.
	left := s.conns.end()
	select {
	case <-left:
	case <-s.after(graceWithin):
		stop(shuttingDown())
		s.conns.hurry()
		select {
		case <-left:
		case <-time.After(lastWords):
		}
	}
	if err := srv.Close(); !errors.Is(err, net.ErrClosed) { // the listener is closed already
		return err
	}
	return nil
}

func shuttingDown() *failure { return failf(spec.FetchShuttingDown, "corral-fetch is being ended") }

// printed is where lines of JSON go that a terminal may show: what others wrote in them has
// no hold on it.
type printed struct{ io.Writer }

func (p printed) Write(line []byte) (int, error) {
	if _, err := p.Writer.Write(printable.JSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// exchange is one request: one answer comes of it, and one line of the log.
type exchange struct {
	*server
	http.ResponseWriter
	began  time.Time
	client string
	url    string // that is asked for, once it is known
}

// ServeHTTP answers one request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asker, _ := r.Context().Value(connKey{}).(*counted)
	asker.set(asking)
	x := &exchange{server: s, ResponseWriter: w, began: time.Now(), client: r.RemoteAddr}
	if why := foreign(r); why != "" {
		x.refuse(spec.FetchFailure{Error: spec.FetchForbidden, Detail: why})
		return
	}
	switch {
	case r.URL.Path == "/healthz" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		x.write(http.StatusOK, map[string]any{"status": "ok", "slots": cap(s.slots), "taken": s.slots.taken()})
		return
	case r.URL.Path == spec.FetchPath && r.Method == http.MethodPost:
	case r.URL.Path == spec.FetchPath:
		w.Header().Set("Allow", http.MethodPost)
		x.refuse(spec.FetchFailure{Error: spec.FetchMethod, Detail: "POST " + spec.FetchPath})
		return
	case r.URL.Path == "/healthz":
		w.Header().Set("Allow", "GET, HEAD")
		x.refuse(spec.FetchFailure{Error: spec.FetchMethod, Detail: "GET /healthz"})
		return
	default:
		x.refuse(spec.FetchFailure{Error: spec.FetchNotFound, Detail: "POST " + spec.FetchPath + " or GET /healthz"})
		return
	}
	asked, err := s.readRequest(r)
	asker.set(answered)
	if err != nil {
		var told *failure
		if errors.As(context.Cause(r.Context()), &told) { // it was given up
			err = told
		}
		x.refuse(failed(err, spec.FetchFailure{}))
		return
	}
	x.url = cut(asked.URL, maxURL)
	if s.ending.Load() {
		x.refuse(failed(shuttingDown(), spec.FetchFailure{URL: x.url}))
		return
	}
	t, err := parse(asked.URL, s.follower.Ports)
	if err != nil {
		x.refuse(failed(err, spec.FetchFailure{URL: x.url}))
		return
	}
	release, ok := s.slots.take()
	if !ok {
		x.refuse(spec.FetchFailure{Error: spec.FetchBusy})
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
		x.refuse(*failure)
		return
	}
	s.log.Info("fetched", "client", x.client, "url", answer.URL, "status", answer.Status, "type", answer.ContentType, "bytes", len(answer.ContentMarkdown),
		"truncated", answer.Truncated, "ms", x.took(), "hops", answer.Hops)
	x.write(http.StatusOK, answer)
}

// foreign says why a request is none of a program's own. A browser lets any page ask
// any address that it reaches, and says in Origin and Sec-Fetch-Site that a page did;
// that a name of the page's own leads here, its Host says.
func foreign(r *http.Request) string {
	if _, is := r.Header["Origin"]; is {
		return "Origin: a page in a browser asks"
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "none" && site != "same-origin" {
			return "Sec-Fetch-Site: a page in a browser asks"
		}
	}
	at, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if at != nil && !at.IP.IsLoopback() || r.Host == "" {
		return ""
	}
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	a, err := netip.ParseAddr(strings.Trim(name, "[]"))
	if err == nil && a.IsLoopback() || strings.EqualFold(name, "localhost") {
		return ""
	}
	return "Host: at this machine's own address it is that address or localhost"
}

// readRequest is the one object that a request is.
func (s *server) readRequest(r *http.Request) (asked spec.FetchRequest, err error) {
	// A form of a page can send text/plain that looks like JSON, and what it sends as
	// curl -d does cannot: it is percent-encoded.
	if types := r.Header["Content-Type"]; len(types) > 0 {
		media, _, err := mime.ParseMediaType(types[0])
		if len(types) > 1 || err != nil || media != "application/json" && media != "application/x-www-form-urlencoded" {
			return asked, failf(spec.FetchBadRequest, "Content-Type: application/json, what curl -d says, or none")
		}
	}
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
	case errors.Is(err, os.ErrDeadlineExceeded):
		return asked, notInTime()
	case err != nil:
		return asked, failf(spec.FetchBadRequest, "it did not arrive whole")
	case len(body) > maxRequest:
		// Who writes on to a connection that is closed sees that, and not the answer.
		_, _ = io.CopyN(io.Discard, r.Body, maxDrained)
		return asked, failf(spec.FetchBadRequest, "a request has at most %d bytes", maxRequest)
	}
	if asked.URL, err = urlOf(body); err != nil {
		return asked, failf(spec.FetchBadRequest, `it is not one object like {"url": "https://example.com/"}: %v`, err)
	}
	return asked, nil
}

// urlOf reads the one object that may be asked: its key is exact, and there once.
func urlOf(body []byte) (string, error) {
	if !utf8.Valid(body) {
		return "", errors.New("it is not UTF-8")
	}
	if !json.Valid(body) {
		return "", errors.New("it is not JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if first, _ := dec.Token(); first != json.Delim('{') {
		return "", errors.New("it is not an object")
	}
	var url string
	var seen bool
	for dec.More() {
		key, _ := dec.Token()
		var value json.RawMessage
		switch err := dec.Decode(&value); {
		case err != nil:
			return "", errors.New("a value of it cannot be read")
		case key != "url":
			return "", errors.New("it has another key")
		case seen:
			return "", errors.New("url is there twice")
		case value[0] != '"' || json.Unmarshal(value, &url) != nil:
			return "", errors.New("url is not a string")
		}
		seen = true
	}
	if !seen {
		return "", errors.New("it has no url")
	}
	return url, nil
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
	err = ended(ctx, err)
	if !errors.As(err, new(*failure)) {
		s.log.Error("error", "url", asked, "what", cut(err.Error(), maxDetail))
	}
	told := failed(err, spec.FetchFailure{URL: asked, Hops: hops})
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
		f = failf(spec.FetchInternal, "a fault in corral-fetch: its log has more")
	}
	told.Error, told.Detail = f.reason, f.detail
	return told
}

// retryAfter is what who is refused is told to wait, in seconds.
func retryAfter(r spec.FetchReason) string {
	switch r {
	case spec.FetchBusy:
		return "1"
	case spec.FetchShuttingDown: // whatever starts it again takes longer
		return "5"
	}
	return ""
}

// statusText is a status in words, also where there are none.
func statusText(code int) string { return cmp.Or(http.StatusText(code), "Client Gone") }

// took is how long it has been, in milliseconds.
func (x *exchange) took() int64 { return time.Since(x.began).Milliseconds() }

func (x *exchange) refuse(f spec.FetchFailure) {
	x.tell(x.client, x.began, x.url, f)
	if after := retryAfter(f.Error); after != "" {
		x.Header().Set("Retry-After", after)
	}
	x.write(f.Error.Status(), f)
}

// tell logs what came in place of a page, and whose doing that is.
func (s *server) tell(client string, began time.Time, url string, f spec.FetchFailure) {
	level := slog.LevelInfo
	if f.Error.Fault() == spec.FetchOurs {
		level = slog.LevelError
	}
	detail := f.Detail
	if f.Error == spec.FetchBusy && detail == "" { // the answer has one word
		detail = fmt.Sprintf("%d of %d slots are taken", s.slots.taken(), cap(s.slots))
	}
	hops := f.Hops
	if hops == nil {
		hops = []spec.FetchHop{}
	}
	s.log.Log(context.Background(), level, string(f.Error.Fault()), "client", client, "url", url, "error", f.Error, "detail", detail, "ms", time.Since(began).Milliseconds(), "hops", hops)
}

// write sends a document to its last byte.
func (x *exchange) write(status int, doc any) {
	control := http.NewResponseController(x.ResponseWriter)
	_ = control.SetWriteDeadline(time.Now().Add(takeWithin)) // of a test's writer it is no matter
	x.Header().Set("Content-Type", "application/json")
	x.WriteHeader(status)
	enc := json.NewEncoder(x.ResponseWriter)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(doc) // whoever asked may be gone
	_ = control.Flush()
}
