package spec

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Class is the kind of egress a gate grants. The zero value grants nothing.
type Class string

const (
	// ClassNone grants links and host services only.
	ClassNone Class = ""
	// ClassPinned grants the addresses that the listed names have.
	ClassPinned Class = "pinned"
	// ClassPublic grants ports 80 and 443 of every globally routable address, and
	// lookups of every name.
	ClassPublic Class = "public"
)

// Refresh says when names are resolved again. The zero value is on command only.
type Refresh string

const (
	RefreshManual Refresh = ""
	RefreshAuto   Refresh = "auto" // also when what was answered grows old
)

// DefaultPinGrace is how long an address that a name no longer has stays pinned
// at least.
const DefaultPinGrace = time.Hour

// SinkAddress is the answer to every lookup at a gate with SinkNames: the 6to4
// relays' address, withdrawn by RFC 7526, which no gate lets through and which
// Python's ipaddress calls neither private nor reserved.
var SinkAddress = netip.AddrFrom4([4]byte{192, 88, 99, 1})

// Gate is everything a gate is told.
type Gate struct {
	Version int    `json:"version"`
	Sandbox string `json:"sandbox"`
	Service string `json:"service"`
	// Policy is the digest of the policy that the rest was made from.
	Policy string `json:"policy,omitempty"`
	Class  Class  `json:"class"`

	// Address is the gate's own address on the corral network, Gateway the
	// host's address there. Unset in other people's stacks.
	Address netip.Addr `json:"address,omitzero"`
	Gateway netip.Addr `json:"gateway,omitzero"`

	// Resolvers are asked in order. Needed as soon as there are names, and by
	// ClassPublic.
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	Names     []Name       `json:"names,omitempty"`
	// SinkNames answers lookups of all other names with SinkAddress.
	SinkNames bool    `json:"sink_names,omitempty"`
	Refresh   Refresh `json:"refresh,omitempty"`
	// PinGrace in place of DefaultPinGrace.
	PinGrace time.Duration `json:"pin_grace,omitempty"`

	// HostPorts are the ports of Gateway that the service may use, TCP.
	HostPorts []uint16 `json:"host_ports,omitempty"`

	// Link is the gate's own address on a network that gates alone are on; zero where
	// they call each other by the sandboxes' network.
	Link netip.Addr `json:"link,omitzero"`
	// Links are the services of other gates that this one's may call, Clients the
	// addresses that may call this one's.
	Links   []Link   `json:"links,omitempty"`
	Clients []Client `json:"clients,omitempty"`

	// Never lists what may not be pinned whatever a policy says: the addresses
	// of this host and of every Docker network.
	Never []netip.Prefix `json:"never,omitempty"`

	Probes Probes `json:"probes"`
}

// Link is one TCP port of another gate's service, under a name that exists
// inside only.
type Link struct {
	Name string     `json:"name"` // as in Name.Domain, a single label as a rule; never localhost or a number
	Addr netip.Addr `json:"addr"`
	Port uint16     `json:"port"`
}

// Check refuses what is more, or less, than one port of one machine.
func (l Link) Check() error {
	if !isName(l.Name) || l.Port == 0 || !l.Addr.Is4() || l.Addr.IsUnspecified() || l.Addr.IsLoopback() || l.Addr.IsMulticast() {
		return fmt.Errorf("link %q to %v port %d: it takes a name, one IPv4 address and a port", l.Name, l.Addr, l.Port)
	}
	return nil
}

// Client is the other end of a Link: who may call which TCP port.
type Client struct {
	Addr netip.Addr `json:"addr"`
	Port uint16     `json:"port"`
}

// LookupPorts are those of name servers, by TCP and by TLS, which no name is granted
// by number: lookups would leave there that no gate has answered.
var LookupPorts = []uint16{53, 853}

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
	case ClassNone, ClassPinned, ClassPublic:
	default:
		return fmt.Errorf("unknown egress class %q", g.Class)
	}
	switch {
	case g.Class != ClassPinned && len(g.Names) > 0:
		return fmt.Errorf("class %q takes no names, %d are listed", g.Class, len(g.Names))
	case g.Class == ClassPublic && g.SinkNames:
		return fmt.Errorf("class %q looks every name up, so none can be sunk", g.Class)
	case len(g.Names) > 0 && len(g.Resolvers) == 0:
		return fmt.Errorf("%d names and no resolver", len(g.Names))
	case g.Class == ClassPublic && len(g.Resolvers) == 0:
		return fmt.Errorf("class %q and no resolver", g.Class)
	case g.Refresh != RefreshManual && g.Refresh != RefreshAuto:
		return fmt.Errorf("unknown refresh %q", g.Refresh)
	case g.PinGrace < 0:
		return fmt.Errorf("pin_grace %v is less than nothing", g.PinGrace)
	}
	for _, r := range g.Resolvers {
		if !r.IsValid() || r.IsLoopback() || r.IsUnspecified() || !r.Is4() {
			return fmt.Errorf("resolver %v: it must be an IPv4 address outside 127.0.0.0/8 (a loopback resolver forwards from inside the namespace, where anybody could pose as it)", r)
		}
	}
	for _, p := range g.Never {
		// Such a prefix contains no IPv4 address, and would keep nobody from any.
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("never %v: it must be an IPv4 or IPv6 prefix", p)
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
			if slices.Contains(LookupPorts, p) {
				return fmt.Errorf("%s: %d is the port of name servers, and lookups would carry anything out; names are answered inside without it (%s)", n.Domain, p, n.Origin)
			}
		}
	}
	if err := g.checkLinks(); err != nil {
		return err
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

// checkLinks refuses links that would be more than one port of one machine.
func (g Gate) checkLinks() error {
	if g.Link.IsValid() && (!g.Link.Is4() || g.Link.IsLoopback() || g.Link == g.Address || !g.Address.IsValid() || len(g.Links)+len(g.Clients) == 0) {
		return fmt.Errorf("link %v: it takes another IPv4 address than that of the gate, and somebody to call or to be called by", g.Link)
	}
	taken := map[string]netip.Addr{HostName: g.Gateway}
	for _, n := range g.Names {
		taken[n.Domain] = netip.Addr{}
	}
	for _, l := range g.Links {
		if err := l.Check(); err != nil {
			return err
		}
		if at, known := taken[l.Name]; known && at != l.Addr {
			return fmt.Errorf("link %q: the name means something else already", l.Name)
		}
		taken[l.Name] = l.Addr
	}
	for _, c := range g.Clients {
		if c.Port == 0 || !c.Addr.Is4() || c.Addr.IsUnspecified() || c.Addr.IsLoopback() || c.Addr.IsMulticast() {
			return fmt.Errorf("client %v of port %d: it takes one IPv4 address and a port", c.Addr, c.Port)
		}
	}
	return nil
}

// isName accepts what a name of a link may be: labels of letters, digits and
// hyphens with dots between them, none of the names of loopback, and none that
// somebody reads as an address, which is how a last label that is a number is read.
func isName(s string) bool {
	const most = 63 // characters, of the name as of any label: it is a part of a rule's ID
	if len(s) > most || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return false
	}
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if l == "" || strings.Trim(l, "-") != l {
			return false
		}
	}
	last := labels[len(labels)-1]
	return last != "localhost" && !isNumber(last)
}

// isNumber reports whether a label is a number, decimal, octal or hexadecimal.
func isNumber(label string) bool {
	if digits, isHex := strings.CutPrefix(label, "0x"); isHex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// GateState is where a gate is in its life. The zero value is closed.
type GateState string

const (
	GateClosed   GateState = ""
	GateStarting GateState = "starting"
	GateReady    GateState = "ready"
)

// PartOf begins the Policy of what is in force between the two steps of a refresh.
const PartOf = "part of "

// GateStatus is a gate's answer to "how are you".
type GateStatus struct {
	Version int       `json:"version"`
	State   GateState `json:"state"`
	// Walked is how many packets were taken on paper through the rules that the kernel
	// has, and Astray what those would do otherwise than the document says, in words.
	Walked int      `json:"walked,omitempty"`
	Astray []string `json:"astray,omitempty"`
	// Instance is made anew at every start of the gate; also served as CHAOS
	// TXT id.server on 127.0.0.1:53 of the namespace.
	Instance string `json:"instance"`
	// NetNS is the inode of the gate's network namespace.
	NetNS   uint64 `json:"netns"`
	Backend string `json:"backend"` // "nf_tables" or "legacy"
	Class   Class  `json:"class"`
	// Policy is that of the Gate document in force. After PartOf it is another one's,
	// of which only what it takes away has come.
	Policy string `json:"policy,omitempty"`

	Pins     []Pin      `json:"pins"`
	Unpinned []Unpinned `json:"unpinned"`
	// SharedAddresses are those that several names have.
	SharedAddresses []SharedAddress `json:"shared_addresses,omitempty"`
	// Shared are connections to what was granted to a removed name and is granted
	// to another one still.
	Shared []Shared `json:"shared,omitempty"`
	// Unended is why connections to what is granted no longer could not be ended yet,
	// Uncounted why Flows and Shared are of an earlier look; empty if all is well.
	Unended   string `json:"unended,omitempty"`
	Uncounted string `json:"uncounted,omitempty"`
	// Refreshed is when names were last resolved, NextRefresh when they will be;
	// zero if only on command.
	Refreshed   time.Time `json:"refreshed,omitzero"`
	NextRefresh time.Time `json:"next_refresh,omitzero"`

	Rules []RuleCount `json:"rules,omitempty"`

	// Applied and ReadBack are digests of the rules and sets as written and as
	// the kernel has them now.
	Applied  string `json:"applied"`
	ReadBack string `json:"read_back"`
	// Differences are the first ways in which the kernel's differ, in words.
	Differences []string `json:"differences,omitempty"`

	// Allowed are new connections, as many as were recorded: a rate limit bounds
	// the records.
	Allowed []Traffic `json:"allowed"`
	// AllowedMore counts those to destinations beyond those kept.
	AllowedMore uint64 `json:"allowed_more"`
	// AllowedUnrecorded counts the connections, DeniedUnrecorded the refused packets
	// that came too fast for a record each: nothing but the rule's own counter knows of
	// them, so their destinations may be missing everywhere here.
	AllowedUnrecorded uint64    `json:"allowed_unrecorded"`
	DeniedUnrecorded  uint64    `json:"denied_unrecorded"`
	Denied            []Traffic `json:"denied"`
	// Probed counts refused packets and new connections of a checker's: while it was
	// known to run, and in other people's stacks whatever came from its ports.
	Probed uint64 `json:"probed"`
	// DeniedMore counts refused packets to destinations beyond those kept.
	DeniedMore   uint64    `json:"denied_more"`
	RefusedNames []Refused `json:"refused_names"`
	// RefusedMore counts lookups of names beyond those kept.
	RefusedMore uint64 `json:"refused_more"`

	WorkerRestarts int `json:"worker_restarts"`

	// Release is that of the gate's program, Document the Digest of the document in
	// force.
	Release  string `json:"release,omitempty"`
	Document string `json:"document,omitempty"`
	// Never is that of the document in force, which Document does not cover, with
	// the gate's own networks.
	Never []netip.Prefix `json:"never,omitempty"`

	// Namespace is what the gate sees of the namespace, nil if it does not say.
	Namespace *Namespace `json:"namespace,omitempty"`
}

// Namespace is what a gate sees of the network namespace that it owns.
type Namespace struct {
	// IPv6 are the interfaces, loopback aside, "all" and "default", for which IPv6
	// is not off. Addresses are those of IPv6 but loopback's, as ADDRESS on INTERFACE.
	IPv6      []string `json:"ipv6"`
	Addresses []string `json:"ipv6_addresses"`
	// Listeners are the sockets that wait for whoever comes and belong to root, as
	// the gate's and the engine's own do, or to the gate's worker or a carrier.
	Listeners []Listener `json:"listeners"`
	// Altered is what is not as it was when the gate began, in words: links, addresses,
	// neighbours, routes and rules that choose them, what takes packets at a link, settings of the
	// kernel, mounts. PacketSockets are the sockets that see or send packets past the rules or
	// make them up, in words, but for those of the gate's programs. Nil is not told.
	Altered       []string `json:"altered"`
	PacketSockets []string `json:"packet_sockets"`
}

// Listener is a socket that waits for whoever comes.
type Listener struct {
	Proto string         `json:"proto"` // as in /proc/net: tcp, tcp6, udp, udp6, udplite, udplite6
	Addr  netip.AddrPort `json:"addr"`
	UID   uint32         `json:"uid"`
}

// Digest is equal for documents that say the same. Never is left out: a gate that
// nobody planned adds its own networks.
func (g Gate) Digest() string {
	g.Never = nil
	return fmt.Sprintf("sha256:%x", sha256.Sum256(Encode(g)))
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
	// Fading are addresses beside Addrs that the name no longer has, and that are
	// pinned still.
	Fading []Fading `json:"fading,omitempty"`
	// Failed is why the last lookup gave nothing new.
	Failed string `json:"failed,omitempty"`
}

// SharedAddress is an address that several names have. Whatever port one of them is
// granted is open for all.
type SharedAddress struct {
	Names   []string   `json:"names"` // sorted
	Addr    netip.Addr `json:"addr"`
	Ports   []uint16   `json:"ports,omitempty"` // sorted
	AnyPort bool       `json:"any_port,omitempty"`
}

// SharedAddresses are those of some pins, sorted by address.
func SharedAddresses(pins []Pin) []SharedAddress {
	at := map[netip.Addr]*SharedAddress{}
	for _, p := range pins {
		for _, a := range p.Addrs {
			s := at[a]
			if s == nil {
				s = &SharedAddress{Addr: a}
				at[a] = s
			}
			s.Names, s.Ports, s.AnyPort = append(s.Names, p.Domain), append(s.Ports, p.Ports...), s.AnyPort || p.AnyPort
		}
	}
	var shared []SharedAddress
	for _, a := range slices.SortedFunc(maps.Keys(at), netip.Addr.Compare) {
		s := *at[a]
		slices.Sort(s.Names)
		slices.Sort(s.Ports)
		if s.Names, s.Ports = slices.Compact(s.Names), slices.Compact(s.Ports); len(s.Names) > 1 {
			if s.AnyPort {
				s.Ports = nil
			}
			shared = append(shared, s)
		}
	}
	return shared
}

// String is for people, on one line.
func (s SharedAddress) String() string {
	more, open := "", "every port is"
	if n := len(s.Names); n > 2 {
		more = fmt.Sprintf(" and %d more", n-2)
	}
	switch {
	case s.AnyPort:
	case len(s.Ports) == 1:
		open = fmt.Sprintf("port %d is", s.Ports[0])
	default:
		open = "ports " + strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Ports), "[]"), " ", ", ") + " are"
	}
	return fmt.Sprintf("%s%s share %s: pins cannot tell them apart, nor from others there; %s open for each of them", strings.Join(s.Names[:min(2, len(s.Names))], ", "), more, s.Addr, open)
}

// Fading is an address that a name had until Since.
type Fading struct {
	Addr  netip.Addr `json:"addr"`
	Since time.Time  `json:"since"`
	// Ports and AnyPort are what is granted there still: none that the name was
	// not granted while it had the address.
	Ports   []uint16 `json:"ports,omitempty"`
	AnyPort bool     `json:"any_port,omitempty"`
	// Flows counts its connections, from established on, when it was last looked at.
	Flows int `json:"flows"`
}

// Shared counts the connections to one destination of a removed name that live
// on because With has the same one.
type Shared struct {
	Removed string     `json:"removed"`
	With    string     `json:"with"`
	Addr    netip.Addr `json:"addr"`
	Port    uint16     `json:"port"`
	Flows   int        `json:"flows"`
}

// Refreshed is a gate's answer to a refresh.
type Refreshed struct {
	Version int `json:"version"`
	// Pins and Unpinned are all names as they are now.
	Pins     []Pin      `json:"pins"`
	Unpinned []Unpinned `json:"unpinned"`
	// Added are destinations that are granted now and were not before, Removed the
	// reverse; as ADDRESS:PORT, or as ADDRESS for any port.
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
	// Ended counts the connections that were ended. Unended is why others to what is
	// granted no longer could not be, though the new policy is in force; empty if none.
	Ended   int      `json:"ended"`
	Unended string   `json:"unended,omitempty"`
	Shared  []Shared `json:"shared"`
	// Silent are names that are new, have to answer when a gate starts, and do not: they
	// are in force, and the next start would refuse them.
	Silent []Silent `json:"silent,omitempty"`
}

// Silent is a name of which no port accepts a connection.
type Silent struct {
	Domain string   `json:"domain"`
	Ports  []uint16 `json:"ports"`
	Origin string   `json:"origin"`
	Why    string   `json:"why"` // of the last port tried
}

// RuleCount is what one rule has seen since it was put in place.
type RuleCount struct {
	Family  string `json:"family"`
	Chain   string `json:"chain"`
	Rule    string `json:"rule"`            // its public ID
	Proto   string `json:"proto,omitempty"` // the protocol that it is about, if it is about one
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Unpinned is a soft name that stays closed, with the reason.
type Unpinned struct {
	Domain string `json:"domain"`
	Reason string `json:"reason"`
	Origin string `json:"origin"`
}

// What a gate's log says became of something, a line of JSON each.
const (
	VerdictAllowed     = "allowed"      // a new connection
	VerdictDenied      = "denied"       // a packet that a rule refused
	VerdictProbed      = "probed"       // a packet from a port of proofs, refused if it has a rule: one of theirs, where nobody tells when they run, or one that was let through while they run
	VerdictRefusedName = "refused-name" // a lookup of a name that is not listed
	VerdictLookedUp    = "looked-up"    // a lookup that was made for the service
	VerdictNotShown    = "not-shown"    // more of them than a line each is printed for
)

// Decision is one line of a gate's log: something that it decided so often since
// a line said so.
type Decision struct {
	Time    time.Time  `json:"time"`    // of the last of them
	Verdict string     `json:"verdict"` // one of the words above
	Proto   string     `json:"proto,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	// Name was looked up, or is one that the address is pinned for. A long one is
	// cut.
	Name  string `json:"name,omitempty"`
	Rule  string `json:"rule,omitempty"` // the one that refused it
	Count uint64 `json:"count"`
}

// ProtoLookup is the Proto of a lookup.
const ProtoLookup = "lookup"

// Traffic counts packets to one destination that one rule refused, or
// connections to it, or lookups of a name made for the service: those have no
// Addr.
type Traffic struct {
	Proto string     `json:"proto"`
	Addr  netip.Addr `json:"addr,omitzero"`
	Port  uint16     `json:"port,omitempty"`
	// Name is one that the address is pinned for, if it is.
	Name  string    `json:"name,omitempty"`
	Rule  string    `json:"rule"`
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
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
	// Pins are those in force when it answers.
	Pins []Pin `json:"pins,omitempty"`
}
