package spec

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
)

const (
	// BridgeEnv is the environment variable that carries a Researcher document.
	BridgeEnv = "CORRAL_BRIDGE"
	// BridgePort is where a bridge listens.
	BridgePort = 8765
	// BridgeReady begins the line that a bridge prints when it listens, before its
	// address.
	BridgeReady = "corral-bridge: ready"

	// BridgePrompt and BridgeUsage stand in a researcher's command for the prompt
	// and for the file in which it accounts for its run.
	BridgePrompt = "{prompt}"
	BridgeUsage  = "{usage}"
	// BridgeWebEnv is the environment variable that tells a researcher the socket
	// by which it searches and fetches.
	BridgeWebEnv = "CORRAL_WEB"
)

// Researcher is what a bridge runs, and within which bounds. A bound
// that is zero is the bridge's own.
type Researcher struct {
	Version int            `json:"version"`
	Listen  netip.AddrPort `json:"listen"`
	// Command is the researcher, with BridgePrompt as one of its arguments. It is
	// run anew for each question.
	Command []string `json:"command"`
	// Environment is all that the researcher's has, but for what the bridge sets
	// itself: HOME, HERMES_HOME, TMPDIR and BridgeWebEnv.
	Environment map[string]string `json:"environment,omitempty"`
	// Home are the files that a new HERMES_HOME begins with, by name.
	Home map[string]string `json:"home,omitempty"`
	// Directory, on a tmpfs, holds the calls' directories; nothing else may.
	Directory string `json:"directory"`
	// Scratch are other tmpfs that the researcher can write. All that is in them
	// goes when a call ends.
	Scratch []string `json:"scratch,omitempty"`
	// Search and Fetch are the sidecars, as http://HOST:PORT. Without the second no
	// page is read.
	Search string `json:"search"`
	Fetch  string `json:"fetch,omitempty"`

	Slots int `json:"slots,omitempty"` // calls at a time
	Queue int `json:"queue,omitempty"` // calls that wait
	// Limit is how long a researcher may take; Beat how long its caller hears
	// nothing at most. In milliseconds.
	Limit int `json:"limit_ms,omitempty"`
	Beat  int `json:"beat_ms,omitempty"`
}

// ParseResearcher decodes and checks a Researcher document.
func ParseResearcher(r io.Reader) (Researcher, error) {
	var b Researcher
	if err := Decode(r, &b); err != nil {
		return Researcher{}, fmt.Errorf("researcher spec: %w", err)
	}
	if err := b.check(); err != nil {
		return Researcher{}, fmt.Errorf("researcher spec: %w", err)
	}
	return b, nil
}

// The most that a bridge may be told.
const (
	bridgeSlots = 16
	bridgeQueue = 64
	bridgeLimit = 60 * 60 * 1000
	bridgeBeat  = 15 * 1000 // a client that hears nothing for longer may be waiting for nothing
)

func (b Researcher) check() error {
	if err := checkVersion("it", b.Version); err != nil {
		return err
	}
	if !b.Listen.Addr().Is4() {
		return fmt.Errorf("listen %v: it must be an IPv4 address and a port", b.Listen)
	}
	if len(b.Command) == 0 || b.Command[0] == "" {
		return errors.New("it has no command")
	}
	if n := strings.Count(strings.Join(b.Command, "\n"), BridgePrompt); n != 1 || !slices.Contains(b.Command, BridgePrompt) {
		return fmt.Errorf("the command must have %s as one of its arguments, once", BridgePrompt)
	}
	for name, value := range b.Environment {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return fmt.Errorf("environment: %q is no variable", name)
		}
		if slices.Contains([]string{"HOME", "HERMES_HOME", "TMPDIR", BridgeWebEnv, BridgeEnv}, name) {
			return fmt.Errorf("environment: %s is the bridge's to set", name)
		}
	}
	for name := range b.Home {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("home: %q is no name of a file", name)
		}
	}
	for _, dir := range append([]string{b.Directory}, b.Scratch...) {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
			return fmt.Errorf("directory %q: it must be an absolute path, and no root", dir)
		}
	}
	for i, base := range []string{b.Search, b.Fetch} {
		if i > 0 && base == "" {
			continue
		}
		if u, err := url.Parse(base); err != nil || u.Scheme != "http" || u.Host == "" || base != "http://"+u.Host {
			return fmt.Errorf("sidecar %q: it must be http://HOST:PORT", base)
		}
	}
	for _, n := range []struct {
		name      string
		is, least int
		most      int
	}{
		{"slots", b.Slots, 1, bridgeSlots}, {"queue", b.Queue, -1, bridgeQueue}, {"limit_ms", b.Limit, 1, bridgeLimit}, {"beat_ms", b.Beat, 1, bridgeBeat},
	} {
		if n.is != 0 && (n.is < n.least || n.is > n.most) {
			return fmt.Errorf("%s: %d is not from %d to %d", n.name, n.is, n.least, n.most)
		}
	}
	return nil
}
