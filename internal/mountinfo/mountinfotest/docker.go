// Package mountinfotest has samples of mountinfo for tests.
package mountinfotest

import _ "embed"

// Docker is what Docker Engine 20.10 with cgroup version 1 gives a container that
// declares nothing.
//
//go:embed docker
var Docker string
