package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of an answer, in bytes. Main's model reads all of it, so they are what a
// good answer needs and no more.
const (
	replyLimit = 256 << 10
	textLimit  = 64 << 10
	notesLimit = 4 << 10
	urlLimit   = 2 << 10
	titleLimit = 512
	quoteLimit = 2 << 10
	// sourcesMost is what a caller may ask for; sourcesUsual what it gets unasked.
	sourcesMost  = 20
	sourcesUsual = 8
)

// Answer is what a call gives back.
type Answer struct {
	Answer  string   `json:"answer"`
	Sources []Source `json:"sources"`
	// Partial says that the question is not answered whole; Notes what the reader
	// should know.
	Partial bool   `json:"partial"`
	Notes   string `json:"notes"`
}

// Source is a page that a search of this call returned or that it fetched.
type Source struct {
	URL   string `json:"url"`
	Title string `json:"title"`
	Quote string `json:"quote,omitempty"`
}

// parseAnswer reads a researcher's whole reply: exactly one JSON object with the
// keys of an Answer, each once, and at most so many sources, all of them known. Its
// error says what is wrong and repeats nothing of the reply.
func parseAnswer(reply []byte, most int, known func(string) bool) (Answer, error) {
	switch {
	case len(reply) > replyLimit:
		return Answer{}, fmt.Errorf("it has more than %d bytes", replyLimit)
	case !utf8.Valid(reply):
		return Answer{}, errors.New("it is not UTF-8")
	case len(bytes.TrimSpace(reply)) == 0:
		return Answer{}, errors.New("it is empty")
	}
	fields, err := object(reply, "it", []string{"answer", "sources", "partial", "notes"})
	if err != nil {
		return Answer{}, err
	}
	for _, name := range []string{"answer", "sources", "partial", "notes"} {
		if fields[name] == nil {
			return Answer{}, fmt.Errorf("it has no %s", name)
		}
	}
	var a Answer
	if a.Answer, err = text(fields["answer"], "answer", textLimit, lines); err != nil {
		return Answer{}, err
	}
	if strings.TrimSpace(a.Answer) == "" {
		return Answer{}, errors.New("answer: it is empty")
	}
	if a.Notes, err = text(fields["notes"], "notes", notesLimit, lines); err != nil {
		return Answer{}, err
	}
	switch string(fields["partial"]) {
	case "true":
		a.Partial = true
	case "false":
	default:
		return Answer{}, errors.New("partial: it is neither true nor false")
	}
	var sources []json.RawMessage
	if fields["sources"][0] != '[' || json.Unmarshal(fields["sources"], &sources) != nil {
		return Answer{}, errors.New("sources: it is no list")
	}
	if len(sources) > most {
		return Answer{}, fmt.Errorf("sources: there are %d, at most %d were asked for", len(sources), most)
	}
	a.Sources = []Source{}
	for i, raw := range sources {
		s, err := source(raw, fmt.Sprintf("source %d", i+1), known)
		if err != nil {
			return Answer{}, err
		}
		a.Sources = append(a.Sources, s)
	}
	return a, nil
}

func source(raw json.RawMessage, what string, known func(string) bool) (Source, error) {
	fields, err := object(raw, what, []string{"url", "title", "quote"})
	if err != nil {
		return Source{}, err
	}
	var s Source
	for _, f := range []struct {
		name     string
		to       *string
		limit    int
		optional bool
	}{{"url", &s.URL, urlLimit, false}, {"title", &s.Title, titleLimit, false}, {"quote", &s.Quote, quoteLimit, true}} {
		if fields[f.name] == nil {
			if f.optional {
				continue
			}
			return Source{}, fmt.Errorf("%s has no %s", what, f.name)
		}
		allowed := oneLine
		if f.name == "quote" {
			allowed = lines
		}
		if *f.to, err = text(fields[f.name], what+", "+f.name, f.limit, allowed); err != nil {
			return Source{}, err
		}
	}
	if canonical(s.URL) == "" {
		return Source{}, fmt.Errorf("%s: its url is none of http or https", what)
	}
	if !known(s.URL) {
		return Source{}, fmt.Errorf("%s was neither found nor fetched in this call", what)
	}
	return s, nil
}

// object reads exactly one JSON object that has no other keys than those named,
// spelled so, and none of them twice.
func object(raw []byte, what string, keys []string) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	none := fmt.Errorf("%s is not exactly one JSON object", what)
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, none
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return nil, none
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, none
		}
		if !has(keys, key) {
			return nil, fmt.Errorf("%s has a key that is not in its form", what)
		}
		if fields[key] != nil {
			return nil, fmt.Errorf("%s has %s twice", what, key)
		}
		fields[key] = value
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('}') {
		return nil, none
	}
	if len(bytes.TrimSpace(raw[dec.InputOffset():])) > 0 {
		return nil, none
	}
	return fields, nil
}

func has(keys []string, key string) bool {
	for _, k := range keys {
		if k == key {
			return true
		}
	}
	return false
}

// Control characters that a text may have.
const (
	lines   = "\n\t"
	oneLine = ""
)

// text reads a JSON string of so many bytes at most that holds nothing which a
// terminal would act on or a person could not see.
func text(raw json.RawMessage, what string, limit int, allowed string) (string, error) {
	var s string
	if raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", fmt.Errorf("%s: it is no string", what)
	}
	if len(s) > limit {
		return "", fmt.Errorf("%s: it has more than %d bytes", what, limit)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return hidden(r) && !strings.ContainsRune(allowed, r) }); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return "", fmt.Errorf("%s: it has the control character %U", what, r)
	}
	return s, nil
}

// hidden are characters that act on what stands around them, or carry text that
// nobody sees: controls, directions, line separators, tags, the private and the
// unassigned.
func hidden(r rune) bool {
	switch {
	case unicode.IsControl(r),
		r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c,
		r == 0x2028, r == 0x2029, r == 0xfeff,
		r >= 0xe0000 && r <= 0xe0fff,
		unicode.Is(unicode.Co, r), unicode.Is(unicode.Cs, r), r&0xfffe == 0xfffe:
		return true
	}
	return false
}

// canonical is how a page's address is compared: without what may be written in
// several ways and names the same page. It is empty if there is no web page at it.
func canonical(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.Opaque != "" {
		return ""
	}
	u.Scheme = strings.ToLower(u.Scheme)
	if u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	port := u.Port()
	if u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	u.Host = strings.ToLower(u.Host)
	u.Fragment, u.RawFragment = "", ""
	if u.Path == "" {
		u.Path = "/"
	}
	return u.String()
}
