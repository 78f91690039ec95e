package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/mount"

	"github.com/corral-sandbox/corral/deploy"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/secret"
	"github.com/corral-sandbox/corral/internal/spec"
)

// parts are the digests of what a container was asked to be, by what a person
// calls each part. What a gate's refresh can change is in none of them, nor is
// what differs from one bring-up to the next without anybody having asked for
// it. In a label they are words like "mounts=0123456789ab".
type parts map[string]string

// Parts as people are told them.
const (
	partPrograms = "corral's own programs"
	partAddress  = "the address"
	partServices = "host services"
	partLookups  = "the way to the name server"
	partLinks    = "links"
	partClass    = "the class of egress"
	partProbes   = "probes"
	partImage    = "the image"
	partCommand  = "the command"
	partVars     = "the environment"
	partSecrets  = "secrets"
	partMounts   = "mounts"
	partGit      = "git"
	partLimits   = "resources"
	partRest     = "how it is confined"
)

// digestLength is how much of a digest tells two requests apart.
const digestLength = 12

func (p parts) set(name string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err)) // requests and documents are data
	}
	sum := sha256.Sum256(b)
	p[name] = hex.EncodeToString(sum[:])[:digestLength]
}

func (p parts) String() string {
	b, err := json.Marshal(map[string]string(p))
	if err != nil {
		panic(err) // strings
	}
	return string(b)
}

// differs are the parts that a label does not have like this, sorted. A label
// that is none has nothing like it.
func (p parts) differs(label string) []string {
	var have map[string]string
	if json.Unmarshal([]byte(label), &have) != nil {
		have = nil
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if have[name] != p[name] {
			out = append(out, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, there := p[name]; !there {
			out = append(out, name)
		}
	}
	return out
}

// gateParts are those of a gate's container and of its document.
func gateParts(g *Gate, r request) parts {
	told := g.planned().Spec
	p := parts{}
	p.set(partPrograms, []any{g.Guests, string(deploy.GateDockerfile)})
	p.set(partAddress, []any{told.Address, told.Gateway, r.network})
	var services, lookups []string
	for _, word := range splitNeeds(r.config.Labels[labelRelays]) {
		if strings.HasSuffix(word, lookupsSuffix) {
			lookups = append(lookups, word)
		} else {
			services = append(services, word)
		}
	}
	p.set(partServices, []any{told.HostPorts, services})
	p.set(partLookups, lookups)
	p.set(partLinks, []any{told.Links, told.Clients, told.Link})
	p.set(partClass, []any{told.Class, told.SinkNames})
	p.set(partProbes, told.Probes)
	// These have parts of their own, or a refresh changes them.
	told.Address, told.Gateway, told.HostPorts, told.Link, told.Links, told.Clients = spec.Gate{}.Address, spec.Gate{}.Gateway, nil, spec.Gate{}.Link, nil, nil
	told.Class, told.SinkNames, told.Probes = "", false, spec.Probes{}
	told.Names, told.Resolvers, told.Never, told.Refresh, told.PinGrace, told.Policy = nil, nil, nil, "", 0, ""
	config, host := *r.config, *r.host
	config.Image, config.Labels, host.Mounts = "", nil, nil
	p.set(partRest, []any{r.name, told, config, host, r.options})
	return p
}

// serviceParts are those of a service's container and of its image. The README
// in the image lists the names, so it is left out.
func serviceParts(g *Gate, s plan.Service, r request) parts {
	p := parts{}
	image := g.Tree.Sub(render.Image(s.Name))
	delete(image, path.Join("corral", "README"))
	p.set(partPrograms, g.Guests)
	p.set(partImage, image.Digest())
	var command []string
	if g.Purpose == PurposeDaemon { // else it is whatever somebody typed
		command = s.Command
	}
	p.set(partCommand, command)
	var vars, secrets []string
	for _, v := range r.config.Env {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case slices.Contains(s.Secrets, name):
			secrets = append(secrets, v)
		case !slices.Contains(s.Passed, name):
			vars = append(vars, v)
		}
	}
	p.set(partVars, vars)
	p.set(partSecrets, secrets)
	var files []uint64 // that are bound: another file under the same name is not what is inside
	for _, m := range s.Mounts {
		if m.Path != g.Plan.PolicyFile {
			files = append(files, m.Ino)
		}
	}
	bound := []any{slices.DeleteFunc(slices.Clone(r.host.Mounts), func(m mount.Mount) bool { return m.Type == mount.TypeVolume }), files}
	if came := below(s.Mounts); len(came) > 0 { // one that is started again would have others
		bound = append(bound, came)
	}
	p.set(partMounts, bound)
	p.set(partGit, s.Git)
	p.set(partLimits, r.host.Resources)
	config, host := *r.config, *r.host
	config.Image, config.Labels, config.Cmd, config.Env = "", nil, nil, nil
	config.Tty, config.OpenStdin, config.StdinOnce, config.AttachStdin = false, false, false, false
	host.Mounts, host.Resources, host.NetworkMode = nil, r.host.Resources, ""
	host.Resources.PidsLimit, host.Resources.Memory, host.Resources.MemorySwap, host.Resources.NanoCPUs = nil, 0, 0, 0
	p.set(partRest, []any{r.name, config, host, r.options})
	return p
}

// Sketch is a gate of a sandbox as it would be made now. Nothing is made.
func (e *Engine) Sketch(guests host.Guests, p *plan.Plan, name, purpose string) (*Gate, error) {
	tree, err := render.Render(p)
	if err != nil {
		return nil, err
	}
	return &Gate{Name: name, Plan: p, Tree: tree, Guests: guestName(guests), Purpose: purpose}, nil
}

// Differs says which parts of a container that is up would be made otherwise
// now, as people call them; empty if none would. What a gate's refresh can
// change does not count.
func (e *Engine) Differs(g *Gate, secrets []secret.Var, m Member) ([]string, error) {
	if m.Role == RoleGate {
		return gateParts(g, e.gateRequest(g, g.Plan.Network, g.planned().Spec.Address)).differs(m.Config), nil
	}
	i := slices.IndexFunc(g.Plan.Services, func(s plan.Service) bool { return s.Name == m.Service })
	if i < 0 {
		return []string{"there is no such service any more"}, nil
	}
	r, err := e.serviceRequest(g, g.Plan.Services[i], secrets, Terminal{})
	if err != nil {
		return nil, err
	}
	return serviceParts(g, g.Plan.Services[i], r).differs(m.Config), nil
}
