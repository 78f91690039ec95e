package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// stub is a resolver on loopback whose lookups the test takes.
type stub struct {
	*net.UDPConn
	at netip.AddrPort
}

func newStub(t *testing.T) stub {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return stub{c, c.LocalAddr().(*net.UDPAddr).AddrPort()}
}

func (s stub) take(t *testing.T) ([]byte, netip.AddrPort) {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(patient))
	b := make([]byte, 64<<10)
	n, from, err := s.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n], from
}

func (s stub) say(t *testing.T, to netip.AddrPort, message []byte) {
	t.Helper()
	if _, err := s.WriteToUDPAddrPort(message, to); err != nil {
		t.Fatal(err)
	}
}

// message has a header and size bytes in all.
func message(id uint16, answer bool, size int) []byte {
	b := bytes.Repeat([]byte{'q'}, size)
	if size >= headerSize {
		clear(b[:headerSize])
		binary.BigEndian.PutUint16(b, id)
		if answer {
			b[2] = 0x80
		}
	}
	return b
}

func asker(t *testing.T, from string, port uint16) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), port)))
	if err != nil {
		t.Fatal(err)
	}
	limited(t, c)
	return c
}

func ask(t *testing.T, c *net.UDPConn, query []byte) {
	t.Helper()
	if _, err := c.Write(query); err != nil {
		t.Fatal(err)
	}
}

func gets(t *testing.T, c *net.UDPConn, want []byte) {
	t.Helper()
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	if err != nil || !bytes.Equal(b[:n], want) {
		t.Fatalf("an answer of %d bytes (%x…), %v; want %d (%x…)", n, b[:min(n, headerSize)], err, len(want), want[:headerSize])
	}
}

// R057: what the host's loopback resolver knows, a listed gate gets to know,
// and nobody else.
func TestLookup(t *testing.T) {
	needNamespace(t)
	s := newStub(t)
	r := open(t, true, s.at)
	serve(t, r)
	c, stranger := asker(t, one, s.at.Port()), asker(t, two, s.at.Port())
	r.Accept(addrs(one))
	ask(t, stranger, message(3, false, 40))
	ask(t, asker(t, host, s.at.Port()), message(3, false, 41))
	ask(t, c, message(4, false, headerSize-1)) // no header
	ask(t, c, message(5, false, maxQuery+1))   // too much
	ask(t, c, message(6, true, 40))            // an answer
	ask(t, c, nil)
	ask(t, c, message(7, false, headerSize))
	query, from := s.take(t)
	if !bytes.Equal(query, message(7, false, headerSize)) {
		t.Fatalf("the resolver was asked %x", query)
	}
	answer := message(7, true, 65000)
	s.say(t, from, answer)
	gets(t, c, answer)
	ask(t, c, message(8, false, maxQuery))
	query, again := s.take(t)
	if !bytes.Equal(query, message(8, false, maxQuery)) {
		t.Fatalf("the resolver was asked %d bytes", len(query))
	}
	if again == from {
		t.Error("two lookups from one socket")
	}
	s.say(t, again, message(8, true, headerSize))
	gets(t, c, message(8, true, headerSize))
	until(t, "no lookup is left", func() bool { return r.counts(lookup) == 0 })
}

func TestWrongAnswers(t *testing.T) {
	needNamespace(t)
	s := newStub(t)
	r := open(t, true, s.at)
	serve(t, r)
	r.Accept(addrs(one))
	c := asker(t, one, s.at.Port())
	ask(t, c, message(0x1234, false, 40))
	_, from := s.take(t)
	other := newStub(t)
	other.say(t, from, message(0x1234, true, 41)) // of somebody who was not asked
	s.say(t, from, message(0x1235, true, 42))
	s.say(t, from, message(0x1334, true, 43))
	s.say(t, from, message(0x1234, false, 44))
	s.say(t, from, []byte{0x12, 0x34, 0x80})
	s.say(t, from, nil)
	s.say(t, from, message(0x1234, true, 45))
	gets(t, c, message(0x1234, true, 45))
}

func TestLookupNext(t *testing.T) {
	needNamespace(t)
	down, silent, good := newStub(t), newStub(t), newStub(t)
	down.Close()
	r := open(t, true, silent.at, down.at, good.at)
	r.wait = 100 * time.Millisecond
	serve(t, r)
	r.Accept(addrs(one))
	c := asker(t, one, silent.at.Port())
	began := time.Now()
	ask(t, c, message(1, false, 40))
	silent.take(t)
	_, from := good.take(t)
	if d := time.Since(began); d < r.wait || d > 5*time.Second {
		t.Errorf("the next was asked after %v", d)
	}
	good.say(t, from, message(1, true, 40))
	gets(t, c, message(1, true, 40))

	// None answers: nothing comes, and nothing is kept.
	good.Close()
	ask(t, c, message(2, false, 40))
	silent.take(t)
	until(t, "no lookup is left", func() bool { return r.counts(lookup) == 0 })
	c.SetReadDeadline(time.Now())
	if n, err := c.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestListReplacedDuringLookups(t *testing.T) {
	needNamespace(t)
	s := newStub(t)
	r := open(t, true, s.at)
	r.wait = time.Minute
	serve(t, r)
	r.Accept(addrs(one, two))
	leaver, stayer := asker(t, one, s.at.Port()), asker(t, two, s.at.Port())
	ask(t, leaver, message(1, false, 40))
	s.take(t)
	ask(t, stayer, message(2, false, 40))
	_, from := s.take(t)
	r.Accept(addrs(two))
	if n := r.counts(lookup); n != 1 {
		t.Errorf("%d lookups once the list is in force", n)
	}
	s.say(t, from, message(2, true, 40))
	gets(t, stayer, message(2, true, 40))
}

func TestLookupBounds(t *testing.T) {
	needNamespace(t)
	s := newStub(t)
	r := open(t, true, s.at)
	r.wait = time.Minute
	serve(t, r)
	r.Accept(addrs(one, two))
	each := bounds[lookup].each
	c := asker(t, one, s.at.Port())
	var last netip.AddrPort
	for i := range each {
		ask(t, c, message(uint16(i), false, 40))
		_, last = s.take(t)
	}
	ask(t, c, message(0xffff, false, 40)) // one too many
	other := asker(t, two, s.at.Port())
	ask(t, other, message(0xfffe, false, 40))
	query, from := s.take(t)
	if !bytes.Equal(query, message(0xfffe, false, 40)) {
		t.Errorf("asked %x", query)
	}
	s.say(t, from, message(0xfffe, true, 40))
	gets(t, other, message(0xfffe, true, 40))
	s.say(t, last, message(uint16(each-1), true, 40))
	gets(t, c, message(uint16(each-1), true, 40))
	until(t, "there is room", func() bool { return r.counts(lookup) == each-1 })
	ask(t, c, message(0xfffd, false, 40))
	if query, _ := s.take(t); !bytes.Equal(query, message(0xfffd, false, 40)) {
		t.Errorf("asked %x", query)
	}
}

// Lookups by TCP go the way of any connection, to the first resolver that
// accepts one.
func TestLookupByTCP(t *testing.T) {
	needNamespace(t)
	down, s := newService(t), newService(t)
	down.Close()
	r := open(t, true, down.at, s.at)
	serve(t, r)
	isRefused(t, one, down.at.Port())
	r.Accept(addrs(one))
	c := connect(t, one, down.at.Port())
	inside := s.take(t)
	query := message(1, false, 40)
	says(t, c, inside, string(query))
	c.CloseWrite()
	answer := message(1, true, 65535)
	go func() {
		inside.Write(answer)
		inside.Close()
	}()
	if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, answer) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
