package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// aloneEnv tells a test binary that it runs in a namespace of its own.
const aloneEnv = "CORRAL_LAB_ALONE"

// Alone is TestMain of a package whose tests run, all of the process, in a
// namespace without any way out, in which every address there is belongs to the
// lab: whatever is dialled is answered by an origin and recorded. It needs neither
// the machine's lab lock nor the guard, and leaves nothing behind. Who is not root
// runs the tests that need no network.
func Alone(m *testing.M) {
	alone = os.Getenv(aloneEnv) != ""
	fuzzing := slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz=") || strings.HasPrefix(arg, "-test.fuzzworker")
	})
	if alone {
		if err := loopback(); err != nil {
			fmt.Fprintf(os.Stderr, "lab: loopback: %v\n", err)
			os.Exit(1)
		}
	}
	if alone || fuzzing || os.Geteuid() != 0 {
		Main(m)
	}
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), aloneEnv+"=1")
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	runtime.LockOSThread() // the death of this thread would be that of the child
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := self.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		os.Exit(max(1, ended.ExitCode()))
	case err != nil:
		fmt.Fprintf(os.Stderr, "lab: a namespace of its own: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// loopback is up in every namespace that tests expect.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// alone is whether this process is in a namespace of its own.
var alone bool

// startAlone makes the lab around this process.
func startAlone() (l *Lab, err error) {
	l = new(Lab)
	l.ctx, l.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	// Of this thread: a test may have sent the first one elsewhere.
	if l.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return nil, err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if links, err := netlink.LinkList(); err != nil || len(links) > 1 {
		return nil, fmt.Errorf("the namespace has a way out: %v, %w", links, err)
	}
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	if hasIPv6() {
		all = append(all, netip.MustParsePrefix("::/0"))
	}
	for _, p := range all {
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(p), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteReplace(r); err != nil {
			return nil, fmt.Errorf("local %v: %w", p, err)
		}
	}
	if l.Wire, err = capture("lo", begun()); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	l.serving.Go(l.Wire.run)
	l.onClose(l.Wire.close)
	if l.DNS, err = l.nameServer(NameServer); err != nil {
		return nil, fmt.Errorf("name server: %w", err)
	}
	if l.Authority, err = l.nameServer(Authority); err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return l, l.serveEverywhere()
}

// begun passes the first packet of each connection.
func begun() []bpf.Instruction {
	const syn, ack = 0x02, 0x10
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 6, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 9, Size: 1}, // IPv4
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 8},
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: 13, Size: 1},
		bpf.Jump{Skip: 3},
		bpf.LoadAbsolute{Off: 6, Size: 1}, // IPv6
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 40 + 13, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: syn | ack},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: syn, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: captureBytes},
	}
}

// serveEverywhere answers at ports 80 and 443 of every address.
func (l *Lab) serveEverywhere() error {
	srv, err := l.webServer()
	if err != nil {
		return err
	}
	for _, port := range []string{"80", "443"} {
		for _, network := range []string{"tcp4", "tcp6"} {
			if network == "tcp6" && !hasIPv6() {
				continue
			}
			ln, err := net.Listen(network, net.JoinHostPort("", port))
			if err != nil {
				return err
			}
			sorted := &sorter{Listener: ln, lab: l}
			serve := func() { _ = srv.Serve(sorted) }
			if port == "443" {
				serve = func() { _ = srv.ServeTLS(sorted, "", "") }
			}
			l.serving.Go(serve)
		}
	}
	return nil
}

// sorter gives the web server what no test has taken over.
type sorter struct {
	net.Listener
	lab *Lab
}

func (s *sorter) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		s.lab.mu.Lock()
		serve := s.lab.raw[addrPort(c.LocalAddr())]
		s.lab.mu.Unlock()
		if serve == nil {
			return c, nil
		}
		s.lab.serving.Go(func() {
			defer c.Close()
			defer context.AfterFunc(s.lab.ctx, func() { c.Close() })()
			serve(c)
		})
	}
}

// Raw has a server of the test's own making take the connections to one address at
// port 80 or 443, until the test ends. It is for a lab that is Alone.
func (l *Lab) Raw(tb testing.TB, at netip.AddrPort, serve func(net.Conn)) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.raw == nil {
		l.raw = map[netip.AddrPort]func(net.Conn){}
	}
	l.raw[at] = serve
	tb.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.raw, at)
	})
}

// Dialled are the ends of the connections that were begun so far in a lab that is
// Alone, whoever answered, but those to name servers and to 127.0.0.1 at a port of
// none of its web servers, where a test talks to what it tests.
func (l *Lab) Dialled() (to []netip.AddrPort) {
	for _, p := range l.Wire.Packets() {
		own := p.Dst == netip.AddrFrom4([4]byte{127, 0, 0, 1}) && p.DstPort != 80 && p.DstPort != 443
		if !own && p.DstPort != 53 {
			to = append(to, netip.AddrPortFrom(p.Dst, p.DstPort))
		}
	}
	return to
}
