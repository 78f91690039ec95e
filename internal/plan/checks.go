package plan

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Home is the agent's home inside.
const Home = "/home/agent"

// credentials are the stores that must never be visible inside, below either
// home: those of the person's that no policy may mount.
var credentials = []string{
	".ssh", ".gnupg", ".pki", ".putty", ".step", ".config/age", ".config/sops", ".password-store", ".config/op",
	".config/1Password", ".config/Bitwarden", ".config/Bitwarden CLI", ".config/keepassxc",
	".local/share/keyrings", ".local/share/kwalletd", ".gnome2/keyrings", ".Xauthority", ".ICEauthority", ".aws",
	".azure", ".config/gcloud", ".boto", ".oci", ".config/doctl", ".config/hcloud", ".config/scw", ".fly",
	".config/netlify", ".local/share/com.vercel.cli", ".config/.wrangler", ".config/stripe", ".databrickscfg",
	".snowflake", ".kaggle", ".s3cfg", ".config/rclone", ".kube", ".talos", ".docker", ".config/containers",
	".config/helm", ".terraform.d", ".terraformrc", ".pulumi", ".vault-token", ".netrc", ".authinfo",
	".authinfo.gpg", ".smbcredentials", ".pgpass", ".my.cnf", ".mylogin.cnf", ".subversion", ".git-credentials",
	".config/git/credentials", ".config/gh", ".config/hub", ".config/github-copilot", ".config/glab-cli",
	".npmrc", ".yarnrc.yml", ".pypirc", ".config/pip", ".cargo/credentials", ".cargo/credentials.toml",
	".gem/credentials", ".m2/settings.xml", ".gradle/gradle.properties", ".composer/auth.json",
	".cache/huggingface/token", ".claude", ".claude.json", ".local/share/opencode", ".codex", ".gemini",
	".hermes", ".config/goose", ".config/Code", ".config/Cursor", ".mozilla", ".config/google-chrome",
	".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".config/vivaldi", ".config/opera",
	".librewolf", ".var/app", "snap", ".thunderbird", ".local/share/evolution", ".config/evolution", ".msmtprc",
	".mbsyncrc", ".fetchmailrc", ".config/Signal", ".config/Slack", ".config/discord",
	".local/share/TelegramDesktop", ".bitcoin", ".ethereum", ".electrum", ".vnc", ".local/share/remmina",
	".bash_history", ".zsh_history", ".zhistory", ".histfile", ".zsh_sessions", ".local/share/fish",
	".python_history", ".node_repl_history", ".psql_history", ".mysql_history", ".sqlite_history",
	".rediscli_history", ".lesshst",
}

// handover lists what must hold, seen from the agent's own side, before the
// harness runs. The engine fills in which gate it joins.
func handover(g spec.Gate, s Service) []spec.Check {
	return []spec.Check{
		{Name: "non-root"},
		{Name: "uid-matches-host", UID: s.UID, GID: s.GID},
		{Name: "no-capabilities"},
		{Name: "no-new-privs"},
		{Name: "seccomp-on"},
		{Name: "same-netns-as-gate"},
		{Name: "unlisted-host-blocked", Probes: &g.Probes},
		strangers(g, spec.Check{Name: "names-only-pinned"}),
		{Name: "mounts-only-declared", Mount: specMounts(s)},
		{Name: "policy-inputs-absent", Paths: []string{spec.GateFile, filepath.Dir(spec.GateSocket)}},
	}
}

// verify lists every check of a service: what is granted must work, what is
// not must fail for the right reason.
func verify(p *policy.Policy, h Host, behind Gate, s Service, all []Gate) []spec.Check {
	g := behind.Spec
	checks := []spec.Check{
		{Name: "non-root"},
		{Name: "uid-matches-host", UID: s.UID, GID: s.GID},
		{Name: "no-sudo"},
		{Name: "no-capabilities"},
		{Name: "no-new-privs"},
		{Name: "seccomp-on"},
		{Name: "iptables-refused"},
		{Name: "no-docker-socket:/var/run/docker.sock", Path: "/var/run/docker.sock"},
		{Name: "no-docker-socket:/run/docker.sock", Path: "/run/docker.sock"},
	}
	for _, dir := range credentials {
		c := spec.Check{Name: "no-credential-dir:" + dir, Paths: h.Homes, Mount: declared(own(s.Mounts))}
		if slices.ContainsFunc(c.Mount, func(m spec.Mount) bool { return m.Target == filepath.Join(Home, dir) }) {
			// What is there mounts-only-declared proves, and host-home-only-mounts looks
			// at the whole of the person's home.
			c.Skip = "the sandbox's own: it keeps its state there, in a directory that is not yours"
		}
		checks = append(checks, c)
	}
	leak := spec.Check{Name: "secret-absent-elsewhere", Names: s.Secrets, Mount: declared(s.Mounts)}
	if len(s.Secrets) == 0 {
		leak.Skip = "the policy has no secrets"
	}
	checks = append(checks,
		spec.Check{Name: "host-home-only-mounts", Paths: h.Homes, Mount: specMounts(s)},
		spec.Check{Name: "mounts-only-declared", Mount: specMounts(s)},
		leak,
		spec.Check{Name: "policy-inputs-absent", Paths: []string{spec.GateFile, filepath.Dir(spec.GateSocket)}},
	)
	fixed := []string{spec.GuestDir + "/bin/corral-verify", "/etc/corral/README", "/etc/gitconfig", "/etc/resolv.conf", "/etc/hosts"}
	for _, path := range slices.Concat(fixed, s.RootOwned) {
		checks = append(checks, spec.Check{Name: "root-owned:" + path, Path: path})
	}
	if p.EnvFile.Path != "" {
		checks = append(checks, spec.Check{Name: "env-file-not-mounted", Paths: []string{p.EnvFile.Path}})
	}
	if len(s.Shields) > 0 {
		checks = append(checks, spec.Check{Name: "git-shielded", Mount: declared(s.Shields)})
	}
	if s.Name == Main {
		checks = append(checks, hermesChecks(p, s)...)
	}
	for _, m := range s.Mounts {
		if s.shield(m) || shadows(p, m) {
			continue
		}
		name := "rw-writable:" + m.Target()
		switch {
		case m.Path == p.File:
			name = "policy-read-only"
		case m.ReadOnly:
			name = "ro-unwritable:" + m.Target()
		}
		checks = append(checks, spec.Check{Name: name, Path: m.Target()})
	}
	checks = append(checks, spec.Check{Name: "pids-limited", Limit: s.Pids})
	if s.Memory > 0 {
		checks = append(checks, spec.Check{Name: "memory-limited", Limit: s.Memory})
	}
	if s.NanoCPUs > 0 {
		checks = append(checks, spec.Check{Name: "cpus-limited", Limit: s.NanoCPUs})
	}
	checks = append(checks,
		spec.Check{Name: "same-netns-as-gate"},
		spec.Check{Name: "gate-control-unreachable", Port: s.Serves},
		spec.Check{Name: "unlisted-host-blocked", Probes: &g.Probes, Ports: grantedOnce(g)},
		spec.Check{Name: "dns-closed", Probes: &g.Probes, Addr: g.Gateway},
		strangers(g, namesPinned(g)),
		spec.Check{Name: "udp-closed", Probes: &g.Probes, Names: domains(g)},
		spec.Check{Name: "bound-sockets-closed", Probes: &g.Probes},
		spec.Check{Name: "icmp-closed", Probes: &g.Probes},
		spec.Check{Name: "raw-sockets-refused"},
		spec.Check{Name: "vsock-refused"},
		spec.Check{Name: "metadata-blocked", Probes: &g.Probes},
		spec.Check{Name: "ipv6-disabled"},
		spec.Check{Name: "no-ipv6-address"},
		spec.Check{Name: "ipv6-blocked", Probes: &g.Probes},
		spec.Check{Name: "gateway-closed", Addr: g.Gateway, Ports: ungranted(g, 22, 80, 443, 2375, 2376)},
		spec.Check{Name: "host-port-undeclared-blocked", Addr: g.Gateway, Port: undeclared(g)},
	)
	checks = append(checks, spec.Check{Name: "rules-as-granted"}, spec.Check{Name: "no-port-published"}, spec.Check{Name: "container-as-planned"},
		spec.Check{Name: "processes-confined"}, spec.Check{Name: "no-strangers"})
	for _, port := range g.HostPorts {
		checks = append(checks, spec.Check{Name: fmt.Sprintf("host-service:%d", port), Addr: g.Gateway, Port: port})
	}
	unlisted := unlistedPort(g)
	for _, n := range g.Names {
		if n.AnyPort {
			continue
		}
		for _, port := range n.Ports {
			checks = append(checks, spec.Check{Name: fmt.Sprintf("allowed:%s:%d", n.Domain, port), Host: n.Domain, Port: port})
		}
		blocked := spec.Check{Name: "port-not-listed-blocked:" + n.Domain, Host: n.Domain, Port: unlisted}
		if unlisted == 0 {
			blocked.Skip = "the policy opens every port of one name or another, and names may share an address"
		}
		checks = append(checks, blocked)
	}
	return append(checks, neighbours(behind, all)...)
}

// strangers is what a gate does with names that nobody listed: pinned proves it of one
// that refuses them.
func strangers(g spec.Gate, pinned spec.Check) spec.Check {
	switch {
	case g.Class == spec.ClassPublic:
		return spec.Check{Name: "public-only", Probes: &g.Probes, Addrs: inward()}
	case g.SinkNames:
		return spec.Check{Name: "names-sink", Addr: spec.SinkAddress}
	}
	return pinned
}

// inward are addresses of kinds of networks that lie behind a machine, the last that a
// host of each can have, which nobody is likely to have.
func inward() (all []netip.Addr) {
	for _, last := range [][4]byte{{10, 255, 255, 254}, {172, 31, 255, 254}, {192, 168, 255, 254}, {100, 127, 255, 254}, {192, 0, 2, 254}} {
		all = append(all, netip.AddrFrom4(last))
	}
	return all
}

// neighbours are the checks of the edges of a sandbox, and of those that are none: what
// a service may call of those behind its sandbox's other gates answers there and on no
// other port, and the rest is out of reach, at either of their addresses.
func neighbours(behind Gate, all []Gate) (checks []spec.Check) {
	for _, other := range all {
		if other.Name == behind.Name {
			continue
		}
		var linked, served []uint16
		for _, l := range behind.Spec.Links {
			if l.Name == other.Name {
				linked = append(linked, l.Port)
				checks = append(checks, spec.Check{Name: fmt.Sprintf("link:%s:%d", l.Name, l.Port), Addr: l.Addr, Port: l.Port})
			}
		}
		for _, c := range other.Spec.Clients {
			served = append(served, c.Port)
		}
		ports := append([]uint16{22, 80, 443}, served...)
		slices.Sort(ports)
		ports = slices.Compact(ports)
		if len(linked) > 0 {
			checks = append(checks, spec.Check{Name: "resolves:" + other.Name, Host: other.Name, Addrs: []netip.Addr{other.Link}})
		}
		checks = append(checks, spec.Check{Name: "peer-unreachable:" + other.Name, Addr: other.Spec.Address, Ports: ports})
		if other.Link.IsValid() && behind.Link.IsValid() {
			closed := slices.DeleteFunc(slices.Clone(ports), func(p uint16) bool { return slices.Contains(linked, p) })
			checks = append(checks, spec.Check{Name: "link-closed:" + other.Name, Addr: other.Link, Ports: closed})
		}
	}
	return checks
}

// GateCapabilities are all that a gate ever holds: NET_ADMIN writes the rules,
// NET_RAW is what the set match and iptables-legacy open their sockets with,
// SETUID, SETGID and KILL make and end the unprivileged worker.
var GateCapabilities = []string{"NET_ADMIN", "NET_RAW", "SETUID", "SETGID", "KILL"}

// RelayCapabilities listen on a port below PrivilegedPorts and give up root. A
// relay of any other port has none.
var RelayCapabilities = []string{"NET_BIND_SERVICE", "SETUID", "SETGID"}

// PrivilegedPorts is the first port that anybody may listen on.
const PrivilegedPorts = 1024

// Bounds of corral's own containers.
const (
	// GatePids is room for a gate, its worker and a few questions at once.
	GatePids = 64
	// RelayPids is room for its threads and for a question or two.
	RelayPids = 64
	// RelayMemory holds 512 connections that are full and stuck both ways: of each
	// four socket buffers of 64 KiB, where the engine counts those, which is twice
	// what the relay asks for, and 19 MiB in all for the relay itself, measured.
	RelayMemory = 256 << 20
)

// gateChecks lists what is proven of a gate's own container, on the host: what
// the engine says of it, and what the gate says of itself. What it is asked to be
// beside what a check here lists is container-as-planned's.
func gateChecks(g spec.Gate) []spec.Check {
	var granted []uint16 // ports of the service that somebody may call
	for _, c := range g.Clients {
		granted = append(granted, c.Port)
	}
	callable := slices.DeleteFunc([]uint16{22, 53, 80, 443, 8080}, func(p uint16) bool { return slices.Contains(granted, p) })
	return []spec.Check{
		{Name: "capabilities-exact", Names: GateCapabilities},
		{Name: "no-new-privs"},
		{Name: "seccomp-on"},
		{Name: "container-as-planned"},
		{Name: "image-as-built"},
		{Name: "programs-as-built"},
		{Name: "mounts-only-declared"},
		{Name: "diff-expected", Paths: []string{spec.GateFile, spec.GateFile + ".new", spec.GateFile + ".next"}},
		{Name: "processes-expected"},
		{Name: "no-strangers"},
		{Name: "pids-limited", Limit: GatePids},
		{Name: "no-port-published"},
		{Name: "no-listener-for-outsiders", Addr: g.Address, Ports: callable},
		{Name: "rules-as-read"},
		{Name: "document-as-planned"},
		{Name: "namespace-as-made"},
	}
}

// relayChecks lists the same of a relay, which listens at the gateway's address.
func relayChecks(r Relay, gateway netip.Addr) []spec.Check {
	var rights []string
	if r.Port < PrivilegedPorts {
		rights = RelayCapabilities
	}
	return []spec.Check{
		{Name: "capabilities-exact", Names: rights},
		{Name: "no-new-privs"},
		{Name: "seccomp-on"},
		{Name: "container-as-planned"},
		{Name: "image-as-built"},
		{Name: "programs-as-built"},
		{Name: "mounts-only-declared"},
		{Name: "read-only-root"},
		{Name: "diff-expected"},
		{Name: "processes-expected"},
		{Name: "no-strangers"},
		{Name: "pids-limited", Limit: RelayPids},
		{Name: "memory-limited", Limit: RelayMemory},
		{Name: "no-listener-for-outsiders", Addr: gateway, Ports: []uint16{r.Port}},
	}
}

// specMounts are all mounts a service has beside the engine's own: the guest
// binaries, a /tmp of its own and what else it has in memory, and what the plan binds.
func specMounts(s Service) []spec.Mount {
	out := []spec.Mount{{Target: spec.GuestDir, ReadOnly: true}, {Target: "/tmp"}}
	for _, dir := range s.Scratch {
		out = append(out, spec.Mount{Target: dir})
	}
	return append(out, declared(s.Mounts)...)
}

// own are a sandbox's own state, in places of the agent's: the mounts that are
// not at their path of the host and that it may write. What it may only read
// there is lent to it, and the person's.
func own(mounts []Mount) []Mount {
	return slices.DeleteFunc(slices.Clone(mounts), func(m Mount) bool { return m.Inside == "" || m.ReadOnly })
}

func declared(mounts []Mount) []spec.Mount {
	var out []spec.Mount
	for _, m := range mounts {
		out = append(out, spec.Mount{Target: m.Target(), ReadOnly: m.ReadOnly, Dev: m.Dev, Ino: m.Ino})
		for _, below := range slices.Compact(slices.Clone(m.Submounts)) { // they come along
			out = append(out, spec.Mount{Target: below, ReadOnly: m.ReadOnly})
		}
	}
	return out
}

// namesPinned are all names that a gate answers for, that of the host included
// if services may use any of its ports.
func namesPinned(g spec.Gate) spec.Check {
	c := spec.Check{Name: "names-only-pinned", Names: domains(g)}
	for _, l := range g.Links {
		if !slices.Contains(c.Names, l.Name) { // one for each of its ports
			c.Names = append(c.Names, l.Name)
		}
	}
	if len(g.HostPorts) > 0 {
		c.Names, c.Addr = append(c.Names, spec.HostName), g.Gateway
	}
	return c
}

func domains(g spec.Gate) []string {
	var out []string
	for _, n := range g.Names {
		out = append(out, n.Domain)
	}
	return out
}

// grantedOnce are the ports that a rule of their own grants, at one address each.
func grantedOnce(g spec.Gate) []uint16 {
	all := slices.Clone(g.HostPorts)
	for _, l := range g.Links {
		all = append(all, l.Port)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// ungranted leaves out the ports of the host that the policy grants.
func ungranted(g spec.Gate, ports ...uint16) []uint16 {
	return slices.DeleteFunc(ports, func(p uint16) bool { return slices.Contains(g.HostPorts, p) })
}

// undeclared is a port of the host that the policy does not grant.
func undeclared(g spec.Gate) uint16 {
	granted := map[uint16]bool{}
	for _, p := range g.HostPorts {
		granted[p] = true
	}
	return spare(granted)
}

// unlistedPort is granted to no name, since names may share an address; 0 if
// there is none.
func unlistedPort(g spec.Gate) uint16 {
	granted := map[uint16]bool{}
	for _, n := range g.Names {
		if n.AnyPort {
			return 0
		}
		for _, p := range n.Ports {
			granted[p] = true
		}
	}
	return spare(granted)
}

// spare is a port that is not granted, 0 if all are.
func spare(granted map[uint16]bool) uint16 {
	const first = 8445 // nothing common
	port := uint16(first)
	for range math.MaxUint16 {
		if !granted[port] {
			return port
		}
		if port++; port == 0 {
			port = 1
		}
	}
	return 0
}

// Peers adds what must be unreachable because other sandboxes are up now.
func Peers(checks []spec.Check, peers map[string]netip.Addr) []spec.Check {
	for _, name := range sortedKeys(peers) {
		checks = append(checks, spec.Check{Name: "peer-unreachable:" + name, Addr: peers[name], Ports: []uint16{22, 80, 443, 8080}})
	}
	return checks
}

// Join says which running gate the checks are about: its identity, and which
// soft names it could not pin.
func Join(checks []spec.Check, gate spec.GateStatus) []spec.Check {
	unpinned := map[string]bool{}
	for _, u := range gate.Unpinned {
		unpinned[u.Domain] = true
	}
	out := make([]spec.Check, len(checks))
	for i, c := range checks {
		switch c.Kind() {
		case "same-netns-as-gate":
			c.Gate = &spec.Joined{Instance: gate.Instance, NetNS: gate.NetNS}
		case "allowed", "port-not-listed-blocked":
			if unpinned[c.Host] {
				c.Skip = "not pinned (profile default)"
			}
		case "names-only-pinned", "udp-closed":
			var names []string
			for _, n := range c.Names {
				if !unpinned[n] {
					names = append(names, n)
				}
			}
			c.Names = names
		}
		out[i] = c
	}
	return out
}
