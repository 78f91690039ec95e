// Package printable makes strings from a sandbox or from somebody's file safe
// to show: nothing of them reaches a terminal that would act on it.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape replaces control, bidi, invisible and escape characters, odd spaces
// and broken UTF-8 by what Go would write for them.
func Escape(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unprintable(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// Is says whether a character may be shown as it is.
func Is(r rune) bool { return strconv.IsPrint(r) }

// unprintable looks closer at RuneError, which stands for broken UTF-8 too.
func unprintable(r rune) bool { return r == utf8.RuneError || !Is(r) }
