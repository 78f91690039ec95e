package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// connectLimit and replyLimit are how long a probe waits for an answer. Our
	// own refusals are immediate; whoever is silent so long is left to the
	// gate's verdict.
	connectLimit = 700 * time.Millisecond
	replyLimit   = 300 * time.Millisecond
)

// dockerResolver is the engine's DNS forwarder in every namespace on a network
// with names.
var dockerResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// ports hands out the source ports of probes. A port is one probe's at a time
// and never serves the same destination twice, so that the gate's verdict on
// it is about one packet.
type ports struct {
	slots chan struct{} // bounds the probes at one time
	dials chan struct{} // bounds the connections to what is granted

	mu   sync.Mutex
	next int
	busy map[uint16]bool
	used map[use]bool
	// lost are probes that the kernel had no way for, by its own word.
	lost map[spec.Probe]bool
}

type use struct {
	source uint16
	target target
}

func newPorts() *ports {
	const most = 40 // twice that is fewer than there are ports, since the agent may hold some
	return &ports{slots: make(chan struct{}, most), dials: make(chan struct{}, most), busy: map[uint16]bool{}, used: map[use]bool{}, lost: map[spec.Probe]bool{}}
}

var errNoPort = fmt.Errorf("no free source port for a probe: something holds those from %d to %d", spec.ProbePortFirst, spec.ProbePortLast)

// take finds a port for a destination that is not in tried.
func (p *ports) take(to target, tried map[uint16]bool) (uint16, error) {
	if to.addr.Addr() == dockerResolver {
		// Docker rewrites the port on the way: any of its ports is the same one.
		to.addr = netip.AddrPortFrom(dockerResolver, 0)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	const count = spec.ProbePortLast - spec.ProbePortFirst + 1
	for range count {
		port := uint16(spec.ProbePortFirst + p.next)
		p.next = (p.next + 1) % count
		if u := (use{port, to}); !p.busy[port] && !p.used[u] && !tried[port] {
			p.busy[port], p.used[u] = true, true
			return port, nil
		}
	}
	return 0, errNoPort
}

func (p *ports) release(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, port)
}

// lose remembers a probe that the kernel had no way for.
func (p *ports) lose(probe spec.Probe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost[probe] = true
}

// hadNoWay reports whether the kernel said so of a probe.
func (p *ports) hadNoWay(probe spec.Probe) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost[probe]
}

// target is where a probe goes: "tcp" or "udp" and an address.
type target struct {
	proto string
	addr  netip.AddrPort
}

func (t target) String() string { return fmt.Sprintf("%s %v", t.proto, t.addr) }

// targets are the combinations of protocols, addresses and ports.
func targets(protos []string, addrs []netip.Addr, ports ...uint16) []target {
	var all []target
	for _, a := range addrs {
		for _, port := range ports {
			for _, proto := range protos {
				all = append(all, target{proto, netip.AddrPortFrom(a, port)})
			}
		}
	}
	return all
}

// fate is what became of a probe as seen from here.
type fate int

const (
	unsent  fate = iota // the kernel had no way to send it, or no port was free
	silent              // nothing came back
	left                // sent, and turned away somewhere else
	turned              // refused here, at once: TCP by a reset, all else as it is sent
	replied             // connected, or answered
)

// send sends one probe to t; payload is for UDP. A connection that nobody says
// anything about is tried once more: resets are lost where somebody floods.
func (e *env) send(ctx context.Context, t target, payload []byte) (spec.Probe, fate, error) {
	e.ports.slots <- struct{}{}
	defer func() { <-e.ports.slots }()
	tried := map[uint16]bool{}
	for again := t.proto == "tcp"; ; {
		source, err := e.ports.take(t, tried)
		if err != nil {
			return spec.Probe{}, unsent, err
		}
		got, err := sendFrom(ctx, source, t, payload)
		e.ports.release(source)
		if errors.Is(err, unix.EADDRINUSE) {
			tried[source] = true
			continue
		}
		if got == silent && again && ctx.Err() == nil {
			again = false
			continue
		}
		probe := spec.Probe{Proto: t.proto, Source: source, Addr: t.addr.Addr(), Port: t.addr.Port()}
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EADDRNOTAVAIL) {
			e.ports.lose(probe)
		}
		return probe, got, err
	}
}

// dial connects to what should be granted, from a port of probes, so that it is
// not taken for the agent's and the gate has a record of it. Where none is free any
// port does, and there is no probe. end gives all of it back; it is never nil.
func (e *env) dial(ctx context.Context, to netip.AddrPort) (conn net.Conn, probe spec.Probe, end func(), err error) {
	select {
	case e.ports.dials <- struct{}{}:
	case <-ctx.Done():
		return nil, probe, func() {}, context.Cause(ctx)
	}
	done := func() { <-e.ports.dials }
	tried := map[uint16]bool{}
	for {
		source, none := e.ports.take(target{"tcp", to}, tried)
		if none != nil {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", to.String())
			return conn, probe, closing(conn, done), err
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: int(source)}}
		conn, err = d.DialContext(ctx, "tcp", to.String())
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) {
			e.ports.release(source)
			tried[source] = true
			continue
		}
		probe = spec.Probe{Proto: "tcp", Source: source, Addr: to.Addr(), Port: to.Port()}
		return conn, probe, closing(conn, func() { e.ports.release(source); done() }), err
	}
}

// closing is done after a connection, if there is one, has been closed with its port
// free again at once.
func closing(conn net.Conn, done func()) func() {
	return func() {
		if c, isTCP := conn.(*net.TCPConn); isTCP {
			_ = c.SetLinger(0)
			c.Close()
		}
		done()
	}
}

func sendFrom(ctx context.Context, source uint16, t target, payload []byte) (fate, error) {
	network := t.proto + "4"
	if t.addr.Addr().Is6() {
		network = t.proto + "6"
	}
	d := net.Dialer{Timeout: connectLimit}
	if t.proto == "tcp" {
		d.LocalAddr = &net.TCPAddr{Port: int(source)}
	} else {
		d.LocalAddr = &net.UDPAddr{Port: int(source)}
	}
	conn, err := d.DialContext(ctx, network, t.addr.String())
	if err != nil {
		if got := fateOf(err); got != turned || errors.Is(err, unix.ECONNREFUSED) {
			return got, cause(err)
		}
		return left, cause(err) // a reset is how TCP is refused here
	}
	defer conn.Close()
	if c, isTCP := conn.(*net.TCPConn); isTCP {
		_ = c.SetLinger(0) // the port must be free again at once
		return replied, nil
	}
	if _, err := conn.Write(payload); err != nil {
		return fateOf(err), cause(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(replyLimit))
	if _, err := conn.Read(make([]byte, 512)); err != nil {
		return min(fateOf(err), left), cause(err)
	}
	return replied, nil
}

// fateOf sorts the errors of connect, send and receive. An error that it does
// not know proves nothing.
func fateOf(err error) fate {
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return turned
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return silent
	}
	return unsent
}

// cause is the system's own word, without the addresses around it.
func cause(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// closed sends a probe to each target; none may be answered, and each must be
// refused on the spot: a record of the gate's that it will be refused comes before
// what is done with it. That it was the gate is for its verdicts to say.
func (e *env) closed(ctx context.Context, all []target, payload []byte) finding {
	type result struct {
		probe spec.Probe
		fate  fate
		err   error
	}
	if len(all) == 0 {
		return untold("nothing to probe")
	}
	for _, t := range all {
		if !t.addr.IsValid() || t.addr.Port() == 0 {
			return untold("no address to probe")
		}
	}
	results := make([]result, len(all))
	var wg sync.WaitGroup
	for i, t := range all {
		wg.Go(func() {
			r := &results[i]
			r.probe, r.fate, r.err = e.send(ctx, t, payload)
		})
	}
	wg.Wait()
	f := ok()
	for i, r := range results {
		if r.fate == replied {
			return failed("%v answers", all[i])
		}
		switch {
		case e.aside && errors.Is(r.err, unix.ENETUNREACH) && !e.routed(all[i].addr.Addr()):
		case r.fate == unsent:
			f.result = spec.Untold
			f.detail = fmt.Sprintf("%v: %v", all[i], r.err)
			continue
		case r.fate != turned:
			f.result = spec.Untold
			f.detail = fmt.Sprintf("%v: not refused at once", all[i])
		}
		f.probes = append(f.probes, r.probe)
	}
	if e.handover {
		f.probes = nil
	}
	return f
}
