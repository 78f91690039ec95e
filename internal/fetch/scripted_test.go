package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// script is a server's behaviour that a row tells of, and what must come of it.
type script struct {
	settings func(*settings)
	begin    func(a *asker)
	url      string // that of hopHost unless it is said
	reason   spec.FetchReason
	page     string                     // in the text, of a page that is one
	check    func(t *testing.T, s said) // what else must hold
	dials    int                        // connections, one unless it is said; none: -1
}

func short(s *settings) {
	s.Connect, s.FirstByte, s.Total = 500*time.Millisecond, 500*time.Millisecond, time.Second
}

func (sc script) run(t *testing.T) {
	a := serving(t, sc.settings)
	if sc.begin != nil {
		sc.begin(a)
	}
	url := sc.url
	if url == "" {
		url = "http://" + hopHost + "/"
	}
	got := a.get(url)
	if got.reason() != sc.reason || sc.reason != "" && got.code != sc.reason.Status() {
		t.Errorf("%v, want %q", got, sc.reason)
	}
	if sc.reason == "" && (got.code != 200 || !strings.Contains(got.ContentMarkdown, sc.page)) {
		t.Errorf("%v, want a page with %q", got, sc.page)
	}
	if sc.check != nil {
		sc.check(t, got)
	}
	want := sc.dials
	if want == 0 {
		want = 1
	}
	if n := len(a.dialled()); n != max(want, 0) {
		t.Errorf("dialled %v, want %d", a.dialled(), want)
	}
	if sc.reason != spec.FetchBusy {
		a.idle()
	}
}

// rowsOf runs the script of every row of a class, and misses none.
func rowsOf(t *testing.T, class string, scripts map[string]script) {
	for _, v := range vectors(t, class) {
		sc, ok := scripts[v.text]
		if !ok {
			t.Errorf("no script for %q: %s", v.text, v.right)
			continue
		}
		t.Run(v.text, sc.run)
		delete(scripts, v.text)
	}
	for text := range scripts {
		t.Errorf("no row is %q", text)
	}
}

// says is a raw response of hopHost.
func says(response string) func(*asker) { return func(a *asker) { a.raw(response) } }

const html1 = "Content-Type: text/html\r\n"

// R060: what servers do to send a client elsewhere.
func TestRedirectVectors(t *testing.T) {
	scripts := map[string]script{}
	generic := regexp.MustCompile(`^GET public -> (\d+) (Location|Content-Location): (.*)$`)
	for _, v := range vectors(t, "redirect") {
		m := generic.FindStringSubmatch(v.text)
		if m == nil {
			continue
		}
		to := strings.ReplaceAll(m[3], `\\`, `\`)
		sc := script{begin: says("HTTP/1.1 " + m[1] + " x\r\nConnection: close\r\n" + html1 + m[2] + ": " + to + "\r\nContent-Length: 4\r\n\r\nbody")}
		switch {
		case m[1] == "200", m[1] == "201":
			sc.page = "body"
		case m[1] == "301", m[1] == "308", strings.HasPrefix(to, "HTTP:"), strings.HasSuffix(to, ":22/"), strings.Contains(to, "nip.io"):
			sc.reason = spec.FetchBlocked
		default:
			sc.reason = spec.FetchBadRedirect
		}
		scripts[v.text] = sc
	}
	nip := scripts["GET public -> 302 Location: http://127.0.0.1.nip.io/"]
	inner := nip.begin
	nip.begin = func(a *asker) { inner(a); a.lab.DNS.Set("127.0.0.1.nip.io", lab.A("127.0.0.1")) }
	scripts["GET public -> 302 Location: http://127.0.0.1.nip.io/"] = nip

	scripts["GET https -> 302 Location: http://public/"] = script{url: "https://" + hopHost + "/", reason: spec.FetchBadRedirect, begin: func(a *asker) {
		a.lab.Handle(t, hopHost, http.RedirectHandler("http://"+otherHost+"/", http.StatusFound))
	}}
	scripts["GET public -> 302 without Location"] = script{reason: spec.FetchBadRedirect, begin: says("HTTP/1.1 302 Found\r\nConnection: close\r\n" + html1 + "\r\nbody")}
	var written atomic.Int64
	scripts["GET public -> 302 with a 64 MiB body"] = script{dials: 2, page: "GET " + otherHost, begin: func(a *asker) {
		a.rawFunc(func(c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 302 Found\r\nLocation: http://%s/\r\nContent-Length: %d\r\n\r\n", otherHost, 64<<20)
			n, _ := io.Copy(c, io.LimitReader(zeros{}, 64<<20))
			written.Store(n)
		})
	}, check: func(t *testing.T, s said) {
		if n := written.Load(); n > 16<<20 { // what sockets hold
			t.Errorf("%d bytes of the redirect's body were taken", n)
		}
	}}
	scripts["GET public -> 302 to a name whose second lookup is 127.0.0.1"] = script{dials: 2, page: "GET flip.evil.test", begin: func(a *asker) {
		a.raw("HTTP/1.1 302 Found\r\nLocation: http://flip.evil.test/\r\nContent-Length: 0\r\n\r\n")
		a.lab.DNS.Set("flip.evil.test", flips()...)
	}}
	scripts["GET host A (Cookie/Authorization set) -> 302 host B"] = script{dials: 2, page: "heard", begin: func(a *asker) {
		a.raw("HTTP/1.1 302 Found\r\nSet-Cookie: a=b; Domain=lab.test\r\nWWW-Authenticate: Basic realm=x\r\nLocation: http://" + otherHost + "/\r\nContent-Length: 0\r\n\r\n")
		a.lab.Handle(t, otherHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for name := range r.Header {
				if !slices.Contains([]string{"User-Agent", "Accept", "Accept-Encoding", "Connection"}, name) {
					t.Errorf("sent %s: %q", name, r.Header[name])
				}
			}
			if got := r.Header.Get("Accept-Encoding"); got != "gzip" {
				t.Errorf("Accept-Encoding: %q", got)
			}
			if r.UserAgent() != defaults().UserAgent || r.Method != http.MethodGet || r.Proto != "HTTP/1.1" {
				t.Errorf("%s %s by %q", r.Method, r.Proto, r.UserAgent())
			}
			io.WriteString(w, "heard")
		}))
	}}
	scripts["GET public -> 200 with header Refresh: 0; url=http://127.0.0.1/"] = script{page: "here", begin: says(reply(html1+"Refresh: 0; url=http://127.0.0.1/\r\n", "<p>here"))}
	scripts[`GET public -> 200 with <meta http-equiv=refresh content="0;url=http://127.0.0.1/">`] = script{
		page: "This page moves browsers on to <http://127.0.0.1/>, which was not followed.", begin: says(reply(html1, `<meta http-equiv=refresh content="0;url=http://127.0.0.1/"><p>here`))}
	scripts[`GET public -> 200 with <base href="http://127.0.0.1/"> and relative links`] = script{
		page: "[there](http://127.0.0.1/x)", begin: says(reply(html1, `<base href="http://127.0.0.1/"><p>look <a href="x">there</a> and elsewhere`))}
	scripts["GET public -> 200 with <iframe>, <img>, <link>, <object>, svg <image> to 127.0.0.1"] = script{
		page: "here", begin: says(reply(html1, `<link rel=stylesheet href="http://127.0.0.1/a"><iframe src="http://127.0.0.1/b"></iframe><object data="http://127.0.0.1/d"></object><svg><image href="http://127.0.0.1/e"/></svg><p>here <img src="http://127.0.0.1/c">`))}
	rowsOf(t, "redirect", scripts)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// flips is a name that was public when it was checked, and is not any more. Both
// families are asked for at the same time.
func flips() []lab.Reply {
	public := lab.A(otherAddr).TTL(0)
	return []lab.Reply{public, public, lab.A("127.0.0.1").TTL(0)}
}

// R060: every kind of redirect, to every kind of place that is not public.
func TestRedirectsInward(t *testing.T) {
	a := serving(t, nil)
	for _, code := range []int{301, 302, 303, 307, 308} {
		for _, to := range []string{"http://169.254.169.254/", "http://researcher:8765/", "http://[::1]/", "//corral-host:8081", "//127.0.0.1/", `/\169.254.169.254/`, `\\169.254.169.254\`,
			"http://user@127.0.0.1/", "https://0x7f.1/", "ftp://" + otherHost + "/", "javascript:alert(1)", "http://", ""} {
			a.raw(fmt.Sprintf("HTTP/1.1 %d x\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", code, to))
			before := len(a.dialled())
			got := a.get("http://" + hopHost + "/")
			if got.reason() != spec.FetchBlocked && got.reason() != spec.FetchBadRedirect {
				t.Errorf("%d to %q: %v", code, to, got)
			}
			if n := len(a.dialled()) - before; n != 1 {
				t.Errorf("%d to %q: %d connections", code, to, n)
			}
		}
	}
}

// R060: five redirects are followed, a sixth is not, and a chain of thirty or a loop
// ends there too.
func TestRedirectChains(t *testing.T) {
	a := serving(t, nil)
	a.lab.Handle(t, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var left int
		fmt.Sscanf(r.URL.Path, "/%d", &left)
		switch {
		case r.URL.Path == "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case left > 0:
			http.Redirect(w, r, fmt.Sprintf("%d", left-1), http.StatusTemporaryRedirect)
		default:
			io.WriteString(w, "the end")
		}
	}))
	for path, want := range map[string]spec.FetchReason{"/0": "", "/1": "", "/5": "", "/6": spec.FetchRedirects, "/30": spec.FetchRedirects, "/loop": spec.FetchRedirects} {
		before := len(a.dialled())
		got := a.get("http://" + hopHost + path)
		if got.reason() != want || want == "" && got.FinalURL != "http://"+hopHost+"/0" {
			t.Errorf("%s: %v", path, got)
		}
		if n := len(a.dialled()) - before; n > 6 {
			t.Errorf("%s: %d connections", path, n)
		}
		for _, h := range slices.Concat(got.Hops, got.failure.Hops) {
			if h.Address != netip.MustParseAddr(hopAddr) || !strings.HasPrefix(h.URL, "http://"+hopHost+"/") {
				t.Errorf("%s: hop %+v", path, h)
			}
		}
	}
}

// Places that are the same are one, and paths are understood as people write them.
func TestPlaces(t *testing.T) {
	a := serving(t, nil)
	for headers, want := range map[string]string{
		"Location: http://" + otherHost + "/100%\r\nLocation: http://" + otherHost + "/100%\r\n": "http://" + otherHost + "/100%25",
		"Location: http://" + otherHost + "/a\r\nLocation: http://" + otherHost + "/b\r\n":       "",
		"Location: http://" + otherHost + "/%zz%20%?%\r\n":                                       "http://" + otherHost + "/%25zz%20%25?%",
	} {
		a.raw("HTTP/1.1 302 Found\r\n" + headers + "Content-Length: 0\r\n\r\n")
		got := a.get("http://" + hopHost + "/")
		if got.FinalURL != want || want == "" && got.reason() != spec.FetchBadRedirect {
			t.Errorf("%q: %v", headers, got)
		}
	}
	name := "a_b." + otherHost
	a.lab.DNS.Set(name, lab.A(otherAddr))
	if got := a.get("http://" + name + "/50%-off?q=5%"); got.FinalURL != "http://"+name+"/50%25-off?q=5%" {
		t.Error(got)
	}
}

// R058: what a name server may say, in order and in form.
func TestDNSVectors(t *testing.T) {
	const name = "x.evil.test"
	set := func(replies ...lab.Reply) func(*asker) {
		return func(a *asker) { a.lab.DNS.Set(name, replies...) }
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = fmt.Sprintf("44.10.%d.%d", 100+i/200, i%200)
	}
	many[999] = "10.0.0.1"
	var chain []string
	for i := range 50 {
		chain = append(chain, fmt.Sprintf("c%d.evil.test", i))
	}
	blocked, failed := spec.FetchBlocked, spec.FetchDNS
	scripts := map[string]script{
		"A 127.0.0.1 second, first public address closed (RST)": {reason: blocked, dials: -1, begin: set(lab.A(otherAddr, "127.0.0.1"))},
		"AAAA ::ffff:127.0.0.1":                                 {reason: blocked, dials: -1, begin: set(lab.A("::ffff:127.0.0.1"))},
		"AAAA 64:ff9b::7f00:1":                                  {reason: blocked, dials: -1, begin: set(lab.A("64:ff9b::7f00:1"))},
		"A 0.0.0.0":                                             {reason: blocked, dials: -1, begin: set(lab.A("0.0.0.0"))},
		"CNAME -> localhost":                                    {reason: blocked, dials: -1, begin: set(lab.Records(name + ". 60 IN CNAME localhost."))},
		"CNAME -> metadata.google.internal":                     {reason: blocked, dials: -1, begin: set(lab.Records(name + ". 60 IN CNAME metadata.google.internal."))},
		"CNAME -> corral-host":                                  {reason: blocked, dials: -1, begin: set(lab.Records(name + ". 60 IN CNAME corral-host."))},
		"1,000 A records, the last one private":                 {reason: failed, dials: -1, begin: set(lab.A(many...))},
		"CNAME loop or 50-step chain":                           {reason: failed, dials: -1, begin: set(lab.A(otherAddr).Via(chain...))},
		"TC bit set over UDP, TCP answer differs":               {reason: blocked, dials: -1, begin: set(lab.A(otherAddr, "127.0.0.1").Truncated())},
		"A record whose owner is another name, or behind a broken CNAME chain": {reason: failed, dials: -1, begin: set(lab.Records("other.evil.test. 60 IN A 127.0.0.1", "other.evil.test. 60 IN AAAA ::1"))},
		"answer with the wrong transaction ID or question": {reason: failed, dials: -1, settings: func(s *settings) {
			s.Connect = 500 * time.Millisecond
			s.Resolvers = []netip.AddrPort{forging(t)}
		}},
		"HTTPS record with ech=":    {page: "GET " + name, begin: set(lab.Records(name+`. 60 IN HTTPS 1 . alpn="h3" ipv4hint="127.0.0.1"`, name+". 60 IN A "+otherAddr))},
		"server answers after 30 s": {reason: failed, dials: -1, settings: func(s *settings) { s.Connect = 500 * time.Millisecond }, begin: set(lab.Silence())},
		"single label name with host search domain": {url: "http://intranet/", reason: blocked, dials: -1, check: func(t *testing.T, s said) {
			if q := lab.Use(t).DNS.Queries(); len(q) > 0 {
				t.Errorf("asked %v", q)
			}
		}},
	}
	for text, sc := range scripts {
		if sc.url == "" {
			sc.url = "http://" + name + "/"
			scripts[text] = sc
		}
	}
	rowsOf(t, "dns", scripts)
}

// forging is a name server that answers other questions than it is asked, with an
// address that would be reached.
func forging(t *testing.T) netip.AddrPort {
	t.Helper()
	lab.Use(t)
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		for _, forged := range []func(*dns.Msg){func(m *dns.Msg) { m.Id++ }, func(m *dns.Msg) { m.Question[0].Name = "y.evil.test." }} {
			m := new(dns.Msg).SetReply(q)
			forged(m)
			rr, err := dns.NewRR(m.Question[0].Name + " 60 IN A " + otherAddr)
			if err != nil {
				t.Error(err)
			}
			m.Answer = []dns.RR{rr}
			w.WriteMsg(m)
		}
	})}
	ready := make(chan struct{})
	s.NotifyStartedFunc = func() { close(ready) }
	go s.ActivateAndServe()
	<-ready
	t.Cleanup(func() { s.Shutdown() })
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// R058: a name whose address changes is looked up once a hop, and what was checked
// is what is dialled, however often it is asked for and by how many at a time.
func TestRebinding(t *testing.T) {
	a := serving(t, nil)
	var wg sync.WaitGroup
	for i := range 40 {
		name := fmt.Sprintf("flip-%d.evil.test", i)
		a.lab.DNS.Set(name, flips()...)
		wg.Go(func() {
			for range 3 { // some are busy
				s, err := a.try(context.Background(), `{"url": "http://`+name+`/"}`)
				if err != nil {
					t.Error(err)
					return
				}
				if s.code == 200 && !strings.HasPrefix(s.ContentMarkdown, "origin "+otherAddr+":80: GET "+name+"/") || s.code != 200 && s.reason() != spec.FetchBlocked && s.reason() != spec.FetchBusy {
					t.Errorf("%s: %v", name, s)
				}
			}
		})
	}
	wg.Wait()
	for _, to := range a.dialled() {
		if to.Addr() != netip.MustParseAddr(otherAddr) {
			t.Errorf("dialled %v", to)
		}
	}
	asked := map[string]int{}
	for _, q := range a.lab.DNS.Queries() {
		asked[q.Name+" "+q.Type]++
	}
	for q, n := range asked {
		if n > 3 {
			t.Errorf("%s was asked %d times for three pages", q, n)
		}
	}
}

// R058: no connection to one name is ever used for another one at the same address,
// nor for the same name asked for again.
func TestNoConnectionIsUsedAgain(t *testing.T) {
	a := serving(t, nil)
	for i := range 6 {
		name := fmt.Sprintf("shared-%d.lab.test", i%3)
		a.lab.DNS.Set(name, lab.A(otherAddr))
		if got := a.get("http://" + name + "/"); got.code != 200 || !strings.Contains(got.ContentMarkdown, "GET "+name) {
			t.Errorf("%v", got)
		}
		if n := len(a.dialled()); n != i+1 {
			t.Errorf("%d connections for %d pages", n, i+1)
		}
	}
}

// The second wall: the dialer's hook refuses what was not checked, whatever led to
// it.
func TestWall(t *testing.T) {
	f := &follower{settings: defaults()}
	checked := netip.MustParseAddr("44.10.0.11")
	d := &dial{follower: f, addrs: []netip.Addr{checked, netip.MustParseAddr("127.0.0.1")}, port: 80}
	for _, tt := range []struct {
		network, address string
		ok               bool
	}{
		{"tcp4", "44.10.0.11:80", true},
		{"tcp4", "44.10.0.12:80", false},
		{"tcp4", "44.10.0.11:81", false},
		{"tcp4", "127.0.0.1:80", false}, // in the list by a fault of ours
		{"udp4", "44.10.0.11:80", false},
		{"unix", "/run/docker.sock", false},
		{"tcp6", "[::ffff:44.10.0.11]:80", false},
		{"tcp4", "", false},
	} {
		err := d.wall(context.Background(), tt.network, tt.address, nil)
		var refused *failure
		if (err == nil) != tt.ok || err != nil && (!errors.As(err, &refused) || refused.reason != spec.FetchBlocked) {
			t.Errorf("%s %s: %v", tt.network, tt.address, err)
		}
	}
}

// A server whose first address is closed is reached at its second one.
func TestNextAddress(t *testing.T) {
	a := serving(t, nil)
	name := "two.lab.test"
	// No web server has this port, and it is allowed in this test alone.
	a.s.follower.Ports = []uint16{80, 8080}
	a.lab.DNS.Set(name, lab.A("44.10.0.12", "44.10.0.13"))
	ln := a.lab.Listen(t, "44.10.0.13:8080")
	go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "second") }))
	got := a.get("http://" + name + ":8080/")
	if got.code != 200 || got.Hops[0].Address != netip.MustParseAddr("44.10.0.13") {
		t.Errorf("%v", got)
	}
	a.lab.DNS.Set(name, lab.A("44.10.0.12"))
	if got := a.get("http://" + name + ":8080/"); got.reason() != spec.FetchConnect || !strings.Contains(got.failure.Detail, "connection refused") {
		t.Errorf("%v", got)
	}
}

func gzipped(b []byte) string {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.String()
}

// What servers may answer.
func TestResponseVectors(t *testing.T) {
	const most = 5 << 20
	gz := "Content-Encoding: gzip\r\nContent-Type: text/plain\r\n"
	plain := "Content-Type: text/plain\r\n"
	bad := spec.FetchBadResponse
	notGarbled := func(t *testing.T, s said) {
		for _, r := range s.ContentMarkdown + s.Title {
			if r == 0 || r >= 0xd800 && r < 0xe000 {
				t.Errorf("%q", s.ContentMarkdown)
				break
			}
		}
	}
	trickle := func(head string) func(*asker) {
		return func(a *asker) {
			a.rawFunc(func(c net.Conn) {
				io.WriteString(c, head)
				tick := time.NewTicker(50 * time.Millisecond)
				defer tick.Stop()
				for range tick.C {
					if _, err := io.WriteString(c, "x"); err != nil {
						return
					}
				}
			})
		}
	}
	scripts := map[string]script{
		"Content-Encoding: gzip, 65 kB that inflate to 64 MiB": {reason: spec.FetchTooLarge, begin: says(reply(gz, gzipped(make([]byte, 64<<20))))},
		"Content-Encoding: gzip, gzip":                         {reason: spec.FetchContentEncoding, begin: says(reply("Content-Encoding: gzip, gzip\r\n"+plain, gzipped([]byte(gzipped([]byte("x"))))))},
		"gzip member after the cap with only a trailer left": {page: "aaa", begin: says(reply(gz, gzipped(bytes.Repeat([]byte("a"), most)))), check: func(t *testing.T, s said) {
			if len(s.ContentMarkdown) != defaults().Text || !s.Truncated {
				t.Errorf("%d bytes, truncated %v", len(s.ContentMarkdown), s.Truncated)
			}
		}},
		"Content-Length twice with different values":    {reason: bad, begin: says(reply(plain+"Content-Length: 4\r\nContent-Length: 5\r\n", "12345"))},
		"Content-Length and Transfer-Encoding: chunked": {page: "whole", begin: says(reply(plain+"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "5\r\nwhole\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"))},
		"Content-Length: 9223372036854775807":           {reason: bad, begin: says(reply(plain+"Content-Length: 9223372036854775807\r\n", "short"))},
		"chunked body without end": {reason: spec.FetchTooLarge, begin: func(a *asker) {
			a.rawFunc(func(c net.Conn) {
				io.WriteString(c, reply(plain+"Transfer-Encoding: chunked\r\n", ""))
				for chunk := "10000\r\n" + strings.Repeat("a", 1<<16) + "\r\n"; ; {
					if _, err := io.WriteString(c, chunk); err != nil {
						return
					}
				}
			})
		}},
		"chunk extension of 9,000 bytes":      {reason: bad, begin: says(reply(plain+"Transfer-Encoding: chunked\r\n", "5;"+strings.Repeat("e", 9000)+"\r\nwhole\r\n0\r\n\r\n"))},
		"bare LF line ends, LF in chunk size": {reason: bad, begin: says("HTTP/1.1 200 OK\nContent-Type: text/plain\nTransfer-Encoding: chunked\n\n5\nwhole\n0\n\n")},
		"one body byte every second":          {reason: spec.FetchTimeout, settings: short, begin: trickle(reply(plain, ""))},
		"headers one byte every second":       {reason: spec.FetchTimeout, settings: short, begin: trickle("HTTP/1.1 200 OK\r\nX-Slow: ")},
		"connect then silence":                {reason: spec.FetchTimeout, settings: short, begin: func(a *asker) { a.rawFunc(func(c net.Conn) { io.Copy(io.Discard, c) }) }},
		"response header block of 11 MB":      {reason: bad, begin: says("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 11<<20) + "\r\n\r\nx")},
		"100,000 small response headers":      {reason: bad, begin: says("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 100_000) + "\r\nx")},
		"101 Switching Protocols":             {reason: bad, begin: says("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw")},
		"status 999": {page: "odd", begin: says("HTTP/1.1 999 Everything is fine\r\n" + plain + "\r\nodd"), check: func(t *testing.T, s said) {
			if s.Status != 999 || strings.Contains(s.body, "fine") {
				t.Errorf("%v", s)
			}
		}},
		"HTTP/2 server that sends endless CONTINUATION or SETTINGS": {reason: bad, begin: func(a *asker) {
			a.rawFunc(func(c net.Conn) {
				for settings := strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 100); ; {
					if _, err := io.WriteString(c, settings); err != nil {
						return
					}
				}
			})
		}},
		"no Content-Type": {page: "**sniffed**", begin: says(reply("", "<!doctype html><title>T</title><p>it is <b>sniffed</b> here")), check: func(t *testing.T, s said) {
			if s.ContentType != "text/html; charset=utf-8" || s.Title != "T" {
				t.Errorf("%v", s)
			}
		}},
		"Content-Type: application/pdf":          {reason: spec.FetchContentType, begin: says(reply("Content-Type: application/pdf\r\n", "%PDF-1.7"))},
		"charset=utf-7 with +ADw-script+AD4-":    {page: "+ADw-script+AD4-", begin: says(reply("Content-Type: text/plain; charset=utf-7\r\n", "+ADw-script+AD4-"))},
		"charset=utf-16 without BOM, body ASCII": {page: "", begin: says(reply("Content-Type: text/html; charset=utf-16\r\n", "<p>some words")), check: notGarbled},
		"charset=iso-2022-jp with escape sequences": {page: "seen", begin: says(reply("Content-Type: text/html; charset=iso-2022-jp\r\n", "<p>seen \x1b$B$3\x1b(B</p><script>hid\x1b(Bden</script>")), check: func(t *testing.T, s said) {
			if !strings.Contains(s.ContentMarkdown, "こ") || strings.Contains(s.ContentMarkdown, "den") {
				t.Errorf("%q", s.ContentMarkdown)
			}
		}},
		"charset says latin-1, BOM says UTF-8, meta says shift_jis": {page: "grün", begin: says(reply("Content-Type: text/html; charset=iso-8859-1\r\n", "\xef\xbb\xbf<meta charset=shift_jis><p>grün"))},
		"charset decoder loop":                {page: "", begin: says(reply("Content-Type: text/html; charset=hz-gb-2312\r\n", "<p>~{"+strings.Repeat("~}~{", 10000)+"~")), check: notGarbled},
		"invalid UTF-8, NUL, lone surrogates": {page: "a", begin: says(reply("Content-Type: text/html; charset=utf-8\r\n", "<title>\xff\x00t</title><p>a\xff\x00b\xed\xa0\x80c")), check: notGarbled},
		"600 nested <div>": {page: "deep down", begin: says(reply(html1, "<title>T</title><p>above</p>"+strings.Repeat("<div>", 600)+"deep <b>down</b><!-- no --><script>no</script><p hidden>no</p><span style='display:none'>no</span>")), check: func(t *testing.T, s said) {
			if s.Title != "T" || strings.Contains(s.ContentMarkdown, "no") || !strings.Contains(s.ContentMarkdown, "above") {
				t.Errorf("%v", s)
			}
		}},
		"one tag with 400,000 attributes":      {page: "words", begin: says(reply(html1, "<p "+strings.Repeat("abc ", 400_000)+">words"))},
		"misnested <a><p><table> 20,000 times": {page: "", begin: says(reply(html1, strings.Repeat("<a><p><table>", 20_000)+"words")), check: func(t *testing.T, s said) { notGarbled(t, s) }},
		"page whose first 5 MiB are a comment": {page: "", begin: func(a *asker) {
			body := "<!--" + strings.Repeat("-", most) + "--><p>after"
			a.raw(reply(html1+fmt.Sprintf("Content-Length: %d\r\n", len(body)), body))
		}, check: func(t *testing.T, s said) {
			if !s.Truncated || strings.TrimSpace(s.ContentMarkdown) != "" {
				t.Errorf("%v", s)
			}
		}},
		"page cut in the middle of a UTF-8 sequence by the cap": {page: "€", settings: func(s *settings) { s.Text = 1000; s.Body = 1 << 10 }, begin: func(a *asker) {
			body := strings.Repeat("€", 1000)
			a.raw(reply("Content-Type: text/plain; charset=utf-8\r\n"+fmt.Sprintf("Content-Length: %d\r\n", len(body)), body))
		}, check: func(t *testing.T, s said) {
			if got := strings.Trim(s.ContentMarkdown, "€"); got != "" || len(s.ContentMarkdown) != 999 || !s.Truncated {
				t.Errorf("%d bytes, %q", len(s.ContentMarkdown), got)
			}
		}},
		"title of 1 MiB": {page: "text", begin: says(reply(html1, "<title>"+strings.Repeat("t", 1<<20)+"</title><p>text")), check: func(t *testing.T, s said) {
			if len(s.Title) > maxField {
				t.Errorf("%d bytes", len(s.Title))
			}
		}},
		"7th request while 6 slots are held by slow pages": {reason: spec.FetchBusy, dials: -1, begin: func(a *asker) {
			for range cap(a.s.slots) {
				release, ok := a.s.slots.take()
				if !ok {
					t.Error("no slot")
				}
				t.Cleanup(release)
			}
		}, check: func(t *testing.T, s said) {
			if s.body != `{"error":"busy"}`+"\n" || s.header.Get("Retry-After") == "" {
				t.Errorf("%v %v", s, s.header)
			}
			if q := lab.Use(t).DNS.Queries(); len(q) > 0 {
				t.Errorf("asked %v", q)
			}
		}},
		"6 requests refused at the check": {page: "origin", url: "http://" + otherHost + "/", begin: func(a *asker) {
			for range 6 {
				if got := a.get("http://127.0.0.1/"); got.reason() != spec.FetchBlocked {
					t.Error(got)
				}
			}
		}},
		"URL of 1 MiB": {url: "http://" + otherHost + "/" + strings.Repeat("a", 1<<20), reason: spec.FetchBadRequest, dials: -1},
	}
	rowsOf(t, "response", scripts)
}

// A certificate must be the name's, and of somebody who is trusted.
func TestTLS(t *testing.T) {
	a := serving(t, func(s *settings) { s.CAFile = "" })
	if got := a.get("https://" + otherHost + "/"); got.reason() != spec.FetchTLS {
		t.Errorf("a CA that nobody trusts: %v", got)
	}
	a = serving(t, nil)
	if got := a.get("https://" + otherHost + "/"); got.code != 200 || got.FinalURL != "https://"+otherHost+"/" {
		t.Errorf("%v", got)
	}
	a.lab.Raw(t, netip.MustParseAddrPort(hopAddr+":443"), func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 no TLS here\r\n\r\n") })
	if got := a.get("https://" + hopHost + "/"); got.reason() != spec.FetchTLS {
		t.Errorf("no TLS: %v", got)
	}
}

// A proxy of the environment is asked for nothing.
func TestNoProxy(t *testing.T) {
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://44.10.0.25:80")
	}
	a := serving(t, nil)
	for _, u := range []string{"http://" + otherHost + "/", "https://" + otherHost + "/"} {
		if got := a.get(u); got.code != 200 || got.Hops[0].Address != netip.MustParseAddr(otherAddr) {
			t.Errorf("%v", got)
		}
	}
	for _, to := range a.dialled() {
		if to.Addr() != netip.MustParseAddr(otherAddr) {
			t.Errorf("dialled %v", to)
		}
	}
}

// Replies before the answer are waited through up to a bound, whatever they carry.
func TestInformed(t *testing.T) {
	a := serving(t, nil)
	for n, want := range map[int]spec.FetchReason{0: "", 1: "", maxInformed: "", maxInformed + 1: spec.FetchBadResponse, 100_000: spec.FetchBadResponse} {
		a.raw(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", n) + reply("Content-Type: text/plain\r\n", "the answer"))
		if got := a.get("http://" + hopHost + "/"); got.reason() != want {
			t.Errorf("%d: %v", n, got)
		}
	}
}

// Only one gzip is inflated, and a broken one is said to be broken.
func TestCodings(t *testing.T) {
	a := serving(t, nil)
	whole := gzipped([]byte("the text"))
	for _, tt := range []struct {
		headers, body string
		want          spec.FetchReason
	}{
		{"Content-Encoding: gzip\r\n", whole, ""},
		{"Content-Encoding: x-gzip\r\n", whole, ""},
		{"Content-Encoding: GZIP\r\n", whole, ""},
		{"Content-Encoding: identity\r\n", "the text", ""},
		{"Content-Encoding: gzip\r\n", whole + whole, ""},
		{"Content-Encoding: gzip\r\n", "", ""},
		{"Content-Encoding: gzip\r\n", whole + strings.Repeat("\x00", 1000), ""},
		{"Content-Encoding: gzip\r\n", whole + strings.Repeat("\x00", 6<<20), spec.FetchTooLarge},
		{"Content-Encoding: gzip\r\n", whole + "\x00" + whole, spec.FetchContentEncoding},
		{"Content-Encoding: none\r\n", "the text", ""},
		{"Content-Encoding: utf-8\r\n", "the text", ""},
		{"Content-Encoding: \r\n", "the text", ""},
		{"Content-Encoding: br\r\n", "x", spec.FetchContentEncoding},
		{"Content-Encoding: deflate\r\n", "x", spec.FetchContentEncoding},
		{"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", whole, spec.FetchContentEncoding},
		{"Content-Encoding: identity, gzip\r\n", whole, spec.FetchContentEncoding},
		{"Content-Encoding: gzip\r\n", "the text", spec.FetchContentEncoding},
		{"Content-Encoding: gzip\r\n", whole[:len(whole)-6], spec.FetchContentEncoding},
		{"Content-Encoding: gzip\r\n", whole + "rubbish", spec.FetchContentEncoding},
	} {
		a.raw(reply("Content-Type: text/plain\r\n"+tt.headers, tt.body))
		got := a.get("http://" + hopHost + "/")
		if got.reason() != tt.want || tt.want == "" && tt.body != "" && !strings.HasPrefix(got.ContentMarkdown, "the text") {
			t.Errorf("%q %q: %v", tt.headers, tt.body, got)
		}
	}
}

// R130: where a company looks into TLS, its certificates are trusted once they are
// named. (TestTLS has the same server without.)
func TestCompanyCA(t *testing.T) {
	a := serving(t, nil) // with the lab's CA by --ca-file
	if got := a.get("https://" + otherHost + "/"); got.code != 200 {
		t.Errorf("%v", got)
	}
}

// R020: a name that cannot be a public host's leaves no trace at any name server,
// whatever is written into it.
func TestNamesThatAreNotAskedFor(t *testing.T) {
	a := serving(t, nil)
	for _, name := range []string{"secret.internal", "secret.corp", "secret.local", "secret.localhost", "secret", "secret.home.arpa", "secret.svc", "_b.evil.test", "b_.evil.test", strings.Repeat("s", 64) + ".evil.test",
		strings.Repeat("secret.", 40) + "evil.test", "-s.evil.test", "s..evil.test", "secret.123", "secret.onion", "researcher", "corral-host", "host.docker.internal", "secret.example", "secret.invalid"} {
		if got := a.get("http://" + name + "/"); got.reason() != spec.FetchBlocked && got.reason() != spec.FetchInvalidURL {
			t.Errorf("%s: %v", name, got)
		}
	}
	if q := append(a.lab.DNS.Queries(), a.lab.Authority.Queries()...); len(q) > 0 {
		t.Errorf("asked %v", q)
	}
}
