package wayback

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestRaw(t *testing.T) {
	for _, s := range []string{"", "plain", `back\slash`, `\x41`, "\xff", "a\xc3(", "\x00\x1b\n", "é\u202e", "\ufffd", strings.Repeat("\xfe\\", 99)} {
		b, err := json.Marshal(Raw(s))
		must(t, err)
		var got Raw
		if err := json.Unmarshal(b, &got); err != nil || string(got) != s {
			t.Errorf("%q is %s, and comes back as %q, %v", s, b, got, err)
		}
	}
	for _, text := range []string{`\`, `\x`, `\x4`, `\x41`, `\xzz`, `\xFF`, `\n`, `\x c`, `\x+1`, `\xc3\xa9`} {
		var got Raw
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s is %q", text, got)
		}
	}
}

// good is a snapshot with everything in it.
func good() Snapshot {
	return Snapshot{
		Version: version,
		Roots:   []Raw{"/r", "/s"},
		Home:    "/h",
		Also:    []Raw{"/r/a\xff"},
		Files: []File{
			{Path: "/r/.envrc", Pattern: ".envrc", Kind: regular, Mode: 0o644, Size: 1, Changed: 7, Sum: strings.Repeat("0a", 32)},
			{Path: "/r/.git/config", Pattern: "config", Kind: regular, Sum: strings.Repeat("0b", 32), Why: "x", Keys: []Key{{"a.b", "\xff", false}, {"c.d", "", true}}},
			{Path: "/r/\xff", Pattern: ".envrc", Kind: symlink, Target: "\x1b"},
			{Path: "/s", Pattern: rowShape, Kind: folder},
		},
		Incomplete: []Gap{{"/r/a/b", "x", "/r/a"}},
	}
}

func TestDecodeSnapshot(t *testing.T) {
	b, err := json.Marshal(good())
	must(t, err)
	got, err := DecodeSnapshot(b)
	if err != nil || !reflect.DeepEqual(got, good()) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "null", "{}", "[]", `{"version":2}`, string(b) + "{}", string(b) + "x", strings.Replace(string(b), `"roots"`, `"x":1,"roots"`, 1), strings.Replace(string(b), `"kind"`, `"kinds"`, 1), string(b[:len(b)-1])} {
		if s, err := DecodeSnapshot([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, s)
		}
	}
	if _, err := DecodeSnapshot(append(b, " \n"...)); err != nil {
		t.Error(err)
	}
	for what, spoil := range map[string]func(*Snapshot){
		"version 0":         func(s *Snapshot) { s.Version = 0 },
		"another version":   func(s *Snapshot) { s.Version = version + 1 },
		"no root":           func(s *Snapshot) { s.Roots, s.Files, s.Incomplete = nil, nil, nil },
		"relative root":     func(s *Snapshot) { s.Roots[0] = "r" },
		"root with a dot":   func(s *Snapshot) { s.Roots[0] = "/r/." },
		"relative home":     func(s *Snapshot) { s.Home = "h" },
		"relative also":     func(s *Snapshot) { s.Also[0] = "r" },
		"relative path":     func(s *Snapshot) { s.Files[0].Path = "r" },
		"path that goes up": func(s *Snapshot) { s.Files[0].Path = "/r/../r/.envrc" },
		"outside":           func(s *Snapshot) { s.Files[0].Path = "/q/.envrc" },
		"outside by name":   func(s *Snapshot) { s.Files[3].Path = "/ss" },
		"order":             func(s *Snapshot) { s.Files[0], s.Files[1] = s.Files[1], s.Files[0] },
		"twice":             func(s *Snapshot) { s.Files[1].Path = s.Files[0].Path },
		"no pattern":        func(s *Snapshot) { s.Files[0].Pattern = "" },
		"no kind":           func(s *Snapshot) { s.Files[0].Kind = "" },
		"odd kind":          func(s *Snapshot) { s.Files[0].Kind = "a thing" },
		"neither sum nor":   func(s *Snapshot) { s.Files[0].Sum = "" },
		"short sum":         func(s *Snapshot) { s.Files[0].Sum = s.Files[0].Sum[1:] },
		"upper case":        func(s *Snapshot) { s.Files[0].Sum = strings.ToUpper(s.Files[0].Sum) },
		"sum of a link":     func(s *Snapshot) { s.Files[2].Sum = s.Files[0].Sum },
		"size":              func(s *Snapshot) { s.Files[0].Size = -1 },
		"gap without why":   func(s *Snapshot) { s.Incomplete[0].Why = "" },
		"gap elsewhere":     func(s *Snapshot) { s.Incomplete[0].Below = "/x" },
		"gap nowhere":       func(s *Snapshot) { s.Incomplete[0].Below = "" },
	} {
		s := good()
		spoil(&s)
		b, err := json.Marshal(s)
		must(t, err)
		if s, err := DecodeSnapshot(b); err == nil {
			t.Errorf("%s: %+v", what, s)
		}
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	b, err := json.Marshal(good())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":2,"roots":["/"],"files":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSnapshot(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := DecodeSnapshot(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if third, _ := json.Marshal(twice); !bytes.Equal(again, third) {
			t.Fatalf("%s\n%s", again, third)
		}
		// Compared with itself and with nothing it neither fails nor hides.
		if got := Compare(s, s); len(got) != min(1, len(s.Incomplete)) {
			t.Fatalf("%v", got)
		}
		for _, f := range append(Compare(s, Snapshot{}), append(Compare(Snapshot{}, s), s.Odd()...)...) {
			if strings.ContainsAny(f.String(), "\x1b\n\r\x00") {
				t.Fatalf("%q", f.String())
			}
		}
	})
}

// A later look is about what the older one did not see, and nothing is told less.
func TestSince(t *testing.T) {
	old, added := realDir(t), realDir(t)
	for _, dir := range []string{old, added} {
		write(t, dir, ".envrc", "x")
		write(t, dir, "script", "x")
	}
	first := taken(t, Scope{Roots: []string{old}, Also: []string{old + "/script"}})
	write(t, old, ".envrc", "y")
	write(t, old, "script", "y")
	write(t, added, ".envrc", "before it was a mount")
	both := taken(t, Scope{Roots: []string{added, old}, Also: []string{added + "/script", old + "/script"}}).Since(first)
	if err := both.valid(); err != nil {
		t.Fatal(err)
	}
	write(t, added, "script", "y")
	got := told(old, Compare(both, taken(t, both.Scope())))
	if want := lines("  .envrc: changed", "  script: changed", added+"/script: changed"); strings.ReplaceAll(got, "  /", "/") != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := first.Since(Snapshot{}); len(got.Files) != len(first.Files) {
		t.Errorf("after nothing: %+v", got)
	}
	if got := (Snapshot{}).Since(first); got.valid() != nil || len(got.Files) != len(first.Files) {
		t.Errorf("before nothing: %+v", got)
	}
}
