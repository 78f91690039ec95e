//go:build failpoints

package engine

import "os"

// gateEnvironment passes a fail point on to a gate of a test build.
func gateEnvironment() []string {
	return []string{"CORRAL_GATE_FAILPOINT=" + os.Getenv("CORRAL_GATE_FAILPOINT")}
}
