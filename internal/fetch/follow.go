package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// maxHeaders bounds what a server may say before the body, in bytes.
	maxHeaders = 64 << 10
	// maxInformed bounds its replies that are none yet (1xx).
	maxInformed = 64
	// accepted is what is asked for; what comes is judged by what it says it is.
	accepted = "text/html,application/xhtml+xml,text/markdown,text/plain,application/json,application/xml;q=0.9,*/*;q=0.1"
)

// follower asks for a page and goes where it is sent, one hop at a time, each one
// checked as if it were the first.
type follower struct {
	settings
	roots *x509.CertPool
}

// page is what the last server of a chain said.
type page struct {
	target      target
	status      int
	contentType string
	body        []byte
	cut         bool // there was more
}

// get returns a page and the hops that led there; the hops also with an error.
func (f *follower) get(ctx context.Context, t target) (page, []spec.FetchHop, error) {
	var hops []spec.FetchHop
	for {
		hops = append(hops, spec.FetchHop{URL: t.url.String()})
		hop := &hops[len(hops)-1]
		addrs, err := f.destination(ctx, t)
		if err != nil {
			return page{}, hops, ended(ctx, err)
		}
		p, location, err := f.ask(ctx, t, addrs, hop)
		if err != nil || location == nil {
			return p, hops, err
		}
		if len(hops) > f.Redirects {
			return page{}, hops, failf(spec.FetchRedirects, "more than %d redirects", f.Redirects)
		}
		if t, err = t.next(*location, f.Ports); err != nil {
			var why *failure
			if errors.As(err, &why) {
				err = failf(why.reason, "redirect to %s: %s", shown(*location), why.detail)
			}
			return page{}, hops, err
		}
	}
}

// maxShown bounds what is shown of where a redirect leads, in bytes: what is wrong
// with it has to have room behind.
const maxShown = 150

// shown is a URL that a server wrote, for who reads of it: without blanks and what is
// not printable ASCII, and not too long.
func shown(url string) string {
	var b strings.Builder
	for _, c := range []byte(url) {
		if b.Len() >= maxShown {
			return b.String() + "…"
		}
		if c <= ' ' || c > '~' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// The steps of one request.
const (
	connecting = iota
	greeting   // TLS
	waiting    // for the headers
)

// ask sends one request and returns the page, or where it is redirected. No
// connection outlives it, so none is ever taken for another name.
func (f *follower) ask(ctx context.Context, t target, addrs []netip.Addr, hop *spec.FetchHop) (page, *string, error) {
	d := &dial{follower: f, addrs: addrs, port: t.port}
	var step atomic.Int32
	var informed int
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeStart: func() { step.Store(greeting) },
		GotConn:           func(httptrace.GotConnInfo) { step.Store(waiting) },
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			if informed++; informed > maxInformed {
				return failf(spec.FetchBadResponse, "more than %d replies without an answer (%d)", maxInformed, code)
			}
			return nil
		},
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	transport := &http.Transport{
		DialContext:            d.connect,
		Proxy:                  nil, // whatever the environment says
		Protocols:              protocols,
		DisableKeepAlives:      true,
		DisableCompression:     true, // inflated here, within bounds
		MaxResponseHeaderBytes: maxHeaders,
		TLSHandshakeTimeout:    f.Connect,
		ResponseHeaderTimeout:  f.FirstByte,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.roots},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url.String(), nil)
	if err != nil {
		return page{}, nil, failf(spec.FetchInvalidURL, "it makes no request")
	}
	req.Header.Set("User-Agent", f.UserAgent)
	req.Header.Set("Accept", accepted)
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := transport.RoundTrip(req)
	hop.Address = d.at
	if err != nil {
		return page{}, nil, f.why(ctx, err, int(step.Load()))
	}
	defer resp.Body.Close() // unread, it ends the connection
	switch code := resp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		return page{}, nil, failf(spec.FetchBadResponse, "the server changes to another protocol")
	case code < 200:
		return page{}, nil, failf(spec.FetchBadResponse, "its status is none")
	case code >= 300 && code < 400:
		switch code {
		case 301, 302, 303, 307, 308:
		default:
			return page{}, nil, failf(spec.FetchBadRedirect, "status %d is not followed", code)
		}
		location := slices.Compact(slices.Clone(resp.Header["Location"])) // said twice, it is said
		if len(location) != 1 {
			return page{}, nil, failf(spec.FetchBadRedirect, "status %d with %d places to go to", code, len(location))
		}
		return page{}, &location[0], nil
	}
	p := page{target: t, status: resp.StatusCode}
	if err := f.read(ctx, resp, &p); err != nil {
		return page{}, nil, err
	}
	return p, nil, nil
}

// why is the reason for a request without a response.
func (f *follower) why(ctx context.Context, err error, step int) error {
	if err := ended(ctx, nil); err != nil {
		return err
	}
	var known *failure
	var timed net.Error
	var un *unconnected
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &un):
		if all(un.errs, func(err error) bool { return errors.As(err, &timed) && timed.Timeout() }) {
			return failf(spec.FetchTimeout, "no connection within %v", f.Connect)
		}
		return failf(spec.FetchConnect, "no address accepts a connection: %s", reasons(un.errs))
	case errors.As(err, &timed) && timed.Timeout() && step == greeting:
		return failf(spec.FetchTimeout, "no TLS within %v", f.Connect)
	case errors.As(err, &timed) && timed.Timeout():
		return failf(spec.FetchTimeout, "no response within %v", f.FirstByte)
	case step == greeting:
		return failf(spec.FetchTLS, "%s", ownWords(err))
	}
	return failf(spec.FetchBadResponse, "%s", ownWords(err))
}

// ended is the failure of a fetch whose time is over, or whose client is gone;
// otherwise err.
func ended(ctx context.Context, err error) error {
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		<-ctx.Done() // a socket may have noticed first
	}
	if ctx.Err() == nil {
		return err
	}
	var f *failure
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	return failf(spec.FetchGone, "who asked hung up")
}

func all(errs []error, are func(error) bool) bool {
	for _, err := range errs {
		if !are(err) {
			return false
		}
	}
	return len(errs) > 0
}

// reasons are the words of the kernel's errors, each once.
func reasons(errs []error) (words string) {
	seen := map[syscall.Errno]bool{}
	for _, err := range errs {
		var errno syscall.Errno
		if errors.As(err, &errno) && !seen[errno] {
			seen[errno] = true
			if words != "" {
				words += ", "
			}
			words += errno.Error()
		}
	}
	if words == "" {
		return "in time"
	}
	return words
}

// share is when one of n tries has to be done so that the rest has as long.
func share(deadline time.Time, n int) time.Time {
	return time.Now().Add(time.Until(deadline) / time.Duration(n))
}
