package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

var (
	tcp       = []string{"tcp"}
	udp       = []string{"udp"}
	tcpAndUDP = []string{"tcp", "udp"}
)

// somePayload is what a UDP probe carries where the port has no protocol.
var somePayload = []byte("corral-verify")

// unlistedHostBlocked: Probes.Unlisted on the web's ports and on Ports, which
// something else is granted on, and Probes.Resolver
// on every port at which names are asked: 53, DNS over TLS, over HTTPS, over QUIC.
func unlistedHostBlocked(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil {
		return untold("no probes")
	}
	all := targets(tcp, []netip.Addr{c.Probes.Unlisted}, 443, 80)
	all = append(all, targets(tcp, []netip.Addr{c.Probes.Resolver}, 53, 853, 443)...)
	all = append(all, targets(udp, []netip.Addr{c.Probes.Resolver}, 443)...)
	all = unique(append(all, targets(tcp, []netip.Addr{c.Probes.Unlisted}, c.Ports...)...))
	return e.closed(ctx, all, somePayload)
}

// udpClosed: Probes.Unlisted by UDP, on Ports or else on those of names, time
// and QUIC; and all that Names resolve to, which are granted by TCP, by QUIC's.
func udpClosed(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil {
		return untold("no probes")
	}
	ports := c.Ports
	if len(ports) == 0 {
		ports = []uint16{53, 123, 443}
	}
	all := targets(udp, []netip.Addr{c.Probes.Unlisted}, ports...)
	for _, name := range c.Names {
		addrs, err := e.resolver.LookupNetIP(ctx, "ip4", name)
		if err != nil {
			return untold("%v", err)
		}
		for _, a := range addrs {
			all = append(all, targets(udp, []netip.Addr{a.Unmap()}, 443)...)
		}
	}
	return e.closed(ctx, unique(all), somePayload)
}

// metadataBlocked: Probes.Metadata, where clouds serve credentials.
func metadataBlocked(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil {
		return untold("no probes")
	}
	return e.closed(ctx, targets(tcp, []netip.Addr{c.Probes.Metadata}, 80), nil)
}

// portNotListedBlocked: Addrs, or else what Host resolves to, on Port.
func portNotListedBlocked(ctx context.Context, c spec.Check, e *env) finding {
	addrs := c.Addrs
	if len(addrs) == 0 {
		var err error
		if addrs, err = e.resolver.LookupNetIP(ctx, "ip4", c.Host); err != nil {
			return untold("%v", err)
		}
	}
	// The rule is one for all addresses of a name; a few stand for them.
	const most = 4
	addrs = addrs[:min(len(addrs), most)]
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return e.closed(ctx, targets(tcp, addrs, c.Port), nil)
}

// allowed: Host resolves as it does for any program here, and one of its
// addresses accepts TCP on Port.
func allowed(ctx context.Context, c spec.Check, e *env) finding {
	if c.Host == "" || c.Port == 0 {
		return untold("no host and port")
	}
	addrs, err := e.resolver.LookupNetIP(ctx, "ip4", c.Host)
	if err != nil {
		return failed("%v", err)
	}
	return e.reach(ctx, addrs, c.Port)
}

// hostService: Addr accepts TCP on Port and holds on to the connection for a
// moment. Whoever carries it to the host's loopback accepts before it has asked
// there, and resets if nobody answers.
func hostService(ctx context.Context, c spec.Check, e *env) finding {
	const limit = 1500 * time.Millisecond // with the watching, less than a check's, so that the reason is told
	if !c.Addr.IsValid() || c.Port == 0 {
		return untold("no address and port")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, probe, end, err := e.dial(ctx, netip.AddrPortFrom(c.Addr.Unmap(), c.Port))
	defer end()
	if err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(spec.RelayWatch))
		_, err = conn.Read(make([]byte, 1))
		if err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			return e.reached(probe)
		}
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return failed("no relay carries it to 127.0.0.1:%d of the host: corral up, or the next run, makes it anew", c.Port)
	case errors.Is(err, unix.ECONNRESET):
		return failed("nothing listens on 127.0.0.1:%d of the host", c.Port)
	case fateOf(err) == silent:
		// A cut cable looks the same from here.
		return untold("nobody answers: %v", cause(err))
	}
	return failed("%v", err)
}

// reach tries addresses side by side until one accepts. Silence tells nothing
// about the fence.
func (e *env) reach(ctx context.Context, addrs []netip.Addr, port uint16) finding {
	const limit = 1500 * time.Millisecond // less than a check's, so that the reason is told
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type result struct {
		probe spec.Probe
		err   error
	}
	results := make(chan result, len(addrs))
	for _, a := range addrs {
		go func() {
			conn, probe, end, err := e.dial(ctx, netip.AddrPortFrom(a.Unmap(), port))
			if err == nil {
				err = heard(ctx, conn)
			}
			end()
			results <- result{probe, err}
		}()
	}
	last := errors.New("it has no address")
	for range addrs {
		r := <-results
		if last = r.err; last == nil {
			return e.reached(r.probe)
		}
	}
	if fateOf(last) == silent {
		// A cut cable looks the same from here.
		return untold("nobody answers: %v", cause(last))
	}
	return failed("%v", last)
}

// heard is nil if the other end takes what is sent on a connection: nothing but its
// end, which it acknowledges. That a connection was accepted says only that the first
// packet got there.
func heard(ctx context.Context, conn net.Conn) error {
	const look = 5 * time.Millisecond
	c, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return errors.New("no TCP connection")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for ended := false; ; {
		select {
		case <-ctx.Done():
			return context.DeadlineExceeded
		case <-time.After(look):
		}
		var info *unix.TCPInfo
		var failed error
		if err := raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		switch over := info.State == tcpFinWait2 || info.State == tcpTimeWait || info.State == tcpClose; {
		case over && ended:
			return nil
		case over: // what a fence does that takes the first packet for all
			_, err := c.Read(make([]byte, 1))
			return cmp.Or(err, error(unix.ECONNRESET))
		case !ended:
			if err := c.CloseWrite(); err != nil {
				return err
			}
			ended = true
		}
	}
}

// States of a TCP connection (linux/tcp_states.h).
const (
	tcpFinWait2 = 5
	tcpTimeWait = 6
	tcpClose    = 7
)

// reached holds, by a connection of which the gate must have a record. What is tried
// aside, or before a harness starts, needs none: the answer came.
func (e *env) reached(probe spec.Probe) finding {
	f := ok()
	switch {
	case e.handover:
	case !probe.Addr.IsValid():
		return untold("%v, so that the gate could not record the connection", errNoPort)
	default:
		f.probes = []spec.Probe{probe}
	}
	return f
}

// icmpClosed: an echo request to Probes.Unlisted is refused as it is sent. The
// control is the same socket to loopback, so that a socket that cannot send at
// all proves nothing.
func icmpClosed(_ context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil || !c.Probes.Unlisted.Is4() {
		return untold("no probes")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if refused(err) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return ok() // no echo socket, and raw-sockets-refused covers the other way
	}
	if err != nil {
		return untold("echo socket: %v", err)
	}
	defer unix.Close(fd)
	echo := []byte{8, 0, 0, 0, 0, 0, 0, 1} // type, code, then what the kernel fills in
	if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return untold("echo to loopback: %v", err)
	}
	switch err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: c.Probes.Unlisted.As4()}); {
	case err == nil:
		return failed("an echo request to %v was let through", c.Probes.Unlisted)
	case refused(err):
		return ok()
	case e.aside && errors.Is(err, unix.ENETUNREACH) && !e.routed(c.Probes.Unlisted):
		return ok()
	default:
		return untold("echo request to %v: %v", c.Probes.Unlisted, err)
	}
}

// ipv6Disabled: off for all interfaces, for new ones and for each outer one,
// or not in this kernel.
func ipv6Disabled(_ context.Context, _ spec.Check, e *env) finding {
	const conf = "/proc/sys/net/ipv6/conf"
	entries, err := os.ReadDir(e.path(conf))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(e.path("/proc/net/if_inet6")); errors.Is(err, fs.ErrNotExist) {
			return ok()
		}
		return untold("IPv6 is there and its settings are not")
	}
	if err != nil {
		return untold("%v", err)
	}
	if len(entries) == 0 {
		return untold("%s is empty", conf)
	}
	for _, entry := range entries {
		if entry.Name() == "lo" {
			continue // the engine turns it on there from version 26
		}
		b, err := os.ReadFile(e.path(conf + "/" + entry.Name() + "/disable_ipv6"))
		if err != nil {
			return untold("%v", err)
		}
		if string(bytes.TrimSpace(b)) != "1" {
			return failed("on for %s", entry.Name())
		}
	}
	return ok()
}

// noIPv6Address: none but loopback's.
func noIPv6Address(_ context.Context, _ spec.Check, e *env) finding {
	addrs, err := e.ipv6Addresses()
	if err != nil {
		return untold("%v", err)
	}
	if len(addrs) > 0 {
		return failed("%s", list(addrs))
	}
	return ok()
}

// ipv6Addresses are those beyond ::1.
func (e *env) ipv6Addresses() ([]string, error) {
	b, err := os.ReadFile(e.path("/proc/net/if_inet6"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseIPv6(b)
}

// parseIPv6 reads /proc/net/if_inet6 and leaves ::1 out.
func parseIPv6(b []byte) ([]string, error) {
	var all []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 6 || len(f[0]) != 32 {
			return nil, fmt.Errorf("if_inet6: %q", strings.TrimSpace(line))
		}
		var parts []string
		for i := 0; i < 32; i += 4 {
			parts = append(parts, f[0][i:i+4])
		}
		a, err := netip.ParseAddr(strings.Join(parts, ":"))
		if err != nil {
			return nil, fmt.Errorf("if_inet6: %w", err)
		}
		if a != netip.IPv6Loopback() {
			all = append(all, fmt.Sprintf("%v on %s", a, f[5]))
		}
	}
	return all, nil
}

// ipv6Blocked: Probes.IPv6 cannot be dialled, because there is no IPv6 to send
// from or because the gate refused it.
func ipv6Blocked(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil || !c.Probes.IPv6.Is6() {
		return untold("no probes")
	}
	addrs, err := e.ipv6Addresses()
	if err != nil {
		return untold("%v", err)
	}
	f := ok()
	for _, proto := range tcpAndUDP {
		t := target{proto, netip.AddrPortFrom(c.Probes.IPv6, 443)}
		probe, got, err := e.send(ctx, t, somePayload)
		nowhere := errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES)
		switch {
		case got == replied:
			return failed("%v answers", t)
		case len(addrs) == 0 && nowhere:
		case e.aside && nowhere && !e.routed(c.Probes.IPv6):
		case got == unsent:
			return untold("%v: %v", t, err)
		default:
			if got != turned {
				f.result, f.detail = spec.Untold, fmt.Sprintf("%v: not refused at once", t)
			}
			f.probes = append(f.probes, probe)
		}
	}
	if e.handover {
		f.probes = nil
	}
	return f
}
