package policy

import "net/netip"

// Effective is what a policy amounts to with the profile's own part filled in:
// what a person accepts, what is kept of it, and what a later policy is
// compared with. Equal policies have equal values, whatever their text looks
// like: lists whose order means nothing are sorted. It is kept as JSON, strictly
// decoded.
type Effective struct {
	Version int    `json:"version"` // EffectiveVersion
	Digest  string `json:"digest"`  // of the bytes; not compared

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
}

// EffectiveVersion changes when an older record would mean something else.
const EffectiveVersion = 1

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

// Defaults are what the profile adds to a policy.
type Defaults struct {
	Profile string
	Command []string
	Egress  []string // names, TCP 443 and 80, soft
}
