package spec

// Witness is a side that says whether a check holds. The agent's says nothing that
// another one contradicts.
type Witness string

const (
	WitnessAgent  Witness = "agent"  // the checker in the service, as the service's user
	WitnessGate   Witness = "gate"   // the gate, by its record of packets or its status
	WitnessEngine Witness = "engine" // the container engine, by what it says of the containers
	WitnessKernel Witness = "kernel" // the host's kernel, by its /proc, or what reached the host
)

// Form is a way in which checks are run.
type Form string

const (
	FormVerify   Form = "verify"   // `corral verify`
	FormHandover Form = "handover" // before a harness starts that corral made
	FormAlone    Form = "alone"    // `corral-verify alone`, and its handover, in stacks of others
	FormGate     Form = "gate"     // `corral verify`, of a gate's own container
	FormRelay    Form = "relay"    // `corral verify`, of a relay's
)

// Entry is what there is to know of one kind of check. docs/checks.md is made from
// all of them.
type Entry struct {
	Kind   string // Check.Kind
	Proves string // what holds if it does, a sentence
	How    string // what it does, and what it makes of what it sees
	// Control is how it is known that what was refused was refused by the fence, and
	// that what was not found was looked for.
	Control string
	// Witnesses must each say that it holds, those that are there. Without the agent
	// among them a check is judged on the host alone.
	Witnesses []Witness
	// Only is why the agent's side is the only witness; set where it is.
	Only string
	In   []Form
	// Skipped are those of In that list it only to say why they cannot make it.
	Skipped []Form
}

// Inside says whether a checker in the service is asked for it.
func (e Entry) Inside() bool {
	for _, w := range e.Witnesses {
		if w == WitnessAgent {
			return true
		}
	}
	return false
}

// What several entries share.
var (
	inAll           = []Form{FormVerify, FormHandover, FormAlone}
	inVerify        = []Form{FormVerify}
	inAlone         = []Form{FormAlone}
	inVerifyAlone   = []Form{FormVerify, FormAlone}
	inVerifyPlanned = []Form{FormVerify, FormHandover}
	inOwn           = []Form{FormGate, FormRelay}
	inRelay         = []Form{FormRelay}

	agentOnly       = []Witness{WitnessAgent}
	agentAndGate    = []Witness{WitnessAgent, WitnessGate}
	engineAndKernel = []Witness{WitnessEngine, WitnessKernel}

	agentAndEngine    = []Witness{WitnessAgent, WitnessEngine}
	agentAndKernel    = []Witness{WitnessAgent, WitnessKernel}
	agentEngineKernel = []Witness{WitnessAgent, WitnessEngine, WitnessKernel}
)

const (
	// verdicts is the control of every probe.
	verdicts = "Each probe leaves from a source port of its own, and holds only if the gate has a record that one of its rules refused a packet " +
		"from that port to that address and port by that protocol. No record: it cannot tell. A record of one that was let through: it fails."
	// What is seen from outside; a side that says nothing of what it should leaves the check untold.
	asAskedFor       = " The engine says that what was asked of it is what the plan asks."
	fromOutside      = asAskedFor + " The host's /proc shows the same of the container's first process, from which all others descend."
	mountsOutside    = " The engine's mounts are the plan's, in each of their settings, and so is what the host's /proc shows to be mounted for the container's first process."
	nothingFromThere = " What the engine mounts without being asked to overlaps none of the paths, at either end."
	recorded         = " The gate must have a record that it let a packet through from the port of the connection to that address and port."
	asideOnly        = "in a stack that corral did not make there is no corral outside"
)

// Catalogue lists every kind of check of a service, in the order in which they are
// listed.
var Catalogue = []Entry{
	{
		Kind:      "non-root",
		Proves:    "The service does not run as root, nor as a user of the gate's own.",
		How:       "Reads the four user ids of its own process, of PID 1 and of every other that is visible in /proc, whoever's it is, thread by thread, since each has its own and may outlive the first (in stacks of others, of its own and of PID 1); one that is passing is no fault. 0 fails; so do the ids of the gate's worker, whom the rules let out, and of namespace holders.",
		Control:   "A status that lacks a line it needs cannot tell." + fromOutside,
		Witnesses: agentEngineKernel, In: inAll,
	},
	{
		Kind:      "user-not-the-gates",
		Proves:    "The service does not run as the gate's worker, whom the rules let out, nor as a namespace holder.",
		How:       "Reads the four user ids of its own process and of PID 1 in /proc.",
		Control:   "A status that lacks a line it needs cannot tell.",
		Witnesses: agentOnly, Only: asideOnly, In: inAlone,
	},
	{
		Kind:      "uid-matches-host",
		Proves:    "The service is the person who started corral: that user, that group, no other group.",
		How:       "All four user and group ids of every thread of every visible process are the plan's, and the list of further groups holds no other.",
		Control:   "A plan that names no user cannot tell." + fromOutside,
		Witnesses: agentEngineKernel, In: inAll, Skipped: inAlone,
	},
	{
		Kind:      "no-sudo",
		Proves:    "No program here hands out root.",
		How:       "Looks for sudo, doas and pkexec in the usual directories and in PATH, then through the whole root file system, mounts aside, for a set-user-ID file of somebody else's that this user may run. Directories of this user's own that it closed, or made deeper than a path can name, are passed over where the kernel refuses links to what another owns (fs.protected_hardlinks).",
		Control:   "A directory of somebody else's that may be entered and not listed, or too many files for its time: it cannot tell.",
		Witnesses: agentOnly, Only: "it looks through the files of the image; what one of them would give, no-new-privs takes away", In: inVerify,
	},
	{
		Kind:   "no-capabilities",
		Proves: "No process of the service has a capability, or can come to have one.",
		How: "All five capability sets of every thread of every visible process, whoever's it is, are empty. In stacks of others: none of NET_RAW, NET_ADMIN, SETUID, SETGID, SYS_ADMIN " +
			"and SYS_PTRACE is in any set of any thread of any visible process.",
		Control:   "A status that lacks a line it needs cannot tell." + fromOutside,
		Witnesses: agentEngineKernel, In: inAll,
	},
	{
		Kind:      "no-new-privs",
		Proves:    "No program gains rights when it is executed, set-user-ID ones included.",
		How:       "NoNewPrivs is 1 in the status of every thread of every visible process; in stacks of others, of its own and of PID 1.",
		Control:   "A status that lacks the line cannot tell." + fromOutside,
		Witnesses: agentEngineKernel, In: inAll,
	},
	{
		Kind:      "seccomp-on",
		Proves:    "The service runs under a system call filter.",
		How:       "Seccomp is 2, a filter, in the status of every thread of every visible process; in stacks of others, of its own and of PID 1. Which filter it is the checks of sockets try.",
		Control:   "A status that lacks the line cannot tell." + fromOutside,
		Witnesses: agentEngineKernel, In: inAll,
	},
	{
		Kind:      "iptables-refused",
		Proves:    "The service can neither read nor change the packet filter that fences it.",
		How:       "Asks nf_tables for its generation number and ip_tables for its table, which need NET_ADMIN like all else there. Only a refusal for want of rights holds.",
		Control:   "An answer fails, and any other error cannot tell (a kernel without ip_tables is as good as one that refuses)." + fromOutside,
		Witnesses: agentEngineKernel, In: inVerifyAlone,
	},
	{
		Kind:      "no-docker-socket",
		Proves:    "No engine's socket is within reach.",
		How:       "Nothing is at the path; no mount has a source or a target of that name anywhere; no socket of that name, abstract ones included, is bound in the network namespace. In the mounts, up to 20,000 names or a second deep, no socket that is called as those of engines are takes a connection, and no engine answers at one of another name; the detail says if that was not all.",
		Control:   "Mounts or sockets that cannot be read cannot tell, nor does a directory or a socket of the service's own that is closed to it, or a path too long to look at." + nothingFromThere,
		Witnesses: agentAndEngine, In: inVerifyAlone,
	},
	{
		Kind:      "no-credential-dir",
		Proves:    "A store of credentials of the person's is not visible.",
		How:       "The path, of a table of some 120, is neither in the service's home nor in any home of the person's on the host. What the service itself made in the container's own layer, and its declared state, is not the person's.",
		Control:   "A directory on the way that the service itself can close and open cannot tell." + nothingFromThere,
		Witnesses: agentAndEngine, In: inVerify,
	},
	{
		Kind:      "host-home-only-mounts",
		Proves:    "Of the person's home only the declared mounts are there.",
		How:       "Walks the homes' paths: what is neither declared, nor a directory that leads to it, nor made by the service itself in the container's own layer fails. So does an undeclared mount there.",
		Control:   "A home that cannot be listed, or more than 2,000 entries: it cannot tell." + nothingFromThere,
		Witnesses: agentAndEngine, In: inVerify,
	},
	{
		Kind:   "mounts-only-declared",
		Proves: "Everything that is mounted is accounted for, and is what corral saw on the host.",
		How: "Each line of mountinfo is one of the plan's, once and as read-only as planned, or one of the engine's own in the form that shows nothing more (/proc/sys read-only, say). What the engine covers of /proc and /sys, and this kernel has, is covered. " +
			"Each of the plan's has the device and inode that corral recorded on the host.",
		Control:   "Each planned mount must be there: a list that is empty or cut fails." + mountsOutside,
		Witnesses: agentEngineKernel, In: inAll, Skipped: inAlone,
	},
	{
		Kind:   "secret-absent-elsewhere",
		Proves: "The secrets that the service has in its environment are in no command line, and below /etc, /opt, /usr/local, /run and /var in no file that is not the service's own.",
		How: "Looks for each value of 16 bytes or more, or of 8 and three kinds of characters, that is no host, path, address or the like, in all command lines, and in the names and contents of these files: " +
			"small files all, larger ones as far as time allows, and says what it left out. What the service writes itself may lie anywhere.",
		Control:   "A secret that is not in the environment, or a small file without time for it: it cannot tell." + " The values are in nothing that the engine knows of the service, of its image or of the gate, but in the variables of those names.",
		Witnesses: agentAndEngine, In: inVerifyAlone, Skipped: inAlone,
	},
	{
		Kind:      "policy-inputs-absent",
		Proves:    "The service does not see what the gate was told, nor the gate's socket.",
		How:       "The paths of the gate's document and of its socket's directory are not there, or can be neither read nor written.",
		Control:   "An error that is neither absence nor a lack of rights cannot tell." + nothingFromThere,
		Witnesses: agentAndEngine, In: inAll,
	},
	{
		Kind:      "root-owned",
		Proves:    "A file that the fence or a profile relies on cannot be changed by the service.",
		How:       "The path, what a link there leads to, every directory on the way and all in it that this user can see belong to root, and this user may write none of them. What lies in a directory that it may enter and not list cannot be told. The checker itself it may run and not read, so that nobody traces it.",
		Control:   "A path that is not there cannot tell." + " From outside, what lies at the path is root's, and neither its group nor anybody else may write it: by the view of the container's first process in the host's /proc, or by the engine's archive where that may not be looked at.",
		Witnesses: agentAndKernel, In: inVerifyAlone,
	},
	{
		Kind:      "env-file-not-mounted",
		Proves:    "The file that the secrets come from is not visible.",
		How:       "Its path on the host is not there inside, or can be neither read nor written.",
		Control:   "An error that is neither absence nor a lack of rights cannot tell." + nothingFromThere,
		Witnesses: agentAndEngine, In: inVerify,
	},
	{
		Kind:   "git-shielded",
		Proves: "What git on the host would execute cannot be written, nor be put aside for something else.",
		How: "Each shield is a mount of its own; renaming it is tried, and the kernel must refuse: as it does for mount points, or because the directory around it is mounted read-only or is somebody else's and not to be written (one that it renames is put back). " +
			"What is read-only among them is mounted so, and writing is refused.",
		Control:   "A refusal to rename for any other reason is no proof." + mountsOutside,
		Witnesses: agentEngineKernel, In: inVerify,
	},
	{
		Kind:      "env-shadowed",
		Proves:    "From nothing that the agent may write can its harness be given another environment or configuration.",
		How:       "Each place that the harness would read such from is a mount of its own, read-only, and holds exactly what corral put there; writing is refused, and the kernel refuses to rename and to remove it.",
		Control:   "A refusal to rename or to remove it for any other reason than that of a mount point is no proof." + mountsOutside,
		Witnesses: agentEngineKernel, In: inVerify,
	},
	{
		Kind:   "config-pinned",
		Proves: "Hermes goes by what the policy says, whatever the agent wrote: model, tools, approvals, and what is switched off.",
		How: "Hermes itself is started, by its own python and as the agent, and says what it goes by in its home: each setting that is pinned, as the console reads it and as everything else does, " +
			"the variables that outrank settings, the tools, and what it makes of it all: whom it asks, how it has commands approved, which hooks it loads. The same in a scratch home in which every known redirect was planted (.env, .op.env, config.yaml, secrets.onepassword, active_profile, profiles, hooks, plugins), once the shadows cover what they cover.",
		Control:   "In a third home, without the shadows, the redirects must move it; and an answer that does not come in time, or is none, cannot tell.",
		Witnesses: agentOnly, Only: "nobody but Hermes knows what it makes of its files; that nobody inside can change those root-owned and env-shadowed prove", In: inVerify,
	},
	{
		Kind:      "rw-writable",
		Proves:    "A mount that the policy grants for writing can be written.",
		How:       "Makes a file there that never has a name, where the file system knows such files; otherwise asks the kernel whether it might.",
		Control:   "It is itself a positive control: read-only elsewhere means something." + mountsOutside,
		Witnesses: agentEngineKernel, In: inVerify,
	},
	{
		Kind:      "policy-read-only",
		Proves:    "The policy file cannot be changed by the service that it fences.",
		How:       "As ro-unwritable, for the policy file in the project.",
		Control:   "As ro-unwritable." + mountsOutside,
		Witnesses: agentEngineKernel, In: inVerify,
	},
	{
		Kind:      "ro-unwritable",
		Proves:    "A mount that the policy grants for reading cannot be written, and neither can a mount below it.",
		How:       "The mount that holds the path and each mount below it is read-only in mountinfo, and making a file there is refused as it is on a read-only file system, or for want of rights.",
		Control:   "The path must be there; any other error cannot tell. rw-writable shows that the same trial succeeds where it may." + mountsOutside,
		Witnesses: agentEngineKernel, In: inVerify,
	},
	{
		Kind:      "pids-limited",
		Proves:    "The service has at most so many processes.",
		How:       "The limit of its control group is there and no higher than the plan's.",
		Control:   "No control file: it cannot tell." + asAskedFor,
		Witnesses: agentAndEngine, In: inVerifyAlone, Skipped: inAlone,
	},
	{
		Kind:      "memory-limited",
		Proves:    "The service uses at most so much memory.",
		How:       "The limit of its control group is there and no higher than the plan's.",
		Control:   "No control file: it cannot tell." + asAskedFor,
		Witnesses: agentAndEngine, In: inVerify,
	},
	{
		Kind:      "cpus-limited",
		Proves:    "The service uses at most so much of the processors.",
		How:       "The quota of its control group is there and no higher than the plan's.",
		Control:   "No control file: it cannot tell." + asAskedFor,
		Witnesses: agentAndEngine, In: inVerify,
	},
	{
		Kind:      "gate-answers",
		Proves:    "A gate is in this network namespace.",
		How:       "Asks 127.0.0.1 for the gate's instance, a text in DNS's class CHAOS.",
		Control:   "Where none answers nothing else is sent, and all that would send something fails.",
		Witnesses: agentAndGate, In: inAlone,
	},
	{
		Kind:      "same-netns-as-gate",
		Proves:    "The service is in the network namespace of this very run of this very gate.",
		How:       "Compares the inode of its own namespace with the one that the gate told the host over its socket, and with that of each thread of each visible process that it may look at, and asks 127.0.0.1 for the gate's instance, which must be the one told.",
		Control:   "The two come from either side of the wall: the agent cannot make them agree." + " The engine says that the service's network is that gate's container, and the host's /proc shows its first process in that namespace, where it may be looked at.",
		Witnesses: []Witness{WitnessAgent, WitnessEngine, WitnessKernel, WitnessGate}, In: inVerifyPlanned,
	},
	{
		Kind:   "gate-control-unreachable",
		Proves: "The service can neither see the gate nor talk to it, but for names.",
		How: "The gate's directory is not there; in the socket tables of the namespace nobody but the service itself listens, by its user and by a process of its own that holds the socket, save for the gate's names server and the engine's resolver; " +
			"no abstract socket and no socket file is somebody else's; no process of the gate's is visible.",
		Control:   "Tables that cannot be read cannot tell." + " The engine says that the service shares no processes, memory or volumes with another container, and the gate that nothing of root's or of its own listens but names and the engine's resolver.",
		Witnesses: []Witness{WitnessAgent, WitnessEngine, WitnessGate}, In: inVerifyAlone,
	},
	{
		Kind:      "unlisted-host-blocked",
		Proves:    "A host that the policy does not list cannot be reached, however it is tried.",
		How:       "Connects to an unlisted address on 443, 80 and the ports of host services and links, and to one that stands for a public resolver on 53, 853 and 443 by TCP and 443 by UDP. Each must be refused on the spot.",
		Control:   verdicts + " Before a harness starts nobody can be asked, and the refusal on the spot must do.",
		Witnesses: agentAndGate, In: inAll,
	},
	{
		Kind:   "dns-closed",
		Proves: "No lookup leaves but through the gate.",
		How: "resolv.conf names 127.0.0.1 alone. Then asks the engine's resolver (on 53 and every other port that it has in the namespace), the gateway, a stand-in for public resolvers and the link-local metadata address " +
			"for the container's own name, by UDP and TCP. Any answer fails.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:   "names-only-pinned",
		Proves: "Listed names lead where the gate pinned them; every other name does not exist.",
		How: "Each listed name has the same addresses in /etc/hosts and from the gate, that of the host the gateway's only, and /etc/hosts has no line but theirs, loopback's and the container's own. A fresh random name is NXDOMAIN from the gate, with the error that means blocked, " +
			"and does not exist by the ordinary way either, within two seconds.",
		Control:   "The listed names resolve at the same server by the same way; where nothing is listed there is none, and that the gate says why the name does not exist is what tells it from any other server.",
		Witnesses: agentAndGate, In: inAll,
	},
	{
		Kind:      "names-sink",
		Proves:    "At a gate that sinks names, an unlisted name leads to an address that leads nowhere.",
		How:       "A fresh random name is exactly that address, from the gate and by the ordinary way; then connects to it on 80 and 443.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inAll,
	},
	{
		Kind:   "public-only",
		Proves: "At a gate for public addresses, special-purpose ones are closed.",
		How: "A name that no public host has is blocked. Then connects on 80 and 443 to the metadata address, and, only once that was refused, to one address each of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, " +
			"100.64.0.0/10 and 192.0.2.0/24 that no name and no interface here has.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inAll,
	},
	{
		Kind:      "udp-closed",
		Proves:    "Nothing leaves by UDP.",
		How:       "Sends to an unlisted address on 53, 123 and 443, and to every address of each listed name on 443. The kernel must refuse each as it is sent.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:      "bound-sockets-closed",
		Proves:    "Naming a device or an address of its own for a packet gets a program nowhere.",
		How:       "Sends to 127.0.0.1 by way of each outer device, to an unlisted address by way of loopback, and to the gate's names from the address of the engine's resolver. The kernel must refuse each as it is sent.",
		Control:   verdicts + " The gate's names answer anybody else, which names-only-pinned needs.",
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "rules-as-granted",
		Proves:    "The kernel's rules do with every kind of packet what the policy says, those that no service can send included.",
		How:       "The gate reads the rules and sets back from the kernel and takes hundreds of packets through them on paper: from outside and to outside, in every state of a connection, from every kind of port, with the limits of records reached and not. What must become of each comes from its document.",
		Control:   "A rule that the gate does not understand, and a gate that does not say how many packets it tried, cannot be told.",
		Witnesses: []Witness{WitnessGate}, In: inVerify,
	},
	{
		Kind:      "icmp-closed",
		Proves:    "Nothing leaves as an echo request.",
		How:       "Where the kernel gives this user an echo socket, sends a request to an unlisted address: the kernel must refuse to send it.",
		Control:   "The same socket reaches loopback first. Where no such socket can be made, raw-sockets-refused covers the other way." + " The gate says that the rules in the kernel are those that it applied.",
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:      "raw-sockets-refused",
		Proves:    "The service cannot send frames or packets with headers of its own, past the rules.",
		How:       "Tries raw ICMP, IP, TCP and IPv6 sockets and both kinds of packet sockets. One that is made fails.",
		Control:   "A lack of resources cannot tell; a lack of rights, or of the protocol, is the refusal." + fromOutside,
		Witnesses: agentEngineKernel, In: inVerifyAlone,
	},
	{
		Kind:      "vsock-refused",
		Proves:    "The service cannot talk to a hypervisor or to sibling machines, past the rules.",
		How:       "Tries stream and datagram vsock sockets. One that is made fails.",
		Control:   "A lack of resources cannot tell; a lack of rights, or of the protocol, is the refusal." + fromOutside,
		Witnesses: agentEngineKernel, In: inVerifyAlone,
	},
	{
		Kind:      "metadata-blocked",
		Proves:    "A cloud's metadata service, which gives out credentials, cannot be reached.",
		How:       "Connects to 169.254.169.254, or what the settings of the machine say, on 80. Any answer fails.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:      "ipv6-disabled",
		Proves:    "IPv6 is off.",
		How:       "disable_ipv6 is 1 for all interfaces, for new ones and for each one but loopback; or the kernel has no IPv6.",
		Control:   "Addresses without settings, or no settings at all: it cannot tell." + " The gate reads the same settings on its side.",
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "no-ipv6-address",
		Proves:    "No interface has an IPv6 address but loopback.",
		How:       "Reads /proc/net/if_inet6.",
		Control:   "A line that it cannot read cannot tell." + " The gate reads the same table on its side.",
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "ipv6-blocked",
		Proves:    "Nothing leaves by IPv6.",
		How:       "Sends to an IPv6 address on 443, by TCP and UDP: there is no address to send from and no route, or the gate refused it. An answer fails.",
		Control:   "Where something was sent, the gate must have a record that it refused it from that port; where nothing could be, there is no IPv6 address in the namespace.",
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:      "gateway-closed",
		Proves:    "The host cannot be reached at its own address on the corral network.",
		How:       "Connects to the gateway on 22, 80, 443, 2375 and 2376, less the host services that are granted, by TCP and UDP. Any answer fails. In stacks of others, skipped where the gate lets host services through: its settings alone say which.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:      "host-port-undeclared-blocked",
		Proves:    "A port of the host that answers everybody else does not answer the service.",
		How:       "Tries a port of the gateway's address, by TCP and UDP, on which corral listens while it verifies.",
		Control:   verdicts + " And corral has just called that listener from the host, and notes who calls: a call from the gate's address fails, whatever was said inside.",
		Witnesses: []Witness{WitnessAgent, WitnessGate, WitnessKernel}, In: inVerify,
	},
	{
		Kind:      "no-port-published",
		Proves:    "Nobody outside is led to the sandbox, and the service is on no network but its gate's.",
		How:       "The engine names no port of the host's that is bound to the gate or to the service, the service's network is the gate's container, and it is on no other.",
		Control:   "An engine that does not say cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inVerify,
	},
	{
		Kind:   "container-as-planned",
		Proves: "The service's container is what its plan asks for, in whatever no other check looks at.",
		How: "Compares every setting of the container that the engine tells with what corral asks of it, the environment, the entry point and the engine's own defaults included: for what corral asks nothing of, " +
			"it must be as for the gate, or as the image says. Each difference fails by its name.",
		Control:   "An engine that does not say cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inVerify,
	},
	{
		Kind:   "processes-confined",
		Proves: "Every process in the service is its user's and as confined as its first, and nobody else's is in its namespaces.",
		How: "The engine lists the processes of the container: each has its user and group. The host's /proc shows, of each, no capability in any set, no new privileges and a filter of system calls; and where namespaces may be looked at, " +
			"no thread of a process outside the sandbox's containers is in one of the service's. Each thread is judged, one that outlives the first of its process too. What is otherwise at first and gone within 5 s, as a command that is about to start, is no fault.",
		Control:   "The list must not be empty, and /proc must show a process of the container. A list that cannot be read cannot tell.",
		Witnesses: engineAndKernel, In: inVerify,
	},
	{
		Kind:   "no-strangers",
		Proves: "No container of somebody else's is in the namespaces of the service or of its gate, or was made with their volumes.",
		How: "Asks the engine how each of its containers is made: none that runs has the network, processes, memory or volumes of the gate or the service, or of one that has, but the sandbox's own, which are known by their identities. " +
			"The volume of programs all sandboxes of corral's have, and nobody else; the directory of one on the host, or what is in it, is as the volume. One that is gone within 5 s is no fault.",
		Control:   "The list must have the sandbox's own containers. A container of which the engine does not say how it is made cannot be told.",
		Witnesses: []Witness{WitnessEngine}, In: inVerify,
	},
	{
		Kind:      "host-service",
		Proves:    "A service of the host that the policy grants can be reached.",
		How:       "Connects to the gateway on the port, and waits for a moment for a reset, with which the relay ends it where nobody listens on the host's loopback. That nothing is said, something is, or the service itself hangs up, holds.",
		Control:   "It is itself a positive control: other ports of the same address are closed. Silence cannot tell." + recorded,
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "allowed",
		Proves:    "A host that the policy lists can be reached on the port that it lists.",
		How:       "Looks the name up as any program does, and connects to its addresses on the port: one must accept.",
		Control:   "It is itself the positive control of every refusal. Silence cannot tell: a cut cable looks the same." + recorded,
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "port-not-listed-blocked",
		Proves:    "A listed host is closed on ports that the policy does not list.",
		How:       "Connects to up to four addresses of the name on a port that no name is granted. Any answer fails.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "peer-unreachable",
		Proves:    "Another sandbox that is up cannot be reached.",
		How:       "Connects to the address of its gate on 22, 80, 443 and 8080, by TCP and UDP. Any answer fails.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerify,
	},
	{
		Kind:      "resolves",
		Proves:    "A name that the gate wrote leads there, for any program.",
		How:       "The name has the same addresses in /etc/hosts, from the gate and by the ordinary way. Nobody is connected to.",
		Control:   "A hosts file that is not whole cannot tell.",
		Witnesses: agentOnly, Only: "who answers is the gate, and it has no other word on it", In: inVerifyAlone,
	},
	{
		Kind:      "link",
		Proves:    "The service at the other end of a link can be reached.",
		How:       "Connects to the address and port of the link, in stacks of others those that the gate tells: it must accept.",
		Control:   "It is itself a positive control of link-closed. Silence cannot tell." + recorded,
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
	{
		Kind:      "link-closed",
		Proves:    "A link leads to its ports only; where there is none, nothing of another gate's is in reach.",
		How:       "Connects to the other end's address on 22, 80, 443 and all that is served there (in stacks of others on 22, 53, 80, 443 and 2375), less the ports of the link, by TCP and UDP. Any answer fails.",
		Control:   verdicts,
		Witnesses: agentAndGate, In: inVerifyAlone,
	},
}

// OwnCatalogue lists every kind of check of the containers that are corral's own.
// They are judged on the host; some share their kind with one of a service.
var OwnCatalogue = []Entry{
	{
		Kind:      "capabilities-exact",
		Proves:    "It holds the capabilities that it needs, and can come to hold no other.",
		How:       "The engine was asked to drop all and to add exactly the plan's. Where the kernel shows the first process, none of its five sets has another, and a gate has all of its own in effect.",
		Control:   "An engine that does not say cannot tell.",
		Witnesses: engineAndKernel, In: inOwn,
	},
	{
		Kind:      "no-new-privs",
		Proves:    "None of its programs gains rights when it is executed.",
		How:       "The engine was asked for it. Where the kernel shows the first process, it is set there.",
		Control:   "An engine that does not say cannot tell." + fromOutside,
		Witnesses: engineAndKernel, In: inOwn,
	},
	{
		Kind:      "seccomp-on",
		Proves:    "It runs under the engine's own filter of system calls.",
		How:       "Nobody asked the engine for another one, and it is not privileged. Where the kernel shows the first process, a filter is on.",
		Control:   "An engine that does not say cannot tell." + fromOutside,
		Witnesses: engineAndKernel, In: inOwn,
	},
	{
		Kind:      "container-as-planned",
		Proves:    "It is what corral asked for, in every field, and nothing that nobody asked for is there.",
		How:       "Compares each field of the engine's answer that no other check is about with the request that corral would make now, or with what its image or the engine itself puts there; it runs, was not started again, and is on its network alone, at its address.",
		Control:   "Fields that corral does not know fail unless they are empty. An engine that does not say cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:      "image-as-built",
		Proves:    "Its image is the one that this corral builds.",
		How:       "Compares the two identities, which are digests of what is in them.",
		Control:   "Where this corral's image is not there it cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:      "programs-as-built",
		Proves:    "The programs in it, and those that it holds for services, are this corral's.",
		How:       "Reads them out of the container and compares them byte for byte.",
		Control:   "Programs that cannot be read cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:      "mounts-only-declared",
		Proves:    "What is mounted in it is what corral asked for.",
		How:       "Each mount that the engine names, as asked for and as made, is the plan's in its kind, source, target and whether it may be written; each of the plan's is there; it has no volumes of another container.",
		Control:   "An engine that does not say cannot tell. What the kernel shows to be mounted there is not compared.",
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:      "read-only-root",
		Proves:    "A relay cannot write to its own files.",
		How:       "The engine made its root file system read-only.",
		Control:   "An engine that does not say cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inRelay,
	},
	{
		Kind:      "diff-expected",
		Proves:    "It wrote nothing beside what it is there to write.",
		How:       "What the engine says differs from its image is a gate's document, a place of a mount, or what engines make in every container.",
		Control:   "An engine that does not say cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:   "processes-expected",
		Proves: "Its own program runs in it, and nobody else's; and nobody else's process is in its namespaces.",
		How: "The engine lists exactly the first process and, in a gate, one worker of its own user. What answers corral or reads rules comes and goes: whatever is there each of four times fails, and what calls itself one of those if it has not gone within 5 s. " +
			"Where namespaces may be looked at, the host's /proc shows no thread of a process outside the sandbox's containers that is in one of its own, and stays there for 5 s.",
		Control:   "The first process must be there. A list that cannot be read cannot tell.",
		Witnesses: engineAndKernel, In: inOwn,
	},
	{
		Kind:      "no-strangers",
		Proves:    "No container of somebody else's is in its namespaces, or was made with its volumes.",
		How:       "Asks the engine how each of its containers is made: none that runs has its network, processes, memory or volumes, or those of one that has, but the sandbox's own, which are known by their identities; the directory of a volume on the host, or what is in it, is as the volume. One that is gone within 5 s is no fault.",
		Control:   "The list must have the container itself. A container of which the engine does not say how it is made cannot be told.",
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:      "pids-limited",
		Proves:    "It has at most so many processes.",
		How:       "The limit that the engine was asked for is the plan's.",
		Control:   "An engine that does not say cannot tell." + asAskedFor,
		Witnesses: []Witness{WitnessEngine}, In: inOwn,
	},
	{
		Kind:      "memory-limited",
		Proves:    "A relay uses at most so much memory.",
		How:       "The limit that the engine was asked for, with swap, is the plan's.",
		Control:   "An engine that does not say cannot tell." + asAskedFor,
		Witnesses: []Witness{WitnessEngine}, In: inRelay,
	},
	{
		Kind:      "no-port-published",
		Proves:    "Nobody outside is led to the gate.",
		How:       "The engine names no port of the host's that is bound to it.",
		Control:   "An engine that does not say cannot tell.",
		Witnesses: []Witness{WitnessEngine}, In: []Form{FormGate},
	},
	{
		Kind:   "no-listener-for-outsiders",
		Proves: "Who is not behind a gate gets no answer from it; who is on no relay's list is turned away.",
		How: "The gate says which sockets of its own listen in its namespace: names at 127.0.0.1:53, and the engine's resolver. Then the host sends to ports of the gate's address by TCP and UDP, and must hear nothing at all. " +
			"A relay listens where it is told to, and turns the host away.",
		Control:   "This machine has the gate's hardware address at that address: there was somebody to hear it. Otherwise it cannot tell.",
		Witnesses: []Witness{WitnessEngine, WitnessGate, WitnessKernel}, In: inOwn,
	},
	{
		Kind:      "rules-as-read",
		Proves:    "The gate serves, and the kernel has the rules and sets that it wrote, by the policy that is proven.",
		How:       "The gate reads its rules and sets back from the kernel when it is asked; digests of both are the same. Its policy and class are the plan's.",
		Control:   "A gate that does not say cannot tell. That the rules do what they should the probes of the service show.",
		Witnesses: []Witness{WitnessGate}, In: []Form{FormGate},
	},
	{
		Kind:      "document-as-planned",
		Proves:    "The gate goes by the document that the plan gives it.",
		How:       "The document that lies in the container has the digest of the one that the gate goes by, and says what the plan says now. Of the addresses that no name may have, which its digest leaves out, the gate tells those in force: the corral network, and what of this machine's addresses and networks a name could have otherwise, must be among them.",
		Control:   "A document that cannot be read, and a gate that does not say, cannot tell.",
		Witnesses: []Witness{WitnessEngine, WitnessGate}, In: []Form{FormGate},
	},
	{
		Kind:      "namespace-as-made",
		Proves:    "What the gate's rules stand on is as it was when the gate began, and nobody passes by them.",
		How:       "The gate reads links that are up, addresses, neighbours that the kernel was told and does not ask for, the routes of all tables and the rules that choose them, queues and XDP programs at links, settings of the kernel for forwarding, for what is answered for others, for connections and for who may take which address or port, and what is mounted where in its own view, and compares them with its first reading; and it lists packet and raw sockets that none of its own programs holds. It closes by itself when the first of these differ.",
		Control:   "A namespace that began with what no engine makes, as a second way out, an address on loopback, a rule for routes, a neighbour that was told or something mounted over the gate's programs, is never opened. A gate that does not say cannot tell.",
		Witnesses: []Witness{WitnessGate}, In: []Form{FormGate},
	},
}
