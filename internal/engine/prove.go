package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Proof is what all checks of a plan gave: a section for each gate, each relay and
// each service, in the plan's order, and with what they were made.
type Proof struct {
	Sections []report.Section
	Purpose  string            // what the sandbox was brought up for
	Versions map[string]string // engine, api, kernel, and each gate's
	Digests  map[string]string // policy, document, rules, guests, seccomp, and image:SECTION
}

// Standing says which containers a plan's gates and services are, by their names
// there.
type Standing struct {
	Gates, Services map[string]string
}

// StandingOf is that of the containers of a sandbox that is up.
func StandingOf(members []Member) Standing {
	up := Standing{Gates: map[string]string{}, Services: map[string]string{}}
	for _, m := range members {
		switch m.Role {
		case RoleGate:
			up.Gates[m.Service] = m.ID
		case RoleService:
			up.Services[m.Service] = m.ID
		}
	}
	return up
}

// Prove proves a sandbox that is up: every gate, relay and service beside the
// others. What could not be told of one is told in its own section, and costs no
// other one anything. The only error is the end of ctx.
func (e *Engine) Prove(ctx context.Context, g *Gate, guests host.Guests, up Standing) (*Proof, error) {
	defer e.waiting("proving the fence")()
	proof := &Proof{Purpose: g.Purpose, Versions: map[string]string{}, Digests: map[string]string{}}
	image, imageErr := g.Image, error(nil)
	if image == "" {
		image, imageErr = e.gateName(ctx, guests)
	}
	if imageErr != nil {
		image = "" // image-as-built cannot tell
	}
	var mu sync.Mutex
	note := func(title string, o *own) {
		mu.Lock()
		defer mu.Unlock()
		if o != nil {
			proof.add(title, o, len(g.Plan.Gates) == 1)
		}
	}
	beside := e.beside(ctx, slices.Concat(slices.Collect(maps.Values(up.Gates)), slices.Collect(maps.Values(up.Services)))...)
	var all []subject
	for _, planned := range g.Plan.Gates {
		title := gateTitle(g.Plan, planned)
		all = append(all, subject{title, func(ctx context.Context) (report.Section, error) {
			id := up.Gates[planned.Name]
			if id == "" {
				return report.Section{}, errNotUp
			}
			section, o := e.proveGate(ctx, title, g, planned, id, image, guests, beside)
			note(title, o)
			return section, nil
		}})
	}
	relays := sync.OnceValues(func() ([]container.Summary, error) { return e.ours(ctx, labelRole+"="+RoleRelay) })
	for _, r := range g.Plan.Relays {
		title := fmt.Sprintf("%s-%d", RoleRelay, r.Port)
		all = append(all, subject{title, func(ctx context.Context) (report.Section, error) {
			have, err := relays()
			if err != nil {
				return report.Section{}, err
			}
			section, o := e.proveRelay(ctx, title, g.Plan, r, have, image, guests, beside)
			note(title, o)
			return section, nil
		}})
	}
	for _, s := range g.Plan.Services {
		all = append(all, subject{s.Name, func(ctx context.Context) (report.Section, error) {
			gate, id := up.Gates[s.Gate], up.Services[s.Name]
			if gate == "" || id == "" {
				return report.Section{}, errNotUp
			}
			if got, _ := e.inspect(ctx, id); got != nil {
				note(s.Name, &own{got: got})
			}
			of := *g
			of.Name, of.ID = s.Gate, gate
			return e.Verify(ctx, &of, id, s, beside)
		}})
	}
	proof.Digests["policy"] = g.Plan.Digest
	if b := g.Tree["seccomp.json"]; len(b) > 0 {
		proof.Digests["seccomp"] = digestOf(b)
	}
	if len(guests) > 0 {
		proof.Digests["guests"] = "sha256:" + guestTree(guests).Digest()
	}
	versions := make(chan map[string]string, 1)
	go func() { versions <- e.versions(ctx) }()
	proof.Sections = sideBySide(ctx, all)
	for _, s := range proof.Sections {
		for i, ev := range s.Events {
			s.Events[i].Hint = cmp.Or(ev.Hint, remedy(ev))
		}
	}
	for name, v := range <-versions {
		proof.Versions[name] = v
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return proof, nil
}

// remade are the kinds of checks that what is made anew passes: nothing that runs can
// be brought back to how it was made.
var remade = []string{"container-as-planned", "image-as-built", "programs-as-built", "mounts-only-declared", "read-only-root", "diff-expected",
	"capabilities-exact", "no-capabilities", "no-new-privs", "seccomp-on", "pids-limited", "memory-limited", "cpus-limited", "no-port-published",
	"no-listener-for-outsiders", "same-netns-as-gate", "namespace-as-made", "document-as-planned", "rules-as-read", "rules-as-granted",
	"processes-expected", "processes-confined"}

// roomier is what to do where the agent has as many processes as it may have.
const roomier = "fewer processes inside, or a larger resources.pids"

// remedy is what a person can do about a check that does not hold, empty if no more is
// known than what is in its line.
func remedy(ev spec.Event) string {
	kind := (spec.Check{Name: ev.Check}).Kind()
	switch {
	case ev.Result != spec.Failed && ev.Result != spec.Untold:
	case strings.Contains(ev.Detail, spec.Crowded):
		return roomier
	case kind == "allowed" && !strings.Contains(ev.Detail, "by rule") && !strings.Contains(ev.Detail, "no record"): // else it is the gate's doing
		return "see that who is allowed answers on that port, or take it out of egress.allow"
	case ev.Result == spec.Untold:
	case slices.Contains(remade, kind):
		return "corral down, then corral up or corral run makes anew what is not as planned"
	case kind == "host-service":
		return "start what listens there on this machine, or take it out of host_services; where the relay to it is gone, corral up or the next run makes it anew"
	case kind == "no-strangers":
		return "docker rm --force takes away what is not the sandbox's"
	}
	return ""
}

// errNotUp is a container of a plan that is not up.
var errNotUp = errors.New("it is not up")

// gateTitle is what a gate's section is called: gate, where there is one only.
func gateTitle(p *plan.Plan, g plan.Gate) string {
	if len(p.Gates) == 1 {
		return RoleGate
	}
	return g.Name + "-" + RoleGate
}

// add takes from what was seen of one container what the head of a report shows.
func (p *Proof) add(title string, o *own, alone bool) {
	if o.got != nil && o.got.ContainerJSONBase != nil && o.got.Image != "" {
		p.Digests["image:"+title] = o.got.Image
	}
	if o.status == nil {
		return
	}
	of := ""
	if !alone {
		of = ":" + title
	}
	for name, digest := range map[string]string{"rules": o.status.ReadBack, "document": o.status.Document} {
		if digest != "" {
			p.Digests[name+of] = digest
		}
	}
	if o.status.Release != "" {
		p.Versions[title] = o.status.Release
	}
}

// versions are those of the engine and of this machine, as far as they are told.
func (e *Engine) versions(ctx context.Context) map[string]string {
	all := map[string]string{}
	said, err := e.said(ctx, "")
	if err != nil {
		return all
	}
	for name, v := range map[string]string{"engine": said.info.ServerVersion, "api": said.api, "kernel": said.kernel} {
		if v != "" {
			all[name] = v
		}
	}
	return all
}

// subject is one container to be proven.
type subject struct {
	title string
	prove func(context.Context) (report.Section, error)
}

// sideBySide proves all at once, and gives a section for each, in their order. An
// error is a section that could not be told.
func sideBySide(ctx context.Context, all []subject) []report.Section {
	sections := make([]report.Section, len(all))
	var each sync.WaitGroup
	for i, s := range all {
		each.Go(func() {
			section, err := s.prove(ctx)
			if err != nil {
				section = notTold(s.title, err)
			}
			section.Service = cmp.Or(section.Service, s.title)
			sections[i] = section
		})
	}
	each.Wait()
	return sections
}

// notTold is a section of which nothing is known but why, and what to do about that.
func notTold(title string, err error) report.Section {
	section := report.NotTold(title, Plain(err.Error()))
	if known := (*exit.Error)(nil); errors.As(err, &known) {
		section.Hint = known.Hint
	}
	return section
}

// digestOf is written as all digests of a report are.
func digestOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
