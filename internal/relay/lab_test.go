package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// The tests run in a network namespace of their own: the address that the relay
// listens on and those of its sources are all on one interface there.
const (
	host    = "172.30.0.1"
	one     = "172.30.0.2"
	two     = "172.30.0.3"
	nobody  = "172.30.0.9" // never listed
	patient = 10 * time.Second
)

var others = []string{"172.30.0.4", "172.30.0.5", "172.30.0.6"}

const insideEnv = "CORRAL_RELAY_TEST"

// TestMain runs the whole program again in a fresh namespace where it may.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(insideEnv) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Args[0] = os.Args[0]
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		err := cmd.Run()
		var exited *exec.ExitError
		switch {
		case errors.As(err, &exited):
			os.Exit(exited.ExitCode())
		case err == nil:
			os.Exit(0)
		}
		os.Exit(m.Run()) // testenv says what is missing
	}
	steps := [][]string{{"link", "set", "lo", "up"}, {"link", "add", "corral0", "type", "veth", "peer", "name", "wire"}, {"link", "set", "corral0", "up"}, {"link", "set", "wire", "up"}}
	for _, a := range append([]string{host, one, two, nobody}, others...) {
		steps = append(steps, []string{"addr", "add", a + "/24", "dev", "corral0"})
	}
	for _, s := range steps {
		if out, err := exec.Command("ip", s...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "ip %v: %v: %s", s, err, out)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func needNamespace(t testing.TB) {
	t.Helper()
	testenv.Require(t, "netns")
	if os.Getenv(insideEnv) == "" {
		t.Fatal("the tests are not in a namespace of their own")
	}
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// open starts a relay for what listens at the targets, at the first one's port.
func open(t testing.TB, dns bool, targets ...netip.AddrPort) *Relay {
	t.Helper()
	r, err := Listen(t.Context(), Config{
		Listen:  netip.AddrPortFrom(netip.MustParseAddr(host), targets[0].Port()),
		Targets: targets,
		DNS:     dns,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func serve(t testing.TB, r *Relay) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// service is a host service on loopback whose connections the test takes.
type service struct {
	*net.TCPListener
	at netip.AddrPort
}

func newService(t testing.TB) service { return listenAt(t, "127.0.0.1") }

func listenAt(t testing.TB, where string) service {
	t.Helper()
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(where), 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return service{l, l.Addr().(*net.TCPAddr).AddrPort()}
}

func (s service) take(t testing.TB) *net.TCPConn {
	t.Helper()
	s.SetDeadline(time.Now().Add(patient))
	c, err := s.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	limited(t, c)
	return c
}

// waiting is how many connections nobody has taken yet.
func (s service) waiting(t testing.TB) uint32 {
	t.Helper()
	raw, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return info.Unacked // of a listener: its queue
}

// echo answers every connection with what it says.
func (s service) echo() {
	for {
		c, err := s.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func limited(t testing.TB, c net.Conn) {
	c.SetDeadline(time.Now().Add(patient))
	t.Cleanup(func() { c.Close() })
}

func dialFrom(from string, port uint16) (*net.TCPConn, error) {
	return net.DialTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)),
		net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), port)))
}

// connect is a connection from a source to the relay.
func connect(t testing.TB, from string, port uint16) *net.TCPConn {
	t.Helper()
	c, err := dialFrom(from, port)
	if err != nil {
		t.Fatalf("from %s: %v", from, err)
	}
	limited(t, c)
	return c
}

// says writes to one end and reads the same at the other.
func says(t testing.TB, from, to io.ReadWriter, text string) {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("%q arrived, %v; want %q", got, err, text)
	}
}

// isReset insists that nothing came before the reset.
func isReset(t testing.TB, c *net.TCPConn) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d bytes, %v; want a reset", n, err)
	}
}

// isRefused insists that a connection is reset before anything comes; that may
// be so soon that there is no connection.
func isRefused(t testing.TB, from string, port uint16) {
	t.Helper()
	c, err := dialFrom(from, port)
	if err == nil {
		limited(t, c)
		var n int
		if n, err = c.Read(make([]byte, 1)); n != 0 {
			t.Errorf("from %s: something came", from)
		}
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("from %s: %v; want a reset", from, err)
	}
}

// hasEcho connects to an echo and reports whether it is one.
func hasEcho(from string, port uint16) bool {
	c, err := dialFrom(from, port)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patient))
	c.Write([]byte("hello"))
	c.CloseWrite()
	b, err := io.ReadAll(c)
	return err == nil && bytes.Equal(b, []byte("hello"))
}

// until tries until something holds, which must be soon.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (r *Relay) counts(k kind) int {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	return r.sources.count[k]
}
