// Package relay carries what some containers ask of one address of this host to
// its loopback. In go an address to listen on, the loopback targets and, at any
// time, the list of the sources that are accepted; connections go through, and
// lookups if it is told to. It begins by accepting nobody. It dials nothing
// for a source that is not listed, nothing outside loopback for anybody, reads
// no more of what passes than the header of a lookup, and keeps no record.
package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Config is one relay. The zero value is refused.
type Config struct {
	// Listen is an address of this host that others can reach, IPv4.
	Listen netip.AddrPort
	// Targets are on loopback. Lookups go to the first that answers; anything
	// else has one target.
	Targets []netip.AddrPort
	// DNS relays lookups, by UDP and by TCP.
	DNS bool
}

// Parse makes a Config of words: where to listen, then the targets.
func Parse(dns bool, words []string) (Config, error) {
	c := Config{DNS: dns}
	for i, w := range words {
		a, err := netip.ParseAddrPort(w)
		if err != nil {
			return Config{}, fmt.Errorf("%q is no address with a port", w)
		}
		if i == 0 {
			c.Listen = a
		} else {
			c.Targets = append(c.Targets, a)
		}
	}
	if err := c.check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c Config) check() error {
	l := c.Listen.Addr()
	switch {
	case !c.Listen.IsValid():
		return errors.New("no address to listen on")
	case !l.Is4() || l.IsUnspecified() || l.IsLoopback() || l.IsMulticast():
		return fmt.Errorf("listening on %v: it must be one IPv4 address of this host, outside 127.0.0.0/8", l)
	case c.Listen.Port() == 0:
		return errors.New("listening on port 0")
	case len(c.Targets) == 0:
		return errors.New("no target")
	case len(c.Targets) > 1 && !c.DNS:
		return fmt.Errorf("%d targets: only lookups may have several", len(c.Targets))
	}
	for _, t := range c.Targets {
		if !t.Addr().IsLoopback() || t.Addr().Is4In6() || t.Addr().Zone() != "" {
			return fmt.Errorf("target %v: it must be on loopback, 127.0.0.0/8 or ::1", t)
		}
		if t.Port() == 0 {
			return fmt.Errorf("target %v: port 0", t)
		}
	}
	return nil
}

const (
	// keepAlive is between probes of a silent peer; after lostProbes of them
	// without an answer it is gone.
	keepAlive  = 30 * time.Second
	lostProbes = 3

	// scarcePause is before the next try when the machine has no descriptor or
	// memory left: others may give theirs back.
	scarcePause = 100 * time.Millisecond
)

var keepAlives = net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: lostProbes}

// Relay holds its address from Listen on.
type Relay struct {
	config  Config
	tcp     *net.TCPListener
	udp     *net.UDPConn // of lookups only
	sources sources
	idle    time.Duration // of half a connection
	reach   time.Duration // for one target to accept a connection
	wait    time.Duration // for one target's answer to a lookup
}

// Listen takes the address. That somebody has it is syscall.EADDRINUSE.
func Listen(ctx context.Context, c Config) (*Relay, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlives, Control: bounded}
	// A further path of a connection may come from a source that is not listed.
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp4", c.Listen.String())
	if err != nil {
		return nil, err
	}
	r := &Relay{config: c, tcp: l.(*net.TCPListener), idle: halfIdle, reach: spec.RelayDial, wait: lookupTimeout}
	if c.DNS {
		pc, err := lc.ListenPacket(ctx, "udp4", c.Listen.String())
		if err != nil {
			l.Close()
			return nil, err
		}
		r.udp = pc.(*net.UDPConn)
	}
	return r, nil
}

// Accept replaces the list of those who are accepted. When it returns, nothing
// of those who are no longer listed goes on: their connections are reset, their
// lookups forgotten. What the others have is not touched.
func (r *Relay) Accept(list []netip.Addr) { r.sources.replace(list) }

// Serve carries until the context ends; then it gives the address back and
// resets what there is.
func (r *Relay) Serve(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return r.serveConnections(ctx) })
	if r.udp != nil {
		tasks.Go(func() error { return r.serveLookups(ctx) })
	}
	tasks.Go(func() error {
		<-ctx.Done()
		r.close()
		return nil
	})
	err := tasks.Wait()
	r.Accept(nil)
	return err
}

func (r *Relay) close() {
	r.tcp.Close()
	if r.udp != nil {
		r.udp.Close()
	}
}

// scarce waits a little if err is a shortage that passes.
func scarce(ctx context.Context, err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			select {
			case <-ctx.Done():
			case <-time.After(scarcePause):
			}
			return true
		}
	}
	return false
}
