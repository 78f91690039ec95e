package gate

import (
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Rules with one ID are told apart by their protocol.
func TestStatusTextOfRules(t *testing.T) {
	got := statusText(spec.GateStatus{Rules: []spec.RuleCount{
		{Family: "IPv4", Chain: "OUTPUT", Rule: "seen", Proto: "tcp", Packets: 3, Bytes: 180},
		{Family: "IPv4", Chain: "OUTPUT", Rule: "seen", Proto: "udp", Packets: 2, Bytes: 60},
		{Family: "IPv4", Chain: "OUTPUT", Rule: "loopback", Packets: 1, Bytes: 52},
		{Family: "IPv4", Chain: "INPUT", Rule: "loopback", Packets: 1, Bytes: 52},
		{Family: "IPv4", Chain: "OUTPUT", Rule: "unlisted"},
	}})
	const want = `rule     IPv4 OUTPUT seen tcp × 3 packets, 180 bytes
rule     IPv4 OUTPUT seen udp × 2 packets, 60 bytes
rule     IPv4 OUTPUT loopback × 1 packets, 52 bytes
`
	if !strings.Contains(got, want) || strings.Count(got, "rule ") != 3 {
		t.Errorf("%s", got)
	}
}
