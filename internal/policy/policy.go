// Package policy reads corral.yaml. The bytes of the file and what of the
// machine the guards need go in; a Policy comes out, or every mistake at
// once. It resolves no name, writes nothing, and knows nothing of profiles,
// containers or the engine: what a policy asks for is decided elsewhere.
package policy

import (
	"net/netip"

	"github.com/corral-sandbox/corral/internal/diag"
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

	Profile string
	Name    string
	Mode    Mode
	Mounts  []Mount // in the order written
	Egress  Egress
	Command []string // profile_options.shell.command
	Digest  string   // "sha256:" and the hex digest of the very bytes read
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
	Pos      diag.Pos
}

// Domain is a DNS name in canonical form: lower case, A-labels, no trailing
// dot.
type Domain string

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
