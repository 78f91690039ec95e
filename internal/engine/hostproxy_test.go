package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// R131: only a failure that a missing way out makes is said to be the proxy's,
// by the gate's word for it and no other, which nobody is shown.
func TestWithProxy(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		t.Setenv(name, "")
	}
	for _, set := range []bool{false, true} {
		if set {
			t.Setenv("https_proxy", "http://192.0.2.1:3128")
		}
		for _, tt := range []struct {
			reasons []string
			proxy   bool
		}{
			{[]string{"api.test (line 4): accepts no connection: i/o timeout", spec.GateUnanswered}, true},
			{[]string{spec.GateUnanswered}, true},
			{[]string{"api.test (line 4): accepts no connection, and the resolver says so"}, false},
			{[]string{"api.test (line 4): " + spec.GateUnanswered}, false},
			{nil, false},
		} {
			for _, hint := range []string{"", "first"} {
				got := withProxy(&GateFailed{Reasons: tt.reasons, Hint: hint})
				if strings.Contains(got.Hint, "https_proxy is set") != (tt.proxy && set) || !strings.HasPrefix(got.Hint, hint) || strings.Contains(got.Hint, "192.0.2.1") {
					t.Errorf("proxy %v, %q: %q", set, tt.reasons, got.Hint)
				}
				if slices.Contains(got.Reasons, spec.GateUnanswered) || tt.proxy && len(got.Reasons) != len(tt.reasons)-1 || !tt.proxy && !slices.Equal(got.Reasons, tt.reasons) {
					t.Errorf("%q is told as %q", tt.reasons, got.Reasons)
				}
			}
		}
	}
}
