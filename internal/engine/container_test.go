package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

// A part of a sandbox is one also by another name, as long as the other half of it has
// its own: who gives names gives namespaces, too. Labels alone prove nothing.
func TestOursByAnotherName(t *testing.T) {
	of := func(id, name, sandbox, role, joined string) container.Summary {
		c := container.Summary{ID: id, Names: []string{"/" + name}, Labels: map[string]string{labelSandbox: sandbox, labelRole: role}}
		c.HostConfig.NetworkMode = joined
		return c
	}
	gate, agent := of("g", "corral-x-main-gate", "x", RoleGate, "corral"), of("a", "corral-x-main", "x", RoleService, "container:g")
	for name, c := range map[string]struct {
		all  []container.Summary
		want string
	}{
		"both have their names":          {[]container.Summary{gate, agent}, "g a"},
		"the service is renamed":         {[]container.Summary{gate, of("a", "mine", "x", RoleService, "container:g")}, "g a"},
		"the gate is renamed":            {[]container.Summary{of("g", "mine", "x", RoleGate, "corral"), agent}, "g a"},
		"both are":                       {[]container.Summary{of("g", "mine", "x", RoleGate, "corral"), of("a", "mine-too", "x", RoleService, "container:g")}, ""},
		"a second one":                   {[]container.Summary{gate, agent, of("b", "mine", "x", RoleService, "container:g")}, "g a b"},
		"the labels alone":               {[]container.Summary{gate, agent, of("b", "mine", "x", RoleService, "bridge")}, "g a"},
		"a second gate":                  {[]container.Summary{gate, agent, of("h", "mine", "x", RoleGate, "corral")}, "g a"},
		"behind another sandbox's gate":  {[]container.Summary{gate, of("b", "mine", "y", RoleService, "container:g")}, "g"},
		"a tool in the gate's namespace": {[]container.Summary{gate, of("b", "mine", "x", RoleTool, "container:g")}, "g"},
	} {
		t.Run(name, func(t *testing.T) {
			e := answered(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				if err := json.NewEncoder(w).Encode(c.all); err != nil {
					t.Error(err)
				}
			})
			got, err := e.ours(t.Context(), labelSandbox)
			var ids []string
			for _, c := range got {
				ids = append(ids, c.ID)
			}
			if want := strings.Fields(c.want); err != nil || !slices.Equal(ids, want) {
				t.Errorf("%v, want %v; %v", ids, want, err)
			}
		})
	}
}
