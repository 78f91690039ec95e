//go:build !failpoints

package gate

// failpointVariable is no setting of this build.
const failpointVariable = ""

// failpoint is where a test build can be made to fail. Here it is nothing.
func failpoint(string) error { return nil }
