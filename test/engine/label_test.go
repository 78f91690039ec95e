package engine

import (
	"fmt"
	"path/filepath"
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

// A container of corral's with a label that corral never wrote: what it is
// cannot be told, so nothing is done beside it, and a person learns what it
// is and how to be rid of it.
func TestLabelsThatMakeNoSense(t *testing.T) {
	// Alone: every sandbox of the machine is in its way.
	g := greet(t, "127.0.0.1:0")
	s := project(t, serviced("odd-labels", g.port))
	end := s.up("echo up; read -r _", "up") // so there is a relay, and somebody to ask whom it serves
	for name, labels := range map[string][]string{
		"empty address": {"dev.corral.role=gate", fmt.Sprintf("dev.corral.relays=%d", g.port), "dev.corral.address="},
		"no address":    {"dev.corral.role=gate", fmt.Sprintf("dev.corral.relays=%d", g.port), "dev.corral.address=gate"},
		"no mounts":     {"dev.corral.role=service", "dev.corral.sandbox=odd", "dev.corral.shields=[", "dev.corral.policy-path=" + s.dir + "/corral.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"create", "--name", "corral-odd-" + s.id}
			for _, l := range labels {
				args = append(args, "--label", l)
			}
			id := docker(t, append(args, testenv.BaseImage, "true")...)
			o := *s
			o.tb = t
			other := o.another(filepath.Join(filepath.Dir(s.dir), "other"), serviced("other", g.port))
			if strings.Contains(labels[1], "sandbox") {
				other = &o
			}
			r := other.corral("run", "--accept", "--", "true")
			if r.code != 1 || !strings.Contains(r.err, "container corral-odd-"+s.id+": label dev.corral.") || !strings.Contains(r.err, "docker rm --force corral-odd-"+s.id) {
				t.Error(r)
			}
			docker(t, "rm", "--force", id)
			if other != &o {
				if r := other.corral("run", "--", "true"); r.code != 0 {
					t.Error(r)
				}
			}
		})
	}
	end()
}
