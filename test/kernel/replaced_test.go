package kernel

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/netfilter"
)

// expression is one of nf_tables as a rule has it.
func expression(name string, attrs ...*nl.RtAttr) *nl.RtAttr {
	e := nl.NewRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil)
	e.AddRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name))
	data := e.AddRtAttr(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, nil)
	for _, a := range attrs {
		data.AddChild(a)
	}
	return e
}

func numbered(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.BEUint32Attr(v)) }

// loaded puts four bytes into the first register, which by itself does nothing.
func loaded(b ...byte) *nl.RtAttr {
	value := nl.NewRtAttr(unix.NFTA_IMMEDIATE_DATA|unix.NLA_F_NESTED, nil)
	value.AddRtAttr(unix.NFTA_DATA_VALUE, b)
	return expression("immediate", numbered(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_1), value)
}

// nfChange is one change of nf_tables, in a transaction of its own.
func (n namespace) nfChange(t *testing.T, family uint8, what int, flags int, attrs ...*nl.RtAttr) {
	t.Helper()
	message := func(what, flags int, head *nl.Nfgenmsg, attrs ...*nl.RtAttr) []byte {
		req := nl.NewNetlinkRequest(what, flags)
		req.AddData(head)
		for _, a := range attrs {
			req.AddData(a)
		}
		return req.Serialize()
	}
	end := &nl.Nfgenmsg{Version: nl.NFNETLINK_V0, ResId: nl.Swap16(unix.NFNL_SUBSYS_NFTABLES)}
	text := slices.Concat(message(unix.NFNL_MSG_BATCH_BEGIN, 0, end),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|what, flags|unix.NLM_F_ACK, &nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0}, attrs...),
		message(unix.NFNL_MSG_BATCH_END, 0, end))
	n.do(func() {
		fd := must(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER))
		defer unix.Close(fd)
		check(t, unix.Sendto(fd, text, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
		b := make([]byte, 4096)
		got, _, err := unix.Recvfrom(fd, b, 0)
		check(t, err)
		for _, m := range must(syscall.ParseNetlinkMessage(b[:got])) {
			if code := int32(nl.NativeEndian().Uint32(m.Data)); m.Header.Type == unix.NLMSG_ERROR && code != 0 {
				t.Fatalf("nf_tables: %v", unix.Errno(-code))
			}
		}
	})
}

// replaceFirst replaces the first rule of a chain by itself with more expressions
// before its last one. It keeps its handle, and is printed as it was.
func (n namespace) replaceFirst(t *testing.T, table, chain string, more ...*nl.RtAttr) {
	t.Helper()
	var rule []*nl.RtAttr
	n.do(func() {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_IPV4, Version: nl.NFNETLINK_V0})
		for _, m := range must(req.Execute(unix.NETLINK_NETFILTER, 0)) {
			attrs := map[uint16][]byte{}
			for _, a := range must(nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])) {
				attrs[a.Attr.Type&^unix.NLA_F_NESTED] = a.Value
			}
			if rule != nil || nl.BytesToString(attrs[unix.NFTA_RULE_TABLE]) != table || nl.BytesToString(attrs[unix.NFTA_RULE_CHAIN]) != chain {
				continue
			}
			list := nl.NewRtAttr(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, nil)
			was := must(nl.ParseRouteAttr(attrs[unix.NFTA_RULE_EXPRESSIONS]))
			for i, e := range was {
				if i == len(was)-1 {
					for _, m := range more {
						list.AddChild(m)
					}
				}
				list.AddRtAttr(int(e.Attr.Type), e.Value)
			}
			rule = []*nl.RtAttr{list}
			for _, kind := range []uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_USERDATA} {
				if v := attrs[kind]; v != nil {
					rule = append(rule, nl.NewRtAttr(int(kind), v))
				}
			}
		}
	})
	if rule == nil {
		t.Fatalf("no rule in %s %s", table, chain)
	}
	n.nfChange(t, unix.NFPROTO_IPV4, unix.NFT_MSG_NEWRULE, unix.NLM_F_REPLACE, rule...)
}

// The iptables programs print of a rule what they know of. What else it does to
// packets is found: what changes them or sends them elsewhere wherever it is, and in
// a rule of the gate's own whatever was not written.
func TestReplacedRules(t *testing.T) {
	only(t, "nf_tables")
	one := netfilter.Rule{ID: "one", Match: "-p tcp -m tcp --dport 443 -m conntrack --ctstate ESTABLISHED", Target: "ACCEPT", Reason: "a test"}
	elsewhere := binary.BigEndian.AppendUint32(nil, 44<<24|10<<16|9<<8|9)
	destination := expression("payload", numbered(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER), numbered(unix.NFTA_PAYLOAD_OFFSET, 16), numbered(unix.NFTA_PAYLOAD_LEN, 4),
		numbered(unix.NFTA_PAYLOAD_SREG, unix.NFT_REG_1), numbered(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET), numbered(unix.NFTA_PAYLOAD_CSUM_OFFSET, 10))
	for _, tt := range []struct {
		name  string
		more  []*nl.RtAttr
		wants []string // all of them
	}{
		{"another destination", []*nl.RtAttr{loaded(elsewhere...), destination}, []string{"table ip filter, chain OUTPUT, the rule with handle ", "writes payload"}},
		{"a mark", []*nl.RtAttr{loaded(0, 0, 0, 7), expression("meta", numbered(unix.NFTA_META_KEY, unix.NFT_META_MARK), numbered(unix.NFTA_META_SREG, unix.NFT_REG_1))}, []string{"chain OUTPUT", "writes meta"}},
		{"a mark of the connection", []*nl.RtAttr{loaded(0, 0, 0, 7), expression("ct", numbered(unix.NFTA_CT_KEY, unix.NFT_CT_MARK), numbered(unix.NFTA_CT_SREG, unix.NFT_REG_1))}, []string{"chain OUTPUT", "writes ct"}},
		{"what does nothing", []*nl.RtAttr{loaded(0, 0, 0, 7)}, []string{"table ip filter, chain OUTPUT: rule 1 (handle ", "not as it was written"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNamespace(t)
			k := n.open(t)
			n.apply(t, k, fence(netfilter.IPv4, one), fence(netfilter.IPv6))
			before := n.read(t, k, netfilter.IPv4)
			n.replaceFirst(t, "filter", "OUTPUT", tt.more...)
			n.do(func() {
				_, err := k.Read(t.Context(), netfilter.IPv4)
				for _, want := range tt.wants {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%v, want %q", err, want)
					}
				}
			})
			n.apply(t, k, fence(netfilter.IPv4, one))
			if d := netfilter.Diff(before, n.read(t, k, netfilter.IPv4)); len(d) > 0 {
				t.Error(d)
			}
		})
	}
	t.Run("a chain alone", func(t *testing.T) {
		n := newNamespace(t)
		k := n.open(t)
		own := netfilter.Chain{Name: "corral-own", Rules: []netfilter.Rule{{ID: "own", Match: "-p tcp", Target: "DROP", Reason: "a test"}}}
		n.apply(t, k, fence(netfilter.IPv4, one))
		n.replaceFirst(t, "filter", "OUTPUT", loaded(0, 0, 0, 7))
		n.do(func() {
			check(t, k.ApplyChains(t.Context(), netfilter.IPv4, own))
			if _, err := k.Read(t.Context(), netfilter.IPv4); err == nil || !strings.Contains(err.Error(), "chain OUTPUT: rule 1") {
				t.Errorf("writing one chain made another right: %v", err)
			}
		})
	})
	t.Run("nat", func(t *testing.T) {
		n := newNamespace(t)
		n.run(t, "iptables -t nat -A OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:35002")
		k := n.open(t)
		before := n.rewriting(t, k)
		if before != n.rewriting(t, k) {
			t.Error("nat differs from itself")
		}
		n.replaceFirst(t, "nat", "OUTPUT", loaded(0, 0, 0, 7))
		if before == n.rewriting(t, k) {
			t.Errorf("nothing differs: %s", before)
		}
	})
	t.Run("a table that sleeps", func(t *testing.T) {
		n := newNamespace(t)
		k := n.open(t)
		n.apply(t, k, fence(netfilter.IPv4, one))
		n.nfChange(t, unix.NFPROTO_IPV4, unix.NFT_MSG_NEWTABLE, 0, nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated("filter")), numbered(unix.NFTA_TABLE_FLAGS, 1))
		n.do(func() {
			_, err := k.Read(t.Context(), netfilter.IPv4)
			if foreign := (*netfilter.Foreign)(nil); !errors.As(err, &foreign) || !strings.Contains(err.Error(), "table ip filter, which is dormant") {
				t.Errorf("%v", err)
			}
		})
	})
}
