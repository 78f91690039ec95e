package engine

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/spec"
)

// The catalogue has every kind that is judged on the host, and no other as such.
func TestCatalogueIsWhatIsJudgedHere(t *testing.T) {
	told := map[string]bool{}
	for _, e := range spec.Catalogue {
		if !e.Inside() {
			told[e.Kind] = true
		}
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(onHost))); d != "" {
		t.Errorf("the catalogue (-) is not what is judged (+), see internal/spec/catalogue.go:\n%s", d)
	}
}

// The sides that are asked about a check are those that people are told of; the
// agent stands alone where nobody else can see it, for the reason given there.
func TestWitnessesAreThoseOfTheCatalogue(t *testing.T) {
	kinds := map[string]bool{}
	for _, e := range spec.Catalogue {
		kinds[e.Kind] = true
		if !slices.Contains(e.In, spec.FormVerify) {
			continue
		}
		var got []spec.Witness
		if _, ours := onHost[e.Kind]; ours {
			got = append(got, soleWitness(e.Kind))
		} else {
			got = append(got, spec.WitnessAgent)
		}
		for _, w := range witnesses[e.Kind] {
			got = append(got, w.name)
		}
		if e.Kind == baited {
			got = append(got, spec.WitnessKernel) // the canary
		}
		if !slices.Equal(got, e.Witnesses) {
			t.Errorf("%s: %v are asked, and the catalogue says %v", e.Kind, got, e.Witnesses)
		}
	}
	for kind := range witnesses {
		if !kinds[kind] {
			t.Errorf("%s is no kind of check", kind)
		}
	}
}

// The same of corral's own containers.
func TestCatalogueIsWhatIsJudgedOfOwn(t *testing.T) {
	var told []string
	for _, e := range spec.OwnCatalogue {
		told = append(told, e.Kind)
	}
	slices.Sort(told)
	if d := cmp.Diff(told, slices.Sorted(maps.Keys(ofOwn))); d != "" {
		t.Errorf("the catalogue (-) is not what is judged (+), see internal/spec/catalogue.go:\n%s", d)
	}
}
