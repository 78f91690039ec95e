package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// R024, R026: what is listed gets through; whoever is not is reset, and the
// service never hears of it.
func TestListedOnly(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	port := s.at.Port()
	for _, from := range []string{one, two, host} {
		isRefused(t, from, port) // it begins with nobody
	}
	r.Accept(addrs(one))
	isRefused(t, two, port)
	isRefused(t, nobody, port)
	c := connect(t, one, port)
	if _, err := io.WriteString(c, "first"); err != nil {
		t.Fatal(err)
	}
	service := s.take(t) // the first that the service ever sees
	got := make([]byte, len("first"))
	if _, err := io.ReadFull(service, got); err != nil || string(got) != "first" {
		t.Fatalf("the service got %q, %v", got, err)
	}
	says(t, service, c, "answer")
	if n := s.waiting(t); n != 0 {
		t.Errorf("%d more connections wait at the service", n)
	}
}

func TestListReplaced(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one, two))
	leaver := connect(t, one, s.at.Port())
	leaverInside := s.take(t)
	says(t, leaver, leaverInside, "one")
	stayer := connect(t, two, s.at.Port())
	stayerInside := s.take(t)
	says(t, stayer, stayerInside, "two")

	r.Accept(addrs(two, nobody))
	if n := r.counts(connection); n != 1 {
		t.Errorf("%d connections once the list is in force", n)
	}
	isReset(t, leaver)
	isReset(t, leaverInside)
	says(t, stayer, stayerInside, "still")
	says(t, stayerInside, stayer, "here")
	isRefused(t, one, s.at.Port())

	r.Accept(nil)
	isReset(t, stayer)
	isReset(t, stayerInside)
	if n := r.counts(connection); n != 0 {
		t.Errorf("%d connections of nobody", n)
	}
}

// fullService takes no connection any more.
func fullService(t *testing.T) service {
	t.Helper()
	s := newService(t)
	raw, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) })
	if err != nil {
		t.Fatal(err)
	}
	filler, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(s.at)) // all that its queue takes
	if err != nil {
		t.Fatal(err)
	}
	limited(t, filler)
	return s
}

// A connection whose target has not accepted yet ends as well.
func TestListReplacedWhileDialling(t *testing.T) {
	needNamespace(t)
	s := fullService(t)
	r := open(t, false, s.at)
	r.reach = patient
	serve(t, r)
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	until(t, "the connection is admitted", func() bool { return r.counts(connection) == 1 })
	r.Accept(nil)
	if n := r.counts(connection); n != 0 {
		t.Errorf("%d connections of nobody", n)
	}
	isReset(t, c)
}

// Whoever watches a connection for as long as the wall says learns that nobody
// is behind it, also of a service that does not refuse but is silent.
func TestSilentTargetIsToldInTime(t *testing.T) {
	needNamespace(t)
	if spec.RelayDial >= spec.RelayWatch {
		t.Errorf("a target has %v, and is watched for %v", spec.RelayDial, spec.RelayWatch)
	}
	s := fullService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	c.SetReadDeadline(time.Now().Add(spec.RelayWatch))
	isReset(t, c)
}

func TestEndOfServing(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, true, s.at)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx) }()
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	says(t, c, s.take(t), "hello")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	isReset(t, c)
	if _, err := dialFrom(one, s.at.Port()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v; want nobody to listen", err)
	}
}

// The end of one direction is passed on and leaves the other open.
func TestHalfClose(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	for _, clientFirst := range []bool{true, false} {
		c := connect(t, one, s.at.Port())
		first, second := c, s.take(t)
		if !clientFirst {
			first, second = second, first
		}
		if _, err := io.WriteString(first, "question"); err != nil {
			t.Fatal(err)
		}
		if err := first.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(second); err != nil || string(b) != "question" {
			t.Fatalf("%q, %v", b, err)
		}
		says(t, second, first, "answer, later")
		second.Close()
		if b, err := io.ReadAll(first); err != nil || len(b) > 0 {
			t.Errorf("client first %v: %q, %v, want an orderly end", clientFirst, b, err)
		}
		until(t, "the connection is over", func() bool { return r.counts(connection) == 0 })
	}
}

// Half a connection lives for as long as something moves in it.
func TestHalfCloseIdle(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	r.idle = 200 * time.Millisecond
	serve(t, r)
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	inside := s.take(t)
	c.CloseWrite()
	if _, err := io.ReadAll(inside); err != nil {
		t.Fatal(err)
	}
	var last time.Time
	for began := time.Now(); time.Since(began) < 3*r.idle; {
		last = time.Now()
		says(t, inside, c, ".")
	}
	isReset(t, c)
	if d := time.Since(last); d < r.idle {
		t.Errorf("ended after %v", d)
	}
	until(t, "the service cannot write any more", func() bool { // after an end, reading tells of no reset
		_, err := inside.Write([]byte("."))
		return err != nil
	})

	// A whole one is left alone however idle: compared with a half-closed one
	// that began later.
	whole := connect(t, one, s.at.Port())
	wholeInside := s.take(t)
	says(t, whole, wholeInside, "whole")
	half := connect(t, one, s.at.Port())
	halfInside := s.take(t)
	halfInside.CloseWrite()
	if _, err := io.ReadAll(half); err != nil {
		t.Fatal(err)
	}
	isReset(t, halfInside)
	says(t, wholeInside, whole, "still")
}

func TestResetIsPassedOn(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	for _, clientFirst := range []bool{true, false} {
		c := connect(t, one, s.at.Port())
		inside := s.take(t)
		says(t, c, inside, "hello")
		if clientFirst {
			reset(c)
			isReset(t, inside)
		} else {
			reset(inside)
			isReset(t, c)
		}
	}
}

// A service that answers before it has read everything, and goes: the answer
// arrives whole, although the client goes on sending before it reads and most
// of the answer has to wait in the relay.
func TestEarlyAnswer(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	answer := bytes.Repeat([]byte("too large "), 4<<10)
	for range 5 {
		c := connect(t, one, s.at.Port())
		if err := c.SetReadBuffer(4 << 10); err != nil { // a tenth of it
			t.Fatal(err)
		}
		inside := s.take(t)
		says(t, c, inside, "POST")
		if _, err := io.WriteString(c, "what nobody reads"); err != nil {
			t.Fatal(err)
		}
		if _, err := inside.Write(answer); err != nil {
			t.Fatal(err)
		}
		inside.CloseWrite()
		until(t, "the relay has the answer", func() bool { return unsent(t, inside) == 0 && unsent(t, c) == 0 })
		inside.Close() // with unread data: a reset
		for range 3 {
			if _, err := io.WriteString(c, "more"); err != nil {
				break
			}
			until(t, "the relay has what was sent", func() bool { return unsent(t, c) == 0 })
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(answer), err)
		}
		c.Close()
	}
	until(t, "all are over", func() bool { return r.counts(connection) == 0 })
}

// A client that never stops sending to a service that is gone is not kept.
func TestEarlyAnswerForever(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	r.idle = 200 * time.Millisecond
	serve(t, r)
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	inside := s.take(t)
	says(t, c, inside, "POST")
	inside.CloseWrite()
	until(t, "the relay knows", func() bool { return unsent(t, inside) == 0 })
	inside.Close()
	until(t, "the client cannot send any more", func() bool {
		_, err := c.Write([]byte("more"))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	})
	until(t, "the connection is over", func() bool { return r.counts(connection) == 0 })
}

// unsent is how much the peer's machine has not acknowledged.
func unsent(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil || err != nil {
		return 0 // it is gone
	}
	return n
}

func TestTargetDown(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	s.Close()
	isRefused(t, one, s.at.Port())
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(s.at))
	if err != nil {
		t.Fatal(err)
	}
	again := service{l, s.at}
	go again.echo()
	t.Cleanup(func() { again.Close() })
	if !hasEcho(one, s.at.Port()) {
		t.Error("it does not answer again with its service")
	}
}

func TestTargetIPv6(t *testing.T) {
	needNamespace(t)
	l, err := net.ListenTCP("tcp6", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("[::1]:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := service{l, l.Addr().(*net.TCPAddr).AddrPort()}
	go s.echo()
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	if !hasEcho(one, s.at.Port()) {
		t.Error("no echo")
	}
}

func TestConnectionBounds(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	go s.echo()
	r := open(t, false, s.at)
	serve(t, r)
	port := s.at.Port()
	sources := append([]string{one, two}, others...)
	r.Accept(addrs(sources...))
	b := bounds[connection]
	var last *net.TCPConn
	for _, from := range sources[:b.all/b.each] {
		for range b.each {
			last = connect(t, from, port)
			says(t, last, last, "x")
		}
		isRefused(t, from, port)
	}
	spare := sources[b.all/b.each]
	isRefused(t, spare, port) // none of its own, but the relay is full
	last.Close()
	until(t, "one who ends makes room", func() bool { return hasEcho(spare, port) })
}

func TestThroughIntact(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	inside := s.take(t)
	for _, conn := range []*net.TCPConn{c, inside} {
		conn.SetDeadline(time.Now().Add(time.Minute))
	}
	const size = 64 << 20
	type end struct {
		sent, got hash.Hash
		n         int64
		err       error
	}
	ends := map[*net.TCPConn]*end{c: {sent: sha256.New(), got: sha256.New()}, inside: {sent: sha256.New(), got: sha256.New()}}
	done := make(chan struct{}, 4)
	for seed, conn := range []*net.TCPConn{c, inside} {
		e := ends[conn]
		go func() {
			data := io.LimitReader(rand.NewChaCha8([32]byte{byte(seed)}), size)
			io.Copy(io.MultiWriter(conn, e.sent), data)
			conn.CloseWrite()
			done <- struct{}{}
		}()
		go func() {
			e.n, e.err = io.Copy(e.got, conn)
			done <- struct{}{}
		}()
	}
	for range 4 {
		<-done
	}
	a, b := ends[c], ends[inside]
	if a.n != size || b.n != size || a.err != nil || b.err != nil {
		t.Fatalf("%d and %d bytes, %v, %v", a.n, b.n, a.err, b.err)
	}
	if !bytes.Equal(a.sent.Sum(nil), b.got.Sum(nil)) || !bytes.Equal(b.sent.Sum(nil), a.got.Sum(nil)) {
		t.Error("what arrived is not what was sent")
	}
}

func TestNothingLeaks(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	go s.echo()
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	if !hasEcho(one, s.at.Port()) {
		t.Fatal("no echo")
	}
	until(t, "it is over", func() bool { return r.counts(connection) == 0 })
	goroutines, open := runtime.NumGoroutine(), sockets(t)
	for i := range 1000 {
		from := one
		if i%10 == 9 {
			from = two // refused
		}
		if got := hasEcho(from, s.at.Port()); got != (from == one) {
			t.Fatalf("connection %d, from %s: %v", i, from, got)
		}
	}
	until(t, "goroutines and sockets are as before", func() bool {
		return runtime.NumGoroutine() <= goroutines && sockets(t) <= open
	})
}

func sockets(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// What a connection can make the kernel keep is bounded, on both sides, before
// anybody has read a byte.
func TestBuffersAreBounded(t *testing.T) {
	needNamespace(t)
	s := newService(t)
	r := open(t, false, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	c := connect(t, one, s.at.Port())
	inside := s.take(t)
	if err := inside.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(c, zeros{})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("after %d bytes: %v", n, err)
	}
	// Of which a part waits in the sender's own buffer, up to 4 MiB.
	kept := int(n) - unsent(t, c)
	if most := 8 * socketBuffer; kept > most {
		t.Errorf("%d bytes wait with nobody to read them, want at most %d", kept, most)
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
