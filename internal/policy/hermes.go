package policy

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Hermes is profile_options.hermes: what the Hermes profile cannot know by itself.
type Hermes struct {
	Model      Model
	Researcher bool   // a Hermes of its own that searches and reads the web
	Fetch      bool   // and may read pages whole
	Search     string // the image of the search engine; empty: the one that corral builds
	Approvals  string // of commands: manual, smart or off
	Deny       []Line // commands that nobody may approve, as globs
	Pos        diag.Pos
}

// Model is whom Hermes asks for answers: an endpoint with the OpenAI API.
type Model struct {
	BaseURL string
	Host    string // of BaseURL: corral-host, or a name that egress.allow opens
	Port    uint16 // of BaseURL
	Name    string
	Context int // tokens
}

// Words of profile_options.hermes.approvals.
const (
	ApprovalsManual = "manual"
	ApprovalsSmart  = "smart"
	ApprovalsOff    = "off"
)

// minContext is what Hermes itself refuses less than, in tokens.
const (
	minContext = 64_000
	maxContext = 100_000_000
)

func (d *decoder) hermes(n *yaml.Node, path string) *Hermes {
	h := &Hermes{Approvals: ApprovalsManual, Pos: d.pos(n)}
	var fetch, search *yaml.Node
	d.mapping(n, path,
		key{"model", func(n *yaml.Node) { h.Model = d.model(n, path+".model") }},
		key{"researcher", func(n *yaml.Node) { h.Researcher, _ = d.boolean(n, path+".researcher") }},
		key{"fetch", func(n *yaml.Node) { fetch = n; h.Fetch, _ = d.boolean(n, path+".fetch") }},
		key{"search_image", func(n *yaml.Node) { search = n; h.Search = d.searchImage(n, path+".search_image") }},
		key{"approvals", func(n *yaml.Node) {
			words := []string{ApprovalsManual, ApprovalsSmart, ApprovalsOff}
			if i := d.oneOf(n, path+".approvals", words...); i >= 0 {
				h.Approvals = words[i]
			}
		}},
		key{"approvals_deny", func(n *yaml.Node) {
			h.Deny = d.scripts(n, path+".approvals_deny")
			for i, glob := range n.Content {
				d.literal(glob, fmt.Sprintf("%s.approvals_deny[%d]", path, i), glob.Value)
			}
		}},
	)
	if fetch == nil {
		h.Fetch = h.Researcher
	}
	if !h.Researcher && fetch != nil && h.Fetch {
		d.errorf(fetch, "write researcher: true, or remove fetch", "%s.fetch without a researcher: nobody else reads pages", path)
	}
	if !h.Researcher && search != nil {
		d.errorf(search, "write researcher: true, or remove search_image", "%s.search_image without a researcher: nobody else searches", path)
	}
	return h
}

// variable is what Hermes puts the value of a variable in place of.
var variable = regexp.MustCompile(`\$\{[^}]+\}`)

// literal refuses a text that Hermes would not take as it is written.
func (d *decoder) literal(n *yaml.Node, path, s string) {
	if found := variable.FindString(s); found != "" {
		d.errorf(n, "write * for it, or what it stands for", "%s: Hermes would put the value of a variable in place of %s", path, found)
	}
}

const modelHint = `write model: {base_url: "http://corral-host:8081/v1", name: NAME, context_length: 65536}`

func (d *decoder) model(n *yaml.Node, path string) (m Model) {
	met := d.mapping(n, path,
		key{"base_url", func(n *yaml.Node) { d.baseURL(n, path+".base_url", &m) }},
		key{"name", func(n *yaml.Node) {
			s, ok := d.text(n, path+".name")
			if ok && strings.TrimSpace(s) == "" {
				d.errorf(n, "write what the endpoint calls the model", "%s.name is empty", path)
			}
			d.literal(n, path+".name", s)
			m.Name = s
		}},
		key{"context_length", func(n *yaml.Node) { m.Context = d.contextLength(n, path+".context_length") }},
	)
	if n.Kind == yaml.MappingNode && n.Style&yaml.TaggedStyle == 0 {
		for _, k := range []string{"base_url", "name", "context_length"} {
			if !met[k] {
				d.errorf(n, modelHint, "%s has no %s", path, k)
			}
		}
	}
	return m
}

// baseURL takes a URL apart as far as the fence needs it: who is asked, on which port.
func (d *decoder) baseURL(n *yaml.Node, path string, m *Model) {
	s, ok := d.text(n, path)
	if !ok {
		return
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		d.errorf(n, "write it like http://corral-host:8081/v1", "%s: %q is not an http or https URL", path, s)
		return
	case u.User != nil:
		d.errorf(n, "give the key in secrets.env_file", "%s holds a user or a password, and a policy no secrets", path)
		return
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		d.errorf(n, "write the URL up to its path", "%s: %q has a query or a fragment", path, s)
		return
	}
	port := map[string]uint16{"http": 80, "https": 443}[u.Scheme]
	if given := u.Port(); given != "" {
		v, err := strconv.ParseUint(given, 10, 16)
		if err != nil || v == 0 || strconv.FormatUint(v, 10) != given {
			d.errorf(n, "ports go from 1 to 65535", "%s: %q is not a port", path, given)
			return
		}
		port = uint16(v)
	}
	host := u.Hostname()
	if host != spec.HostName {
		name, err := ParseDomain(host)
		if err != nil {
			d.errorf(n, "a model on this machine is http://corral-host:PORT/v1, with PORT under host_services", "%s: %v", path, err)
			return
		}
		if string(name) != host {
			d.errorf(n, fmt.Sprintf("write %s", strings.Replace(s, host, string(name), 1)), "%s: %q is %s", path, host, name)
			return
		}
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("'\"\\$`", r) }) {
		d.errorf(n, "write those characters as percent escapes", "%s: %q has characters that Hermes takes for something else", path, s)
		return
	}
	m.BaseURL, m.Host, m.Port = s, host, port
}

func (d *decoder) contextLength(n *yaml.Node, path string) int {
	if n.Kind != yaml.ScalarNode || null(n) {
		d.is(n, path, "a number", yaml.ScalarNode)
		return 0
	}
	v, err := strconv.Atoi(n.Value)
	switch {
	case n.Style != 0 || !digits.MatchString(n.Value) || err != nil || v > maxContext:
		d.errorf(n, "write it like 65536", "%s is a number of tokens in plain digits, this is %s", path, shown(n))
	case v < minContext:
		d.errorf(n, fmt.Sprintf("start the model with %d or more", minContext), "%s is %d, and Hermes refuses less than %d", path, v, minContext)
	}
	return v
}

func (d *decoder) searchImage(n *yaml.Node, path string) string {
	s := d.imageBase(n, path)
	if ref, err := reference.ParseNormalizedNamed(s); err == nil && reference.IsNameOnly(ref) {
		d.errorf(n, "name a tag, or better a digest", "%s: %q names no version, so nobody knows what would run", path, s)
	}
	return s
}

// together complains about what fits each on its own: a model that the fence keeps
// Hermes from, and a profile without what it cannot do without.
func (d *decoder) together(p *Policy) {
	if p.Profile != "hermes" {
		return
	}
	if p.Hermes == nil {
		d.errorf(d.profileNode, "write profile_options: {hermes: {model: …}}; corral init --profile hermes has an example",
			"profile hermes does not know which model to ask: profile_options.hermes.model")
		return
	}
	if p.Hermes.Model == (Model{}) {
		d.report(p.Hermes.Pos, modelHint, "profile_options.hermes has no model")
	}
	m, at := p.Hermes.Model, p.Origins["profile_options.hermes.model.base_url"]
	switch {
	case m.BaseURL == "":
	case m.Host == spec.HostName:
		if !slices.ContainsFunc(p.HostServices, func(s HostService) bool { return s.Port == m.Port }) {
			d.report(at, fmt.Sprintf("write host_services: [{name: model, port: %d}]", m.Port),
				fmt.Sprintf("the model is on port %d of this machine, which host_services does not list", m.Port))
		}
	default:
		if _, open := Allows(p.Egress.Allow, Domain(m.Host), m.Port); !open {
			d.report(at, fmt.Sprintf("list it under egress.allow: {domain: %s, ports: [%d]}", m.Host, m.Port),
				fmt.Sprintf("the model is %s, port %d, which egress.allow does not open", m.Host, m.Port))
		}
	}
}
