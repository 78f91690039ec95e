package engine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Decisions gives each what the engine has kept of a gate's decisions, and what
// comes, until the gate ends, ctx does, or each returns an error.
func (e *Engine) Decisions(ctx context.Context, gate string, each func(spec.Decision) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r, w := io.Pipe()
	go func() { w.CloseWithError(e.Logs(ctx, gate, LogRange{Follow: true, All: true}, w, io.Discard)) }()
	defer r.Close()
	return readDecisions(r, each)
}

// readDecisions reads a gate's standard output: beside its decisions, a line of
// JSON each, it says what it does, to people.
func readDecisions(r io.Reader, each func(spec.Decision) error) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if !bytes.HasPrefix(lines.Bytes(), []byte("{")) {
			continue
		}
		var d spec.Decision
		if err := spec.Decode(bytes.NewReader(lines.Bytes()), &d); err != nil {
			return fmt.Errorf("the gate's log: %w", err)
		}
		if err := each(d); err != nil {
			return err
		}
	}
	return lines.Err()
}
