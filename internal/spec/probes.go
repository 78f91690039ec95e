package spec

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ProbesEnv is the environment variable that carries probes to a gate and to
// its services, in other people's stacks.
const ProbesEnv = "CORRAL_PROBES"

// ParseProbes reads probes as people write them, `unlisted=…,resolver=…,
// metadata=…,ipv6=…`: those that are not named are DefaultProbes'. Every mistake
// is one of the joined errors.
func ParseProbes(s string) (Probes, error) {
	p := DefaultProbes()
	var failures []error
	seen := map[string]bool{}
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		to := map[string]*netip.Addr{"unlisted": &p.Unlisted, "resolver": &p.Resolver, "metadata": &p.Metadata, "ipv6": &p.IPv6}[name]
		a, err := netip.ParseAddr(value)
		switch {
		case to == nil:
			failures = append(failures, fmt.Errorf("%q: the probes are unlisted, resolver, metadata and ipv6, each with = and an address", item))
		case seen[name]:
			failures = append(failures, fmt.Errorf("%q: %s is there twice", item, name))
		case err != nil || a.Zone() != "" || a.Is4In6() || a.Is4() == (name == "ipv6") || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast():
			family := "IPv4"
			if name == "ipv6" {
				family = "IPv6"
			}
			failures = append(failures, fmt.Errorf("%q: it takes one %s address of a machine that is not this one", item, family))
		default:
			*to = a
		}
		seen[name] = true
	}
	if err := errors.Join(failures...); err != nil {
		return Probes{}, err
	}
	return p, nil
}

// CHAOS TXT names under which a gate says, in its own namespace, what becomes of
// names and of probes there, and where links lead.
const (
	// NamesName tells what becomes of lookups: NamesBlocked, NamesSink or
	// NamesPublic.
	NamesName = "names.corral."
	// ReleaseName tells the release of the gate's program, DocumentName the Digest of
	// the document in force.
	ReleaseName  = "release.corral."
	DocumentName = "document.corral."
	// LinkZone has the LinkNames.
	LinkZone = "link.corral."
	// VerdictZone tells the newest sequence number; below it are VerdictNames.
	VerdictZone = "verdict.corral."
)

// What becomes of lookups of names that a gate does not list.
const (
	NamesBlocked = "blocked" // refused
	NamesSink    = "sink"    // SinkAddress
	NamesPublic  = "public"  // looked up
)

// LinkName is the name that a gate tells under where the links of a name lead, a
// text ADDRESS:PORT each; none of a name that no link has.
func LinkName(name string) string { return name + "." + LinkZone }

// VerdictName is the name that a gate tells the verdicts on a probe under:
// PROTO.SOURCE.PORT.ADDRESS, the address in hexadecimal digits.
func VerdictName(p Probe) string {
	return fmt.Sprintf("%s.%d.%d.%x.%s", p.Proto, p.Source, p.Port, p.Addr.Unmap().AsSlice(), VerdictZone)
}

// ParseVerdictName is the probe of a VerdictName. There is none for a source port
// that is not a probe's.
func ParseVerdictName(name string) (Probe, bool) {
	rest, found := strings.CutSuffix(name, "."+VerdictZone)
	labels := strings.Split(rest, ".")
	if !found || len(labels) != 4 || labels[0] != "tcp" && labels[0] != "udp" {
		return Probe{}, false
	}
	source, err1 := strconv.ParseUint(labels[1], 10, 16)
	port, err2 := strconv.ParseUint(labels[2], 10, 16)
	raw, err3 := hex.DecodeString(labels[3])
	addr, ok := netip.AddrFromSlice(raw)
	p := Probe{Proto: labels[0], Source: uint16(source), Addr: addr.Unmap(), Port: uint16(port)}
	if err1 != nil || err2 != nil || err3 != nil || !ok || source < ProbePortFirst || source > ProbePortLast || VerdictName(p) != name {
		return Probe{}, false
	}
	return p, true
}

// Text is a verdict as a gate tells it under a VerdictName: sequence number,
// outcome and rule. Whoever asks knows the rest.
func (v Verdict) Text() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s %s", v.Seq, v.Outcome, v.Rule))
}

// ParseVerdict reads Text, said of a probe.
func ParseVerdict(p Probe, text string) (Verdict, error) {
	words := strings.Fields(text)
	v := Verdict{Proto: p.Proto, Source: p.Source, Addr: p.Addr, Port: p.Port}
	if len(words) < 2 || len(words) > 3 {
		return Verdict{}, fmt.Errorf("verdict %q: it has a number, an outcome and a rule", text)
	}
	var err error
	if v.Seq, err = strconv.ParseUint(words[0], 10, 64); err != nil {
		return Verdict{}, fmt.Errorf("verdict %q: %w", text, err)
	}
	v.Outcome = Outcome(words[1])
	if v.Outcome != OutcomeAccepted && v.Outcome != OutcomeRejected {
		return Verdict{}, fmt.Errorf("verdict %q: no such outcome", text)
	}
	if len(words) == 3 {
		v.Rule = words[2]
	}
	return v, nil
}
