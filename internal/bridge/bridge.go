// Package bridge is corral-bridge. In goes a spec.Researcher document; out comes
// one MCP tool, research, each call of which is a new researcher: a process of
// its own with an empty home and an empty working directory, which sees nothing of
// the calls before it and leaves nothing to those after it.
//
// A researcher reads what strangers wrote, so nothing of it is believed. What it
// prints is an answer only if it has the form of one and names no source but those
// that the bridge itself saw found or fetched; else nothing of it passes. What it
// started has ended before its call does, whatever it did to get away.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

const usage = `usage: corral-bridge COMMAND

  serve    answer questions by MCP, as the document in ` + spec.BridgeEnv + ` says
  health   ask the bridge beside this one, by MCP, for its tool; exit 1 without it
  version
`

const howTo = "corral-bridge --help lists the commands"

// Main runs one command and returns the exit status.
func Main(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	if len(args) > 1 && args[0] == keepCommand {
		return keep(args[1:], stderr)
	}
	return exit.Report(stderr, "corral-bridge", run(ctx, stdout, stderr, args))
}

func run(ctx context.Context, stdout, stderr io.Writer, args []string) error {
	if len(args) == 0 {
		return exit.Invalidf(howTo, "no command")
	}
	if slices.Contains([]string{"help", "--help", "-h"}, args[0]) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if len(args) > 1 {
		return exit.Invalidf(howTo, "%s takes no %q", args[0], args[1])
	}
	switch args[0] {
	case "serve":
		d, err := document()
		if err != nil {
			return err
		}
		return serve(ctx, d, stdout, slog.New(slog.NewTextHandler(stderr, nil)))
	case "health":
		d, err := document()
		if err != nil {
			return err
		}
		return health(ctx, d)
	case "version":
		_, err := fmt.Fprintf(stdout, "corral-bridge %s\n", spec.Release())
		return err
	}
	return exit.Invalidf(howTo, "no command is called %q", args[0])
}

func document() (spec.Researcher, error) {
	text, found := os.LookupEnv(spec.BridgeEnv)
	if !found {
		return spec.Researcher{}, exit.Invalidf("corral sets it when it makes the container", "no %s says what to run", spec.BridgeEnv)
	}
	d, err := spec.ParseResearcher(strings.NewReader(text))
	if err != nil {
		return spec.Researcher{}, &exit.Error{Status: exit.Invalid, Err: err, Hint: "nobody writes one by hand; corral and corral-bridge are of different versions: make install puts both in place"}
	}
	return d, nil
}

// serve is a bridge's life.
func serve(ctx context.Context, d spec.Researcher, stdout io.Writer, log *slog.Logger) error {
	if err := errors.Join(closeOnExec(), becomeReaper(), hide()); err != nil {
		return err
	}
	b, err := open(d, log)
	if err != nil {
		return err
	}
	l, err := listen(ctx, d.Listen)
	if err != nil {
		return exit.Failedf("end what listens there", "%w", err)
	}
	if _, err := fmt.Fprintf(stdout, "%s on %v\n", spec.BridgeReady, l.Addr()); err != nil {
		return errors.Join(err, l.Close())
	}
	return b.serve(ctx, l)
}
