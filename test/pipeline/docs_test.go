package pipeline

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/corral-sandbox/corral/internal/policy"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every policy that a document shows is one that corral accepts.
func TestDocumentedPolicies(t *testing.T) {
	found := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../profiles/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range yamlBlock.FindAllSubmatch(b, -1) {
				found++
				if _, err := policy.Parse(filepath.Base(file), m[1]); err != nil {
					t.Errorf("%s shows a policy that is refused:\n%v", file, err)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no policy is documented")
	}
}
