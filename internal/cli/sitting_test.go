package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
)

// That sitting somewhere cannot be recorded is told, and refuses nobody what runs.
func TestSittingUnrecorded(t *testing.T) {
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	home := filepath.Join(data, "corral")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(home, "a-1")); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	(&app{err: &said}).sitting(engine.Member{Sandbox: "a-1", Service: "main"})()
	if !strings.Contains(said.String(), "sits at main cannot be recorded") {
		t.Errorf("said %q", said.String())
	}
}

// Without corral's directory nobody knows whether a sandbox was taken down.
func TestWatchWithoutRecords(t *testing.T) {
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	if recorded() == nil {
		t.Error("records that are not there say something")
	}
	if err := os.Mkdir(filepath.Join(data, "corral"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := recorded(); err != nil {
		t.Error(err)
	}
}
