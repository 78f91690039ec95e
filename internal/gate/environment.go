package gate

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/corral-sandbox/corral/internal/domain"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/spelling"
)

// settingPrefix begins the names of all variables that are a gate's.
const settingPrefix = "CORRAL_"

// setting is one variable of the environment that a gate goes by where it is
// given no document.
type setting struct {
	name, meaning string
	form          string // how it is written
	fallback      string // what holds where it is not set
	// read takes over a value that is not empty. Each mistake is an error of its
	// own, in words that go on from the name of the variable.
	read func(g *spec.Gate, value string) []error
}

const (
	allowSetting     = settingPrefix + "ALLOW"
	egressSetting    = settingPrefix + "EGRESS"
	linksSetting     = settingPrefix + "LINKS"
	hostPortsSetting = settingPrefix + "HOST_PORTS"
	resolversSetting = settingPrefix + "RESOLVERS"
	livenessSetting  = settingPrefix + "LIVENESS"
)

// whereResolvers is how a person finds name servers.
const whereResolvers = "those of the machine's /etc/resolv.conf, or of `resolvectl status` where it has 127.0.0.53; one that begins with 127 is none"

// settings are all of them.
var settings = []setting{
	{allowSetting, "names that the services may reach, and on which TCP ports, none of them 53 or 853; exact ones of at least two labels (a single one, like `db`, is for `CORRAL_LINKS`)", "`api.example.com,github.com:22+443,any.example.com:any`", "none; 443 and 80 where no port is given",
		each(readAllowed)},
	{egressSetting, "`pinned`: the listed names; `public`: ports 80 and 443 of every public address; `none`: links and host ports only", "`pinned`, `public` or `none`", "`pinned`",
		word(map[string]func(*spec.Gate){
			"pinned": func(g *spec.Gate) { g.Class = spec.ClassPinned },
			"public": func(g *spec.Gate) { g.Class = spec.ClassPublic },
			"none":   func(g *spec.Gate) { g.Class = spec.ClassNone },
		})},
	{settingPrefix + "NAMES", "what other names are: `blocked`: they do not exist; `sink`: one address where nothing is", "`blocked` or `sink`", "`blocked`",
		word(map[string]func(*spec.Gate){
			"blocked": func(g *spec.Gate) { g.SinkNames = false },
			"sink":    func(g *spec.Gate) { g.SinkNames = true },
		})},
	{linksSetting, "services of other gates that may be called, each under a name of its own, at a private or shared address", "`db=172.28.0.3:5432,cache=172.28.0.4:6379`", "none",
		each(readLink)},
	{settingPrefix + "CLIENTS", "who may call which port here", "`172.28.0.2:5432`", "none",
		each(readClient)},
	{hostPortsSetting, "TCP ports of the machine, at the container's default gateway, where it is called " + spec.HostName, "`8081`", "none",
		each(readHostPort)},
	{resolversSetting, "name servers to ask, IPv4", "`192.0.2.53,192.0.2.54`", "those of the container's /etc/resolv.conf. Under Compose that is Docker's own, 127.0.0.11, which is none, so that it must be set: " + whereResolvers,
		each(readResolver)},
	{spec.ProbesEnv, "addresses that proofs dial, to see them refused", "`unlisted=198.51.100.1,resolver=203.0.113.53,metadata=169.254.169.254,ipv6=2001:db8::1`", "those in the example: of documentation, which are nobody's, and the one at which clouds serve metadata",
		func(g *spec.Gate, value string) []error {
			p, err := spec.ParseProbes(value)
			if err != nil {
				return parts(err)
			}
			g.Probes = p
			return nil
		}},
	{settingPrefix + "REFRESH", "`auto`: names are resolved again as their answers grow old; `manual`: on command only", "`auto` or `manual`", "`auto`",
		word(map[string]func(*spec.Gate){
			"auto":   func(g *spec.Gate) { g.Refresh = spec.RefreshAuto },
			"manual": func(g *spec.Gate) { g.Refresh = spec.RefreshManual },
		})},
	{settingPrefix + "PIN_GRACE", "how long an address stays pinned that a name no longer has", "`90m`", "`" + strings.TrimSuffix(spec.DefaultPinGrace.String(), "0m0s") + "`",
		func(g *spec.Gate, value string) []error {
			d, err := time.ParseDuration(value)
			if err != nil || d <= 0 {
				return []error{fmt.Errorf("%q is not a length of time", value)}
			}
			g.PinGrace = d
			return nil
		}},
	{livenessSetting, "`on`: each name must accept a connection before the gate is ready", "`on` or `off`", "`on`",
		word(map[string]func(*spec.Gate){"on": func(*spec.Gate) {}, "off": func(g *spec.Gate) {
			for i := range g.Names {
				g.Names[i].Liveness = false
			}
		}})},
	{settingPrefix + "NEVER", "addresses that no name may have, beside this container's own. With `public` list the machine's public addresses here, and its container networks in public space: a gate cannot know them, and would let them pass", "`10.0.0.0/8,192.0.2.7`", "none",
		each(readNever)},
}

// each reads a list, item by item; white space around them is no matter.
func each(read func(g *spec.Gate, item string) error) func(*spec.Gate, string) []error {
	return func(g *spec.Gate, value string) []error {
		var failures []error
		found := false
		for item := range strings.SplitSeq(value, ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			found = true
			if err := read(g, item); err != nil {
				failures = append(failures, err)
			}
		}
		if !found {
			failures = append(failures, fmt.Errorf("%q lists nothing", value))
		}
		return failures
	}
}

// word reads one of several words.
func word(words map[string]func(*spec.Gate)) func(*spec.Gate, string) []error {
	return func(g *spec.Gate, value string) []error {
		set, known := words[value]
		if !known {
			return []error{fmt.Errorf("%q is none of its words", value)}
		}
		set(g)
		return nil
	}
}

// parts are the errors that were joined.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// defaultPorts are those of a name that is given without.
var defaultPorts = []uint16{443, 80}

const anyPort = "any"

func readAllowed(g *spec.Gate, item string) error {
	if last := len(g.Names) - 1; last >= 0 && strings.Trim(item, "0123456789") == "" {
		return fmt.Errorf("%q is no name: ports are joined by +, as in %s:22+443", item, g.Names[last].Domain)
	}
	written, ports, hasPorts := strings.Cut(item, ":")
	if strings.ContainsAny(item, "/[@") || strings.Contains(ports, ":") { // no name ends where the first colon is
		written, hasPorts = item, false
	}
	name, err := domain.Parse(written)
	if err != nil {
		if e := (*exit.Error)(nil); errors.As(err, &e) && e.Hint != "" {
			return fmt.Errorf("%w (%s)", err, e.Hint)
		}
		return err
	}
	if slices.ContainsFunc(g.Names, func(n spec.Name) bool { return n.Domain == name }) {
		return fmt.Errorf("%s is listed twice: write its ports together, as in %s:22+443", name, name)
	}
	n := spec.Name{Domain: name, Liveness: true, Origin: allowSetting}
	switch {
	case !hasPorts:
		n.Ports = slices.Clone(defaultPorts)
	case ports == anyPort:
		n.AnyPort = true
	default:
		for word := range strings.SplitSeq(ports, "+") {
			p, err := readPort(word)
			if err != nil {
				return fmt.Errorf("%q: %w", item, err)
			}
			switch {
			case slices.Contains(spec.LookupPorts, p):
				return fmt.Errorf("%q: %d is the port of name servers, and lookups would carry anything out: leave it out, names are answered here without it", item, p)
			case slices.Contains(n.Ports, p):
				return fmt.Errorf("%q: port %d is listed twice", item, p)
			}
			n.Ports = append(n.Ports, p)
		}
	}
	g.Names = append(g.Names, n)
	return nil
}

// readPort reads a port in plain digits.
func readPort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%q is not a port: they go from 1 to 65535", s)
	}
	return uint16(n), nil
}

// readEnd reads an IPv4 address, which check may refuse, and a port.
func readEnd(s string, check func(netip.Addr) error) (netip.Addr, uint16, error) {
	a, port, _ := strings.Cut(s, ":")
	addr, err := netip.ParseAddr(a)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, 0, fmt.Errorf("%q is not the IPv4 address of another container", a)
	}
	if err := check(addr); err != nil {
		return netip.Addr{}, 0, err
	}
	p, err := readPort(port)
	return addr, p, err
}

func readLink(g *spec.Gate, item string) error {
	name, end, found := strings.Cut(item, "=")
	if !found {
		return fmt.Errorf("%q has no name", item)
	}
	addr, port, err := readEnd(end, func(a netip.Addr) error { return checkLinked(a, netip.Addr{}) })
	if err != nil {
		return fmt.Errorf("%q: %w", item, err)
	}
	if whose := shutPorts[port]; whose != "" {
		return fmt.Errorf("%q: %d is the port of %s, which leads out of any fence", item, port, whose)
	}
	l := spec.Link{Name: name, Addr: addr, Port: port}
	if err := l.Check(); err != nil {
		return fmt.Errorf("%q: a name is of lower-case letters, digits and hyphens, with dots between them, and neither localhost nor a number", item)
	}
	g.Links = append(g.Links, l)
	return nil
}

func readClient(g *spec.Gate, item string) error {
	addr, port, err := readEnd(item, checkCaller)
	if err != nil {
		return fmt.Errorf("%q: %w", item, err)
	}
	g.Clients = append(g.Clients, spec.Client{Addr: addr, Port: port})
	return nil
}

// shutPorts are ports that no variable opens, on the machine or by a link: whoever
// reaches a name server reaches every other one through it, and whoever reaches a
// container engine is root on the machine.
var shutPorts = map[uint16]string{dnsPort: "name servers", 2375: "container engines", 2376: "container engines"}

func readHostPort(g *spec.Gate, item string) error {
	p, err := readPort(item)
	switch {
	case err != nil:
		return err
	case shutPorts[p] != "":
		return fmt.Errorf("%d is the port of %s, which leads out of any fence", p, shutPorts[p])
	case slices.Contains(g.HostPorts, p):
		return fmt.Errorf("port %d is listed twice", p)
	}
	g.HostPorts = append(g.HostPorts, p)
	return nil
}

func readResolver(g *spec.Gate, item string) error {
	a, err := netip.ParseAddr(item)
	if err != nil || !usableResolver(a) {
		return fmt.Errorf("%q is not the IPv4 address of a name server outside 127.0.0.0/8 (one on loopback forwards from inside the namespace, where anybody could pose as it)", item)
	}
	if !slices.Contains(g.Resolvers, a) {
		g.Resolvers = append(g.Resolvers, a)
	}
	return nil
}

func usableResolver(a netip.Addr) bool {
	return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast()
}

func readNever(g *spec.Gate, item string) error {
	p, err := netip.ParsePrefix(item)
	if a, addrErr := netip.ParseAddr(item); addrErr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || p.Addr().Is4In6() {
		return fmt.Errorf("%q is neither an address nor a range like 10.0.0.0/8", item)
	}
	g.Never = append(g.Never, p.Masked())
	return nil
}

// given are the variables of an environment that are a gate's.
func given(environ []string) map[string]string {
	values := map[string]string{}
	for _, s := range environ {
		name, value, _ := strings.Cut(s, "=")
		if strings.HasPrefix(name, settingPrefix) && !slices.Contains(testVariables, name) {
			values[name] = value
		}
	}
	return values
}

// saying are the names of variables that say something.
func saying(values map[string]string) (names []string) {
	for name, value := range values {
		if value != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func find(name string) *setting {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return &settings[i]
}

// container is what a gate's own container says of the network.
type container struct {
	resolvers []netip.Addr // of /etc/resolv.conf, those that can be asked
	gateway   netip.Addr   // the default one, if there is one
}

// gateOf is the document that variables amount to. All mistakes are told at
// once, each with its variable and the right form.
func gateOf(values map[string]string, here container) (spec.Gate, error) {
	g := spec.Gate{Version: spec.Version, Class: spec.ClassPinned, Refresh: spec.RefreshAuto, Probes: spec.DefaultProbes()}
	var failures []error
	known := []string{}
	for _, s := range settings {
		known = append(known, s.name)
		value := values[s.name]
		if value == "" {
			continue
		}
		for _, err := range s.read(&g, value) {
			failures = append(failures, fmt.Errorf("%s: %w; write it like %s", s.name, err, plainForm(s.form)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if find(name) == nil {
			meant := ""
			if s := spelling.Nearest(name, known); s != "" {
				meant = fmt.Sprintf("; did you mean %s?", s)
			}
			failures = append(failures, fmt.Errorf("%s: there is no such setting%s", name, meant))
		}
	}
	if len(failures) > 0 {
		return spec.Gate{}, errors.Join(failures...)
	}
	for _, l := range g.Links {
		if err := checkLinked(l.Addr, here.gateway); err != nil {
			failures = append(failures, fmt.Errorf("%s: link %q: %w", linksSetting, l.Name, err))
		}
	}
	if len(g.HostPorts) > 0 {
		if g.Gateway = here.gateway; !g.Gateway.Is4() {
			failures = append(failures, fmt.Errorf("%s: this container has no default gateway at which the machine could be; give it a network that is not internal", hostPortsSetting))
		}
	}
	if g.Class != spec.ClassPinned && len(g.Names) > 0 {
		failures = append(failures, fmt.Errorf("%s: names are for %s=pinned; leave one of the two out", allowSetting, egressSetting))
	}
	if g.Class == spec.ClassPublic && g.SinkNames {
		failures = append(failures, fmt.Errorf("%sNAMES: with %s=public every name is looked up, and none can be sunk", settingPrefix, egressSetting))
	}
	if len(g.Names) > 0 || g.Class == spec.ClassPublic {
		if len(g.Resolvers) == 0 {
			g.Resolvers = here.resolvers
		}
		if len(g.Resolvers) == 0 {
			failures = append(failures, fmt.Errorf("%s: it must name a name server here; Docker puts its own into /etc/resolv.conf, which forwards from inside this namespace and is closed to everybody. It takes %s", resolversSetting, plainForm(whereResolvers)))
		}
	}
	if len(failures) > 0 {
		return spec.Gate{}, errors.Join(failures...)
	}
	// The same judge as a document's.
	return parseSpec(strings.NewReader(string(spec.Encode(g))))
}

func plainForm(s string) string { return strings.ReplaceAll(s, "`", "") }

// environment is the document of this process's variables, read once: the files
// that it goes by are the gate's own to write from then on.
var environment = sync.OnceValues(func() (spec.Gate, error) {
	values := given(os.Environ())
	if len(values) == 0 {
		return spec.Gate{}, exit.Invalidf(settingsHint, "there is no %s, and no variable of the environment says what to let through", spec.GateFile)
	}
	here := container{}
	text, err := os.ReadFile(resolverFile)
	if err != nil {
		return spec.Gate{}, err
	}
	here.resolvers = nameservers(string(text))
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return spec.Gate{}, err
	}
	if here.gateway, err = defaultGateway(string(routes)); err != nil {
		return spec.Gate{}, err
	}
	g, err := gateOf(values, here)
	if err != nil {
		return spec.Gate{}, exit.Invalidf(settingsHint, "%w", err)
	}
	return g, nil
})

const settingsHint = "everything stays closed; `corral-gate settings` lists the variables"

// nameservers are those of a resolv.conf that can be asked.
func nameservers(text string) []netip.Addr {
	var all []netip.Addr
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil && usableResolver(a) && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// defaultGateway is that of the best default route in /proc/net/route, which
// prints addresses as numbers in the machine's byte order. There may be none; a
// file that does not begin and end as the kernel's does cannot tell.
func defaultGateway(routes string) (netip.Addr, error) {
	var gateway netip.Addr
	best := uint64(0)
	if !strings.HasPrefix(routes, "Iface\t") || !strings.HasSuffix(routes, "\n") {
		return netip.Addr{}, errors.New("/proc/net/route is not whole")
	}
	for line := range strings.Lines(routes) {
		f := strings.Fields(line) // Iface Destination Gateway Flags RefCnt Use Metric Mask
		if len(f) < 8 {
			return netip.Addr{}, fmt.Errorf("/proc/net/route: %q", strings.TrimSpace(line))
		}
		if f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		raw, err := hex.DecodeString(f[2])
		metric, metricErr := strconv.ParseUint(f[6], 10, 64)
		if err != nil || metricErr != nil || len(raw) != 4 {
			return netip.Addr{}, fmt.Errorf("/proc/net/route: %q", strings.TrimSpace(line))
		}
		var a [4]byte
		binary.NativeEndian.PutUint32(a[:], binary.BigEndian.Uint32(raw))
		if at := netip.AddrFrom4(a); !at.IsUnspecified() && (!gateway.IsValid() || metric < best) {
			gateway, best = at, metric
		}
	}
	return gateway, nil
}

// printSettings lists all variables, for a person.
func printSettings(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Without %s a gate goes by its environment:\n", spec.GateFile)
	for _, s := range settings {
		fmt.Fprintf(&b, "\n  %s\n      %s\n      like %s\n      default: %s\n", s.name, plainForm(s.meaning), plainForm(s.form), plainForm(s.fallback))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
