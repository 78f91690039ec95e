package cli

import (
	"errors"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
)

// Without an engine the default stands for a subnet that nobody chose; the
// wish itself stays open.
func TestSettings(t *testing.T) {
	for _, c := range []struct{ env, wish, whole string }{
		{"", "invalid Prefix", "172.30.0.0/16"},
		{"10.200.0.0/20", "10.200.0.0/20", "10.200.0.0/20"},
	} {
		t.Setenv("CORRAL_SUBNET", c.env)
		set, err := wished()
		if err != nil || set.Subnet.String() != c.wish {
			t.Errorf("%q: wished for %v: %v", c.env, set.Subnet, err)
		}
		set, network, err := settings()
		if want, _ := plan.Divide(set.Subnet); err != nil || set.Subnet.String() != c.whole || network != want {
			t.Errorf("%q: %v of %v: %v", c.env, network, set.Subnet, err)
		}
	}
}

// A wish is in force without a question to the engine; one that cannot be is
// the person's mistake.
func TestInForce(t *testing.T) {
	t.Setenv("CORRAL_SUBNET", "10.200.0.0/20")
	network, whole, err := inForce(t.Context(), &engine.Engine{})
	if err != nil || whole.String() != "10.200.0.0/20" || network.Gateway.String() != "10.200.0.1" {
		t.Errorf("%v of %v: %v", network, whole, err)
	}
	for _, wrong := range []string{"10.0.0.0/21", "10.0.0.0/11", "10.0.0.1/16", "fd00::/16", "somewhere"} {
		t.Setenv("CORRAL_SUBNET", wrong)
		_, _, err := inForce(t.Context(), &engine.Engine{})
		var mistake *exit.Error
		if !errors.As(err, &mistake) || mistake.Status != exit.Invalid {
			t.Errorf("%s: %v", wrong, err)
		}
		if _, _, err := settings(); err == nil {
			t.Errorf("%s: settled", wrong)
		}
	}
}
