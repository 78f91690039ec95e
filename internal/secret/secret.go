// Package secret keeps values that nobody is to see, and reads the file that a
// person keeps them in. Bytes go in, names and values come out, or every
// mistake at once. No value is ever printed, in an error least of all.
package secret

import (
	"fmt"
	"io"
	"log/slog"
)

// hidden is what a Secret looks like, whatever it is and however it is printed.
const hidden = "***"

// Secret is a string that prints as ***. The zero value is empty.
type Secret struct {
	// A field of another package's struct is printed past every method below;
	// of a pointer, that shows an address.
	value *string
}

// New makes a secret of s.
func New(s string) Secret { return Secret{&s} }

// Reveal is the value itself, for whoever hands it over.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// String, GoString and Format are for fmt, the rest for encoders and logs.

func (Secret) String() string               { return hidden }
func (Secret) GoString() string             { return hidden }
func (Secret) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, hidden) }
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
func (Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
