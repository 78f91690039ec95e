package verify

// kinds are the checks that this checker knows. The names are public.
var kinds = map[string]check{
	"non-root":           nonRoot,
	"user-not-the-gates": userNotTheGates,
	"uid-matches-host":   uidMatchesHost,
	"no-sudo":            noSudo,

	"no-capabilities":     noCapabilities,
	"no-new-privs":        noNewPrivs,
	"seccomp-on":          seccompOn,
	"iptables-refused":    iptablesRefused,
	"raw-sockets-refused": rawSocketsRefused,
	"vsock-refused":       vsockRefused,
	"pids-limited":        pidsLimited,
	"memory-limited":      memoryLimited,
	"cpus-limited":        cpusLimited,

	"no-docker-socket":        noDockerSocket,
	"no-credential-dir":       noCredentialDir,
	"host-home-only-mounts":   hostHomeOnlyMounts,
	"secret-absent-elsewhere": secretAbsentElsewhere,
	"mounts-only-declared":    mountsOnlyDeclared,
	"rw-writable":             rwWritable,
	"ro-unwritable":           roUnwritable,
	"policy-read-only":        roUnwritable,
	"root-owned":              rootOwned,
	"policy-inputs-absent":    policyInputsAbsent,
	"env-file-not-mounted":    policyInputsAbsent,
	"git-shielded":            gitShielded,
	"env-shadowed":            envShadowed,
	"config-pinned":           configPinned,

	"gate-answers":             gateAnswers,
	"same-netns-as-gate":       sameNetNSAsGate,
	"gate-control-unreachable": gateControlUnreachable,

	"unlisted-host-blocked":   unlistedHostBlocked,
	"udp-closed":              udpClosed,
	"bound-sockets-closed":    boundSocketsClosed,
	"icmp-closed":             icmpClosed,
	"metadata-blocked":        metadataBlocked,
	"ipv6-disabled":           ipv6Disabled,
	"no-ipv6-address":         noIPv6Address,
	"ipv6-blocked":            ipv6Blocked,
	"allowed":                 allowed,
	"port-not-listed-blocked": portNotListedBlocked,

	"dns-closed":        dnsClosed,
	"names-only-pinned": namesOnlyPinned,
	"names-sink":        namesSink,
	"public-only":       publicOnly,
	"resolves":          resolves,

	"link":        linked,
	"link-closed": peerClosed,

	"host-service":                 hostService,
	"gateway-closed":               peerClosed,
	"host-port-undeclared-blocked": peerClosed,
	"peer-unreachable":             peerClosed,
}

// required are the kinds without which a handover would prove nothing.
var required = []string{
	"same-netns-as-gate",
	"unlisted-host-blocked",
	"no-capabilities",
	"no-new-privs",
	"non-root",
}
