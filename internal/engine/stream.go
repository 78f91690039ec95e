package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"
)

// Stream is a started container whose lines we read.
type Stream struct {
	e     *Engine
	id    string
	lines *bufio.Scanner
	close func()
	hang  func() error // ends its standard input
}

// Start starts a container and follows what it writes from the first byte on.
func (e *Engine) Start(ctx context.Context, id string) (*Stream, error) {
	conn, err := e.api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
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
	go func() {
		_, err := stdcopy.StdCopy(w, w, conn.Reader)
		w.CloseWithError(err)
	}()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	return &Stream{e: e, id: id, lines: lines, hang: conn.CloseWrite, close: func() {
		stop()
		conn.Close()
		r.Close()
	}}, nil
}

// Next returns the next line; false when the container has said its last.
func (s *Stream) Next() (string, bool) {
	ok := s.lines.Scan()
	return s.lines.Text(), ok
}

// LastWords returns what a container that has ended still had to say; nothing
// if it runs on.
func (s *Stream) LastWords(ctx context.Context) string {
	got, err := s.e.api.ContainerInspect(ctx, s.id)
	if err != nil || got.State.Running {
		return ""
	}
	var left []string
	for line, more := s.Next(); more; line, more = s.Next() {
		left = append(left, line)
	}
	return strings.Join(left, "; ")
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
	Bind         string // a directory of the host, read-only, same path inside
	Args         []string
}

// StartTool runs a tool. The caller removes it.
func (e *Engine) StartTool(ctx context.Context, t Tool) (id string, s *Stream, err error) {
	config := &container.Config{
		Image:      t.Image,
		Entrypoint: t.Args[:1],
		Cmd:        t.Args[1:],
		User:       "0:0",
		OpenStdin:  true,
		StdinOnce:  true,
		Labels:     map[string]string{labelRole: RoleTool},
	}
	created, err := e.api.ContainerCreate(ctx, config, &container.HostConfig{
		NetworkMode: container.NetworkMode(t.Network),
		CapDrop:     []string{"ALL"},
		CapAdd:      t.Capabilities,
		SecurityOpt: []string{"no-new-privileges"},
		LogConfig:   logging(),
		Mounts:      []mount.Mount{{Type: mount.TypeBind, Source: t.Bind, Target: t.Bind, ReadOnly: true}},
	}, nil, nil, "")
	if err != nil {
		return "", nil, fmt.Errorf("tool %s: %w", t.Args[0], err)
	}
	s, err = e.Start(ctx, created.ID)
	if err != nil {
		e.Remove(ctx, created.ID)
		return "", nil, fmt.Errorf("tool %s: %w", t.Args[0], err)
	}
	return created.ID, s, nil
}

// Remove takes a container away by force, also when ctx has ended.
func (e *Engine) Remove(ctx context.Context, id string) error { return e.remove(ctx, id) }
