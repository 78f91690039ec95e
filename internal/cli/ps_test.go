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
	members := []engine.Member{{Sandbox: "a-1", Created: noon}, {Sandbox: "a-1", Service: "main", Role: engine.RoleGate, Created: noon.Add(-time.Minute)}}
	carried, uncarried := engine.RelayHealth{Carries: "8081", State: "relay running", OK: true}, engine.RelayHealth{Carries: "8082", State: "relay is gone (corral up makes it anew)"}
	fine, wrong := engine.Health{Service: "main", State: "running", OK: true}, engine.Health{Service: "more", State: "paused"}
	for _, c := range []struct {
		health []engine.Health
		relays []engine.RelayHealth
		images bool // they are there
		well   bool
		says   string
	}{
		{nil, nil, true, false, "nothing of it runs"},
		{[]engine.Health{fine}, nil, true, true, "well"},
		{[]engine.Health{fine, wrong}, nil, true, false, "more: paused"},
		{[]engine.Health{wrong, fine}, nil, true, false, "more: paused"},
		{[]engine.Health{fine}, []engine.RelayHealth{carried}, true, true, "well"},
		{[]engine.Health{fine}, []engine.RelayHealth{carried, uncarried}, true, false, "host port 8082: relay is gone (corral up makes it anew)"},
		{[]engine.Health{fine, wrong}, []engine.RelayHealth{uncarried}, true, false, "more: paused"},
		{[]engine.Health{fine}, nil, false, false, "image of gate: is gone (corral build makes it anew)"},
	} {
		members[1].Unnamed = !c.images
		s := sandbox(members, c.health, c.relays)
		if s.Well != c.well || !s.Created.Equal(noon.Add(-time.Minute)) {
			t.Errorf("%+v: %+v", c.health, s)
		}
		var out strings.Builder
		if err := (&app{out: &out}).showSandboxes(sandboxList{Sandboxes: []sandboxUp{s}}, false, noon); err != nil || !strings.Contains(out.String(), "  "+c.says+"  ") {
			t.Errorf("%v, %q", err, out.String())
		}
	}
}

// What a program reads is whole; a person's lines are bounded.
func TestSandboxesAreWholeInAPipe(t *testing.T) {
	long := strings.Repeat("long", 70)
	list := sandboxList{Sandboxes: []sandboxUp{{Sandbox: long + "1", Purpose: long + "2", Policy: "/" + long + "3", Created: noon,
		Services: []serviceStatus{{Service: long + "4", State: "paused"}}}}}
	a, said := saying()
	if err := a.showSandboxes(list, false, noon); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{long + "1 ", long + "2 ", "/" + long + "3\n", long + "4: paused "} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	onTerminal := onScreen(t, func(a *app) {
		if err := a.showSandboxes(list, false, noon); err != nil {
			t.Error(err)
		}
	})
	if strings.Count(onTerminal, long) != 1 || strings.Count(onTerminal, "…") != 3 { // of the file alone
		t.Errorf("%q", onTerminal)
	}
}

// Whatever is wrong with a service, status says what brings it right, once.
func TestStatusSaysTheCure(t *testing.T) {
	for state, want := range map[string]string{
		"no network (gate is gone): it was killed, status 137": "main: no network (gate is gone): it was killed, status 137 (corral up heals it)\n",
		"paused": "main: paused (corral up heals it)\n",
		"the engine does not answer about main (corral verify looks into it)": "main: the engine does not answer about main (corral verify looks into it)\n",
	} {
		a, said := saying()
		if err := a.showStatus(statusReport{Services: []engine.Health{{Service: "main", State: state}}, cure: "corral up heals it"}, false); err != nil || !strings.Contains(said.String(), want) {
			t.Errorf("%v, %q", err, said)
		}
	}
	for _, r := range []statusReport{{Services: []engine.Health{{Service: "main", State: "running", OK: true}}, cure: "corral up heals it"}, {Services: []engine.Health{{Service: "main", State: "paused"}}}} {
		a, said := saying()
		if err := a.showStatus(r, false); err != nil || strings.Contains(said.String(), "(") {
			t.Errorf("%v, %q", err, said)
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
