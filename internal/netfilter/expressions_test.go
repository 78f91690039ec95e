package netfilter

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// attr is a netlink attribute.
func attr(kind int, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, uint16(kind)), value...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func nested(kind int, parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return attr(kind|unix.NLA_F_NESTED, all...)
}

func expression(name string, attrs ...[]byte) []byte {
	return nested(unix.NFTA_LIST_ELEM, attr(unix.NFTA_EXPR_NAME, append([]byte(name), 0)...), nested(unix.NFTA_EXPR_DATA, attrs...))
}

// Rules read packets, their marks and their connections; that they write none of
// them, and send none elsewhere, is true of every rule of a gate and of an engine.
func TestAlteringExpressions(t *testing.T) {
	register := []byte{0, 0, 0, 1}
	for _, tt := range []struct {
		what       string
		expression []byte
		want       string
	}{
		{"reads the payload", expression("payload", attr(unix.NFTA_PAYLOAD_DREG, register...)), ""},
		{"writes it", expression("payload", attr(unix.NFTA_PAYLOAD_LEN, 0, 0, 0, 4), attr(unix.NFTA_PAYLOAD_SREG, register...)), "writes payload"},
		{"reads a mark", expression("meta", attr(unix.NFTA_META_DREG, register...)), ""},
		{"writes a mark", expression("meta", attr(unix.NFTA_META_KEY, 0, 0, 0, 3), attr(unix.NFTA_META_SREG, register...)), "writes meta"},
		{"reads a connection", expression("ct", attr(unix.NFTA_CT_DREG, register...)), ""},
		{"writes its mark", expression("ct", attr(unix.NFTA_CT_SREG, register...)), "writes ct"},
		{"reads an option", expression("exthdr", attr(1, register...)), ""},
		{"writes an option", expression("exthdr", attr(nftaExthdrSource, register...)), "writes exthdr"},
		{"an immediate", expression("immediate", attr(unix.NFTA_IMMEDIATE_DREG, register...)), ""},
		{"the engine's nat", expression("nat", attr(5, register...)), ""},
		{"dup", expression("dup"), "has dup"},
		{"fwd", expression("fwd"), "has fwd"},
		{"queue", expression("queue"), "has queue"},
		{"tproxy", expression("tproxy"), "has tproxy"},
		{"dynset", expression("dynset"), "has dynset"},
		{"objref", expression("objref"), "has objref"},
		{"notrack", expression("notrack"), "has notrack"},
	} {
		for _, all := range [][]byte{tt.expression, append(expression("counter"), tt.expression...), append(tt.expression[:len(tt.expression):len(tt.expression)], expression("immediate")...)} {
			r, err := readRule(7, all)
			if err != nil || r.altering != tt.want {
				t.Errorf("%s: %q, %v", tt.what, r.altering, err)
			}
			table := nfTable{family: nfIPv6, name: "x", chains: []nfChain{{name: "y"}, {name: "z", acts: []nfRule{{}, r}}}}
			if err := table.altering(); (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), "table ip6 x, chain z, the rule with handle 7 "+tt.want) {
				t.Errorf("%s: %v", tt.what, err)
			}
		}
	}
	for _, bad := range [][]byte{
		nested(unix.NFTA_LIST_ELEM, nested(unix.NFTA_EXPR_DATA)),
		nested(unix.NFTA_LIST_ELEM+1, attr(unix.NFTA_EXPR_NAME, 'x', 0)),
		expression("payload", []byte{0xff, 0, unix.NFTA_PAYLOAD_SREG, 0}),
		{0xff, 0, unix.NFTA_LIST_ELEM, 0},
	} {
		if _, err := readRule(7, bad); err == nil {
			t.Errorf("%x was read", bad)
		}
	}
}

// What a counter counts is no difference; that there is one, and anything else, is.
func TestRuleDigest(t *testing.T) {
	digest := func(parts ...[]byte) [32]byte {
		var all []byte
		for _, p := range parts {
			all = append(all, p...)
		}
		r, err := readRule(1, all)
		if err != nil {
			t.Fatal(err)
		}
		return r.digest
	}
	counter := func(n byte) []byte {
		return expression("counter", attr(unix.NFTA_COUNTER_PACKETS, 0, 0, 0, 0, 0, 0, 0, n))
	}
	limit := func(n byte) []byte { return expression("limit", attr(unix.NFTA_LIMIT_BURST, 0, 0, 0, n)) }
	is := digest(counter(1), limit(5))
	if digest(counter(9), limit(5)) != is {
		t.Error("a packet was counted, and the rule is another")
	}
	for what, other := range map[string][32]byte{
		"a number":     digest(counter(1), limit(6)),
		"no counter":   digest(limit(5)),
		"order":        digest(limit(5), counter(1)),
		"one more":     digest(counter(1), limit(5), limit(5)),
		"a name":       digest(expression("countes"), limit(5)),
		"nothing":      digest(),
		"only a start": digest(counter(1)),
	} {
		if other == is {
			t.Errorf("%s: no difference", what)
		}
	}
}

// A rule is compared while it prints as it was written; otherwise Diff tells more.
func TestRulesAsMade(t *testing.T) {
	rule := Rule{ID: "a", Match: "-p tcp", Target: "ACCEPT", Reason: "a test"}
	other := Rule{ID: "b", Target: "DROP", Reason: "a test"}
	table := func(digests ...byte) *nfTable {
		c := nfChain{name: "OUTPUT"}
		for i, d := range digests {
			c.acts = append(c.acts, nfRule{handle: uint64(i), digest: [32]byte{d}})
		}
		return &nfTable{family: nfIPv4, name: "filter", chains: []nfChain{c}}
	}
	printed := func(f Family, rules ...Rule) Ruleset {
		return Ruleset{Family: f, Chains: []Chain{{Name: "OUTPUT", Policy: "DROP", Rules: rules}}}
	}
	var m made
	if err := m.compare(table(1), printed(IPv4, rule)); err != nil {
		t.Errorf("nothing was written: %v", err)
	}
	m.remember(IPv4, table(1, 2), printed(IPv4, rule, other).Chains)
	for _, tt := range []struct {
		what    string
		t       *nfTable
		printed Ruleset
		differs bool
	}{
		{"as written", table(1, 2), printed(IPv4, rule, other), false},
		{"another rule", table(1, 3), printed(IPv4, rule, other), true},
		{"in another order", table(2, 1), printed(IPv4, rule, other), true},
		{"one more", table(1, 2, 3), printed(IPv4, rule, other), true},
		{"that prints otherwise", table(1, 3), printed(IPv4, rule, rule), false},
		{"of another family", table(1, 3), printed(IPv6, rule, other), false},
	} {
		if err := m.compare(tt.t, tt.printed); (err != nil) != tt.differs {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	if err := table(1, 2).printed(printed(IPv4, rule)); err == nil || err.Error() != "nf_tables: table ip filter, chain OUTPUT: has 2 rules, of which 1 are printed" {
		t.Error(err)
	}
	if err := table(1, 2).printed(printed(IPv4, rule, other)); err != nil {
		t.Error(err)
	}
	m.remember(IPv4, table(1, 3), printed(IPv4, rule, other).Chains)
	if err := m.compare(table(1, 3), printed(IPv4, rule, other)); err != nil {
		t.Errorf("written anew: %v", err)
	}
}

// Whatever a kernel may say, nothing panics.
func FuzzReadRule(f *testing.F) {
	f.Add(expression("payload", attr(unix.NFTA_PAYLOAD_SREG, 0, 0, 0, 1)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) { readRule(1, b) })
}
