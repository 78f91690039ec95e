package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// failure is what a proxy before the engine does with its nth call.
type failure func(n int64, engine http.Handler, w http.ResponseWriter, r *http.Request)

// refuse: the engine never hears of it.
func refuse(n int64, _ http.Handler, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	fmt.Fprintf(w, `{"message":"call %d is refused"}`, n)
}

// cut: the engine does it, and the answer is lost.
func cut(_ int64, engine http.Handler, _ http.ResponseWriter, r *http.Request) {
	engine.ServeHTTP(lost{}, r)
	panic(http.ErrAbortHandler)
}

// proxy stands before the engine, notes the kinds of its calls, and fails the nth.
type proxy struct {
	calls atomic.Int64
	nth   int64
	how   failure
	next  http.Handler

	mu    sync.Mutex
	kinds []string
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	n := p.calls.Add(1)
	p.kinds = append(p.kinds, kind(r))
	p.mu.Unlock()
	if n != p.nth {
		p.next.ServeHTTP(w, r)
		return
	}
	p.how(n, p.next, w, r)
}

// kind is what a call asks of the engine, without of whom.
func kind(r *http.Request) string {
	parts := strings.Split(version.ReplaceAllString(r.URL.Path, ""), "/")
	if len(parts) < 3 {
		return r.Method + " " + strings.Join(parts, "/")
	}
	last := parts[len(parts)-1]
	if len(parts) == 3 && r.Method == http.MethodDelete {
		last = "…"
	}
	return fmt.Sprintf("%s %s %d %s", r.Method, parts[1], len(parts), last)
}

var version = regexp.MustCompile(`^/v[0-9.]+`)

// lost lets a call be made, and breaks the connection when the answer comes.
type lost struct{}

func (lost) Header() http.Header         { return http.Header{} }
func (lost) Write(b []byte) (int, error) { panic(http.ErrAbortHandler) }
func (lost) WriteHeader(int)             { panic(http.ErrAbortHandler) }

// before puts a proxy in front of the engine and returns its address.
func before(t *testing.T, dir string, nth int, how failure) (*proxy, string) {
	t.Helper()
	p := &proxy{nth: int64(nth), how: how}
	return p, between(t, filepath.Join(dir, rand.Text()+".sock"), func(engine http.Handler) http.Handler {
		p.next = engine
		return p
	})
}

// toEngine leads to the engine. As corral does it asks for nothing packed: there it
// would take longer than all that a sandbox asks.
func toEngine() *http.Transport {
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: pens, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "/var/run/docker.sock")
	}}
}

// between puts what wrap makes of the engine at a socket that anybody may use,
// and returns its address.
func between(t *testing.T, socket string, wrap func(engine http.Handler) http.Handler) string {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	engine := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	transport := toEngine()
	engine.Transport, engine.FlushInterval = transport, -1
	engine.ErrorLog = log.New(io.Discard, "", 0)
	server := &http.Server{Handler: wrap(engine), ErrorLog: engine.ErrorLog}
	go server.Serve(l)
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return "unix://" + socket
}

// failures are what an engine may do with a call.
var failures = map[string]failure{"refused": refuse, "lost": cut}

// Whichever call of a run the engine fails, the failure is told, no agent runs
// that was not asked for, what is left goes by one command, and the next run
// works.
func TestEngineSweep(t *testing.T) {
	t.Parallel()
	for name, how := range failures {
		for first := 1; first <= sweeps; first++ {
			t.Run(fmt.Sprintf("%s from %d", name, first), func(t *testing.T) {
				t.Parallel()
				sweep(t, project(t, "profile: shell\nname: "+name+"\n"), how, first)
			})
		}
	}
}

// sweeps is how many share the calls of a run among them, side by side.
const sweeps = 3

// sweep fails one call after the other, every sweeps-th from the first on.
func sweep(t *testing.T, s *sandbox, how failure, first int) {
	if r := s.sh("true"); r.code != 0 { // images and volume are there
		t.Fatal(r)
	}
	dir := public(t)
	env := s.env
	for n := first; ; n += sweeps {
		p, address := before(t, dir, n, how)
		s.env = append(env[:len(env):len(env)], "DOCKER_HOST="+address)
		r := s.corral("run", "--", "echo", "ran")
		s.env = env
		if p.calls.Load() < int64(n) {
			t.Logf("%d calls", p.calls.Load())
			break
		}
		switch {
		case r.code == 0 && r.out != "ran\n":
			t.Errorf("call %d: success, but the agent did not run: %v", n, r)
		case r.code != 0 && r.code != 1:
			t.Errorf("call %d: %v", n, r)
		case r.code == 1 && strings.TrimSpace(r.err) == "":
			t.Errorf("call %d: a failure without a word", n)
		}
		if down := s.corral("down"); down.code != 0 {
			t.Errorf("after call %d: corral down: %v", n, down)
		}
		if left := s.containers(); len(left) > 0 {
			t.Errorf("after call %d and corral down: left %v", n, left)
		}
	}
	if r := s.sh("echo well"); r.code != 0 || r.out != "well\n" {
		t.Errorf("the run after the sweep: %v", r)
	}
}
