package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// ComposeFile is where the compose file is in the tree.
const ComposeFile = "compose.yaml"

// What containers are asked to be, whoever brings them up: the engine, or
// Docker Compose by the file made here.
const (
	// NoNewPrivileges is a security option of every container.
	NoNewPrivileges = "no-new-privileges"

	// LogDriver, LogSize and LogFiles bound what a container can write to the
	// host's disk.
	LogDriver = "json-file"
	LogSize   = "10m"
	LogFiles  = "3"

	// GateTmpfs are the options of a gate's /run.
	GateTmpfs = "rw,nosuid,nodev,noexec,size=1m,mode=0755"
	// GatePids bounds a gate.
	GatePids = plan.GatePids
	// GateResolver is nobody: the engine's own resolver, which no agent may ask,
	// would have nobody to ask but the gate.
	GateResolver = "127.0.0.1"
	// GateGuestDir is where a gate holds the volume of guest binaries, so that it
	// is in use, and cannot be taken away, from before the first service needs it.
	GateGuestDir = "/opt/corral-guest"
	// GateReadyWithin bounds a gate's bring-up: a slow resolver, retried, with room.
	GateReadyWithin = 60 * time.Second

	// ServiceTmpfs are the options of a service's /tmp.
	ServiceTmpfs = "rw,exec,nosuid,nodev,mode=1777"
	// ServiceIPC shares no memory with anybody.
	ServiceIPC = "private"
)

var (
	// GateCapabilities are all that a gate ever holds.
	GateCapabilities = plan.GateCapabilities
	// GateSysctls keep IPv6 out of a gate's namespace. A kernel without IPv6 has
	// none of them.
	GateSysctls = map[string]string{
		"net.ipv6.conf.all.disable_ipv6":     "1",
		"net.ipv6.conf.default.disable_ipv6": "1",
	}
	// Entrypoint is how every service starts.
	Entrypoint = []string{spec.GuestDir + "/bin/corral-verify", "handover", "--"}
)

// Labels by which corral knows a sandbox's containers, whoever made them.
const (
	LabelSandbox   = "dev.corral.sandbox"
	LabelService   = "dev.corral.service"
	LabelRole      = "dev.corral.role"
	LabelAddress   = "dev.corral.address"
	LabelLink      = "dev.corral.link" // a gate's address on the network between the gates
	LabelGate      = "dev.corral.gate" // whose network a service has
	LabelInstance  = "dev.corral.gate-instance"
	LabelPolicy    = "dev.corral.policy-path"
	LabelDigest    = "dev.corral.policy-digest"
	LabelInode     = "dev.corral.policy-inode"
	LabelFurniture = "dev.corral.furniture"
	LabelShields   = "dev.corral.shields"
	LabelPurpose   = "dev.corral.purpose" // what it was brought up for
)

// Roles of a sandbox's containers, and the purpose of one that is there for its
// agent.
const (
	RoleGate    = "gate"
	RoleService = "service"
	RoleLinks   = "links" // of a network
	PurposeRun  = "run"
)

// InMemory are the directories that a service has in memory, with their options.
func InMemory(s plan.Service) map[string]string {
	all := map[string]string{"/tmp": ServiceTmpfs}
	for _, dir := range s.Scratch {
		all[dir] = ServiceTmpfs
	}
	return all
}

// MountsLabel writes mounts down that depend on how the host looked at the
// start, so that they can be proven later: it may look otherwise by then.
func MountsLabel(mounts []plan.Mount) string {
	b, err := json.Marshal(mounts)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// Container is the name of a service's container.
func Container(sandbox, service string) string { return "corral-" + sandbox + "-" + service }

// LinksNetwork is the name of the network between a sandbox's gates.
func LinksNetwork(sandbox string) string { return Container(sandbox, linksKey) }

// GateContainer is the name of a gate's container.
func GateContainer(sandbox, gate string) string { return Container(sandbox, gateKey(gate)) }

// Variables that the compose file takes from the environment of whoever runs
// it, or from the file .env beside it: what is on the machine and no part of a
// plan.
const (
	GateImageVariable   = "CORRAL_GATE_IMAGE"
	GuestVolumeVariable = "CORRAL_GUEST_VOLUME"
)

// ImageVariable names the variable of a Compose file with the image of a service that
// has programs of corral's own in it.
func ImageVariable(service string) string { return "CORRAL_" + shouted(service) + "_IMAGE" }

// JoinVariables are the variables for the instance and the namespace of a gate
// that runs, as "corral-gate status --json" tells them. Without them, no
// service that joins it starts.
func JoinVariables(gate string) (instance, netns string) {
	name := "CORRAL_" + shouted(gate) + "_GATE_"
	return name + "INSTANCE", name + "NETNS"
}

// shouted is a name as variables have it.
func shouted(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}

const composeHead = `# The containers of this sandbox as corral brings them up, for Docker Compose 2.24
# or newer. Made from the policy, which is the place for changes. A test brings
# such a file up and finds what corral verify says of corral's own.
#
# CORRAL_GATE_IMAGE and CORRAL_GUEST_VOLUME are what corral has made here: after
# corral run or corral verify,
#
#   docker image ls corral-gate
#   docker volume ls --filter name=corral-guest-
#
# show them. The gate proves its rules first; each service wants to know which run
# of the gate it joins, as status says it:
#
#   docker compose up --detach --wait main-gate
#   docker compose exec main-gate /opt/corral/bin/corral-gate status --json
#   CORRAL_MAIN_GATE_INSTANCE=... CORRAL_MAIN_GATE_NETNS=... docker compose up --detach main
#   corral verify
#
# corral verify, status and down know the sandbox by its labels. A gate that is
# restarted has a new network: take the service down first, and bring both up anew.
#
# Host services and name servers on this machine's loopback are carried by relays
# that corral makes; there are none here. What corral looks at before it starts a
# sandbox nobody looks at here: that no mount was replaced meanwhile, that nothing is
# mounted in a read-only mount (an engine before Docker 25 leaves that writable), and
# what the repositories were like, so that nobody can tell what the agent changed in
# them that this machine would execute.
#
# Secrets are variables of whoever runs that. No value belongs in this file.
`

// How often Compose asks a gate whether it is ready, and when it stops to
// believe one that was.
const (
	askEvery   = 5 * time.Second
	askWithin  = 10 * time.Second
	askRetries = 3
)

// Compose is a compose file with the containers of a plan: what the engine is
// asked for, asked for by Docker Compose. Strings of the plan are written so
// that Compose takes them as they are; one that no YAML can hold is an error.
func Compose(p *plan.Plan) ([]byte, error) {
	f := composeFile{
		Name:     data("corral-" + p.ID),
		Services: map[string]container{},
		Networks: map[string]network{networkKey: {External: true, Name: data(p.Network.Name)}},
		Volumes: map[string]external{guestKey: {External: true,
			Name: text("${" + GuestVolumeVariable + ":?the volume of guest binaries}")}},
		Configs: map[string]config{},
	}
	if p.Linked() {
		f.Networks[linksKey] = composeLinks(p)
	}
	for _, g := range p.Gates {
		if _, twice := f.Services[gateKey(g.Name)]; twice {
			return nil, fmt.Errorf("%s: two gates are called %q", ComposeFile, g.Name)
		}
		f.Services[gateKey(g.Name)] = composeGate(p, g)
		f.Configs[gateKey(g.Name)] = config{Content: text(verbatim(string(spec.Encode(g.Spec))))}
	}
	for _, s := range p.Services {
		if _, twice := f.Services[s.Name]; twice {
			return nil, fmt.Errorf("%s: two containers are called %q", ComposeFile, s.Name)
		}
		if _, found := f.Configs[gateKey(s.Gate)]; !found {
			return nil, fmt.Errorf("%s: service %q joins gate %q, which is not planned", ComposeFile, s.Name, s.Gate)
		}
		c, err := composeService(p, s)
		if err != nil {
			return nil, fmt.Errorf("%s: service %q: %w", ComposeFile, s.Name, err)
		}
		f.Services[s.Name] = c
	}
	b, err := yaml.Dump(f, yaml.WithV4Defaults(), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ComposeFile, err)
	}
	return append([]byte(composeHead), b...), nil
}

// Keys of the file that are in no plan.
const (
	networkKey = "corral"
	linksKey   = "links"
	guestKey   = "guest"
)

// composeLinks is the network between a plan's gates.
func composeLinks(p *plan.Plan) network {
	n := network{Name: data(LinksNetwork(p.ID)), Internal: true, Labels: map[string]any{
		LabelRole: RoleLinks, LabelSandbox: data(p.ID), LabelPolicy: data(p.PolicyFile)}}
	if p.Links.IsValid() {
		n.IPAM = &ipam{Config: []subnet{{Subnet: p.Links.String()}}}
	}
	return n
}

func gateKey(gate string) string { return gate + "-gate" }

func composeGate(p *plan.Plan, g plan.Gate) container {
	c := container{
		ContainerName: data(GateContainer(p.ID, g.Name)),
		Labels:        labels(p, g.Name, RoleGate),
		// Made here, never fetched: the name is nobody's in a registry.
		Image:       text("${" + GateImageVariable + ":?the gate image}"),
		PullPolicy:  "never",
		Hostname:    data(p.Name),
		Networks:    map[string]endpoint{networkKey: {}},
		DNS:         []string{GateResolver},
		IPC:         ServiceIPC,
		CapDrop:     []string{"ALL"},
		CapAdd:      GateCapabilities,
		SecurityOpt: []string{NoNewPrivileges},
		PidsLimit:   GatePids,
		Sysctls:     GateSysctls,
		Tmpfs:       []string{"/run:" + GateTmpfs},
		Volumes:     []volume{guests(GateGuestDir)},
		Configs:     []configRef{{Source: gateKey(g.Name), Target: spec.GateFile}},
		Logging:     bounded(),
		Healthcheck: &health{
			Test:        []string{"CMD", spec.GuestDir + "/bin/corral-gate", "status"},
			Interval:    askEvery.String(),
			Timeout:     askWithin.String(),
			Retries:     askRetries,
			StartPeriod: GateReadyWithin.String(),
		},
	}
	if g.Spec.Address.IsValid() {
		c.Labels[LabelAddress] = data(g.Spec.Address.String())
		c.Networks[networkKey] = endpoint{IPv4Address: g.Spec.Address.String()}
	}
	if p.Linked() && len(g.Spec.Links)+len(g.Spec.Clients) > 0 {
		c.Networks[linksKey] = endpoint{}
		if g.Link.IsValid() {
			c.Labels[LabelLink] = data(g.Link.String())
			c.Networks[linksKey] = endpoint{IPv4Address: g.Link.String()}
		}
	}
	return c
}

func composeService(p *plan.Plan, s plan.Service) (container, error) {
	told, err := composeHandover(s)
	if err != nil {
		return container{}, err
	}
	environment := map[string]any{}
	for name, value := range s.Environment {
		environment[name] = data(value)
	}
	for _, name := range s.Secrets {
		environment[name] = nil // Compose passes its own on
	}
	for name, value := range map[string]any{spec.HandoverEnv: told, spec.InitEnv: "1"} {
		if _, taken := environment[name]; taken {
			return container{}, fmt.Errorf("variable %s is corral's own", name)
		}
		environment[name] = value
	}
	instance, _ := JoinVariables(s.Gate)
	known := labels(p, s.Name, RoleService)
	known[LabelGate] = data(s.Gate)
	known[LabelInstance] = text("${" + instance + ":-}")
	known[LabelShields], known[LabelFurniture] = data(MountsLabel(s.Shields)), data(MountsLabel(s.Furniture))
	c := container{
		ContainerName: data(Container(p.ID, s.Name)),
		Labels:        known,
		Build:         &build{Context: data("./" + Image(s.Name))},
		PullPolicy:    "build",
		NetworkMode:   data("service:" + gateKey(s.Gate)),
		DependsOn:     map[string]dependency{gateKey(s.Gate): {Condition: "service_healthy"}},
		User:          data(fmt.Sprintf("%d:%d", s.UID, s.GID)), // to some readers, a number of base 60
		Entrypoint:    Entrypoint,
		WorkingDir:    data(s.WorkDir),
		Init:          true,
		IPC:           ServiceIPC,
		CapDrop:       []string{"ALL"},
		SecurityOpt:   []string{NoNewPrivileges, "seccomp=./seccomp.json"},
		PidsLimit:     s.Pids,
		MemLimit:      s.Memory,
		MemSwapLimit:  s.Memory, // nothing more by way of swap
		CPUs:          float64(s.NanoCPUs) / 1e9,
		ReadOnly:      s.ReadOnly,
		Volumes:       []volume{guests(spec.GuestDir)},
		Environment:   environment,
		Logging:       bounded(),
	}
	if len(s.Binaries) > 0 {
		// Made by corral, of programs that no build context in files has.
		c.Build, c.PullPolicy = nil, "never"
		c.Image = text("${" + ImageVariable(s.Name) + ":?the image of " + s.Name + "}")
	}
	memory := InMemory(s)
	for _, dir := range slices.Sorted(maps.Keys(memory)) {
		c.Tmpfs = append(c.Tmpfs, dir+":"+memory[dir])
	}
	for _, word := range s.Command {
		c.Command = append(c.Command, data(word))
	}
	for _, m := range s.Mounts {
		v := volume{Type: "bind", Source: data(m.Path), Target: data(m.Target()), ReadOnly: m.ReadOnly, Bind: &bind{Propagation: "rprivate"}}
		if m.ReadOnly {
			v.Bind.Recursive = "readonly"
		}
		c.Volumes = append(c.Volumes, v)
	}
	return c, nil
}

// composeHandover is a service's document with variables where it says which
// run of the gate is joined. If they are not set, it names none, and handover
// refuses.
func composeHandover(s plan.Service) (text, error) {
	none := spec.GateStatus{}
	b, err := json.Marshal(spec.Handover{Version: spec.Version, Service: s.Name, Checks: plan.Join(s.Handover, none)})
	if err != nil {
		return "", err
	}
	gap, err := json.Marshal(spec.Joined{Instance: none.Instance, NetNS: none.NetNS})
	if err != nil {
		return "", err
	}
	instance, netns := JoinVariables(s.Gate)
	// No string of the document can hold the gap: in one, each " has a \ before it.
	return text(strings.Replace(verbatim(string(b)), `"gate":`+string(gap),
		`"gate":{"instance":"${`+instance+`:-}","netns":${`+netns+`:-0}}`, 1)), nil
}

// labels are what corral's own containers of the plan have, but for the process
// that looks after them: here there is none.
func labels(p *plan.Plan, service, role string) map[string]any {
	return map[string]any{
		LabelSandbox: data(p.ID),
		LabelService: data(service),
		LabelRole:    role,
		LabelPolicy:  data(p.PolicyFile),
		LabelDigest:  data(p.Digest),
		LabelInode:   data(p.PolicyInode),
		LabelPurpose: PurposeRun,
	}
}

func guests(target string) volume {
	return volume{Type: "volume", Source: guestKey, Target: data(target), ReadOnly: true, Volume: &volumeOptions{NoCopy: true}}
}

func bounded() *logging {
	return &logging{Driver: LogDriver, Options: map[string]string{"max-size": LogSize, "max-file": LogFiles}}
}

// data is a string of the plan, which Compose is to take as it is.
type data string

// MarshalYAML quotes it, so that no reader sees a number, a null or a comment.
func (d data) MarshalYAML() (any, error) {
	return scalar(verbatim(string(d)), yaml.DoubleQuotedStyle)
}

// text is written as it is, the variables in it for Compose to fill in.
type text string

func (t text) MarshalYAML() (any, error) {
	if strings.Contains(string(t), "\n") {
		return scalar(string(t), yaml.LiteralStyle)
	}
	return scalar(string(t), 0)
}

// verbatim keeps Compose from seeing variables.
func verbatim(s string) string { return strings.ReplaceAll(s, "$", "$$") }

func scalar(s string, style yaml.Style) (*yaml.Node, error) {
	if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
		return nil, fmt.Errorf("%q is not UTF-8, or has a NUL: a compose file cannot hold it", s)
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: style, Value: s}, nil
}

// What of the Compose Specification is needed. A string is a word of ours.
type (
	composeFile struct {
		Name     data                 `yaml:"name"`
		Services map[string]container `yaml:"services"`
		Networks map[string]network   `yaml:"networks"`
		Volumes  map[string]external  `yaml:"volumes"`
		Configs  map[string]config    `yaml:"configs"`
	}
	external struct {
		External bool `yaml:"external"`
		Name     any  `yaml:"name"`
	}
	network struct {
		External bool           `yaml:"external,omitempty"`
		Name     data           `yaml:"name"`
		Internal bool           `yaml:"internal,omitempty"`
		IPAM     *ipam          `yaml:"ipam,omitempty"`
		Labels   map[string]any `yaml:"labels,omitempty"`
	}
	ipam struct {
		Config []subnet `yaml:"config"`
	}
	subnet struct {
		Subnet string `yaml:"subnet"`
	}
	config struct {
		Content text `yaml:"content"`
	}
	container struct {
		ContainerName data                  `yaml:"container_name"`
		Labels        map[string]any        `yaml:"labels"`
		Image         text                  `yaml:"image,omitempty"`
		Build         *build                `yaml:"build,omitempty"`
		PullPolicy    string                `yaml:"pull_policy"`
		Hostname      data                  `yaml:"hostname,omitempty"`
		Networks      map[string]endpoint   `yaml:"networks,omitempty"`
		DNS           []string              `yaml:"dns,omitempty"`
		NetworkMode   data                  `yaml:"network_mode,omitempty"`
		DependsOn     map[string]dependency `yaml:"depends_on,omitempty"`
		User          data                  `yaml:"user,omitempty"`
		Entrypoint    []string              `yaml:"entrypoint,omitempty"`
		Command       []data                `yaml:"command,omitempty"`
		WorkingDir    data                  `yaml:"working_dir,omitempty"`
		Init          bool                  `yaml:"init,omitempty"`
		ReadOnly      bool                  `yaml:"read_only,omitempty"`
		IPC           string                `yaml:"ipc,omitempty"`
		CapDrop       []string              `yaml:"cap_drop"`
		CapAdd        []string              `yaml:"cap_add,omitempty"`
		SecurityOpt   []string              `yaml:"security_opt"`
		PidsLimit     int64                 `yaml:"pids_limit"`
		MemLimit      int64                 `yaml:"mem_limit,omitempty"`
		MemSwapLimit  int64                 `yaml:"memswap_limit,omitempty"`
		CPUs          float64               `yaml:"cpus,omitempty"`
		Sysctls       map[string]string     `yaml:"sysctls,omitempty"`
		Tmpfs         []string              `yaml:"tmpfs"`
		Volumes       []volume              `yaml:"volumes"`
		Configs       []configRef           `yaml:"configs,omitempty"`
		Environment   map[string]any        `yaml:"environment,omitempty"`
		Logging       *logging              `yaml:"logging"`
		Healthcheck   *health               `yaml:"healthcheck,omitempty"`
	}
	build struct {
		Context data `yaml:"context"`
	}
	endpoint struct {
		IPv4Address string `yaml:"ipv4_address,omitempty"`
	}
	dependency struct {
		Condition string `yaml:"condition"`
	}
	volume struct {
		Type     string         `yaml:"type"`
		Source   data           `yaml:"source"`
		Target   data           `yaml:"target"`
		ReadOnly bool           `yaml:"read_only"`
		Bind     *bind          `yaml:"bind,omitempty"`
		Volume   *volumeOptions `yaml:"volume,omitempty"`
	}
	bind struct {
		Propagation    string `yaml:"propagation"`
		CreateHostPath bool   `yaml:"create_host_path"` // never
		Recursive      string `yaml:"recursive,omitempty"`
	}
	volumeOptions struct {
		NoCopy bool `yaml:"nocopy"`
	}
	configRef struct {
		Source string `yaml:"source"`
		Target string `yaml:"target"`
	}
	logging struct {
		Driver  string            `yaml:"driver"`
		Options map[string]string `yaml:"options"`
	}
	health struct {
		Test        []string `yaml:"test"`
		Interval    string   `yaml:"interval"`
		Timeout     string   `yaml:"timeout"`
		Retries     int      `yaml:"retries"`
		StartPeriod string   `yaml:"start_period"`
	}
)
