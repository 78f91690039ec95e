package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"strings"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Whom a sidecar runs as: nobody of the machine, and nobody else of the sandbox.
const (
	researcherUID = 64995
	fetchUID      = 64996
	searchUID     = 64997
)

// What a sidecar may use. Its places in memory count as memory.
const (
	researcherMemory = 2 << 30
	searchMemory     = 1 << 30
	fetchMemory      = 256 << 20 // six hostile pages take half of it

	researcherPids = 512
	searchPids     = 256
	fetchPids      = 128
)

// Places of the researcher's. Each call has a directory in calls; what else can be
// written is emptied with it.
const (
	calls  = "/research"
	shared = "/dev/shm"
	hermes = "/opt/hermes/bin/hermes"
	bridge = "/usr/local/bin/corral-bridge"
)

// sidecars are the services beside main, each behind a gate of its own, in the order in
// which they are started. They have no mount, no secret, nothing of the policy's image,
// and a root that cannot be written.
func sidecars(p *policy.Policy, prof *profile.Profile, h Host, gates []Gate) ([]Service, error) {
	var out []Service
	for _, g := range gates {
		make, found := map[string]func() (Service, error){
			Researcher: func() (Service, error) { return researcher(p, prof) },
			Search:     func() (Service, error) { return search(), nil },
			Fetch:      func() (Service, error) { return fetch(), nil },
		}[g.Name]
		if !found {
			continue
		}
		s, err := make()
		if err != nil {
			return nil, err
		}
		s.Name, s.Gate, s.GID = g.Name, g.Name, s.UID
		s.WorkDir, s.ReadOnly = "/", true
		s.GitConfig = []byte("# nobody commits here\n")
		s.Readme = fmt.Appendf(nil, "This is the %s of a corral sandbox (%s), behind a gate of its own.\n", s.Name, g.Spec.Sandbox)
		s.Base = policy.DefaultBase
		dockerfile, files, err := prof.Sidecar(g.Name, profile.Image{Base: s.Base, UID: s.UID, GID: s.GID, Certificates: len(h.Certificates) > 0})
		if err != nil {
			return nil, err
		}
		s.Dockerfile = dockerfile
		s.Context = maps.Clone(files)
		if g.Name == Researcher {
			maps.Copy(s.Context, prof.Inputs())
		}
		trust(s.Context, h)
		out = append(out, s)
	}
	return out, nil
}

func search() Service {
	return Service{
		UID:         searchUID,
		Command:     []string{"/usr/bin/searx-run"},
		Environment: map[string]string{"HOME": Home, "PATH": "/usr/bin:/bin", "SEARX_SETTINGS_PATH": "/etc/searx/settings.yml"},
		Memory:      searchMemory, Pids: searchPids,
		Serves:    searchPort,
		RootOwned: []string{"/etc/searx/settings.yml", "/usr/bin/searx-run", "/usr/lib/python3/dist-packages/searx"},
	}
}

func fetch() Service {
	return Service{
		UID:         fetchUID,
		Command:     []string{"/bin/corral-fetch", "serve"},
		Environment: map[string]string{"HOME": Home, "CORRAL_FETCH_LISTEN": netip.AddrPortFrom(netip.IPv4Unspecified(), fetchPort).String()},
		Memory:      fetchMemory, Pids: fetchPids,
		Serves:    fetchPort,
		Binaries:  []string{"corral-fetch"},
		RootOwned: []string{"/bin/corral-fetch"},
	}
}

// researcher answers main's questions by a bridge, which runs a Hermes of its own for
// each.
func researcher(p *policy.Policy, prof *profile.Profile) (Service, error) {
	home, err := researcherConfig(p, prof)
	if err != nil {
		return Service{}, err
	}
	document := spec.Researcher{
		Version: spec.Version,
		Listen:  netip.AddrPortFrom(netip.IPv4Unspecified(), researcherPort),
		Command: []string{hermes, "-z", spec.BridgePrompt, "-t", "web", "--usage-file", spec.BridgeUsage},
		Environment: map[string]string{
			"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8",
			"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1",
		},
		Home:      map[string]string{"config.yaml": home},
		Directory: path.Join(calls, "calls"),
		Scratch:   []string{"/tmp", shared},
		Search:    fmt.Sprintf("http://%s:%d", Search, searchPort),
	}
	if p.Hermes.Fetch {
		document.Fetch = fmt.Sprintf("http://%s:%d", Fetch, fetchPort)
	}
	return Service{
		UID:         researcherUID,
		Command:     []string{bridge, "serve"},
		Environment: map[string]string{"HOME": Home, spec.BridgeEnv: string(spec.Encode(document))},
		Memory:      researcherMemory, Pids: researcherPids,
		Serves:    researcherPort,
		Scratch:   []string{calls, shared},
		Binaries:  []string{"corral-bridge"},
		RootOwned: []string{bridge, "/opt/hermes"},
	}, nil
}

// researcherConfig is what each researcher's Hermes begins with: the profile's file, and
// whom it asks.
func researcherConfig(p *policy.Policy, prof *profile.Profile) (string, error) {
	_, files, err := prof.Sidecar(Researcher, profile.Image{Base: policy.DefaultBase, UID: researcherUID})
	if err != nil {
		return "", err
	}
	model, err := pinnedYAML(map[string]any{"model": hermesModel(p.Hermes)})
	if err != nil {
		return "", fmt.Errorf("the configuration of the researcher: %w", err)
	}
	return strings.TrimRight(string(files["config.yaml"]), "\n") + "\n" + string(model), nil
}

// trust adds a company's own certificates to a build context.
func trust(context map[string][]byte, h Host) {
	for i, c := range h.Certificates {
		context[fmt.Sprintf("ca/corral-%03d.crt", i+1)] = c
	}
}
