package cli

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// wish is what a person chose for this machine, the probes completed.
type wish struct {
	host.Settings
	origins map[string]string // of what was chosen: config.yaml:LINE, or a variable
}

// wishes are the choices of who runs corral: in the environment, else in the
// settings file.
func wishes() (wish, error) {
	uid := host.Caller()
	home := host.Homes(uid)[0]
	env, err := host.FromEnvironment(home)
	if err != nil {
		return wish{}, exit.Invalidf("", "%w", err)
	}
	file, at, err := policy.LoadSettings(host.SettingsFile(home), home, uid)
	if err != nil {
		return wish{}, err
	}
	w := wish{env.Or(file).Or(host.Settings{Probes: spec.DefaultProbes()}), map[string]string{}}
	for _, key := range file.Keys() {
		w.origins[key] = fmt.Sprintf("%s:%d", filepath.Base(at[key].File), at[key].Line)
	}
	for _, key := range env.Keys() {
		w.origins[key] = host.Variable(key)
	}
	if w.Subnet.IsValid() {
		if _, err := plan.Divide(w.Subnet); err != nil {
			return wish{}, exit.Invalidf("", "%s: %w", w.origins["subnet"], err)
		}
	}
	return w, nil
}

// wished are this machine's choices as the person made them. The subnet is
// zero if they left it to corral, and so are the resolvers and the CA bundle if
// they named none.
func wished() (host.Settings, error) {
	w, err := wishes()
	return w.Settings, err
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
