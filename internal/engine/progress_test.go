package engine

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A gate's own lines say where it is, each step once and in its order.
func TestGateLaps(t *testing.T) {
	for _, c := range []struct {
		said, want []string
	}{
		{
			[]string{"corral-gate: fences services", "corral-gate: closed: INPUT, OUTPUT and FORWARD drop everything (IPv4 and IPv6, nf_tables)", "corral-gate: read /x: 1 name",
				"corral-gate: lookups open for the worker alone", "corral-gate: lookups closed", "corral-gate: pinned a.example 192.0.2.1", "corral-gate: IPv4: 30 rules in place",
				"corral-gate: names written: /etc/hosts", "corral-gate: OK: it", "corral-gate: egress policy applied", "corral-gate: ready"},
			[]string{"gate started and closed", "names resolved", "pins and rules in force", "self-check of the gate"},
		},
		{ // no names
			[]string{"corral-gate: closed: all", "corral-gate: names written: /etc/hosts", "corral-gate: ready"},
			[]string{"gate started and closed", "pins and rules in force", "self-check of the gate"},
		},
		{ // what comes twice, too early, or is somebody else's
			[]string{"closed: all", "corral-gate: lookups closed", "corral-gate: closed: all", "corral-gate: lookups closed", "ready"},
			[]string{"names resolved"},
		},
	} {
		var got []string
		e := &Engine{Watcher: Watcher{Lap: func(step string) { got = append(got, step) }}}
		lap := e.gateLaps()
		for _, line := range c.said {
			lap(line)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q", c.said, got)
		}
	}
}

// Who waits is told so once it takes a while, and not before.
func TestSlow(t *testing.T) {
	var mu sync.Mutex
	var told []string
	e := &Engine{Watcher: Watcher{Working: func(what string, quick bool) func() {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, what)
		return func() {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, "over")
		}
	}}}
	e.slow(time.Hour, "waiting")()
	if len(told) > 0 {
		t.Errorf("at once: %q", told)
	}
	done := e.slow(0, "waiting for %s", "main")
	for begun := false; !begun; {
		mu.Lock()
		begun = len(told) > 0
		mu.Unlock()
	}
	done()
	if !slices.Equal(told, []string{"waiting for main", "over"}) {
		t.Errorf("%q", told)
	}
}

// A service that does not end as it is asked to is not waited for in silence.
func TestRetireSaysWhatItWaitsFor(t *testing.T) {
	told := make(chan string, 1)
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		switch {
		case strings.HasSuffix(path, "/stop"):
			select {
			case said := <-told:
				if said != "waiting until main ends by itself, as it was asked to: 10 s at most" {
					t.Errorf("%q", said)
				}
			case <-r.Context().Done():
				t.Error("nothing is said")
			}
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case path == "/containers/c/json":
			io.WriteString(w, `{"Id":"c","State":{"Status":"running","Running":true}}`)
		default:
			io.WriteString(w, "[]")
		}
	})
	e.Progress = func(format string, args ...any) { told <- fmt.Sprintf(format, args...) }
	if err := e.Retire(t.Context(), Member{ID: "c", Service: "main", Role: RoleService, Purpose: PurposeDaemon, State: "running", Running: true}); err != nil {
		t.Error(err)
	}
}
