package profile

import (
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/corral-sandbox/corral/profiles"
)

// Starter is the commented policy that a project with this profile begins
// with.
func Starter(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no profile %q (there is: %v)", name, Names())
	}
	return fs.ReadFile(profiles.Files, path.Join(name, "starter.yaml"))
}
