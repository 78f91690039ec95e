package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

// question is what a command asks PID 1 over the control socket: one JSON line,
// one field set. The answer is a document of spec, and the end.
type question struct {
	Status   bool    `json:"status,omitempty"`
	Verdicts *uint64 `json:"verdicts,omitempty"`
	// Refresh is the path of the Gate document to go by from now on.
	Refresh string `json:"refresh,omitempty"`
}

const (
	maxQuestion    = 8192 // a path may have 4096 bytes
	controlTimeout = 30 * time.Second
	// refreshTimeout is for the resolution, the turn of another one before it, and
	// the rest.
	refreshTimeout = 3 * resolveTimeout
	// maxQuestions are answered at the same time.
	maxQuestions = 16
	// maxAnswer is more than any gate has to say.
	maxAnswer = 64 << 20
)

// timeout is how long a question may take.
func (q question) timeout() time.Duration {
	if q.Refresh != "" {
		return refreshTimeout
	}
	return controlTimeout
}

// listenControl opens the control socket in the gate's own file system, which
// no service shares.
func listenControl(path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o600)
}

// serveControl answers questions, some at a time, until the context ends.
func serveControl(ctx context.Context, l *net.UnixListener, answer func(context.Context, question) (any, error)) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var talks sync.WaitGroup
	defer talks.Wait()
	slots := make(chan struct{}, maxQuestions)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			conn.Close()
			return nil
		}
		talks.Go(func() {
			defer func() { <-slots }()
			converse(ctx, conn, answer)
		})
	}
}

func converse(ctx context.Context, conn net.Conn, answer func(context.Context, question) (any, error)) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	conn.SetDeadline(time.Now().Add(controlTimeout))
	line, err := bufio.NewReader(io.LimitReader(conn, maxQuestion)).ReadBytes('\n')
	if err != nil {
		return
	}
	var q question
	if err := json.Unmarshal(line, &q); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout())
	defer cancel()
	a, err := answer(ctx, q)
	if err != nil {
		r := refusal{Error: err.Error(), Status: exit.Failed}
		if e := (*exit.Error)(nil); errors.As(err, &e) {
			r.Status, r.Hint = e.Status, e.Hint
		}
		a = r
	}
	conn.SetDeadline(time.Now().Add(controlTimeout))
	enc := json.NewEncoder(conn) // no indentation: an account is long, and would be in memory twice
	enc.SetEscapeHTML(false)
	enc.Encode(a)
}

// refusal is the answer to a question that could not be answered, with the status
// to leave with.
type refusal struct {
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
	Status int    `json:"status,omitempty"`
}

// call asks the gate of this container.
func call(ctx context.Context, q question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout()+controlTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", spec.GateSocket)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, exit.Failedf("this is a command for inside a gate's container", "no gate runs here: %w", err)
		}
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return nil, err
	}
	var r refusal
	if err := json.Unmarshal(answer, &r); err != nil {
		return nil, errors.New("the gate broke off its answer")
	}
	if r.Error != "" {
		return nil, &exit.Error{Status: max(r.Status, exit.Failed), Err: errors.New(r.Error), Hint: r.Hint}
	}
	return answer, nil
}
