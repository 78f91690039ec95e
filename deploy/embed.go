// Package deploy embeds what corral builds its own images from.
package deploy

import _ "embed"

// GateDockerfile builds the gate image; its context has the guest binaries in bin.
//
//go:embed images/gate/Dockerfile
var GateDockerfile []byte
