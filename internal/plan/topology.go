package plan

import (
	"net/netip"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Services beside main, and the ports that they are called on.
const (
	Researcher = "researcher"
	Search     = "search"
	Fetch      = "fetch"

	researcherPort = 8765
	searchPort     = 8080
	fetchPort      = 8766
)

// places are those of gates on the network between them, whichever of them there are:
// a researcher more changes nobody's address.
var places = []string{Main, Researcher, Search, Fetch}

// topology are the gates of a sandbox, one for each right, in the order in which they
// are started: who is called before who calls.
func topology(p *policy.Policy, h Host, n Network, at Addresses, names []spec.Name, resolvers []netip.Addr) []Gate {
	gate := func(name string) Gate {
		g := Gate{Name: name, Spec: spec.Gate{
			Version: spec.Version,
			Sandbox: ID(p.Name, p.File),
			Service: name,
			Policy:  p.Digest,
			Class:   spec.ClassNone,
			Address: at.Gates[name],
			Gateway: n.Gateway,
			Never:   h.Never,
			Probes:  h.Probes,
		}}
		if p.Egress.Refresh == "auto" {
			g.Spec.Refresh = spec.RefreshAuto
		}
		return g
	}
	main := gate(Main)
	main.Spec.Class = spec.ClassPinned
	main.Spec.HostPorts = ports(p)
	if len(names) > 0 {
		main.Spec.Names, main.Spec.Resolvers = names, resolvers
	}
	if p.Hermes == nil || !p.Hermes.Researcher {
		return []Gate{main}
	}

	// public serves the researcher and calls nobody of the sandbox.
	public := func(name string) Gate {
		g := gate(name)
		g.Spec.Class, g.Spec.Resolvers = spec.ClassPublic, resolvers
		g.Spec.Probes = nobodys(g.Spec.Probes)
		return g
	}
	// The researcher reads what strangers wrote: of this machine and of the outside it
	// has the model, and every name leads nowhere.
	researcher := gate(Researcher)
	researcher.Spec.SinkNames = true
	if m := p.Hermes.Model; m.Host == spec.HostName {
		researcher.Spec.HostPorts = []uint16{m.Port}
	} else {
		researcher.Spec.Class, researcher.Spec.Resolvers = spec.ClassPinned, resolvers
		for _, g := range names {
			if g.Domain == m.Host {
				g.Ports, g.AnyPort = []uint16{m.Port}, false
				researcher.Spec.Names = append(researcher.Spec.Names, g)
			}
		}
	}
	search := public(Search)
	all := []*Gate{&search, &researcher, &main}
	var fetch Gate
	if p.Hermes.Fetch {
		fetch = public(Fetch)
		all = append([]*Gate{&fetch}, all...)
	}
	for _, g := range all {
		g.place(at.Links)
	}
	link(&main, &researcher, researcherPort)
	link(&researcher, &search, searchPort)
	if p.Hermes.Fetch {
		link(&researcher, &fetch, fetchPort)
	}
	var out []Gate
	for _, g := range all {
		out = append(out, *g)
	}
	return out
}

// nobodys are probes that a gate which opens the web refuses as well: in place of public
// addresses that somebody asked for, those of no network.
func nobodys(p spec.Probes) spec.Probes {
	none := spec.DefaultProbes()
	for _, a := range []struct{ is, none *netip.Addr }{{&p.Unlisted, &none.Unlisted}, {&p.Resolver, &none.Resolver}, {&p.Metadata, &none.Metadata}, {&p.IPv6, &none.IPv6}} {
		if netguard.Classify(*a.is) == netguard.Public {
			*a.is = *a.none
		}
	}
	return p
}

// place gives a gate its address on the network between gates, if that is known.
func (g *Gate) place(links netip.Prefix) {
	for i, name := range places {
		if name == g.Name {
			g.Link = linkAddress(links, i)
			g.Spec.Link = g.Link
		}
	}
}

// link lets the service behind from call a TCP port of the one behind to, by its name.
func link(from, to *Gate, port uint16) {
	from.Spec.Links = append(from.Spec.Links, spec.Link{Name: to.Name, Addr: to.Link, Port: port})
	to.Spec.Clients = append(to.Spec.Clients, spec.Client{Addr: from.Link, Port: port})
}
