package cli

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
)

// here is a directory as it was judged.
func here(t *testing.T, path string) policy.Mount {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	m := policy.Mount{Path: path}
	m.Dev, m.Ino = inode(fi)
	return m
}

func TestEnsure(t *testing.T) {
	dir := t.TempDir()
	judged := here(t, dir)
	if made, err := ensure(judged, "a", "text", 1, 1); err != nil || !made {
		t.Fatalf("made %v, %v", made, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	// What is there stays.
	if made, err := ensure(judged, "a", "other", 1, 1); err != nil || made {
		t.Errorf("made %v, %v", made, err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "a")); string(b) != "text" {
		t.Errorf("%q", b)
	}
	// A link is somebody's, if it leads somewhere.
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Symlink(elsewhere, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if made, err := ensure(judged, "link", "text", 1, 1); err == nil || made {
		t.Errorf("a link that leads nowhere: made %v, %v", made, err)
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("something was written through a link")
	}
	// Another directory of that name is not the one that was judged.
	if err := os.Rename(dir, dir+"-old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if made, err := ensure(judged, "b", "text", 1, 1); err == nil || made {
		t.Errorf("in another directory: made %v, %v", made, err)
	}
}

func TestKeysIn(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "node_modules/x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "agent/deeper"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"env.json":             `{"apiKey": "{env:ANTHROPIC_API_KEY}"}`,
		"file.json":            `{"apiKey": "{file:~/.key}"}`,
		"plain.json":           `{"model": "a", "baseURL": "http://corral-host:8081/v1"}`,
		"key.json":             `{"options": {"apiKey": "0123456789abcdef"}}`,
		"sk.json":              `x sk-ant-0123456789abcdefghij y`,
		"agent/token.json":     `{"github_token":"ghp_0123456789012345678901"}`,
		"node_modules/x/k":     `{"apiKey": "0123456789abcdef"}`,
		"agent/deeper/k":       `{"apiKey": "0123456789abcdef"}`,
		"agent/headers.json":   `{"Authorization": "Bearer 0123456789abcdef0123"}`,
		"not-utf8":             "\xff\xfe{\"apiKey\": \"0123456789abcdef\"}",
		"agent/short-key.json": `{"apiKey": "local"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Neither waits for a FIFO nor follows a link.
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "key.json"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, path := range keysIn(dir) {
		rel, _ := filepath.Rel(dir, path)
		got = append(got, rel)
	}
	want := []string{"agent/headers.json", "agent/token.json", "key.json", "not-utf8", "sk.json"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What the person's environment passes no profile sets: a sandbox that was brought up
// on a terminal would be another one without it.
func TestProfilesSetNothingThatIsPassed(t *testing.T) {
	for _, name := range profile.Names() {
		p, err := profile.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range passed {
			if value, set := p.Environment[v]; set {
				t.Errorf("profile %s sets %s=%s", name, v, value)
			}
		}
	}
}
