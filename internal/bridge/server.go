package bridge

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
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/netutil"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

const oNonblock = syscall.O_NONBLOCK

const (
	slotsUsual   = 1
	waitingUsual = 4
	limitUsual   = 600 * time.Second
	beatUsual    = 10 * time.Second

	// bodyLimit is a question of the greatest length in the longest spelling that
	// JSON has, and what is around it.
	bodyLimit = 6*promptLimit + 64<<10
	bodyTime  = 30 * time.Second
	conns     = 64 // callers are few; each of theirs takes a descriptor

	// The engine waits 10 s for a container that it asks to end.
	endWithin = 8 * time.Second

	// path is where the tool is.
	path = "/mcp"
	// callHeader carries the number of a call's HTTP request to its handler.
	callHeader = "X-Corral-Call"
)

// bridge answers callers.
type bridge struct {
	document       spec.Researcher
	slots, waiting int
	limit, beat    time.Duration

	log     *slog.Logger
	queue   *queue
	scratch *scratch
	family  *family
	server  *mcp.Server
	broken  atomic.Bool // a call left what could not be removed
	calls   atomic.Int64

	requests sync.Map // number → *message
	number   atomic.Int64
	running  sync.WaitGroup
	stopping context.Context
	stop     context.CancelCauseFunc
}

// message is what a call came by.
type message struct {
	ctx    context.Context // ends with the connection
	stream *stream
}

// open makes a bridge that does not listen yet and removes what one before it may
// have left.
func open(d spec.Researcher, log *slog.Logger) (*bridge, error) {
	b := &bridge{document: d, slots: d.Slots, waiting: d.Queue, log: log, family: newFamily(),
		limit: time.Duration(d.Limit) * time.Millisecond, beat: time.Duration(d.Beat) * time.Millisecond}
	if b.slots == 0 {
		b.slots = slotsUsual
	}
	switch {
	case b.waiting == 0:
		b.waiting = waitingUsual
	case b.waiting < 0:
		b.waiting = 0
	}
	if b.limit == 0 {
		b.limit = limitUsual
	}
	if b.beat == 0 {
		b.beat = beatUsual
	}
	b.queue = newQueue(b.slots, b.waiting)
	var err error
	if b.scratch, err = openScratch(d.Directory, d.Scratch); err != nil {
		return nil, err
	}
	b.stopping, b.stop = context.WithCancelCause(context.Background())
	b.server = mcp.NewServer(&mcp.Implementation{Name: "corral-bridge", Version: spec.Release()}, nil)
	b.server.AddTool(tool, b.call)
	return b, nil
}

func listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, "tcp4", at.String())
}

// serve answers until ctx ends. The socket stays until nothing is left that could
// take its port.
func (b *bridge) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           b.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute, // no other limit: an answer takes its time
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	defer b.family.close()
	reaping, done := context.WithCancel(context.Background())
	defer done()
	go b.family.reap(reaping)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(netutil.LimitListener(l, conns)) }()
	select {
	case err := <-served:
		b.stop(errStopped)
		b.running.Wait()
		return err
	case <-ctx.Done():
	}
	b.stop(errStopped)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	ended := make(chan struct{})
	go func() { b.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-within.Done():
		return errors.Join(exit.Failedf("the kernel does not let a process go; the end of the container takes it along", "a call did not end in %v", endWithin), srv.Close())
	}
	b.family.sweep()
	if err := srv.Shutdown(within); err != nil {
		_ = srv.Close()
	}
	<-served
	return nil
}

func (b *bridge) handler() http.Handler {
	streamable := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return b.server }, &mcp.StreamableHTTPOptions{
		// No session is kept, so none is lost when a bridge starts anew.
		Stateless: true,
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", b.serveHealth)
	mux.HandleFunc("HEAD "+path, notAllowed)
	mux.HandleFunc("GET "+path, notAllowed)
	mux.HandleFunc("DELETE "+path, notAllowed)
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { b.servePost(streamable, w, r) })
	return mux
}

func (b *bridge) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if b.broken.Load() || b.stopping.Err() != nil {
		http.Error(w, "not well", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

// notAllowed answers those that look what is there before they post, such as
// Hermes: no stream but a call's own.
func notAllowed(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	w.WriteHeader(http.StatusMethodNotAllowed)
}

// servePost reads a whole message, so that neither a slow sender nor what is no
// JSON gets further, and keeps the stream of its answer alive.
func (b *bridge) servePost(next http.Handler, w http.ResponseWriter, r *http.Request) {
	b.running.Add(1)
	defer b.running.Done()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	_ = control.SetReadDeadline(time.Time{}) // from here on it would end the call
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		complain(w, http.StatusRequestEntityTooLarge, invalidRequest, fmt.Sprintf("the message has more than %d bytes", bodyLimit))
		return
	case err != nil:
		complain(w, http.StatusBadRequest, parseError, "the message did not arrive whole")
		return
	case !utf8.Valid(body):
		complain(w, http.StatusBadRequest, parseError, "the message is not UTF-8")
		return
	case !json.Valid(body): // nor nested too deep
		complain(w, http.StatusBadRequest, parseError, "the message is not JSON")
		return
	}
	number := strconv.FormatInt(b.number.Add(1), 10)
	s := newStream(w, b.beat)
	defer s.end()
	b.requests.Store(number, &message{r.Context(), s})
	defer b.requests.Delete(number)
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set(callHeader, number)
	next.ServeHTTP(s, r)
}

// Codes of JSON-RPC.
const (
	parseError     = -32700
	invalidRequest = -32600
)

// complain answers a message that is none.
func complain(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": message}})
}

// bind makes a call end with its HTTP request and with the bridge, and keeps its
// stream alive.
func (b *bridge) bind(ctx context.Context, req *mcp.CallToolRequest) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stops := []func() bool{context.AfterFunc(b.stopping, func() { cancel(errStopped) })}
	number := ""
	if req.Extra != nil {
		number = req.Extra.Header.Get(callHeader)
	}
	ended := func() {}
	if m, ok := b.requests.Load(number); ok {
		stops = append(stops, context.AfterFunc(m.(*message).ctx, func() { cancel(errGone) }))
		ended = m.(*message).stream.run()
	} else {
		cancel(errGone)
	}
	return ctx, func() {
		ended()
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}
