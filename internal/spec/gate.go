package spec

import (
	"fmt"
	"io"
	"net/netip"
	"time"
)

// Class is the kind of egress a gate grants. The zero value grants nothing.
type Class string

const (
	// ClassNone grants links and host services only.
	ClassNone Class = ""
	// ClassPinned grants the addresses that the listed names had at bring-up.
	ClassPinned Class = "pinned"
)

// Gate is everything a gate is told.
type Gate struct {
	Version int    `json:"version"`
	Sandbox string `json:"sandbox"`
	Service string `json:"service"`
	Class   Class  `json:"class"`

	// Address is the gate's own address on the corral network, Gateway the
	// host's address there. Unset in other people's stacks.
	Address netip.Addr `json:"address,omitzero"`
	Gateway netip.Addr `json:"gateway,omitzero"`

	// Resolvers are asked in order. Needed as soon as there are names.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	Names     []Name       `json:"names,omitempty"`

	// HostPorts are the ports of Gateway that the service may use, TCP.
	HostPorts []uint16 `json:"host_ports,omitempty"`

	// Never lists what may not be pinned whatever a policy says: the addresses
	// of this host and of every Docker network.
	Never []netip.Prefix `json:"never,omitempty"`

	Probes Probes `json:"probes"`
}

// Name is one permitted name.
type Name struct {
	// Domain is lower case, A-labels, without a trailing dot.
	Domain string `json:"domain"`
	// Ports are TCP ports; AnyPort grants all of them instead.
	Ports   []uint16 `json:"ports,omitempty"`
	AnyPort bool     `json:"any_port,omitempty"`
	// Private are the prefixes of special-purpose space that this name may
	// resolve into.
	Private []netip.Prefix `json:"private,omitempty"`
	// Soft names only warn when they do not resolve or answer.
	Soft bool `json:"soft,omitempty"`
	// Liveness insists on one of Ports accepting a connection at bring-up.
	Liveness bool `json:"liveness,omitempty"`
	// Origin is where the policy grants it, as file:line or a profile's name.
	Origin string `json:"origin"`
}

// Probes are the outside addresses that corral itself may dial, to prove that
// they are refused. They are never in a policy.
type Probes struct {
	Unlisted netip.Addr `json:"unlisted"` // an ordinary unlisted host
	Resolver netip.Addr `json:"resolver"` // somebody's public resolver: 53, 853, DNS over HTTPS
	Metadata netip.Addr `json:"metadata"` // a cloud's metadata service
	IPv6     netip.Addr `json:"ipv6"`     // an unlisted host, IPv6
}

// DefaultProbes are documentation addresses (RFC 5737, RFC 3849), and the
// link-local address at which clouds serve metadata.
func DefaultProbes() Probes {
	return Probes{
		Unlisted: netip.MustParseAddr("198.51.100.1"),
		Resolver: netip.MustParseAddr("203.0.113.53"),
		Metadata: netip.MustParseAddr("169.254.169.254"),
		IPv6:     netip.MustParseAddr("2001:db8::1"),
	}
}

// ParseGate decodes and checks a Gate document.
func ParseGate(r io.Reader) (Gate, error) {
	var g Gate
	if err := Decode(r, &g); err != nil {
		return Gate{}, fmt.Errorf("gate spec: %w", err)
	}
	if err := g.check(); err != nil {
		return Gate{}, fmt.Errorf("gate spec: %w", err)
	}
	return g, nil
}

func (g Gate) check() error {
	if err := checkVersion("it", g.Version); err != nil {
		return err
	}
	switch g.Class {
	case ClassNone, ClassPinned:
	default:
		return fmt.Errorf("unknown egress class %q", g.Class)
	}
	if g.Class == ClassNone && len(g.Names) > 0 {
		return fmt.Errorf("class %q grants no names, %d are listed", g.Class, len(g.Names))
	}
	if len(g.Names) > 0 && len(g.Resolvers) == 0 {
		return fmt.Errorf("%d names and no resolver", len(g.Names))
	}
	for _, r := range g.Resolvers {
		if !r.IsValid() || r.IsLoopback() || r.IsUnspecified() || !r.Is4() {
			return fmt.Errorf("resolver %v: it must be an IPv4 address outside 127.0.0.0/8 (a loopback resolver forwards from inside the namespace, where anybody could pose as it)", r)
		}
	}
	for _, n := range g.Names {
		if n.Domain == "" {
			return fmt.Errorf("a name without a domain (%s)", n.Origin)
		}
		if !n.AnyPort && len(n.Ports) == 0 {
			return fmt.Errorf("%s: no port", n.Domain)
		}
		for _, p := range n.Ports {
			if p == 0 {
				return fmt.Errorf("%s: port 0", n.Domain)
			}
		}
	}
	if len(g.HostPorts) > 0 && !g.Gateway.Is4() {
		return fmt.Errorf("host ports without a gateway address")
	}
	for _, p := range []struct {
		name string
		addr netip.Addr
	}{{"unlisted", g.Probes.Unlisted}, {"resolver", g.Probes.Resolver}, {"metadata", g.Probes.Metadata}, {"ipv6", g.Probes.IPv6}} {
		if !p.addr.IsValid() || p.addr.Zone() != "" {
			return fmt.Errorf("probe %s: no usable address", p.name)
		}
	}
	return nil
}

// GateState is where a gate is in its life. The zero value is closed.
type GateState string

const (
	GateClosed   GateState = ""
	GateStarting GateState = "starting"
	GateReady    GateState = "ready"
)

// GateStatus is a gate's answer to "how are you".
type GateStatus struct {
	Version int       `json:"version"`
	State   GateState `json:"state"`
	// Instance is made anew at every start of the gate; also served as CHAOS
	// TXT id.server on 127.0.0.1:53 of the namespace.
	Instance string `json:"instance"`
	// NetNS is the inode of the gate's network namespace.
	NetNS   uint64 `json:"netns"`
	Backend string `json:"backend"` // "nf_tables" or "legacy"

	Pins     []Pin      `json:"pins"`
	Unpinned []Unpinned `json:"unpinned"`

	// Applied and ReadBack are digests of the rules and sets as written and as
	// the kernel has them now.
	Applied  string `json:"applied"`
	ReadBack string `json:"read_back"`

	Denied []Denied `json:"denied"`
	// DeniedMore counts refused packets to destinations beyond those kept.
	DeniedMore   uint64    `json:"denied_more"`
	RefusedNames []Refused `json:"refused_names"`
	// RefusedMore counts lookups of names beyond those kept.
	RefusedMore uint64 `json:"refused_more"`

	WorkerRestarts int `json:"worker_restarts"`
}

// Pin is one name and the addresses it may be reached at.
type Pin struct {
	Domain  string        `json:"domain"`
	Addrs   []netip.Addr  `json:"addrs"`
	Ports   []uint16      `json:"ports,omitempty"`
	AnyPort bool          `json:"any_port,omitempty"`
	TTL     time.Duration `json:"ttl"`
	At      time.Time     `json:"at"`
	Soft    bool          `json:"soft,omitempty"`
	Origin  string        `json:"origin"`
}

// Unpinned is a soft name that stays closed, with the reason.
type Unpinned struct {
	Domain string `json:"domain"`
	Reason string `json:"reason"`
	Origin string `json:"origin"`
}

// Denied counts refused packets to one destination.
type Denied struct {
	Proto string     `json:"proto"`
	Addr  netip.Addr `json:"addr"`
	Port  uint16     `json:"port,omitempty"`
	Rule  string     `json:"rule"`
	Count uint64     `json:"count"`
	First time.Time  `json:"first"`
	Last  time.Time  `json:"last"`
}

// Refused counts lookups of one name that the policy does not list.
type Refused struct {
	Name  string    `json:"name"`
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Outcome is what a gate did with a packet. The zero value is no evidence.
type Outcome string

const (
	OutcomeUnknown  Outcome = ""
	OutcomeAccepted Outcome = "accepted"
	OutcomeRejected Outcome = "rejected"
)

// Verdict says what happened to the packets of one probe.
type Verdict struct {
	// Seq grows with every packet seen; a caller takes those after its own mark.
	Seq     uint64     `json:"seq"`
	Proto   string     `json:"proto"` // tcp, udp, icmp
	Source  uint16     `json:"source,omitempty"`
	Addr    netip.Addr `json:"addr"`
	Port    uint16     `json:"port,omitempty"`
	Outcome Outcome    `json:"outcome"`
	Rule    string     `json:"rule,omitempty"` // the rule that refused it
}

// Verdicts is the gate's answer to a question about probes.
type Verdicts struct {
	Version int `json:"version"`
	// Mark is the newest sequence number; 0 if nothing was seen yet.
	Mark     uint64    `json:"mark"`
	Verdicts []Verdict `json:"verdicts"`
}
