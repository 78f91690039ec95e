package engine

import (
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
