package policy

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"slices"
)

//go:embed schema.json
var schemaFile []byte

// anyProfile is what the schema says of profiles where nobody knows which there are.
const anyProfile = `"examples": ["shell"]`

// Schema is a JSON Schema (draft 2020-12) of the policy, for editors: every key
// of this version with its meaning, and the profiles that there are, if they are
// given. It allows whatever Parse allows; Parse refuses more.
func Schema(profiles ...string) []byte {
	if len(profiles) == 0 {
		return slices.Clone(schemaFile)
	}
	names, err := json.Marshal(profiles)
	if err != nil {
		panic(err) // strings alone
	}
	return bytes.Replace(schemaFile, []byte(anyProfile), append([]byte(`"enum": `), names...), 1)
}
