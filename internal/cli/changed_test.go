package cli

import (
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/state"
)

// What a sandbox goes by its gate says, if it answers; else its services were made of
// it, and the gate's label is of before a refresh.
func TestChanged(t *testing.T) {
	gate, service := engine.Member{Role: engine.RoleGate, Digest: "old"}, engine.Member{Role: engine.RoleService, Digest: "new"}
	now := policy.Seen{Digest: "new"}
	for name, c := range map[string]struct {
		members []engine.Member
		gate    *spec.GateStatus
		want    bool
	}{
		"a gate that was refreshed":      {[]engine.Member{gate, service}, &spec.GateStatus{Policy: "new"}, false},
		"one that was not":               {[]engine.Member{gate, service}, &spec.GateStatus{Policy: "old"}, true},
		"a gate that is silent":          {[]engine.Member{gate, service}, nil, false},
		"and an older service":           {[]engine.Member{gate, {Role: engine.RoleService, Digest: "old"}}, nil, true},
		"a gate alone, silent":           {[]engine.Member{gate}, nil, true},
		"a gate alone, as asked for now": {[]engine.Member{{Role: engine.RoleGate, Digest: "new"}}, nil, false},
	} {
		if got := changed(now, c.members, c.gate); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Records that are gone under a sandbox are no corral down: that leaves what was
// accepted, or takes the containers too.
func TestWithoutRecord(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	const id = "p-00000000"
	up := []engine.Member{{Sandbox: id}}
	if !withoutRecord("/p/corral.yaml", up) {
		t.Error("nothing is on record, and that is taken for an answer")
	}
	if withoutRecord("/p/corral.yaml", nil) {
		t.Error("all of it is gone, and that is no answer")
	}
	home, err := state.Home()
	if err == nil {
		err = state.Accept(home, id, []byte("{}"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if withoutRecord("/p/corral.yaml", up) {
		t.Error("what was accepted is on record")
	}
}
