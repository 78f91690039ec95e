package netfilter

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nfTable is a table of nf_tables as the kernel lists it, whoever made it.
type nfTable struct {
	family uint8
	name   string
	flags  uint32
	use    uint32 // chains, sets and other objects
	chains []nfChain
}

type nfChain struct {
	name     string
	hooked   bool // packets reach it without a jump
	hook     uint32
	priority int32
	policy   uint32
	kind     string // filter, nat, route
	rules    []uint64
	acts     []nfRule // what each of them does
}

// Families and verdicts as the kernel numbers them.
const (
	nfINet  = 1
	nfIPv4  = 2
	nfIPv6  = 10
	nfAllow = 1

	nfDormant = 1 // of a table's flags: packets pass it as if it were not there
)

// Hooks of a packet's way that matter here.
const (
	hookInput   = 1
	hookForward = 2
	hookOutput  = 3
)

var nfFamilies = map[uint8]string{nfINet: "inet", nfIPv4: "ip", 3: "arp", 5: "netdev", 7: "bridge", nfIPv6: "ip6"}

// xtables are the tables that the iptables programs make.
var xtables = []string{"filter", "nat", "mangle", "raw", "security"}

func (t *nfTable) String() string {
	family := nfFamilies[t.family]
	if family == "" {
		family = fmt.Sprintf("family %d", t.family)
	}
	return family + " " + t.name
}

// rewrites says that a table is nat's, whoever made it: all of it has happened
// before the filter looks at what leaves, and it can be compared by its rules'
// numbers alone.
func (t *nfTable) rewrites() bool {
	return t.family == nfIPv4 && int(t.use) == len(t.chains) && !slices.ContainsFunc(t.chains, func(c nfChain) bool {
		return c.hooked && (c.kind != "nat" || c.hook == hookOutput && c.priority >= 0)
	})
}

// foreign is what packets of the table's family meet in it, "" if that is
// nothing.
func (t *nfTable) foreign(own bool) string {
	if own && t.flags&nfDormant != 0 {
		return "which is dormant"
	}
	made := (t.family == nfIPv4 || t.family == nfIPv6) && slices.Contains(xtables, t.name)
	rules := 0
	for _, c := range t.chains {
		rules += len(c.rules)
	}
	for _, c := range t.chains {
		switch {
		case !c.hooked:
		case own: // its rules are read by the programs
			hook := map[string]uint32{"INPUT": hookInput, "FORWARD": hookForward, "OUTPUT": hookOutput}[c.name]
			if hook == 0 || hook != c.hook || c.priority != 0 || c.kind != "filter" {
				return c.String()
			}
		case !made || rules > 0 || c.policy != nfAllow:
			return c.String()
		}
	}
	return ""
}

func (c nfChain) String() string {
	return fmt.Sprintf("chain %s (hook %d, priority %d)", c.name, c.hook, c.priority)
}

// Foreign says that packets meet rules which are not among those that are
// written and read here.
type Foreign struct{ text string }

func (f *Foreign) Error() string { return f.text }

// noOthers is nil if packets of a family meet the filter table of the backend,
// and nat, and nothing else in any table of either backend; or else a *Foreign. nat is
// what Rewriting reads; there is none for IPv6. The filter table is returned, if it is
// one of nf_tables.
func (k *Kernel) noOthers(ctx context.Context, f Family) (own *nfTable, err error) {
	tables, err := nftables(f)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if err := t.altering(); err != nil {
			return nil, err
		}
		ours := k.backend == nfTables && t.filters()
		if ours && (t.family == nfIPv6) == (f == IPv6) {
			own = t
		}
		if t.rewrites() {
			continue
		}
		if what := t.foreign(ours); what != "" {
			return nil, &Foreign{fmt.Sprintf("nf_tables has rules beside those of the gate: table %s, %s", t, what)}
		}
	}
	names, err := legacyTables(f)
	if err != nil {
		return nil, err
	}
	for _, table := range names {
		if table == "nat" && f == IPv4 || table == "filter" && k.backend == legacy {
			continue
		}
		name := program(f, k.legacy)
		out, err := list(ctx, name, "-t", table)
		if err != nil {
			return nil, err
		}
		chain, err := firstUsed(f, out)
		if err != nil {
			return nil, err
		}
		if chain != "" {
			if table != "filter" {
				name += " -t " + table
			}
			return nil, &Foreign{fmt.Sprintf("%s has rules beside those of the gate: chain %s", name, chain)}
		}
	}
	return own, nil
}

// firstUsed is the first chain with a rule or with a policy other than ACCEPT
// in what -S prints of any table.
func firstUsed(f Family, dashS string) (string, error) {
	r := Ruleset{Family: f}
	if _, err := r.read(dashS); err != nil {
		return "", err
	}
	for _, c := range r.Chains {
		if c.Policy != "ACCEPT" && c.Policy != "" || len(c.Rules) > 0 {
			return c.Name, nil
		}
	}
	return "", nil
}

// legacyTables are those that this namespace has. Asking the legacy programs
// would make them.
func legacyTables(f Family) ([]string, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + map[Family]string{IPv4: "ip_tables_names", IPv6: "ip6_tables_names"}[f])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return slices.Sorted(slices.Values(strings.Fields(string(names)))), err
}

// Rewriting is what can send a packet elsewhere before the filter sees it, in
// both backends, as text to compare: the engine's own rules are in it, and it is
// never written here. There is none for IPv6.
func (k *Kernel) Rewriting(ctx context.Context) (string, error) {
	text, err := list(ctx, program(IPv4, k.suffix), "-t", "nat")
	if err != nil {
		return "", err
	}
	tables, err := nftables(IPv4)
	if err != nil {
		return "", err
	}
	for _, t := range tables {
		if !t.rewrites() {
			continue
		}
		if k.backend == nfTables && t.name == "nat" { // all but what the programs do not print
			for _, c := range t.chains {
				text += fmt.Sprintf("nf_tables: table %s, chain %s, %x\n", t, c.name, c.digests())
			}
			continue
		}
		for _, c := range t.chains {
			text += fmt.Sprintf("nf_tables: table %s, %s, policy %d, rules %d, %x\n", t, c, c.policy, c.rules, c.digests())
		}
	}
	if k.backend == legacy {
		return text, nil
	}
	names, err := legacyTables(IPv4)
	if err != nil || !slices.Contains(names, "nat") {
		return text, err
	}
	more, err := list(ctx, program(IPv4, k.legacy), "-t", "nat")
	return text + more, err
}

// nftables are the tables of nf_tables in this namespace that packets of a
// family meet; those of no address family go with IPv4. None where the kernel
// has no nf_tables.
func nftables(f Family) ([]*nfTable, error) {
	var all []*nfTable
	find := func(family uint8, name string) *nfTable {
		i := slices.IndexFunc(all, func(t *nfTable) bool { return t.family == family && t.name == name })
		if i < 0 {
			return nil
		}
		return all[i]
	}
	met := func(family uint8) bool { return (family == nfIPv6) == (f == IPv6) || family == nfINet }
	changed := errors.New("nf_tables changed while it was read")
	err := dump(unix.NFT_MSG_GETTABLE, func(family uint8, attrs map[uint16][]byte) error {
		if met(family) {
			all = append(all, &nfTable{family: family, name: text(attrs[unix.NFTA_TABLE_NAME]), flags: number(attrs[unix.NFTA_TABLE_FLAGS]), use: number(attrs[unix.NFTA_TABLE_USE])})
		}
		return nil
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // no such subsystem
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = dump(unix.NFT_MSG_GETCHAIN, func(family uint8, attrs map[uint16][]byte) error {
		if !met(family) {
			return nil
		}
		t := find(family, text(attrs[unix.NFTA_CHAIN_TABLE]))
		if t == nil {
			return changed
		}
		c := nfChain{name: text(attrs[unix.NFTA_CHAIN_NAME]), policy: number(attrs[unix.NFTA_CHAIN_POLICY]), kind: text(attrs[unix.NFTA_CHAIN_TYPE])}
		if hook, hooked := attrs[unix.NFTA_CHAIN_HOOK]; hooked {
			nested, err := attributes(hook)
			if err != nil {
				return err
			}
			c.hooked, c.hook, c.priority = true, number(nested[unix.NFTA_HOOK_HOOKNUM]), int32(number(nested[unix.NFTA_HOOK_PRIORITY]))
		}
		t.chains = append(t.chains, c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = dump(unix.NFT_MSG_GETRULE, func(family uint8, attrs map[uint16][]byte) error {
		if !met(family) {
			return nil
		}
		t := find(family, text(attrs[unix.NFTA_RULE_TABLE]))
		if t == nil {
			return changed
		}
		i := slices.IndexFunc(t.chains, func(c nfChain) bool { return c.name == text(attrs[unix.NFTA_RULE_CHAIN]) })
		if i < 0 || len(attrs[unix.NFTA_RULE_HANDLE]) != 8 {
			return changed
		}
		c := &t.chains[i]
		handle := binary.BigEndian.Uint64(attrs[unix.NFTA_RULE_HANDLE])
		acts, err := readRule(handle, attrs[unix.NFTA_RULE_EXPRESSIONS])
		if err != nil {
			return fmt.Errorf("nf_tables: table %s, chain %s, rule with handle %d: %w", t, c.name, handle, err)
		}
		c.rules, c.acts = append(c.rules, handle), append(c.acts, acts)
		return nil
	})
	slices.SortFunc(all, func(a, b *nfTable) int {
		return cmp.Or(cmp.Compare(a.family, b.family), strings.Compare(a.name, b.name))
	})
	return all, err
}

// dump asks the kernel for all of a kind in all families.
func dump(what uint16, each func(family uint8, attrs map[uint16][]byte) error) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|int(what), unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			return errors.New("nf_tables: a message cut short")
		}
		attrs, err := attributes(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return fmt.Errorf("nf_tables: %w", err)
		}
		if err := each(m[0], attrs); err != nil {
			return err
		}
	}
	return nil
}

// attributes are those of a netlink message, by type.
func attributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	attrs := map[uint16][]byte{}
	for _, a := range list {
		attrs[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return attrs, nil
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
