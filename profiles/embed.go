// Package profiles embeds the harness profiles: a folder each, and what their
// Dockerfiles have in common.
package profiles

import "embed"

//go:embed image.tmpl */profile.yaml */Dockerfile.tmpl */starter.yaml hermes/requirements.txt hermes/harness.tmpl all:hermes/researcher hermes/search hermes/fetch opencode/files
var Files embed.FS
