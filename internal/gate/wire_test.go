package gate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/spec"
)

// fakeWorker answers on the other end of a link with what script returns.
func fakeWorker(t *testing.T, script func(request) []reply) *link {
	t.Helper()
	ours, theirs := net.Pipe()
	l := &link{conn: ours, news: func(auditLine) {}, waiting: map[uint64]chan reply{}}
	go l.run()
	go func() {
		defer theirs.Close()
		enc := json.NewEncoder(theirs)
		for sc := bufio.NewScanner(theirs); sc.Scan(); {
			var q request
			if err := json.Unmarshal(sc.Bytes(), &q); err != nil {
				t.Error(err)
				return
			}
			replies := script(q)
			if replies == nil {
				return
			}
			for _, r := range replies {
				if enc.Encode(r) != nil {
					return
				}
			}
		}
	}()
	t.Cleanup(func() { ours.Close() })
	return l
}

func TestAsk(t *testing.T) {
	l := fakeWorker(t, func(q request) []reply {
		return []reply{{ID: 999, Err: "nobody asked"}, {ID: q.ID, Err: "heard " + q.Refusal}}
	})
	for _, name := range []string{"a", "b"} {
		r, err := l.ask(t.Context(), request{Refusal: name})
		if err != nil || r.Err != "heard "+name {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestAskAWorkerThatDies(t *testing.T) {
	l := fakeWorker(t, func(request) []reply { return nil })
	for range 2 {
		if _, err := l.ask(t.Context(), request{Account: true}); !errors.Is(err, errWorkerGone) {
			t.Error(err)
		}
	}
	if l.alive() {
		t.Error("alive")
	}
}

func TestAskAWorkerThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeWorker(t, func(request) []reply { return []reply{} })
		ctx, cancel := context.WithTimeout(t.Context(), controlTimeout)
		defer cancel()
		if _, err := l.ask(ctx, request{Account: true}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestReadLinesIsBounded(t *testing.T) {
	err := readLines(strings.NewReader(strings.Repeat("x", maxLine+1)), func([]byte) error { return nil })
	if !errors.Is(err, bufio.ErrTooLong) {
		t.Error(err)
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"a.test: NXDOMAIN": "a.test: NXDOMAIN",
		"a\nb\x1b[31m":     "a\ufffdb\ufffd[31m",
		"größer":           "größer",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if n := len(plain(strings.Repeat("x", 1000))); n > 410 {
		t.Errorf("%d bytes", n)
	}
}

func TestPrefixWriter(t *testing.T) {
	var b strings.Builder
	w := &prefixWriter{w: &b, prefix: "worker: "}
	for _, s := range []string{"one\ntwo", " and a half\n", "\x1b[2Jready\n", strings.Repeat("y", maxWords+5) + "\n"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "worker: ") || len(line) > maxWords {
			t.Errorf("%q", line)
		}
	}
	if !strings.HasPrefix(b.String(), "worker: one\nworker: two and a half\nworker: \ufffd[2Jready\n") {
		t.Errorf("%q", b.String())
	}
}

// A table is given to every worker to come, and none stays that does not say that it
// has it, in whatever order they come and go.
func TestSetTable(t *testing.T) {
	none := func() *supervisor { return &supervisor{words: io.Discard, changed: make(chan struct{})} }
	s := none()
	s.set(t.Context(), table{Instance: "away"})
	if s.table.Instance != "away" {
		t.Errorf("%+v", s.table)
	}
	for what, tt := range map[string]struct {
		script func(request) []reply
		alive  bool
	}{
		"has it":      {func(q request) []reply { return []reply{{ID: q.ID}} }, true},
		"dies":        {func(request) []reply { return nil }, false},
		"says no":     {func(q request) []reply { return []reply{{ID: q.ID, Err: "no"}} }, false},
		"says little": {func(q request) []reply { return []reply{{ID: q.ID + 1}} }, false},
	} {
		s := none()
		s.link = fakeWorker(t, tt.script)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		s.set(ctx, table{Instance: what})
		cancel()
		if !tt.alive {
			<-s.link.over(t)
		}
		if s.link.alive() != tt.alive || s.table.Instance != what {
			t.Errorf("%s: alive %v, %+v", what, s.link.alive(), s.table)
		}
	}
	// One that was told another table before is not current yet.
	s = none()
	before := s.edition
	s.set(t.Context(), table{Instance: "newer"})
	l := fakeWorker(t, func(request) []reply { return nil })
	if s.introduce(l, before) || s.link != nil {
		t.Error("it knows an older table")
	}
	if !s.introduce(l, s.edition) || s.link != l {
		t.Error("it knows the newest table")
	}
}

// over is closed when nobody is at the other end any more.
func (l *link) over(t *testing.T) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for l.alive() && t.Context().Err() == nil {
			l.ask(t.Context(), request{Account: true})
		}
	}()
	return gone
}

// Tables are in force in the order in which they were sent.
func TestTablesInOrder(t *testing.T) {
	w := &worker{audit: newAudit(), slots: make(chan struct{}, 1)}
	w.out.Encoder = json.NewEncoder(io.Discard)
	var b bytes.Buffer
	const tables = 500
	for i := range tables {
		if err := json.NewEncoder(&b).Encode(request{ID: uint64(i + 1), Table: &table{Sink: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}}); err != nil {
			t.Fatal(err)
		}
	}
	tasks, ctx := errgroup.WithContext(t.Context())
	if err := w.obey(ctx, &b, tasks); !errors.Is(err, errLinkClosed) {
		t.Error(err)
	}
	if err := tasks.Wait(); err != nil {
		t.Error(err)
	}
	if got := w.names.zone.Load().sink; got != netip.AddrFrom4([4]byte{192, 0, (tables - 1) >> 8, (tables - 1) & 0xff}) {
		t.Errorf("in force is table %v", got)
	}
}

// Nothing of a worker's account reaches a terminal as it is.
func TestPlainAccount(t *testing.T) {
	bad := "a\x1b]0;b\nc"
	rows := func() []spec.Traffic { return []spec.Traffic{{}, {Proto: bad, Name: bad, Rule: bad}} }
	a := account{Allowed: rows(), Denied: rows(), Refused: []spec.Refused{{}, {Name: bad}}}
	a.Denied[0].Addr = netip.IPv6LinkLocalAllNodes().WithZone(bad)
	a.plain()
	b, err := json.Marshal(a)
	if err != nil || strings.Count(string(b), plain(bad)) != 7 || strings.Contains(string(b), "u001b") || strings.Contains(string(b), "%") {
		t.Errorf("%s, %v", b, err)
	}
}

// Whatever a worker says, PID 1 prints only lines that corral reads as decisions,
// and only what prints.
func FuzzWorkersWords(f *testing.F) {
	f.Add([]byte(`{"id":0,"audit":{"time":"2026-11-29T10:00:00Z","verdict":"denied","proto":"tcp","addr":"192.0.2.1","port":443,"name":"a\u001b[31m.test","rule":"unlisted","count":1}}` + "\n"))
	f.Add([]byte("{\"id\":0,\"audit\":{\"addr\":\"fe80::1%\\u009b2J\"}}\n{}\nx"))
	f.Fuzz(func(t *testing.T, words []byte) {
		var out bytes.Buffer
		g := &gate{out: &out}
		said := 0
		l := &link{conn: script{bytes.NewReader(words)}, waiting: map[uint64]chan reply{1: make(chan reply, 1)}, news: func(a auditLine) {
			said++
			g.audit(a)
		}}
		_ = l.run()
		if l.alive() {
			t.Error("alive after the end")
		}
		printed := 0
		for line := range strings.Lines(out.String()) {
			printed++
			line = strings.TrimSuffix(line, "\n")
			var d spec.Decision
			if err := spec.Decode(strings.NewReader(line), &d); err != nil {
				t.Errorf("%v: %q", err, line)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) && r != utf8.RuneError }) || len(line) > 5*1024 {
				t.Errorf("%q", line)
			}
		}
		if printed > said {
			t.Errorf("%d lines for %d words", printed, said)
		}
	})
}

// script is a connection whose other end says something and goes.
type script struct{ io.Reader }

func (script) Write(b []byte) (int, error)      { return len(b), nil }
func (script) Close() error                     { return nil }
func (script) LocalAddr() net.Addr              { return nil }
func (script) RemoteAddr() net.Addr             { return nil }
func (script) SetDeadline(time.Time) error      { return nil }
func (script) SetReadDeadline(time.Time) error  { return nil }
func (script) SetWriteDeadline(time.Time) error { return nil }
