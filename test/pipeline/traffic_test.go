package pipeline

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// The table of what a line of a gate's log holds has every field and no other.
func TestDocumentedDecision(t *testing.T) {
	verdicts := []string{spec.VerdictAllowed, spec.VerdictDenied, spec.VerdictProbed, spec.VerdictRefusedName, spec.VerdictLookedUp, spec.VerdictNotShown}
	says := map[string]string{
		"time":    "of the newest, RFC 3339",
		"verdict": "`" + strings.Join(verdicts, "`, `") + "`",
		"proto":   "`tcp`, `udp`, `icmp` or `ip-N`; of a lookup nothing",
		"addr":    "where the packet went",
		"port":    "its port, if it has one",
		"name":    "what was looked up, or a listed name that the address is pinned for; cut after 128 bytes",
		"rule":    "the public name of the rule that refused it",
		"count":   "how often since the last such line",
	}
	var table strings.Builder
	table.WriteString("\n| field | what it says |\n|---|---|\n")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[spec.Decision]()) {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if says[key] == "" {
			t.Errorf("nothing is said of %s", key)
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", key, says[key])
		delete(says, key)
	}
	for key := range says {
		t.Errorf("there is no %s", key)
	}
	generated(t, "docs/traffic.md", "decision", table.String()+"\n")
}
