package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
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
	t.Setenv("CORRAL_FETCH_RESOLVERS", "192.0.2.1")
	for _, tt := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{nil, exit.Invalid, "", "no command"},
		{[]string{"--help"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"-h"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"help", "serve"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"serve", "--help"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"serve", "--slots", "1", "-h"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"health", "--help"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"settings", "--help"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"version", "--help"}, exit.OK, "usage: corral-fetch", ""},
		{[]string{"version"}, exit.OK, "corral-fetch ", ""},
		{[]string{"--version"}, exit.OK, "corral-fetch ", ""},
		{[]string{"--version", "x"}, exit.Invalid, "", `--version takes no "x"`},
		{[]string{"settings"}, exit.OK, "--max-body, CORRAL_FETCH_MAX_BODY", ""},
		{[]string{"settings", "x"}, exit.Invalid, "", `settings takes no "x"`},
		{[]string{"fetch"}, exit.Invalid, "", `no command is called "fetch"`},
		{[]string{"sevre"}, exit.Invalid, "", "did you mean corral-fetch serve?"},
		{[]string{"--serve"}, exit.Invalid, "", "did you mean corral-fetch serve?"},
		{[]string{"--listen", "127.0.0.1:1"}, exit.Invalid, "", "--listen stands before a command: corral-fetch serve --listen …"},
		{[]string{"serve", "--listen", "nowhere"}, exit.Invalid, "", "--listen: it is not an IP address with a port; write it like 0.0.0.0:8766"},
		{[]string{"serve", "--listen", ":8798"}, exit.Invalid, "", "--listen: it has no address: 0.0.0.0:8798 is every IPv4 address, 127.0.0.1:8798 this machine alone"},
		{[]string{"--slots=3"}, exit.Invalid, "", "--slots stands before a command: corral-fetch serve --slots …"},
		{[]string{"serve", "--listen", "127.0.0.1:0"}, exit.Invalid, "", "--listen: port 0 is any port, which nobody would know: it takes one from 1 to 65535\n"},
		{[]string{"serve", "--slots", "7"}, exit.Invalid, "", "--slots: it is a number from 1 to 6\n"},
		{[]string{"serve", "--slots", "99999999999999999999"}, exit.Invalid, "", "--slots: it is a number from 1 to 6\n"},
		{[]string{"serve", "--slots", "x"}, exit.Invalid, "", "--slots: it is a number from 1 to 6; write it like 6\n"},
		{[]string{"serve", "--connect-timeout", "10"}, exit.Invalid, "", "--connect-timeout: it has no unit: 10s is seconds; write it like 10s\n"},
		{[]string{"serve", "--connect-timeout", "x"}, exit.Invalid, "", "--connect-timeout: it is a time from 1ms to 10s; write it like 10s\n"},
		{[]string{"serve", "--connect-timeout", "0"}, exit.Invalid, "", "--connect-timeout: it is a time from 1ms to 10s\n"},
		{[]string{"serve", "--total-timeout", "999ms"}, exit.Invalid, "", "--total-timeout: it is a time from 1s to 45s\n"},
		{[]string{"serve", "--ca-file", "/nonexistent"}, exit.Invalid, "", "--ca-file: open /nonexistent: no such file or directory\n"},
		{[]string{"serve", "--slots=7", "--max-body=0"}, exit.Invalid, "", "corral-fetch: --slots: it is a number from 1 to 6\ncorral-fetch: --max-body: it is"},
		{[]string{"serve", "--listen", "localhost:8798"}, exit.Invalid, "", "--listen: it takes addresses, not names"},
	} {
		stdout, stderr, status := ran(t, tt.args...)
		if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) || tt.status == exit.OK && stderr != "" {
			t.Errorf("%q: %d %q %q", tt.args, status, stdout, stderr)
		}
	}
}

// A mistyped word is told once, and what it was meant to be in the form that it is
// to be written in.
func TestMistyped(t *testing.T) {
	for _, tt := range []struct {
		args, environ []string
		want          string
	}{
		{[]string{"--prots", "80"}, nil, "--prots: there is no such setting; did you mean --ports?"},
		{[]string{"--prots=80"}, nil, "--prots: there is no such setting; did you mean --ports?"},
		{[]string{"-ports", "80"}, nil, "-ports: there is no such setting; did you mean --ports?"},
		{[]string{"ports=80"}, nil, "ports: there is no such setting; did you mean --ports?"},
		{[]string{"--max_body", "80"}, nil, "--max_body: there is no such setting; did you mean --max-body?"},
		{[]string{"--bogus", "80"}, nil, "--bogus: there is no such setting"},
		{[]string{"--bogus", "--slots", "1"}, nil, "--bogus: there is no such setting"},
		{[]string{"--CORRAL_FETCH_PORTS", "1"}, nil, "--CORRAL_FETCH_PORTS: there is no such setting"},
		{nil, []string{"CORRAL_FETCH_PROTS=80"}, "CORRAL_FETCH_PROTS: there is no such setting; did you mean CORRAL_FETCH_PORTS?"},
		{nil, []string{"CORRAL_FETCH_BOGUS=80"}, "CORRAL_FETCH_BOGUS: there is no such setting"},
		{nil, []string{"CORRAL_FETCH_MAXBODY="}, "CORRAL_FETCH_MAXBODY: there is no such setting; did you mean CORRAL_FETCH_MAX_BODY?"},
	} {
		_, err := readSettings(append([]string{"--resolvers=192.0.2.53"}, tt.args...), tt.environ)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%q %q: %v, want %s", tt.args, tt.environ, err, tt.want)
		}
	}
}

// freePort is an address that nobody listens at.
func freePort(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return free.Addr().String()
}

// A server that is told by options listens, says so, answers health, and ends when it
// is asked to.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := new(lines)
	done := make(chan int, 1)
	at := freePort(t)
	args := []string{"--listen=" + at, "--resolvers", "127.0.0.1:1", "--slots", "2"}
	var errs bytes.Buffer
	ready := &awaited{lines: out, want: `"listen":"` + at + `"`, seen: make(chan struct{})}
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
	for line := range strings.Lines(out.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("%q on standard output", line)
		}
	}
}

// Who names an address of IPv4 is not asked by IPv6.
func TestListen(t *testing.T) {
	for _, at := range []string{"0.0.0.0:0", "127.0.0.1:0"} {
		l, err := listen(t.Context(), netip.MustParseAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		for host, is := range map[string]bool{"127.0.0.1": true, "::1": false} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if (err == nil) != is {
				t.Errorf("%s, asked at %s: %v", at, host, err)
			}
			if err == nil {
				c.Close()
			}
		}
	}
	if d := defaults().Listen; !d.Addr().IsLoopback() {
		t.Errorf("unasked, it listens at %s", d)
	}
}

// Health without settings asks the server that runs beside it, where there is one.
func TestServed(t *testing.T) {
	const serve = "/bin/corral-fetch\x00serve\x00"
	for _, tt := range []struct {
		running []string
		want    []string
	}{
		{nil, nil},
		{[]string{"", "/sbin/docker-init\x00--\x00/bin/corral-fetch\x00serve\x00", "/bin/corral-fetch\x00health\x00"}, nil},
		{[]string{"/bin/corral-fetch\x00health\x00", serve}, []string{}},
		{[]string{serve + "--listen\x000.0.0.0:1\x00"}, []string{"--listen", "0.0.0.0:1"}},
		{[]string{serve + "--listen=0.0.0.0:1\x00", serve}, nil},
	} {
		dir := t.TempDir()
		for i, line := range tt.running {
			proc := filepath.Join(dir, fmt.Sprint(i+1))
			if err := errors.Join(os.Mkdir(proc, 0o755), os.WriteFile(filepath.Join(proc, "cmdline"), []byte(line), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if got := served(dir); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q", tt.running, got)
		}
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
	for _, want := range []string{"--slots: it is a number from 1 to 6", "--max-body: it is a number", `"x" is not a port`, `"070" is not a port`, "--user-agent: it is of", "--total-timeout: it is a time from 1s to 45s",
		"--prots: there is no such setting; did you mean", "serve: there is no such setting", "--listen: it is not an IP address", "holds no certificate", `"::1" is not the IPv4 address`, "--resolvers", `"::ffff:1.2.3.4/100" is neither`,
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

// docs/fetch.md lists the types as they are taken.
func TestDocumentedTypes(t *testing.T) {
	doc, err := os.ReadFile("../../docs/fetch.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Types\n")
	section, _, _ = strings.Cut(section, "\n## ")
	as := unsupported
	var n int
	for _, line := range strings.Split(section, "\n") {
		switch {
		case strings.HasPrefix(line, "- **As Markdown"):
			as = markup
		case strings.HasPrefix(line, "- **As they are"):
			as = plain
		case strings.HasPrefix(line, "Any other"):
			as = unsupported
		}
		for _, word := range regexp.MustCompile("`([a-z]+/[a-z.+-]+)`").FindAllStringSubmatch(line, -1) {
			n++
			if kindOf(word[1]) != as {
				t.Errorf("%s is not taken so", word[1])
			}
		}
	}
	if n < 20 {
		t.Errorf("%d types are listed", n)
	}
}
