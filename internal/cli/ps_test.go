package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/engine"
)

// What nobody can say anything good of is not well.
func TestSandboxIsWell(t *testing.T) {
	t.Parallel()
	members := []engine.Member{{Sandbox: "a-1", Created: noon}, {Sandbox: "a-1", Created: noon.Add(-time.Minute)}}
	fine, wrong := engine.Health{Service: "main", State: "running", OK: true}, engine.Health{Service: "more", State: "paused"}
	for _, c := range []struct {
		health []engine.Health
		well   bool
		says   string
	}{
		{nil, false, "nothing of it runs"},
		{[]engine.Health{fine}, true, "well"},
		{[]engine.Health{fine, wrong}, false, "more: paused"},
		{[]engine.Health{wrong, fine}, false, "more: paused"},
	} {
		s := sandbox(members, c.health)
		if s.Well != c.well || !s.Created.Equal(noon.Add(-time.Minute)) {
			t.Errorf("%+v: %+v", c.health, s)
		}
		var out strings.Builder
		if err := (&app{out: &out}).showSandboxes(sandboxList{Sandboxes: []sandboxUp{s}}, false, noon); err != nil || !strings.Contains(out.String(), "  "+c.says+"  ") {
			t.Errorf("%v, %q", err, out.String())
		}
	}
}
