package lab

import (
	"io"
	"net/http"
	"net/netip"
	"testing"
)

func get(t *testing.T, c *http.Client, url string) (string, error) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func TestOrigins(t *testing.T) {
	l := Use(t)
	l.Handle(t, "docs.allowed.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "a page")
	}))
	for _, tt := range []struct{ addr, url, want string }{
		{"44.10.0.10", "http://api.allowed.test/x", "origin 44.10.0.10:80: GET api.allowed.test/x\n"},
		{"44.10.0.30", "https://api.allowed.test/x?y", "origin 44.10.0.30:443: GET api.allowed.test/x?y\n"},
		{"44.10.0.12", "https://44.10.0.12/", "origin 44.10.0.12:443: GET 44.10.0.12/\n"},
		{"44.10.0.11", "https://docs.allowed.test/", "a page"},
	} {
		got, err := get(t, l.Client(netip.MustParseAddr(tt.addr)), tt.url)
		if err != nil || got != tt.want {
			t.Errorf("%s at %s: %q (%v), want %q", tt.url, tt.addr, got, err, tt.want)
		}
	}
	if rs := l.Requests("docs.allowed.test"); len(rs) != 1 || !rs[0].TLS || rs[0].To.Addr() != netip.MustParseAddr("44.10.0.11") {
		t.Errorf("served: %v", rs)
	}
	stranger := &http.Client{Transport: &http.Transport{DialContext: l.Client(OriginFirst).Transport.(*http.Transport).DialContext}}
	if _, err := get(t, stranger, "https://api.allowed.test/"); err == nil {
		t.Error("a client that does not trust the lab's CA was satisfied")
	}
}
