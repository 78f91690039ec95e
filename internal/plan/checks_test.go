package plan

import (
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
	got := specMounts([]Mount{{Path: "/n", ReadOnly: true, Dev: 1, Ino: 2, Submounts: []string{"/n/a", "/n/a", "/n/b"}}})
	want := []spec.Mount{
		{Target: spec.GuestDir, ReadOnly: true}, {Target: "/tmp"},
		{Target: "/n", ReadOnly: true, Dev: 1, Ino: 2}, {Target: "/n/a", ReadOnly: true}, {Target: "/n/b", ReadOnly: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
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
