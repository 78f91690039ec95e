package spec

import (
	"slices"
	"strings"
	"testing"
)

// Each entry says all that there is to say, once, in sentences; and the agent's
// word stands alone only for a reason.
func TestCatalogueIsWhole(t *testing.T) {
	t.Run("services", func(t *testing.T) { whole(t, Catalogue) })
	t.Run("own", func(t *testing.T) { whole(t, OwnCatalogue) })
}

func whole(t *testing.T, all []Entry) {
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.Kind] || e.Kind == "" || strings.ContainsAny(e.Kind, ": \n") {
			t.Errorf("%q is listed twice, or no kind", e.Kind)
		}
		seen[e.Kind] = true
		for what, text := range map[string]string{"Proves": e.Proves, "How": e.How, "Control": e.Control} {
			if !strings.HasSuffix(text, ".") || strings.TrimSpace(text) != text || strings.ContainsAny(text, "|\n") || strings.Contains(text, "..") || strings.ToUpper(text[:1]) != text[:1] && !strings.HasPrefix(text, "disable_ipv6") && !strings.HasPrefix(text, "resolv.conf") {
				t.Errorf("%s: %s is no sentence: %q", e.Kind, what, text)
			}
		}
		if len(e.Witnesses) == 0 || len(e.In) == 0 {
			t.Errorf("%s: nobody sees it, or nothing runs it", e.Kind)
		}
		for _, w := range e.Witnesses {
			if !slices.Contains([]Witness{WitnessAgent, WitnessGate, WitnessEngine, WitnessKernel}, w) {
				t.Errorf("%s: no witness is called %q", e.Kind, w)
			}
		}
		if alone := slices.Equal(e.Witnesses, []Witness{WitnessAgent}); alone != (e.Only != "") {
			t.Errorf("%s: the agent alone: %v, and the reason: %q", e.Kind, alone, e.Only)
		}
	}
}
