package engine

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/plan"
)

const (
	optionICC    = "com.docker.network.bridge.enable_icc"
	optionBridge = "com.docker.network.bridge.name"
	bridge       = "corral0"
)

// WrongNetwork is a corral network that is missing or not as corral makes it.
// Nothing is ever started on another one.
type WrongNetwork struct{ Differences []string }

func (e *WrongNetwork) Error() string {
	return "the corral network is not as it must be: " + strings.Join(e.Differences, "; ")
}

// EnsureNetwork makes the corral network if it is missing. One that differs
// is an error, unless repair is asked for and nothing uses it.
func (e *Engine) EnsureNetwork(ctx context.Context, want plan.Network, repair bool) error {
	got, err := e.api.NetworkInspect(ctx, want.Name, network.InspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return e.createNetwork(ctx, want)
	case err != nil:
		return fmt.Errorf("network %s: %w", want.Name, err)
	}
	diff := networkDiff(want, got)
	if len(diff) == 0 {
		return nil
	}
	if !repair {
		return &WrongNetwork{diff}
	}
	if len(got.Containers) > 0 {
		return fmt.Errorf("network %s is used by %d containers: take them down before it can be repaired", want.Name, len(got.Containers))
	}
	if err := e.api.NetworkRemove(ctx, got.ID); err != nil {
		return fmt.Errorf("network %s: %w", want.Name, err)
	}
	return e.createNetwork(ctx, want)
}

// CheckNetwork is nil if the corral network exists and is as it must be.
func (e *Engine) CheckNetwork(ctx context.Context, want plan.Network) error {
	got, err := e.api.NetworkInspect(ctx, want.Name, network.InspectOptions{})
	if errdefs.IsNotFound(err) {
		return &WrongNetwork{[]string{"it does not exist"}}
	}
	if err != nil {
		return fmt.Errorf("network %s: %w", want.Name, err)
	}
	if diff := networkDiff(want, got); len(diff) > 0 {
		return &WrongNetwork{diff}
	}
	return nil
}

func (e *Engine) createNetwork(ctx context.Context, n plan.Network) error {
	no := false
	_, err := e.api.NetworkCreate(ctx, n.Name, network.CreateOptions{
		Driver:     "bridge",
		EnableIPv6: &no,
		IPAM: &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{
			Subnet: n.Subnet.String(), IPRange: n.Range.String(), Gateway: n.Gateway.String(),
		}}},
		Options: map[string]string{optionICC: "false", optionBridge: bridge},
		Labels:  map[string]string{labelRole: "network"},
	})
	if err != nil {
		return fmt.Errorf("network %s (%v): %w", n.Name, n.Subnet, err)
	}
	return nil
}

func networkDiff(want plan.Network, got network.Inspect) []string {
	var diff []string
	differ := func(what, want, got string) {
		if want != got {
			diff = append(diff, fmt.Sprintf("%s is %q, not %q", what, got, want))
		}
	}
	differ("driver", "bridge", got.Driver)
	differ("scope", "local", got.Scope)
	differ("IPv6", "false", fmt.Sprint(got.EnableIPv6))
	differ("internal", "false", fmt.Sprint(got.Internal))
	differ("inter-container communication", "false", got.Options[optionICC])
	differ("bridge", bridge, got.Options[optionBridge])
	if len(got.IPAM.Config) != 1 {
		return append(diff, fmt.Sprintf("it has %d subnets, not 1", len(got.IPAM.Config)))
	}
	c := got.IPAM.Config[0]
	differ("subnet", want.Subnet.String(), c.Subnet)
	differ("ip range", want.Range.String(), c.IPRange)
	differ("gateway", want.Gateway.String(), c.Gateway)
	return diff
}

// Subnets returns every subnet of every network of the engine: no name may be
// pinned into one.
func (e *Engine) Subnets(ctx context.Context) ([]netip.Prefix, error) {
	list, err := e.api.NetworkList(ctx, network.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("networks: %w", err)
	}
	var out []netip.Prefix
	for _, n := range list {
		for _, c := range n.IPAM.Config {
			p, err := netip.ParsePrefix(c.Subnet)
			if err != nil {
				return nil, fmt.Errorf("network %s has subnet %q: %w", n.Name, c.Subnet, err)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// used returns the addresses of the corral network that are taken: by running
// containers, and by gates that exist but do not run.
func (e *Engine) used(ctx context.Context, n plan.Network) (map[netip.Addr]bool, error) {
	got, err := e.api.NetworkInspect(ctx, n.Name, network.InspectOptions{})
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", n.Name, err)
	}
	used := map[netip.Addr]bool{}
	for _, c := range got.Containers {
		if p, err := netip.ParsePrefix(c.IPv4Address); err == nil {
			used[p.Addr()] = true
		}
	}
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", labelAddress))})
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	for _, c := range list {
		if a, err := netip.ParseAddr(c.Labels[labelAddress]); err == nil {
			used[a] = true
		}
	}
	return used, nil
}
