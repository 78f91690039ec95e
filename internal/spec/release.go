package spec

import "runtime/debug"

// release is set by the linker.
var release string

// Release is the version that all binaries of one build share: what the
// linker was given, else the module version recorded by the Go command.
func Release() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
