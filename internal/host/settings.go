package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/moby/term"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Settings are the choices made once per machine. What is zero was left open.
type Settings struct {
	Subnet netip.Prefix
	// Resolvers are usable by CheckResolver, in the order in which to ask them.
	Resolvers []netip.Addr
	Probes    spec.Probes
	CABundle  string // an absolute path
	// DetachKeys leave a console, see CheckDetachKeys.
	DetachKeys string
}

// DefaultDetachKeys are those of the docker command.
const DefaultDetachKeys = "ctrl-p,ctrl-q"

// CheckDetachKeys returns what is typed for keys that are written as Docker writes
// them: single characters, and ctrl- with a letter or one of @ [ \ ] ^ _, with commas
// between. The first is of the latter kind: it waits for the next one whenever it is
// typed.
func CheckDetachKeys(s string) ([]byte, error) {
	typed, err := term.ToBytes(s)
	if err != nil || len(typed) == 0 || !strings.HasPrefix(s, "ctrl-") {
		return nil, fmt.Errorf("%q: write the keys like ctrl-p,ctrl-q or ctrl-]: the first with ctrl-, commas between", s)
	}
	return typed, nil
}

// SettingsFile is where the settings of the person with that home are.
func SettingsFile(home string) string {
	config := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(config) { // as good as unset, says XDG
		config = filepath.Join(home, ".config")
	}
	return filepath.Join(config, "corral", "config.yaml")
}

// Caller is whose settings are in force: who runs corral, under sudo who called
// that.
func Caller() uint32 {
	if uid, err := strconv.ParseUint(os.Getenv("SUDO_UID"), 10, 32); err == nil && os.Getuid() == 0 {
		return uint32(uid)
	}
	return uint32(os.Getuid())
}

// FromEnvironment reads the settings that scripts override: CORRAL_SUBNET
// (172.30.0.0/16), CORRAL_RESOLVERS (addresses, comma-separated),
// CORRAL_PROBES (unlisted=ADDR,resolver=ADDR,metadata=ADDR,ipv6=ADDR; each may
// be left out), CORRAL_CA_BUNDLE (a path, absolute or below ~/, which is home) and
// CORRAL_DETACH_KEYS (ctrl-p,ctrl-q). An empty one is as good as unset.
func FromEnvironment(home string) (Settings, error) {
	var s Settings
	if v := os.Getenv("CORRAL_SUBNET"); v != "" {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return Settings{}, fmt.Errorf("CORRAL_SUBNET: %q is no network: write it like 172.30.0.0/16", v)
		}
		s.Subnet = p
	}
	for _, v := range list("CORRAL_RESOLVERS") {
		a, err := netip.ParseAddr(v)
		if err != nil {
			return Settings{}, fmt.Errorf("CORRAL_RESOLVERS: %q is no address: write them like 192.0.2.53,192.0.2.54", v)
		}
		if err := CheckResolver(a); err != nil {
			return Settings{}, fmt.Errorf("CORRAL_RESOLVERS: %w", err)
		}
		s.Resolvers = append(s.Resolvers, a)
	}
	for _, v := range list("CORRAL_PROBES") {
		name, addr, _ := strings.Cut(v, "=")
		probe := s.Probe(name)
		if probe == nil {
			return Settings{}, fmt.Errorf("CORRAL_PROBES: there is no probe %q (there is: %s)", name, strings.Join(ProbeNames, ", "))
		}
		a, err := netip.ParseAddr(addr)
		if err != nil {
			return Settings{}, fmt.Errorf("CORRAL_PROBES: %q: write each like unlisted=198.51.100.1", v)
		}
		if err := CheckProbe(name, a); err != nil {
			return Settings{}, fmt.Errorf("CORRAL_PROBES: %w", err)
		}
		*probe = a
	}
	if v := os.Getenv("CORRAL_CA_BUNDLE"); v != "" {
		path := v
		if below, ok := strings.CutPrefix(v, "~/"); ok {
			path = filepath.Join(home, below)
		}
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, unicode.IsControl) {
			return Settings{}, fmt.Errorf("CORRAL_CA_BUNDLE: %q is no absolute path: write it like /etc/ssl/company.pem", v)
		}
		s.CABundle = path
	}
	if v := os.Getenv("CORRAL_DETACH_KEYS"); v != "" {
		if _, err := CheckDetachKeys(v); err != nil {
			return Settings{}, fmt.Errorf("CORRAL_DETACH_KEYS: %w", err)
		}
		s.DetachKeys = v
	}
	return s, nil
}

func list(name string) []string {
	return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' || r == ' ' })
}

// ProbeNames are those of the addresses in Settings.Probes.
var ProbeNames = []string{"unlisted", "resolver", "metadata", "ipv6"}

// Probe is where the address of a probe is kept, nil if there is none of that
// name.
func (s *Settings) Probe(name string) *netip.Addr {
	switch name {
	case "unlisted":
		return &s.Probes.Unlisted
	case "resolver":
		return &s.Probes.Resolver
	case "metadata":
		return &s.Probes.Metadata
	case "ipv6":
		return &s.Probes.IPv6
	}
	return nil
}

// CheckResolver says why gates cannot ask a name server at that address. They
// ask by IPv4; one on loopback they ask by way of the DNS relay.
func CheckResolver(a netip.Addr) error {
	switch {
	case relayed(a) || direct(a):
		return nil
	case a.IsValid() && !a.Is4():
		return fmt.Errorf("%v: gates ask name servers by IPv4; of IPv6 there is ::1 only, which a relay asks", a)
	}
	return fmt.Errorf("%v is not the address of one name server", a)
}

// direct reports whether a gate can ask a name server at that address itself.
func direct(a netip.Addr) bool {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && a != broadcast
}

// relayed reports whether it is a name server of this machine's own loopback.
func relayed(a netip.Addr) bool { return a.Is4() && a.IsLoopback() || a == netip.IPv6Loopback() }

// CheckProbe says why an address cannot be the probe of that name: no packet to
// it would prove what leaves a sandbox.
func CheckProbe(name string, a netip.Addr) error {
	family, ok := "IPv4", a.Is4()
	if name == "ipv6" {
		family, ok = "IPv6", a.Is6() && !a.Is4In6()
	}
	if !ok || a.Zone() != "" {
		return fmt.Errorf("%s: %v is not an %s address", name, a, family)
	}
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("%s: %v is not an address outside of the sandbox", name, a)
	}
	return nil
}

// Or is s, with what it leaves open taken from below.
func (s Settings) Or(below Settings) Settings {
	if !s.Subnet.IsValid() {
		s.Subnet = below.Subnet
	}
	if len(s.Resolvers) == 0 {
		s.Resolvers = below.Resolvers
	}
	if s.CABundle == "" {
		s.CABundle = below.CABundle
	}
	if s.DetachKeys == "" {
		s.DetachKeys = below.DetachKeys
	}
	for _, name := range ProbeNames {
		if p := s.Probe(name); !p.IsValid() {
			*p = *below.Probe(name)
		}
	}
	return s
}

// Keys are the settings that were made, as config.yaml spells them.
func (s Settings) Keys() []string {
	var keys []string
	if s.Subnet.IsValid() {
		keys = append(keys, "subnet")
	}
	if len(s.Resolvers) > 0 {
		keys = append(keys, "resolvers")
	}
	if s.CABundle != "" {
		keys = append(keys, "ca_bundle")
	}
	if s.DetachKeys != "" {
		keys = append(keys, "detach_keys")
	}
	for _, name := range ProbeNames {
		if s.Probe(name).IsValid() {
			keys = append(keys, "probes."+name)
		}
	}
	return keys
}

// Variable is the one that overrides a key of config.yaml.
func Variable(key string) string {
	name, _, _ := strings.Cut(key, ".")
	return "CORRAL_" + strings.ToUpper(name)
}
