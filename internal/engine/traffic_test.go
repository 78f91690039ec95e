package engine

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

func TestReadDecisions(t *testing.T) {
	const log = `corral-gate: closed
{"time":"2030-01-01T12:00:00Z","verdict":"denied","proto":"tcp","addr":"44.10.9.9","port":443,"rule":"unlisted","count":2}

corral-gate: ready
{"time":"2030-01-01T12:00:01Z","verdict":"refused-name","name":"x.evil.test","count":1}
`
	stop := errors.New("enough")
	for _, tt := range []struct {
		what, in string
		most     int
		verdicts []string
		err      string
	}{
		{"a log", log, 9, []string{spec.VerdictDenied, spec.VerdictRefusedName}, ""},
		{"nothing", "", 9, nil, ""},
		{"the reader has enough", log, 1, []string{spec.VerdictDenied}, "enough"},
		{"cut off", log + `{"time":"2030-`, 9, []string{spec.VerdictDenied, spec.VerdictRefusedName}, "the gate's log"},
		{"something else", `{"verdict":"denied","forged":true}`, 9, nil, "forged"},
		{"too long", `{"name":"` + strings.Repeat("x", 100<<10), 9, nil, "too long"},
	} {
		var got []string
		err := readDecisions(strings.NewReader(tt.in), func(d spec.Decision) error {
			if got = append(got, d.Verdict); len(got) == 1 && d.Addr != netip.MustParseAddr("44.10.9.9") {
				t.Errorf("%s: %+v", tt.what, d)
			}
			if len(got) == tt.most {
				return stop
			}
			return nil
		})
		if !slices.Equal(got, tt.verdicts) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v", tt.what, got, err)
		}
	}
}
