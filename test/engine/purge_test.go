package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

// down --purge asks first, and then leaves nothing of a sandbox but the project: no
// image, no state, no yes of before. Without a yes nothing is ended.
func TestDownPurge(t *testing.T) {
	t.Parallel()
	s := project(t, always("purged", console))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.must("up")
	agent := s.identity(s.agent())
	kept := s.inHome(".local/share/corral/"+s.id+"/state/main/closed/memory", "remembered", 0o600)
	if err := os.Chmod(filepath.Dir(kept), 0o100); err != nil {
		t.Fatal(err)
	}
	if r := s.corral("down", "--purge"); r.code != 2 || !strings.Contains(r.err, "hint: say --yes") || !strings.Contains(r.err, s.id+": the agent's own state") {
		t.Errorf("without a terminal: %v", r)
	}
	f, wait := s.onTerminal("down", "--purge")
	f.await(t, "Remove it? [y/N]")
	f.key(t, "n\r")
	if code := wait(); code != 2 || s.identity(s.agent()) != agent {
		t.Errorf("a no: status %d, or something was ended: %q", code, f.seen.String())
	}
	f, wait = s.onTerminal("down", "--purge")
	f.await(t, "Remove it? [y/N]")
	f.key(t, "y\r")
	f.await(t, "nothing is kept of ")
	if code := wait(); code != 0 {
		t.Errorf("status %d: %q", code, f.seen.String())
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if left := docker(t, "images", "--quiet", "--filter", "reference=corral-"+s.id+"-*"); left != "" {
		t.Errorf("images: %s", left)
	}
	if left, err := os.ReadDir(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(kept)))))); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if r := s.corral("up"); r.code != 2 || !strings.Contains(r.err, "nobody has accepted this policy yet") {
		t.Errorf("what was accepted is forgotten: %v", r)
	}
	if r := s.corral("down", "--purge"); r.code != 0 || !strings.Contains(r.err, "nothing is kept of") {
		t.Errorf("again: %v", r)
	}
}

// The one of a corral run goes, too, and its corral ends by itself.
func TestDownPurgeOfARun(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	if r := s.corral("down", "--purge", "--yes"); r.code != 0 || len(s.containers()) > 0 {
		t.Error(r)
	}
	end()
	if left, err := os.ReadDir(filepath.Join(s.home(), ".local/share/corral")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
