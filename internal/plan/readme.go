package plan

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// readme tells the agent the truth about its fence, in one place.
func readme(p *policy.Policy, g spec.Gate, s Service) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "You run inside a corral sandbox (%s).\n\n", g.Sandbox)
	b.WriteString("Network: only the names below answer, on the ports given, by TCP. Everything else is refused at once\n")
	b.WriteString("(connection refused or reset; no such name), and trying again will not help. No other name resolves, and no\n")
	b.WriteString("DNS server can be reached. These are the names of when this sandbox was made; the person who runs you may have\n")
	b.WriteString("changed them since, and /etc/hosts has those of now.\n")
	if len(g.Names) == 0 {
		b.WriteString("  (no name is allowed)\n")
	}
	for _, n := range g.Names {
		ports := "any port"
		if !n.AnyPort {
			ports = strings.Trim(fmt.Sprint(n.Ports), "[]")
		}
		fmt.Fprintf(&b, "  %s  %s\n", n.Domain, ports)
	}
	if len(p.HostServices) > 0 {
		b.WriteString("\nServices of the host: these answer here, by TCP, under the host's name. No other port of it does. A connection\n")
		b.WriteString("that is accepted and then reset means that the service itself does not run.\n")
		for _, h := range p.HostServices {
			fmt.Fprintf(&b, "  %s  %s:%d\n", h.Name, spec.HostName, h.Port)
		}
	}
	b.WriteString("\nFiles: these directories of the host are here under their own paths. Everything else you write is gone\n")
	b.WriteString("when the sandbox ends.\n")
	for _, m := range s.Mounts {
		if s.shield(m) {
			continue
		}
		how := "read-write"
		if m.ReadOnly {
			how = "read-only"
		}
		fmt.Fprintf(&b, "  %s  %s\n", m.Target(), how)
	}
	switch {
	case len(s.Shields) == 0:
	case p.Git.DirReadOnly:
		b.WriteString("The repositories in them are read-only: git can look and not commit.\n")
	case p.Git.ConfigWritable:
		b.WriteString("Of the repositories in them, the hooks are read-only: the rest of git works.\n")
	default:
		b.WriteString("Of the repositories in them, hooks and configuration are read-only: commits, branches and work trees work,\n")
		b.WriteString("git config and hooks do not.\n")
	}
	b.WriteString("\nYou have no root, no sudo and no capability, and cannot get them. To have something allowed, ask the person\n")
	fmt.Fprintf(&b, "who runs you to change %s.\n", p.File)
	return b.Bytes()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
