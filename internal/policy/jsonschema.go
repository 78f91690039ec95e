package policy

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schemaFile []byte

// Schema is a JSON Schema (draft 2020-12) of the policy, for editors: every key
// of this version with its meaning. It allows whatever Parse allows; Parse
// refuses more.
func Schema() []byte { return slices.Clone(schemaFile) }
