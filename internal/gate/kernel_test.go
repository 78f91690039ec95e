package gate_test

import (
	"testing"
)

func TestSmoke(t *testing.T) {
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr, "A "+originAddr)
	g := p.start(document(allowed("api.allowed.test")))
	g.ready()
	t.Logf("%+v", g.status())
	for _, l := range g.output() {
		t.Log(l)
	}
}
