package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/spec"
)

// unable is a directory with all iptables programs. Those of a backend that
// restore rules refuse input that holds a text, in the words of the real ones on
// a kernel without the module.
func unable(t *testing.T, lacks map[string]string) {
	t.Helper()
	links := map[string]string{}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-restore"} {
			for _, suffix := range suffixes {
				links[name+suffix+verb] = name + suffix + verb
			}
			links[name+verb] = name + "-nft" + verb
		}
	}
	words := map[string]string{
		"nf_tables": "iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (No such file or directory): rule in chain corral-trial",
		"legacy":    "iptables-restore: line 4 failed",
	}
	scripts := map[string]string{}
	for backend, text := range lacks {
		for _, name := range []string{"iptables", "ip6tables"} {
			real := must(exec.LookPath(name + suffixes[backend] + "-restore"))
			script := fmt.Sprintf("#!/bin/sh\ninput=$(/bin/cat; echo .)\ncase $input in *'%s'*)\n"+
				"echo 'Warning: Extension x revision 0 not supported, missing kernel module?\n%s' >&2; exit 1 ;;\nesac\nprintf %%s \"${input%%.}\" | exec %s \"$@\"\n",
				text, words[backend], real)
			scripts[name+suffixes[backend]+"-restore"] = script
			if backend == "nf_tables" {
				scripts[name+"-restore"] = script
			}
		}
	}
	for name := range scripts {
		delete(links, name)
	}
	dir := programs(t, links)
	for name, script := range scripts {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir)
}

// cannotOpen insists on a failure that leaves nothing open.
func (n namespace) cannotOpen(t *testing.T) *netfilter.Unusable {
	t.Helper()
	var u *netfilter.Unusable
	n.do(func() {
		if _, err := netfilter.Open(t.Context()); !errors.As(err, &u) {
			t.Fatalf("opened: %v", err)
		}
	})
	return u
}

const (
	asNew   = "-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n"
	allShut = "-P INPUT DROP\n-P FORWARD DROP\n-P OUTPUT DROP\n"
)

// lists insists on what a program prints in both families.
func (n namespace) lists(t *testing.T, suffix, want string) {
	t.Helper()
	for _, name := range []string{"iptables", "ip6tables"} {
		if got := n.run(t, name+suffix+" -S"); got != want {
			t.Errorf("%s%s:\n%s\nwant:\n%s", name, suffix, got, want)
		}
	}
}

func (n namespace) noSets(t *testing.T) {
	t.Helper()
	n.do(func() {
		if sets, err := netlink.IpsetListAll(); err != nil || len(sets) > 0 {
			t.Errorf("sets: %v, %v", sets, err)
		}
	})
}

// R038, R040: what a kernel lacks has a name in the backend that lacks it, and
// a module; nothing that was tried stays, and everything is closed.
func TestLacks(t *testing.T) {
	for _, tt := range []struct{ text, feature, remedy string }{
		{"--match-set", spec.TrialSetMatch, "sudo modprobe -a xt_set; "},
		{"--uid-owner", spec.TrialOwner, "sudo modprobe -a xt_owner; "},
		{"NFLOG", spec.TrialNFLOG, "sudo modprobe -a xt_NFLOG nft_log; "},
		{"tcp-reset", spec.TrialReset, "sudo modprobe -a ipt_REJECT ip6t_REJECT; "},
		{"--comment", spec.TrialComment, "sudo modprobe -a xt_comment; "},
	} {
		t.Run(tt.feature, func(t *testing.T) {
			n := newNamespace(t)
			unable(t, map[string]string{"nf_tables": tt.text, "legacy": tt.text})
			u := n.cannotOpen(t)
			for _, l := range u.Lacks {
				if l.Feature != tt.feature {
					t.Errorf("it lacks %s, %s: %v", l.Feature, l.Family, l.Err)
				}
			}
			if len(u.Lacks) == 0 || u.Backend != "nf_tables" || len(u.Rights) > 0 || !strings.HasPrefix(u.Hint(), tt.remedy) {
				t.Errorf("%v by %s: %q", u.Lacks, u.Backend, u.Hint())
			}
			if !strings.Contains(u.Error(), "lacks "+tt.feature+" (rules by nf_tables): ") || !strings.Contains(u.Error(), "missing kernel module?") || !strings.Contains(u.Error(), "line 4 failed") {
				t.Errorf("%v", u)
			}
			n.lists(t, "-nft", allShut)
			n.lists(t, "-legacy", asNew)
			n.noSets(t)
		})
	}
}

// R040: where nf_tables cannot, legacy does, and nf_tables is as it was.
func TestLegacyWhereNFTablesCannot(t *testing.T) {
	inside, _ := newPair(t)
	unable(t, map[string]string{"nf_tables": "--match-set"})
	k := inside.open(t)
	if k.Backend() != "legacy" {
		t.Fatalf("backend %s", k.Backend())
	}
	inside.lists(t, "-nft", asNew)
	inside.lists(t, "-legacy", allShut)
	inside.noSets(t)
	inside.applySets(t, k, pins, anyPort)
	want := fence(netfilter.IPv4, pinned...)
	inside.apply(t, k, want)
	if d := netfilter.Diff(want, inside.read(t, k, netfilter.IPv4)); len(d) > 0 {
		t.Error(d)
	}
	inside.refused(t, neighbourV4, port)
}

// A namespace whose rules are by a backend that fails is not given another's
// beside them: it stays as it is, and closed.
func TestNoOtherBackendBesideRules(t *testing.T) {
	n := newNamespace(t)
	k := n.open(t)
	n.apply(t, k, fence(netfilter.IPv4))
	before := n.run(t, "iptables-nft -S")
	unable(t, map[string]string{"nf_tables": "--uid-owner"})
	if u := n.cannotOpen(t); u.Backend != "nf_tables" || len(u.Lacks) != 1 {
		t.Errorf("%+v", u)
	}
	if after := n.run(t, "iptables-nft -S"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	n.lists(t, "-legacy", asNew)
}

// In a namespace that is set up nothing changes, whatever a try that was cut
// short has left there.
func TestOpenAgain(t *testing.T) { backends(t, opensAgain) }

func opensAgain(t *testing.T) {
	inside, _ := newPair(t)
	k := inside.open(t)
	inside.noSets(t)
	inside.applySets(t, k, netfilter.Set{Name: pins.Name, Entries: []netfilter.Entry{entry(neighbourV4, port)}}, anyPort)
	inside.apply(t, k, fence(netfilter.IPv4, pinned...), fence(netfilter.IPv6))
	before := inside.run(t, "iptables -S") + inside.run(t, "ip6tables -S")
	inside.do(func() { check(t, netlink.IpsetCreate("corral-trial", "hash:ip,port", netlink.IpsetCreateOptions{})) })
	inside.feed(t, "*filter\n:corral-trial - [0:0]\n-A corral-trial -m set --match-set corral-trial dst,dst -j ACCEPT\nCOMMIT\n", "iptables-restore --noflush")
	inside.open(t)
	if after := inside.run(t, "iptables -S") + inside.run(t, "ip6tables -S"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	inside.do(func() {
		if sets, err := netlink.IpsetListAll(); err != nil || len(sets) != 2 {
			t.Errorf("sets: %v, %v", sets, err)
		}
	})
	inside.reaches(t, neighbourV4, port)
	inside.refused(t, neighbourV4, otherPort)
}

// R041: packets pass the rules of both backends and of every table. Those that
// are not the gate's are found at the start, which then stays closed, and by a
// reading later.
func TestForeignRules(t *testing.T) {
	for _, tt := range []struct {
		name, backend string
		make          func(n namespace)
		family        netfilter.Family
		want          string // nothing: no offence
	}{
		{"an empty legacy table", "nf_tables", run(t, "iptables-legacy -S", "ip6tables-legacy -S", "iptables-legacy -t mangle -S"), 4, ""},
		{"an empty nf_tables table", "legacy", run(t, "iptables-nft -A OUTPUT -j ACCEPT", "iptables-nft -F OUTPUT", "iptables-nft -t raw -S"), 4, ""},
		{"the engine's nat by legacy", "nf_tables", run(t, "iptables-legacy -t nat -A OUTPUT -d 127.0.0.11/32 -j ACCEPT"), 4, ""},
		{"the engine's nat by nf_tables", "legacy", run(t, "iptables-nft -t nat -A OUTPUT -d 127.0.0.11/32 -j ACCEPT"), 4, ""},
		{"the engine's own nat", "nf_tables", native(t, unix.NFPROTO_IPV4, "docker-dns", "nat", -100), 4, ""},
		{"a table that nothing reaches", "nf_tables", native(t, unix.NFPROTO_INET, "idle", "", 0), 4, ""},
		{"legacy beside nf_tables", "nf_tables", run(t, "iptables-legacy -A OUTPUT -j ACCEPT"), 4, "iptables-legacy has rules beside those of the gate: chain OUTPUT"},
		{"legacy beside nf_tables, IPv6", "nf_tables", run(t, "ip6tables-legacy -P INPUT DROP"), 6, "ip6tables-legacy has rules beside those of the gate: chain INPUT"},
		{"nf_tables beside legacy", "legacy", run(t, "iptables-nft -A OUTPUT -j ACCEPT"), 4, "nf_tables has rules beside those of the gate: table ip filter, chain OUTPUT"},
		{"nf_tables beside legacy, IPv6", "legacy", run(t, "ip6tables-nft -A OUTPUT -j ACCEPT"), 6, "table ip6 filter, chain OUTPUT"},
		{"mangle", "nf_tables", run(t, "iptables-nft -t mangle -A OUTPUT -j MARK --set-mark 1"), 4, "table ip mangle, chain OUTPUT"},
		{"raw", "nf_tables", run(t, "iptables-nft -t raw -A PREROUTING -j NOTRACK"), 4, "table ip raw, chain PREROUTING"},
		{"security, legacy", "legacy", run(t, "iptables-legacy -t security -A OUTPUT -j ACCEPT"), 4, "iptables -t security has rules beside those of the gate: chain OUTPUT"},
		{"mangle by the other", "nf_tables", run(t, "ip6tables-legacy -t mangle -A OUTPUT -j ACCEPT"), 6, "ip6tables-legacy -t mangle has rules beside"},
		{"nat for IPv6", "nf_tables", run(t, "ip6tables-nft -t nat -A OUTPUT -j DNAT --to-destination 2001:db8::1"), 6, "table ip6 nat, chain OUTPUT"},
		{"nat for IPv6, legacy", "legacy", run(t, "ip6tables-legacy -t nat -A OUTPUT -j ACCEPT"), 6, "ip6tables -t nat has rules beside"},
		{"a table of nft's", "nf_tables", native(t, unix.NFPROTO_INET, "other", "filter", -300), 4, "table inet other, chain base (hook 3, priority -300)"},
		{"seen for IPv6 as well", "nf_tables", native(t, unix.NFPROTO_INET, "other", "filter", -300), 6, "table inet other, chain base"},
		{"a table of nft's beside legacy", "legacy", native(t, unix.NFPROTO_IPV4, "other", "filter", 1), 4, "table ip other, chain base (hook 3, priority 1)"},
		{"a hook in the gate's own table", "nf_tables", native(t, unix.NFPROTO_IPV4, "filter", "filter", -1), 4, "table ip filter, chain base (hook 3, priority -1)"},
		{"nat after the filter", "nf_tables", native(t, unix.NFPROTO_IPV4, "late", "nat", 1), 4, "table ip late, chain base (hook 3, priority 1)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNamespace(t)
			// All programs are there; plain ones are the backend's.
			links := map[string]string{}
			for _, name := range []string{"iptables", "ip6tables"} {
				for _, verb := range []string{"", "-restore"} {
					links[name+verb] = name + suffixes[tt.backend] + verb
					if tt.backend == "nf_tables" {
						links[name+"-legacy"+verb] = name + "-legacy" + verb
					}
				}
			}
			dir := programs(t, links)
			here := os.Getenv("PATH")
			t.Setenv("PATH", dir)
			k := n.open(t)
			n.apply(t, k, fence(netfilter.IPv4), fence(netfilter.IPv6))
			n.read(t, k, tt.family)
			t.Setenv("PATH", here)
			tt.make(n)
			t.Setenv("PATH", dir)
			n.do(func() {
				_, err := k.Read(t.Context(), tt.family)
				var foreign *netfilter.Foreign
				switch {
				case tt.want == "" && err != nil:
					t.Error(err)
				case tt.want != "" && (!errors.As(err, &foreign) || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("Read: %v", err)
				}
			})
			if tt.want == "" {
				n.open(t)
				return
			}
			u := n.cannotOpen(t)
			if !strings.Contains(u.Error(), tt.want) || u.State() != "not all rules can be set, everything stays closed" || !strings.Contains(u.Hint(), "namespace of its own") {
				t.Errorf("Open: %v; %s; %s", u, u.State(), u.Hint())
			}
		})
	}
}

// nat is compared whoever wrote it.
func TestRewritingShows(t *testing.T) {
	for _, tt := range []struct {
		backend string
		make    func(n namespace)
	}{
		{"nf_tables", run(t, "iptables-nft -t nat -A OUTPUT -j ACCEPT")},
		{"nf_tables", run(t, "iptables-legacy -t nat -A OUTPUT -j ACCEPT")},
		{"nf_tables", native(t, unix.NFPROTO_IPV4, "docker-dns", "nat", -100)},
		{"legacy", run(t, "iptables-legacy -t nat -A OUTPUT -j ACCEPT")},
		{"legacy", run(t, "iptables-nft -t nat -A OUTPUT -j ACCEPT")},
	} {
		n := newNamespace(t)
		here := os.Getenv("PATH")
		if tt.backend == "legacy" {
			only(t, tt.backend)
		}
		k := n.open(t)
		before := n.rewriting(t, k)
		t.Setenv("PATH", here)
		tt.make(n)
		if tt.backend == "legacy" {
			only(t, tt.backend)
		}
		first := n.rewriting(t, k)
		if first == before || first != n.rewriting(t, k) {
			t.Errorf("by %s: before:\n%s\nafter:\n%s", tt.backend, before, first)
		}
		t.Setenv("PATH", here)
	}
}

// run is what some commands do in a namespace.
func run(t *testing.T, lines ...string) func(namespace) {
	return func(n namespace) {
		for _, l := range lines {
			n.run(t, l)
		}
	}
}

// native makes a table as nft would, with one chain at the output hook, or with
// no hook if it has no kind.
func native(t *testing.T, family uint8, table, kind string, priority int32) func(namespace) {
	return func(n namespace) {
		chain := []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(table)), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated("base"))}
		if kind != "" {
			hook := nl.NewRtAttr(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, nil)
			hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, nl.BEUint32Attr(3))
			hook.AddRtAttr(unix.NFTA_HOOK_PRIORITY, nl.BEUint32Attr(uint32(priority)))
			chain = append(chain, hook, nl.NewRtAttr(unix.NFTA_CHAIN_TYPE, nl.ZeroTerminated(kind)))
		}
		n.nfChange(t, family, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(table)))
		n.nfChange(t, family, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, chain...)
	}
}
