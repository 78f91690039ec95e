// Package profiles embeds the harness profiles: a folder each.
package profiles

import "embed"

//go:embed */profile.yaml */Dockerfile.tmpl */starter.yaml
var Files embed.FS
