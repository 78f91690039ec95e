package verify

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

// A relay accepts before it knows whether anybody is behind it: who resets while
// the wall says to watch is nobody, who is silent for as long is somebody.
func TestHostService(t *testing.T) {
	reset := func(c *net.TCPConn) { c.SetLinger(0); c.Close() }
	for name, tt := range map[string]struct {
		do   func(*net.TCPConn)
		want spec.Result
	}{
		"waits for its client":   {func(*net.TCPConn) {}, spec.OK},
		"speaks first":           {func(c *net.TCPConn) { c.Write([]byte("hello")) }, spec.OK},
		"hangs up in order":      {func(c *net.TCPConn) { c.Close() }, spec.OK},
		"resets":                 {reset, spec.Failed},
		"resets when it gave up": {func(c *net.TCPConn) { time.AfterFunc(spec.RelayDial, func() { reset(c) }) }, spec.Failed},
		"nobody":                 {nil, spec.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			at := netip.MustParseAddrPort(l.Addr().String())
			if tt.do == nil {
				l.Close()
			} else {
				go func() {
					if c, err := l.AcceptTCP(); err == nil {
						defer time.AfterFunc(10*spec.RelayWatch, func() { c.Close() })
						tt.do(c)
					}
				}()
			}
			if f := hostService(t.Context(), spec.Check{Addr: at.Addr(), Port: at.Port()}, newEnv()); f.result != tt.want {
				t.Errorf("%+v, want %v", f, tt.want)
			}
		})
	}
}
