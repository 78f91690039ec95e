package spec

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// Check is one assertion. Its Name is public; the part before a colon is its
// kind and says which of the other fields it reads.
type Check struct {
	Name string `json:"name"`

	Host  string       `json:"host,omitempty"`
	Addr  netip.Addr   `json:"addr,omitzero"`
	Addrs []netip.Addr `json:"addrs,omitempty"`
	Port  uint16       `json:"port,omitempty"`
	Ports []uint16     `json:"ports,omitempty"`
	Names []string     `json:"names,omitempty"`
	Path  string       `json:"path,omitempty"`
	Paths []string     `json:"paths,omitempty"`
	UID   uint32       `json:"uid,omitempty"`
	GID   uint32       `json:"gid,omitempty"`
	Mount []Mount      `json:"mount,omitempty"`
	Limit int64        `json:"limit,omitempty"`
	Files []File       `json:"files,omitempty"`
	// Values are settings by their names.
	Values map[string]any `json:"values,omitempty"`

	Probes *Probes `json:"probes,omitempty"`
	Gate   *Joined `json:"gate,omitempty"`

	// Skip, when set, is why the check does not apply here.
	Skip string `json:"skip,omitempty"`
}

// SecretMin is how long a secret must be to be looked for, in bytes: anything
// shorter is found in files that have nothing to do with it.
const SecretMin = 8

// Kind is the part of the name before the first colon.
func (c Check) Kind() string {
	kind, _, _ := strings.Cut(c.Name, ":")
	return kind
}

// Joined identifies the gate whose namespace a service must share.
type Joined struct {
	Instance string `json:"instance"`
	NetNS    uint64 `json:"netns"`
}

// Mount is a bind that the plan gave a service, with the identity that corral
// saw on the host.
type Mount struct {
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Dev      uint64 `json:"dev,omitempty"`
	Ino      uint64 `json:"ino,omitempty"`
}

// File is a file with all that it holds, or an empty directory.
type File struct {
	Path    string `json:"path"`
	Dir     bool   `json:"dir,omitempty"`
	Content string `json:"content,omitempty"`
}

// Verify is the list that corral-verify gets on standard input, once per run.
type Verify struct {
	Version int     `json:"version"`
	Service string  `json:"service"`
	Checks  []Check `json:"checks"`
}

// ParseVerify decodes and checks a Verify document. An empty list is an error:
// it would prove nothing and pass.
func ParseVerify(r io.Reader) (Verify, error) {
	var v Verify
	if err := Decode(r, &v); err != nil {
		return Verify{}, fmt.Errorf("verify spec: %w", err)
	}
	if err := checkVersion("verify spec", v.Version); err != nil {
		return Verify{}, err
	}
	return v, checkList("verify spec", v.Checks)
}

// Handover is what must hold before a harness is started. It travels in the
// environment variable HandoverEnv, which handover removes.
type Handover struct {
	Version int     `json:"version"`
	Service string  `json:"service"`
	Checks  []Check `json:"checks"`
	// Console says that the harness has a terminal that nobody sits at yet.
	Console bool `json:"console,omitempty"`
}

// ParseHandover decodes and checks a Handover document.
func ParseHandover(r io.Reader) (Handover, error) {
	var h Handover
	if err := Decode(r, &h); err != nil {
		return Handover{}, fmt.Errorf("handover spec: %w", err)
	}
	if err := checkVersion("handover spec", h.Version); err != nil {
		return Handover{}, err
	}
	return h, checkList("handover spec", h.Checks)
}

func checkList(what string, checks []Check) error {
	if len(checks) == 0 {
		return fmt.Errorf("%s: no checks", what)
	}
	seen := map[string]bool{}
	for _, c := range checks {
		if c.Name == "" {
			return fmt.Errorf("%s: a check without a name", what)
		}
		if seen[c.Name] {
			return fmt.Errorf("%s: %s is listed twice", what, c.Name)
		}
		seen[c.Name] = true
	}
	return nil
}
