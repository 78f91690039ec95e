package secret

import (
	"bytes"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// canary is in no text of ours.
const canary = "q7Zk2vXp9w"

// hides fails if a text holds the canary, in any spelling that fmt has for it.
func hides(t *testing.T, how, text string) {
	t.Helper()
	for _, spelling := range []string{
		canary,
		hex.EncodeToString([]byte(canary)),
		strings.ToUpper(hex.EncodeToString([]byte(canary))),
		strings.Trim(fmt.Sprint([]byte(canary)), "[]"),
		strings.Trim(fmt.Sprintf("% x", canary), "[]"),
	} {
		if strings.Contains(text, spelling) {
			t.Errorf("%s shows the value: %s", how, text)
		}
	}
}

type holder struct {
	Name  string
	Value Secret
}

// hider keeps its secret where fmt calls no method.
type hider struct {
	value  Secret
	many   []Secret
	ptr    *Secret
	inside struct{ value Secret }
	any    any
	byName map[string]Secret
}

type embedded struct{ Secret }

type failure struct{ value Secret }

func (f failure) Error() string { return fmt.Sprintf("it failed with %v", f.value) }

// R117: printed in every way that anybody might.
func TestPrinted(t *testing.T) {
	s := New(canary)
	hidden := hider{value: s, many: []Secret{s}, ptr: &s, any: s, byName: map[string]Secret{"a": s}}
	hidden.inside.value = s
	wrapped := fmt.Errorf("outer: %w", failure{s})
	values := map[string]any{
		"itself":          s,
		"pointer":         &s,
		"pointer pointer": func() any { p := &s; return &p }(),
		"struct":          holder{"A", s},
		"struct pointer":  &holder{"A", s},
		"anonymous":       embedded{s},
		"variable":        Var{"A", s},
		"slice":           []Secret{s},
		"array":           [1]Secret{s},
		"slice of any":    []any{s, &s},
		"map":             map[string]Secret{"a": s},
		"map pointer":     map[string]*Secret{"a": &s},
		"map key":         map[Secret]int{s: 1},
		"not exported":    hidden,
		"behind pointer":  &hidden,
		"error":           wrapped,
		"joined":          errors.Join(wrapped, failure{s}),
	}
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%+q", "%#q", "%x", "%X", "% x", "%#x", "%d", "%o", "%b", "%c", "%U", "%e", "%g", "%t", "%p", "%T", "%w", "%z", "%20v", "%-20s", "%.3s"}
	for name, v := range values {
		for _, verb := range verbs {
			hides(t, name+" "+verb, fmt.Sprintf(verb, v))
		}
		hides(t, name+" Sprint", fmt.Sprint(v))
		hides(t, name+" Sprintln", fmt.Sprintln("a", v, "b"))
		if b, err := json.Marshal(v); err == nil {
			hides(t, name+" JSON", string(b))
		}
		if b, err := xml.Marshal(v); err == nil {
			hides(t, name+" XML", string(b))
		}
		var b bytes.Buffer
		_ = gob.NewEncoder(&b).Encode(v) // a secret has nothing that gob would take
		hides(t, name+" gob", b.String())
		for how, handler := range map[string]slog.Handler{
			"text": slog.NewTextHandler(&b, nil),
			"JSON": slog.NewJSONHandler(&b, nil),
		} {
			b.Reset()
			log := slog.New(handler)
			log.With("with", v).WithGroup("g").Info(fmt.Sprint(v), "value", v, slog.Any("any", v))
			hides(t, name+" slog "+how, b.String())
		}
	}
	for _, text := range []string{wrapped.Error(), s.String(), s.GoString(), s.LogValue().String()} {
		if hides(t, "text", text); !strings.Contains(text, "***") {
			t.Errorf("%q does not say that something is hidden", text)
		}
	}
}

// That the printing above would show a plain string, the search included.
func TestPrintedIsFound(t *testing.T) {
	type plain struct{ value string }
	for _, verb := range []string{"%v", "%#v", "%x", "%X", "%d"} {
		text := fmt.Sprintf(verb, plain{canary})
		if verb == "%d" {
			text = fmt.Sprintf(verb, []byte(canary))
		}
		inner := &testing.T{}
		if hides(inner, verb, text); !inner.Failed() {
			t.Errorf("%s: %s is not found", verb, text)
		}
	}
}

func TestForms(t *testing.T) {
	s := New(canary)
	for got, want := range map[string]string{
		fmt.Sprint(s):                        "***",
		fmt.Sprintf("%#v", s):                "***",
		fmt.Sprintf("%q %d", s, s):           "*** ***",
		fmt.Sprint(Var{"A", s}):              "{A ***}",
		fmt.Sprint(holder{"A", Secret{}}):    "{A ***}",
		fmt.Sprint(map[string]Secret{"": s}): "map[:***]",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	b, err := json.Marshal(map[string]any{"a": s, "b": &s, "c": Secret{}})
	if want := `{"a":"***","b":"***","c":"***"}`; err != nil || string(b) != want {
		t.Errorf("JSON %s, %v, want %s", b, err, want)
	}
}

func TestReveal(t *testing.T) {
	for _, v := range []string{"", canary, "\x00\xff", "***"} {
		if got := New(v).Reveal(); got != v {
			t.Errorf("%q is revealed as %q", v, got)
		}
	}
	var zero Secret
	if got := zero.Reveal(); got != "" {
		t.Errorf("the zero value is %q", got)
	}
}
