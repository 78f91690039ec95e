package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Ports on which the canary, the metadata service and the authority accept
// TCP and say nothing. Wire records attempts at every other one.
var quiet = []uint16{22, 25, 80, 443, 853, 8080, 8443}

// Request is one HTTP request that an origin served.
type Request struct {
	At     time.Time
	From   netip.AddrPort
	To     netip.AddrPort
	Method string
	Host   string
	URL    string
	TLS    bool
}

func (r Request) String() string {
	return fmt.Sprintf("%s %s%s at %v from %v", r.Method, r.Host, r.URL, r.To, r.From)
}

// origins are the web servers on OriginFirst to OriginLast.
type origins struct {
	journal journal[Request]
	mu      sync.Mutex
	hosts   map[string]http.Handler

	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

// webServer is what serves every origin, with a CA of its own.
func (l *Lab) webServer() (*http.Server, error) {
	o := &origins{hosts: map[string]http.Handler{}}
	if err := o.newCA(); err != nil {
		return nil, err
	}
	l.origins = o
	l.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.ca.Raw})

	srv := &http.Server{
		Handler:           o,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // a client that hangs up is a test's business
		BaseContext:       func(net.Listener) context.Context { return l.ctx },
	}
	conf := &tls.Config{GetCertificate: o.certificate, NextProtos: []string{"h2", "http/1.1"}}
	srv.TLSConfig = conf
	l.onClose(srv.Close)
	return srv, nil
}

func (l *Lab) serveOrigins() error {
	srv, err := l.webServer()
	if err != nil {
		return err
	}
	for a := OriginFirst; a.Compare(OriginLast) <= 0; a = a.Next() {
		plain, err := l.listen(netip.AddrPortFrom(a, 80).String())
		if err != nil {
			return err
		}
		secure, err := l.listen(netip.AddrPortFrom(a, 443).String())
		if err != nil {
			return err
		}
		l.serving.Go(func() { _ = srv.Serve(plain) })
		l.serving.Go(func() { _ = srv.ServeTLS(secure, "", "") })
	}

	hosts := []netip.Addr{Canary, Metadata, Authority}
	if l.guard.ipv6 {
		hosts = append(hosts, Canary6)
	}
	for _, a := range hosts {
		for _, port := range quiet {
			ln, err := l.listen(netip.AddrPortFrom(a, port).String())
			if err != nil {
				return err
			}
			l.onClose(ln.Close)
			l.accept(ln, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		}
	}
	return nil
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// ServeHTTP serves what Handle said for the host, or a line that tells which
// origin was reached.
func (o *origins) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	req := Request{At: time.Now(), From: from, To: addrPort(to), Method: r.Method, Host: r.Host, URL: r.URL.String(), TLS: r.TLS != nil}
	o.journal.add(req)
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	o.mu.Lock()
	h := o.hosts[clean(host)]
	o.mu.Unlock()
	if h != nil {
		h.ServeHTTP(w, r)
		return
	}
	fmt.Fprintf(w, "origin %v: %s %s%s\n", req.To, req.Method, req.Host, req.URL)
}

func (o *origins) reset() {
	o.mu.Lock()
	clear(o.hosts)
	o.mu.Unlock()
	o.journal.reset()
}

// Handle serves a host on every origin, until the test ends.
func (l *Lab) Handle(tb testing.TB, host string, h http.Handler) {
	tb.Helper()
	l.origins.mu.Lock()
	defer l.origins.mu.Unlock()
	l.origins.hosts[clean(host)] = h
	tb.Cleanup(func() {
		l.origins.mu.Lock()
		defer l.origins.mu.Unlock()
		delete(l.origins.hosts, clean(host))
	})
}

// Requests returns what the origins served so far for a host, or for any host
// if it is empty.
func (l *Lab) Requests(host string) []Request {
	return l.origins.journal.list(func(r Request) bool { return host == "" || r.Host == host })
}

// CAFile writes the lab's CA certificate to a file of the test's own.
func (l *Lab) CAFile(tb testing.TB) string {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "lab-ca.pem")
	if err := os.WriteFile(name, l.CA, 0o644); err != nil {
		tb.Fatal(err)
	}
	return name
}

// Client is a web client on the host that trusts the lab's CA and connects to
// addr whatever a URL's host says.
func (l *Lab) Client(addr netip.Addr) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(l.origins.ca)
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, hostport string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(hostport)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		},
	}}
}

func (o *origins) newCA() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	o.key = key
	der, err := o.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "corral lab CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, key)
	if err != nil {
		return err
	}
	o.ca, err = x509.ParseCertificate(der)
	return err
}

// certificate makes one for whatever name or address the client asked for.
func (o *origins) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &x509.Certificate{
		IPAddresses: []net.IP{addrPort(hello.Conn.LocalAddr()).Addr().AsSlice()},
		KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if hello.ServerName != "" {
		c.DNSNames = []string{hello.ServerName}
	}
	der, err := o.sign(c, o.ca, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (o *origins) sign(c, parent *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	c.SerialNumber = serial
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if parent == nil {
		parent = c
	}
	return x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, o.key)
}
