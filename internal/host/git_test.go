package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestGitIdentity(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	home := t.TempDir()
	if name, email := GitIdentity(t.Context(), home); name != "" || email != "" {
		t.Errorf("out of nothing: %q %q", name, email)
	}
	other := filepath.Join(home, "other")
	for path, text := range map[string]string{
		filepath.Join(home, ".gitconfig"): "[user]\n\tname = \"Ada \\\"L\\\" Łovelace\"\n\temail = ada@example.com\n[include]\n\tpath = " + other + "\n",
		other:                             "[user]\n\tname = from an include\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if name, email := GitIdentity(t.Context(), home); name != `Ada "L" Łovelace` || email != "ada@example.com" {
		t.Errorf("%q %q", name, email)
	}
}
