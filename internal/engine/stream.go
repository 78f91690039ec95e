package engine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"
)

// Stream is a started container whose lines we read.
type Stream struct {
	e     *Engine
	id    string
	lines *bufio.Scanner
	errs  bytes.Buffer // complete when lines has ended
	close func()
	hang  func() error // ends its standard input
}

// maxErrors bounds what is kept of a container's standard error.
const maxErrors = 64 << 10

// Start starts a container and follows what it writes from the first byte on.
func (e *Engine) Start(ctx context.Context, id string) (*Stream, error) {
	conn, err := e.attach(ctx, id)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, conn.Close)
	if err := e.api.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		stop()
		conn.Close()
		return nil, err
	}
	r, w := io.Pipe()
	s := &Stream{e: e, id: id, lines: bufio.NewScanner(r), hang: conn.CloseWrite}
	s.lines.Buffer(nil, 1<<20)
	s.close = func() {
		stop()
		conn.Close()
		r.Close()
	}
	go func() {
		_, err := stdcopy.StdCopy(w, &clip{&s.errs, maxErrors}, conn.Reader)
		w.CloseWithError(err)
	}()
	return s, nil
}

// clip keeps the beginning of what is written and lets the rest go.
type clip struct {
	w    io.Writer
	left int
}

func (c *clip) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	c.left -= n
	if _, err := c.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// attach does not outlast ctx: the client's own wait for the connection would.
func (e *Engine) attach(ctx context.Context, id string) (types.HijackedResponse, error) {
	return within(ctx, func() (types.HijackedResponse, error) {
		return e.api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	}, func(c types.HijackedResponse) { c.Close() })
}

// within returns what f does, or why ctx ended before. What f returns too late
// is given to discard.
func within[T any](ctx context.Context, f func() (T, error), discard func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				discard(r.v)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}

// Next returns the next line of standard output; false when the container has
// said its last.
func (s *Stream) Next() (string, bool) {
	ok := s.lines.Scan()
	return s.lines.Text(), ok
}

// Errors is what the container said on standard error, once Next has returned
// false.
func (s *Stream) Errors() string { return strings.TrimSpace(s.errs.String()) }

// LastWords returns what a container that has ended said on standard error;
// nothing if it runs on.
func (s *Stream) LastWords(ctx context.Context) string {
	got, err := s.e.api.ContainerInspect(ctx, s.id)
	if err != nil || got.State.Running {
		return ""
	}
	for _, more := s.Next(); more; _, more = s.Next() {
	}
	return s.Errors()
}

// HangUp ends the container's standard input.
func (s *Stream) HangUp() error { return s.hang() }

// Close stops listening. The container goes on.
func (s *Stream) Close() { s.close() }

// Status waits for the container's end and returns its exit status, -1 if it
// could not be told.
func (s *Stream) Status(ctx context.Context) int {
	done, errs := s.e.api.ContainerWait(ctx, s.id, container.WaitConditionNotRunning)
	select {
	case d := <-done:
		return int(d.StatusCode)
	case <-errs:
		return -1
	}
}

// Tool is a short-lived container of corral's own, outside any fence.
type Tool struct {
	Image        string
	Network      string // a network, "none", or "container:ID"
	Capabilities []string
	Bind         string // a directory of the host, read-only, same path inside; none if empty
	Args         []string
	Purpose      string
	// Host tools see the processes of the host, and no profile of the host's keeps them
	// from those.
	Host bool
}

// unlabelled keeps SELinux out of a container.
const unlabelled = "label=disable"

// StartTool runs a tool. The caller removes it.
func (e *Engine) StartTool(ctx context.Context, t Tool) (id string, s *Stream, err error) {
	var options []string
	if t.Purpose == PurposeCheck && t.Bind != "" {
		// It reads what has just been made in the person's home, which has the type
		// of what lies there.
		options = []string{unlabelled}
	}
	var pids container.PidMode
	if t.Host {
		pids, options = "host", []string{unlabelled, "apparmor=unconfined"}
	}
	id, err = e.create(ctx, request{
		options: options,
		config: &container.Config{
			Image:       t.Image,
			Entrypoint:  t.Args[:1],
			Cmd:         t.Args[1:],
			User:        "0:0",
			OpenStdin:   true,
			StdinOnce:   true,
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			Labels:      map[string]string{labelRole: RoleTool, labelPurpose: t.Purpose},
		},
		host: &container.HostConfig{
			NetworkMode: container.NetworkMode(t.Network),
			CapAdd:      t.Capabilities,
			PidMode:     pids,
			Mounts:      t.mounts(),
		},
	})
	if err != nil {
		return "", nil, fmt.Errorf("tool %s: %w", t.Args[0], err)
	}
	s, err = e.Start(ctx, id)
	if err != nil {
		_ = e.remove(ctx, id) // its owner label lets a later sweep find it
		return "", nil, fmt.Errorf("tool %s: %w", t.Args[0], err)
	}
	return id, s, nil
}

func (t Tool) mounts() []mount.Mount {
	if t.Bind == "" {
		return nil
	}
	return []mount.Mount{{Type: mount.TypeBind, Source: t.Bind, Target: t.Bind, ReadOnly: true}}
}
