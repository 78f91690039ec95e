// Package plan turns a policy into the only description of a sandbox: its
// gates, services, addresses, mounts, and the checks that will prove it.
// Policy, profile, facts of the host and free addresses go in, a Plan comes
// out. Nothing happens, and nothing downstream looks at the policy again.
package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Host is what a plan needs to know of the machine.
type Host struct {
	UID, GID uint32   // whose agent it is
	Homes    []string // that person's home on the host, by whatever record
	CPUs     int      // processors; 0 if that is not known
	// Resolvers are the name servers to pin with, in order. Those on loopback are
	// asked through a relay.
	Resolvers []netip.Addr
	Probes    spec.Probes
	Subnet    netip.Prefix   // all of corral's addresses on this machine
	Never     []netip.Prefix // addresses of the host and of Docker's networks
	// Environment is passed to the agent as it is: terminal and locale.
	Environment map[string]string
	// GitName and GitEmail are who commits, if that is known.
	GitName, GitEmail string
	// Secrets are the names that the policy's env_file gives, in its order.
	Secrets []string
	// Certificates, in PEM, are trusted inside beside what the image trusts.
	Certificates [][]byte
	// Furniture is what of the person's and of corral's own the profile brings.
	Furniture []Mount
	// Shields cover what of the repositories in writable mounts git would execute.
	Shields []Mount
	// Submounts are those below the mounts of the policy, by their paths, as they were
	// when a sandbox was made; nil: as they were when the policy was read.
	Submounts map[string][]string
}

// Plan is one sandbox.
type Plan struct {
	ID         string
	Name       string
	Profile    string
	PolicyFile string
	Project    string
	Digest     string // of the policy's bytes
	// PolicyInode is the file that is bound over itself, as Inode writes it;
	// empty if the policy is in none of the mounts.
	PolicyInode string
	Network     Network
	// Links is the network between the gates, which leads nowhere else; zero if no
	// service may call another one's.
	Links netip.Prefix
	// Gates are in the order in which they are started, as are the services: who is
	// called comes before who calls.
	Gates    []Gate
	Services []Service
	// Relays must answer before the gates are started.
	Relays []Relay
}

// Gate owns the network namespace of the services that join it.
type Gate struct {
	Name string
	Spec spec.Gate
	// Link is the gate's address on the network between the gates, if it is on that.
	Link   netip.Addr
	Verify []spec.Check // proves its own container
}

// Needs reports whether a gate needs what a relay carries.
func (g Gate) Needs(r Relay) bool {
	if len(r.DNS) > 0 {
		return slices.Contains(g.Spec.Resolvers, g.Spec.Gateway)
	}
	return slices.Contains(g.Spec.HostPorts, r.Port)
}

// Linked reports whether a service may call another one's.
func (p *Plan) Linked() bool {
	return slices.ContainsFunc(p.Gates, func(g Gate) bool { return len(g.Spec.Links) > 0 })
}

// Service is one container with a job.
type Service struct {
	Name string
	Gate string // the gate whose namespace it joins

	UID, GID    uint32
	Command     []string
	Environment map[string]string
	Passed      []string // variables of Environment that are whatever whoever brings it up has
	Secrets     []string // variables whose values only the engine is given
	WorkDir     string   // where Command starts
	Mounts      []Mount  // all of them, what holds others first
	Furniture   []Mount  // those of Mounts that the profile brings
	Shields     []Mount  // those of Mounts that cover parts of a repository
	Git         string   // what of repositories they leave writable, in words
	Memory      int64    // bytes, 0: no bound
	NanoCPUs    int64    // 0: no bound
	Pids        int64

	// Console says that it is on a terminal, which people come to and leave.
	Console bool
	// Serves is the TCP port that it listens on once it is up, for those who may call
	// it; 0 if it serves nobody.
	Serves uint16
	// ReadOnly says that its root cannot be written, but for what is in memory: /tmp and
	// Scratch.
	ReadOnly bool
	Scratch  []string // further directories in memory

	Base       string // the image that Dockerfile builds on
	Dockerfile []byte
	Asked      []string          // the keys of the policy that say what is in it beside the profile's own
	Readme     []byte            // baked as /etc/corral/README
	GitConfig  []byte            // baked as /etc/gitconfig
	Context    map[string][]byte // what else Dockerfile reads, by its path in the build context

	// Binaries are those of corral's own that Dockerfile puts in it: in bin of the build
	// context, where the engine puts them.
	Binaries []string

	RootOwned []string // what of the image the agent must not be able to change

	Handover []spec.Check // must hold before the first instruction of Command
	Verify   []spec.Check // proves the whole
}

// Mount binds a path of the host, at the same path inside unless Inside says
// otherwise.
type Mount struct {
	Path     string
	Inside   string // where it is inside, if that is another path
	ReadOnly bool
	Dev, Ino uint64
	Born     int64 // when it was made, of a shield; 0 if that is not known
	// Submounts are mounted below Path: with ReadOnly they must be so as well.
	Submounts []string
}

// Target is where a mount is inside.
func (m Mount) Target() string { return cmp.Or(m.Inside, m.Path) }

// Relay carries what gates ask of one port of the gateway's address to
// loopback of the host. One serves all sandboxes that need it.
type Relay struct {
	Port uint16
	// DNS are the name servers on loopback that lookups, by UDP and TCP, are
	// carried to. If there are none, TCP is carried to 127.0.0.1 at Port.
	DNS    []netip.Addr
	Verify []spec.Check // proves its own container
}

// ErrNoResolver is a policy with names on a machine without a usable resolver.
type ErrNoResolver struct{ Names int }

func (e ErrNoResolver) Error() string {
	return fmt.Sprintf("the policy lists %d names and this machine has no name server to pin them with", e.Names)
}

// unplannable are the places of a policy that ask for what cannot be brought
// up: on this machine, or by this version.
func unplannable(p *policy.Policy, h Host) error {
	var all diag.List
	refuse := func(at diag.Pos, hint, format string, args ...any) {
		all = append(all, diag.Diagnostic{Pos: at, Kind: "policy error", Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	if most := int64(h.CPUs) * 1e9; most > 0 && p.Resources.NanoCPUs > most {
		refuse(p.Origins["resources.cpus"], fmt.Sprintf("write %d, or less", h.CPUs), "resources.cpus is more than this machine has: %d", h.CPUs)
	}
	if p.Hermes != nil && p.Hermes.Search != "" {
		refuse(p.Origins["profile_options.hermes.search_image"], "remove it: corral builds one of Debian's searx", "profile_options.hermes.search_image is not in this version: nobody has tried such an image here")
	}
	if len(p.Background) > 0 {
		refuse(p.Origins["background"], "remove it", "background is not in this version: nothing would run")
	}
	for _, m := range p.Mounts {
		if !m.ReadOnly && p.File != "" && (m.Path == p.File || m.Ino == p.Self.Ino && m.Dev == p.Self.Dev && m.Ino != 0) {
			refuse(m.Pos, "list it under ro, or not at all", "the policy itself cannot be writable: the agent would write what the next start obeys")
		}
	}
	return all.Err()
}

// Main is the service that runs the harness, and its gate.
const Main = "main"

// ID names the sandbox of a policy file: unique on a machine, stable.
func ID(name, file string) string {
	sum := sha256.Sum256([]byte(file))
	return name + "-" + hex.EncodeToString(sum[:4])
}

// Of reports whether an ID is that of a policy file's sandbox, under whatever
// name.
func Of(id, file string) bool { return strings.HasSuffix(id, ID("", file)) }

// Build plans a sandbox at free addresses; args, if any, replace the profile's and the
// policy's command.
func Build(p *policy.Policy, prof *profile.Profile, h Host, at Addresses, args []string) (*Plan, error) {
	network, err := Divide(h.Subnet)
	if err != nil {
		return nil, err
	}
	if err := at.check(network); err != nil {
		return nil, err
	}
	if err := unplannable(p, h); err != nil {
		return nil, err
	}
	names := grants(p.Rules(Defaults(prof)))
	if len(names) > 0 && len(h.Resolvers) == 0 {
		return nil, ErrNoResolver{len(names)}
	}
	dockerfile, err := prof.Dockerfile(profile.Image{
		Base: p.Image.Base, UID: h.UID, GID: h.GID,
		Packages: texts(p.Image.Packages), Run: texts(p.Image.Run), Certificates: len(h.Certificates) > 0,
	})
	if err != nil {
		return nil, err
	}
	resolvers, upstream := outside(h.Resolvers, network.Gateway)
	gates := topology(p, h, network, at, names, resolvers)
	gate := gates[len(gates)-1]
	carried := relays(p)
	if lookups := (Relay{Port: dnsPort, DNS: upstream}); len(upstream) > 0 && slices.ContainsFunc(gates, func(g Gate) bool { return g.Needs(lookups) }) {
		carried = append(carried, lookups)
	}
	bound, err := mounts(p, h)
	if err != nil {
		return nil, err
	}
	built, err := context(p, prof, h)
	if err != nil {
		return nil, err
	}
	svc := Service{
		Name:        Main,
		Gate:        Main,
		UID:         h.UID,
		GID:         h.GID,
		Command:     command(p, prof, args),
		Environment: environment(prof, h, gate.Spec.Sandbox),
		Passed:      sortedKeys(h.Environment),
		Secrets:     h.Secrets,
		WorkDir:     workDir(p.Dir, bound),
		Mounts:      bound,
		Furniture:   h.Furniture,
		Shields:     h.Shields,
		Console:     true,
		Git:         fmt.Sprintf("config writable: %t, .git read-only: %t", p.Git.ConfigWritable, p.Git.DirReadOnly),
		Memory:      p.Resources.Memory,
		NanoCPUs:    p.Resources.NanoCPUs,
		Pids:        p.Resources.Pids,
		Base:        p.Image.Base,
		Dockerfile:  dockerfile,
		Asked:       asked(p.Image),
		GitConfig:   gitConfig(p, h),
		Context:     built,
		RootOwned:   prof.RootOwned,
	}
	services, err := sidecars(p, prof, h, gates)
	if err != nil {
		return nil, err
	}
	services = append(services, svc)
	for i, s := range services {
		g := gates[slices.IndexFunc(gates, func(g Gate) bool { return g.Name == s.Gate })]
		if s.Name == Main {
			services[i].Readme = readme(p, g.Spec, s)
		}
		services[i].Handover = handover(g.Spec, s)
		services[i].Verify = verify(p, h, g, s, gates)
	}
	for i, g := range gates {
		gates[i].Verify = gateChecks(g.Spec)
	}
	for i := range carried {
		carried[i].Verify = relayChecks(carried[i], network.Gateway)
	}
	planned := &Plan{
		ID:         gate.Spec.Sandbox,
		Name:       p.Name,
		Profile:    prof.Name,
		PolicyFile: p.File,
		Project:    p.Dir,
		Digest:     p.Digest,
		Network:    network,
		Links:      at.Links,
		Gates:      gates,
		Services:   services,
		Relays:     carried,
	}
	if slices.ContainsFunc(bound, func(m Mount) bool { return m.Path == p.File }) {
		planned.PolicyInode = Inode(p.Self.Dev, p.Self.Ino)
	}
	return planned, nil
}

// Inode names a file whatever path leads to it, on one machine until it boots
// again.
func Inode(dev, ino uint64) string { return fmt.Sprintf("%d:%d", dev, ino) }

// Defaults are what a profile adds to a policy, but for what it asks of the
// person's, which depends on the machine.
func Defaults(prof *profile.Profile) policy.Defaults {
	return policy.Defaults{Profile: prof.Name, Command: prof.Command, Egress: prof.Egress, State: prof.State}
}

// grants are the rules as the gate is told.
func grants(rules []policy.Rule) []spec.Name {
	var out []spec.Name
	for _, r := range rules {
		origin := r.Pos.File
		if r.Pos.Line > 0 {
			origin = fmt.Sprintf("%s:%d", filepath.Base(r.Pos.File), r.Pos.Line)
		}
		out = append(out, spec.Name{
			Domain:   string(r.Domain),
			Ports:    r.Ports,
			AnyPort:  r.AnyPort,
			Private:  r.Private,
			Liveness: r.Liveness,
			Soft:     r.Soft,
			Origin:   origin,
		})
	}
	return out
}

func texts(lines []policy.Line) []string {
	var out []string
	for _, l := range lines {
		out = append(out, l.Text)
	}
	return out
}

// asked are the keys that say what else is in an image.
func asked(img policy.Image) []string {
	var keys []string
	if img.Base != policy.DefaultBase {
		keys = append(keys, "image.base")
	}
	if len(img.Packages) > 0 {
		keys = append(keys, "image.packages")
	}
	if len(img.Run) > 0 {
		keys = append(keys, "image.run")
	}
	return keys
}

func command(p *policy.Policy, prof *profile.Profile, args []string) []string {
	switch {
	case len(args) > 0:
		return args
	case len(p.Command) > 0:
		return p.Command
	}
	return prof.Command
}

func environment(prof *profile.Profile, h Host, sandbox string) map[string]string {
	env := map[string]string{
		"HOME":           Home,
		"USER":           "agent",
		"CORRAL_SANDBOX": sandbox,
	}
	maps.Copy(env, prof.Environment)
	for k, v := range h.Environment {
		env[k] = v
	}
	return env
}

// context is what the image's Dockerfile reads beside what the plan writes out.
func context(p *policy.Policy, prof *profile.Profile, h Host) (map[string][]byte, error) {
	files := prof.Context(Home)
	if p.Hermes != nil {
		governing, err := hermesFiles(p)
		if err != nil {
			return nil, err
		}
		maps.Copy(files, governing)
	}
	trust(files, h)
	return files, nil
}
