package domain

import "strings"

// notHosts are the top-level domains that hold no public host, whatever a
// resolver says of them: special by RFC 6761, 6762 (its appendix G too), 7686,
// 9476 or, like home.arpa and in-addr.arpa, below a domain that is there for the
// network itself (RFC 3172); kept for private networks by ICANN; those of clusters; or the names of
// this machine. Of RFC 6761, test is missing on purpose: only the resolver of a
// test network knows such names, and who names one means it. No other is asked
// anything that its own root does not deny.
var notHosts = map[string]string{
	"invalid":     "names below invalid exist nowhere",
	"example":     "names below example exist nowhere",
	"localhost":   "it means this machine",
	"localdomain": "it means this machine",
	"local":       "names below local are a link's own",
	"onion":       "names below onion are not in the DNS",
	"alt":         "names below alt are not in the DNS",
	"arpa":        "names below arpa are the network's own",
	"internal":    "names below internal are a private network's",
	"intranet":    "names below intranet are a private network's",
	"private":     "names below private are a private network's",
	"corp":        "names below corp are a private network's",
	"home":        "names below home are a private network's",
	"lan":         "names below lan are a private network's",
	"svc":         "names below svc are a cluster's own",
}

// NotPublic says why a name, in canonical form with or without its trailing dot,
// cannot be that of a public host; empty if it can.
func NotPublic(name string) string {
	name = strings.TrimSuffix(name, ".")
	if len(name) > maxName {
		return "it is longer than a name can be"
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		switch {
		case l == "":
			return "it has an empty label"
		case len(l) > maxLabel:
			return "a label of it is longer than 63 characters"
		case strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "", strings.IndexByte("-_", l[0]) >= 0, strings.IndexByte("-_", l[len(l)-1]) >= 0:
			return "names of hosts are of letters, digits and hyphens, some hold underscores"
		}
	}
	top := labels[len(labels)-1]
	switch why := notHosts[top]; {
	case why != "":
		return why
	case len(labels) == 1:
		return "a single label means a host of this network"
	case strings.Trim(top, "0123456789") == "", strings.HasPrefix(top, "0x"):
		return "it ends in a number, as an address does"
	}
	return ""
}
