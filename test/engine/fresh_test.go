package engine

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/testenv"
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

// The gate's image holds its programs and what they need, and nothing that anybody
// could make use of there.
func TestGateImageHoldsLittle(t *testing.T) {
	testenv.Require(t, "engine")
	tag, err := buildGate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { docker(t, "rmi", "--no-prune", "corral-gate:"+tag) })
	id := docker(t, "create", "corral-gate:"+tag)
	t.Cleanup(func() { docker(t, "rm", id) })
	b, err := command.Run(t.Context(), nil, "docker", "export", id)
	if err != nil {
		t.Fatal(err)
	}
	expected := regexp.MustCompile(`^(opt/corral/bin/corral-(gate|verify)|usr/sbin/(ip6?tables(-[a-z]+)*|xtables-(nft|legacy)-multi)|etc/alternatives/ip6?tables(-[a-z]+)?|(usr/)?lib(64)?/([a-z0-9_]+-linux-gnu[a-z0-9]*/)?(xtables/)?(lib[a-zA-Z0-9_]+|ld-linux[-a-z0-9_]*)\.so[.0-9]*|etc/(hostname|hosts|mtab|resolv\.conf)|dev/console|\.dockerenv)$`)
	files := 0
	for archive := tar.NewReader(bytes.NewReader(b)); ; files++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir && !expected.MatchString(h.Name) {
			t.Errorf("%s: who needs it?", h.Name)
		}
		if h.FileInfo().Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s: %v, %d:%d", h.Name, h.FileInfo().Mode(), h.Uid, h.Gid)
		}
	}
	if files < 50 {
		t.Errorf("%d files", files)
	}
}
