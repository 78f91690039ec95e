// Package profiles embeds the harness profiles: a folder each, and what their
// Dockerfiles have in common.
package profiles

import "embed"

//go:embed image.tmpl */profile.yaml */Dockerfile.tmpl */starter.yaml hermes/requirements.txt opencode/files
var Files embed.FS
