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
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/spelling"
)

const usage = `usage: corral-fetch COMMAND

  serve [SETTING...]   answer POST /v1/fetch {"url": "https://example.com/"}
  health [SETTING...]  exit 0 if a server answers here: the one with these settings;
                       without any, the one that runs here
  settings             what can be set, by option or by variable
  version
`

const howTo = "corral-fetch --help lists the commands"

var commands = []string{"serve", "health", "settings", "version"}

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
	command, rest := strings.TrimPrefix(args[0], "--"), args[1:]
	option, _, _ := strings.Cut(command, "=")
	isHelp := func(arg string) bool { return arg == "--help" || arg == "-h" }
	switch {
	case command == "help", isHelp(args[0]), slices.Contains(commands, command) && slices.ContainsFunc(rest, isHelp):
		_, err := io.WriteString(stdout, usage)
		return err
	case args[0] == "--version":
	case command != args[0] && isOption(option):
		return exit.Invalidf(howTo, "--%s stands before a command: corral-fetch serve --%[1]s …", option)
	case !slices.Contains(commands, args[0]):
		if near := spelling.Nearest(command, commands); near != "" {
			return exit.Invalidf("did you mean corral-fetch "+near+"?", "no command is called %q", args[0])
		}
		return exit.Invalidf(howTo, "no command is called %q", args[0])
	}
	switch command {
	case "health":
		if len(rest) == 0 {
			rest = served("/proc")
		}
		s, err := readSettings(rest, environ)
		if err != nil {
			return err
		}
		return health(ctx, s)
	case "serve":
		s, err := readSettings(rest, environ)
		if err != nil {
			return err
		}
		return serve(ctx, stdout, s)
	}
	if len(rest) > 0 {
		return exit.Invalidf(howTo, "%s takes no %q", args[0], rest[0])
	}
	if command == "settings" {
		_, err := io.WriteString(stdout, settingsText())
		return err
	}
	_, err := fmt.Fprintf(stdout, "corral-fetch %s\n", spec.Release())
	return err
}

func serve(ctx context.Context, stdout io.Writer, s settings) error {
	srv, err := newServer(s, stdout)
	if err != nil {
		return err
	}
	l, err := listen(ctx, s.Listen)
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(50)
	srv.log.Info(ready, "listen", l.Addr().String(), "version", spec.Release())
	return srv.serve(ctx, l)
}

// ready is what the log says once a server listens.
const ready = "ready"

// listen listens at addresses of one family only: who names 0.0.0.0 did not think of
// the others.
func listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	network := "tcp6"
	if at.Addr().Is4() {
		network = "tcp4"
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, at.String())
	var errno syscall.Errno
	errors.As(err, &errno)
	switch {
	case err == nil:
		return l, nil
	case errno == syscall.EACCES:
		return nil, exit.Failedf("ports below 1024 are root's: --listen takes a higher one", "listen at %s: %w", at, errno)
	case errno == syscall.EADDRINUSE:
		return nil, exit.Failedf("somebody else has the port: --listen takes another", "listen at %s: %w", at, errno)
	case errno == syscall.EADDRNOTAVAIL:
		return nil, exit.Failedf("it is no address of this machine: --listen takes one that is", "listen at %s: %w", at, errno)
	}
	return nil, exit.Failedf("--listen takes another address", "listen at %s: %w", at, err)
}

// served are the settings of the one server that runs in this container or on this
// machine, none if there is none or if there are several.
func served(proc string) []string {
	var found [][]string
	all, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "cmdline"))
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if len(args) > 1 && filepath.Base(args[0]) == "corral-fetch" && args[1] == "serve" {
			found = append(found, args[2:])
		}
	}
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

// health asks the server that has these settings.
func health(ctx context.Context, s settings) error {
	at := s.Listen
	if at.Addr().IsUnspecified() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr().Is6() {
			loopback = netip.IPv6Loopback()
		}
		at = netip.AddrPortFrom(loopback, at.Port())
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return exit.Failedf("corral-fetch serve starts it, and health takes the same settings", "no server at %s: %s", at, ownWords(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return exit.Failedf("something else has the port: --listen names the server's", "%s answers %s", at, printable.Escape(resp.Status))
	}
	return nil
}
