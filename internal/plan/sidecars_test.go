package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

// hermesPlan plans a sandbox of profile hermes with all that a person of this machine
// has: a mount, a secret, an image of their own, certificates.
func hermesPlan(t *testing.T, change func(*policy.Policy)) *Plan {
	t.Helper()
	p := hermesPolicy(change)
	p.Name, p.Dir, p.File = "p", "/p", "/p/corral.yaml"
	p.Mounts = []policy.Mount{{Path: "/p/work"}}
	p.Image = policy.Image{Base: "mine:1", Packages: []policy.Line{{Text: "jq"}}, Run: []policy.Line{{Text: "touch /mine"}}}
	prof, err := profile.Load("hermes")
	if err != nil {
		t.Fatal(err)
	}
	h := Host{UID: 1000, GID: 1000, Subnet: DefaultSubnet, Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.53")}, Secrets: []string{"API_KEY"},
		Certificates: [][]byte{[]byte("company")}, Environment: map[string]string{"LANG": "de_DE.UTF-8"}}
	out, err := Build(p, prof, h, Addresses{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What serves the agent has nothing of the person's: no mount, no secret, nothing of
// the image that the policy asks for, and no way to write but in memory.
func TestSidecars(t *testing.T) {
	p := hermesPlan(t, func(p *policy.Policy) { p.Hermes.Researcher, p.Hermes.Fetch = true, true })
	var names []string
	uids := map[uint32]string{0: "root"}
	for i, s := range p.Services {
		names = append(names, s.Name)
		if s.Gate != p.Gates[i].Name || s.Gate != s.Name {
			t.Errorf("%s is behind %s", s.Name, s.Gate)
		}
		if of := uids[s.UID]; of != "" {
			t.Errorf("%s is whom %s is", s.Name, of)
		}
		uids[s.UID] = s.Name
		if s.Name == Main {
			continue
		}
		if len(s.Mounts) > 0 || len(s.Secrets) > 0 || len(s.Passed) > 0 || len(s.Furniture) > 0 || s.Console {
			t.Errorf("%s has of the person's: %+v", s.Name, s)
		}
		if !s.ReadOnly || s.Memory == 0 || s.Pids == 0 || s.Serves == 0 {
			t.Errorf("%s has no bounds: %+v", s.Name, s)
		}
		for _, theirs := range []string{"mine", "jq"} {
			if s.Base != policy.DefaultBase || strings.Contains(string(s.Dockerfile), theirs) {
				t.Errorf("%s has of the policy's image: %s", s.Name, s.Dockerfile)
			}
		}
		if s.Name == Researcher && (len(s.Context["plugins/web/corral/__init__.py"]) == 0 || len(s.Context["build/requirements.txt"]) == 0) {
			t.Errorf("the researcher's plugin or its packages are missing: %v", sortedKeys(s.Context))
		}
		if string(s.Context["ca/corral-001.crt"]) != "company" {
			t.Errorf("%s does not trust the company", s.Name)
		}
		for _, c := range s.Verify {
			if slices.Contains([]string{"env-shadowed", "config-pinned"}, c.Name) {
				t.Errorf("%s: %s", s.Name, c.Name)
			}
		}
		if g := p.Gates[i].Spec; len(g.Clients) != 1 || g.Clients[0].Port != s.Serves {
			t.Errorf("%s serves at %d, its gate lets %v in", s.Name, s.Serves, g.Clients)
		}
	}
	if want := []string{Fetch, Search, Researcher, Main}; !slices.Equal(names, want) {
		t.Errorf("started in the order %v", names)
	}
}

// The researcher is told whom to ask, and asks the model that main asks; the bridge
// takes its document.
func TestResearcherDocument(t *testing.T) {
	for _, fetch := range []bool{true, false} {
		p := hermesPlan(t, func(p *policy.Policy) { p.Hermes.Researcher, p.Hermes.Fetch = true, fetch })
		s := p.Services[slices.IndexFunc(p.Services, func(s Service) bool { return s.Name == Researcher })]
		d, err := spec.ParseResearcher(strings.NewReader(s.Environment[spec.BridgeEnv]))
		if err != nil {
			t.Fatal(err)
		}
		if d.Listen.Port() != spec.BridgePort || d.Search != "http://search:8080" || (d.Fetch == "http://fetch:8766") != fetch {
			t.Errorf("%+v", d)
		}
		for _, dir := range append([]string{"/" + strings.Split(d.Directory, "/")[1]}, d.Scratch...) {
			if dir != "/tmp" && !slices.Contains(s.Scratch, dir) {
				t.Errorf("%s is not in memory", dir)
			}
		}
		if config := d.Home["config.yaml"]; !strings.Contains(config, `base_url: "http://corral-host:8081/v1"`) {
			t.Errorf("its model: %s", config)
		}
		if (slices.ContainsFunc(p.Services, func(s Service) bool { return s.Name == Fetch })) != fetch {
			t.Errorf("fetch: %t", fetch)
		}
	}
}

// Main may call the researcher if there is one, for longer than that may take.
func TestHermesServers(t *testing.T) {
	if got := hermesServers(&policy.Hermes{}); len(got) != 0 {
		t.Errorf("alone: %v", got)
	}
	p := hermesPolicy(func(p *policy.Policy) { p.Hermes.Researcher = true })
	for _, sh := range Shadows(p) {
		if sh.Name == "config.yaml" && !strings.Contains(sh.Content, "http://researcher:8765/mcp") {
			t.Errorf("the console looks for %s", sh.Content)
		}
	}
	config := hermesConfig(p)
	for _, platform := range []string{"cli", "cron"} {
		tools := config["platform_toolsets"].(map[string]any)[platform].([]string)
		if !slices.Contains(tools, Researcher) || slices.Contains(tools, "no_mcp") {
			t.Errorf("%s has %v", platform, tools)
		}
	}
}
