//go:build !failpoints

package engine

// gateEnvironment is empty: a gate is told by its spec alone.
func gateEnvironment() []string { return nil }
