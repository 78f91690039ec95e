//go:build !failpoints

package gate

import "context"

// testVariables are no settings of this build.
var testVariables []string

// failpoint is where a test build can be made to fail. Here it is nothing.
func failpoint(string) error { return nil }

// mutate is where a test build can have other rules put in force. Here there are none.
func (*gate) mutate(context.Context) (bool, error) { return false, nil }

// pardoned is where a test build goes on with them.
func (*gate) pardoned(error) bool { return false }
