package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// Every address there is answers in the namespace of these tests, and what is
// dialled is on record.
func TestMain(m *testing.M) { lab.Alone(m) }

// Places of the tests in the lab.
const (
	hopHost   = "hop.lab.test" // a public host that does what a test says
	hopAddr   = "44.10.0.20"
	otherHost = "other.lab.test" // one that tells what it was asked
	otherAddr = "44.10.0.11"
)

// listensAt is where a server says in a line of its log that it listens.
func listensAt(t testing.TB, line string) string {
	t.Helper()
	var said struct{ Msg, Listen string }
	if err := json.Unmarshal([]byte(line), &said); err != nil || said.Msg != ready {
		t.Fatalf("%q: %v", line, err)
	}
	return said.Listen
}

// asker is a client of a real server.
type asker struct {
	t    testing.TB
	at   string
	lab  *lab.Lab
	log  *lines
	s    *server
	http *http.Client
	end  func()     // asks the server to end
	done chan error // once it has
}

// lines is a log that is written and read at the same time.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = bytes.Buffer{}
}

// serving runs a server in the lab, whose names are those of the tests, until the
// test ends.
func serving(t testing.TB, change func(*settings)) *asker {
	t.Helper()
	l := lab.Use(t)
	l.Reset()
	l.DNS.Set(hopHost, lab.A(hopAddr))
	l.DNS.Set(otherHost, lab.A(otherAddr))
	s := defaults()
	s.Resolvers = []netip.AddrPort{netip.AddrPortFrom(lab.NameServer, 53)}
	s.CAFile = l.CAFile(t)
	if change != nil {
		change(&s)
	}
	return started(t, l, s)
}

func started(t testing.TB, l *lab.Lab, s settings) *asker {
	t.Helper()
	log := new(lines)
	srv, err := newServer(s, log)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.serve(ctx, ln) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return &asker{t: t, at: "http://" + ln.Addr().String(), lab: l, log: log, s: srv, http: client, end: cancel, done: done}
}

// said is what a server answered, whichever of the two.
type said struct {
	code   int
	header http.Header
	body   string
	spec.FetchAnswer
	failure spec.FetchFailure
}

func (s said) reason() spec.FetchReason { return s.failure.Error }

func (s said) String() string {
	return fmt.Sprintf("%d %s", s.code, cut(s.body, 400))
}

func (a *asker) get(url string) said {
	a.t.Helper()
	body, err := json.Marshal(spec.FetchRequest{URL: url})
	if err != nil {
		a.t.Fatal(err)
	}
	return a.post(string(body))
}

func (a *asker) post(body string) said {
	a.t.Helper()
	s, err := a.try(context.Background(), body)
	if err != nil {
		a.t.Fatal(err)
	}
	return s
}

func (a *asker) try(ctx context.Context, body string) (s said, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.at+spec.FetchPath, strings.NewReader(body))
	if err != nil {
		return s, err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return s, err
	}
	s.code, s.header, s.body = resp.StatusCode, resp.Header, string(b)
	if resp.StatusCode == http.StatusOK {
		return s, spec.Decode(bytes.NewReader(b), &s.FetchAnswer)
	}
	return s, spec.Decode(bytes.NewReader(b), &s.failure)
}

// raw has hopHost say exactly this to every request, and no more.
func (a *asker) raw(response string) {
	a.t.Helper()
	a.rawFunc(func(c net.Conn) { _, _ = io.WriteString(c, response) })
}

// rawFunc has hopHost answer, once it has read a request.
func (a *asker) rawFunc(answer func(net.Conn)) {
	a.t.Helper()
	a.lab.Raw(a.t, netip.AddrPortFrom(netip.MustParseAddr(hopAddr), 80), func(c net.Conn) {
		if _, err := readHead(c); err == nil {
			answer(c)
		}
	})
}

// readHead reads a request up to its empty line.
func readHead(c net.Conn) (string, error) {
	var b []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(b, []byte("\r\n\r\n")) {
		if _, err := c.Read(one); err != nil {
			return string(b), err
		}
		b = append(b, one[0])
	}
	return string(b), nil
}

// reply is a whole response.
func reply(headers, body string) string {
	return "HTTP/1.1 200 OK\r\nConnection: close\r\n" + headers + "\r\n" + body
}

// idle waits until no slot is taken.
func (a *asker) idle() {
	a.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for a.s.slots.taken() > 0 {
		if time.Now().After(deadline) {
			a.t.Fatalf("%d slots are taken, and nothing is asked", a.s.slots.taken())
		}
		resp, err := a.http.Get(a.at + "/healthz")
		if err != nil {
			a.t.Fatal(err)
		}
		resp.Body.Close()
	}
}

// dialled are the addresses that were dialled so far.
func (a *asker) dialled() []netip.AddrPort { return a.lab.Dialled() }
