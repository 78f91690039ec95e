package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
)

// A hook that is not wanted any more before it started is no crash, and one of
// a policy that nobody accepted does not start.
func TestHooksThatDoNotStart(t *testing.T) {
	var b bytes.Buffer
	a := &app{err: &b}
	p := &project{policy: &policy.Policy{Dir: t.TempDir(), PreLaunch: []policy.Line{{Text: "touch X"}}}}
	p.host.Homes = []string{"/nonexistent"}
	p.host.UID, p.host.GID = 12345, 12345
	if err := a.preLaunch(t.Context(), p); !errors.Is(err, errNotAccepted) || b.Len() > 0 {
		t.Errorf("%v: %s", err, b.String())
	}
	p.accepted = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.preLaunch(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestHookEnvironment(t *testing.T) {
	p := &project{}
	p.host.Secrets = []string{"TOKEN"}
	p.host.Homes = []string{"/home/dev"}
	got := strings.Join(p.hookEnvironment([]string{"A=1", "TOKEN=x", "TOKEN2=y", "B=TOKEN=z"}), " ")
	if !strings.HasPrefix(got, "A=1 TOKEN2=y B=TOKEN=z") || strings.Contains(got, " TOKEN=x") {
		t.Error(got)
	}
}
