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
	maxQuestion    = 4096
	controlTimeout = 30 * time.Second
)

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

// serveControl answers questions, one at a time, until the context ends.
func serveControl(ctx context.Context, l *net.UnixListener, answer func(context.Context, question) (any, error)) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		converse(ctx, conn, answer)
	}
}

func converse(ctx context.Context, conn net.Conn, answer func(context.Context, question) (any, error)) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	conn.SetDeadline(time.Now().Add(controlTimeout))
	line, err := bufio.NewReader(io.LimitReader(conn, maxQuestion)).ReadBytes('\n')
	if err != nil {
		return
	}
	var q question
	if err := json.Unmarshal(line, &q); err != nil {
		return
	}
	a, err := answer(ctx, q)
	if err != nil {
		a = refusal{Error: err.Error()}
	}
	enc := json.NewEncoder(conn) // no indentation: an account is long, and would be in memory twice
	enc.SetEscapeHTML(false)
	enc.Encode(a)
}

// refusal is the answer to a question that could not be answered.
type refusal struct {
	Error string `json:"error"`
}

// call asks the gate of this container.
func call(ctx context.Context, q question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
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
	answer, err := io.ReadAll(io.LimitReader(conn, maxLine))
	if err != nil {
		return nil, err
	}
	var r refusal
	if err := json.Unmarshal(answer, &r); err != nil {
		return nil, errors.New("the gate broke off its answer")
	}
	if r.Error != "" {
		return nil, errors.New(r.Error)
	}
	return answer, nil
}
