package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
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
