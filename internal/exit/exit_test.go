package exit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		said   string
	}{
		{nil, OK, ""},
		{errors.New("plain"), Failed, "p: plain\n"},
		{Invalidf("do this", "no %s", "good"), Invalid, "p: no good\n  hint: do this\n"},
		{fmt.Errorf("outer: %w", Failedf("", "inner")), Failed, "p: outer: inner\n"},
		{Status(42), 42, ""},
		{errors.Join(Status(3), nil), 3, ""},
		{Invalidf("a\x1bb", "c\u202e\nd\x1b[8m"), Invalid, "p: c\\u202e\nd\\x1b[8m\n  hint: a\\x1bb\n"},
		{errors.New("e\x1b"), Failed, "p: e\\x1b\n"},
		{fmt.Errorf("outer: %w", context.Canceled), Interrupted, "p: interrupted\n"},
		{errors.Join(context.Canceled, errors.Join(nil, errors.New("left behind")), context.Canceled), Interrupted, "p: interrupted\np: left behind\n"},
	} {
		var b strings.Builder
		if got := Report(&b, "p", c.err); got != c.status || b.String() != c.said {
			t.Errorf("%v: status %d, %q", c.err, got, b.String())
		}
	}
}
