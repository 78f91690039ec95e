//go:build !failpoints

package gate

// failpoint is where a test build can be made to fail. Here it is nothing.
func failpoint(string) error { return nil }
