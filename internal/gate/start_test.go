package gate

import (
	"errors"
	"testing"

	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Only a name that must be pinned stops a start, and only its failure counts.
func TestFailed(t *testing.T) {
	timeout := &lookupFailed{errors.New("said"), resolve.Timeout}
	for _, tt := range []struct {
		name string
		soft bool
		err  error
		want bool
	}{
		{"silence", false, timeout, true},
		{"silence about a soft one", true, timeout, false},
		{"another kind", false, &lookupFailed{errors.New("said"), resolve.NXDomain}, false},
		{"no kind", false, errors.New("no answer from the resolver in time"), false},
		{"none", false, nil, false},
	} {
		doc := spec.Gate{Names: []spec.Name{{Domain: "fine.test"}, {Domain: "a.test", Soft: tt.soft}}}
		results := map[string]resolution{"fine.test": {}, "a.test": {err: tt.err}}
		if got := failed(doc, results, resolve.Unreachable, resolve.Timeout); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	if timeout.Error() != "said" {
		t.Errorf("%q is told", timeout)
	}
}
