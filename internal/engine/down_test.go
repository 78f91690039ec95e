package engine

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"
)

// A gate is taken away after what joins it and only then: what could not be ended goes on
// behind the gate that it has.
func TestDownKeepsTheGateOfWhatGoesOn(t *testing.T) {
	for name, stays := range map[string]string{"all end": "", "one does not": "b"} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var removed []string
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				id, what, _ := strings.Cut(strings.TrimPrefix(path, "/containers/"), "/")
				switch {
				case r.Method == http.MethodDelete && id == stays:
					w.WriteHeader(http.StatusInternalServerError)
					fmt.Fprint(w, `{"message": "it does not end"}`)
				case r.Method == http.MethodDelete:
					mu.Lock()
					defer mu.Unlock()
					removed = append(removed, id)
					w.WriteHeader(http.StatusNoContent)
				case what == "stop":
					w.WriteHeader(http.StatusNoContent)
				case id == "json":
					fmt.Fprint(w, `[]`)
				default:
					fmt.Fprintf(w, `{"Id": %q, "State": {"Status": "running", "Running": true}}`, id)
				}
			})
			member := func(id, role string) Member {
				return Member{ID: id, Role: role, Service: id, Purpose: PurposeDaemon, State: container.StateRunning, Running: true}
			}
			err := e.Down(t.Context(), []Member{member("g", RoleGate), member("a", RoleService), member("b", RoleService)})
			want := []string{"a", "b", "g"}
			if stays != "" {
				want = []string{"a"}
			}
			if !slices.Equal(removed, want) || (err != nil) != (stays != "") {
				t.Errorf("removed %v, want %v; %v", removed, want, err)
			}
		})
	}
}
