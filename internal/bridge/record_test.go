package bridge

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Without a fetcher no page is read, and nobody is asked for one.
func TestNoFetcher(t *testing.T) {
	r, at, err := openRecord(t.TempDir(), "http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", at)
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://bridge"+spec.FetchPath, "application/json", strings.NewReader(`{"url": "https://a.test/"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusNotImplemented || !strings.Contains(string(b), `"no_pages"`) {
		t.Errorf("%d, %s, %v", resp.StatusCode, b, err)
	}
}
