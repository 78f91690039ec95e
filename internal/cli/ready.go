package cli

import (
	"context"
	"os"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

// begin takes a project to where its sandbox can be brought up, and keeps others
// from doing the same until unlock is called. What is up already is said before
// anything is asked, and what an earlier run left is told and cleared away.
func (a *app) begin(ctx context.Context, e *engine.Engine, p *project, to purpose) (unlock func(), err error) {
	if err := e.Clear(ctx, p.policy.File); err != nil {
		return nil, err
	}
	if err := a.agreed(ctx, p); err != nil {
		return nil, err
	}
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	unlock, err = state.Lock(home, p.id())
	if err != nil {
		return nil, err
	}
	err = e.Clear(ctx, p.policy.File) // again: now nobody comes between
	if err == nil {
		err = e.SweepTools(ctx)
	}
	left := false
	if err == nil {
		left, err = untold(p.policy.File)
	}
	if err == nil {
		err = a.leftBehind(ctx, p)
	}
	if err == nil && left && to == toStart && len(p.policy.PreLaunch) > 0 {
		err = exit.Failedf("look at it, then corral run again", "the commands of hooks.pre_launch did not run: the run before was cut short, and they may read what it left (told above, as far as it is known)")
	}
	if err == nil {
		err = a.ready(ctx, p, to)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// agreed asks for a yes where one is needed. What cannot be planned is not
// asked about.
func (a *app) agreed(ctx context.Context, p *project) error {
	if _, err := plan.Build(p.policy, p.profile, p.host, plan.Addresses{}, nil); err != nil {
		return err
	}
	return a.accept(ctx, p)
}

// purpose is how far an accepted policy takes hold of this machine.
type purpose int

const (
	toRead  purpose = iota // files are written out, to be read
	toBuild                // images are built
	toHeal                 // a sandbox starts, without hooks
	toStart                // a sandbox starts from nothing, with hooks
)

// ready lets an accepted policy take hold of this machine as far as its plan
// needs: the secrets are read, the hooks run before a start, the profile gets
// its state unless files are only written out, and the repositories are
// shielded. What can be refused comes before what is made.
func (a *app) ready(ctx context.Context, p *project, to purpose) error {
	if !p.accepted {
		return errNotAccepted
	}
	vars, err := p.variables()
	if err != nil {
		return err
	}
	p.secrets, p.host.Secrets = vars, names(vars)
	// What a sandbox that is up has of these may be there already.
	p.shields, p.host.Shields, p.host.Furniture, p.host.Submounts = nil, nil, nil, nil
	if p.host.Certificates, err = trusted(p.set); err != nil {
		return err
	}
	// A hook may run git: not in a repository that could not be shielded.
	if err := p.eachRepository(wayback.Shieldable); err != nil {
		return err
	}
	if to == toStart {
		if err := a.preLaunch(ctx, p); err != nil {
			return err
		}
		a.hooked = true
	}
	if to == toRead {
		err = p.furnished()
	} else {
		err = a.furnish(p)
	}
	if err != nil {
		return err
	}
	p.host.GitName, p.host.GitEmail = host.GitIdentity(ctx, p.host.Homes[0])
	if err := p.shield(); err != nil {
		return err
	}
	a.timings.lap("policy accepted; secrets, hooks, state, shields")
	return nil
}

// identity is what of this machine and of the person an image is built with.
func (p *project) identity(ctx context.Context) (err error) {
	p.host.GitName, p.host.GitEmail = host.GitIdentity(ctx, p.host.Homes[0])
	p.host.Certificates, err = trusted(p.set)
	return err
}

// writable are the mounts that the agent may write, as far as they are there.
func (p *project) writable() []policy.Mount {
	var out []policy.Mount
	for _, m := range append([]policy.Mount{p.policy.Project}, p.policy.Mounts...) {
		if m.Path != "" && !m.ReadOnly {
			out = append(out, m)
		}
	}
	return out
}

// mounted are their paths.
func (p *project) mounted() []string {
	var out []string
	for _, m := range p.writable() {
		out = append(out, m.Path)
	}
	return out
}

// roots are the directories among them.
func (p *project) roots() []string {
	var out []string
	for _, m := range p.writable() {
		if fi, err := os.Lstat(m.Path); err == nil && fi.IsDir() {
			out = append(out, m.Path)
		}
	}
	return out
}

// shield covers what git would execute of the repositories in roots.
func (p *project) shield() error {
	return p.eachRepository(func(root string, o wayback.Options) error {
		shields, err := wayback.Shield(root, o)
		p.shields = append(p.shields, shields...)
		for _, b := range shields {
			p.host.Shields = append(p.host.Shields, plan.Mount{Path: b.Path, ReadOnly: b.ReadOnly, Dev: b.Dev, Ino: b.Ino, Born: b.Born})
		}
		return err
	})
}

func (p *project) eachRepository(do func(root string, o wayback.Options) error) error {
	git := p.policy.Git
	for _, root := range p.roots() {
		if err := do(root, wayback.Options{ConfigWritable: git.ConfigWritable, DirReadOnly: git.DirReadOnly, UID: p.host.UID, GID: p.host.GID}); err != nil {
			return err
		}
	}
	return nil
}
