package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// maxLine bounds one message between PID 1 and the worker: the pin table of
// 1,000 names with 64 addresses each, or every refusal on record, and no more.
const maxLine = 4 << 20

// request is what PID 1 asks of the worker, one JSON line; one field is set.
type request struct {
	ID       uint64  `json:"id"`
	Table    *table  `json:"table,omitempty"`
	Resolve  *lookup `json:"resolve,omitempty"`
	Refusal  string  `json:"refusal,omitempty"` // ask 127.0.0.1:53 for this unlisted name
	Verdicts *uint64 `json:"verdicts,omitempty"`
	Account  bool    `json:"account,omitempty"`
	// Checking says that a checker runs, or no longer does: what it is refused is
	// no news.
	Checking *bool `json:"checking,omitempty"`
}

// table is what the worker answers lookups from.
type table struct {
	Instance string     `json:"instance"`
	Document string     `json:"document"` // the digest of what it was made from
	Pins     []spec.Pin `json:"pins"`
	// Links are told to whoever asks by name.
	Links []spec.Link `json:"links,omitempty"`
	// Base is where the numbers of verdicts start, beyond any that an earlier
	// worker gave out.
	Base uint64 `json:"base"`
	// Own are destinations that corral itself dials; they are no news.
	Own []netip.Addr `json:"own"`
	// Alone: there is no corral, so that nobody tells when a proof runs.
	Alone bool `json:"alone,omitempty"`
	// Serving: the namespace has been opened, root's packets may be a service's.
	Serving bool `json:"serving"`
	// Sink is the answer for names that have none, if it is set.
	Sink netip.Addr `json:"sink,omitzero"`
	// Forward are the servers that lookups of the service are passed on to: only
	// at a gate of ClassPublic.
	Forward []netip.AddrPort `json:"forward,omitempty"`
	// Never is what no passed-on answer may contain.
	Never []netip.Prefix `json:"never,omitempty"`
}

type lookup struct {
	Name    string           `json:"name"`
	Servers []netip.AddrPort `json:"servers"`
}

// reply answers the request of the same ID. ID 0 is news: only Audit is set.
type reply struct {
	ID       uint64         `json:"id"`
	Err      string         `json:"err,omitempty"`
	Kind     resolve.Kind   `json:"kind,omitempty"` // of the failure of a lookup
	Addrs    []netip.Addr   `json:"addrs,omitempty"`
	TTL      time.Duration  `json:"ttl,omitempty"`
	Verdicts *spec.Verdicts `json:"verdicts,omitempty"`
	Account  *account       `json:"account,omitempty"`
	Audit    *auditLine     `json:"audit,omitempty"`
}

// account is what passed and what was refused so far.
type account struct {
	Allowed     []spec.Traffic `json:"allowed"`
	AllowedMore uint64         `json:"allowed_more"`
	Denied      []spec.Traffic `json:"denied"`
	DeniedMore  uint64         `json:"denied_more"`
	Probed      uint64         `json:"probed"`
	Refused     []spec.Refused `json:"refused"`
	RefusedMore uint64         `json:"refused_more"`
}

// plain makes all text of the worker's safe to print.
func (a *account) plain() {
	for _, rows := range [][]spec.Traffic{a.Allowed, a.Denied} {
		for i := range rows {
			r := &rows[i]
			r.Proto, r.Name, r.Rule = plain(r.Proto), plain(r.Name), plain(r.Rule)
			r.Addr = r.Addr.WithZone("") // which may be any text
		}
	}
	for i := range a.Refused {
		a.Refused[i].Name = plain(a.Refused[i].Name)
	}
}

// writeTimeout is how long a worker may leave a request unread.
const writeTimeout = 5 * time.Second

var errWorkerGone = errors.New("the worker is gone")

// link is PID 1's end of the line to one worker.
type link struct {
	conn net.Conn
	news func(auditLine)

	writing sync.Mutex

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan reply // nil once the worker is gone
}

// run hands out replies until the worker goes or breaks the rules.
func (l *link) run() error {
	err := readLines(l.conn, func(line []byte) error {
		var r reply
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		if r.ID == 0 {
			if r.Audit != nil {
				l.news(*r.Audit)
			}
			return nil
		}
		l.mu.Lock()
		ch := l.waiting[r.ID]
		delete(l.waiting, r.ID)
		l.mu.Unlock()
		if ch != nil {
			ch <- r
		}
		return nil
	})
	l.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.waiting {
		close(ch)
	}
	l.waiting = nil
	return err
}

func (l *link) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting != nil
}

func (l *link) ask(ctx context.Context, q request) (reply, error) {
	ch := make(chan reply, 1)
	l.mu.Lock()
	if l.waiting == nil {
		l.mu.Unlock()
		return reply{}, errWorkerGone
	}
	l.next++
	q.ID = l.next
	l.waiting[q.ID] = ch
	l.mu.Unlock()
	if err := l.write(q); err != nil {
		l.conn.Close() // half a line may be out: nothing more can follow it
		return reply{}, errWorkerGone
	}
	select {
	case r, ok := <-ch:
		if !ok {
			return reply{}, errWorkerGone
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

func (l *link) write(q request) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return json.NewEncoder(l.conn).Encode(q)
}

// keptLine is how much of a buffer outlives a line: nearly all are shorter.
const keptLine = 64 << 10

// readLines calls do with each line until the end, a line that is too long, or
// an error of do. A clean end is nil.
func readLines(r io.Reader, do func([]byte) error) error {
	in := bufio.NewReader(r)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return bufio.ErrTooLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case err != nil && !errors.Is(err, io.EOF):
			return err
		}
		if err := do(line); err != nil {
			return err
		}
		if line = line[:0]; cap(line) > keptLine {
			line = nil
		}
	}
}

// plain is text of the worker's in a form that is safe to print: one line,
// bounded, no control characters.
func plain(s string) string {
	const most = 400
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
