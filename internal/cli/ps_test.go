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

// Since when a service is up, and whether its container was started before.
func TestUpSince(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		made, started time.Duration // ago
		want          string
	}{
		{2*time.Hour + 5*time.Minute, 2*time.Hour + 5*time.Minute - time.Second, "for 2h04m"},
		{48 * time.Hour, time.Minute, "for 1m"},
	} {
		rows := upSince(engine.Health{Made: now.Add(-c.made), Started: now.Add(-c.started)}, now)
		if len(rows) != 1 || rows[0][1] != c.want || rows[0][2] != "since "+now.Add(-c.started).Format(time.DateTime) {
			t.Errorf("%v: %q", c, rows)
		}
		if again := c.made-c.started > startWithin; again != (len(rows[0]) == 4) {
			t.Errorf("%v: started again: %q", c, rows)
		}
	}
	if rows := upSince(engine.Health{}, now); rows != nil {
		t.Errorf("not up: %q", rows)
	}
}
