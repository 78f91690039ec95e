package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/docker/docker/api/types/container"
)

// R101: a look at this machine reads its own file whatever the label of that
// is; nothing else is without labels, nor without no-new-privileges.
func TestToolLabels(t *testing.T) {
	for _, tt := range []struct {
		tool      Tool
		unlabeled bool
	}{
		{Tool{Purpose: PurposeCheck, Bind: "/home/u/.corral-check-1"}, true},
		{Tool{Purpose: PurposeCheck}, false},
		{Tool{Purpose: PurposeDemo, Bind: "/home/u/x"}, false},
		{Tool{Purpose: PurposeRun, Bind: "/home/u/x"}, false},
		{Tool{Bind: "/home/u/x"}, false},
		{Tool{}, false},
	} {
		var asked struct {
			HostConfig container.HostConfig
		}
		e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
			if path == "/containers/create" {
				if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
					t.Error(err)
				}
			}
			http.Error(w, `{"message":"no more"}`, http.StatusInternalServerError)
		})
		tt.tool.Args = []string{"true"}
		if _, _, err := e.StartTool(t.Context(), tt.tool); err == nil {
			t.Fatal("it was made")
		}
		options := asked.HostConfig.SecurityOpt
		if slices.Contains(options, "label=disable") != tt.unlabeled || !slices.Contains(options, "no-new-privileges") {
			t.Errorf("%+v: %q", tt.tool, options)
		}
		if n := len(asked.HostConfig.Mounts); (n == 1) != (tt.tool.Bind != "") {
			t.Errorf("%+v: %d mounts", tt.tool, n)
		}
	}
}
