package policy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Parse decodes a policy. It sees no file system: File, Dir and Project are
// empty, Name is if the policy gives none, Path of a mount is as written. The
// error is a diag.List that names the file as file.
func Parse(file string, src []byte) (*Policy, error) {
	d := newDecoder(file, src)
	p := d.policy(src)
	if err := d.errs.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// Digest is that of a policy's bytes, as Policy has it.
func Digest(src []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(src)) }

// policy is what can be read of src; it is a policy only if d.errs stays empty.
func (d *decoder) policy(src []byte) *Policy {
	p := &Policy{
		Mode:      Run,
		Egress:    Egress{Defaults: true, Refresh: "auto"},
		Image:     Image{Base: DefaultBase},
		Resources: Resources{Pids: DefaultPids},
		Digest:    Digest(src),
		Origins:   d.origins,
	}
	root := d.document(src)
	if root == nil {
		return p
	}
	var options, background *yaml.Node // judged by the profile, wherever that stands
	met := d.mapping(root, "",
		key{"profile", func(n *yaml.Node) { p.Profile, d.profileNode = d.profile(n), n }},
		key{"name", func(n *yaml.Node) { p.Name = d.name(n) }},
		key{"mode", func(n *yaml.Node) { p.Mode = Mode(d.oneOf(n, "mode", Run.String(), Daemon.String()) + 1) }},
		key{"mounts", func(n *yaml.Node) {
			d.mapping(n, "mounts",
				key{"rw", func(n *yaml.Node) { p.Mounts = append(p.Mounts, d.mounts(n, "mounts.rw", false)...) }},
				key{"ro", func(n *yaml.Node) { p.Mounts = append(p.Mounts, d.mounts(n, "mounts.ro", true)...) }},
			)
		}},
		key{"egress", func(n *yaml.Node) {
			d.mapping(n, "egress",
				key{"allow", func(n *yaml.Node) { p.Egress.Allow = d.allow(n, "egress.allow") }},
				key{"defaults", func(n *yaml.Node) { p.Egress.Defaults, _ = d.boolean(n, "egress.defaults") }},
				key{"refresh", func(n *yaml.Node) {
					if words := []string{"auto", "manual"}; d.oneOf(n, "egress.refresh", words...) == 1 {
						p.Egress.Refresh = words[1]
					}
				}},
				key{"mode", nil},
			)
		}},
		key{"host_services", func(n *yaml.Node) { p.HostServices = d.hostServices(n, "host_services") }},
		key{"secrets", func(n *yaml.Node) {
			d.mapping(n, "secrets",
				key{"env_file", func(n *yaml.Node) { p.EnvFile = d.envFile(n, "secrets.env_file") }},
				key{"inject", nil},
			)
		}},
		key{"image", func(n *yaml.Node) {
			d.mapping(n, "image",
				key{"base", func(n *yaml.Node) { p.Image.Base = d.imageBase(n, "image.base") }},
				key{"packages", func(n *yaml.Node) { p.Image.Packages = d.packages(n, "image.packages") }},
				key{"run", func(n *yaml.Node) { p.Image.Run = d.scripts(n, "image.run") }},
			)
		}},
		key{"resources", func(n *yaml.Node) {
			d.mapping(n, "resources",
				key{"memory", func(n *yaml.Node) { p.Resources.Memory = d.memory(n, "resources.memory") }},
				key{"cpus", func(n *yaml.Node) { p.Resources.NanoCPUs = d.cpus(n, "resources.cpus") }},
				key{"pids", func(n *yaml.Node) { p.Resources.Pids = d.pids(n, "resources.pids") }},
			)
		}},
		key{"git", func(n *yaml.Node) {
			d.mapping(n, "git",
				key{"config", func(n *yaml.Node) { p.Git.ConfigWritable = d.oneOf(n, "git.config", "ro", "writable") == 1 }},
				key{"dir", func(n *yaml.Node) { p.Git.DirReadOnly = d.oneOf(n, "git.dir", "rw", "ro") == 1 }},
			)
		}},
		key{"background", func(n *yaml.Node) { background = n }},
		key{"hooks", func(n *yaml.Node) {
			d.mapping(n, "hooks",
				key{"pre_launch", func(n *yaml.Node) { p.PreLaunch = d.scripts(n, "hooks.pre_launch") }},
			)
		}},
		key{"profile_options", func(n *yaml.Node) { options = n }},
		key{"publish", nil},
	)
	switch {
	case d.full():
		d.errorf(root, "correct the first ones, then look again", "%d mistakes: what follows them was not read", len(d.errs))
	case !met["profile"] && root.Kind == yaml.MappingNode && len(root.Content) <= 2*maxKeys:
		d.errorf(root, "start with profile: shell", "no profile")
	}
	if options != nil {
		d.options(options, p)
	}
	if background != nil {
		p.Background = d.background(background, "background", p.Profile)
	}
	return p
}

var (
	profileName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	sandboxName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,29}$`)
)

func (d *decoder) profile(n *yaml.Node) string {
	s, ok := d.text(n, "profile")
	if ok && !profileName.MatchString(s) {
		d.errorf(n, "", "%q is not the name of a profile", s)
	}
	return s
}

func (d *decoder) name(n *yaml.Node) string {
	s, ok := d.text(n, "name")
	if ok && !sandboxName.MatchString(s) {
		d.errorf(n, fmt.Sprintf("write name: %s", validName(s)),
			"%q cannot name a sandbox: 1 to 30 of a-z, 0-9 and -, not starting with -", s)
	}
	return s
}

// validName is the name nearest to s that a sandbox can have.
func validName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(s))
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '-' }), "-")
	s = strings.TrimSuffix(s[:min(len(s), 30)], "-")
	if s == "" {
		return "sandbox"
	}
	return s
}

func (d *decoder) options(n *yaml.Node, p *Policy) {
	d.mapping(n, "profile_options",
		key{"shell", func(n *yaml.Node) {
			if p.Profile != "shell" {
				d.errorf(n, "", "profile_options.shell without profile: shell")
			}
			d.mapping(n, "profile_options.shell",
				key{"command", func(n *yaml.Node) { p.Command = d.command(n, "profile_options.shell.command") }},
			)
		}},
		key{"opencode", nil},
		key{"hermes", func(n *yaml.Node) {
			if p.Profile != "hermes" {
				d.errorf(n, "write profile: hermes, or remove it", "profile_options.hermes without profile: hermes")
			}
			p.Hermes = d.hermes(n, "profile_options.hermes")
		}},
		key{"claude", nil},
	)
}

func (d *decoder) command(n *yaml.Node, path string) (argv []string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value != "" && !strings.ContainsAny(n.Value, `'"\$;|&<>()*?[]{}#~`+"`") {
		d.errorf(n, fmt.Sprintf("write [%s]", strings.Join(strings.Fields(n.Value), ", ")), "%s must be a list, this is a string", path)
		return nil
	}
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		s, ok := d.string(n, path, maxCommand)
		if ok && strings.ContainsRune(s, 0) {
			d.errorf(n, "", "%s holds a zero byte, which no argument can", path)
		}
		argv = append(argv, s)
		if ok && s == "" && len(argv) == 1 {
			d.errorf(n, "", "%s is empty: it names the program", path)
		}
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.errorf(n, "name a program", "%s is empty", path)
	}
	return argv
}

// scripts reads a list of commands for a shell, each perhaps of several lines.
func (d *decoder) scripts(n *yaml.Node, path string) (lines []Line) {
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		switch s, ok := d.string(n, path, maxCommand); {
		case !ok:
		case strings.TrimSpace(s) == "":
			d.errorf(n, "name a command, or remove it", "%s is empty", path)
		case strings.ContainsRune(s, 0):
			d.errorf(n, "", "%s holds a zero byte, which no command can", path)
		default:
			lines = append(lines, Line{Text: s, Pos: d.pos(n)})
		}
	})
	return lines
}

// cron is the one job in the background that there is.
const cron = "cron"

func (d *decoder) background(n *yaml.Node, path, profile string) (jobs []string) {
	if profile != "hermes" && profile != "" && n.Kind == yaml.SequenceNode && len(n.Content) > 0 {
		d.errorf(n, "remove it", "%s without profile: hermes: no other profile has a scheduler", path)
	}
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		switch {
		case d.oneOf(n, path, cron) < 0:
		case len(jobs) > 0:
			d.errorf(n, "keep one of the two", "%s: %s is listed twice", path, cron)
		default:
			jobs = append(jobs, cron)
		}
	})
	return jobs
}

func (d *decoder) mounts(n *yaml.Node, path string, readOnly bool) (mounts []Mount) {
	d.list(n, path, maxMounts, func(n *yaml.Node, path string) {
		if s, ok := d.path(n, path); ok {
			mounts = append(mounts, Mount{Path: s, Given: s, ReadOnly: readOnly, Pos: d.pos(n)})
			d.mountKeys = append(d.mountKeys, path)
		}
	})
	return mounts
}

// path is the spelling of an absolute path on the host.
func (d *decoder) path(n *yaml.Node, path string) (string, bool) {
	if null(n) && n.Value == "~" {
		d.errorf(n, "did you mean ~/ or a path?", "%s: bare ~ is null to YAML, not a path", path)
		return "", false
	}
	s, ok := d.text(n, path)
	if !ok {
		return "", false
	}
	if message, hint := malformed(s); message != "" {
		d.report(d.pos(n), hint, path+": "+message)
		return "", false
	}
	return s, true
}

// maxPath is what Linux takes for one, in bytes (PATH_MAX without its NUL).
const maxPath = 4095

// malformed says why s is not the spelling of an absolute path.
func malformed(s string) (message, hint string) {
	user, _, _ := strings.Cut(s, "/")
	shown := clip(s)
	switch {
	case s == "":
		return "the path is empty", ""
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Sprintf("%q holds a control character", shown), ""
	case len(s) > maxPath:
		return "the path is longer than a path can be", ""
	case user == "~" || user == "":
		return "", ""
	case user[0] == '~':
		return fmt.Sprintf("%q: only ~/ is expanded, for your own home", shown), "write the path out"
	case user[0] == '$':
		return fmt.Sprintf("%q: variables are not expanded in a policy", shown), "write ~/ for your home, or the path out"
	}
	return fmt.Sprintf("%q is a relative path", shown), "start it with / or ~/"
}

func (d *decoder) allow(n *yaml.Node, path string) (rules []Rule) {
	if n.Kind == yaml.ScalarNode && null(n) && n.Value == "" {
		return nil // a starter's, all of whose lines are comments still
	}
	first := map[Domain]diag.Pos{}
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		r := Rule{Ports: []uint16{80, 443}, Liveness: true, Pos: d.pos(n)}
		at := n
		switch {
		case n.Kind != yaml.MappingNode:
			r.Domain, r.Given = d.domain(n, path)
		case glued(n):
			d.errorf(n, fmt.Sprintf("write {domain: %s, ports: [443]}", n.Content[0].Value), "%s: a name is not a key", path)
			return
		default:
			met := d.mapping(n, path,
				key{"domain", func(v *yaml.Node) { at = v; r.Domain, r.Given = d.domain(v, path+".domain") }},
				key{"ports", func(v *yaml.Node) { r.Ports, r.AnyPort = d.ports(v, path+".ports") }},
				key{"liveness", func(v *yaml.Node) { r.Liveness, _ = d.boolean(v, path+".liveness") }},
				key{"private", func(v *yaml.Node) { r.Private = d.private(v, path+".private") }},
			)
			if !met["domain"] && n.Style&yaml.TaggedStyle == 0 {
				d.errorf(n, "", "%s has no domain", path)
			}
		}
		if r.Domain == "" {
			return
		}
		if f, twice := first[r.Domain]; twice {
			d.errorf(at, "make it one entry", "%s is allowed already, at %s", r.Domain, f)
			return
		}
		first[r.Domain] = d.pos(at)
		rules = append(rules, r)
	})
	return rules
}

// glued reports whether somebody wrote `- host.example: 443`.
func glued(n *yaml.Node) bool {
	return len(n.Content) == 2 && n.Content[0].Kind == yaml.ScalarNode && strings.Contains(n.Content[0].Value, ".")
}

func (d *decoder) domain(n *yaml.Node, path string) (Domain, string) {
	s, ok := n.Value, n.Style == 0 && describe(n) == "a number" // part of an address, as like as not
	if !ok {
		s, ok = d.text(n, path)
	}
	if !ok {
		return "", ""
	}
	name, err := ParseDomain(s)
	if err != nil {
		var hint string
		if e, ok := errors.AsType[*exit.Error](err); ok {
			hint = e.Hint
		}
		d.errorf(n, hint, "%v", err)
	}
	return name, s
}

func (d *decoder) ports(n *yaml.Node, path string) (ports []uint16, every bool) {
	if n.Kind == yaml.ScalarNode && n.Value == "any" {
		return nil, true
	}
	if n.Kind == yaml.ScalarNode && !null(n) {
		hint := "write [443], or any for every port"
		if p, message, _ := port(n); message == "" && !slices.Contains(spec.LookupPorts, p) {
			hint = fmt.Sprintf("write [%s]", n.Value)
		}
		d.errorf(n, hint, "%s must be a list or any, this is %s", path, shown(n))
		return nil, false
	}
	listed := map[uint16]bool{}
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode {
			d.is(n, path, "a port", yaml.ScalarNode)
			return
		}
		p, message, hint := port(n)
		if message == "" && slices.Contains(spec.LookupPorts, p) {
			message, hint = fmt.Sprintf("%d is the port of name servers, and lookups would carry anything out", p), "leave it out: names are answered inside without it"
		}
		switch {
		case message != "":
			d.errorf(n, hint, "%s: %s", path, message)
		case listed[p]:
			d.errorf(n, "", "%s: port %d is listed twice", path, p)
		default:
			listed[p] = true
			ports = append(ports, p)
		}
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.errorf(n, "name the ports, or remove the entry", "%s is empty: nothing would be open", path)
	}
	slices.Sort(ports)
	return ports, false
}

var digits = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// port reads a port number written in plain decimal digits.
func port(n *yaml.Node) (p uint16, message, hint string) {
	from, to, isRange := strings.Cut(n.Value, "-")
	switch {
	case n.Value == "any":
		return 0, "any is not one of several ports", "write ports: any"
	case isRange && digits.MatchString(from) && digits.MatchString(to):
		return 0, fmt.Sprintf("%s is a range: corral opens single ports", clip(n.Value)), "list each port, or write ports: any"
	case n.Style != 0 && digits.MatchString(n.Value):
		return 0, fmt.Sprintf("%q is a string, a port is a number", clip(n.Value)), "write " + n.Value
	case n.Style != 0 || !digits.MatchString(n.Value):
		return 0, fmt.Sprintf("%s is not a port number in plain digits", shown(n)), ""
	}
	v, err := strconv.ParseUint(n.Value, 10, 16)
	if err != nil || v == 0 {
		return 0, fmt.Sprintf("%s is not a port: they go from 1 to 65535", clip(n.Value)), ""
	}
	return uint16(v), "", ""
}

// Space that `private: true` opens, and what more a prefix may lie in. What is
// never in reach whatever a policy says (loopback, link-local, metadata,
// multicast) is not here and so cannot be asked for.
var (
	privateSpace = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),     // RFC 1918
		netip.MustParsePrefix("172.16.0.0/12"),  // RFC 1918
		netip.MustParsePrefix("192.168.0.0/16"), // RFC 1918
		netip.MustParsePrefix("fc00::/7"),       // RFC 4193, ULA
	}
	namedSpace = []netip.Prefix{
		netip.MustParsePrefix("100.64.0.0/10"), // RFC 6598, CGNAT
		netip.MustParsePrefix("198.18.0.0/15"), // RFC 2544, benchmarks
	}
)

func (d *decoder) private(n *yaml.Node, path string) (prefixes []netip.Prefix) {
	if n.Kind == yaml.ScalarNode && !null(n) {
		if prefixOf(n.Value).IsValid() {
			d.errorf(n, fmt.Sprintf("write [%s]", n.Value), "%s must be true, false or a list, this is %s", path, n.Value)
			return nil
		}
		if yes, _ := d.boolean(n, path); yes {
			return slices.Clone(privateSpace)
		}
		return nil
	}
	allowed := slices.Concat(privateSpace, namedSpace)
	d.list(n, path, maxPrefixes, func(n *yaml.Node, path string) {
		s, ok := d.text(n, path)
		if !ok {
			return
		}
		p := prefixOf(s)
		within := func(outer netip.Prefix) bool { return contains(outer, p) }
		switch addr, err := netip.ParseAddr(s); {
		case err == nil && addr.Zone() == "":
			d.errorf(n, fmt.Sprintf("write %s/%d", s, addr.BitLen()), "%s: %s is an address, not a prefix", path, s)
		case !p.IsValid():
			d.errorf(n, "write it like 10.38.0.0/16", "%s: %q is not a prefix", path, s)
		case p != p.Masked() || p.String() != s:
			d.errorf(n, fmt.Sprintf("write %s", p.Masked()), "%s: %s is not in canonical form", path, s)
		case !slices.ContainsFunc(allowed, within):
			d.errorf(n, "private space is 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7, 100.64.0.0/10 and 198.18.0.0/15",
				"%s: %s is not within private space", path, s)
		default:
			if i := slices.IndexFunc(prefixes, func(q netip.Prefix) bool { return q.Overlaps(p) }); i >= 0 {
				d.errorf(n, "keep the wider one", "%s: %s overlaps %s", path, s, prefixes[i])
				return
			}
			prefixes = append(prefixes, p)
		}
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.errorf(n, "write false, or name prefixes", "%s is empty", path)
	}
	return prefixes
}

// prefixOf is s as a prefix, the zero value if it is none.
func prefixOf(s string) netip.Prefix {
	p, _ := netip.ParsePrefix(s)
	return p
}

func contains(outer, inner netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}
