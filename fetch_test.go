package corral_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// docs/fetch.md has every reason, and every setting as the program lists them.
func TestDocumentedFetch(t *testing.T) {
	var reasons, settings strings.Builder
	reasons.WriteString("| `error` | HTTP | in the log | what it means |\n|---|---|---|---|\n")
	seen := map[spec.FetchReason]bool{}
	for _, r := range spec.FetchReasons {
		if seen[r.Reason] || r.Status < 400 || !strings.HasSuffix(r.Means, ".") {
			t.Errorf("%q is listed twice, is none, or is no sentence", r.Reason)
		}
		seen[r.Reason] = true
		fmt.Fprintf(&reasons, "| `%s` | %d | %s | %s |\n", r.Reason, r.Status, r.Fault, r.Means)
	}
	out, err := exec.Command("go", "run", "./cmd/corral-fetch", "settings").Output()
	if err != nil {
		t.Fatal(err)
	}
	settings.WriteString("| option | what it is | like | default |\n|---|---|---|---|\n")
	for entry := range strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(string(out)), "\n    ", "\t"), "\n") {
		cells := strings.Split(entry, "\t")
		name, _, _ := strings.Cut(cells[0], ",")
		like, fallback, ok := strings.Cut(cells[len(cells)-1], "; default: ")
		if len(cells) != 3 || !ok {
			t.Fatalf("%q", entry)
		}
		fmt.Fprintf(&settings, "| `%s` | %s | `%s` | %s |\n", name, cells[1], strings.TrimPrefix(like, "like "), fallback)
	}
	document(t, "docs/fetch.md", map[string]string{"reasons": reasons.String(), "settings": settings.String()})
}
