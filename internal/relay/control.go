package relay

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// maxDocument holds every address of the corral network twice over.
	maxDocument = 2 << 20
	maxReply    = 4096
	// controlTimeout is for one exchange, on either side.
	controlTimeout = 10 * time.Second
)

// reply answers a Relay document. The zero value is that it is not in force.
type reply struct {
	InForce bool   `json:"in_force"`
	Error   string `json:"error,omitempty"`
}

// ServeControl takes Relay documents, one at a time, until the context ends.
// Each is a whole conversation: the document and the end of writing one way,
// the reply the other.
func (r *Relay) ServeControl(ctx context.Context, l *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if scarce(ctx, err) {
				continue
			}
			return err
		}
		r.converse(conn)
	}
}

func (r *Relay) converse(conn *net.UnixConn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(controlTimeout))
	d, err := spec.ParseRelay(io.LimitReader(conn, maxDocument))
	if err != nil {
		conn.Write(spec.Encode(reply{Error: err.Error()}))
		return
	}
	r.Accept(d.Sources)
	conn.Write(spec.Encode(reply{InForce: true}))
}

// Tell gives the relay behind a control socket its sources and returns when
// they are in force.
func Tell(ctx context.Context, socket string, d spec.Relay) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return exit.Failedf("this is a command for inside a relay's container", "no relay runs here: %w", err)
		}
		return err
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(spec.Encode(d)); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxReply))
	if err != nil {
		return err
	}
	var a reply
	if err := json.Unmarshal(answer, &a); err != nil {
		return errors.New("the relay broke off its answer")
	}
	if !a.InForce {
		return errors.New("the relay refused the list: " + a.Error)
	}
	return nil
}
