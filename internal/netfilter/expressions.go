package netfilter

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// nfRule is what a rule of nf_tables does, of which the iptables programs print only
// what they know.
type nfRule struct {
	handle   uint64
	digest   [sha256.Size]byte // of its expressions, what its counters count left out
	altering string            // what it does to packets that no rule of a gate or of an engine does, "" for nothing
}

// sources are the attributes by which an expression that otherwise reads a packet, or
// what belongs to it, writes there.
var sources = map[string]uint16{
	"payload": unix.NFTA_PAYLOAD_SREG,
	"meta":    unix.NFTA_META_SREG,
	"ct":      unix.NFTA_CT_SREG,
	"exthdr":  nftaExthdrSource,
}

// nftaExthdrSource is NFTA_EXTHDR_SREG of linux/netfilter/nf_tables.h.
const nftaExthdrSource = 7

// diversions send packets elsewhere, or past other rules, or depend on what changes
// without a rule that changes.
var diversions = []string{"dup", "fwd", "queue", "tproxy", "synproxy", "notrack", "flow_offload", "dynset", "objref"}

// readRule reads the expressions of a rule.
func readRule(handle uint64, expressions []byte) (nfRule, error) {
	r := nfRule{handle: handle}
	sum := sha256.New()
	err := eachAttribute(expressions, func(kind int, element []byte) error {
		if kind != unix.NFTA_LIST_ELEM {
			return fmt.Errorf("attribute %d among its expressions", kind)
		}
		var name string
		var data []byte
		err := eachAttribute(element, func(kind int, value []byte) error {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				name = text(value)
			case unix.NFTA_EXPR_DATA:
				data = value
			}
			return nil
		})
		if err != nil {
			return err
		}
		if name == "" {
			return errors.New("an expression without a name")
		}
		acts, err := alters(name, data)
		if err != nil {
			return err
		}
		r.altering = cmp.Or(r.altering, acts)
		if name == "counter" {
			data = nil
		}
		for _, part := range [][]byte{[]byte(name), data} {
			sum.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
			sum.Write(part)
		}
		return nil
	})
	sum.Sum(r.digest[:0])
	return r, err
}

// alters is what an expression does to packets beyond judging them, in words.
func alters(name string, data []byte) (string, error) {
	if slices.Contains(diversions, name) {
		return "has " + name, nil
	}
	source, can := sources[name]
	if !can {
		return "", nil
	}
	writes := false
	err := eachAttribute(data, func(kind int, _ []byte) error {
		writes = writes || kind == int(source)
		return nil
	})
	if writes {
		return "writes " + name, err
	}
	return "", err
}

// filters says that a table is one that the iptables programs call filter.
func (t *nfTable) filters() bool {
	return t.name == "filter" && (t.family == nfIPv4 || t.family == nfIPv6)
}

// altering is nil if no rule of a table does what no rule of a gate or an engine does.
func (t *nfTable) altering() error {
	for _, c := range t.chains {
		for _, r := range c.acts {
			if r.altering != "" {
				return &Foreign{fmt.Sprintf("nf_tables has a rule that does more than refuse or accept: table %s, chain %s, the rule with handle %d %s", t, c.name, r.handle, r.altering)}
			}
		}
	}
	return nil
}

// printed is nil if the programs print as many rules of each chain as there are.
func (t *nfTable) printed(r Ruleset) error {
	for _, c := range t.chains {
		n := 0
		if i := slices.IndexFunc(r.Chains, func(p Chain) bool { return p.Name == c.name }); i >= 0 {
			n = len(r.Chains[i].Rules)
		}
		if n != len(c.acts) {
			return fmt.Errorf("nf_tables: table %s, chain %s: has %d rules, of which %d are printed", t, c.name, len(c.acts), n)
		}
	}
	return nil
}

func (c nfChain) digests() [][sha256.Size]byte {
	var all [][sha256.Size]byte
	for _, r := range c.acts {
		all = append(all, r.digest)
	}
	return all
}

// made is what the kernel had of each chain of the filter table right after it was
// written, where that is nf_tables. Rules can be replaced by such as print the same.
type made struct {
	mu     sync.Mutex
	chains map[Family]map[string]madeChain
}

// madeChain has a digest for each rule.
type madeChain struct {
	rules   []string
	digests [][sha256.Size]byte
}

// remember takes what a table has of the chains that were written.
func (m *made) remember(f Family, t *nfTable, written []Chain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.chains == nil {
		m.chains = map[Family]map[string]madeChain{}
	}
	if m.chains[f] == nil {
		m.chains[f] = map[string]madeChain{}
	}
	for _, w := range written {
		delete(m.chains[f], w.Name)
		if i := slices.IndexFunc(t.chains, func(c nfChain) bool { return c.name == w.Name }); i >= 0 {
			m.chains[f][w.Name] = madeChain{texts(w.Rules), t.chains[i].digests()}
		}
	}
}

// compare is nil if every rule that is printed as it was written is what it was then.
// What is printed otherwise is for Diff.
func (m *made) compare(t *nfTable, printed Ruleset) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range t.chains {
		was, written := m.chains[printed.Family][c.name]
		i := slices.IndexFunc(printed.Chains, func(p Chain) bool { return p.Name == c.name })
		if !written || i < 0 || !slices.Equal(texts(printed.Chains[i].Rules), was.rules) {
			continue
		}
		for i, r := range c.acts {
			if i >= len(was.digests) || r.digest != was.digests[i] {
				return fmt.Errorf("nf_tables: table %s, chain %s: rule %d (handle %d) is not as it was written, whatever is printed of it", t, c.name, i+1, r.handle)
			}
		}
	}
	return nil
}

// dumpTries is how often the tables are read anew that changed while they were read.
const dumpTries = 3

// note remembers what was just written.
func (k *Kernel) note(f Family, written []Chain) error {
	if k.backend != nfTables {
		return nil
	}
	var tables []*nfTable
	var err error
	for range dumpTries {
		if tables, err = nftables(f); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(tables, func(t *nfTable) bool { return t.filters() })
	if i < 0 {
		return fmt.Errorf("nf_tables: no table filter for %s after it was written", f)
	}
	k.made.remember(f, tables[i], written)
	return nil
}
