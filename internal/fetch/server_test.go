package fetch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

// heard is what a raw connection was answered.
func heard(t *testing.T, c net.Conn) said {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("no answer: %v", err)
		return said{}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	s := said{code: resp.StatusCode, header: resp.Header, body: string(b)}
	if err := spec.Decode(bytes.NewReader(b), &s.failure); err != nil {
		t.Errorf("%v: %v", s, err)
	}
	return s
}

// say opens a connection and says something.
func (a *asker) say(what string) net.Conn {
	a.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://"))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, what); err != nil {
		a.t.Fatal(err)
	}
	return c
}

// arrived waits until as many connections have come so far.
func (a *asker) arrived(state int32, n int) {
	a.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var are int
		a.s.conns.mu.Lock()
		for _, c := range a.s.conns.open {
			if c.state.Load() == state {
				are++
			}
		}
		a.s.conns.mu.Unlock()
		if are == n {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%d connections are in state %d, not %d", are, state, n)
		}
	}
}

// A server that ends lets what is under way be done for a while, and then says to
// everybody who has asked why there is no page.
func TestEnding(t *testing.T) {
	a := serving(t, nil)
	began, finish := make(chan string, 2), make(chan struct{})
	a.lab.Handle(t, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- r.URL.Path
		if r.URL.Path == "/done" {
			<-finish
			io.WriteString(w, "in time")
			return
		}
		<-r.Context().Done()
	}))
	request := func(path string) string {
		body := `{"url": "http://` + hopHost + path + `"}`
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", spec.FetchPath, len(body), body)
	}
	done, slow := a.say(request("/done")), a.say(request("/slow"))
	<-began
	<-began
	whole := request("/late")
	quiet, late, half, headless := a.say(""), a.say(whole[:40]), a.say(whole[:len(whole)-3]), a.say(whole[:50])
	a.arrived(unheard, 1)
	a.arrived(arriving, 2)
	a.arrived(asking, 1)
	hurried := make(chan time.Time)
	a.s.after = func(time.Duration) <-chan time.Time { return hurried }
	a.end()
	if n, err := quiet.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("who said nothing: %d, %v", n, err)
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("who comes too late: %v, %v", c, err)
	}
	ended := func(what string, c net.Conn) {
		got := heard(t, c)
		if got.code != 503 || got.reason() != spec.FetchShuttingDown || got.header.Get("Retry-After") == "" || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v %v", what, got, got.header)
		}
	}
	io.WriteString(late, whole[40:])
	ended("who asks in the meantime", late)
	close(finish)
	if resp, err := http.ReadResponse(bufio.NewReader(done), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("who is done in time: %v, %v", resp, err)
	}
	hurried <- time.Now()
	ended("who is not", slow)
	ended("whose request lacks its end", half)
	ended("whose request has no body yet", headless)
	if err := <-a.done; err != nil {
		t.Error(err)
	}
	a.done <- nil
	log := a.log.String()
	if n := strings.Count(log, `"error":"shutting_down"`); n != 4 || !strings.Contains(log, `"url":"http://`+hopHost+`/slow","error":"shutting_down"`) {
		t.Errorf("%d are logged:\n%s", n, log)
	}
}

// A page in a browser may send a request to any address that the browser reaches. It
// gets nothing, and nothing is asked for it.
func TestForeign(t *testing.T) {
	a := serving(t, nil)
	here := strings.TrimPrefix(a.at, "http://")
	_, port, _ := net.SplitHostPort(here)
	body := `{"url": "http://` + otherHost + `/"}`
	for _, tt := range []struct {
		headers string
		want    spec.FetchReason
	}{
		{"Host: " + here, ""},
		{"Host: localhost", ""},
		{"Host: LocalHost:" + port, ""},
		{"Host: 127.0.0.2:1", ""},
		{"Host: [::1]:8766", ""},
		{"Host: " + here + "\r\nSec-Fetch-Site: none", ""},
		{"Host: " + here + "\r\nSec-Fetch-Mode: cors", ""},
		{"Host: " + here + "\r\nContent-Type: application/json", ""},
		{"Host: " + here + "\r\nContent-Type: application/json; charset=utf-8", ""},
		{"Host: " + here + "\r\nContent-Type: application/x-www-form-urlencoded", ""},
		{"Host: " + here + "\r\nOrigin: http://evil.test", spec.FetchForbidden},
		{"Host: " + here + "\r\nOrigin: http://" + here, spec.FetchForbidden},
		{"Host: " + here + "\r\nOrigin: null", spec.FetchForbidden},
		{"Host: " + here + "\r\nOrigin:", spec.FetchForbidden},
		{"Host: " + here + "\r\nSec-Fetch-Site: cross-site", spec.FetchForbidden},
		{"Host: " + here + "\r\nSec-Fetch-Site: same-site", spec.FetchForbidden},
		{"Host: " + here + "\r\nSec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site", spec.FetchForbidden},
		{"Host: evil.test", spec.FetchForbidden},
		{"Host: evil.test:" + port, spec.FetchForbidden},
		{"Host: localhost.evil.test", spec.FetchForbidden},
		{"Host: 127.0.0.1.evil.test:" + port, spec.FetchForbidden},
		{"Host: 10.0.0.1", spec.FetchForbidden},
		{"Host: fetch:8766", spec.FetchForbidden},
		{"Host: " + here + "\r\nContent-Type: text/plain", spec.FetchBadRequest},
		{"Host: " + here + "\r\nContent-Type: text/plain;charset=UTF-8", spec.FetchBadRequest},
		{"Host: " + here + "\r\nContent-Type: multipart/form-data; boundary=x", spec.FetchBadRequest},
		{"Host: " + here + "\r\nContent-Type: application/json\r\nContent-Type: text/plain", spec.FetchBadRequest},
	} {
		before := len(a.dialled())
		got := heardEither(t, a.say(fmt.Sprintf("POST %s HTTP/1.1\r\n%s\r\nContent-Length: %d\r\n\r\n%s", spec.FetchPath, tt.headers, len(body), body)))
		if got.reason() != tt.want || tt.want == "" && got.code != 200 {
			t.Errorf("%q: %v", tt.headers, got)
		}
		if n := len(a.dialled()) - before; tt.want != "" && n != 0 {
			t.Errorf("%q: %d connections", tt.headers, n)
		}
	}
	for _, path := range []string{"/healthz", "/"} {
		if got := heardEither(t, a.say("GET "+path+" HTTP/1.1\r\nHost: evil.test\r\n\r\n")); got.reason() != spec.FetchForbidden {
			t.Errorf("%s: %v", path, got)
		}
	}
	if got := heardEither(t, a.say("GET http://evil.test/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")); got.reason() != spec.FetchForbidden {
		t.Errorf("a host in the request's line: %v", got)
	}
	// Names of a network are of no matter where they lead to an address of it.
	r := httptest.NewRequest(http.MethodPost, spec.FetchPath, nil)
	r.Host = "fetch:8766"
	for at, want := range map[string]bool{"127.0.0.1:8766": true, "[::1]:8766": true, "10.213.78.3:8766": false} {
		r := r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(at))))
		if got := foreign(r); (got != "") != want {
			t.Errorf("at %s: %q", at, got)
		}
	}
	if foreign(r) == "" {
		t.Error("at nobody knows where")
	}
}

// heardEither is what a raw connection was answered, a page too.
func heardEither(t *testing.T, c net.Conn) said {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("no answer: %v", err)
		return said{}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	s := said{code: resp.StatusCode, header: resp.Header, body: string(b)}
	_ = json.Unmarshal(b, &s.failure) // of a page it is empty
	return s
}

// What is no request is answered like one that is wrong, and is a line of the log.
func TestNoRequest(t *testing.T) {
	a := serving(t, nil)
	for _, tt := range []struct {
		what string
		want spec.FetchReason
	}{
		{"rubbish\r\n\r\n", spec.FetchBadRequest},
		{"GET / HTTP/1.1\r\n\r\n", spec.FetchBadRequest},
		{"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", spec.FetchBadRequest},
		{"GET / HTTP/1.1\r\nHost: localhost\r\nno header\r\n\r\n", spec.FetchBadRequest},
		{"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", maxAskHeaders) + "\r\n\r\n", spec.FetchBadRequest},
		{"GET /" + strings.Repeat("a", 40_000) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", spec.FetchBadRequest},
		{"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", spec.FetchBadRequest},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", spec.FetchNotFound},
		{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", spec.FetchBadRequest},
		{"POST " + spec.FetchPath + " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", spec.FetchBadRequest},
		{"POST " + spec.FetchPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", spec.FetchBadRequest},
		{"POST " + spec.FetchPath + " HTTP/1.1\r\nHost: localhost\r\nExpect: the best\r\nContent-Length: 1\r\n\r\n1", spec.FetchBadRequest},
		{"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", spec.FetchNotFound},
		{"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", spec.FetchNotFound},
		{"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", spec.FetchNotFound},
		{"POST /" + spec.FetchPath + " HTTP/1.1\r\nHost: localhost\r\n\r\n", spec.FetchNotFound},
		{"TRACE /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", spec.FetchMethod},
	} {
		a.log.forget()
		c := a.say(tt.what)
		got := heard(t, c)
		if got.reason() != tt.want || got.code != tt.want.Status() || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%.60q: %v", tt.what, got)
		}
		if insides.MatchString(got.body) {
			t.Errorf("%.60q: %s", tt.what, got.body)
		}
		log := a.log.String()
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, `"error":"`+string(tt.want)+`"`) || !strings.Contains(log, `"client":"`+c.LocalAddr().String()+`"`) {
			t.Errorf("%.60q: %s", tt.what, log)
		}
	}
}

// insides are words of Go's about itself.
var insides = regexp.MustCompile(`(?i)net/http|golang|Go value|Go struct|unmarshal|json:|tls: |x509|\bEOF\b|invalid character|->|connection broken|goroutine|context |%!|\bi/o\b|malformed|unsupported protocol`)

// A request is one object with one key, written as it is.
func TestRequestsAreExact(t *testing.T) {
	page := `"http://` + otherHost + `/"`
	for body, want := range map[string]string{
		`{"url": ` + page + `}`:           "",
		" \n{\"url\"\t:" + page + "}\r\n": "",
		`{"\u0075rl": ` + page + `}`:      "",
		``:                                "it is not JSON",
		`{`:                               "it is not JSON",
		`{"url": ` + page:                 "it is not JSON",
		`{"url": ` + page + `} {}`:        "it is not JSON",
		`{'url': ` + page + `}`:           "it is not JSON",
		"\ufeff{\"url\": " + page + "}":   "it is not JSON",
		`url=` + page:                     "it is not JSON",
		"{\"url\": \"http://" + otherHost + "/\xff\"}": "it is not UTF-8",
		`[` + page + `]`:        "it is not an object",
		page:                    "it is not an object",
		`null`:                  "it is not an object",
		`1`:                     "it is not an object",
		`{}`:                    "it has no url",
		`{"URL": ` + page + `}`: "it has another key",
		`{"Url": ` + page + `, "url": ` + page + `}`:        "it has another key",
		`{"url": ` + page + `, "method": "POST"}`:           "it has another key",
		`{"uri": ` + page + `}`:                             "it has another key",
		`{"": ` + page + `}`:                                "it has another key",
		`{"url": ` + page + `, "url": ` + page + `}`:        "url is there twice",
		`{"url": "http://127.0.0.1/", "url": ` + page + `}`: "url is there twice",
		`{"url": 1}`:                     "url is not a string",
		`{"url": null}`:                  "url is not a string",
		`{"url": [` + page + `]}`:        "url is not a string",
		`{"url": {"url": ` + page + `}}`: "url is not a string",
	} {
		url, err := urlOf([]byte(body))
		if err == nil && (want != "" || url != "http://"+otherHost+"/") || err != nil && err.Error() != want {
			t.Errorf("%s: %q, %v, want %q", body, url, err, want)
		}
	}
}

// However a server is broken, what is said of it are words of ours.
func TestOwnWords(t *testing.T) {
	a := serving(t, func(s *settings) { short(s); s.CAFile = "" })
	const plain = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	for _, response := range []string{"", "H", "rubbish", "rubbish\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nno header\r\n\r\n", "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
		plain + "Content-Length: x\r\n\r\n", plain + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12", plain + "Content-Length: 100\r\n\r\nshort", plain + "Transfer-Encoding: x\r\n\r\n",
		plain + "Transfer-Encoding: chunked\r\n\r\nx\r\n", plain + "Transfer-Encoding: chunked\r\n\r\n5\r\nab", plain + "X: " + strings.Repeat("a", 2*maxHeaders) + "\r\n\r\n", plain + "Content-Encoding: gzip\r\n\r\nx"} {
		a.raw(response)
		if got := a.get("http://" + hopHost + "/"); got.failure.Detail == "" || insides.MatchString(got.body) {
			t.Errorf("%.60q: %v", response, got)
		}
	}
	a.rawFunc(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) })
	if got := a.get("http://" + hopHost + "/"); got.reason() != spec.FetchBadResponse || insides.MatchString(got.body) {
		t.Errorf("reset: %v", got)
	}
	details := map[string]bool{}
	for _, response := range []string{"", "HTTP/1.1 400 no\r\n\r\n", "\x15\x03\x01\x00\x02\x02\x28", "\x15\x03\x03\x00\x02\x02\x46"} {
		a.lab.Raw(t, netip.MustParseAddrPort(hopAddr+":443"), func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, response)
		})
		got := a.get("https://" + hopHost + "/")
		if got.reason() != spec.FetchTLS || insides.MatchString(got.body) {
			t.Errorf("%q: %v", response, got)
		}
		details[got.failure.Detail] = true
	}
	got := a.get("https://" + otherHost + "/")
	if got.reason() != spec.FetchTLS || got.failure.Detail != "its certificate is signed by nobody who is trusted" {
		t.Errorf("%v", got)
	}
	if len(details) != 4 {
		t.Errorf("what is different reads the same: %v", details)
	}
	if log := a.log.String(); insides.MatchString(log) {
		t.Errorf("the log: %s", insides.FindString(log))
	}
}

// Each request is one line of the log: who asked, what became of it and by whose
// doing, with every hop.
func TestLog(t *testing.T) {
	a := serving(t, short)
	a.raw("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/x\r\nContent-Length: 0\r\n\r\n")
	a.s.extract = func(ctx context.Context, p *page, most int) (text, error) {
		if p.target.url.Path == "/broken" {
			return text{}, errors.New("of no kind that is known")
		}
		return extract(ctx, p, most)
	}
	type line struct {
		Time, Level, Msg, Client, URL, Error, Detail, Type, What string
		Status, Bytes                                            int
		MS                                                       *int
		Truncated                                                *bool
		Hops                                                     *[]spec.FetchHop
	}
	hop := func(at, url string) spec.FetchHop {
		a, _ := netip.ParseAddr(at)
		return spec.FetchHop{Address: a, URL: url}
	}
	for _, tt := range []struct {
		body, level, msg, error string
		hops                    []spec.FetchHop
	}{
		{`{"url": "http://` + otherHost + `/"}`, "INFO", "fetched", "", []spec.FetchHop{hop(otherAddr, "http://"+otherHost+"/")}},
		{`{"url": "http://` + hopHost + `/a"}`, "INFO", "refused", "blocked_destination", []spec.FetchHop{hop(hopAddr, "http://"+hopHost+"/a"), hop("", "http://169.254.169.254/x")}},
		{`{"url": "http://10.0.0.1/"}`, "INFO", "refused", "blocked_destination", []spec.FetchHop{hop("", "http://10.0.0.1/")}},
		{`{"url": "http://"}`, "INFO", "refused", "invalid_url", nil},
		{`{}`, "INFO", "refused", "bad_request", nil},
		{`{"url": "http://nobody.lab.test/"}`, "INFO", "failed", "dns_error", []spec.FetchHop{hop("", "http://nobody.lab.test/")}},
		{`{"url": "http://` + otherHost + `/broken"}`, "ERROR", "fault", "internal_error", []spec.FetchHop{hop(otherAddr, "http://"+otherHost+"/broken")}},
	} {
		a.log.forget()
		a.post(tt.body)
		all := strings.Split(strings.TrimSpace(a.log.String()), "\n")
		if tt.msg == "fault" && len(all) == 2 { // the first one says more
			all = all[1:]
		}
		var l line
		if err := json.Unmarshal([]byte(all[0]), &l); err != nil || len(all) != 1 {
			t.Fatalf("%s: %q, %v", tt.body, all, err)
		}
		client, err := netip.ParseAddrPort(l.Client)
		if l.Level != tt.level || l.Msg != tt.msg || l.Error != tt.error || err != nil || !client.Addr().IsLoopback() || l.MS == nil || l.Hops == nil || !slices.Equal(*l.Hops, tt.hops) {
			t.Errorf("%s: %s", tt.body, all[0])
		}
		if (l.Detail == "") != (tt.error == "") || tt.error == "" && (l.Status != 200 || l.Truncated == nil || l.Type == "") {
			t.Errorf("%s: %s", tt.body, all[0])
		}
	}
	for range cap(a.s.slots) {
		release, _ := a.s.slots.take()
		defer release()
	}
	a.log.forget()
	a.get("http://" + otherHost + "/")
	for _, want := range []string{`"msg":"refused"`, `"url":"http://` + otherHost + `/","error":"busy","detail":"6 of 6 slots are taken"`, `"hops":[]`} {
		if !strings.Contains(a.log.String(), want) {
			t.Errorf("no %s in %s", want, a.log.String())
		}
	}
}

// Nothing that others wrote turns a terminal that shows the log, and no words of a server
// that nobody sees, or that stand where none belong, are in an answer.
func TestOthersWords(t *testing.T) {
	a := serving(t, short)
	a.post("{\"url\": \"http://a/\u009b2J\u202e\"}")
	if log := a.log.String(); strings.ContainsAny(log, "\u009b\u202e") || !strings.Contains(log, `\u009b2J\u202e`) {
		t.Errorf("the log has %+q", log)
	}
	for _, said := range []string{"x/\U000e0069\U000e0067", "x/\u202eabc", "IGNORE_ALL:yes", "application/\xff", "text/html\u200b", "a b/c"} {
		a.raw("HTTP/1.1 200 OK\r\nContent-Type: " + said + "\r\nContent-Length: 8\r\n\r\n<p>hello")
		if s := a.get("http://" + hopHost + "/"); s.reason() != spec.FetchContentType || !strings.Contains(s.body, `"what the server says of the type is no type"`) {
			t.Errorf("%+q: %+q", said, s.body)
		}
	}
	for _, to := range []string{"http://" + otherHost + "/?\U000e0069\u202e", "http://" + otherHost + "/\u202e?\U000e0069#\u202e"} {
		a.raw("HTTP/1.1 302 x\r\nLocation: " + to + "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		if s := a.get("http://" + hopHost + "/"); strings.ContainsAny(s.body, "\u202e\U000e0069") || !strings.Contains(s.body, "%F3%A0%81%A9") {
			t.Errorf("%+q: %+q", to, s.body)
		}
	}
	a.raw("HTTP/1.1 000 x\r\n\r\nhello")
	if s := a.get("http://" + hopHost + "/"); s.reason() != spec.FetchBadResponse {
		t.Errorf("status 000: %+q", s.body)
	}
}

// What is wrong with a URL is said as what it is: a host that none is, or one that is
// nobody's to fetch from, and where a setting decides, that one is named.
func TestWhatIsWrong(t *testing.T) {
	for url, want := range map[string]string{
		"http://2130706433/":              "invalid_url: a number",
		"http://2130706433./":             "invalid_url: a number",
		"http://017700000001/":            "invalid_url: a number",
		"http://0x7f000001/":              "invalid_url: a number",
		"http://0X7F000001/":              "invalid_url: a number",
		"http://exa!mple.com/":            "invalid_url: ",
		"http://exa$mple/":                "invalid_url: ",
		"http://router/":                  "blocked_destination: router: a single label",
		"http://0xen/":                    "blocked_destination: 0xen: a single label",
		"http://10.0.0.1:8080/":           "blocked_destination: port 8080: the settings have --ports 80,443",
		"http://" + otherHost + ":22/":    "blocked_destination: port 22: the settings have --ports 80,443",
		"http://printer.local/":           "blocked_destination: printer.local: ",
		"http://metadata.google.internal": "blocked_destination: metadata.google.internal: ",
	} {
		if _, err := parse(url, webPorts); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
}

// hasty is a listener whose connections have little time.
type hasty struct{ net.Listener }

func (h hasty) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	return hurried{c}, err
}

type hurried struct{ net.Conn }

func (h hurried) SetReadDeadline(at time.Time) error {
	if soon := time.Now().Add(500 * time.Millisecond); at.After(soon) {
		at = soon
	}
	return h.Conn.SetReadDeadline(at)
}

// Who asks too slowly is told so, wherever the request breaks off, and the log has it;
// who has said nothing is told nothing.
func TestAsksTooSlowly(t *testing.T) {
	log := new(lines)
	srv, err := newServer(defaults(), log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const whole = "POST " + spec.FetchPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"
	a := &asker{t: t, at: "http://" + l.Addr().String()}
	conns := map[string]net.Conn{}
	for _, last := range []string{"P", "POST", "HTTP/1.1", "\r\n", "Ho", "localhost", "localhost\r\n", "Content-Le", "90", "90\r\n", "90\r\n\r\n", "{"} {
		upTo := whole[:strings.Index(whole, last)+len(last)]
		conns[upTo] = a.say(upTo)
	}
	quiet := a.say("")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.serve(ctx, hasty{l}) }() // what was said is there already
	for upTo, c := range conns {
		if got := heard(t, c); got.reason() != spec.FetchBadRequest || got.failure.Detail != "it did not arrive within 10s" {
			t.Errorf("%q: %v", upTo, got)
		}
	}
	if n, err := quiet.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("who said nothing: %d, %v", n, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), `"detail":"it did not arrive within 10s"`); n != len(conns) {
		t.Errorf("%d of %d are in the log:\n%s", n, len(conns), log)
	}
}

// A redirect that is refused says where it led, in words that nobody can be told
// anything else by.
func TestRefusedRedirect(t *testing.T) {
	a := serving(t, short)
	for location, want := range map[string]string{
		"http://localhost/x":                 "redirect to http://localhost/x: localhost: ",
		"http://" + otherHost + ":22/":       "redirect to http://" + otherHost + ":22/: port 22: ",
		"ftp://" + otherHost + "/":           "redirect to ftp://" + otherHost + "/: ftp: ",
		"//[2Ka b\u202e\xff/":                "redirect to //[2Ka%20b%E2%80%AE%FF/: ",
		"ftp://" + strings.Repeat("a", 9000): "redirect to ftp://" + strings.Repeat("a", maxShown-6) + "…: a URL has at most 8192 bytes",
	} {
		a.raw("HTTP/1.1 302 Found\r\nLocation: " + location + "\r\nContent-Length: 0\r\n\r\n")
		got := a.get("http://" + hopHost + "/")
		if !strings.HasPrefix(got.failure.Detail, want) || got.reason() != spec.FetchBlocked && got.reason() != spec.FetchBadRedirect {
			t.Errorf("%.60q: %v", location, got)
		}
	}
}

// stuck is a listener that ends only when it is closed again.
type stuck struct {
	net.Listener
	closed atomic.Int32
	end    chan struct{}
}

func (s *stuck) Close() error {
	if s.closed.Add(1) == 2 {
		close(s.end)
	}
	return s.Listener.Close()
}

func (s *stuck) Accept() (net.Conn, error) { <-s.end; return nil, net.ErrClosed }

// A server that ends well says so, also while the library still waits for connections.
func TestEndsWell(t *testing.T) {
	srv, err := newServer(defaults(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stuck{Listener: l, end: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel) // once it serves
	if err := srv.serve(ctx, s); err != nil {
		t.Error(err)
	}
}
