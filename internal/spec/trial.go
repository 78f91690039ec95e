package spec

// What a gate's trial says of a kernel, an event each, by these names.
const (
	TrialRead  = "read"  // the file it was to read
	TrialReach = "reach" // the address it was to connect to

	TrialBackend       = "backend"
	TrialPolicies      = "policies"
	TrialSetHashIP     = "set-hash-ip"
	TrialSetHashIPPort = "set-hash-ip-port"
	TrialSetMatch      = "set-match"
	TrialOwner         = "owner-match"
	TrialConntrack     = "conntrack-match"
	TrialAddrtype      = "addrtype-match"
	TrialLimit         = "limit-match"
	TrialNFLOG         = "nflog-target"
	TrialNFLOGSocket   = "nflog-socket"
	TrialReject        = "reject-target"
	TrialReset         = "reset-target"
	TrialRules         = "rules"
)

// TrialFeatures are what a gate needs of a kernel, in the order in which they
// are tried and told.
var TrialFeatures = []string{
	TrialBackend, TrialPolicies, TrialSetHashIP, TrialSetHashIPPort, TrialSetMatch, TrialOwner, TrialConntrack,
	TrialAddrtype, TrialLimit, TrialNFLOG, TrialNFLOGSocket, TrialReject, TrialReset, TrialRules,
}
