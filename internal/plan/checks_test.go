package plan

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

func TestUnlistedPort(t *testing.T) {
	every := spec.Name{}
	for p := 1; p <= 65535; p++ {
		every.Ports = append(every.Ports, uint16(p))
	}
	for name, tt := range map[string]struct {
		ports []uint16
		want  uint16
	}{
		"none":             {nil, 8445},
		"the first":        {[]uint16{8445, 8446}, 8447},
		"from there on":    {every.Ports[8444:], 1},
		"all but one":      {append(append([]uint16{}, every.Ports[:79]...), every.Ports[80:]...), 80},
		"all but the last": {append(append([]uint16{}, every.Ports[:8443]...), every.Ports[8444:]...), 8444},
	} {
		if got := unlistedPort(spec.Gate{Names: []spec.Name{{Ports: tt.ports}}}); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	if got := unlistedPort(spec.Gate{Names: []spec.Name{{Ports: []uint16{443}}, {AnyPort: true}}}); got != 0 {
		t.Errorf("any: %d", got)
	}
	if got := unlistedPort(spec.Gate{Names: []spec.Name{every}}); got != 0 {
		t.Errorf("all: %d", got)
	}
}

// What is mounted below a mount comes along, and is declared as it must be.
func TestSubmountsAreDeclared(t *testing.T) {
	got := specMounts(Service{Mounts: []Mount{{Path: "/n", ReadOnly: true, Dev: 1, Ino: 2, Submounts: []string{"/n/a", "/n/a", "/n/b"}}}, Scratch: []string{"/run"}})
	want := []spec.Mount{
		{Target: spec.GuestDir, ReadOnly: true}, {Target: "/tmp"}, {Target: "/run"},
		{Target: "/n", ReadOnly: true, Dev: 1, Ino: 2}, {Target: "/n/a", ReadOnly: true}, {Target: "/n/b", ReadOnly: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// What is mounted below a mount is as it was when the sandbox was made, where that is
// known, whatever was mounted or unmounted on the host since.
func TestSubmountsAsMade(t *testing.T) {
	p := &policy.Policy{File: "/p/corral.yaml", Project: policy.Mount{Path: "/p", Submounts: []string{"/p/now"}}, Mounts: []policy.Mount{{Path: "/n", ReadOnly: true, Submounts: []string{"/n/now"}}}, Mode: policy.Run}
	for _, tt := range []struct {
		made map[string][]string
		want []string
	}{
		{nil, []string{"/p/now", "/n/now"}},
		{map[string][]string{}, nil},
		{map[string][]string{"/p": {"/p/then"}}, []string{"/p/then"}},
		{map[string][]string{"/n": {"/n/now", "/n/then"}, "/other": {"/other/x"}}, []string{"/n/now", "/n/then"}},
	} {
		all, err := mounts(p, Host{Submounts: tt.made})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range all {
			got = append(got, m.Submounts...)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v", tt.made, got)
		}
	}
	if p.Project.Submounts[0] != "/p/now" || p.Mounts[0].Submounts[0] != "/n/now" {
		t.Error("the policy was changed")
	}
}

// The policy itself is never writable, by whatever name.
func TestPolicyIsNotWritable(t *testing.T) {
	p := &policy.Policy{File: "/x/corral.yaml", Self: policy.Mount{Path: "/x/corral.yaml", Dev: 1, Ino: 9}, Mode: policy.Run}
	for _, tt := range []struct {
		mount policy.Mount
		ok    bool
	}{
		{policy.Mount{Path: "/x/corral.yaml", Dev: 1, Ino: 9}, false},
		{policy.Mount{Path: "/other/name", Dev: 1, Ino: 9}, false},
		{policy.Mount{Path: "/x/corral.yaml", ReadOnly: true, Dev: 1, Ino: 9}, true},
		{policy.Mount{Path: "/x/other", Dev: 1, Ino: 8}, true},
		{policy.Mount{Path: "/x/other", Dev: 2, Ino: 9}, true},
	} {
		p.Mounts = []policy.Mount{tt.mount}
		if err := unplannable(p, Host{}); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.mount, err)
		}
	}
}

// What of the person's no policy may mount is what must not be seen inside:
// the two lists are one. What corral and the engine keep for themselves is no
// store of the person's.
func TestCredentialsAreThePolicysWalls(t *testing.T) {
	table, err := os.ReadFile("../policy/guard.go")
	if err != nil {
		t.Fatal(err)
	}
	var walls []string
	for _, row := range regexp.MustCompile(`(?m)^\t\{"~/([^"]+)", `).FindAllStringSubmatch(string(table), -1) {
		if !slices.Contains([]string{".config/corral", ".local/share/corral", ".local/share/docker"}, row[1]) {
			walls = append(walls, row[1])
		}
	}
	if len(walls) < 100 {
		t.Fatalf("%d rows were found", len(walls))
	}
	listed := slices.Sorted(slices.Values(credentials))
	slices.Sort(walls)
	if !slices.Equal(listed, walls) {
		for _, name := range walls {
			if !slices.Contains(listed, name) {
				t.Errorf("%s is a wall and is not checked for", name)
			}
		}
		for _, name := range listed {
			if !slices.Contains(walls, name) {
				t.Errorf("%s is checked for and is no wall", name)
			}
		}
	}
}

// checked is the check of a name for a service.
func checked(t *testing.T, s Service, name string) spec.Check {
	t.Helper()
	all := verify(&policy.Policy{}, Host{Homes: []string{"/home/u"}}, Gate{}, s, nil)
	i := slices.IndexFunc(all, func(c spec.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check is called %s", name)
	}
	return all[i]
}

func TestSecretsAreLookedFor(t *testing.T) {
	const name = "secret-absent-elsewhere"
	if c := checked(t, Service{}, name); c.Skip == "" {
		t.Errorf("without secrets: %+v", c)
	}
	c := checked(t, Service{Secrets: []string{"A", "B"}, Mounts: []Mount{{Path: "/opt/p"}}}, name)
	if c.Skip != "" || !slices.Equal(c.Names, []string{"A", "B"}) || len(c.Mount) != 1 || c.Mount[0].Target != "/opt/p" {
		t.Errorf("%+v", c)
	}
}

// A mount that is elsewhere inside is looked at there.
func TestChecksLookInside(t *testing.T) {
	s := Service{Mounts: []Mount{{Path: "/home/u/p"}, {Path: "/state/x", Inside: Home + "/.local/share/opencode"}}}
	if c := checked(t, s, "rw-writable:"+Home+"/.local/share/opencode"); c.Path != Home+"/.local/share/opencode" {
		t.Errorf("%+v", c)
	}
	home := checked(t, s, "host-home-only-mounts")
	if !slices.Equal(home.Paths, []string{"/home/u"}) || !slices.ContainsFunc(home.Mount, func(m spec.Mount) bool { return m.Target == "/home/u/p" }) {
		t.Errorf("%+v", home)
	}
}

// Where a store of the person's would be, only what the sandbox keeps for
// itself may be: what is lent read-only is the person's, wherever it is inside.
func TestOwnStateIsNoCredential(t *testing.T) {
	for _, tt := range []struct {
		name     string
		mount    Mount
		skipped  string // the store whose check is skipped
		declared bool   // whether the mount may be there
	}{
		{"state", Mount{Path: "/state/x", Inside: Home + "/.claude"}, ".claude", true},
		{"state below a store", Mount{Path: "/state/x", Inside: Home + "/.claude/projects"}, "", true},
		{"state around a store", Mount{Path: "/state/x", Inside: Home + "/.config"}, "", true},
		{"state of another name", Mount{Path: "/state/x", Inside: Home + "/.claude2"}, "", true},
		{"state elsewhere", Mount{Path: "/state/x", Inside: "/root/.claude"}, "", true},
		{"lent", Mount{Path: "/home/u/.claude", Inside: Home + "/.claude", ReadOnly: true}, "", false},
		{"lent below a store", Mount{Path: "/home/u/.claude/x", Inside: Home + "/.claude/x", ReadOnly: true}, "", false},
		{"lent with what is mounted below", Mount{Path: "/home/u/.claude", Inside: Home + "/.claude", ReadOnly: true, Submounts: []string{Home + "/.claude/x"}}, "", false},
		{"at its own path", Mount{Path: Home + "/.claude"}, "", false},
	} {
		for _, store := range credentials {
			c := checked(t, Service{Mounts: []Mount{tt.mount}}, "no-credential-dir:"+store)
			if (c.Skip != "") != (store == tt.skipped) || (len(c.Mount) > 0) != tt.declared || !slices.Equal(c.Paths, []string{"/home/u"}) {
				t.Errorf("%s: %+v", tt.name, c)
			}
		}
	}
}

// The name of the host is asked for wherever one of its ports is granted.
func TestHostNameIsAskedFor(t *testing.T) {
	gateway := netip.MustParseAddr("172.30.0.1")
	for _, tt := range []struct {
		gate  spec.Gate
		names []string
		addr  netip.Addr
	}{
		{spec.Gate{Gateway: gateway}, nil, netip.Addr{}},
		{spec.Gate{Gateway: gateway, Names: []spec.Name{{Domain: "a.test"}}}, []string{"a.test"}, netip.Addr{}},
		{spec.Gate{Gateway: gateway, HostPorts: []uint16{8081}}, []string{spec.HostName}, gateway},
		{spec.Gate{Gateway: gateway, HostPorts: []uint16{1, 2}, Names: []spec.Name{{Domain: "a.test"}}}, []string{"a.test", spec.HostName}, gateway},
	} {
		all := Join(verify(&policy.Policy{}, Host{}, Gate{Spec: tt.gate}, Service{}, nil), spec.GateStatus{})
		i := slices.IndexFunc(all, func(c spec.Check) bool { return c.Name == "names-only-pinned" })
		if c := all[i]; !slices.Equal(c.Names, tt.names) || c.Addr != tt.addr {
			t.Errorf("%+v: %+v", tt.gate, c)
		}
	}
}

// A gate writes the names of links into the hosts file too, one line however many ports.
func TestNamesOfLinksArePinned(t *testing.T) {
	db := netip.MustParseAddr("172.30.0.3")
	c := namesPinned(spec.Gate{Names: []spec.Name{{Domain: "api.example.com"}}, HostPorts: []uint16{8001},
		Links: []spec.Link{{Name: "db", Addr: db, Port: 5432}, {Name: "db", Addr: db, Port: 5433}, {Name: "cache", Addr: db, Port: 6379}}})
	if want := []string{"api.example.com", "db", "cache", spec.HostName}; !slices.Equal(c.Names, want) {
		t.Errorf("%q, want %q", c.Names, want)
	}
}
