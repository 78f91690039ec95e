package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/wayback"
)

// However much an agent changes, what matters most is on the screen and all of
// it can be read; and nothing of it reaches the terminal as it is.
func TestFindingsAreBounded(t *testing.T) {
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	var many []wayback.Finding
	for i := range mostFindings + 3 {
		many = append(many, wayback.Finding{Path: fmt.Sprintf("/p/%d\x1b[31m", i), What: "new", Reason: "because"})
	}
	for n, shown := range map[int]int{0: 0, 1: 1, mostFindings: mostFindings, mostFindings + 3: mostFindings} {
		var b bytes.Buffer
		showFindings(&b, "a-1", many[:n], nil)
		if got := strings.Count(b.String(), "because"); got != shown {
			t.Errorf("%d findings: %d lines", n, got)
		}
		if strings.Contains(b.String(), "\x1b") {
			t.Errorf("%d findings: %q", n, b.String())
		}
		file := filepath.Join(data, "corral", "a-1", "wayback.txt")
		text, err := os.ReadFile(file)
		if n <= mostFindings {
			if err == nil {
				t.Errorf("%d findings: there is a file", n)
			}
			continue
		}
		if err != nil || strings.Count(string(text), "because") != n || !strings.Contains(b.String(), "and 3 more; all of them: "+file) {
			t.Errorf("%v: %s%s", err, text, b.String())
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	showFindings(&b, "a-1", nil, errors.New("no \x1b look"))
	if !strings.Contains(b.String(), `cannot tell`) || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
}
