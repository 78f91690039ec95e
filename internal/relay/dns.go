package relay

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	headerSize = 12   // RFC 1035, 4.1.1
	maxQuery   = 4096 // far above any question with its options
	// lookupTimeout is what one target has to answer; the gate's resolver gives
	// up after a little more.
	lookupTimeout = 2 * time.Second
)

func (r *Relay) serveLookups(ctx context.Context) error {
	buf := make([]byte, maxQuery+1)
	for {
		n, from, err := r.udp.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if scarce(ctx, err) {
				continue
			}
			return err
		}
		if n < headerSize || n > maxQuery || isAnswer(buf) {
			continue
		}
		src := r.sources.admit(from.Addr().Unmap(), lookup)
		if src == nil {
			continue
		}
		query := bytes.Clone(buf[:n])
		go func() {
			defer r.sources.leave(src, lookup)
			if answer := r.ask(src.ctx, query); answer != nil {
				r.udp.WriteToUDPAddrPort(answer, from)
			}
		}()
	}
}

// isAnswer is the QR bit of a header.
func isAnswer(message []byte) bool { return message[2]&0x80 != 0 }

// ask is the first answer of the targets, asked in order; nil is none.
func (r *Relay) ask(ctx context.Context, query []byte) []byte {
	for _, t := range r.config.Targets {
		if answer := r.askOne(ctx, t, query); answer != nil || ctx.Err() != nil {
			return answer
		}
	}
	return nil
}

// askOne asks from a socket of its own, so that an answer is to this query or
// to none.
func (r *Relay) askOne(ctx context.Context, target netip.AddrPort, query []byte) []byte {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		return nil
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(r.wait))
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(query); err != nil {
		return nil
	}
	for {
		answer, err := receive(c)
		if err != nil {
			return nil
		}
		if len(answer) >= headerSize && isAnswer(answer) && bytes.Equal(answer[:2], query[:2]) {
			return answer
		}
	}
}

// receive reads one datagram of any size. It makes room only once it knows how
// much: lookups that wait would otherwise hold 64 kB each.
func receive(c *net.UDPConn) ([]byte, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n int
	var fault error
	err = raw.Read(func(fd uintptr) bool {
		n, _, fault = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		return fault != unix.EAGAIN
	})
	if err == nil {
		err = fault
	}
	if err != nil {
		return nil, err
	}
	b := make([]byte, max(n, 1)) // reading into nothing takes nothing away
	n, err = c.Read(b)
	return b[:n], err
}
