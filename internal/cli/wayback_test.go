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
	for _, n := range []int{0, 1, 3, len(many)} {
		var b bytes.Buffer
		showFindings(&b, "a-1", many[:n], nil)
		if got := strings.Count(b.String(), "because"); got > mostFindings || (n > 0) != (got > 0) || n <= 3 && got != n {
			t.Errorf("%d findings: %d lines", n, got)
		}
		if strings.Contains(b.String(), "\x1b") {
			t.Errorf("%d findings: %q", n, b.String())
		}
		file := filepath.Join(data, "corral", "a-1", "wayback.txt")
		if n == 0 {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil || strings.Count(string(text), "because") != n || strings.Contains(string(text), "\x1b") {
			t.Errorf("%d findings are kept as: %v %s", n, err, text)
		}
		if told := strings.Contains(b.String(), fmt.Sprintf("all %d: %s", n, file)); told != (n == len(many)) {
			t.Errorf("%d findings: %s", n, b.String())
		}
	}
	var b bytes.Buffer
	showFindings(&b, "a-1", nil, errors.New("no \x1b look"))
	if !strings.Contains(b.String(), `cannot tell`) || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
}
