package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/corral-sandbox/corral/internal/domain"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/spelling"
)

// Attempt is something that a gate refused: a lookup of Name, if Addr is not
// set, or packets to Addr, which Name is pinned to if it is set. What is in it an
// agent chose.
type Attempt struct {
	Name  string
	Proto string // tcp, udp, icmp or another as ip-N; of a lookup nothing
	Addr  netip.Addr
	Port  uint16
}

// Circumstances are what a suggestion needs to know beside the attempt.
type Circumstances struct {
	Rules    []Rule // all that are in force, the profile's too
	Services []HostService
	Gateway  netip.Addr   // what services reach this machine by
	Network  netip.Prefix // of all sandboxes and what links them
	Pins     []spec.Pin   // what is granted now, which may be since after the attempt
}

// Suggestion is what a person could write into the policy to grant what was
// refused. It decides nothing, and all of it is safe to show.
type Suggestion struct {
	// Key is the list that Entry belongs to: egress.allow or host_services. Entry is
	// in YAML, on one line, and decodes to exactly one name or one port of this
	// machine. Both are empty where no line would allow the attempt, or where corral
	// proposes none.
	Key   string `json:"key,omitempty"`
	Entry string `json:"entry,omitempty"`
	// Replaces is the place of an entry of the same name, in whose stead this one
	// goes.
	Replaces string `json:"replaces,omitempty"`
	// Note is why there is no entry, or what comes near one that is listed.
	Note string `json:"note,omitempty"`
	// Doubt is what should be looked at before the entry is believed.
	Doubt string `json:"doubt,omitempty"`
}

// The lists that a suggestion can be for.
const (
	keyAllow    = "egress.allow"
	keyServices = "host_services"
)

// maxSuggested is the longest name that is suggested, in bytes: names of hosts
// that people mean are shorter, names that carry something out are not.
const maxSuggested = 100

const noLookups = "lookups leave by no port: names are answered inside, from what is listed"

// Suggest says which line of a policy would allow an attempt, or why none
// would.
func Suggest(a Attempt, in Circumstances) Suggestion {
	s := suggest(a, in)
	for _, text := range []*string{&s.Replaces, &s.Note, &s.Doubt} {
		*text = printable.Escape(clip(*text))
	}
	return s
}

func suggest(a Attempt, in Circumstances) Suggestion {
	if !a.Addr.IsValid() {
		return suggestName(a.Name, in)
	}
	addr := a.Addr.Unmap()
	class := netguard.Classify(addr)
	switch {
	case class == netguard.Metadata:
		return none("a cloud's metadata service hands out credentials: it is never in reach")
	case isDNS(a):
		return none(noLookups)
	case addr.Is6():
		return none("no IPv6 leaves: names are pinned to IPv4 addresses")
	case a.Proto == "udp":
		return none("no UDP leaves: a policy opens TCP ports (programs that try QUIC fall back to TCP)")
	case a.Proto == "icmp":
		return none("no ICMP leaves: a policy opens TCP ports, and a ping proves nothing about those")
	case a.Proto != "tcp" || a.Port == 0:
		return none("a policy opens TCP ports and nothing else")
	case addr == in.Gateway || a.Name == spec.HostName:
		return suggestService(a.Port, in)
	case contains(in.Network, netip.PrefixFrom(addr, addr.BitLen())):
		return none("another sandbox, or what links some: no sandbox reaches another one")
	}
	owner, granted := pinnedTo(in.Pins, addr, a.Port)
	switch {
	case granted && owner != a.Name:
		return none(allowedNow + ": " + owner + " has this address now")
	case granted:
		return none(allowedNow)
	case a.Name != "":
		return suggestPort(a.Name, a.Port, in)
	case owner != "":
		s := suggestPort(owner, a.Port, in)
		s.Note = strings.TrimPrefix(s.Note+"; "+owner+" has this address now", "; ")
		return s
	case class != netguard.Public && !slices.ContainsFunc(slices.Concat(privateSpace, namedSpace), func(p netip.Prefix) bool { return p.Contains(addr) }):
		return none(fmt.Sprintf("%v is no public address (%s: %s), and no policy opens it", addr, class, class.Reason()))
	case class != netguard.Public:
		return none(fmt.Sprintf("no listed name has this address (%s), and a policy lists names; one that has it needs private: as well", class))
	}
	return none("no listed name has this address, and a policy lists names: see which one the program was told")
}

const allowedNow = "allowed now, since a refresh"

// pinnedTo is a name that has an address, one that is granted the port there if
// there is one.
func pinnedTo(pins []spec.Pin, addr netip.Addr, port uint16) (name string, granted bool) {
	for _, p := range pins {
		has := slices.Contains(p.Addrs, addr)
		if has && (p.AnyPort || slices.Contains(p.Ports, port)) {
			return p.Domain, true
		}
		if has {
			name = cmp.Or(name, p.Domain)
		}
	}
	return name, false
}

func none(why string) Suggestion { return Suggestion{Note: why} }

// isDNS tells lookups by their port: plain, multicast, and encrypted ones.
func isDNS(a Attempt) bool {
	return (a.Proto == "tcp" || a.Proto == "udp") && slices.Contains([]uint16{nameService, 853, 5353}, a.Port)
}

// suggestName is for a lookup that was refused.
func suggestName(name string, in Circumstances) Suggestion {
	if name == spec.HostName {
		return none("it is what this machine is called inside, once host_services opens a port of it")
	}
	if len(name) > maxSuggested { // also if what is known of it is only the beginning
		return none(fmt.Sprintf("a name of more than %d characters: few hosts have one, and whoever looks it up may mean to carry something out", maxSuggested))
	}
	d, err := ParseDomain(name)
	switch {
	case err != nil:
		return none("no name that a policy takes: " + err.Error())
	case string(d) != name:
		return none("a policy would write it in another way: no lookup is for that")
	case special(d):
		return none("no name server outside knows names that end so")
	}
	if slices.ContainsFunc(in.Pins, func(p spec.Pin) bool { return p.Domain == name && len(p.Addrs) > 0 }) {
		return none(allowedNow)
	}
	if at := slices.IndexFunc(in.Rules, func(r Rule) bool { return r.Domain == d }); at >= 0 {
		return none(fmt.Sprintf("%s lists it already: what is up was made without it, or it had no address", source(in.Rules[at])))
	}
	return write(Suggestion{Note: near(d, in.Rules), Doubt: doubt(d, in.Rules)}, Rule{Domain: d, Ports: []uint16{80, 443}, Liveness: true})
}

// suggestPort is for a port of a name whose other ports may be listed.
func suggestPort(name string, port uint16, in Circumstances) Suggestion {
	d, err := ParseDomain(name)
	if err != nil || string(d) != name || len(d) > maxSuggested {
		return none("the address belongs to something that is no name of a policy's, with ports of its own")
	}
	r, s := Rule{Domain: d, Liveness: true}, Suggestion{Doubt: doubt(d, in.Rules)}
	if at := slices.IndexFunc(in.Rules, func(r Rule) bool { return r.Domain == d }); at >= 0 {
		listed := in.Rules[at]
		if listed.AnyPort || slices.Contains(listed.Ports, port) {
			return none(fmt.Sprintf("%s lists it already: what is up was made without it", source(listed)))
		}
		r.Ports, r.Private = slices.Clone(listed.Ports), listed.Private
		// Those of a profile need not answer either.
		r.Liveness = listed.Liveness || listed.Soft
		s.Replaces = source(listed)
	}
	r.Ports = append(r.Ports, port)
	slices.Sort(r.Ports)
	return write(s, r)
}

// suggestService is for a port of this machine.
func suggestService(port uint16, in Circumstances) Suggestion {
	if at := slices.IndexFunc(in.Services, func(s HostService) bool { return s.Port == port }); at >= 0 {
		return none("host_services lists it already, as " + in.Services[at].Name + ": what is up was made without it")
	}
	want := HostService{Name: fmt.Sprintf("port-%d", port), Port: port}
	for n := 2; slices.ContainsFunc(in.Services, func(s HostService) bool { return s.Name == want.Name }); n++ {
		want.Name = fmt.Sprintf("port-%d-%d", port, n)
	}
	entry := fmt.Sprintf("{name: %s, port: %d}", want.Name, port)
	p, err := Parse(FileName, []byte("profile: shell\nhost_services:\n  - "+entry+"\n"))
	if err != nil || len(p.HostServices) != 1 || p.HostServices[0].Name != want.Name || p.HostServices[0].Port != port {
		return none("this machine's port is one that no policy opens: who reaches it commands the machine, or looks names up outside")
	}
	return Suggestion{Key: keyServices, Entry: entry, Note: "a port of this machine's loopback: whatever listens there can be used in full"}
}

// write adds the entry that grants r, if there is a text that decodes to r and
// to nothing else.
func write(s Suggestion, r Rule) Suggestion {
	short := r.Liveness && len(r.Private) == 0 && slices.Equal(r.Ports, []uint16{80, 443})
	for _, name := range []string{string(r.Domain), strconv.Quote(string(r.Domain))} {
		entry := name
		if !short {
			entry = "{domain: " + name + ", ports: " + list(r.Ports)
			if !r.Liveness {
				entry += ", liveness: false"
			}
			if len(r.Private) > 0 {
				entry += ", private: " + list(r.Private)
			}
			entry += "}"
		}
		if grants(entry, r) {
			s.Key, s.Entry = keyAllow, entry
			return s
		}
	}
	return none("the name cannot be written into a policy")
}

func list[T any](values []T) string {
	var words []string
	for _, v := range values {
		words = append(words, fmt.Sprint(v))
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// grants reports whether a policy with that entry opens what r does, and
// nothing else.
func grants(entry string, r Rule) bool {
	p, err := Parse(FileName, []byte("profile: shell\negress:\n  allow:\n    - "+entry+"\n"))
	if err != nil || len(p.Egress.Allow) != 1 || len(p.HostServices) != 0 {
		return false
	}
	got := p.Egress.Allow[0]
	return got.Domain == r.Domain && slices.Equal(got.Ports, r.Ports) && !got.AnyPort && got.Liveness == r.Liveness && slices.Equal(got.Private, r.Private)
}

// special reports whether a name is of no name server's: RFC 6761, 6762, 7686,
// and names of addresses.
func special(d Domain) bool {
	last := string(d[strings.LastIndexByte(string(d), '.')+1:])
	return slices.Contains([]string{"localhost", "local", "invalid", "onion", "arpa", "alt"}, last)
}

// source is where a rule was written.
func source(r Rule) string {
	if r.Pos.Line == 0 {
		return cmp.Or(r.Pos.File, FileName)
	}
	return fmt.Sprintf("%s:%d", r.Pos.File, r.Pos.Line)
}

// near says which entry somebody may have taken for one that covers d.
func near(d Domain, rules []Rule) string {
	for _, r := range rules {
		switch {
		case strings.HasSuffix(string(d), "."+string(r.Domain)):
			return fmt.Sprintf("%s lists %s, and no subdomain comes along", source(r), r.Domain)
		case strings.HasSuffix(string(r.Domain), "."+string(d)):
			return fmt.Sprintf("%s lists %s, which is below it", source(r), r.Domain)
		}
	}
	return ""
}

var noLetters = regexp.MustCompile(`[^a-z0-9]`)

// doubt says what about d could deceive a person: who chose it may mean to.
func doubt(d Domain, rules []Rule) string {
	if u := domain.Unicode(string(d)); u != string(d) {
		return fmt.Sprintf("it reads as %s: look twice whether that is the one you mean", u)
	}
	for _, r := range rules {
		if r.Domain == d {
			continue
		}
		mine, theirs := owner(d), owner(r.Domain)
		switch {
		case mine == theirs:
		case strings.Contains("."+string(d)+".", "."+string(r.Domain)+"."):
			return fmt.Sprintf("it holds %s, which is listed, and belongs to whoever has %s", r.Domain, mine)
		case noLetters.ReplaceAllString(string(d), "") == noLetters.ReplaceAllString(string(r.Domain), ""), alike(mine, theirs):
			return fmt.Sprintf("it could be taken for %s, which is listed: look twice", r.Domain)
		}
	}
	return ""
}

// owner are the last two labels of a name: of whom it is, in most of the world.
func owner(d Domain) string {
	labels := strings.Split(string(d), ".")
	return strings.Join(labels[max(0, len(labels)-2):], ".")
}

// glyphs are what an eye takes for something else.
var glyphs = strings.NewReplacer("0", "o", "1", "l", "i", "l", "rn", "m", "vv", "w", "5", "s")

// alike reports whether two names differ so little that an eye slips over it.
// Short ones do by accident.
func alike(a, b string) bool {
	const short = 8
	return glyphs.Replace(a) == glyphs.Replace(b) || len(a) >= short && max(len(a), len(b))-min(len(a), len(b)) <= 1 && spelling.Distance(a, b) <= 1
}
