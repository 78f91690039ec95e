package cli

import (
	"context"
	"net/netip"
	"os"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/secret"
	"github.com/corral-sandbox/corral/internal/wayback"
)

// ready lets an accepted policy take hold of this machine as far as its plan
// needs: the secrets are read, the hooks run if they are asked for, and the
// repositories shielded.
func (a *app) ready(ctx context.Context, p *project, hooks bool) error {
	// What cannot be planned is not asked about.
	if _, err := plan.Build(p.policy, p.profile, p.host, netip.Addr{}, nil); err != nil {
		return err
	}
	if err := a.accept(ctx, p); err != nil {
		return err
	}
	if file := p.policy.EnvFile; file.Path != "" {
		owners := []uint32{p.host.UID}
		if os.Geteuid() == 0 {
			owners = append(owners, 0)
		}
		vars, err := secret.Load(file.Path, owners...)
		if err != nil {
			return err
		}
		p.secrets = vars
		for _, v := range vars {
			p.host.Secrets = append(p.host.Secrets, v.Name)
		}
	}
	if hooks {
		if err := a.preLaunch(ctx, p); err != nil {
			return err
		}
	}
	p.host.GitName, p.host.GitEmail = host.GitIdentity(ctx, p.host.Homes[0])
	return p.shield()
}

// roots are the directories that the agent may write.
func (p *project) roots() []string {
	var out []string
	for _, m := range append([]policy.Mount{p.policy.Project}, p.policy.Mounts...) {
		if fi, err := os.Lstat(m.Path); m.Path != "" && !m.ReadOnly && err == nil && fi.IsDir() {
			out = append(out, m.Path)
		}
	}
	return out
}

// shield covers what git would execute of the repositories in roots.
func (p *project) shield() error {
	for _, root := range p.roots() {
		binds, err := wayback.Shield(root, wayback.Options{
			ConfigWritable: p.policy.Git.ConfigWritable, DirReadOnly: p.policy.Git.DirReadOnly, UID: p.host.UID, GID: p.host.GID,
		})
		if err != nil {
			return err
		}
		for _, b := range binds {
			p.host.Shields = append(p.host.Shields, plan.Mount{Path: b.Path, ReadOnly: b.ReadOnly, Dev: b.Dev, Ino: b.Ino})
		}
	}
	return nil
}
