// Package lab is a private internet on one machine, for every test that sends
// packets: a network namespace with name servers, origins and a canary, all in
// 44.10.0.0/16. In goes what a test wants answered, out comes what was asked
// and what arrived.
//
// Before anything else it puts a guard in force: routing rules under which
// nothing that a sandbox sends can leave the machine, whatever is broken,
// mutated or attacked. It never sends a packet anywhere but into its own
// namespace, and leaves nothing behind.
//
// 44.10.0.0/16 looks global on purpose: corral must refuse the documentation
// ranges, so an origin cannot live there.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// Where things are.
var (
	Net    = netip.MustParsePrefix("44.10.0.0/16")
	Net6   = netip.MustParsePrefix("fd44:10::/64")
	Corral = netip.MustParsePrefix("172.30.0.0/16") // guarded in every lab

	NameServer  = netip.MustParseAddr("44.10.0.53") // the sandboxes' resolver
	Authority   = netip.MustParseAddr("44.10.0.66") // somebody's name server; also the public resolver among the probes
	OriginFirst = netip.MustParseAddr("44.10.0.10")
	OriginLast  = netip.MustParseAddr("44.10.0.30")
	Canary      = netip.MustParseAddr("44.10.9.9") // an ordinary host that no policy lists
	Metadata    = netip.MustParseAddr("44.10.9.169")
	Canary6     = netip.MustParseAddr("fd44:10::9:9")
)

// Probes are the outside addresses that corral may dial in tests.
func Probes() spec.Probes {
	return spec.Probes{Unlisted: Canary, Resolver: Authority, Metadata: Metadata, IPv6: Canary6}
}

const lockFile = "/run/corral-lab.lock"

// Lab is the private internet while it runs.
type Lab struct {
	// DNS is the stub at NameServer.
	DNS *DNS
	// Authority is the name server at Authority. What it was asked left the
	// sandbox.
	Authority *DNS
	// Wire has every packet that arrived for Canary, Canary6, Metadata or
	// Authority.
	Wire *Capture
	// CA is the certificate, in PEM, that signs for every TLS origin.
	CA []byte

	lock   *os.File
	ns     *os.File
	inside *netlink.Handle
	guard  *guard

	origins *origins
	raw     map[netip.AddrPort]func(net.Conn) // taken over by tests; under mu
	ctx     context.Context
	stop    context.CancelFunc
	serving sync.WaitGroup
	mu      sync.Mutex // around guard, raw and closers
	closers []func() error
}

// Start makes the lab of this machine, waiting until no other one is there,
// and closes it when the test ends. Prefixes are guarded beside Corral.
func Start(tb testing.TB, prefixes ...netip.Prefix) *Lab {
	tb.Helper()
	testenv.Require(tb, "netns")
	if shared.on {
		tb.Fatal("lab: this package shares a lab: Use")
	}
	l, err := start(prefixes)
	if err != nil {
		tb.Fatalf("lab: %v", err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("lab: close: %v", err)
		}
	})
	return l
}

// shared is the lab of a package that has Main.
var shared struct {
	mu       sync.Mutex
	on       bool
	prefixes []netip.Prefix
	lab      *Lab
}

// Main is TestMain of a package whose tests share one lab: it is started by
// the first Use and closed at the end.
func Main(m *testing.M, prefixes ...netip.Prefix) { os.Exit(Run(m, prefixes...)) }

// Run is Main for a package that has more to clear up: it returns the status.
func Run(m *testing.M, prefixes ...netip.Prefix) int {
	shared.on, shared.prefixes = true, prefixes
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintf(os.Stderr, "lab: close: %v\n", err)
		code = 1
	}
	return code
}

// Use returns the lab that the package shares. The test fails unless the guard
// is in force.
func Use(tb testing.TB) *Lab {
	tb.Helper()
	testenv.Require(tb, "netns")
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.on {
		tb.Fatal("lab: Use needs lab.Main as the package's TestMain")
	}
	if shared.lab == nil {
		make := func() (*Lab, error) { return start(shared.prefixes) }
		if alone {
			make = startAlone
		}
		l, err := make()
		if err != nil {
			tb.Fatalf("lab: %v", err)
		}
		shared.lab = l
	}
	if !alone {
		shared.lab.Guarded(tb)
	}
	return shared.lab
}

func closeShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	l := shared.lab
	shared.lab = nil
	if l == nil {
		return nil
	}
	return l.Close()
}

func start(prefixes []netip.Prefix) (_ *Lab, err error) {
	l := &Lab{}
	l.ctx, l.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.lock, err = acquire(); err != nil {
		return nil, err
	}
	if err := sweep(); err != nil {
		return nil, fmt.Errorf("what a predecessor left: %w", err)
	}
	l.guard = &guard{prefixes: append([]netip.Prefix{Corral}, prefixes...), ipv6: hasIPv6()}
	if err := l.guard.raise(); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if err := l.connect(); err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	if err := l.guard.check(); err != nil {
		return nil, err
	}
	if err := l.serve(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Lab) serve() (err error) {
	if l.Wire, err = l.watch(); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	if l.DNS, err = l.nameServer(NameServer); err != nil {
		return fmt.Errorf("name server: %w", err)
	}
	if l.Authority, err = l.nameServer(Authority); err != nil {
		return fmt.Errorf("authority: %w", err)
	}
	if err := l.serveOrigins(); err != nil {
		return fmt.Errorf("origins: %w", err)
	}
	return nil
}

// Close stops everything and removes it; the guard goes last. It fails if
// something is left.
func (l *Lab) Close() error {
	l.stop()
	var errs []error
	l.mu.Lock()
	closers := l.closers
	l.mu.Unlock()
	for _, c := range closers {
		if err := c(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	l.serving.Wait()
	if l.inside != nil {
		l.inside.Close()
	}
	if l.ns != nil {
		errs = append(errs, l.ns.Close())
	}
	if l.lock != nil {
		errs = append(errs, sweep(), l.lock.Close())
	}
	return errors.Join(errs...)
}

func (l *Lab) onClose(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, f)
}

// Reset forgets every script, handler and record. Tests that run in parallel
// must not call it.
func (l *Lab) Reset() {
	l.DNS.reset()
	l.Authority.reset()
	l.origins.reset()
	l.Wire.journal.reset()
}

// Do runs f on a thread inside the lab's namespace. What f opens stays there
// and may be used from anywhere; programs it starts run there.
func (l *Lab) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(l.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Control is the positive control: somebody without a fence reaches the
// canary, by TCP on port 443. Without it "nothing arrived" proves nothing, so
// the test fails. The somebody is a container on the named Docker network, or
// the host itself if the name is empty.
func (l *Lab) Control(tb testing.TB, network string) {
	tb.Helper()
	l.Guarded(tb)
	before := len(l.Wire.To(Canary))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if network == "" {
		var c net.Conn
		if c, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", netip.AddrPortFrom(Canary, 443).String()); err == nil {
			err = c.Close()
		}
	} else {
		_, err = command.Run(ctx, nil, "docker", "run", "--rm", "--network", network, testenv.BaseImage,
			"bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/443", Canary))
	}
	if err != nil {
		tb.Fatalf("positive control: nobody reaches the canary, so nothing can be told: %v", err)
	}
	if len(l.Wire.To(Canary)) == before {
		tb.Fatal("positive control: the canary was reached and saw nothing, so nothing can be told")
	}
}

// acquire takes the machine's lab lock, waiting for whoever has it.
func acquire() (*os.File, error) {
	f, err := os.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX | unix.LOCK_NB
	for {
		switch err := unix.Flock(int(f.Fd()), how); {
		case err == nil:
			return f, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			fmt.Fprintf(os.Stderr, "lab: waiting for %s\n", lockFile)
			how = unix.LOCK_EX
		case !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", lockFile, err)
		}
	}
}

// sweep removes every trace of a lab from the host. The namespace has no name,
// so it ended with the process that made it; the kernel takes its link away soon
// after, perhaps while this looks.
func sweep() error {
	link, err := netlink.LinkByName(hostLink)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return errors.Join(err, lower())
}
