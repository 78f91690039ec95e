package fetch

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
)

// ran is what a command printed and its status.
func ran(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Main(t.Context(), strings.NewReader(""), &out, &errs, args)
	return out.String(), errs.String(), status
}

func TestCommands(t *testing.T) {
	for _, tt := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{nil, exit.Invalid, "", "no command"},
		{[]string{"--help"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"version"}, exit.OK, "corral-fetch ", ""},
		{[]string{"settings"}, exit.OK, "--max-body, CORRAL_FETCH_MAX_BODY", ""},
		{[]string{"settings", "x"}, exit.Invalid, "", `settings takes no "x"`},
		{[]string{"fetch"}, exit.Invalid, "", `no command is called "fetch"`},
		{[]string{"serve", "--resolvers", "192.0.2.1", "--listen", "nowhere"}, exit.Invalid, "", "--listen: it is not an address with a port; write it like 127.0.0.1:8766"},
	} {
		stdout, stderr, status := ran(t, tt.args...)
		if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%q: %d %q %q", tt.args, status, stdout, stderr)
		}
	}
}

// A server that is told by options listens, says so, answers health, and ends when it
// is asked to.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := new(lines)
	done := make(chan int, 1)
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	args := []string{"--listen=" + at, "--resolvers", "127.0.0.1:1", "--slots", "2"}
	var errs bytes.Buffer
	ready := &awaited{lines: out, want: readyLine + at, seen: make(chan struct{})}
	go func() { done <- Main(ctx, strings.NewReader(""), ready, &errs, append([]string{"serve"}, args...)) }()
	select {
	case <-ready.seen:
	case status := <-done:
		t.Fatalf("%d %s", status, errs.String())
	}
	if _, stderr, status := ran(t, append([]string{"health"}, args...)...); status != exit.OK {
		t.Errorf("health: %d %s", status, stderr)
	}
	if _, stderr, status := ran(t, append([]string{"serve"}, args...)...); status != exit.Failed || !strings.Contains(stderr, "address already in use") {
		t.Errorf("a second server: %d %s", status, stderr)
	}
	cancel()
	if status := <-done; status != exit.OK {
		t.Errorf("%d %s", status, errs.String())
	}
	if _, stderr, status := ran(t, append([]string{"health"}, args...)...); status != exit.Failed || !strings.Contains(stderr, "no server") {
		t.Errorf("health of none: %d %s", status, stderr)
	}
}

// awaited is a writer that tells when it has got something.
type awaited struct {
	*lines
	want string
	seen chan struct{}
}

func (w *awaited) Write(b []byte) (int, error) {
	n, err := w.lines.Write(b)
	if strings.Contains(string(b), w.want) {
		close(w.seen)
	}
	return n, err
}

func TestReadSettings(t *testing.T) {
	type change = func(*settings)
	resolvers := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}
	ca := filepath.Join(t.TempDir(), "none.pem")
	if err := os.WriteFile(ca, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	always := []string{"--resolvers", "192.0.2.53"}
	for _, tt := range []struct {
		args, environ []string
		want          change
	}{
		{nil, nil, func(*settings) {}},
		{[]string{"--listen", "127.0.0.1:1"}, nil, func(s *settings) { s.Listen = netip.MustParseAddrPort("127.0.0.1:1") }},
		{[]string{"--ports=80, 443,8080"}, nil, func(s *settings) { s.Ports = []uint16{80, 443, 8080} }},
		{nil, []string{"CORRAL_FETCH_PORTS=8080", "CORRAL_ALLOW=x", "PATH=y"}, func(s *settings) { s.Ports = []uint16{8080} }},
		{[]string{"--ports=443"}, []string{"CORRAL_FETCH_PORTS=8080"}, func(s *settings) { s.Ports = []uint16{443} }},
		{nil, []string{"CORRAL_FETCH_MAX_BODY=1000", "CORRAL_FETCH_MAX_TEXT=1", "CORRAL_FETCH_SLOTS=1", "CORRAL_FETCH_MAX_REDIRECTS=0", "CORRAL_FETCH_USER_AGENT=me/1 (x)"}, func(s *settings) {
			s.Body, s.Text, s.Slots, s.Redirects, s.UserAgent = 1000, 1, 1, 0, "me/1 (x)"
		}},
		{[]string{"--connect-timeout", "1s", "--first-byte-timeout=20s", "--total-timeout", "45s"}, nil, func(s *settings) { s.Connect = time.Second }},
		{[]string{"--never", "192.0.2.7,198.51.100.9/24,2001:db8::/32"}, nil, func(s *settings) {
			s.Never = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}
		}},
		{nil, []string{"CORRAL_FETCH_SLOTS="}, func(*settings) {}},
	} {
		want := defaults()
		want.Resolvers = resolvers
		tt.want(&want)
		got, err := readSettings(append(slices.Clone(always), tt.args...), tt.environ)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q %q: %+v, %v", tt.args, tt.environ, got, err)
		}
	}
	// All that is wrong is said at once.
	_, err := readSettings([]string{"--slots", "7", "--max-body=0", "--ports", "80,x,070", "--user-agent", "a\nb", "--total-timeout=46s", "--prots=1", "serve", "--listen=[::1%lo]:1",
		"--ca-file", ca, "--resolvers=::1,x", "--never=::ffff:1.2.3.4/100", "--max-text"}, []string{"CORRAL_FETCH_SLOT=1", "CORRAL_FETCH_CONNECT_TIMEOUT=-1s"})
	if err == nil {
		t.Fatal("no mistake")
	}
	for _, want := range []string{"--slots: it is a number from 1 to 6", "--max-body: it is a number", `"x" is not a port`, `"070" is not a port`, "--user-agent: it is of", "--total-timeout: it is a time up to 45s",
		"--prots: there is no such setting; did you mean", "serve: there is no such setting", "--listen: it is not an address", "holds no certificate", `"::1" is not the IPv4 address`, "--resolvers", `"::ffff:1.2.3.4/100" is neither`,
		"--max-text: it has no value", "CORRAL_FETCH_SLOT: there is no such setting; did you mean CORRAL_FETCH_SLOTS?", "CORRAL_FETCH_CONNECT_TIMEOUT: it is a time"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said:\n%v", want, err)
		}
	}
}

// What the settings say never is refused although it is public, and so is what
// belongs to this machine.
func TestNever(t *testing.T) {
	f := &follower{settings: defaults()}
	f.Never = []netip.Prefix{netip.MustParsePrefix("44.10.5.0/24")}
	for a, ok := range map[string]bool{"44.10.5.1": false, "44.10.6.1": true, "::ffff:44.10.6.1": false, "2001:4860::1": true} {
		if err := f.check(netip.MustParseAddr(a)); (err == nil) != ok {
			t.Errorf("%s: %v", a, err)
		}
	}
	if err := f.check(netip.Addr{}); err == nil {
		t.Error("no address is dialled")
	}
}
