// Package printable makes strings from a sandbox or from somebody's file safe
// to show: nothing of them reaches a terminal that would act on it.
package printable

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
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
		case r == utf8.RuneError:
			b.WriteRune(r)
		case unprintable(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case unprintable(r) && r >= 0x80:
			fmt.Fprintf(&b, `\u%04x`, r)
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

// Is says whether a character may be shown as it is: it prints, and something
// of it can be seen.
func Is(r rune) bool {
	return strconv.IsPrint(r) && (r < 0x80 || r != blankBraille &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector))
}

const blankBraille = '\u2800'

// JSON makes a JSON document safe to show: what Escape would replace is written
// as \u, which any reader of JSON takes for the same.
func JSON(b []byte) []byte {
	if !bytes.ContainsFunc(b, unprintable) {
		return b
	}
	var out bytes.Buffer
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		switch {
		case r < 0x7f || !unprintable(r): // the encoder has seen to control characters
			out.Write(b[:size])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		b = b[size:]
	}
	return out.Bytes()
}

// unprintable looks closer at RuneError, which stands for broken UTF-8 too.
func unprintable(r rune) bool { return r == utf8.RuneError || !Is(r) }

// Count is a number of things in words: one is given in the singular, which forms its
// plural with s, or with es after one.
func Count[N int | uint64](n N, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "s"):
		one += "e"
	}
	return fmt.Sprintf("%d %ss", n, one)
}
