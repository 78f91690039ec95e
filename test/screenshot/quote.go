package screenshot

import "strings"

// Quote makes what was written to a terminal a text that acts on none.
func Quote(s string) string {
	return strings.NewReplacer("\r\n", "\n", `\`, `\\`, "\x1b", `\e`, "\r", `\r`).Replace(s)
}

// Unquote is the reverse.
func Unquote(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\e`, "\x1b", `\r`, "\r").Replace(s)
}
