package deploy

import (
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
		kinds := gates + without + strings.Count(s, "entrypoint: [/opt/corral/bin/corral-verify, handover, --")
		for _, line := range []string{"cap_drop: [ALL]", "security_opt: [no-new-privileges]"} {
			if strings.Count(s, line) != kinds {
				t.Errorf("%s: %s is not in each of %d", file, line, kinds)
			}
		}
	}
}
