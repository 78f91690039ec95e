package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// targets are what the attempts aim at. Those without one are absent.
type targets struct {
	Unlisted netip.Addr       `json:"unlisted"` // an ordinary unlisted host
	Resolver netip.Addr       `json:"resolver"` // a public resolver
	Metadata netip.Addr       `json:"metadata"` // a cloud's metadata service
	IPv6     netip.Addr       `json:"ipv6"`
	Gateway  netip.Addr       `json:"gateway"`  // the host on the sandbox's network
	Listener netip.AddrPort   `json:"listener"` // an undeclared listener on the host, which an unfenced helper reached
	Allowed  []netip.AddrPort `json:"allowed"`  // what is granted; every other port there is not
	Peers    []netip.Addr     `json:"peers"`    // other sandboxes
	Names    []string         `json:"names"`    // unlisted names
	Upstream netip.Addr       `json:"upstream"` // the name server that the gate itself asks

	AllowedNames []string `json:"allowed_names"` // what the first of Allowed is called
	ReadWrite    string   `json:"read_write"`    // a directory of the host's that is ours to write
	ReadOnly     []string `json:"read_only"`     // directories of the host's that are ours to read
	Outside      []string `json:"outside"`       // files of the host's that are not ours at all
}

func parseTargets(r io.Reader) (targets, error) {
	var t targets
	if err := spec.Decode(r, &t); err != nil {
		return targets{}, fmt.Errorf("targets: %w", err)
	}
	return t, nil
}

// cell is where an attempt is made from.
type cell struct {
	targets
	scratch   string // a directory of ours, removed at the end
	inherited result // what was open to us before we opened anything
}

// outcome is what came of an attempt, seen from inside.
type outcome string

const (
	blocked outcome = "blocked"
	escaped outcome = "escaped"
	missing outcome = "absent" // this kernel or this run does not have that way
	known   outcome = "known"  // it got where its sandbox is known not to keep it from
)

type result struct {
	outcome outcome
	detail  string
}

func out(format string, args ...any) result    { return result{escaped, fmt.Sprintf(format, args...)} }
func held(format string, args ...any) result   { return result{blocked, fmt.Sprintf(format, args...)} }
func absent(format string, args ...any) result { return result{missing, fmt.Sprintf(format, args...)} }

func limit(format string, args ...any) result { return result{known, fmt.Sprintf(format, args...)} }

var noTarget = absent("no target given")

// attempt is one way out. A nil error where it wanted to be is an escape.
type attempt struct {
	group, name string
	proves      string // what an escape would prove
	try         func(context.Context, *cell) result
}

// report is one line of output.
type report struct {
	Group   string  `json:"group"`
	Name    string  `json:"name"`
	Proves  string  `json:"proves"`
	Outcome outcome `json:"outcome"`
	Detail  string  `json:"detail"`
}

// judge turns the error of a system call into a result.
func judge(err error) result {
	switch {
	case err == nil:
		return out("it worked")
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT),
		errors.Is(err, unix.ESOCKTNOSUPPORT), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return absent("%v", err)
	}
	return held("%v", err)
}

// refusal is for calls whose lack of rights comes before any other error: every
// other one shows that the right is there.
func refusal(err error) result {
	if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && judge(err).outcome == blocked {
		return out("the right is there: %v", err)
	}
	return judge(err)
}

// worst is the first escape of several tries, else the first known limit, else
// one that was blocked, else the last result.
func worst(results ...result) result {
	last := noTarget
	for _, r := range results {
		if r.outcome == escaped {
			return r
		}
		if last.outcome != known && (r.outcome == known || last.outcome != blocked) {
			last = r
		}
	}
	return last
}

const (
	connectLimit = 1500 * time.Millisecond
	replyLimit   = 300 * time.Millisecond
)

// tcp connects once.
func tcp(ctx context.Context, to netip.AddrPort) result {
	d := net.Dialer{Timeout: connectLimit}
	return dial(ctx, d, "tcp", to, nil)
}

// udp sends one datagram. The kernel tells the sender of one that the filter
// refused, so a datagram sent without an error has left.
func udp(ctx context.Context, to netip.AddrPort, payload string) result {
	return dial(ctx, net.Dialer{Timeout: connectLimit}, "udp", to, []byte(payload))
}

func dial(ctx context.Context, d net.Dialer, network string, to netip.AddrPort, payload []byte) result {
	if !to.Addr().IsValid() {
		return noTarget
	}
	conn, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return held("%s %v: %v", network, to, reason(err))
	}
	defer conn.Close()
	if payload == nil {
		return out("%s %v accepted a connection", network, to)
	}
	if _, err := conn.Write(payload); err != nil {
		return held("%s %v: %v", network, to, reason(err))
	}
	_ = conn.SetReadDeadline(time.Now().Add(replyLimit))
	if _, err := conn.Read(make([]byte, 1500)); err == nil {
		return out("%s %v answered", network, to)
	}
	if to.Addr().IsLoopback() {
		return held("%s %v: nobody answers", network, to) // it went nowhere
	}
	return out("%s %v: sent without an error", network, to)
}

// reason is the system's own word for an error.
func reason(err error) error {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("no answer")
	}
	return err
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// each tries several destinations at once.
func each[T any](all []T, try func(T) result) result {
	results := make(chan result, len(all))
	for _, t := range all {
		go func() { results <- try(t) }()
	}
	var got []result
	for range all {
		got = append(got, <-results)
	}
	r := worst(got...)
	if r.outcome == blocked && len(all) > 1 {
		r.detail = fmt.Sprintf("%d tried; %s", len(all), r.detail)
	}
	return r
}

// ip4 is an address for the socket calls.
func ip4(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// withSocket makes a socket with limits on waiting and hands it over.
func withSocket(family, typ, proto int, use func(fd int) result) result {
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return judge(err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(int64(connectLimit))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	return use(fd)
}

// noSocket is for families in which having a socket is the escape.
func noSocket(family, typ, proto int) func(context.Context, *cell) result {
	return func(context.Context, *cell) result {
		return withSocket(family, typ, proto, func(int) result { return out("a socket could be made") })
	}
}
