package verify

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/spec"
)

// The catalogue has every kind that this checker knows, and this checker knows
// each that the catalogue says is asked of it.
func TestCatalogueIsWhatIsKnown(t *testing.T) {
	told := map[string]bool{}
	for _, e := range spec.Catalogue {
		if e.Inside() {
			told[e.Kind] = true
		}
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(kinds))); d != "" {
		t.Errorf("the catalogue (-) is not what is known (+), see internal/spec/catalogue.go:\n%s", d)
	}
}

// Who reads no more than what a search for secrets proves knows where it looks.
func TestCatalogueSaysWhereSecretsAreLookedFor(t *testing.T) {
	for _, e := range spec.Catalogue {
		if e.Kind != "secret-absent-elsewhere" {
			continue
		}
		for _, place := range append([]string{"command line"}, leakPlaces...) {
			if !strings.Contains(e.Proves, place) {
				t.Errorf("no word of %s: %s", place, e.Proves)
			}
		}
	}
}

// What is asked in stacks of others the catalogue has as such, and nothing else.
func TestCatalogueIsWhatIsAskedAlone(t *testing.T) {
	e := tree(t, map[string]string{"/proc/net/route": routesHead + toAll, "/etc/hosts": "127.0.0.1 localhost\n203.0.113.9 api.test\n10.9.9.8 db\n"})
	e.aside = true
	gateDNS{links: map[string][]string{spec.LinkName("db"): {"10.9.9.8:5432"}}}.serve(t, e)
	asked := map[string]bool{}
	checks := e.linkChecks(t.Context())
	for _, names := range []string{spec.NamesBlocked, spec.NamesSink, spec.NamesPublic} {
		checks = append(checks, e.alone(spec.DefaultProbes(), names)...)
	}
	for _, c := range checks {
		asked[c.Kind()] = true
	}
	told := map[string]bool{}
	for _, entry := range spec.Catalogue {
		if slices.Contains(entry.In, spec.FormAlone) {
			told[entry.Kind] = true
		}
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(asked))); d != "" {
		t.Errorf("the catalogue (-) is not what is asked (+), see internal/spec/catalogue.go:\n%s", d)
	}
}

// What is never made in stacks of others the catalogue has as such.
func TestCatalogueSaysWhatIsSkipped(t *testing.T) {
	e := tree(t, map[string]string{"/proc/net/route": routesHead + toAll, "/etc/hosts": "127.0.0.1 localhost\n"})
	made, skipped := map[string]bool{}, map[string]bool{}
	for _, c := range e.alone(spec.DefaultProbes(), spec.NamesBlocked) {
		if c.Skip == "" {
			made[c.Kind()] = true
		} else {
			skipped[c.Kind()] = true
		}
	}
	for _, entry := range spec.Catalogue {
		if told := slices.Contains(entry.Skipped, spec.FormAlone); told != (skipped[entry.Kind] && !made[entry.Kind]) {
			t.Errorf("%s: the catalogue says skipped: %v", entry.Kind, told)
		}
	}
}
