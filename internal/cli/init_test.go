package cli

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/policy"
)

// What somebody put in place of the policy that init has just written is not
// accepted with it, and is left for the person to see.
func TestInitAcceptsOnlyWhatItWrote(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, policy.FileName)
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SUDO_UID", "")
	starter := []byte("profile: shell\n")
	c := &cobra.Command{}
	c.SetContext(t.Context())
	a := &app{in: os.Stdin, out: io.Discard, err: io.Discard}
	for text, ok := range map[string]bool{"profile: shell\nhooks: {pre_launch: [touch X]}\n": false, string(starter): true} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if os.Getuid() == 0 {
			for _, p := range []string{dir, file} {
				if err := os.Chown(p, 12345, 12345); err != nil {
					t.Fatal(err)
				}
			}
		}
		err := a.initialised(c, file, starter)
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		records, _ := filepath.Glob(filepath.Join(data, "corral", "*", "accepted.json"))
		if len(records) > 0 != ok {
			t.Errorf("%q: %v", text, records)
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if err := os.RemoveAll(filepath.Join(data, "corral")); err != nil {
			t.Fatal(err)
		}
	}
}
