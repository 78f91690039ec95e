package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// A container has the labels of its image too, and whoever wrote that image had
// no right to use the engine: labels alone make nobody a part of a sandbox, a
// scratch container to be cleared away, or a gate that a relay serves.
func TestLabelsOfImagesProveNothing(t *testing.T) {
	t.Parallel()
	g := greet(t, "127.0.0.1:0")
	s := project(t, serviced("labels", g.port))
	policy := s.dir + "/corral.yaml"
	image := "corral-test-labels:" + s.id
	run(t, "sh", "-c", fmt.Sprintf(`printf 'FROM %s\nLABEL dev.corral.sandbox=%s dev.corral.role=gate dev.corral.service=main dev.corral.policy-path=%s dev.corral.purpose=check dev.corral.owner="x 1 1" dev.corral.relays=%d dev.corral.address=172.17.0.9\nLABEL dev.corral.shields=no-json\n' | docker build -q -t %s -`,
		testenv.BaseImage, s.id, policy, g.port, image))
	t.Cleanup(func() { docker(t, "rmi", "-f", image) })
	victim := docker(t, "run", "--detach", image, "sleep", "infinity")
	t.Cleanup(func() { docker(t, "rm", "-f", victim) })

	for _, args := range [][]string{{"install", "--check"}, {"run", "--", "true"}, {"verify"}, {"down"}} {
		if r := s.corral(args...); r.code != 0 {
			t.Errorf("corral %v: %v", args, r)
		}
		if state := docker(t, "inspect", "--format", "{{.State.Status}}", victim); state != "running" {
			t.Fatalf("corral %v made it %s", args, state)
		}
	}
	if r := s.corral("status"); !strings.Contains(r.out, "not up") {
		t.Errorf("somebody else's container counts: %v", r)
	}
}
