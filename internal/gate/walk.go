package gate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Packets go through the kernel's rules here on paper, as read back, for what no
// program of a service can send: a checker proves the rest by sending it. What ought
// to become of each comes from the document and not from the rules.

// traveller is a packet as rules see it.
type traveller struct {
	chain        string // where it meets the rules
	device       string // that it comes in by, or leaves by
	proto        string // "tcp", "udp", "icmp" or the number of another
	src, dst     netip.Addr
	local        bool // dst is this namespace's own
	sport, dport uint16
	flags        string // of TCP, those of FIN, SYN, RST and ACK that are set
	icmp         string // TYPE/CODE
	state        string // of its connection
	uid          uint32 // whose it is, on its way out
}

func (p traveller) String() string {
	words := []string{p.chain, p.device, p.proto}
	end := func(a netip.Addr, port uint16) string { return strings.TrimSuffix(fmt.Sprintf("%v:%d", a, port), ":0") }
	words = append(words, end(p.src, p.sport)+">"+end(p.dst, p.dport))
	for _, w := range []string{p.flags, p.icmp, p.state} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ") + fmt.Sprintf(" uid %d", p.uid)
}

// What becomes of a packet: its records in order, each in the words of its NFLOG
// prefix, and the end.
const (
	endAccept = "ACCEPT"
	endDrop   = "DROP"
	endReset  = "REJECT --reject-with tcp-reset"
	endTold   = "REJECT --reject-with icmp-admin-prohibited"
	endTold6  = "REJECT --reject-with icmp6-adm-prohibited"
)

// course is what rules and sets make of packets, with every rule read once.
type course []stretch

// stretch is a chain.
type stretch struct {
	name, policy string
	turnings     []turning
}

// turning is a rule: where it leads what has all its traits. One of record, end
// and to says that.
type turning struct {
	traits []trait
	record string // in the words of its NFLOG prefix
	end    string
	to     int // the index of a chain
}

// trait is what a match asks of a packet. When busy, no limit lets anything more through.
type trait func(p *traveller, busy bool) bool

// plotted reads rules. One that it does not understand is an error, wherever it stands.
func plotted(r netfilter.Ruleset, sets []netfilter.Set) (course, error) {
	var c course
	named := map[string]int{}
	for i, chain := range r.Chains {
		named[chain.Name] = i
		c = append(c, stretch{name: chain.Name, policy: chain.Policy})
	}
	for i, chain := range r.Chains {
		for _, rule := range chain.Rules {
			all, err := traits(rule.Match, sets)
			if err != nil {
				return nil, fmt.Errorf("rule %s of %s: %w", rule.ID, chain.Name, err)
			}
			s := turning{traits: all}
			target, args, _ := strings.Cut(rule.Target, " ")
			switch target {
			case "NFLOG":
				_, prefix, _ := strings.Cut(args, "--nflog-prefix ")
				prefix, _, _ = strings.Cut(prefix, " ")
				s.record = strings.Trim(prefix, `"`)
				if s.record == "" {
					return nil, fmt.Errorf("rule %s of %s: a record without a prefix", rule.ID, chain.Name)
				}
			case endAccept, endDrop, "REJECT":
				s.end = rule.Target
			default:
				var is bool
				if s.to, is = named[target]; !is {
					return nil, fmt.Errorf("rule %s of %s: no chain is called %s", rule.ID, chain.Name, target)
				}
			}
			c[i].turnings = append(c[i].turnings, s)
		}
	}
	return c, nil
}

// walk takes a packet through the rules.
func (c course) walk(p *traveller, busy bool) (string, error) {
	const deepest = 8
	var records []string
	var through func(i, depth int) (string, error)
	through = func(i, depth int) (string, error) {
		if depth > deepest {
			return "", fmt.Errorf("no way through chain %s", c[i].name)
		}
	turnings:
		for _, s := range c[i].turnings {
			for _, holds := range s.traits {
				if !holds(p, busy) {
					continue turnings
				}
			}
			switch {
			case s.record != "":
				records = append(records, s.record)
			case s.end != "":
				return s.end, nil
			default:
				if end, err := through(s.to, depth+1); err != nil || end != "" {
					return end, err
				}
			}
		}
		if depth == 0 {
			return c[i].policy, nil
		}
		return "", nil
	}
	first := slices.IndexFunc(c, func(s stretch) bool { return s.name == p.chain })
	if first < 0 {
		return "", fmt.Errorf("no chain is called %s", p.chain)
	}
	end, err := through(first, 0)
	return strings.Join(append(records, end), " "), err
}

// traits takes the match of a rule apart. What it is about has all of them.
func traits(match string, sets []netfilter.Set) ([]trait, error) {
	var all []trait
	words := strings.Fields(match)
	for i := 0; i < len(words); {
		not := words[i] == "!"
		if not {
			i++
		}
		if i >= len(words) {
			return nil, fmt.Errorf("%q", match)
		}
		option := words[i]
		j := i + 1
		for j < len(words) && words[j] != "!" && !strings.HasPrefix(words[j], "-") {
			j++
		}
		holds, err := read(option, words[i+1:j], sets)
		if err != nil {
			return nil, err
		}
		if not {
			all = append(all, func(p *traveller, busy bool) bool { return !holds(p, busy) })
		} else {
			all = append(all, holds)
		}
		i = j
	}
	return all, nil
}

// read is what an option of a match says.
func read(option string, args []string, sets []netfilter.Set) (trait, error) {
	arg := strings.Join(args, " ")
	within := func(of func(*traveller) netip.Addr) (trait, error) {
		prefix, err := netip.ParsePrefix(arg)
		return func(p *traveller, _ bool) bool { return prefix.Contains(of(p)) }, err
	}
	between := func(of func(*traveller) uint16) (trait, error) {
		first, last, ranged := strings.Cut(arg, ":")
		if !ranged {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("port %q", arg)
		}
		return func(p *traveller, _ bool) bool { return uint64(of(p)) >= a && uint64(of(p)) <= b }, nil
	}
	always := func(*traveller, bool) bool { return true }
	switch option {
	case "-m":
		if arg == "hashlimit" || arg == "limit" {
			return func(_ *traveller, busy bool) bool { return !busy }, nil
		}
		return always, nil // what it says stands in what follows
	case "-s":
		return within(func(p *traveller) netip.Addr { return p.src })
	case "-d":
		return within(func(p *traveller) netip.Addr { return p.dst })
	case "-i":
		return func(p *traveller, _ bool) bool { return p.chain != "OUTPUT" && arg == p.device }, nil
	case "-o":
		return func(p *traveller, _ bool) bool { return p.chain == "OUTPUT" && arg == p.device }, nil
	case "-p":
		return func(p *traveller, _ bool) bool { return arg == p.proto }, nil
	case "--sport":
		return between(func(p *traveller) uint16 { return p.sport })
	case "--dport":
		return between(func(p *traveller) uint16 { return p.dport })
	case "--tcp-flags":
		if len(args) != 2 {
			return nil, fmt.Errorf("flags %q", arg)
		}
		among, set := strings.Split(args[0], ","), strings.Split(args[1], ",")
		return func(p *traveller, _ bool) bool {
			for _, f := range among {
				if slices.Contains(strings.Split(p.flags, ","), f) != slices.Contains(set, f) {
					return false
				}
			}
			return true
		}, nil
	case "--icmp-type":
		return func(p *traveller, _ bool) bool { return arg == p.icmp }, nil
	case "--ctstate":
		states := strings.Split(arg, ",")
		return func(p *traveller, _ bool) bool { return slices.Contains(states, p.state) }, nil
	case "--uid-owner":
		uid, err := strconv.ParseUint(arg, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("owner %q", arg)
		}
		return func(p *traveller, _ bool) bool { return uint32(uid) == p.uid }, nil
	case "--dst-type":
		return func(p *traveller, _ bool) bool { return arg == "LOCAL" && p.local }, nil
	case "--match-set":
		i := slices.IndexFunc(sets, func(s netfilter.Set) bool { return len(args) == 2 && s.Name == args[0] })
		if i < 0 || args[1] != map[bool]string{true: "dst", false: "dst,dst"}[sets[i].AnyPort] {
			return nil, fmt.Errorf("set %q", arg)
		}
		holds := entries(sets[i : i+1])
		if sets[i].AnyPort {
			return func(p *traveller, _ bool) bool { return holds[netfilter.Entry{Addr: p.dst}] }, nil
		}
		return func(p *traveller, _ bool) bool {
			return p.proto == "tcp" && holds[netfilter.Entry{Addr: p.dst, Port: p.dport}]
		}, nil
	}
	if strings.HasPrefix(option, "--hashlimit-") || strings.HasPrefix(option, "--limit") {
		return always, nil // of a module that said no already
	}
	return nil, fmt.Errorf("%s %s is not understood", option, arg)
}

// expected is a packet and what must become of it: the records that are made of it
// unless there are too many, and the end.
type expected struct {
	traveller
	records, end string
}

// The ends of the ports of probes, and their neighbours.
const (
	firstProbe, lastProbe   = spec.ProbePortFirst, spec.ProbePortLast
	beforeProbe, afterProbe = spec.ProbePortFirst - 1, spec.ProbePortLast + 1
	someProbe, somePort     = spec.ProbePortFirst + 50, 40000
)

const (
	outer, inner = "eth0", "lo"
	onlySYN      = "SYN"
	onlyACK      = "ACK"
	echo         = "8/0"
	tooBig       = "3/4"
	agent        = 1000 // anybody who is not the worker
)

// mostPins bounds the pins that are tried, of each kind: the rules do not tell one
// from another.
const mostPins = 64

// journeys are packets of every kind to wherever a document speaks of, IPv4.
func journeys(g spec.Gate, at stage, pins []spec.Pin) []expected {
	lookups := at == refreshing || g.Class == spec.ClassPublic
	own := g.Address
	if !own.IsValid() {
		own = netip.AddrFrom4([4]byte{192, 0, 2, 254})
	}
	loop := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	docker := dockerResolver.Addr()
	granted := entries(sets(pins))
	var all []expected
	add := func(p traveller, records, end string) { all = append(all, expected{p, records, end}) }
	// out fills in what a packet of a service has as a rule.
	out := func(p traveller) traveller {
		p.chain = "OUTPUT"
		if p.device == "" {
			p.device = outer
		}
		if !p.src.IsValid() {
			p.src = own
		}
		if p.state == "" {
			p.state = "NEW"
		}
		if p.uid == 0 {
			p.uid = agent
		}
		if p.sport == 0 && (p.proto == "tcp" || p.proto == "udp") {
			p.sport = somePort
		}
		return p
	}
	refuse := func(p traveller, rule string) {
		p = out(p)
		records := "corral:" + recordAudit + ":" + rule
		if p.sport >= firstProbe && p.sport <= lastProbe {
			records = "corral:" + recordSeen + ": corral:" + recordProbe + ":" + rule + " " + records
		}
		end := endTold
		if p.proto == "tcp" {
			end = endReset
		}
		add(p, records, end)
	}
	accept := func(p traveller, recorded bool) {
		p = out(p)
		var records []string
		if p.sport >= firstProbe && p.sport <= lastProbe && (p.proto != "tcp" || p.flags == onlySYN) {
			records = append(records, "corral:"+recordSeen+":")
		}
		if recorded {
			records = append(records, "corral:"+recordAllow+":allow")
		}
		add(p, strings.Join(records, " "), endAccept)
	}
	// ruleFor is the rule that refuses what no other rule is about.
	ruleFor := func(to netip.Addr) string {
		if g.Class != spec.ClassPublic {
			return ruleUnlisted
		}
		switch {
		case netguard.Classify(to) != netguard.Public:
			return ruleSpecial
		case slices.ContainsFunc(never(g), func(p netip.Prefix) bool { return p.Contains(to) }):
			return ruleHost
		}
		return ruleUnlisted
	}
	// closed are all ways to an address but new connections to ports that are granted.
	closed := func(to netip.Addr, ports ...uint16) {
		rule := ruleFor(to)
		ports = append(ports, 22, 53, 80, 443, 853, 8445)
		for _, port := range slices.Compact(slices.Sorted(slices.Values(ports))) {
			if !grants(g, granted, netip.AddrPortFrom(to, port)) {
				refuse(traveller{proto: "tcp", dst: to, dport: port, flags: onlySYN}, rule)
				refuse(traveller{proto: "tcp", dst: to, dport: port, flags: onlySYN, state: "ESTABLISHED"}, rule)
			}
			refuse(traveller{proto: "udp", dst: to, dport: port}, rule)
			refuse(traveller{proto: "tcp", dst: to, dport: port, flags: onlyACK}, rule)
		}
		for _, state := range []string{"ESTABLISHED", "RELATED"} {
			refuse(traveller{proto: "udp", dst: to, dport: 53, state: state}, rule)
			refuse(traveller{proto: "icmp", dst: to, icmp: echo, state: state}, rule)
		}
		refuse(traveller{proto: "icmp", dst: to, icmp: echo}, rule)
		refuse(traveller{proto: "icmp", dst: to, icmp: "3/13", state: "RELATED"}, rule)
		refuse(traveller{proto: "132", dst: to}, rule)
		refuse(traveller{proto: "tcp", dst: to, dport: 8445, flags: "ACK", state: "INVALID"}, rule)
		refuse(traveller{proto: "tcp", dst: to, dport: 8445, flags: "RST", state: "INVALID", device: inner}, rule)
		accept(traveller{proto: "tcp", dst: to, dport: 8445, flags: onlyACK, state: "ESTABLISHED"}, false)
		accept(traveller{proto: "tcp", dst: to, sport: someProbe, dport: 8445, flags: onlyACK, state: "ESTABLISHED"}, false)
	}
	open := func(to netip.Addr, port uint16) {
		for _, sport := range []uint16{somePort, someProbe} {
			accept(traveller{proto: "tcp", dst: to, sport: sport, dport: port, flags: onlySYN}, true)
		}
		refuse(traveller{proto: "tcp", dst: to, dport: port, flags: onlyACK}, ruleFor(to))
		refuse(traveller{proto: "tcp", dst: to, dport: port, flags: "SYN,ACK"}, ruleFor(to))
	}

	stranger := g.Probes.Unlisted
	where := slices.Clone(g.HostPorts)
	for _, l := range g.Links {
		where = append(where, l.Port)
	}
	for _, a := range []netip.Addr{stranger, g.Probes.Resolver, g.Probes.Metadata} {
		closed(a, where...)
	}
	refuse(traveller{proto: "udp", dst: stranger, dport: 443, device: inner}, ruleFor(stranger))
	// Records are for the ports of probes, and for those alone.
	for _, proto := range []string{"tcp", "udp"} {
		for _, sport := range []uint16{beforeProbe, firstProbe, someProbe, lastProbe, afterProbe} {
			refuse(traveller{proto: proto, dst: stranger, sport: sport, dport: 443, flags: map[string]string{"tcp": onlySYN}[proto]}, ruleFor(stranger))
			refuse(traveller{proto: proto, dst: docker, sport: sport, dport: 53, device: inner, local: true, flags: map[string]string{"tcp": onlySYN}[proto]}, ruleDocker)
		}
	}
	// The engine's resolver, and who speaks in its name.
	for _, proto := range []string{"tcp", "udp"} {
		refuse(traveller{proto: proto, src: loop, dst: docker, dport: 41000, device: inner, local: true, flags: map[string]string{"tcp": onlySYN}[proto]}, ruleDocker)
		refuse(traveller{proto: proto, src: docker, dst: loop, dport: 53, device: inner, local: true, flags: map[string]string{"tcp": onlyACK}[proto]}, ruleDocker)
		refuse(traveller{proto: proto, src: docker, dst: loop, dport: 53, device: inner, local: true, state: "ESTABLISHED", flags: map[string]string{"tcp": onlyACK}[proto]}, ruleDocker)
	}
	refuse(traveller{proto: "tcp", src: docker, dst: stranger, dport: 443, flags: "RST"}, ruleDocker)
	for _, src := range []netip.Addr{loop, docker} {
		refuse(traveller{proto: "tcp", src: src, dst: docker, dport: 443, flags: "RST", device: inner, local: true}, ruleDocker)
	}
	refuse(traveller{proto: "icmp", src: docker, dst: loop, icmp: "3/3", device: inner, local: true, state: "RELATED"}, ruleDocker)
	accept(traveller{proto: "tcp", src: docker, dst: loop, dport: somePort, flags: "RST,ACK", device: inner, local: true, state: "ESTABLISHED"}, false)
	add(out(traveller{proto: "icmp", src: docker, dst: loop, icmp: "3/13", device: inner, local: true, state: "RELATED"}), "", endDrop)
	// Loopback, by its device and to an address of its own.
	for _, proto := range []string{"tcp", "udp", "icmp"} {
		p := traveller{proto: proto, src: loop, dst: loop, local: true}
		if proto != "icmp" {
			p.dport = 53
		} else {
			p.icmp = "3/13"
		}
		by := p
		by.device = inner
		accept(by, false)
		if g.Class == spec.ClassPublic {
			refuse(p, ruleSpecial)
		} else {
			refuse(p, ruleUnlisted)
		}
	}
	// What is granted.
	tried := 0
	for _, p := range pins {
		for _, a := range p.Addrs[:min(1, len(p.Addrs))] {
			if tried++; tried > mostPins {
				break
			}
			closed(a)
			ports := p.Ports
			if p.AnyPort {
				ports = []uint16{1, 443, 65535}
			}
			for _, port := range ports[:min(len(ports), mostPins)] {
				open(a, port)
			}
		}
	}
	for _, port := range g.HostPorts {
		open(g.Gateway, port)
	}
	if g.Gateway.IsValid() {
		closed(g.Gateway)
	}
	for _, l := range g.Links {
		open(l.Addr, l.Port)
		closed(l.Addr)
	}
	// The worker's lookups, and nobody else's.
	for i, r := range g.Resolvers {
		for _, proto := range []string{"udp", "tcp"} {
			flags := map[string]string{"tcp": onlySYN}[proto]
			lookup := traveller{proto: proto, dst: r, dport: dnsPort, flags: flags, uid: spec.WorkerUID}
			if lookups {
				accept(lookup, false)
			} else {
				refuse(lookup, ruleUnlisted)
			}
			if i == 0 {
				lookup.uid = agent
				refuse(lookup, ruleFor(r))
				lookup.uid, lookup.dport = spec.WorkerUID, 853
				refuse(lookup, ruleFor(r))
				lookup.dst, lookup.dport = stranger, dnsPort
				refuse(lookup, ruleFor(stranger))
			}
		}
		refuse(traveller{proto: "132", dst: r, uid: spec.WorkerUID}, ruleFor(r))
	}
	if g.Class == spec.ClassPublic {
		for _, b := range netguard.Special(4) {
			for _, a := range []netip.Addr{b.Prefix.Addr(), lastOf(b.Prefix)} {
				if a != docker && a != own {
					refuse(traveller{proto: "tcp", dst: a, dport: 443, flags: onlySYN}, ruleSpecial)
				}
			}
		}
		for _, p := range never(g) {
			if a := p.Addr(); a.Is4() && netguard.Classify(a) == netguard.Public {
				for _, a := range []netip.Addr{p.Masked().Addr(), lastOf(p)} {
					closed(a)
					refuse(traveller{proto: "tcp", dst: a, sport: someProbe, dport: 443, flags: onlySYN}, ruleHost)
					for _, sport := range []uint16{beforeProbe, firstProbe, lastProbe, afterProbe} {
						refuse(traveller{proto: "udp", dst: a, sport: sport, dport: 443}, ruleHost)
					}
				}
			}
		}
		somebody := netip.AddrFrom4([4]byte{1, 2, 3, 4}) // no packet goes there
		if !slices.ContainsFunc(never(g), func(p netip.Prefix) bool { return p.Contains(somebody) }) {
			closed(somebody)
			for _, port := range publicPorts {
				open(somebody, port)
			}
		}
	}
	return append(all, arrivals(g, lookups, own)...)
}

// arrivals are packets from outside, and those on their way through.
func arrivals(g spec.Gate, lookups bool, own netip.Addr) (all []expected) {
	come := func(p traveller, end string) {
		p.chain, p.dst, p.local = "INPUT", own, true
		if p.device == "" {
			p.device = outer
		}
		all = append(all, expected{traveller: p, end: end})
	}
	from := g.Probes.Unlisted
	for _, who := range []netip.Addr{from, g.Gateway} {
		if !who.Is4() {
			continue
		}
		for _, port := range []uint16{22, 53, 8080, someProbe} {
			for _, flags := range []string{onlySYN, onlyACK, "SYN,ACK", "RST"} {
				for _, state := range []string{"NEW", "INVALID"} {
					come(traveller{proto: "tcp", src: who, sport: 443, dport: port, flags: flags, state: state}, endDrop)
				}
			}
			come(traveller{proto: "tcp", src: who, sport: 443, dport: port, flags: onlySYN, state: "ESTABLISHED"}, endDrop)
			come(traveller{proto: "tcp", src: who, sport: 443, dport: port, flags: onlyACK, state: "ESTABLISHED"}, endAccept)
			for _, state := range []string{"NEW", "ESTABLISHED", "RELATED"} {
				come(traveller{proto: "udp", src: who, sport: somePort, dport: port, state: state}, endDrop)
				come(traveller{proto: "132", src: who, state: state}, endDrop)
			}
		}
		for _, icmp := range []string{echo, "0/0", "3/1", tooBig, "5/1"} {
			for _, state := range []string{"NEW", "ESTABLISHED", "INVALID", "RELATED"} {
				end := endDrop
				if icmp == tooBig && state == "RELATED" {
					end = endAccept
				}
				come(traveller{proto: "icmp", src: who, icmp: icmp, state: state}, end)
			}
		}
	}
	for _, proto := range []string{"tcp", "udp", "icmp"} {
		come(traveller{proto: proto, src: own, device: inner, state: "NEW", sport: somePort, dport: 53, flags: onlySYN, icmp: echo}, endAccept)
	}
	for _, r := range g.Resolvers {
		end := endDrop
		if lookups {
			end = endAccept
		}
		come(traveller{proto: "udp", src: r, sport: dnsPort, dport: somePort, state: "ESTABLISHED"}, end)
		come(traveller{proto: "udp", src: from, sport: dnsPort, dport: somePort, state: "ESTABLISHED"}, endDrop)
		come(traveller{proto: "udp", src: r, sport: dnsPort, dport: somePort, state: "NEW"}, endDrop)
		come(traveller{proto: "udp", src: r, sport: dnsPort + 1, dport: somePort, state: "ESTABLISHED"}, endDrop)
		come(traveller{proto: "tcp", src: r, sport: dnsPort, dport: somePort, flags: onlyACK, state: "NEW"}, endDrop)
		come(traveller{proto: "132", src: r, state: "ESTABLISHED"}, endDrop)
	}
	for _, c := range g.Clients {
		come(traveller{proto: "tcp", src: c.Addr, sport: somePort, dport: c.Port, flags: onlySYN, state: "NEW"}, endAccept)
		come(traveller{proto: "tcp", src: c.Addr, sport: somePort, dport: c.Port, flags: onlyACK, state: "NEW"}, endDrop)
		come(traveller{proto: "udp", src: c.Addr, sport: somePort, dport: c.Port, state: "NEW"}, endDrop)
		for _, other := range []traveller{{src: from, dport: c.Port}, {src: c.Addr, dport: 22}} {
			if !slices.Contains(g.Clients, spec.Client{Addr: other.src, Port: other.dport}) {
				other.proto, other.sport, other.flags, other.state = "tcp", somePort, onlySYN, "NEW"
				come(other, endDrop)
			}
		}
	}
	for _, device := range []string{outer, inner} {
		for _, p := range []traveller{{proto: "tcp", flags: onlySYN, state: "NEW"}, {proto: "tcp", flags: onlyACK, state: "ESTABLISHED"}, {proto: "udp", state: "NEW"}, {proto: "icmp", icmp: tooBig, state: "RELATED"}} {
			p.chain, p.device, p.src, p.dst, p.sport, p.dport = "FORWARD", device, own, from, somePort, 443
			all = append(all, expected{traveller: p, end: endDrop})
		}
	}
	return all
}

// journeysIPv6 are those of a family of which loopback alone is granted.
func journeysIPv6(g spec.Gate) (all []expected) {
	own, loop := netip.MustParseAddr("2001:db8::2"), netip.IPv6Loopback()
	add := func(p traveller, records, end string) { all = append(all, expected{p, records, end}) }
	for _, proto := range []string{"tcp", "udp", "58", "132"} {
		end := endTold6
		p := traveller{chain: "OUTPUT", device: outer, proto: proto, src: own, dst: g.Probes.IPv6, state: "NEW", uid: agent}
		ports := []uint16{0}
		if proto == "tcp" || proto == "udp" {
			p.dport, ports = 443, []uint16{beforeProbe, firstProbe, someProbe, lastProbe, afterProbe, somePort}
		}
		if proto == "tcp" {
			p.flags, end = onlySYN, endReset
		}
		for _, p.sport = range ports {
			records := "corral:" + recordAudit + ":" + ruleIPv6
			if p.sport >= firstProbe && p.sport <= lastProbe {
				records = "corral:" + recordSeen + ": corral:" + recordProbe + ":" + ruleIPv6 + " " + records
			}
			add(p, records, end)
		}
		by := p
		by.sport, by.device = ports[0], inner // to nobody here
		records := "corral:" + recordAudit + ":" + ruleIPv6
		add(by, records, end)
		by.device, by.dst, by.local = outer, loop, true
		add(by, records, end)
		by.device = inner
		add(by, "", endAccept)
		if p.dport != 0 {
			by.sport = someProbe
			add(by, "corral:"+recordSeen+":", endAccept)
		}
		if proto == "tcp" {
			by.flags = onlyACK
			add(by, "", endAccept)
		}
		for _, state := range []string{"NEW", "ESTABLISHED", "RELATED"} {
			come := traveller{chain: "INPUT", device: outer, proto: proto, src: g.Probes.IPv6, dst: own, local: true, dport: 8080, flags: p.flags, state: state}
			add(come, "", endDrop)
			come.chain = "FORWARD"
			add(come, "", endDrop)
		}
		add(traveller{chain: "INPUT", device: inner, proto: proto, src: loop, dst: loop, local: true, dport: 53, flags: p.flags, state: "NEW"}, "", endAccept)
	}
	return all
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// shownHoles is how many differences are worth telling.
const shownHoles = 5

// astray says what the rules would do with packets otherwise than a document and its
// pins say at a stage, of how many packets. Nothing means that they do as they should.
// Pure.
func astray(g spec.Gate, at stage, pins []spec.Pin, rules []netfilter.Ruleset, have []netfilter.Set) (walked int, wrong []string) {
	wrong = netfilter.DiffSets(sets(pins), have)
	for _, r := range rules {
		all := journeys(g, at, pins)
		if r.Family == netfilter.IPv6 {
			all = journeysIPv6(g)
		}
		c, err := plotted(r, have)
		if err != nil {
			return 0, []string{"cannot tell: " + err.Error()}
		}
		walked += len(all)
		for _, e := range all {
			for _, busy := range []bool{false, true} {
				want := strings.TrimSpace(e.records + " " + e.end)
				if busy {
					want = e.end
				}
				got, err := c.walk(&e.traveller, busy)
				switch {
				case err != nil:
					return 0, []string{"cannot tell: " + err.Error()}
				case got != want:
					wrong = append(wrong, fmt.Sprintf("%s: %v: %s, not %s", r.Family, e.traveller, got, want))
				}
			}
		}
	}
	if n := len(wrong); n > shownHoles {
		wrong = append(wrong[:shownHoles], fmt.Sprintf("and %d more", n-shownHoles))
	}
	return walked, wrong
}
