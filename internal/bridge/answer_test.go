package bridge

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func all(string) bool { return true }

func reply(change func(map[string]any)) []byte {
	m := map[string]any{
		"answer": "an answer", "partial": false, "notes": "",
		"sources": []any{map[string]any{"url": "https://a.test/", "title": "A", "quote": "q"}},
	}
	if change != nil {
		change(m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func set(key string, value any) func(map[string]any) {
	return func(m map[string]any) { m[key] = value }
}

func inSource(key string, value any) func(map[string]any) {
	return func(m map[string]any) { m["sources"].([]any)[0].(map[string]any)[key] = value }
}

func TestParseAnswer(t *testing.T) {
	most := func(n int) string { return strings.Repeat("é", n/2) }
	sources := func(n int) func(map[string]any) {
		return func(m map[string]any) {
			m["sources"] = slices.Repeat(m["sources"].([]any), n)
		}
	}
	for _, tt := range []struct {
		name, why string // none is an answer
		reply     []byte
	}{
		{"whole", "", reply(nil)},
		{"blanks around", "", []byte(" \n" + string(reply(nil)) + "\r\n\t")},
		{"no source", "", reply(set("sources", []any{}))},
		{"sources as asked for", "", reply(sources(3))},
		{"partial", "", reply(set("partial", true))},
		{"lines", "", reply(set("answer", "a\n\tb\n"))},
		{"letters of all kinds", "", reply(set("answer", "日本語 é עברית می\u200cخواهم 👩\u200d👩\u200d👧"))},
		{"no quote", "", reply(func(m map[string]any) { delete(m["sources"].([]any)[0].(map[string]any), "quote") })},
		{"the longest", "", reply(set("answer", most(textLimit)))},
		{"the longest title", "", reply(inSource("title", most(titleLimit)))},
		{"the longest quote", "", reply(inSource("quote", most(quoteLimit)))},
		{"the longest notes", "", reply(set("notes", most(notesLimit)))},

		{"empty", "it is empty", nil},
		{"blank", "it is empty", []byte(" \n")},
		{"too long", "more than", append(reply(nil), slices.Repeat([]byte(" "), replyLimit)...)},
		{"not UTF-8", "not UTF-8", []byte(strings.Replace(string(reply(nil)), "an answer", "an \xffanswer", 1))},
		{"text", "not exactly one", []byte("hello")},
		{"a string", "not exactly one", []byte(`"hello"`)},
		{"a list", "not exactly one", []byte("[" + string(reply(nil)) + "]")},
		{"null", "not exactly one", []byte("null")},
		{"two", "not exactly one", []byte(string(reply(nil)) + string(reply(nil)))},
		{"text after", "not exactly one", append(reply(nil), "."...)},
		{"a comma after", "not exactly one", append(reply(nil), ","...)},
		{"cut short", "not exactly one", reply(nil)[:40]},
		{"a fence", "not exactly one", []byte("```\n" + string(reply(nil)) + "\n```")},
		{"a mark before", "not exactly one", append([]byte("\ufeff"), reply(nil)...)},
		{"deep", "not exactly one", []byte(`{"answer":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}")},
		{"another key", "a key that is not", reply(set("confidence", 1))},
		{"another spelling", "a key that is not", []byte(strings.Replace(string(reply(nil)), `"answer"`, `"Answer"`, 1))},
		{"twice", "has answer twice", []byte(strings.Replace(string(reply(nil)), `{"answer"`, `{"answer":"x","answer"`, 1))},
		{"no answer", "it has no answer", reply(func(m map[string]any) { delete(m, "answer") })},
		{"no sources", "it has no sources", reply(func(m map[string]any) { delete(m, "sources") })},
		{"no partial", "it has no partial", reply(func(m map[string]any) { delete(m, "partial") })},
		{"no notes", "it has no notes", reply(func(m map[string]any) { delete(m, "notes") })},
		{"an empty answer", "answer: it is empty", reply(set("answer", " \n"))},
		{"a number as answer", "answer: it is no string", reply(set("answer", 1))},
		{"null as answer", "answer: it is no string", reply(set("answer", nil))},
		{"a long answer", "answer: it has more than", reply(set("answer", most(textLimit)+"x"))},
		{"long notes", "notes: it has more than", reply(set("notes", most(notesLimit)+"x"))},
		{"partly", "partial: it is neither", reply(set("partial", "yes"))},
		{"null as partial", "partial: it is neither", reply(set("partial", nil))},
		{"sources are an object", "sources: it is no list", reply(set("sources", map[string]any{}))},
		{"sources are null", "sources: it is no list", reply(set("sources", nil))},
		{"too many sources", "there are 4, at most 3", reply(sources(4))},
		{"a source is a string", "source 1 is not exactly one", reply(set("sources", []any{"https://a.test"}))},
		{"a source without url", "source 1 has no url", reply(func(m map[string]any) { delete(m["sources"].([]any)[0].(map[string]any), "url") })},
		{"a source without title", "source 1 has no title", reply(func(m map[string]any) { delete(m["sources"].([]any)[0].(map[string]any), "title") })},
		{"a source with more", "source 1 has a key", reply(inSource("date", "today"))},
		{"a long title", "title: it has more than", reply(inSource("title", most(titleLimit)+"x"))},
		{"a long quote", "quote: it has more than", reply(inSource("quote", most(quoteLimit)+"x"))},
		{"a long url", "url: it has more than", reply(inSource("url", "https://a.test/"+most(urlLimit)))},
		{"a title of two lines", "control character U+000A", reply(inSource("title", "a\nb"))},
		{"null as quote", "quote: it is no string", reply(inSource("quote", nil))},
		{"a script", "none of http or https", reply(inSource("url", "javascript:alert(1)"))},
		{"a file", "none of http or https", reply(inSource("url", "file:///etc/passwd"))},
		{"no host", "none of http or https", reply(inSource("url", "https:///x"))},
		{"a user", "none of http or https", reply(inSource("url", "https://a@b.test/"))},
		{"no address", "none of http or https", reply(inSource("url", "https://a.test:port/"))},
		{"an unknown page", "source 1 was neither found nor fetched", reply(inSource("url", "https://unknown.test/"))},
		{"an escape", "U+001B", reply(set("answer", "a\x1b[2J"))},
		{"a zero byte", "U+0000", reply(set("answer", "a\x00"))},
		{"a carriage return", "U+000D", reply(set("answer", "a\rb"))},
		{"a control of the second half", "U+009B", reply(set("notes", "\u009b2J"))},
		{"a turn of direction", "U+202E", reply(set("answer", "\u202egnp.exe"))},
		{"an isolate", "U+2066", reply(inSource("title", "\u2066x"))},
		{"tags", "U+E0041", reply(set("answer", "x\U000e0041\U000e0042"))},
		{"a private character", "U+E000", reply(set("answer", "\ue000"))},
		{"a line separator", "U+2028", reply(inSource("quote", "a\u2028b"))},
	} {
		a, err := parseAnswer(tt.reply, 3, func(s string) bool { return !strings.Contains(s, "unknown") })
		switch {
		case tt.why == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.why == "" && (a.Answer == "" || a.Sources == nil):
			t.Errorf("%s: %+v", tt.name, a)
		case tt.why != "" && (err == nil || !strings.Contains(err.Error(), tt.why)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		case tt.why != "" && (a.Answer != "" || a.Sources != nil || a.Notes != ""):
			t.Errorf("%s: something passes: %+v", tt.name, a)
		}
	}
}

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		"https://a.test":                  "https://a.test/",
		"HTTPS://A.Test:443/x#y":          "https://a.test/x",
		"http://a.test:80/":               "http://a.test/",
		"http://a.test:443/":              "http://a.test:443/",
		"https://a.test/X?Y=Z":            "https://a.test/X?Y=Z",
		"https://a.test/x/":               "https://a.test/x/",
		"https://a.test/%7Ex":             "https://a.test/%7Ex",
		"https://u:p@a.test/":             "",
		"ftp://a.test/":                   "",
		"//a.test/":                       "",
		"https:a.test":                    "",
		"":                                "",
		"https://a.test/a b":              "https://a.test/a%20b",
		"https://[2001:db8::1]:443/":      "https://[2001:db8::1]/",
		"https://a.test\n/":               "",
		"https://a.test/?q=\"x\"#:~:text": "https://a.test/?q=\"x\"",
	} {
		if got := canonical(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if again := canonical(want); again != want {
			t.Errorf("%q becomes %q", want, again)
		}
	}
}

// Whatever comes in: what passes has the form, and is the same when it is written
// and read again.
func FuzzParseAnswer(f *testing.F) {
	f.Add(reply(nil))
	f.Add([]byte(plain))
	f.Add([]byte(`{"answer":"\ud800","sources":[],"partial":true,"notes":"\u0000"}`))
	f.Add([]byte(`{"answer":{},"sources":{},"partial":0}`))
	f.Add([]byte("{\"answer\":\"a\",\"sources\":[{\"url\":\"http://[::1%25a]/\",\"title\":\"\"}],\"partial\":false,\"notes\":\"\"} "))
	f.Fuzz(func(t *testing.T, in []byte) {
		asked := []string{}
		a, err := parseAnswer(in, 3, func(s string) bool { asked = append(asked, s); return len(s)%2 == 0 })
		if err != nil {
			if a.Answer != "" || a.Sources != nil || a.Notes != "" || a.Partial {
				t.Errorf("something passes: %+v", a)
			}
			for _, r := range err.Error() {
				if hidden(r) {
					t.Errorf("the reason has %U", r)
				}
			}
			return
		}
		if len(a.Sources) > 3 || len(asked) != len(a.Sources) {
			t.Errorf("%d sources, asked after %q", len(a.Sources), asked)
		}
		for _, s := range a.Sources {
			if len(s.URL)%2 != 0 || !strings.HasPrefix(canonical(s.URL), "http") {
				t.Errorf("an unknown source: %q", s.URL)
			}
		}
		b, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range string(b) {
			if hidden(r) {
				t.Errorf("%q has %U", b, r)
			}
		}
		again, err := parseAnswer(b, 3, all)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if c, _ := json.Marshal(again); string(c) != string(b) {
			t.Errorf("%s became %s", b, c)
		}
	})
}
