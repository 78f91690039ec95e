package plan

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

// told is what a README says that can be reached, read back from its text.
type told struct {
	names []string // domain and ports
	ports []uint16 // of the host
	files []string // path and how
}

func readBack(t *testing.T, readme string) told {
	t.Helper()
	var out told
	for _, section := range strings.Split(readme, "\n\n") {
		kind, _, _ := strings.Cut(section, ":")
		for _, m := range regexp.MustCompile(`(?m)^  (\S+)  (.+)$`).FindAllStringSubmatch(section, -1) {
			switch kind {
			case "Network":
				out.names = append(out.names, m[1]+" "+m[2])
			case "Services of the host":
				host, port, _ := strings.Cut(m[2], ":")
				n, err := strconv.ParseUint(port, 10, 16)
				if err != nil || host != spec.HostName {
					t.Errorf("a host service at %q", m[2])
				}
				out.ports = append(out.ports, uint16(n))
			case "Files":
				out.files = append(out.files, m[1]+" "+m[2])
			default:
				t.Errorf("a list in section %q", kind)
			}
		}
	}
	return out
}

// R134: what the agent is told is what the gate is told, for every policy.
func TestReadmeIsWhatTheGateGrants(t *testing.T) {
	prof, err := profile.Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	for name, src := range map[string]string{
		"nothing":       "profile: shell\nname: a\n",
		"names":         "profile: shell\nname: a\negress:\n  allow: [a.example.com, {domain: git.example.com, ports: [22, 443]}]\n",
		"any port":      "profile: shell\nname: a\negress:\n  allow: [{domain: any.example.com, ports: any}]\n",
		"host services": "profile: shell\nname: a\nhost_services:\n  - {name: llama, port: 8081}\n  - {name: db, port: 5432}\n",
		"all of it": "profile: shell\nname: a\negress:\n  allow: [a.example.com]\nhost_services:\n  - {name: llama, port: 8081}\n" +
			"secrets:\n  env_file: /elsewhere/env\n",
	} {
		p, err := policy.Parse("corral.yaml", []byte(src))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p.File, p.Dir, p.Project = "/p/corral.yaml", "/p", policy.Mount{Path: "/p"}
		p.Self = policy.Mount{Path: p.File, ReadOnly: true}
		p.Mounts = []policy.Mount{{Path: "/data"}, {Path: "/notes", ReadOnly: true}}
		h := host()
		h.Resolvers = []netip.Addr{netip.MustParseAddr("10.0.0.53")}
		h.Secrets = []string{"API_KEY"}
		got, err := Build(p, prof, h, At(netip.MustParseAddr("172.30.0.2")), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		readme := string(got.Services[0].Readme)
		said := readBack(t, readme)
		var want told
		for _, n := range got.Gates[0].Spec.Names {
			ports := "any port"
			if !n.AnyPort {
				var words []string
				for _, port := range n.Ports {
					words = append(words, strconv.Itoa(int(port)))
				}
				ports = strings.Join(words, " ")
			}
			want.names = append(want.names, n.Domain+" "+ports)
		}
		slices.Sort(said.ports)
		if !slices.Equal(said.names, want.names) || !slices.Equal(said.ports, got.Gates[0].Spec.HostPorts) {
			t.Errorf("%s: the README says %v, the gate is told %v %v", name, said, want.names, got.Gates[0].Spec.HostPorts)
		}
		if files := []string{"/p read-write", "/data read-write", "/notes read-only", "/p/corral.yaml read-only"}; !slices.Equal(said.files, files) {
			t.Errorf("%s: files %q, want %q", name, said.files, files)
		}
		if !strings.Contains(readme, "refused at once") || !strings.Contains(readme, "/p/corral.yaml") {
			t.Errorf("%s: no word of how a failure looks, or of the policy:\n%s", name, readme)
		}
		for _, never := range []string{"API_KEY", "/elsewhere", "secret"} {
			if strings.Contains(readme, never) {
				t.Errorf("%s: the README holds %q", name, never)
			}
		}
	}
}

// A mount that is elsewhere inside is named by where it is.
func TestReadmeNamesWhatIsInside(t *testing.T) {
	got := readBack(t, string(readme(&policy.Policy{}, spec.Gate{}, Service{Mounts: []Mount{{Path: "/host/state", Inside: "/home/agent/state"}}})))
	if want := []string{"/home/agent/state read-write"}; !slices.Equal(got.files, want) {
		t.Errorf("files %q, want %q", got.files, want)
	}
}
