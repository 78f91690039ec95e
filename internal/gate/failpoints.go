//go:build failpoints

package gate

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const failpointVariable = "CORRAL_GATE_FAILPOINT"

// testVariables tell a test build what to do wrong, and are nothing that a gate goes by.
var testVariables = []string{failpointVariable, mutantVariable}

// passed is how often the point was passed.
var passed atomic.Int64

// failpoint fails at the point that CORRAL_GATE_FAILPOINT names, as point:how.
// How is exit (an ordinary error), exit:N (only the Nth time), kill (gone at once, with no clean-up),
// wait:FIFO (until somebody has opened and closed that pipe for writing) or
// sleep:DURATION.
func failpoint(point string) error {
	at, how, _ := strings.Cut(os.Getenv(failpointVariable), ":")
	if at != point {
		return nil
	}
	fmt.Printf("corral-gate: fail point %s: %s\n", point, how)
	how, arg, _ := strings.Cut(how, ":")
	switch how {
	case "exit":
		if n := passed.Add(1); arg != "" && arg != fmt.Sprint(n) {
			return nil
		}
		return fmt.Errorf("fail point %s", point)
	case "kill":
		os.Exit(137) // the kernel does not let PID 1 kill itself
	case "wait":
		_, err := os.ReadFile(arg)
		return err
	case "sleep":
		d, err := time.ParseDuration(arg)
		time.Sleep(d)
		return err
	}
	return fmt.Errorf("fail point %s: how is %q?", point, how)
}
