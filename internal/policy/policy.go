// Package policy reads corral.yaml. The bytes of the file and what of the
// machine the guards need go in; a Policy comes out, or every mistake at
// once. It resolves no name, writes nothing, and knows nothing of profiles,
// containers or the engine: what a policy asks for is decided elsewhere.
package policy

import (
	"net/netip"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/domain"
)

// FileName is the policy's name in a project.
const FileName = "corral.yaml"

// Policy is one accepted corral.yaml.
type Policy struct {
	File string // real path of the policy file
	Self Mount  // File as the read-only mount over itself that a sandbox gets
	Dir  string // real path of the project directory
	// Project is Dir as the mount that it is by itself in run mode; no part of
	// Mounts, and the zero value in daemon mode.
	Project Mount

	Profile      string
	Name         string
	Mode         Mode
	Mounts       []Mount // in the order written
	Egress       Egress
	HostServices []HostService
	EnvFile      EnvFile // secrets.env_file
	Image        Image
	Resources    Resources
	Git          Git
	Background   []string
	PreLaunch    []Line   // hooks.pre_launch
	Command      []string // profile_options.shell.command
	Hermes       *Hermes  // profile_options.hermes
	Digest       string   // "sha256:" and the hex digest of the very bytes read

	// Origins is where a key was written, by its path like "image.base"; a key
	// that the person left out is not in it. Entries of lists have their own.
	Origins map[string]diag.Pos
}

// Mode is how the sandbox lives. The zero value is no mode.
type Mode int

const (
	Run    Mode = iota + 1 // interactive or one-shot, gone afterwards
	Daemon                 // always on
)

func (m Mode) String() string {
	switch m {
	case Run:
		return "run"
	case Daemon:
		return "daemon"
	}
	return "invalid"
}

// Mount is one host path, found inside at the identical path.
type Mount struct {
	Path     string // absolute, symlinks resolved: what is bound
	Given    string // as written
	ReadOnly bool
	Pos      diag.Pos
	Dev, Ino uint64 // of Path when it was checked
	// Submounts are the mount points below Path: not every engine can make them
	// read-only with it.
	Submounts []string
}

// Egress is what may be reached.
type Egress struct {
	Allow    []Rule // in the order written
	Defaults bool   // add the profile's own list
	Refresh  string // auto or manual
}

// Rule opens TCP ports of one name.
type Rule struct {
	Domain   Domain
	Given    string   // the name as written
	Ports    []uint16 // ascending; empty only with AnyPort
	AnyPort  bool
	Liveness bool           // it must answer at bring-up
	Private  []netip.Prefix // non-public space that it may resolve into
	Soft     bool           // the profile's own: warned about and kept closed if it does not resolve
	Pos      diag.Pos       // of one of the profile's own, File alone: "profile NAME"
}

// HostService is a loopback port of the host, inside as corral-host:Port.
type HostService struct {
	Name string
	Port uint16
	Pos  diag.Pos
}

// EnvFile holds the secrets, whose values nothing here reads. The zero value is
// none.
type EnvFile struct {
	Path  string // absolute, symlinks resolved
	Given string
	Pos   diag.Pos
}

// Image is what the service's image is built from.
type Image struct {
	Base     string // an image reference; DefaultBase if the policy names none
	Packages []Line // Debian's names, each perhaps with =VERSION
	Run      []Line // shell commands, as root, at build time
}

// DefaultBase is the image that services are built from.
const DefaultBase = "debian:bookworm-slim"

// Line is one string of a list.
type Line struct {
	Text string
	Pos  diag.Pos
}

// Resources bound a service. A zero Memory or NanoCPUs is no bound.
type Resources struct {
	Memory   int64 // bytes
	NanoCPUs int64 // thousand-millionths of a processor
	Pids     int64 // DefaultPids if the policy names none
}

// DefaultPids bounds a service's processes: room for compilers, not for a fork
// bomb.
const DefaultPids = 2048

// Git is how repositories at the top of writable mounts are shielded. The zero
// value lets the agent commit and keeps it from what git executes.
type Git struct {
	ConfigWritable bool // git.config: writable
	DirReadOnly    bool // git.dir: ro
}

// Domain is a DNS name in canonical form: lower case, A-labels, no trailing
// dot.
type Domain string

// ParseDomain is domain.Parse as a Domain.
func ParseDomain(s string) (Domain, error) {
	name, err := domain.Parse(s)
	return Domain(name), err
}

// Env is what the guards need to know of the machine.
type Env struct {
	Home string // the user's home directory
	UID  int    // the user
	// Homes are further directories that may be the user's home, guarded alike.
	Homes []string

	// Project is the project directory; empty means the policy's own.
	Project string
	// Profiles are the names that a policy's profile may have.
	Profiles []string
	// ConfigHome and DataHome are the XDG base directories; empty means
	// ~/.config and ~/.local/share. The directories corral in them are ours.
	ConfigHome, DataHome string
	// Own are further directories of corral that no sandbox may see.
	Own []string
}
