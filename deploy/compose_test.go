package deploy

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/render"
)

// The stack that the README shows is the example that the tests bring up.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("compose/any-app/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```yml\n"+string(example)+"```\n") {
		t.Error("README.md shows another stack than compose/any-app/compose.yaml")
	}
}

var update = flag.Bool("update", false, "write the seccomp profile anew")

// The examples have the profile that corral gives its own services.
func TestExamplesHaveTheProfile(t *testing.T) {
	const file = "compose/seccomp.json"
	want, err := render.Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not corral's (-update to accept): %v", file, err)
	}
}

// A gate has the same rights in every stack as in corral's own, and nothing that
// stands behind one has any.
func TestExamplesGrantNoMore(t *testing.T) {
	files, err := filepath.Glob("compose/*/compose.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	rights := "cap_add: [" + strings.Join(render.GateCapabilities, ", ") + "]"
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := string(b)
		gates, without := strings.Count(s, "image: corral-gate:"), strings.Count(s, "network_mode: none")
		if gates == 0 || strings.Count(s, rights) != gates || strings.Count(s, "cap_add:") != gates+without {
			t.Errorf("%s: each gate has %s, and nobody else who has a network has any", file, rights)
		}
		fenced := strings.Count(s, "entrypoint: [/opt/corral/bin/corral-verify, handover, --alone, --")
		for line, want := range map[string]int{
			"cap_drop: [ALL]":                                            gates + without + fenced,
			"security_opt: [no-new-privileges]":                          gates + without,
			"security_opt: [no-new-privileges, seccomp=../seccomp.json]": fenced,
		} {
			if got := strings.Count(s, line); got != want {
				t.Errorf("%s: %s is there %d times, not %d", file, line, got, want)
			}
		}
	}
}
