// Package fetch is corral-fetch. In goes the URL of a public page, out comes its
// main text as Markdown, or one of a closed set of reasons why not. It asks for
// pages on behalf of a program that may have been talked into anything: so it
// dials nothing but addresses that are public, which it has checked itself, sends
// no word of its own but a fixed one, keeps nothing from one page to the next, and
// takes bounded time and memory whatever a server says. It runs no script and
// loads nothing that a page refers to.
package fetch

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

const usage = `usage: corral-fetch COMMAND

  serve [SETTING...]   answer POST /v1/fetch {"url": "https://example.com/"}
  health [SETTING...]  exit 0 if a server with these settings answers here
  settings             what can be set, by option or by variable
  version
`

const howTo = "corral-fetch --help lists the commands"

// readyLine begins the line that a server prints once it listens.
const readyLine = "corral-fetch: ready: "

// memoryLimit is where the collector begins to work harder, in bytes. Six hostile
// pages at once stay below 128 MiB with it.
const memoryLimit = 80 << 20

// Main runs one command and returns the exit status.
func Main(ctx context.Context, _ io.Reader, stdout, stderr io.Writer, args []string) int {
	return exit.Report(stderr, "corral-fetch", run(ctx, stdout, args, os.Environ()))
}

func run(ctx context.Context, stdout io.Writer, args, environ []string) error {
	if len(args) == 0 {
		return exit.Invalidf(howTo, "no command")
	}
	if slices.Contains([]string{"help", "--help", "-h"}, args[0]) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	switch args[0] {
	case "serve", "health":
		s, err := readSettings(args[1:], environ)
		if err != nil {
			return err
		}
		if args[0] == "health" {
			return health(ctx, s)
		}
		return serve(ctx, stdout, s)
	}
	if len(args) > 1 {
		return exit.Invalidf(howTo, "%s takes no %q", args[0], args[1])
	}
	switch args[0] {
	case "settings":
		_, err := io.WriteString(stdout, settingsText())
		return err
	case "version":
		_, err := fmt.Fprintf(stdout, "corral-fetch %s\n", spec.Release())
		return err
	}
	return exit.Invalidf(howTo, "no command is called %q", args[0])
}

func serve(ctx context.Context, stdout io.Writer, s settings) error {
	srv, err := newServer(s, stdout)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen.String())
	if err != nil {
		return exit.Failedf("somebody else has the port, or it is no address of this machine: --listen takes another", "listen: %w", err)
	}
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(50)
	if _, err := fmt.Fprintf(stdout, "%s%s\n", readyLine, l.Addr()); err != nil {
		l.Close()
		return err
	}
	return srv.serve(ctx, l)
}

// health asks the server that has these settings.
func health(ctx context.Context, s settings) error {
	at := s.Listen
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return exit.Failedf("corral-fetch serve, with the same settings, starts it", "no server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return exit.Failedf("something else has the port: --listen names the server's", "%s answers %s", at, printable.Escape(resp.Status))
	}
	return nil
}
