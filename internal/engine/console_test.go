package engine

import (
	"strings"
	"testing"
)

func TestUnreturned(t *testing.T) {
	for in, want := range map[string]string{
		"a\r\nb\r\n":        "a\nb\n",
		"10%\r20%\r\n":      "10%\r20%\n",
		"a\r\r\n\r":         "a\r\n\r",
		"\n\r":              "\n\r",
		"no carriage, no\n": "no carriage, no\n",
		"":                  "",
	} {
		for size := 1; size <= len(in)+1; size++ { // however it is cut
			var out strings.Builder
			w := &unreturned{to: &out}
			for rest := in; rest != ""; {
				n := min(size, len(rest))
				if got, err := w.Write([]byte(rest[:n])); got != n || err != nil {
					t.Fatal(got, err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil || out.String() != want {
				t.Errorf("%q in pieces of %d: %q, %v", in, size, out.String(), err)
			}
		}
	}
}
