package relay

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

func listenControl(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, path
}

func TestTell(t *testing.T) {
	l, path := listenControl(t)
	var r Relay
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.ServeControl(ctx, l) }()
	accepts := func(a string) bool {
		src := r.sources.admit(netip.MustParseAddr(a), connection)
		if src != nil {
			r.sources.leave(src, connection)
		}
		return src != nil
	}
	many := spec.Relay{Version: spec.Version} // as many as the network has
	for a := netip.MustParseAddr("172.30.0.1"); len(many.Sources) < 1<<15; a = a.Next() {
		many.Sources = append(many.Sources, a)
	}
	for _, tt := range []struct {
		doc      spec.Relay
		want     string
		one, two bool
	}{
		{spec.Relay{Version: spec.Version, Sources: addrs(one)}, "", true, false},
		{spec.Relay{Version: spec.Version, Sources: addrs(two)}, "", false, true},
		{spec.Relay{Version: spec.Version + 1, Sources: addrs(one)}, "version", false, true}, // what was in force stays
		{spec.Relay{Version: spec.Version, Sources: addrs(one, one)}, "twice", false, true},
		{many, "", true, true},
		{spec.Relay{Version: spec.Version}, "", false, false},
	} {
		err := Tell(t.Context(), path, tt.doc)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%.60v: %v, want %q", tt.doc, err, tt.want)
		}
		if accepts(one) != tt.one || accepts(two) != tt.two {
			t.Errorf("after %.60v: accepts %v %v", tt.doc, accepts(one), accepts(two))
		}
	}

	// Half a document, and the end.
	r.Accept(addrs(one))
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte(`{"version":1,"sources":[]`))
	c.Close()
	if err := Tell(t.Context(), path, spec.Relay{Version: 0}); err == nil {
		t.Error("no version is accepted")
	}
	if !accepts(one) {
		t.Error("half a document is in force")
	}

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Tell(t.Context(), path, many); err == nil || !strings.Contains(err.Error(), "no relay runs here") {
		t.Errorf("nobody listens: %v", err)
	}
}

// An answer that does not say that the list is in force is an error.
func TestTellDoubts(t *testing.T) {
	for _, answer := range []string{"", "{}", `{"in_force":false}`, `{"error":"no"}`, `{"in_force":tr`, "ok"} {
		l, path := listenControl(t)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			for b := make([]byte, 1024); ; {
				if _, err := c.Read(b); err != nil {
					break
				}
			}
			c.Write([]byte(answer))
		}()
		if err := Tell(t.Context(), path, spec.Relay{Version: spec.Version}); err == nil {
			t.Errorf("%q is taken for success", answer)
		}
	}
}
