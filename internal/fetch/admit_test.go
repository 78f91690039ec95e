package fetch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

func TestSlots(t *testing.T) {
	s := newSlots(2)
	one, ok := s.take()
	two, ok2 := s.take()
	if _, ok3 := s.take(); !ok || !ok2 || ok3 || s.taken() != 2 {
		t.Fatal(ok, ok2, ok3, s.taken())
	}
	one()
	if again, ok := s.take(); !ok || s.taken() != 2 {
		t.Fatal(ok)
	} else {
		again()
	}
	two()
	if s.taken() != 0 {
		t.Fatal(s.taken())
	}
}

// slowPages are six pages under way that end when told.
func slowPages(a *asker) (end func()) {
	a.t.Helper()
	arrived, gate := make(chan struct{}), make(chan struct{})
	a.lab.Handle(a.t, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-gate
		io.WriteString(w, "at last")
	}))
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if s, err := a.try(context.Background(), `{"url": "http://`+hopHost+`/"}`); err != nil || s.code != 200 {
				a.t.Errorf("a slow page: %v, %v", s, err)
			}
		})
	}
	for range 6 {
		<-arrived
	}
	return func() { close(gate); wg.Wait() }
}

// A thousand at once while six slow pages are under way: all of them are turned away,
// and nothing is looked up or dialled for any.
func TestAdmission(t *testing.T) {
	a := serving(t, nil)
	end := slowPages(a)
	dialled, asked := len(a.dialled()), len(a.lab.DNS.Queries())
	var wg sync.WaitGroup
	var busy atomic.Int32
	start := make(chan struct{})
	for i := range 1000 {
		wg.Go(func() {
			<-start
			s, err := a.try(context.Background(), fmt.Sprintf(`{"url": "http://n%d.lab.test/"}`, i))
			if err != nil {
				t.Error(err)
				return
			}
			if s.code != 503 || s.body != `{"error":"busy"}`+"\n" || s.header.Get("Retry-After") != retryAfter(spec.FetchBusy) {
				t.Errorf("%v %v", s, s.header)
			}
			busy.Add(1)
		})
	}
	close(start)
	wg.Wait()
	if n := busy.Load(); n != 1000 || a.s.slots.taken() != 6 {
		t.Errorf("%d were turned away, %d slots taken", n, a.s.slots.taken())
	}
	if n := len(a.dialled()) - dialled; n != 0 {
		t.Errorf("%d connections", n)
	}
	if q := a.lab.DNS.Queries()[asked:]; len(q) != 0 {
		t.Errorf("asked %v", q)
	}
	end()
	a.idle()
	if got := a.get("http://" + otherHost + "/"); got.code != 200 {
		t.Error(got)
	}
}

// Of a thousand who come at once, six get in.
func TestAdmissionFromIdle(t *testing.T) {
	a := serving(t, nil)
	arrived, gate := make(chan struct{}, 1000), make(chan struct{})
	a.lab.Handle(t, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-gate
	}))
	var wg sync.WaitGroup
	var served, busy atomic.Int32
	for range 1000 {
		wg.Go(func() {
			s, err := a.try(context.Background(), `{"url": "http://`+hopHost+`/"}`)
			switch {
			case err != nil:
				t.Error(err)
			case s.code == 200:
				served.Add(1)
			case s.reason() == spec.FetchBusy:
				if busy.Add(1) == 994 {
					close(gate)
				}
			default:
				t.Error(s)
			}
		})
	}
	wg.Wait()
	if served.Load() != 6 || busy.Load() != 994 || len(arrived) != 6 {
		t.Errorf("%d served, %d turned away, %d asked the server", served.Load(), busy.Load(), len(arrived))
	}
	if n := len(a.dialled()); n != 6 {
		t.Errorf("%d connections", n)
	}
}

// many is how many requests a test of leaks makes.
func many() int {
	if os.Getenv("CORRAL_TEST_SWEEPS") == "all" { // make long
		return 10_000
	}
	return 1_000
}

// However a fetch ends, its slot is free again, and nothing else is left of it.
func TestNothingLeaks(t *testing.T) {
	a := serving(t, func(s *settings) { s.FirstByte, s.Total = 200*time.Millisecond, 400*time.Millisecond })
	real := a.s.extract
	a.s.extract = func(ctx context.Context, p *page, most int) (text, error) {
		if p.target.url.Path == "/panic" {
			panic("a fault of ours")
		}
		return real(ctx, p, most)
	}
	var wanted sync.Map // how often each status was what it should be
	var gone sync.Map   // what hangs up on a client, by path
	hangUp := func(r *http.Request) {
		if cancel, ok := gone.Load(r.URL.Path); ok {
			cancel.(context.CancelFunc)()
		}
	}
	a.lab.Handle(t, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == "/slow":
			<-r.Context().Done()
		case path == "/redirect":
			http.Redirect(w, r, "http://127.0.0.1/", http.StatusFound)
		case path == "/big":
			w.Header().Set("Content-Type", "text/plain")
			w.Write(make([]byte, 1<<20))
		case strings.HasPrefix(path, "/headers/"):
			hangUp(r)
			<-r.Context().Done()
		case strings.HasPrefix(path, "/body/"):
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<p>begun")
			w.(http.Flusher).Flush()
			hangUp(r)
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<title>T</title><p>a page")
		}
	}))
	a.lab.DNS.Set("silent.lab.test", lab.Silence())
	kinds := []func(i int){
		func(int) { a.want(&wanted, 200, "http://"+hopHost+"/") },
		func(int) { a.want(&wanted, 403, "http://127.0.0.1/") },
		func(int) { a.want(&wanted, 400, "http://127.1/") },
		func(int) { a.want(&wanted, 502, "http://nobody.lab.test/") },
		func(int) { a.want(&wanted, 403, "http://"+hopHost+"/redirect") },
		func(int) { a.want(&wanted, 500, "http://"+hopHost+"/panic") },
		func(int) { a.want(&wanted, 504, "http://"+hopHost+"/slow") },
		func(i int) { a.leave(&gone, fmt.Sprintf("/headers/%d", i)) },
		func(i int) { a.leave(&gone, fmt.Sprintf("/body/%d", i)) },
		func(int) { // gone while its name is looked up
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			a.try(ctx, `{"url": "http://silent.lab.test/"}`)
		},
		func(int) { // gone while the answer is written
			c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			body := `{"url": "http://` + hopHost + `/big"}`
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", spec.FetchPath, len(body), body)
			c.Read(make([]byte, 1))
			c.Close()
		},
	}
	round := func(n int) {
		next := make(chan int)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range next {
					kinds[i%len(kinds)](i)
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		wg.Wait()
		a.idle()
	}
	state := func() (goroutines int, heap uint64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	round(10 * len(kinds))
	began, heap := state()
	round(many())
	a.lab.Reset() // what the lab has on record is no matter
	a.log.forget()
	deadline := time.Now().Add(20 * time.Second)
	for {
		now, after := state()
		if now <= began+5 && after < heap+16<<20 {
			break
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before; %d bytes, %d before\n%s", now, began, after, heap, buf[:runtime.Stack(buf, true)])
		}
	}
	for _, code := range []int{200, 400, 403, 500, 502, 504} {
		if _, ok := wanted.Load(code); !ok {
			t.Errorf("nothing ended with %d: nothing is shown of it", code)
		}
	}
	for range 6 {
		if _, ok := a.s.slots.take(); !ok {
			t.Fatal("a slot is gone")
		}
	}
}

// want asks until there is a slot, and counts what ended as it should.
func (a *asker) want(wanted *sync.Map, code int, url string) {
	for began := time.Now(); ; {
		if time.Since(began) > time.Minute {
			a.t.Errorf("%s: no slot in a minute", url)
			return
		}
		s, err := a.try(context.Background(), `{"url": "`+url+`"}`)
		switch {
		case err != nil:
			a.t.Error(err)
			return
		case s.code == code:
			n, _ := wanted.LoadOrStore(code, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			return
		case s.reason() == spec.FetchTimeout: // the limits are short, and a busy machine is slow
			return
		case s.reason() != spec.FetchBusy:
			a.t.Errorf("%s: %v, want %d", url, s, code)
			return
		}
	}
}

// leave asks for a page that hangs up on the client in the middle.
func (a *asker) leave(gone *sync.Map, path string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone.Store(path, cancel)
	defer gone.Delete(path)
	if s, err := a.try(ctx, `{"url": "http://`+hopHost+path+`"}`); err == nil && s.reason() != spec.FetchBusy && s.reason() != spec.FetchTimeout {
		a.t.Errorf("%s: %v", path, s)
	}
}

// What else is asked, and how.
func TestRequests(t *testing.T) {
	a := serving(t, nil)
	for _, tt := range []struct {
		method, path, body string
		code               int
		reason             spec.FetchReason
	}{
		{"POST", spec.FetchPath, ``, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `[]`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"url": 1}`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"uri": "http://other.lab.test/"}`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"url": "http://other.lab.test/"} {}`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"url": "http://other.lab.test/", "method": "POST"}`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"url": "` + strings.Repeat("a", maxRequest) + `"}`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"url": "http://other.lab.test/` + strings.Repeat("a", maxURL) + `"}`, 400, spec.FetchInvalidURL},
		{"POST", spec.FetchPath, `{}`, 400, spec.FetchBadRequest},
		{"POST", spec.FetchPath, `{"url": ""}`, 400, spec.FetchInvalidURL},
		{"GET", spec.FetchPath + "?url=http://other.lab.test/", ``, 405, spec.FetchMethod},
		{"PUT", "/healthz", ``, 405, spec.FetchMethod},
		{"GET", "/", ``, 404, spec.FetchNotFound},
		{"GET", "/debug/pprof/", ``, 404, spec.FetchNotFound},
		{"GET", "/healthz", ``, 200, ""},
		{"HEAD", "/healthz", ``, 200, ""},
		{"POST", spec.FetchPath, `{"url": "http://other.lab.test/"}`, 200, ""},
	} {
		req, err := http.NewRequest(tt.method, a.at+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := a.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.code || tt.reason != "" && !strings.Contains(string(b), `"error":"`+string(tt.reason)+`"`) {
			t.Errorf("%s %s %.60s: %d %s %v", tt.method, tt.path, tt.body, resp.StatusCode, b, err)
		}
		allow := map[string]string{spec.FetchPath: "POST", "/healthz": "GET, HEAD"}[req.URL.Path]
		if got := resp.Header.Get("Allow"); tt.code == 405 && got != allow {
			t.Errorf("%s %s: Allow: %s", tt.method, tt.path, got)
		}
	}
	if n := len(a.dialled()); n != 1 {
		t.Errorf("dialled %v", a.dialled())
	}
	log := a.log.String()
	if n := strings.Count(log, "\n"); n != 16 { // all but healthz
		t.Errorf("%d lines:\n%s", n, log)
	}
}

// A request that breaks off is none, also where what came of it would make one.
func TestBrokenRequests(t *testing.T) {
	a := serving(t, nil)
	whole := `{"url": "http://` + otherHost + `/"}`
	long := whole + strings.Repeat(" ", 2*usualRequest)
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	for _, tt := range []struct{ what, headers, body string }{
		{"a length that it has not", fmt.Sprintf("Content-Length: %d", len(whole)+1), whole},
		{"a longer one", fmt.Sprintf("Content-Length: %d", len(long)+1), long},
		{"chunks without an end", "Transfer-Encoding: chunked", chunk(whole)},
		{"longer chunks", "Transfer-Encoding: chunked", chunk(long)},
		{"a chunk that breaks off", "Transfer-Encoding: chunked", "fff\r\n" + whole},
		{"half the end", "Transfer-Encoding: chunked", chunk(whole) + "0\r\n"},
		{"no number", "Transfer-Encoding: chunked", chunk(whole) + "x\r\n"},
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n%s", spec.FetchPath, tt.headers, tt.body)
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		c.Close()
		if err != nil || !strings.Contains(string(b), `"error":"`+string(spec.FetchBadRequest)+`"`) {
			t.Errorf("%s: %v, %s", tt.what, err, b)
		}
	}
	if n := len(a.dialled()); n != 0 {
		t.Errorf("dialled %v", a.dialled())
	}
}

// More connections than are kept are closed at once, and those that are kept answer.
func TestBounded(t *testing.T) {
	lab.Use(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bounded{Listener: l, max: 2}
	defer b.Close()
	accepted := make(chan *counted)
	go func() {
		for {
			c, err := b.Accept()
			if err != nil {
				return
			}
			accepted <- c.(*counted)
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ended := func(what string, c net.Conn) {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	dial()
	one := <-accepted
	one.set(answered)
	idle := dial()
	<-accepted
	dial() // in the place of the one that says nothing
	two := <-accepted
	ended("the idle one", idle)
	two.set(answered)
	ended("one more than is answered", dial())
	one.Close()
	one.Close() // counts once
	dial()
	<-accepted
	if n := len(b.open); n != 2 {
		t.Errorf("%d are open", n)
	}
}

// Whoever asks nothing keeps nobody out: more than there may be say nothing, or the
// half, and the next one is answered.
func TestIdleConnections(t *testing.T) {
	a := serving(t, nil)
	half := "POST " + spec.FetchPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65530\r\n\r\n{\"url\":\"" + strings.Repeat("a", 60_000)
	for i := range maxConns + 50 {
		c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(c, half) // it may not be taken
		}
	}
	if got := a.get("http://" + otherHost + "/"); got.code != 200 {
		t.Error(got)
	}
}

// Who asked and hung up leaves no slot behind, whatever else it said before.
func TestGone(t *testing.T) {
	for _, surplus := range []string{"", "P", "\r\n", "POST " + spec.FetchPath} {
		a := serving(t, nil)
		arrived := make(chan struct{}, 1)
		a.lab.Handle(t, hopHost, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
		}))
		c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"url": "http://` + hopHost + `/"}`
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", spec.FetchPath, len(body), body)
		<-arrived
		io.WriteString(c, surplus)
		c.Close()
		a.idle()
		if !strings.Contains(a.log.String(), string(spec.FetchGone)) {
			t.Errorf("%q: %s", surplus, a.log.String())
		}
	}
}

// A conversion that does not end when its time is over keeps its slot, and nobody
// waiting.
func TestUnending(t *testing.T) {
	a := serving(t, short)
	end := make(chan struct{})
	a.s.extract = func(context.Context, *page, int) (text, error) { <-end; return text{}, nil }
	a.raw(reply(html1, "<p>x"))
	if got := a.get("http://" + hopHost + "/"); got.reason() != spec.FetchTimeout || a.s.slots.taken() != 1 {
		t.Errorf("%v, %d taken", got, a.s.slots.taken())
	}
	close(end)
	a.idle()
}

// What belongs to the machine is refused, although its address is public.
func TestOwnAddress(t *testing.T) {
	a := serving(t, nil)
	own := "44.10.200.1"
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(own + "/32")
	if err != nil {
		t.Fatal(err)
	}
	if got := a.get("http://" + own + "/"); got.code != 200 {
		t.Errorf("before it is the machine's: %v", got)
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	defer netlink.AddrDel(lo, addr)
	if got := a.get("http://" + own + "/"); got.reason() != spec.FetchBlocked || !strings.Contains(got.failure.Detail, "belongs to this machine") {
		t.Errorf("%v", got)
	}
}

// BenchmarkRefusal is what each of 1,000 clients waits for that are turned away while
// all slots are taken, from the request to the answer. Each asks about once a second,
// each time by another connection.
func BenchmarkRefusal(b *testing.B) {
	const clients = 1000
	a := serving(b, nil)
	end := slowPages(a)
	defer end()
	body := `{"url": "http://` + otherHost + `/"}`
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", spec.FetchPath, len(body), body)
	var mu sync.Mutex
	var took []time.Duration
	next := make(chan struct{})
	var wg, ready sync.WaitGroup
	ready.Add(clients)
	for range clients {
		wg.Go(func() {
			ready.Done()
			for range next {
				<-time.After(rand.N(2 * time.Second))
				c, err := net.Dial("tcp", strings.TrimPrefix(a.at, "http://"))
				if err != nil {
					b.Error(err)
					continue
				}
				began := time.Now()
				io.WriteString(c, request)
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				d := time.Since(began)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
				}
				c.Close()
				if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
					b.Errorf("%v, %v", resp, err)
					continue
				}
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	ready.Wait()
	b.ResetTimer()
	for range b.N {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
}

// BenchmarkPages is how fast six at a time get small pages, against a plain client
// that gets them from the same server.
func BenchmarkPages(b *testing.B) {
	for _, way := range []string{"fetch", "plain"} {
		b.Run(way, func(b *testing.B) {
			a := serving(b, nil)
			a.lab.Handle(b, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				io.WriteString(w, "<title>T</title><p>"+strings.Repeat("some words of a page, ", 200))
			}))
			plain := a.lab.Client(lab.OriginFirst)
			a.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 6}}
			next := make(chan struct{})
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					for range next {
						if way == "fetch" {
							if s, err := a.try(context.Background(), `{"url": "http://`+hopHost+`/"}`); err != nil || s.code != 200 && s.reason() != spec.FetchBusy {
								b.Errorf("%v, %v", s, err)
							}
							continue
						}
						resp, err := plain.Get("http://" + hopHost + "/")
						if err != nil {
							b.Error(err)
							continue
						}
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				next <- struct{}{}
			}
			close(next)
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pages/s")
		})
	}
}
