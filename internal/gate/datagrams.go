package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"net"

	"github.com/miekg/dns"
)

// maxDatagrams bounds the lookups by UDP that are answered at a time: those that
// are passed on wait for others, and beside them there is room for the rest.
const maxDatagrams = maxForwards + 64

// serveDatagrams answers lookups by UDP until the context ends. What comes while
// maxDatagrams are being answered waits in the kernel, as much as it keeps. The
// server of the dns package would take all of it on: a flood would fill the
// worker's memory.
func serveDatagrams(ctx context.Context, pc net.PacketConn, h dns.Handler) error {
	defer context.AfterFunc(ctx, func() { pc.Close() })()
	slots := make(chan struct{}, maxDatagrams)
	buf := make([]byte, dns.DefaultMsgSize)
	for {
		n, from, err := pc.ReadFrom(buf)
		var passing net.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &passing) && passing.Timeout():
			continue
		case err != nil:
			return err
		}
		w := datagram{pc, from}
		q, malformed := readLookup(buf[:n])
		if malformed != nil {
			w.WriteMsg(malformed)
		}
		if q == nil {
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			h.ServeDNS(w, q)
		}()
	}
}

// readLookup is the lookup in a datagram, or what is to be said of one that makes no
// sense. What is no lookup at all gets no answer.
func readLookup(b []byte) (q, malformed *dns.Msg) {
	const header = 12 // RFC 1035, section 4.1.1
	if len(b) < header {
		return nil, nil
	}
	word := func(i int) uint16 { return binary.BigEndian.Uint16(b[2*i:]) }
	h := dns.Header{Id: word(0), Bits: word(1), Qdcount: word(2), Ancount: word(3), Nscount: word(4), Arcount: word(5)}
	accept := dns.DefaultMsgAcceptFunc(h)
	q = new(dns.Msg)
	switch {
	case accept == dns.MsgIgnore:
		return nil, nil
	case accept == dns.MsgAccept && q.Unpack(b) == nil && len(q.Question) == 1: // it takes a header alone, too
		return q, nil
	}
	malformed = new(dns.Msg)
	malformed.Id, malformed.Response, malformed.Rcode = h.Id, true, dns.RcodeFormatError
	if accept == dns.MsgRejectNotImplemented {
		malformed.Opcode, malformed.Rcode = int(h.Bits>>11)&0xf, dns.RcodeNotImplemented
	}
	return nil, malformed
}

// datagram is the way back to whoever sent one.
type datagram struct {
	pc net.PacketConn
	to net.Addr
}

func (d datagram) LocalAddr() net.Addr  { return d.pc.LocalAddr() }
func (d datagram) RemoteAddr() net.Addr { return d.to }

func (d datagram) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = d.Write(b)
	return err
}

func (d datagram) Write(b []byte) (int, error) { return d.pc.WriteTo(b, d.to) }
func (datagram) Close() error                  { return nil }
func (datagram) TsigStatus() error             { return nil }
func (datagram) TsigTimersOnly(bool)           {}
func (datagram) Hijack()                       {}
