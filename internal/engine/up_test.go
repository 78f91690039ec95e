package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// gateEngine is the engine of a gate: how that is, and how often it does not
// answer a question.
type gateEngine struct {
	state  string // none if empty
	silent bool   // the engine answers nothing
	deaf   int    // questions that get no answer

	mu    sync.Mutex
	asked int
}

func (f *gateEngine) answer(w http.ResponseWriter, r *http.Request, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	words := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case f.silent:
		say(http.StatusInternalServerError, map[string]string{"message": "busy"})
	case words[0] == "containers" && words[2] == "json" && f.state == "":
		say(http.StatusNotFound, map[string]string{"message": "No such container: g"})
	case words[0] == "containers" && words[2] == "json":
		say(http.StatusOK, container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{ID: "g", State: &container.State{
			Status: f.state, Running: f.state == container.StateRunning, StartedAt: time.Now().Add(-time.Hour).Format(time.RFC3339Nano)}}})
	case words[0] == "containers" && words[2] == "exec":
		if f.asked++; f.asked <= f.deaf {
			say(http.StatusInternalServerError, map[string]string{"message": "exec failed"})
			return
		}
		say(http.StatusCreated, map[string]string{"Id": "x"})
	case words[0] == "exec" && words[2] == "start":
		conn, _, err := upgraded(w, r)
		if err != nil {
			return
		}
		defer conn.Close()
		stdcopy.NewStdWriter(conn, stdcopy.Stdout).Write(spec.Encode(spec.GateStatus{Version: spec.Version, State: spec.GateReady, Applied: "sha256:0a", ReadBack: "sha256:0a"}))
	case words[0] == "exec":
		say(http.StatusOK, map[string]any{"Running": false, "ExitCode": 0})
	default:
		say(http.StatusNotFound, map[string]string{"message": path})
	}
}

// A gate is made anew for its own faults: one question that is lost is no fault,
// and an engine that does not answer is not the gate.
func TestGateWrong(t *testing.T) {
	for _, c := range []struct {
		name   string
		listed string // its state when it was listed
		engine *gateEngine
		why    string
		fails  bool
		asked  int
	}{
		{"well", "running", &gateEngine{state: "running"}, "", false, 1},
		{"one question is lost", "running", &gateEngine{state: "running", deaf: gateChances - 1}, "", false, gateChances},
		{"it does not answer", "running", &gateEngine{state: "running", deaf: gateChances}, "it does not answer", false, gateChances},
		{"the engine does not answer", "running", &gateEngine{state: "running", silent: true}, "", true, 0},
		{"paused", "paused", &gateEngine{state: "paused"}, "it is paused", false, 0},
		{"paused meanwhile", "running", &gateEngine{state: "paused", deaf: 9}, "it is paused", false, 1},
		{"ended", "exited", &gateEngine{state: "exited"}, "it is gone: it was stopped", false, 0},
		{"ended meanwhile", "running", &gateEngine{state: "exited", deaf: 9}, "it is gone: it was stopped", false, 1},
		{"removed meanwhile", "running", &gateEngine{deaf: 9}, "it is gone", false, 1},
		{"never started", "created", &gateEngine{state: "created"}, "it is gone", false, 0},
		{"unknown", "", &gateEngine{}, "it is gone", false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := answered(t, c.engine.answer)
			_, why, err := e.GateWrong(t.Context(), Member{ID: "g", Role: RoleGate, State: c.listed, Running: c.listed == "running"})
			if why != c.why || (err != nil) != c.fails || c.engine.asked != c.asked {
				t.Errorf("%q, %v, asked %d times", why, err, c.engine.asked)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &gateEngine{state: "running", deaf: 9}
	if _, why, err := answered(t, f.answer).GateWrong(ctx, Member{ID: "g", State: "running"}); why != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %q %v", why, err)
	}
}

// A gate that could not end what it should have says so and exits with 1: that is
// no refresh that it did not do.
func TestRefreshThatEndedNotAll(t *testing.T) {
	told := spec.Encode(spec.Refreshed{Version: spec.Version, Removed: []string{"44.10.0.11:443"}, Unended: "no answer"})
	for _, c := range []struct {
		name     string
		out      []byte
		status   int
		said     string
		unended  string
		wrong    string // of the error, none if there is none
		exitWith int
	}{
		{"well", spec.Encode(spec.Refreshed{Version: spec.Version}), 0, "", "", "", 0},
		{"not ended", told, exit.Failed, "corral-gate: connections go on\n", "no answer", "", 0},
		{"failed", nil, exit.Failed, "corral-gate: no such name\n  hint: spell it\n", "", "no such name", exit.Failed},
		{"failed after a document", spec.Encode(spec.Refreshed{Version: spec.Version}), exit.Failed, "corral-gate: no such name\n", "", "no such name", exit.Failed},
		{"refused", told, exit.Invalid, "corral-gate: class\n", "", "class", exit.Invalid},
		{"killed", told, 137, "", "", "it ended with status 137", exit.Failed},
		{"nonsense", []byte("nonsense"), exit.Failed, "", "", "it ended with status 1", exit.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				say := func(status int, v any) {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(status)
					json.NewEncoder(w).Encode(v)
				}
				switch words := strings.Split(strings.TrimPrefix(path, "/"), "/"); {
				case words[2] == "archive":
					io.Copy(io.Discard, r.Body)
				case words[2] == "exec":
					say(http.StatusCreated, map[string]string{"Id": "x"})
				case words[2] == "start":
					conn, _, err := upgraded(w, r)
					if err != nil {
						return
					}
					defer conn.Close()
					stdcopy.NewStdWriter(conn, stdcopy.Stdout).Write(c.out)
					stdcopy.NewStdWriter(conn, stdcopy.Stderr).Write([]byte(c.said))
				default:
					say(http.StatusOK, map[string]any{"Running": false, "ExitCode": c.status})
				}
			})
			done, err := e.Refresh(t.Context(), &Gate{Name: "gate", ID: "g", Plan: &plan.Plan{Gates: []plan.Gate{{Name: "gate"}}}})
			var exited *exit.Error
			if (err != nil) != (c.wrong != "") || err != nil && (!strings.Contains(err.Error(), c.wrong) || !errors.As(err, &exited) || exited.Status != c.exitWith) || done.Unended != c.unended {
				t.Errorf("%+v, %v", done, err)
			}
		})
	}
}

// No person is told a container by its identity (R033).
func TestPlain(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for said, want := range map[string]string{
		"No such container: " + id: "No such container: …",
		`name "/corral-p" is in use by container "` + id + `". You have to`: `name "/corral-p" is in use by container "…". You have to`,
		"sandbox p-0123abcd is up": "sandbox p-0123abcd is up",
		id[1:]:                     id[1:],
		"debian@sha256:" + id:      "debian@sha256:" + id,
		"Get /containers/" + id + "/json: EOF (" + id + ")": "Get /containers/…/json: EOF (…)",
		"tar: exit status 2: runtime/cgo: pthread_create failed\nSIGABRT: abort\n\ngoroutine 0 gp=0x1 m=0\n" + strings.Repeat("r1 0x0\n", 200): "tar: exit status 2: runtime/cgo: pthread_create failed\nSIGABRT: abort (and a trace of the program that failed)",
		`error during connect: Post "http://%2Frun%2Fd.sock/v1.41/containers/` + id + `/start": EOF`:                                           "the connection to the engine broke off: EOF",
	} {
		if got := Plain(said); got != want {
			t.Errorf("%q: %q", said, got)
		}
	}
}

// A service has begun when something else runs in it than its init and the
// handover.
func TestHandedOver(t *testing.T) {
	init, handover := []string{"7", "/sbin/docker-init -- /opt/corral/bin/corral-verify handover -- sh"}, strings.Join(render.Entrypoint, " ")
	for name, c := range map[string]struct {
		processes [][]string
		status    int
		want      bool
	}{
		"nothing yet":  {[][]string{init}, http.StatusOK, false},
		"the handover": {[][]string{init, {"8", handover + " -- sh"}}, http.StatusOK, false},
		"the harness":  {[][]string{init, {" 8", "sh"}}, http.StatusOK, true},
		"ended":        {nil, http.StatusConflict, false},
	} {
		e := answered(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.status)
			json.NewEncoder(w).Encode(container.TopResponse{Processes: c.processes})
		})
		if got := e.handedOver(t.Context(), "s", 7); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
