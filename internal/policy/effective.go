package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Effective is what a policy amounts to with the profile's own part filled in:
// what a person accepts, what is kept of it, and what a later policy is
// compared with. Equal policies have equal values, whatever their text looks
// like: lists whose order means nothing are sorted. It is kept as JSON, strictly
// decoded.
type Effective struct {
	Version int    `json:"version"` // EffectiveVersion
	Digest  string `json:"digest"`  // of the bytes; not compared

	File         string             `json:"file"` // of the policy
	Project      string             `json:"project"`
	Profile      string             `json:"profile"`
	Name         string             `json:"name"`
	Mode         string             `json:"mode"`
	Command      []string           `json:"command"` // what runs when nothing is named on the command line
	Mounts       []EffectiveMount   `json:"mounts"`  // the project itself included, in run mode; by Path
	Egress       []EffectiveRule    `json:"egress"`  // by Domain
	Refresh      string             `json:"refresh"`
	HostServices []EffectiveService `json:"host_services"` // by Port
	EnvFile      string             `json:"env_file"`      // resolved
	Base         string             `json:"base"`
	Packages     []string           `json:"packages"` // sorted
	Run          []string           `json:"run"`      // in order
	Memory       int64              `json:"memory"`   // bytes, 0: no bound
	NanoCPUs     int64              `json:"nano_cpus"`
	Pids         int64              `json:"pids"`
	GitConfig    string             `json:"git_config"` // ro, writable
	GitDir       string             `json:"git_dir"`    // rw, ro
	Background   []string           `json:"background"` // sorted
	PreLaunch    []string           `json:"pre_launch"` // in order
	Hermes       EffectiveHermes    `json:"hermes"`     // zero for other profiles
	// What the profile takes of the person's, as ~/… and where that leads to:
	// directories that the agent can read, and files that are copied once.
	ProfileReads  []string `json:"profile_reads"`
	ProfileCopies []string `json:"profile_copies"`
}

// EffectiveVersion changes when an older record would mean something else.
const EffectiveVersion = 3

// EffectiveMount is one host path as it is bound.
type EffectiveMount struct {
	Path     string `json:"path"` // resolved
	ReadOnly bool   `json:"read_only"`
}

// EffectiveRule opens TCP ports of one name.
type EffectiveRule struct {
	Domain   string         `json:"domain"`
	Ports    []uint16       `json:"ports"` // ascending; empty only with AnyPort
	AnyPort  bool           `json:"any_port"`
	Liveness bool           `json:"liveness"`
	Private  []netip.Prefix `json:"private"` // sorted
	Soft     bool           `json:"soft"`
}

// EffectiveService is a loopback port of the host.
type EffectiveService struct {
	Name string `json:"name"`
	Port uint16 `json:"port"`
}

// EffectiveHermes are the options of profile hermes.
type EffectiveHermes struct {
	BaseURL    string   `json:"base_url"`
	Model      string   `json:"model"`
	Context    int      `json:"context_length"`
	Researcher bool     `json:"researcher"`
	Fetch      bool     `json:"fetch"`
	Search     string   `json:"search_image"` // empty: the one that corral builds
	Approvals  string   `json:"approvals"`
	Deny       []string `json:"approvals_deny"` // sorted
}

func (h *Hermes) effective() EffectiveHermes {
	if h == nil {
		return EffectiveHermes{}
	}
	return EffectiveHermes{
		BaseURL: h.Model.BaseURL, Model: h.Model.Name, Context: h.Model.Context,
		Researcher: h.Researcher, Fetch: h.Fetch, Search: h.Search,
		Approvals: h.Approvals, Deny: texts(h.Deny),
	}
}

// Defaults are what the profile adds to a policy.
type Defaults struct {
	Profile string
	Command []string
	Egress  []string // names, TCP 443 and 80, soft
	Reads   []Lent   // directories of the person's, read-only
	Copies  []Lent   // files of the person's, copied into a new state
	State   []string // directories of the agent's, as ~/…, kept between runs
}

// Lent is something of the person's that a profile asks for.
type Lent struct {
	Path string // as ~/…
	Real string // where that leads to on this machine
}

func (l Lent) text() string { return l.Path + " (" + l.Real + ")" }

func lent(all []Lent) []string {
	var out []string
	for _, l := range all {
		out = append(out, l.text())
	}
	return out
}

// Rules are all that the policy opens: its own in the order written, then the
// profile's, of names that the person did not write.
func (p *Policy) Rules(d Defaults) []Rule {
	rules := slices.Clone(p.Egress.Allow)
	if !p.Egress.Defaults {
		return rules
	}
	known := make(map[Domain]bool, len(rules)+len(d.Egress))
	for _, r := range rules {
		known[r.Domain] = true
	}
	for _, name := range d.Egress {
		if known[Domain(name)] {
			continue
		}
		known[Domain(name)] = true
		rules = append(rules, Rule{
			Domain: Domain(name),
			Given:  name,
			Ports:  []uint16{80, 443},
			Soft:   true,
			Pos:    diag.Pos{File: "profile " + d.Profile},
		})
	}
	return rules
}

// Allows is the first rule that opens the TCP port of exactly that name, if
// there is one.
func Allows(rules []Rule, name Domain, port uint16) (Rule, bool) {
	for _, r := range rules {
		if r.Domain == name && port != 0 && (r.AnyPort || slices.Contains(r.Ports, port)) {
			return r, true
		}
	}
	return Rule{}, false
}

// Effective is what the policy amounts to with the profile's part.
func (p *Policy) Effective(d Defaults) Effective {
	e := Effective{
		Version:    EffectiveVersion,
		Digest:     p.Digest,
		File:       p.File,
		Project:    p.Dir,
		Profile:    p.Profile,
		Name:       p.Name,
		Mode:       p.Mode.String(),
		Command:    p.Command,
		Refresh:    p.Egress.Refresh,
		EnvFile:    p.EnvFile.Path,
		Base:       p.Image.Base,
		Packages:   texts(p.Image.Packages),
		Run:        texts(p.Image.Run),
		Memory:     p.Resources.Memory,
		NanoCPUs:   p.Resources.NanoCPUs,
		Pids:       p.Resources.Pids,
		GitConfig:  p.Git.config(),
		GitDir:     p.Git.dir(),
		Background: p.Background,
		PreLaunch:  texts(p.PreLaunch),
		Hermes:     p.Hermes.effective(),

		ProfileReads:  lent(d.Reads),
		ProfileCopies: lent(d.Copies),
	}
	if len(e.Command) == 0 {
		e.Command = d.Command
	}
	if p.Mode == Run && p.Project.Path != "" {
		e.Mounts = append(e.Mounts, EffectiveMount{p.Project.Path, p.Project.ReadOnly})
	}
	for _, m := range p.Mounts {
		e.Mounts = append(e.Mounts, EffectiveMount{m.Path, m.ReadOnly})
	}
	for _, r := range p.Rules(d) {
		e.Egress = append(e.Egress, r.effective())
	}
	for _, s := range p.HostServices {
		e.HostServices = append(e.HostServices, EffectiveService{s.Name, s.Port})
	}
	return e.canonical()
}

func (r Rule) effective() EffectiveRule {
	return EffectiveRule{
		Domain:   string(r.Domain),
		Ports:    r.Ports,
		AnyPort:  r.AnyPort,
		Liveness: r.Liveness,
		Private:  r.Private,
		Soft:     r.Soft,
	}
}

func (g Git) config() string {
	if g.ConfigWritable {
		return "writable"
	}
	return "ro"
}

func (g Git) dir() string {
	if g.DirReadOnly {
		return "ro"
	}
	return "rw"
}

func texts(lines []Line) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = l.Text
	}
	return out
}

// canonical is e with every list there, and in the order that its comment
// gives. It shares nothing with e.
func (e Effective) canonical() Effective {
	e.Command = ordered(e.Command, nil)
	e.Mounts = ordered(e.Mounts, func(a, b EffectiveMount) int {
		return cmp.Or(byPath(a, b), compareBool(a.ReadOnly, b.ReadOnly))
	})
	e.Egress = ordered(e.Egress, byDomain)
	for i := range e.Egress {
		r := &e.Egress[i]
		r.Ports = slices.Compact(ordered(r.Ports, cmp.Compare))
		if r.AnyPort {
			r.Ports = []uint16{}
		}
		r.Private = slices.Compact(ordered(r.Private, comparePrefix))
	}
	e.HostServices = ordered(e.HostServices, func(a, b EffectiveService) int {
		return cmp.Or(byPort(a, b), cmp.Compare(a.Name, b.Name))
	})
	e.Packages = ordered(e.Packages, cmp.Compare)
	e.Run = ordered(e.Run, nil)
	e.Background = ordered(e.Background, cmp.Compare)
	e.PreLaunch = ordered(e.PreLaunch, nil)
	e.Hermes.Deny = ordered(e.Hermes.Deny, cmp.Compare)
	e.ProfileReads = ordered(e.ProfileReads, cmp.Compare)
	e.ProfileCopies = ordered(e.ProfileCopies, cmp.Compare)
	return e
}

// ordered is a sorted copy of s, never nil; without compare the order stays.
func ordered[T any](s []T, compare func(a, b T) int) []T {
	s = append([]T{}, s...)
	if compare != nil {
		slices.SortStableFunc(s, compare)
	}
	return s
}

func byPath(a, b EffectiveMount) int   { return cmp.Compare(a.Path, b.Path) }
func byDomain(a, b EffectiveRule) int  { return cmp.Compare(a.Domain, b.Domain) }
func byPort(a, b EffectiveService) int { return cmp.Compare(a.Port, b.Port) }

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// Encode is e as JSON; equal values give equal bytes.
func (e Effective) Encode() []byte { return spec.Encode(e.canonical()) }

// DecodeEffective reads exactly what Encode writes, white space aside: a field
// that is missing, unknown, there twice or out of order is an error, and so
// is another version. What is not known to have been accepted was not.
func DecodeEffective(b []byte) (Effective, error) {
	var written struct{ Version int }
	if err := json.Unmarshal(b, &written); err != nil {
		return Effective{}, err
	}
	if written.Version != EffectiveVersion {
		return Effective{}, fmt.Errorf("the record has version %d, this corral reads version %d", written.Version, EffectiveVersion)
	}
	var e Effective
	if err := spec.Decode(bytes.NewReader(b), &e); err != nil {
		return Effective{}, err
	}
	var got, want bytes.Buffer
	if err := errors.Join(json.Compact(&got, b), json.Compact(&want, e.Encode())); err != nil {
		return Effective{}, err
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		return Effective{}, errors.New("the record is not as corral writes it")
	}
	return e, nil
}

// ProjectOf is the project that a record is about. It says nothing of what was accepted:
// a record of another version, or with more than this corral knows, has one too.
func ProjectOf(b []byte) (string, error) {
	var written struct{ Project string }
	if err := json.Unmarshal(b, &written); err != nil {
		return "", err
	}
	if written.Project == "" {
		return "", errors.New("the record names none")
	}
	return written.Project, nil
}
