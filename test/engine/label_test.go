package engine

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
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

// What somebody gives another name is part of its sandbox still: corral up gives it its
// own again and ends nothing, and corral down takes it away.
func TestRenamed(t *testing.T) {
	// Alone: to who verifies beside it, what has another name is a stranger.
	for _, what := range []string{"main", "gate"} {
		t.Run(what, func(t *testing.T) {
			s := project(t, always("renamed", forever))
			s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
			s.must("up")
			made := map[string]string{"main": s.agent(), "gate": s.gate()}[what]
			id, others := docker(t, "inspect", "--format", "{{.Id}}", made), "mine-"+s.id
			t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", others).Run() }) // it may have its own name again
			both := s.containers()
			docker(t, "rename", made, others)
			if r := s.corral("status"); r.code != 0 {
				t.Errorf("by another name: %v", r)
			}
			taker := docker(t, "create", "--name", made, testenv.BaseImage, "true")
			if r := s.corral("up"); r.code != 1 || !strings.Contains(r.err, "hint: docker rename "+made) {
				t.Errorf("somebody else's has the name: %v", r)
			}
			docker(t, "rm", taker)
			if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, what+" had another name ("+others+"): it has its own again") {
				t.Error(r)
			}
			if got := docker(t, "inspect", "--format", "{{.Id}}", made); got != id || !slices.Equal(s.containers(), both) {
				t.Errorf("%s became %s, %v became %v", id, got, both, s.containers())
			}
			docker(t, "rename", made, others)
			s.must("down")
			if left := s.containers(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	t.Run("with a second one", func(t *testing.T) {
		s := project(t, always("second", forever))
		s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
		s.must("up")
		t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", "mine-"+s.id).Run() })
		second := func() {
			t.Helper()
			docker(t, "rename", s.agent(), "mine-"+s.id)
			docker(t, "run", "--detach", "--name", s.agent(), "--network", "container:"+s.gate(), "--label", "dev.corral.sandbox="+s.id, "--label", "dev.corral.role=service",
				"--label", "dev.corral.service=main", "--label", "dev.corral.purpose=daemon", "--label", "dev.corral.policy-path="+s.dir+"/corral.yaml", testenv.BaseImage, "sleep", "infinity")
		}
		second()
		if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "mine-"+s.id+" is a second main: it ends") {
			t.Error(r)
		}
		if r := s.corral("verify"); r.code != 0 || len(s.containers()) != 2 {
			t.Errorf("%v: %v", s.containers(), r)
		}
		second()
		s.must("down")
		if left := s.containers(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}
