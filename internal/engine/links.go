package engine

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
)

// WrongLinks is a network between gates that is not as corral makes it. No gate is
// ever put on another one.
type WrongLinks struct {
	Name        string
	Differences []string
}

func (e *WrongLinks) Error() string {
	return fmt.Sprintf("network %s is not as it must be: %s", e.Name, strings.Join(e.Differences, "; "))
}

// ensureLinks makes the network between a plan's gates if it is missing, and returns
// its subnet. The caller holds the machine-wide lock: the engine makes two of one name.
func (e *Engine) ensureLinks(ctx context.Context, p *plan.Plan) (netip.Prefix, error) {
	name := render.LinksNetwork(p.ID)
	got, err := e.api.NetworkInspect(ctx, name, network.InspectOptions{})
	switch {
	case err == nil:
		subnet, diff := linksDiff(p, got)
		if len(diff) > 0 {
			return netip.Prefix{}, &WrongLinks{name, diff}
		}
		return subnet, nil
	case !errdefs.IsNotFound(err):
		return netip.Prefix{}, fmt.Errorf("network %s: %w", name, err)
	}
	taken, err := e.Subnets(ctx)
	if err != nil {
		return netip.Prefix{}, err
	}
	for {
		subnet, err := p.Network.FreeLinks(taken)
		if err != nil {
			return netip.Prefix{}, err
		}
		err = e.createLinks(ctx, p, subnet)
		if err == nil || !poolTaken(err) {
			return subnet, err
		}
		taken = append(taken, subnet) // by a route of this machine, say
	}
}

func (e *Engine) createLinks(ctx context.Context, p *plan.Plan, subnet netip.Prefix) error {
	no := false
	_, err := e.api.NetworkCreate(ctx, render.LinksNetwork(p.ID), network.CreateOptions{
		Driver:     "bridge",
		EnableIPv6: &no,
		Internal:   true,
		IPAM: &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{
			Subnet: subnet.String(), Gateway: subnet.Addr().Next().String(),
		}}},
		Labels: map[string]string{labelRole: render.RoleLinks, labelSandbox: p.ID, labelPolicy: p.PolicyFile},
	})
	if err != nil {
		return fmt.Errorf("network %s (%v): %w", render.LinksNetwork(p.ID), subnet, err)
	}
	return nil
}

// linksDiff is the subnet of a network between gates, and how it differs from what
// corral makes for a plan.
func linksDiff(p *plan.Plan, got network.Inspect) (netip.Prefix, []string) {
	var diff differences
	diff.compare("driver", "bridge", got.Driver)
	diff.compare("scope", "local", got.Scope)
	diff.compare("IPv6", "false", fmt.Sprint(got.EnableIPv6))
	diff.compare("internal", "true", fmt.Sprint(got.Internal))
	diff.compare("sandbox", p.ID, got.Labels[labelSandbox])
	if n := len(got.IPAM.Config); n != 1 {
		return netip.Prefix{}, append(diff, fmt.Sprintf("it has %d subnets, not 1", n))
	}
	subnet, err := netip.ParsePrefix(got.IPAM.Config[0].Subnet)
	if err != nil || subnet.Bits() != plan.LinkBits || !p.Network.LinkRange().Contains(subnet.Addr()) {
		return netip.Prefix{}, append(diff, fmt.Sprintf("subnet is %q, not a /%d of %v", got.IPAM.Config[0].Subnet, plan.LinkBits, p.Network.LinkRange()))
	}
	return subnet, diff
}

// link puts a created gate on the network between its plan's gates, if it is planned
// to be on that. An engine before API 1.44 makes a container with one network only.
func (e *Engine) link(ctx context.Context, g *Gate) error {
	at := g.planned().Link
	if !at.IsValid() {
		return nil
	}
	name := render.LinksNetwork(g.Plan.ID)
	err := e.api.NetworkConnect(ctx, name, g.ID, &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: at.String()}})
	if err != nil {
		return e.unlessTakenDown(ctx, g.ID, fmt.Errorf("network %s: %w", name, err))
	}
	return nil
}

// unlink removes the networks between gates that no container is on any more, of one
// sandbox or, for an empty name, of all. One that comes into use meanwhile stays.
func (e *Engine) unlink(ctx context.Context, sandbox string) error {
	label := labelSandbox
	if sandbox != "" {
		label += "=" + sandbox
	}
	list, err := e.api.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelRole+"="+render.RoleLinks), filters.Arg("label", label))})
	if err != nil {
		return fmt.Errorf("networks: %w", err)
	}
	for _, n := range list {
		if !strings.HasPrefix(n.Name, mark) {
			continue
		}
		err := e.api.NetworkRemove(ctx, n.ID)
		if err != nil && !errdefs.IsNotFound(err) && !inUse(err) {
			return fmt.Errorf("network %s: %w", n.Name, err)
		}
	}
	return nil
}

// inUse reports whether the engine keeps a network because containers are on it.
func inUse(err error) bool { return strings.Contains(err.Error(), "has active endpoints") }
