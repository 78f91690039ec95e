package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
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

// What nobody looks after is asked to end, all of it at once, before anything is
// removed, and the gates go last. What cannot hear or has ended is not asked, and
// what a run would take for its agent's own end is not either.
func TestServicesAreAskedFirst(t *testing.T) {
	for _, c := range []struct {
		name        string
		interrupted bool // while it waits for the services
		refused     bool // the engine does not ask
	}{{"well", false, false}, {"interrupted", true, false}, {"refused", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var mu sync.Mutex
			var removed, told []string
			asked := map[string]bool{}
			both := make(chan struct{})
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				words := strings.Split(strings.TrimPrefix(path, "/"), "/")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case words[len(words)-1] == "stop":
					if got := r.URL.Query().Get("t"); got != "10" {
						t.Errorf("%s has %s s", words[1], got)
					}
					if len(removed) > 0 {
						t.Errorf("%s is asked after %v went", words[1], removed)
					}
					if asked[words[1]] = true; len(asked) == 2 {
						close(both)
					}
					mu.Unlock()
					<-both
					switch {
					case c.interrupted:
						cancel()
						<-r.Context().Done()
					case c.refused:
						http.Error(w, `{"message":"busy"}`, http.StatusInternalServerError)
					default:
						w.WriteHeader(http.StatusNoContent)
					}
					mu.Lock()
				case r.Method == http.MethodDelete:
					removed = append(removed, words[1])
					w.WriteHeader(http.StatusNoContent)
				default:
					w.Header().Set("Content-Type", "application/json")
					w.Write([]byte("[]"))
				}
			})
			e.Progress = func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprintf(format, args...))
			}
			var laps []string
			e.Watcher.Lap = func(step string) { laps = append(laps, fmt.Sprintf("%s after %d of 5", step, len(removed))) }
			service := func(id, state, purpose, owner string) Member {
				return Member{ID: id, Service: id, Role: RoleService, Purpose: purpose, Owner: owner, State: state, Running: state == container.StateRunning}
			}
			err := e.Down(ctx, []Member{
				{ID: "gate", Role: RoleGate, Purpose: PurposeDaemon, State: container.StateRunning, Running: true},
				service("one", container.StateRunning, PurposeDaemon, ""), service("two", container.StateRunning, PurposeRun, "another-boot 1 1"),
				service("paused", container.StatePaused, PurposeDaemon, ""), service("ended", container.StateExited, PurposeDaemon, ""),
				service("run", container.StateRunning, PurposeRun, owner(os.Getpid())),
			})
			if err != nil || len(asked) != 2 || !asked["one"] || !asked["two"] || strings.Join(removed, " ") != "one two paused ended run gate" {
				t.Errorf("%v: asked %v, removed %v", err, asked, removed)
			}
			if strings.Join(laps, "|") != "old service ended after 5 of 5" { // what follows is not slow for what had to end
				t.Errorf("laps %q", laps)
			}
			if err := e.Retire(t.Context(), service("ended", container.StateExited, PurposeDaemon, "")); err != nil || len(laps) != 1 {
				t.Errorf("what had ended: %v, laps %q", err, laps)
			}
			if (len(told) == 2) != c.refused {
				t.Errorf("told %q", told)
			}
		})
	}
}
