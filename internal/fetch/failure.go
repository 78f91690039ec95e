package fetch

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/spec"
)

// maxDetail bounds what an error tells, of which others may have said a part.
const maxDetail = 300

// failure is why there is no page: one of the closed set of reasons, and what
// exactly.
type failure struct {
	reason spec.FetchReason
	detail string
}

func (f *failure) Error() string { return string(f.reason) + ": " + f.detail }

func failf(reason spec.FetchReason, format string, args ...any) *failure {
	return &failure{reason: reason, detail: cut(fmt.Sprintf(format, args...), maxDetail)}
}

// cut is the beginning of s, of at most n bytes and whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// ownWords is an error's text without what it quotes, which a server may have
// written for whoever reads it.
func ownWords(err error) string {
	s, _, _ := strings.Cut(err.Error(), `"`)
	return strings.TrimRight(s, ": ")
}
