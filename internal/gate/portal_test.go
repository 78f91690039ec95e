package gate_test

import (
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// portal answers whatever a gate's namespace sends to anybody by TCP, as the login
// page of a network does. The result counts who came.
func (p *pair) portal() *atomic.Int64 {
	p.t.Helper()
	var l net.Listener
	p.must(p.world, func() (err error) {
		if l, err = net.Listen("tcp4", worldAddr+":0"); err != nil {
			return err
		}
		out, err := exec.Command("iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-i", "eth0", "-p", "tcp", "-j", "DNAT",
			"--to-destination", l.Addr().String()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	var came atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came.Add(1)
			c.Close()
		}
	})
	p.t.Cleanup(func() { l.Close(); wg.Wait() })
	return &came
}

// R120: beside somebody who answers every SYN a fence that is closed is proved as
// ever, and one that is open is no better for it.
func TestPortal(t *testing.T) {
	t.Parallel()
	testenv.Require(t, "netns")
	known := knownMutants(t)
	type opened struct{ id, answered string }
	unlisted := fmt.Sprintf("unlisted-host-blocked: failed tcp %v:443 answers", spec.DefaultProbes().Unlisted)
	open := map[string][]opened{
		"pinned": {{"4/OUTPUT/unlisted/accept", unlisted}, {"4/corral-unlisted/unlisted(1)/accept", unlisted}},
		"public": {{"4/OUTPUT/public/accept", unlisted}, {"4/corral-public/end/accept", "port-not-listed-blocked:" + publicName + ": failed tcp " + originAddr + ":8445 answers"}},
		"sink":   {{"4/OUTPUT/unlisted/accept", unlisted}},
	}
	for _, c := range mutantCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newMutantLab(t, c)
			came := l.portal()
			if r := l.judge(""); len(r.kinds) > 0 {
				t.Errorf("closed: %s", strings.Join(r.details, "\n"))
			}
			if came.Load() == 0 {
				t.Fatal("the portal is not on the way to what is granted")
			}
			for _, o := range open[c.name] {
				r := l.judge(o.id)
				for _, kind := range known[o.id].kinds {
					if !slices.Contains(r.kinds, kind) {
						t.Errorf("%s: %s passes", o.id, kind)
					}
				}
				if !slices.Contains(r.details, o.answered) {
					t.Errorf("%s: no %q in\n%s", o.id, o.answered, strings.Join(r.details, "\n"))
				}
			}
		})
	}
}
