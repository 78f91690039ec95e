package engine

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

// What ends between the look that finds it running and the next one, as by the stop of
// a corral down that was killed, is started again as what ended before.
func TestStoppedMeanwhile(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, always("meanwhile", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up", "--accept")
	agent := strings.TrimSpace(s.identity(s.agent()))
	id, _, _ := strings.Cut(agent, " ")
	var once sync.Once
	o := *s
	o.env = append(slices.Clone(s.env), "DOCKER_HOST="+between(t, filepath.Join(public(t), "e.sock"), func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/containers/"+id+"/json") {
				once.Do(func() {
					if out, err := exec.CommandContext(t.Context(), "docker", "kill", id).CombinedOutput(); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				})
			}
			engine.ServeHTTP(w, r)
		})
	}))
	if r := o.corral("up"); r.code != 0 || !strings.Contains(r.err, "main is started again") {
		t.Error(r)
	}
	if got := strings.TrimSpace(s.identity(s.agent())); got == agent || !strings.HasPrefix(got, id) {
		t.Errorf("the agent is %s, it was %s", got, agent)
	}
	s.must("status")
}

// lastLook is how often a corral down lists containers that meets none.
const lastLook = 4

// What an engine is slow to make is ended by the next corral down, also where the corral
// that asked for it was killed and the engine makes it after that down has looked.
func TestMadeAfterTheDown(t *testing.T) {
	t.Parallel()
	for _, container := range []string{"main-gate", "main"} {
		t.Run(container, func(t *testing.T) {
			t.Parallel()
			s := cloned(t, 0, always("late", forever))
			s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
			s.accept()
			asked, goOn, made := make(chan struct{}), make(chan struct{}), make(chan struct{})
			slow := between(t, filepath.Join(public(t), "e.sock"), func(engine http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !strings.HasSuffix(r.URL.Path, "/containers/create") || r.URL.Query().Get("name") != "corral-"+s.id+"-"+container {
						engine.ServeHTTP(w, r)
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					r = r.Clone(context.WithoutCancel(r.Context()))
					r.Body = io.NopCloser(bytes.NewReader(body))
					close(asked)
					<-goOn
					defer close(made)
					engine.ServeHTTP(lost{}, r)
				})
			})
			o := *s
			o.env = append(slices.Clone(s.env), "DOCKER_HOST="+slow)
			up := o.cmd("up")
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			<-asked
			_ = up.Process.Kill()
			_ = up.Wait()
			var looks atomic.Int64
			o.env = append(slices.Clone(s.env), "DOCKER_HOST="+between(t, filepath.Join(public(t), "e.sock"), func(engine http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					engine.ServeHTTP(w, r)
					if strings.HasSuffix(r.URL.Path, "/containers/json") && looks.Add(1) == lastLook {
						close(goOn)
						<-made
					}
				})
			}))
			if r := o.corral("down"); r.code != 0 || looks.Load() < lastLook {
				t.Errorf("%d looks: %v", looks.Load(), r)
			}
			if left := s.containers(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			s.must("up")
			s.must("down")
		})
	}
}
