package cli

import (
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
)

// settings are this machine's choices with the defaults filled in, and the
// network that follows from them.
func settings() (host.Settings, plan.Network, error) {
	set, err := host.FromEnvironment()
	if err != nil {
		return set, plan.Network{}, exit.Invalidf("", "%w", err)
	}
	if !set.Subnet.IsValid() {
		set.Subnet = plan.DefaultSubnet
	}
	if set.Resolvers == nil {
		set.Resolvers = host.Resolvers()
	}
	network, err := plan.Divide(set.Subnet)
	if err != nil {
		return set, plan.Network{}, exit.Invalidf("", "%w", err)
	}
	return set, network, nil
}
