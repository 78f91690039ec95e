package gate_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// R131: what a missing way out makes is told by one line among the reasons, and
// nothing else is.
func TestUnansweredIsTold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(p *pair, doc *spec.Gate)
		want  bool
	}{
		"nobody at the name": {func(p *pair, _ *spec.Gate) {
			p.zone("api.allowed.test", "A 44.10.0.12")
			run(t, "ip", "-n", p.world, "addr", "add", "44.10.0.12/16", "dev", "eth0")
		}, true},
		"nobody at the name server": {func(_ *pair, doc *spec.Gate) { doc.Resolvers = []netip.Addr{netip.MustParseAddr(originAddr)} }, true},
		"no such name":              {func(*pair, *spec.Gate) {}, false},
		"a name that may not be pinned": {func(p *pair, _ *spec.Gate) {
			p.zone("api.allowed.test", "A 10.38.0.27")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			doc := document(allowed("api.allowed.test"))
			tt.spoil(p, &doc)
			s := p.start(doc)
			if code := s.exit(); code != 1 {
				t.Errorf("status %d", code)
			}
			text := strings.Join(s.output(), "\n")
			if told := strings.Contains(text+"\n", "\n"+spec.GateUnanswered+"\n"); told != tt.want || !strings.Contains(text, "api.allowed.test (corral.yaml:7): ") {
				t.Errorf("told: %v, in\n%s", told, text)
			}
			p.isClosed(t)
		})
	}
}
