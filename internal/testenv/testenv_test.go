package testenv

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// verdict stands in for the test that asks.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Helper()                        {}
func (v *verdict) Skipf(format string, a ...any)  { v.stop("skip: ", format, a) }
func (v *verdict) Fatalf(format string, a ...any) { v.stop("fatal: ", format, a) }

func (v *verdict) stop(how, format string, a []any) {
	v.said = how + fmt.Sprintf(format, a...)
	panic(v)
}

func TestRequire(t *testing.T) {
	needs["met"] = func() error { return nil }
	needs["unmet"] = func() error { return errors.New("there is none") }
	real := needs["hermes"]
	needs["hermes"] = needs["unmet"]
	defer func() { delete(needs, "met"); delete(needs, "unmet"); needs["hermes"] = real }()

	for _, tt := range []struct {
		must  string
		short bool
		names string
		want  string
	}{
		{"", false, "met", ""},
		{"met", false, "met", ""},
		{"", false, "unmet", "skip: needs unmet: there is none"},
		{"", false, "met,unmet", "skip: needs unmet: there is none"},
		{"met", false, "unmet", "skip: needs unmet: there is none"},
		{"met,unmet", false, "unmet", "fatal: CORRAL_REQUIRE lists unmet: there is none"},
		{"", true, "met", "skip: needs met: not under -short"},
		{"met", true, "met", ""},
		{"harness", false, "hermes", "fatal: CORRAL_REQUIRE lists hermes: there is none"},
		{"", false, "hermes", "skip: needs hermes: there is none"},
		{"", false, "nothing", `fatal: testenv: no need is called "nothing"`},
	} {
		v := &verdict{}
		func() {
			defer func() {
				if r := recover(); r != nil && r != any(v) {
					panic(r)
				}
			}()
			require(v, strings.Split(tt.must, ","), tt.short, strings.Split(tt.names, ","))
		}()
		if v.said != tt.want {
			t.Errorf("must %q short %v names %q: %q, want %q", tt.must, tt.short, tt.names, v.said, tt.want)
		}
	}
}

func TestNeedsOfThisMachine(t *testing.T) {
	for name, met := range needs {
		t.Logf("%s: %v", name, met())
	}
}
