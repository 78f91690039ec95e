package engine

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
