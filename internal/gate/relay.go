package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/relay"
	"github.com/corral-sandbox/corral/internal/spec"
)

// carry is the life of a relay. Whatever it opens, it opens before it drops its
// rights, and it serves only after. The control socket is of the user that the
// container starts as, who is also the one that an exec in it runs as.
func carry(ctx context.Context, stdout io.Writer, dns bool, words []string) error {
	c, err := relay.Parse(dns, words)
	if err != nil {
		return exit.Invalidf(usage, "relay: %w", err)
	}
	thrift()
	r, err := relay.Listen(ctx, c)
	if errors.Is(err, syscall.EADDRINUSE) {
		return exit.Failedf("ss -lntup, as root, says who it is", "%s%v: %w", spec.RelayTaken, c.Listen, err)
	}
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	control, err := listenControl(spec.RelaySocket)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	if err := relay.DropRights(); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	tasks, serving := errgroup.WithContext(ctx)
	tasks.Go(func() error { return r.Serve(serving) })
	tasks.Go(func() error { return r.ServeControl(serving, control) })
	settle()
	tasks.Go(func() error {
		_, err := fmt.Fprintln(stdout, spec.RelayReady)
		return err
	})
	return tasks.Wait()
}

// maxSources bounds a Relay document.
const maxSources = 2 << 20

// tellSources hands the Relay document of stdin to the relay of this container.
func tellSources(ctx context.Context, stdin io.Reader) error {
	d, err := spec.ParseRelay(io.LimitReader(stdin, maxSources))
	if err != nil {
		return exit.Invalidf("", "%w", err)
	}
	return relay.Tell(ctx, spec.RelaySocket, d)
}
