package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
)

// A service of which the engine says nothing is not well, whoever looks after it; one
// that is not well anyway keeps its reason.
func TestSilenceIsNotHealth(t *testing.T) {
	made := time.Unix(100, 0)
	service := Member{Service: "main", Created: made}
	for _, h := range []Health{{Service: "main", OK: true, State: "running"}, {Service: "main", Alone: true, State: "running on"}} {
		if got := h.asSeen(service, container.State{}, false); got.OK || got.Alone || !strings.Contains(got.State, "does not answer about main") {
			t.Errorf("%+v", got)
		}
		if got := h.asSeen(service, container.State{Running: true, StartedAt: "2026-11-30T10:00:00Z"}, true); got.OK != h.OK || got.Alone != h.Alone || !got.Made.Equal(made) || got.Started.IsZero() {
			t.Errorf("%+v", got)
		}
	}
	if got := (Health{State: "no network"}).asSeen(service, container.State{}, false); got.OK || got.State != "no network" {
		t.Errorf("%+v", got)
	}
}
