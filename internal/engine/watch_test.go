package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
)

// A gate that is lost is seen whichever of the questions on the way the engine
// refuses.
func TestGateLostBesideAFailingEngine(t *testing.T) {
	const questions = 6 // beyond the last one there is
	for nth := range int64(questions + 1) {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			var died atomic.Bool
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				w.Header().Set("Content-Type", "application/json")
				if asked.Add(1) == nth {
					http.Error(w, `{"message":"no"}`, http.StatusInternalServerError)
					return
				}
				state := &container.State{Status: container.StateRunning, Running: true, StartedAt: "2026-01-02T03:04:05Z"}
				switch {
				case path == "/events":
					w.WriteHeader(http.StatusOK)
					w.(http.Flusher).Flush()
					select { // after the first look
					case <-time.After(20 * time.Millisecond):
					case <-r.Context().Done():
					}
					died.Store(true)
					json.NewEncoder(w).Encode(events.Message{Action: events.ActionDie})
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				case strings.HasSuffix(path, "/g/logs"):
					w.WriteHeader(http.StatusOK)
				case strings.HasSuffix(path, "/g/json") && died.Load():
					state = &container.State{Status: container.StateExited, ExitCode: killed}
					fallthrough
				case strings.HasSuffix(path, "/json"):
					json.NewEncoder(w).Encode(container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{State: state}})
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if why, lost := e.GateLost(ctx, "g", "s"); !lost || why == "" {
				t.Errorf("%q, %v after %d questions", why, lost, asked.Load())
			}
		})
	}
}
