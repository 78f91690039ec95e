package spec

import (
	"slices"
	"strings"
)

// What a gate's trial says of a kernel, an event each, by these names.
const (
	TrialRead   = "read"   // the file it was to read
	TrialReach  = "reach"  // the address it was to connect to
	TrialListen = "listen" // where it listens

	TrialBackend       = "backend"
	TrialPolicies      = "policies"
	TrialComment       = "comment-match"
	TrialProtocol      = "protocol-match"
	TrialSetHashIP     = "set-hash-ip"
	TrialSetHashIPPort = "set-hash-ip-port"
	TrialSetMatch      = "set-match"
	TrialOwner         = "owner-match"
	TrialConntrack     = "conntrack-match"
	TrialAddrtype      = "addrtype-match"
	TrialLimit         = "limit-match"
	TrialHashlimit     = "hashlimit-match"
	TrialNFLOG         = "nflog-target"
	TrialNFLOGSocket   = "nflog-socket"
	TrialReject        = "reject-target"
	TrialReset         = "reset-target"
	TrialFlows         = "connection-list"
	TrialDestroy       = "socket-destroy" // the one that a gate can do without, with a warning
	TrialRules         = "rules"
)

// TrialFeature is one thing that a gate needs of a kernel.
type TrialFeature struct {
	Name    string
	Modules []string // that have it where it is not built in; those that a kernel does not know do no harm
	Options []string // of the kernel's configuration
}

// TrialFeatures are all of them, in the order in which they are tried and told.
var TrialFeatures = []TrialFeature{
	{TrialBackend, nil, []string{"CONFIG_NF_TABLES", "CONFIG_NFT_COMPAT"}},
	{TrialPolicies, []string{"iptable_filter", "ip6table_filter"}, []string{"CONFIG_NF_TABLES_IPV4", "CONFIG_NF_TABLES_IPV6"}},
	{TrialComment, []string{"xt_comment"}, []string{"CONFIG_NETFILTER_XT_MATCH_COMMENT"}},
	{TrialProtocol, []string{"xt_tcpudp"}, []string{"CONFIG_NETFILTER_XTABLES"}},
	{TrialSetHashIP, []string{"ip_set", "ip_set_hash_ip"}, []string{"CONFIG_IP_SET", "CONFIG_IP_SET_HASH_IP"}},
	{TrialSetHashIPPort, []string{"ip_set", "ip_set_hash_ipport"}, []string{"CONFIG_IP_SET", "CONFIG_IP_SET_HASH_IPPORT"}},
	{TrialSetMatch, []string{"xt_set"}, []string{"CONFIG_NETFILTER_XT_SET"}},
	{TrialOwner, []string{"xt_owner"}, []string{"CONFIG_NETFILTER_XT_MATCH_OWNER"}},
	{TrialConntrack, []string{"nf_conntrack", "xt_conntrack"}, []string{"CONFIG_NF_CONNTRACK", "CONFIG_NETFILTER_XT_MATCH_CONNTRACK"}},
	{TrialAddrtype, []string{"xt_addrtype"}, []string{"CONFIG_NETFILTER_XT_MATCH_ADDRTYPE"}},
	{TrialLimit, []string{"xt_limit", "nft_limit"}, []string{"CONFIG_NETFILTER_XT_MATCH_LIMIT", "CONFIG_NFT_LIMIT"}},
	{TrialHashlimit, []string{"xt_hashlimit"}, []string{"CONFIG_NETFILTER_XT_MATCH_HASHLIMIT"}},
	{TrialNFLOG, []string{"xt_NFLOG", "nft_log"}, []string{"CONFIG_NETFILTER_XT_TARGET_NFLOG", "CONFIG_NFT_LOG"}},
	{TrialNFLOGSocket, []string{"nfnetlink_log"}, []string{"CONFIG_NETFILTER_NETLINK_LOG"}},
	{TrialReject, []string{"ipt_REJECT", "ip6t_REJECT"}, []string{"CONFIG_IP_NF_TARGET_REJECT", "CONFIG_IP6_NF_TARGET_REJECT"}},
	{TrialReset, []string{"ipt_REJECT", "ip6t_REJECT"}, []string{"CONFIG_IP_NF_TARGET_REJECT", "CONFIG_IP6_NF_TARGET_REJECT"}},
	{TrialFlows, []string{"nf_conntrack", "nf_conntrack_netlink"}, []string{"CONFIG_NF_CONNTRACK", "CONFIG_NF_CT_NETLINK"}},
	{TrialDestroy, []string{"inet_diag", "tcp_diag"}, []string{"CONFIG_INET_DIAG", "CONFIG_INET_DIAG_DESTROY"}},
	{TrialRules, nil, nil},
}

// What a gate that can set no rules says, and what to do about it.
const (
	// CannotCloseIPv6 begins what is said where rules for IPv4 can be set.
	CannotCloseIPv6 = "cannot close IPv6"
	// WithoutDestroy is what a gate does without where it has no TrialDestroy.
	WithoutDestroy = "an idle connection to what is granted no longer ends only when it next sends"
	// WithoutRights is followed by names of capabilities.
	WithoutRights = "without the capability"

	HintBackend  = "sudo modprobe -a nf_tables nft_compat; or for legacy: sudo modprobe -a ip_tables iptable_filter ip6_tables ip6table_filter"
	HintIPv6     = "sudo modprobe -a nf_tables nft_compat ip6_tables ip6table_filter; or start this machine without IPv6 (ipv6.disable=1)"
	HintRights   = "give the gate the capabilities NET_ADMIN and NET_RAW (cap_add)"
	HintPrograms = "the image of the gate needs the package iptables, both iptables and ip6tables"
)

// LackedModules are those of the features of these names, each once.
func LackedModules(features []string) []string {
	return gather(features, func(f TrialFeature) []string { return f.Modules })
}

// HintLacked is what to do where a kernel lacks the features of these names, on
// the machine that the engine runs on. It is empty if no module has them.
func HintLacked(features []string) string {
	modules := strings.Join(LackedModules(features), " ")
	if modules == "" {
		return ""
	}
	options := strings.Join(gather(features, func(f TrialFeature) []string { return f.Options }), ", ")
	return "sudo modprobe -a " + modules + "; to keep it: echo " + modules + " | tr ' ' '\\n' | sudo tee /etc/modules-load.d/corral.conf; a kernel without such modules needs " + options
}

func gather(features []string, of func(TrialFeature) []string) []string {
	var all []string
	for _, f := range TrialFeatures {
		if !slices.Contains(features, f.Name) {
			continue
		}
		for _, s := range of(f) {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}
