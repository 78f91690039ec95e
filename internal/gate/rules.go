package gate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/spec"
)

// nflogGroup is the NFLOG group of all records.
const nflogGroup = 61

// The sets that rules refer to: pairs of address and TCP port, and addresses
// whose every TCP port is granted.
const (
	setPins    = "corral-pins"
	setPinsAny = "corral-pins-any"
)

// Chains of our own. The built-in ones hold jumps and plain accepts.
const (
	chainResolve   = "corral-resolve"
	chainResolveIn = "corral-resolve-in"
	chainAllow     = "corral-allow"
	chainPublic    = "corral-public"
	chainReject    = "corral-" // followed by the public ID of the rule
)

// Public IDs of the rules that refuse.
const (
	ruleDocker   = "docker-resolver"
	ruleUnlisted = "unlisted"
	ruleIPv6     = "ipv6"
	ruleSpecial  = "special-purpose"
	ruleHost     = "host-or-container"
)

// What an NFLOG record is about: the word after "corral:" in its prefix.
const (
	recordSeen  = "seen"  // a packet from a probe port, not decided yet
	recordProbe = "probe" // one that was refused
	recordAudit = "audit" // any refused packet
	recordAllow = "allow" // a new allowed connection
)

// Limits of the records. Probes have their own, for each of their ports, so that
// neither a flood of refused packets nor one from some of those ports hides the
// others: all hundred together make two hundred records a second. They log a refusal
// at least as readily as the sight of a packet, since one that was only seen counts as
// accepted. A table has room for all the ports, since a packet that finds none is
// dropped; which is why other records, whose kinds an agent can multiply, have no
// limit of this sort. A port is forgotten when it could send as many again.
const (
	limitSeen  = "-m hashlimit --hashlimit-upto 2/sec --hashlimit-burst 10 --hashlimit-mode srcport --hashlimit-name corral-seen " + ofPorts
	limitProbe = "-m hashlimit --hashlimit-upto 4/sec --hashlimit-burst 20 --hashlimit-mode srcport --hashlimit-name corral-probe " + ofPorts
	limitAudit = "-m limit --limit 20/sec --limit-burst 100"
	ofPorts    = "--hashlimit-htable-size 128 --hashlimit-htable-max 128 --hashlimit-htable-expire 10000"
)

const (
	syn       = "--tcp-flags FIN,SYN,RST,ACK SYN"
	dockerDNS = "127.0.0.11/32" // Docker's embedded resolver, on ports of its choice
)

// stage is how far the namespace is open.
type stage int

const (
	closed     stage = iota // nothing passes
	resolving               // the worker's lookups pass
	serving                 // what the document grants passes
	refreshing              // so it does, and the worker's lookups
)

// rulesets are the filter tables of both families at a stage. Pure: the same
// document gives the same rules.
func rulesets(g spec.Gate, at stage) []netfilter.Ruleset {
	return []netfilter.Ruleset{ipv4(g, at), ipv6(at)}
}

func ipv4(g spec.Gate, at stage) netfilter.Ruleset {
	input := netfilter.Chain{Name: "INPUT", Policy: "DROP"}
	output := netfilter.Chain{Name: "OUTPUT", Policy: "DROP"}
	forward := netfilter.Chain{Name: "FORWARD", Policy: "DROP"}
	resolve := netfilter.Chain{Name: chainResolve}
	resolveIn := netfilter.Chain{Name: chainResolveIn}
	if at == closed {
		return netfilter.Ruleset{Family: netfilter.IPv4, Chains: []netfilter.Chain{input, forward, output}}
	}
	lookups, when, empty := "the worker's own lookups", ", while a resolution runs", "; empty unless a resolution runs"
	if g.Class == spec.ClassPublic {
		lookups, when, empty = "the worker's lookups for the service", ", of any name at any time", ", of any name at any time"
	}
	if at == resolving || at == refreshing || g.Class == spec.ClassPublic {
		for _, r := range g.Resolvers {
			for _, proto := range []string{"udp", "tcp"} {
				resolve.Rules = append(resolve.Rules, netfilter.Rule{ID: "resolve-" + proto,
					Match:  fmt.Sprintf("-d %s/32 -p %s -m %s --dport 53 -m owner --uid-owner %d", r, proto, proto, spec.WorkerUID),
					Target: "ACCEPT", Reason: lookups + when})
				resolveIn.Rules = append(resolveIn.Rules, netfilter.Rule{ID: "resolve-in-" + proto,
					Match:  fmt.Sprintf("-s %s/32 -p %s -m %s --sport 53 -m conntrack --ctstate ESTABLISHED", r, proto, proto),
					Target: "ACCEPT", Reason: "answers to " + lookups})
			}
		}
	}
	if at == resolving {
		output.Rules = []netfilter.Rule{jump("resolve", "", chainResolve, lookups+empty)}
		input.Rules = []netfilter.Rule{jump("resolve-in", "", chainResolveIn, "answers to "+lookups+empty)}
		return netfilter.Ruleset{Family: netfilter.IPv4, Chains: []netfilter.Chain{input, forward, output, resolve, resolveIn}}
	}

	output.Rules = append(seen(),
		jump(ruleDocker, "-d "+dockerDNS, chainReject+ruleDocker, "Docker's resolver forwards lookups to the outside as root"),
		netfilter.Rule{ID: "docker-resolver-refusal", Match: "-s " + dockerDNS + " -o lo -p tcp -m tcp --tcp-flags RST RST", Target: "ACCEPT",
			Reason: "the reset of the rule above is sent in the resolver's name"},
		netfilter.Rule{ID: "docker-resolver-notice", Match: "-s " + dockerDNS + " -p icmp -m icmp --icmp-type 3/13", Target: "DROP",
			Reason: "so is its ICMP error: nobody's attempt, and its sender knows already"},
		jump(ruleDocker, "-s "+dockerDNS, chainReject+ruleDocker, "nothing that Docker's resolver says, nor anybody in its name"),
		netfilter.Rule{ID: "loopback", Match: "-o lo -m addrtype --dst-type LOCAL", Target: "ACCEPT",
			Reason: "the namespace's own programs among themselves; nat may have changed where a packet goes since its interface was chosen"},
		jump("resolve", "", chainResolve, lookups+empty),
		netfilter.Rule{ID: "established", Match: "-p tcp -m tcp ! " + syn + " -m conntrack --ctstate ESTABLISHED", Target: "ACCEPT",
			Reason: "TCP connections that were let through when new; not UDP, whose tracked lookups would admit anybody on the same port; no SYN, which could reuse an old entry"},
	)
	for _, p := range sorted(g.HostPorts) {
		output.Rules = append(output.Rules, jump(fmt.Sprintf("host-port-%d", p),
			fmt.Sprintf("-d %s/32 -p tcp -m tcp --dport %d %s", g.Gateway, p, syn), chainAllow, "a host service that the policy names"))
	}
	for _, l := range g.Links {
		output.Rules = append(output.Rules, jump(linkRule(l),
			fmt.Sprintf("-d %s/32 -p tcp -m tcp --dport %d %s", l.Addr, l.Port, syn), chainAllow, "a service of another gate that this one may call"))
	}
	if g.Class == spec.ClassPublic {
		output.Rules = append(output.Rules, jump("public", "", chainPublic, "what no document names must be public"))
	}
	output.Rules = append(output.Rules,
		jump("pins", "-p tcp -m tcp "+syn+" -m set --match-set "+setPins+" dst,dst", chainAllow, "a pinned address and port"),
		jump("pins-any", "-p tcp -m tcp "+syn+" -m set --match-set "+setPinsAny+" dst", chainAllow, "a pinned address, any TCP port"),
		jump(ruleUnlisted, "", chainReject+ruleUnlisted, "everything else"),
	)
	input.Rules = []netfilter.Rule{
		loopback(),
		{ID: "established", Match: "-p tcp -m tcp ! " + syn + " -m conntrack --ctstate ESTABLISHED", Target: "ACCEPT",
			Reason: "answers on TCP connections that were let through when new"},
		jump("resolve-in", "", chainResolveIn, "answers to "+lookups+empty),
		{ID: "fragmentation-needed", Match: "-p icmp -m icmp --icmp-type 3/4 -m conntrack --ctstate RELATED", Target: "ACCEPT",
			Reason: "without it uploads over a smaller MTU hang"},
	}
	for _, c := range g.Clients {
		input.Rules = append(input.Rules, netfilter.Rule{ID: fmt.Sprintf("client-%d", c.Port),
			Match: fmt.Sprintf("-s %s/32 -p tcp -m tcp --dport %d %s", c.Addr, c.Port, syn), Target: "ACCEPT",
			Reason: "a service of another gate that may call this one"})
	}
	allow := netfilter.Chain{Name: chainAllow, Rules: []netfilter.Rule{
		{ID: "allow" + recording, Match: limitAudit, Target: nflog(recordAllow, "allow"), Reason: "new allowed connections are recorded"},
		{ID: "allow", Target: "ACCEPT", Reason: "what the policy grants"},
	}}
	chains := []netfilter.Chain{input, forward, output, resolve, resolveIn, allow,
		reject(ruleDocker, "icmp-admin-prohibited"), reject(ruleUnlisted, "icmp-admin-prohibited")}
	if g.Class == spec.ClassPublic {
		chains = append(chains, public(g), reject(ruleSpecial, "icmp-admin-prohibited"), reject(ruleHost, "icmp-admin-prohibited"))
	}
	return netfilter.Ruleset{Family: netfilter.IPv4, Chains: chains}
}

// linkRule is the public ID of the rule that lets a link through.
func linkRule(l spec.Link) string { return fmt.Sprintf("link-%s-%d", l.Name, l.Port) }

// public refuses everything that is not globally routable, and what belongs to
// this host or to its containers, and grants the web's ports of the rest.
func public(g spec.Gate) netfilter.Chain {
	c := netfilter.Chain{Name: chainPublic}
	for _, b := range netguard.Special(4) {
		if within(b.Prefix, true) {
			continue
		}
		c.Rules = append(c.Rules, jump(ruleSpecial, "-d "+b.Prefix.String(), chainReject+ruleSpecial, b.Class.String()+": "+b.Class.Reason()))
	}
	for _, p := range never(g) {
		if p.Addr().Is4() && !within(p, false) {
			c.Rules = append(c.Rules, jump(ruleHost, "-d "+p.Masked().String(), chainReject+ruleHost, "this host, or one of its container networks"))
		}
	}
	for _, port := range publicPorts {
		c.Rules = append(c.Rules, jump(fmt.Sprintf("public-%d", port), fmt.Sprintf("-p tcp -m tcp --dport %d %s", port, syn), chainAllow, "the web, wherever it is"))
	}
	return c
}

// within reports whether a block that is not globally routable holds all of a prefix:
// then no packet to it would come so far. If other, it does not count itself.
func within(p netip.Prefix, other bool) bool {
	return slices.ContainsFunc(netguard.Special(4), func(b netguard.Block) bool {
		return b.Prefix.Bits() <= p.Bits() && b.Prefix.Contains(p.Addr()) && !(other && b.Prefix == p)
	})
}

// publicPorts are those of the web.
var publicPorts = []uint16{80, 443}

// never are the prefixes that nothing may be granted in by name or by class:
// those of the document, and the gate's own two addresses.
func never(g spec.Gate) []netip.Prefix {
	all := slices.Clone(g.Never)
	for _, a := range []netip.Addr{g.Address, g.Gateway} {
		if a.IsValid() {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// ipv6 grants loopback and nothing else: corral pins IPv4.
func ipv6(at stage) netfilter.Ruleset {
	chains := []netfilter.Chain{{Name: "INPUT", Policy: "DROP"}, {Name: "FORWARD", Policy: "DROP"}, {Name: "OUTPUT", Policy: "DROP"}}
	if at != serving && at != refreshing {
		return netfilter.Ruleset{Family: netfilter.IPv6, Chains: chains}
	}
	chains[0].Rules = []netfilter.Rule{loopback()}
	chains[2].Rules = append(seen(), jump("loopback", "-o lo -m addrtype --dst-type LOCAL", "ACCEPT", "the namespace's own programs among themselves"),
		jump(ruleIPv6, "", chainReject+ruleIPv6, "everything else"))
	return netfilter.Ruleset{Family: netfilter.IPv6, Chains: append(chains, reject(ruleIPv6, "icmp6-adm-prohibited"))}
}

func jump(id, match, chain, reason string) netfilter.Rule {
	return netfilter.Rule{ID: id, Match: match, Target: chain, Reason: reason}
}

func loopback() netfilter.Rule {
	return netfilter.Rule{ID: "loopback", Match: "-i lo", Target: "ACCEPT", Reason: "the namespace's own programs among themselves"}
}

// seen records packets from probe ports before anything is decided: of TCP the first
// one of a connection, which decides for all, so that those that are let through do
// not use up what a port may have recorded.
func seen() []netfilter.Rule {
	var rules []netfilter.Rule
	for _, of := range []struct{ proto, first string }{{"tcp", syn + " "}, {"udp", ""}} {
		rules = append(rules, netfilter.Rule{ID: recordSeen,
			Match:  fmt.Sprintf("-p %s -m %s --sport %d:%d %s%s", of.proto, of.proto, spec.ProbePortFirst, spec.ProbePortLast, of.first, limitSeen),
			Target: nflog(recordSeen, ""), Reason: "a probe's packet, whatever becomes of it"})
	}
	return rules
}

// reject is the chain of one refusing rule.
func reject(id, other string) netfilter.Chain {
	c := netfilter.Chain{Name: chainReject + id}
	for _, p := range []string{"tcp", "udp"} {
		c.Rules = append(c.Rules, netfilter.Rule{ID: id + "-probe",
			Match:  fmt.Sprintf("-p %s -m %s --sport %d:%d %s", p, p, spec.ProbePortFirst, spec.ProbePortLast, limitProbe),
			Target: nflog(recordProbe, id), Reason: "proof for a probe that it was refused here"})
	}
	c.Rules = append(c.Rules,
		netfilter.Rule{ID: id + recording, Match: limitAudit, Target: nflog(recordAudit, id), Reason: "refusals are recorded, as many as a log can bear"},
		netfilter.Rule{ID: id, Match: "-p tcp", Target: "REJECT --reject-with tcp-reset", Reason: "at once, and not rate-limited by the kernel as ICMP errors are"},
		netfilter.Rule{ID: id, Target: "REJECT --reject-with " + other, Reason: "refused by policy"})
	return c
}

// recording ends the public ID of the rule before another one that has a record made
// of what both match, as long as there are not too many.
const recording = "-record"

// unrecorded are the packets that began a connection, and those that were refused, of
// which no record was made.
func unrecorded(counters []netfilter.Counter) (allowed, denied uint64) {
	type place struct {
		family    netfilter.Family
		chain, id string
	}
	recorded, all := map[place]uint64{}, map[place]uint64{}
	for _, c := range counters {
		if id, is := strings.CutSuffix(c.ID, recording); is {
			recorded[place{c.Family, c.Chain, id}] = c.Packets
		} else {
			all[place{c.Family, c.Chain, c.ID}] += c.Packets
		}
	}
	for at, n := range recorded {
		missed := all[at] - min(all[at], n) // a packet may be between the two
		if at.chain == chainAllow {
			allowed += missed
		} else {
			denied += missed
		}
	}
	return allowed, denied
}

func nflog(record, id string) string {
	return fmt.Sprintf("NFLOG --nflog-prefix %q --nflog-group %d", "corral:"+record+":"+id, nflogGroup)
}

// sets are what the pins grant, what fades included.
func sets(pins []spec.Pin) []netfilter.Set {
	exact := netfilter.Set{Name: setPins}
	whole := netfilter.Set{Name: setPinsAny, AnyPort: true}
	grant := func(a netip.Addr, ports []uint16, anyPort bool) {
		if anyPort {
			whole.Entries = append(whole.Entries, netfilter.Entry{Addr: a})
			return
		}
		for _, port := range ports {
			exact.Entries = append(exact.Entries, netfilter.Entry{Addr: a, Port: port})
		}
	}
	for _, p := range pins {
		for _, a := range p.Addrs {
			grant(a, p.Ports, p.AnyPort)
		}
		for _, f := range p.Fading {
			grant(f.Addr, f.Ports, f.AnyPort)
		}
	}
	return []netfilter.Set{exact, whole}
}

// addresses are those that a pin grants.
func addresses(p spec.Pin) []netip.Addr {
	all := slices.Clone(p.Addrs)
	for _, f := range p.Fading {
		all = append(all, f.Addr)
	}
	return all
}

// grants reports whether the rules and sets of a document let new connections
// through to a destination: the same in Go as in the kernel.
func grants(g spec.Gate, pinned map[netfilter.Entry]bool, to netip.AddrPort) bool {
	a, port := to.Addr(), to.Port()
	switch {
	case pinned[netfilter.Entry{Addr: a, Port: port}], pinned[netfilter.Entry{Addr: a}]:
		return true
	case a == g.Gateway && slices.Contains(g.HostPorts, port):
		return true
	case slices.ContainsFunc(g.Links, func(l spec.Link) bool { return l.Addr == a && l.Port == port }):
		return true
	}
	return g.Class == spec.ClassPublic && slices.Contains(publicPorts, port) && netguard.Classify(a) == netguard.Public &&
		!slices.ContainsFunc(never(g), func(p netip.Prefix) bool { return p.Contains(a) })
}

// entries are what sets hold, to look things up in.
func entries(sets []netfilter.Set) map[netfilter.Entry]bool {
	all := map[netfilter.Entry]bool{}
	for _, s := range sets {
		for _, e := range s.Entries {
			all[e] = true
		}
	}
	return all
}

func sorted(ports []uint16) []uint16 {
	return slices.Compact(slices.Sorted(slices.Values(ports)))
}

func portsText(ports []uint16, any bool) string {
	if any {
		return "any"
	}
	var words []string
	for _, p := range ports {
		words = append(words, fmt.Sprint(p))
	}
	return strings.Join(words, " ")
}

func endpoint(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}
