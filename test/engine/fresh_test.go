package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// R128: what is installed, and nothing of where it was built, makes a fence: on
// an engine that has no image of this build, from the public base image alone.
func TestFreshMachine(t *testing.T) {
	// Alone: images and volumes of other builds are dropped.
	s := machine(t)
	prefix := public(t)
	for dir, names := range map[string][]string{"bin": {"corral"}, "libexec/corral": {"corral-gate", "corral-verify"}} {
		for _, name := range names {
			build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-X github.com/corral-sandbox/corral/internal/spec.release=fresh",
				"-o", filepath.Join(prefix, dir, name), "../../cmd/"+name)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	chmod := exec.Command("chmod", "-R", "a+rX", prefix)
	if out, err := chmod.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.bin, s.dir = filepath.Join(prefix, "bin"), filepath.Join(s.dir, "project")
	s.own(s.dir)
	s.env = append(s.env, probesOfTheLab())
	before := images(t)
	t.Cleanup(func() {
		for image := range images(t) {
			if !before[image] && strings.HasPrefix(image, "corral-") {
				docker(t, "rmi", image)
			}
		}
		for _, v := range strings.Fields(docker(t, "volume", "ls", "--quiet", "--filter", "name=corral-guest-fresh-")) {
			docker(t, "volume", "rm", v)
		}
	})
	if r := s.corral("install"); r.code != 0 || !strings.Contains(r.err, "building the gate image") {
		t.Fatal(r)
	}
	if r := s.corral("init", "--profile", "shell"); r.code != 0 {
		t.Fatal(r)
	}
	if r := s.corral("run", "--", "echo", "inside"); r.code != 0 || r.out != "inside\n" {
		t.Error(r)
	}
	if r := s.corral("version"); r.out != "corral fresh\n" {
		t.Error(r)
	}
}

// images are the names that the engine has.
func images(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, name := range strings.Fields(docker(t, "images", "--format", "{{.Repository}}:{{.Tag}}")) {
		all[name] = true
	}
	return all
}
