package cli

import (
	"errors"
	"fmt"
	"testing"
)

func TestOnce(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for want, err := range map[string]error{
		"a":         errors.Join(a, errors.New("a")),
		"a\nb":      errors.Join(errors.Join(a, b), &unkept{a}, errors.Join(b)),
		"b":         b,
		"it: a\na":  errors.Join(fmt.Errorf("it: %w", a), a),
		"b\na\nc d": errors.Join(b, errors.Join(a, errors.Join(errors.New("c d"), b))),
	} {
		if got := once(err); got.Error() != want || !errors.Is(got, a) && !errors.Is(got, b) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
