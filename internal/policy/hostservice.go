package policy

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/diag"
)

// serviceName is what a host service may be called; corral tells it apart from
// others by this name in what it prints.
var serviceName = sandboxName

func (d *decoder) hostServices(n *yaml.Node, path string) (services []HostService) {
	names, ports := map[string]diag.Pos{}, map[uint16]diag.Pos{}
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		if hint := compactService(n); hint != "" {
			d.errorf(n, hint, "%s must be a mapping of name and port", path)
			return
		}
		s := HostService{Pos: d.pos(n)}
		nameAt, portAt := n, n
		met := d.mapping(n, path,
			key{"name", func(v *yaml.Node) { nameAt = v; s.Name = d.serviceName(v, path+".name") }},
			key{"port", func(v *yaml.Node) { portAt = v; s.Port = d.servicePort(v, path+".port") }},
		)
		if n.Kind == yaml.MappingNode && n.Style&yaml.TaggedStyle == 0 {
			for _, k := range []string{"name", "port"} {
				if !met[k] {
					d.errorf(n, "write it like {name: llama, port: 8081}", "%s has no %s", path, k)
				}
			}
		}
		if s.Name == "" || s.Port == 0 {
			return
		}
		f, named := names[s.Name]
		g, served := ports[s.Port]
		switch {
		case named:
			d.errorf(nameAt, "give each its own name", "%s: there is a host service %s already, at %s", path, s.Name, f)
		case served:
			d.errorf(portAt, "keep one of the two", "%s: port %d is listed already, at %s", path, s.Port, g)
		default:
			names[s.Name], ports[s.Port] = d.pos(nameAt), d.pos(portAt)
			services = append(services, s)
		}
	})
	return services
}

// compactService shows how `8081`, `llama:8081` or `llama: 8081` is written;
// it is empty for anything else.
func compactService(n *yaml.Node) string {
	name, port := "", ""
	switch {
	case n.Kind == yaml.ScalarNode && n.Style == 0:
		var glued bool
		if name, port, glued = strings.Cut(n.Value, ":"); !glued {
			name, port = "NAME", n.Value
		}
	case n.Kind == yaml.MappingNode && len(n.Content) == 2 && n.Content[0].Kind == yaml.ScalarNode && n.Content[1].Kind == yaml.ScalarNode:
		name, port = n.Content[0].Value, n.Content[1].Value
	}
	if !digits.MatchString(port) || name == "name" || name == "port" || name != "NAME" && !serviceName.MatchString(name) {
		return ""
	}
	return fmt.Sprintf("write {name: %s, port: %s}", name, port)
}

func (d *decoder) serviceName(n *yaml.Node, path string) string {
	s, ok := d.text(n, path)
	if ok && !serviceName.MatchString(s) {
		hint := ""
		if s != "" {
			hint = "write name: " + validName(s)
		}
		d.errorf(n, hint,
			"%s: %q cannot name a service: 1 to 30 of a-z, 0-9 and -, not starting with -", path, s)
		return ""
	}
	return s
}

func (d *decoder) servicePort(n *yaml.Node, path string) uint16 {
	if !d.is(n, path, "a port", yaml.ScalarNode) {
		return 0
	}
	p, message, hint := port(n)
	if message == "" && slices.Contains(engineServices, p) {
		message, hint = fmt.Sprintf("%d is where a container engine takes orders: whoever reaches it is root on this machine", p), "leave it out"
	}
	if message == "" && p == nameService {
		message, hint = "53 is the port of name servers, and lookups would carry anything out", "names are answered inside without it; list them under egress.allow"
	}
	if message == "" {
		return p
	}
	if strings.Contains(hint, "any") { // which a rule of egress may say
		message, hint = fmt.Sprintf("%s is not one port", shown(n)), "name the port that it listens on"
	}
	d.errorf(n, hint, "%s: %s", path, message)
	return 0
}

// nameService is a port that no policy can grant: whoever reaches a name server
// reaches every other one through it.
const nameService = 53

// engineServices are the ports of Docker's API by TCP, without and with TLS.
var engineServices = []uint16{2375, 2376}
