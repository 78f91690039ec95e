package plan

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
)

// The catalogue has every kind that a plan lists, and no other as one of a plan's.
func TestCatalogueIsWhatIsPlanned(t *testing.T) {
	p := &policy.Policy{File: "/p/corral.yaml", EnvFile: policy.EnvFile{Path: "/s"}}
	g := spec.Gate{Gateway: netip.MustParseAddr("172.30.0.1"), Probes: spec.DefaultProbes(), HostPorts: []uint16{8081}, Names: []spec.Name{{Domain: "a.test", Ports: []uint16{443}}}}
	shield := Mount{Path: "/p/.git/hooks", ReadOnly: true}
	s := Service{
		Name: Main, UID: 1000, GID: 1000, Secrets: []string{"A"}, Pids: 1, Memory: 1, NanoCPUs: 1, Shields: []Mount{shield},
		Mounts: []Mount{{Path: "/p"}, {Path: "/r", ReadOnly: true}, {Path: p.File, ReadOnly: true}, shield},
	}
	host, other, public := Host{Homes: []string{"/home/u"}}, Gate{Name: "other", Link: netip.MustParseAddr("172.30.128.3")}, g
	behind := Gate{Name: Main, Spec: g, Link: netip.MustParseAddr("172.30.128.2")}
	link(&behind, &other, 8765)
	sinking := behind
	sinking.Spec.SinkNames, public.Class = true, spec.ClassPublic
	both := []Gate{behind, other}
	hermes := *p
	hermes.Hermes = &policy.Hermes{}
	for form, checks := range map[spec.Form][]spec.Check{
		spec.FormVerify: slices.Concat(Peers(verify(p, host, behind, s, both), map[string]netip.Addr{"b/main": netip.MustParseAddr("172.30.0.3")}),
			verify(&hermes, host, sinking, s, both), verify(p, host, Gate{Spec: public}, s, nil)),
		spec.FormHandover: slices.Concat(handover(g, s), handover(sinking.Spec, s), handover(public, s)),
		spec.FormGate:     gateChecks(g),
		spec.FormRelay:    relayChecks(Relay{Port: 53}, g.Gateway),
	} {
		planned, told := map[string]bool{}, map[string]bool{}
		for _, c := range checks {
			planned[c.Kind()] = true
		}
		for _, e := range slices.Concat(spec.Catalogue, spec.OwnCatalogue) {
			if slices.Contains(e.In, form) {
				told[e.Kind] = true
			}
		}
		if d := cmp.Diff(slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(planned))); d != "" {
			t.Errorf("%s: the catalogue (-) is not what is planned (+), see internal/spec/catalogue.go:\n%s", form, d)
		}
	}
}
