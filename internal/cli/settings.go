package cli

import (
	"context"
	"net/netip"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
)

// wished are this machine's choices as the person made them. The subnet is
// zero if they left it to corral.
func wished() (host.Settings, error) {
	set, err := host.FromEnvironment()
	if err == nil && set.Subnet.IsValid() {
		_, err = plan.Divide(set.Subnet)
	}
	if err != nil {
		return set, exit.Invalidf("", "%w", err)
	}
	return set, nil
}

// settings are this machine's choices with the defaults filled in, and the
// network that follows from them: all that can be said without an engine.
// With one, inForce knows better.
func settings() (host.Settings, plan.Network, error) {
	set, err := wished()
	if err != nil {
		return set, plan.Network{}, err
	}
	if !set.Subnet.IsValid() {
		set.Subnet = plan.DefaultSubnet
	}
	if set.Resolvers == nil {
		set.Resolvers = host.Resolvers()
	}
	network, err := plan.Divide(set.Subnet)
	return set, network, err
}

// inForce is the corral network of this machine and the whole subnet that it
// is a half of: what the person asks for, else what corral install chose. The
// engine is the record of that.
func inForce(ctx context.Context, e *engine.Engine) (plan.Network, netip.Prefix, error) {
	set, err := wished()
	if err != nil {
		return plan.Network{}, netip.Prefix{}, err
	}
	return e.Network(ctx, set.Subnet)
}
