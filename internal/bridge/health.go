package bridge

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

const healthWithin = 5 * time.Second

// health does what a caller would before it calls: a bridge that listens and is no
// MCP server with the tool is not well.
func health(ctx context.Context, d spec.Researcher) error {
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	at := d.Listen
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}}
	const hint = "corral logs researcher says more"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", at), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return exit.Failedf(hint, "the bridge does not answer: %w", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return exit.Failedf(hint, "the bridge is not well: status %d", resp.StatusCode)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "corral-bridge-health", Version: spec.Release()}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: fmt.Sprintf("http://%s%s", at, path), HTTPClient: client, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return exit.Failedf(hint, "the bridge does not speak MCP: %w", err)
	}
	defer session.Close()
	tools, err := session.ListTools(ctx, nil)
	if err != nil {
		return exit.Failedf(hint, "the bridge lists no tools: %w", err)
	}
	for _, t := range tools.Tools {
		if t.Name == tool.Name {
			return nil
		}
	}
	return exit.Failedf(hint, "the bridge has no tool %q", tool.Name)
}
