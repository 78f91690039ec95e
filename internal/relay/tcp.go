package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// halfIdle ends a connection of which one direction is over when nothing
	// has moved in the other for as long: its reader has most likely forgotten
	// it.
	halfIdle = time.Minute
	// idleChecks are made in that time.
	idleChecks = 12
)

func (r *Relay) serveConnections(ctx context.Context) error {
	for {
		client, err := r.tcp.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				reset(client)
			}
			return nil
		}
		if err != nil {
			if scarce(ctx, err) {
				continue
			}
			return err
		}
		src := r.sources.admit(client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), connection)
		if src == nil {
			reset(client)
			continue
		}
		go func() {
			defer r.sources.leave(src, connection)
			r.carry(src.ctx, client)
		}()
	}
}

// reset closes a connection so that the peer knows it was no ordinary end.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// carry is the life of one connection.
func (r *Relay) carry(ctx context.Context, client *net.TCPConn) {
	target, err := r.dial(ctx)
	if err != nil {
		reset(client)
		return
	}
	breakOff := func() {
		reset(client)
		reset(target)
	}
	defer context.AfterFunc(ctx, breakOff)()
	ended := make(chan error, 2)
	go func() { ended <- r.pass(target, client) }()
	go func() { ended <- r.pass(client, target) }()
	if err := <-ended; err != nil {
		breakOff()
		<-ended
		return
	}
	if err := r.second(ended, client, target); err != nil {
		breakOff()
		return
	}
	client.Close()
	target.Close()
}

// dial connects to the first target that accepts.
func (r *Relay) dial(ctx context.Context) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: r.reach, KeepAliveConfig: keepAlives, Control: bounded}
	var failures []error
	for _, t := range r.config.Targets {
		c, err := d.DialContext(ctx, "tcp", t.String())
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// socketBuffer is what the kernel may keep for one direction of one socket, in
// bytes; it takes twice that for itself. Left alone it would grow to megabytes,
// and a client that reads nothing could take the memory of all others: of the
// relay, or where a container's memory does not count it, of the machine.
const socketBuffer = 32 << 10

// bounded sets what a socket may buffer, before it is connected or listens:
// accepted ones inherit it.
func bounded(_, _ string, c syscall.RawConn) error {
	var failure error
	err := c.Control(func(fd uintptr) {
		failure = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer))
	})
	return errors.Join(err, failure)
}

// pass carries one direction to its end, and then ends it for the receiver. In
// this form the kernel moves the data from socket to socket.
func (r *Relay) pass(to, from *net.TCPConn) error {
	_, err := io.Copy(to, from)
	if errors.Is(err, syscall.EPIPE) {
		// The receiver has said all it had to say and takes no more. Closing
		// with unread data would reset the connection, and its last words might
		// not arrive: the sender gets some time to read them.
		from.SetReadDeadline(time.Now().Add(r.idle))
		_, err = io.Copy(io.Discard, from)
	}
	if err != nil {
		return err
	}
	to.CloseWrite()
	return nil
}

var errIdle = errors.New("half of a connection, idle")

// second waits for the other direction to end too, unless it is idle.
func (r *Relay) second(ended <-chan error, client, target *net.TCPConn) error {
	check := time.NewTicker(r.idle / idleChecks)
	defer check.Stop()
	moved, since := progress(client)+progress(target), time.Now()
	for {
		select {
		case err := <-ended:
			return err
		case <-check.C:
			if p := progress(client) + progress(target); p != moved {
				moved, since = p, time.Now()
				continue
			}
			if time.Since(since) < r.idle {
				continue
			}
			reset(client)
			reset(target)
			<-ended
			return errIdle
		}
	}
}

// progress is how many bytes a peer has sent and acknowledged; none if that
// cannot be told. The kernel is asked because the data does not pass by here.
func progress(c *net.TCPConn) uint64 {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var bytes uint64
	raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes = info.Bytes_received + info.Bytes_acked
		}
	})
	return bytes
}
