package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// made is what a gate's rules stand on and it did not make itself: links, addresses,
// routes and what chooses them, what takes packets at a link, settings of the kernel,
// and what is mounted where its programs are. Whoever changes those leads packets past
// rules that are as they were, or has others read.
type made struct {
	is map[string]string // by subject
	// outer are the links that are up and lead out.
	outer []string
	// strange is what no engine makes for a gate.
	strange []string
}

func (m *made) add(subject, is string) { m.is[subject] = is }

func (m *made) object(format string, args ...any) {
	m.strange = append(m.strange, fmt.Sprintf(format, args...))
}

// readMade looks at the namespaces of this process. Links that are down are left out:
// they carry nothing, and a kernel puts some into every namespace when it learns of a
// kind of tunnel. So is of IPv6 all that the rules close without looking at it, which
// is everything but loopback: addresses and routes there come and go by themselves.
func readMade(mounts *mountTable) (made, error) {
	m := made{is: map[string]string{}}
	if err := m.readMounts(mounts); err != nil {
		return m, fmt.Errorf("mounts: %w", err)
	}
	up, err := m.readLinks()
	if err != nil {
		return m, fmt.Errorf("links: %w", err)
	}
	families := []int{netlink.FAMILY_V4}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		families = append(families, netlink.FAMILY_V6)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	for _, family := range families {
		for _, read := range []struct {
			what string
			do   func(int, map[int]string) error
		}{{"addresses", m.readAddresses}, {"routes", m.readRoutes}, {"rules for routes", m.readChoices}, {"neighbours", m.readNeighbours}} {
			if err := read.do(family, up); err != nil {
				return m, fmt.Errorf("%s: %w", read.what, err)
			}
		}
	}
	if err := m.readQueues(up); err != nil {
		return m, fmt.Errorf("queues: %w", err)
	}
	return m, m.readSettings("/proc/sys/net", slices.Collect(maps.Values(up)))
}

const loopbackLink = "lo"

// readLinks returns the names of those that are up, by number.
func (m *made) readLinks() (map[int]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	up := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagUp == 0 {
			continue
		}
		up[a.Index] = a.Name
		words := fmt.Sprintf("%s, number %d", l.Type(), a.Index)
		if a.RawFlags&unix.IFF_NOARP != 0 {
			words += ", which asks for no neighbour"
		}
		m.add("link "+a.Name, words)
		if a.Xdp != nil && a.Xdp.Attached {
			m.add("an XDP program at "+a.Name, "")
			m.object("an XDP program at %s", a.Name)
		}
		if a.Name != loopbackLink {
			m.outer = append(m.outer, a.Name)
		}
	}
	return up, nil
}

func (m *made) readAddresses(family int, _ map[int]string) error {
	addrs, err := netlink.AddrList(nil, family)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		link, err := linkName(a.LinkIndex)
		if err != nil {
			return err
		}
		if family == netlink.FAMILY_V6 && link != loopbackLink {
			continue
		}
		words := fmt.Sprintf("address %v on %s", a.IPNet, link)
		if a.Peer != nil && a.Peer.String() != a.IPNet.String() {
			words += fmt.Sprintf(" towards %v", a.Peer)
		}
		m.add(words, "")
		if link == loopbackLink && !a.IP.IsLoopback() {
			m.object("%s", words)
		}
	}
	return nil
}

// readNeighbours has those that somebody told the kernel, which asks for them no more,
// and those that the namespace answers for.
func (m *made) readNeighbours(family int, up map[int]string) error {
	told, err := netlink.NeighList(0, family)
	if err != nil {
		return err
	}
	answered, err := netlink.NeighProxyList(0, family)
	if err != nil {
		return err
	}
	crowds, err := broadcasts(family)
	if err != nil {
		return err
	}
	silent := map[int]bool{} // where the kernel asks for none
	for index := range up {
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return err
		}
		silent[index] = l.Attrs().RawFlags&unix.IFF_NOARP != 0
	}
	for _, n := range told {
		at := up[n.LinkIndex]
		if at == "" || at == loopbackLink || n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 && n.Flags&netlink.NTF_EXT_LEARNED == 0 {
			continue
		}
		if n.State == netlink.NUD_NOARP && (silent[n.LinkIndex] || n.IP.IsMulticast() || crowds[n.IP.String()]) {
			continue // the kernel's own
		}
		words := fmt.Sprintf("neighbour %v on %s that was told", n.IP, at)
		m.add(words, n.HardwareAddr.String())
		m.object("%s", words)
	}
	for _, n := range answered {
		words := fmt.Sprintf("neighbour %v that is answered for", n.IP)
		m.add(words, "")
		m.object("%s", words)
	}
	return nil
}

// broadcasts are the addresses of everybody on the networks of this namespace.
func broadcasts(family int) (map[string]bool, error) {
	all := map[string]bool{net.IPv4bcast.String(): true}
	if family != netlink.FAMILY_V4 {
		return all, nil
	}
	addrs, err := netlink.AddrList(nil, family)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		first, last := a.IP.Mask(a.Mask), slices.Clone(a.IP.To4())
		if bits, size := a.Mask.Size(); first == nil || last == nil || size-bits < 2 { // a network of one or two has none
			continue
		}
		for i := range last {
			last[i] |= ^a.Mask[i]
		}
		all[first.String()], all[last.String()] = true, true
	}
	return all, nil
}

func linkName(index int) (string, error) {
	l, err := net.InterfaceByIndex(index)
	if err != nil {
		return "", err
	}
	return l.Name, nil
}

// readRoutes has those of all tables; of IPv6 those that make more than single
// addresses the namespace's own.
func (m *made) readRoutes(family int, up map[int]string) error {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	dev := func(index int) string {
		if name := up[index]; name != "" {
			return name
		}
		return fmt.Sprint(index)
	}
	for _, r := range routes {
		to, bits := "default", 0
		if r.Dst != nil {
			to = r.Dst.String()
			bits, _ = r.Dst.Mask.Size()
		}
		if family == netlink.FAMILY_V6 && (r.Type != unix.RTN_LOCAL || bits == 128 && r.Table == unix.RT_TABLE_LOCAL) {
			continue
		}
		words := []string{"route", routeType(r.Type), to}
		for _, w := range []struct {
			name string
			is   any
			set  bool
		}{
			{"from", r.Src, r.Src != nil}, {"via", r.Gw, r.Gw != nil}, {"via", r.Via, r.Via != nil}, {"dev", dev(r.LinkIndex), r.LinkIndex != 0},
			{"table", r.Table, r.Table != unix.RT_TABLE_MAIN}, {"metric", r.Priority, r.Priority != 0}, {"tos", r.Tos, r.Tos != 0}, {"encap", r.Encap, r.Encap != nil},
		} {
			if w.set {
				words = append(words, w.name, fmt.Sprint(w.is))
			}
		}
		for _, hop := range r.MultiPath {
			words = append(words, fmt.Sprintf("nexthop via %v dev %s weight %d", hop.Gw, dev(hop.LinkIndex), hop.Hops+1))
		}
		m.add(strings.Join(words, " "), "")
	}
	return nil
}

func routeType(t int) string {
	if word := map[int]string{unix.RTN_UNICAST: "to", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}[t]; word != "" {
		return word
	}
	return fmt.Sprintf("type %d", t)
}

// ordinary are the rules for routes that a kernel begins a namespace with.
var ordinary = map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT}

// readChoices has the rules that choose a table of routes.
func (m *made) readChoices(family int, _ map[int]string) error {
	rules, err := netlink.RuleList(family)
	if err != nil {
		return err
	}
	plain := map[string]bool{}
	for priority, table := range ordinary {
		r := netlink.NewRule()
		r.Priority, r.Table = priority, table
		plain[choice(*r)] = true
	}
	version := map[int]string{netlink.FAMILY_V4: "IPv4", netlink.FAMILY_V6: "IPv6"}[family]
	for _, r := range rules {
		words := version + " " + choice(r)
		m.add(words, "")
		if !plain[choice(r)] {
			m.object("%s", words)
		}
	}
	return nil
}

func choice(r netlink.Rule) string {
	words := []string{fmt.Sprintf("rule %d of routes:", r.Priority)}
	if r.Invert {
		words = append(words, "not")
	}
	none := netlink.NewRule()
	pair := func(set bool, form string, values func() []any) {
		if set {
			words = append(words, fmt.Sprintf(form, values()...))
		}
	}
	value := func(set bool, form string, v any) { pair(set, form, func() []any { return []any{v} }) }
	value(r.Src != nil, "from %v", r.Src)
	value(r.Dst != nil, "to %v", r.Dst)
	value(r.IifName != "", "iif %s", r.IifName)
	value(r.OifName != "", "oif %s", r.OifName)
	pair(r.Mark != 0 || r.Mask != nil, "fwmark %#x/%#x", func() []any {
		mask := uint32(0)
		if r.Mask != nil {
			mask = *r.Mask
		}
		return []any{r.Mark, mask}
	})
	value(r.Tos != 0, "tos %#x", r.Tos)
	value(r.TunID != 0, "tunnel %d", r.TunID)
	value(r.IPProto != 0, "protocol %d", r.IPProto)
	pair(r.Sport != nil, "sport %d-%d", func() []any { return []any{r.Sport.Start, r.Sport.End} })
	pair(r.Dport != nil, "dport %d-%d", func() []any { return []any{r.Dport.Start, r.Dport.End} })
	pair(r.UIDRange != nil, "uid %d-%d", func() []any { return []any{r.UIDRange.Start, r.UIDRange.End} })
	value(r.SuppressIfgroup != none.SuppressIfgroup, "suppress group %d", r.SuppressIfgroup)
	value(r.SuppressPrefixlen != none.SuppressPrefixlen, "suppress length %d", r.SuppressPrefixlen)
	value(r.Goto != none.Goto, "goto %d", r.Goto)
	value(r.Flow != none.Flow, "realm %d", r.Flow)
	return strings.Join(append(words, fmt.Sprintf("table %d", r.Table)), " ")
}

// readQueues has what packets wait in, where programs can be put before and behind
// the rules.
func (m *made) readQueues(up map[int]string) error {
	queues, err := netlink.QdiscList(nil)
	if errors.Is(err, unix.EOPNOTSUPP) { // a kernel without any
		return nil
	}
	if err != nil {
		return err
	}
	for _, q := range queues {
		at := up[q.Attrs().LinkIndex]
		if at == "" {
			continue
		}
		words := fmt.Sprintf("queue %s at %s", q.Type(), at)
		m.add(words+fmt.Sprintf(" (%s under %s)", netlink.HandleStr(q.Attrs().Handle), netlink.HandleStr(q.Attrs().Parent)), "")
		if slices.Contains([]string{"clsact", "ingress"}, q.Type()) {
			m.object("%s", words)
		}
	}
	return nil
}

// Settings of the kernel by which a packet comes or goes that would not otherwise:
// those of a namespace, and those that each link has too, with "all" and "default".
var (
	settingsRead = []string{
		"ipv4/ip_forward", "ipv4/ip_nonlocal_bind", "ipv4/ip_unprivileged_port_start", "ipv4/ping_group_range", localPorts, "ipv6/ip_nonlocal_bind",
		"netfilter/nf_conntrack_tcp_be_liberal", "netfilter/nf_conntrack_tcp_loose",
	}
	ofLinks = []string{
		"ipv4/conf/%s/forwarding", "ipv4/conf/%s/route_localnet", "ipv4/conf/%s/accept_source_route", "ipv4/conf/%s/accept_local",
		"ipv4/conf/%s/accept_redirects", "ipv4/conf/%s/rp_filter", "ipv4/conf/%s/src_valid_mark", "ipv4/conf/%s/proxy_arp",
		"ipv4/conf/%s/proxy_arp_pvlan", "ipv4/conf/%s/bc_forwarding", "ipv4/conf/%s/arp_ignore",
		"ipv6/conf/%s/forwarding", "ipv6/conf/%s/accept_source_route", "ipv6/conf/%s/seg6_enabled",
	}
	// neverSet are those that no engine sets and no namespace inherits.
	neverSet = []string{"ipv4/ip_nonlocal_bind", "ipv6/ip_nonlocal_bind"}
	// neverOfOne are those that no engine sets for one link. A namespace takes "all"
	// and "default" from the machine, where they may be set for reasons of its own,
	// and a link takes "default": only what it has otherwise was given to it.
	neverOfOne = []string{
		"ipv4/conf/%s/route_localnet", "ipv4/conf/%s/accept_source_route", "ipv4/conf/%s/accept_local", "ipv4/conf/%s/src_valid_mark",
		"ipv4/conf/%s/proxy_arp", "ipv4/conf/%s/proxy_arp_pvlan", "ipv4/conf/%s/bc_forwarding",
	}
	// unloaded are what settings are that come with a part of the kernel that the
	// gate's own rules may be the first to load.
	unloaded = map[string]string{"netfilter/nf_conntrack_tcp_be_liberal": "0", "netfilter/nf_conntrack_tcp_loose": "1"}
)

// localPorts is the range of ports for who names none.
const localPorts = "ipv4/ip_local_port_range"

func (m *made) readSettings(root string, links []string) error {
	names := slices.Clone(settingsRead)
	for _, form := range ofLinks {
		for _, l := range append([]string{"all", "default"}, links...) {
			names = append(names, fmt.Sprintf(form, l))
		}
	}
	words := func(name string) string { return "net." + strings.ReplaceAll(name, "/", ".") }
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(root, name))
		if otherwise, comes := unloaded[name]; comes && errors.Is(err, fs.ErrNotExist) {
			b, err = []byte(otherwise), nil
		}
		if errors.Is(err, fs.ErrNotExist) { // not every kernel has all
			continue
		}
		if err != nil {
			return err
		}
		is := strings.Join(strings.Fields(string(b)), " ")
		m.add(words(name), is)
		if is != "0" && slices.Contains(neverSet, name) {
			m.object("%s %s", words(name), is)
		}
		if name == localPorts && holdsProbePorts(is) {
			m.object("%s %s, in which ports %d to %d are, of proofs alone", words(name), is, spec.ProbePortFirst, spec.ProbePortLast)
		}
	}
	for _, form := range neverOfOne {
		for _, l := range links {
			name := words(fmt.Sprintf(form, l))
			if is := m.is[name]; is != "" && is != "0" && m.is[words(fmt.Sprintf(form, "default"))] == "0" {
				m.object("%s %s", name, is)
			}
		}
	}
	return nil
}

// holdsProbePorts reports whether a range of ports as the kernel prints it, first and
// last, has one of those that proofs are made from. One that cannot be read may.
func holdsProbePorts(text string) bool {
	var first, last int
	if n, err := fmt.Sscan(text, &first, &last); n != 2 || err != nil {
		return true
	}
	return first <= spec.ProbePortLast && last >= spec.ProbePortFirst
}

// diff says in one line each how another reading differs.
func (m made) diff(now made) []string {
	subjects := slices.AppendSeq(slices.Collect(maps.Keys(m.is)), maps.Keys(now.is))
	slices.Sort(subjects)
	lines := []string{}
	for _, subject := range slices.Compact(subjects) {
		was, before := m.is[subject]
		switch is, there := now.is[subject]; {
		case !there:
			lines = append(lines, subject+" is gone")
		case !before:
			lines = append(lines, subject+" is new")
		case is != was:
			lines = append(lines, fmt.Sprintf("%s is %s, not %s", subject, is, was))
		}
	}
	return lines
}

// altered is how the namespace differs from what it was when the gate began. Reading
// twice tells one where something changes just then from one that cannot be read.
func (g *gate) altered() ([]string, error) {
	g.mu.Lock()
	was := g.made
	g.mu.Unlock()
	now, err := readMade(g.mounts)
	if err != nil {
		now, err = readMade(g.mounts)
	}
	if err != nil {
		return nil, fmt.Errorf("the namespace cannot be read: %w", err)
	}
	return was.diff(now), nil
}

// errAltered is a namespace that is no longer as it was when the gate began.
var errAltered = errors.New("the namespace is not as it was when the gate began")

// unaltered is nil if it is.
func (g *gate) unaltered() error {
	lines, err := g.altered()
	if err != nil || len(lines) == 0 {
		return err
	}
	return alteredBy(lines)
}

func alteredBy(lines []string) error {
	return fmt.Errorf("%w: %s", errAltered, strings.Join(brieflyShown(lines), "; "))
}

// packetSockets are the sockets of the namespace that send or take packets past the
// rules, or as no program of a service does, but for those of the gate's own
// programs, which read and write rules by such. root is where /proc is, gate the
// number of the gate's process there.
func packetSockets(root, gate string) ([]string, error) {
	all, err := readPacketSockets(root)
	if err != nil || len(all) == 0 {
		return []string{}, err
	}
	own, err := socketsOfOwn(root, gate)
	if err != nil {
		return nil, err
	}
	again, err := readPacketSockets(root) // whose program has ended meanwhile has gone as well
	if err != nil {
		return nil, err
	}
	lines := []string{}
	for inode, words := range all {
		if again[inode] == words && !own[inode] {
			lines = append(lines, words)
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// readPacketSockets has them by inode, in words.
func readPacketSockets(root string) (map[string]string, error) {
	all := map[string]string{}
	for _, list := range []struct {
		table      string
		uid, inode int // columns
	}{{"packet", 7, 8}, {"raw", 7, 9}, {"raw6", 7, 9}} {
		b, err := os.ReadFile(filepath.Join(root, "proc/net", list.table))
		if errors.Is(err, fs.ErrNotExist) { // a kernel without them
			continue
		}
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(strings.TrimRight(string(b), "\n"), "\n") {
			if i == 0 { // the heading
				continue
			}
			f := strings.Fields(line)
			if len(f) <= list.inode {
				return nil, fmt.Errorf("/proc/net/%s: %q", list.table, strings.TrimSpace(line))
			}
			all[f[list.inode]] = fmt.Sprintf("a %s socket of user %s", list.table, f[list.uid])
		}
	}
	return all, nil
}

// socketsOfOwn are the inodes of sockets of a process and of the children that it
// started itself: who came in by the engine is of another session.
func socketsOfOwn(root, gate string) (map[string]bool, error) {
	processes, err := os.ReadDir(filepath.Join(root, "proc"))
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	session := ""
	if f := statIn(root, gate); len(f) > 3 {
		session = f[3]
	}
	for _, p := range processes {
		f := statIn(root, p.Name())
		if p.Name() != gate && (len(f) < 4 || f[1] != gate || f[3] != session) {
			continue
		}
		dir := filepath.Join(root, "proc", p.Name(), "fd")
		files, err := os.ReadDir(dir)
		if err != nil && p.Name() == gate {
			return nil, err
		}
		for _, file := range files {
			if to, err := os.Readlink(filepath.Join(dir, file.Name())); err == nil && strings.HasPrefix(to, "socket:[") {
				own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
			}
		}
	}
	return own, nil
}

// strangely is nil if a namespace that corral asked an engine for has nothing that
// no engine puts there: of ways out the one to the sandboxes' network, and one to that
// between the gates where the document has an address there.
func (m made) strangely(doc spec.Gate) error {
	strange := slices.Clone(m.strange)
	ways := 1
	if doc.Link.IsValid() {
		ways = 2
		if !slices.ContainsFunc(m.outer, func(link string) bool { return m.at(link, doc.Link) && !m.at(link, doc.Address) }) {
			strange = append(strange, fmt.Sprintf("no link of its own for %v", doc.Link))
		}
	}
	if len(m.outer) > ways {
		strange = append(strange, fmt.Sprintf("%d links that lead out", len(m.outer)))
	}
	if len(strange) == 0 {
		return nil
	}
	return fmt.Errorf("the namespace has what no engine makes: %s", strings.Join(brieflyShown(strange), "; "))
}

// at reports whether a link has an address.
func (m made) at(link string, addr netip.Addr) bool {
	for subject := range m.is {
		if words := strings.Fields(subject); len(words) >= 4 && words[0] == "address" && words[3] == link {
			if p, err := netip.ParsePrefix(words[1]); err == nil && p.Addr() == addr {
				return true
			}
		}
	}
	return false
}
