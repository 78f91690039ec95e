package bridge

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// What looks at the bridge before it speaks, and what speaks badly, is answered.
func TestHTTP(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	const accept = "application/json, text/event-stream"
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"health", "GET", "/healthz", "", 200, "ok\n"},
		{"a look by HEAD", "HEAD", path, "", 405, ""},
		{"a look by GET", "GET", path, "", 405, ""},
		{"the end of a session", "DELETE", path, "", 405, ""},
		{"elsewhere", "POST", "/", list, 404, ""},
		{"tools", "POST", path, list, 200, `"max_sources"`},
		{"ping", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 200, `"result":{}`},
		{"a probe of Hermes", "POST", path, `{"jsonrpc":"2.0","id":"_probe","method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"hermes-probe","version":"0.1"}}}`, 200, `"corral-bridge"`},
		{"nothing", "POST", path, "", 400, "-32700"},
		{"no JSON", "POST", path, "{", 400, "-32700"},
		{"two messages", "POST", path, list + list, 400, "-32700"},
		{"not UTF-8", "POST", path, strings.Replace(list, "list", "\xff", 1), 400, "-32700"},
		{"nested", "POST", path, strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), 400, "-32700"},
		{"nested arguments", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"research","arguments":` + strings.Repeat(`{"a":`, 900) + "1" + strings.Repeat("}", 900) + `}}`, 200, "-32602"},
		{"deeper arguments", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"research","arguments":` + strings.Repeat(`{"a":`, 9_000) + "1" + strings.Repeat("}", 9_000) + `}}`, 400, "nesting depth"},
		{"too large", "POST", path, `"` + strings.Repeat("x", bodyLimit) + `"`, 413, "-32600"},
		{"a method that is none", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"nonsense"}`, 400, ""},
		{"no message", "POST", path, `{}`, 400, ""},
		{"a number", "POST", path, `1`, 400, ""},
		{"an empty batch", "POST", path, `[]`, 400, ""},
		{"params of another kind", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}`, 200, "-32602"},
		{"a tool that is none", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`, 200, "-32602"},
		{"a name of another kind", "POST", path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}`, 200, "-32602"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+b.at+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s: %d %.300s %v", tt.name, resp.StatusCode, body, err)
		}
	}
	if s := b.caller().question(t, "plain"); s.Why != "" {
		t.Errorf("afterwards: %+v", s)
	}
	// A message that never comes whole holds up nobody.
	conn, err := net.Dial("tcp", b.at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", path)
	if s := b.caller().question(t, "plain"); s.Why != "" {
		t.Errorf("beside it: %+v", s)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	b := start(t, func(d *spec.Researcher) { d.Limit = 1000 })
	if err := health(t.Context(), b.document); err != nil {
		t.Error(err)
	}
	unspecified := b.document
	unspecified.Listen = spec.Researcher{}.Listen
	b.end(syscall.SIGTERM)
	if err := health(t.Context(), b.document); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("of a bridge that is gone: %v", err)
	}
	web := http.NewServeMux()
	web.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	l, err := net.Listen("tcp4", b.at)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: web}
	go func() { _ = srv.Serve(l) }()
	if err := health(t.Context(), b.document); err == nil || !strings.Contains(err.Error(), "does not speak MCP") {
		t.Errorf("of something else: %v", err)
	}
	srv.Close()
	b.run()
}

func TestMainRefuses(t *testing.T) {
	d := documentFor(t)
	for _, tt := range []struct {
		name     string
		args     []string
		document string
		status   int
		want     string
	}{
		{"nothing", nil, "", 2, "no command"},
		{"a command that is none", []string{"run"}, "", 2, `no command is called "run"`},
		{"an argument", []string{"version", "now"}, "", 2, `takes no "now"`},
		{"no document", []string{"serve"}, "", 2, "no CORRAL_BRIDGE says"},
		{"a document that is none", []string{"serve"}, "{}", 2, "researcher spec"},
		{"a folder that is no memory", []string{"serve"}, func() string {
			d := d
			d.Directory = "/etc/corral-bridge-of-a-test"
			return string(spec.Encode(d))
		}(), 1, "is no tmpfs"},
	} {
		var out, errs bytes.Buffer
		if tt.document != "" {
			t.Setenv(spec.BridgeEnv, tt.document)
		}
		// The process of the test becomes what it will be anyway.
		if got := Main(t.Context(), &out, &errs, tt.args); got != tt.status || !strings.Contains(errs.String(), tt.want) {
			t.Errorf("%s: %d, %s", tt.name, got, errs.String())
		}
	}
	_ = os.Remove("/etc/corral-bridge-of-a-test")
}

// R071 and the rest: call after call, nothing is left behind in the bridge, in its
// folder and among the processes. It runs in this process, and so alone.
func TestLeaksNothing(t *testing.T) {
	if err := becomeReaper(); err != nil {
		t.Fatal(err)
	}
	d := documentFor(t)
	sidecars(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"results":[{"url":"https://a.test/"}],"url":"https://a.test/","status":200}`)
	})(&d)
	b, err := open(d, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := listen(t.Context(), d.Listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.serve(ctx, l) }()
	d.Listen = spec.Researcher{}.Listen
	c := (&tried{tb: t, document: d, at: l.Addr().String(), log: &lockedBuffer{}}).caller()

	// A round is of every kind of call.
	round := func() {
		for _, q := range []string{"plain", "print x", "double-fork", "litter " + d.Scratch[0], "exit 1", "big", "setsid", "web x https://a.test/ https://a.test/", "kill", "child"} {
			c.question(t, q)
		}
	}
	count := func() string {
		http.DefaultClient.CloseIdleConnections()
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		children := 0
		processes(func(p process) {
			if p.parent == os.Getpid() {
				children++
			}
		})
		left := 0
		for _, dir := range append([]string{d.Directory}, d.Scratch...) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			left += len(entries)
		}
		requests := 0
		b.requests.Range(func(any, any) bool { requests++; return true })
		return fmt.Sprintf("%d open files, %d goroutines, %d children, %d files left, %d requests", len(files), runtime.NumGoroutine(), children, left, requests)
	}
	round()
	before := settled(count)
	for range 5 {
		round()
	}
	if after := settled(count); after != before {
		buf := make([]byte, 1<<20)
		t.Errorf("before 50 calls: %s; after: %s\n%s", before, after, buf[:runtime.Stack(buf, true)])
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(d.Directory)); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

// settled is what a count comes to when it has been the same for a while: what has
// ended still has to be seen to end by those who serve it.
func settled(count func() string) string {
	last, same := count(), 0
	for same < 200 {
		runtime.Gosched()
		if now := count(); now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
	return last
}
