package cli

import (
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
)

// Of several gates a service's own counts.
func TestGateOf(t *testing.T) {
	members := []engine.Member{
		{ID: "1", Sandbox: "a-1", Service: "fetch", Role: engine.RoleGate},
		{ID: "2", Sandbox: "a-1", Service: "main", Role: engine.RoleService, Gate: "main"},
		{ID: "3", Sandbox: "b-1", Service: "main", Role: engine.RoleGate},
		{ID: "4", Sandbox: "a-1", Service: "main", Role: engine.RoleGate},
	}
	if got := gateOf(members, members[1]); got.ID != "4" {
		t.Errorf("%+v", got)
	}
	if got := gateOf(members[:3], members[1]); got.ID != "" {
		t.Errorf("another's: %+v", got)
	}
}
