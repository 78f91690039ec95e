package engine

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/docker/docker/client"
)

// answered is an Engine on a socket of this test, where answer is the engine.
// Paths come without the API's version.
func answered(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, path string)) *Engine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`^/v[0-9.]+`)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, version.ReplaceAllString(r.URL.Path, ""))
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	api, err := client.NewClientWithOpts(client.WithHost("unix://"+socket), client.WithVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return &Engine{api: api, Progress: t.Logf}
}

// upgraded is the connection of a request that becomes a stream both ways, as the
// start of a command does.
func upgraded(w http.ResponseWriter, r *http.Request) (net.Conn, *bufio.ReadWriter, error) {
	io.Copy(io.Discard, r.Body)
	conn, more, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_, err = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	}
	return conn, more, err
}
